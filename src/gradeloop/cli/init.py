"""The command `init`: examples to edit, with models of this machine where it serves any, and JSON Schemas for editors."""

import asyncio
import json
import os
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gradeloop.cli.schemas import json_schemas
from gradeloop.errors import InvalidRequest
from gradeloop.settings.endpoints import LOOPBACK, cure_of_no_model, default_model, expand, presets_by_name

if TYPE_CHECKING:
    import httpx2

app = typer.Typer(rich_markup_mode=None)

Kind = Literal["task", "suite", "judge"]

USES: dict[Kind, tuple[str, str]] = {
    "task": ("Task", "gradeloop run {path}"),
    "suite": ("Suite", "gradeloop eval {path}"),
    "judge": ("CriteriaJudge", "gradeloop judge {path} RUN..., where a run is a text or a transcript"),
}
"""The schema of each kind by its name on the wire, and the command that takes the file."""

ASK_SECONDS = 3.0
"""Seconds that a server of this machine has to list its models: one that is not there refuses at once."""

LIST_BYTES = 1024 * 1024
"""The longest list of models that is read."""

SHOWN_MODELS = 6

_MODEL = re.compile(r"[\w./@+-][\w.:/@+-]{0,199}", re.ASCII)
_NO_CHAT = re.compile(r"embed|rerank|whisper|tts|bge-|minilm", re.IGNORECASE)
_OFFER = re.compile(r"^# ((?:generators?|grader): .*?)(?:anthropic|openai):[\w.-]+(?:, tools: \[run_python\])?(.*)$", re.MULTILINE)
"""A line of an example that names a model."""


@app.command()
def init(
    path: Annotated[Path | None, typer.Argument(metavar="FILE", help="Write the example to this file; KIND.yaml by default.")] = None,
    *,
    kind: Annotated[Kind, typer.Option(help="Write a task, a suite of cases, or a judge of finished runs.")] = "task",
) -> None:
    """Write an example task, suite or judge to edit."""
    path = path or Path(f"{kind}.yaml")
    name, command = USES[kind]
    schema = path.with_name(f"{kind}.schema.json")
    found, keyed = asyncio.run(find_servers(os.environ)), default_model(os.environ)
    address, (model, *_) = next(iter(found.items()), ("", [""]))
    write_example(path, kind, f"{json.dumps(model)}\\2  # at {address}" if model else "", used=keyed is None)
    schema.write_text(json.dumps(json_schemas(name), indent=1) + "\n")
    for address, models in found.items():
        typer.echo(f"found at {address}: {', '.join([*models[:SHOWN_MODELS], *(['...'] if len(models) > SHOWN_MODELS else [])])}")
    if model:
        why = f"{keyed.variable} is set, so it uses {keyed.spec.id}; a comment has" if keyed else "no provider's key is set, so it uses"
        typer.echo(f"{why} {model}")
    if not (model or keyed):
        flag = "--grader" if kind == "judge" else "--model"
        typer.echo(f"no provider's key is set, and no model server answers on this machine. Before it runs: {cure_of_no_model(flag)}")
    typer.echo(f"wrote {path}, and {schema} for editors; {'run it' if model or keyed else 'then run it'} with: {command.format(path=path)}")


async def find_servers(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the models of this machine's servers as `provider:model`, by address; presets and `OPENAI_BASE_URL` say who is asked."""
    import httpx2  # only this command loads it

    places = server_places(environ)
    async with httpx2.AsyncClient(trust_env=False, timeout=None) as http:  # each client reads the certificates of the system
        found = await asyncio.gather(*(_models_at(http, address) for address in places))
    return {place: [f"{name}:{model}" for model in models] for (place, name), models in zip(places.items(), found, strict=True) if models}


def server_places(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the addresses of this machine at which models are looked for, with the first provider of each."""
    places: dict[str, str] = {}
    local = [preset for preset in presets_by_name().values() if preset.keyless and not preset.cloud]
    for name, preset in [*((preset.name, preset) for preset in local), ("openai_compatible", presets_by_name()["openai"])]:
        address = expand(preset.base_url, environ).replace("//localhost", "//127.0.0.1")
        if LOOPBACK.fullmatch(address):
            places.setdefault(address, name)
    return places


async def _models_at(http: "httpx2.AsyncClient", address: str) -> list[str]:
    """Return the models that a server lists and that chat, as far as their names tell; none where nobody answers."""
    import httpx2

    listed = b""
    try:
        async with asyncio.timeout(ASK_SECONDS), http.stream("GET", f"{address.rstrip('/')}/models") as answer:
            async for chunk in answer.raise_for_status().aiter_bytes():
                if len(listed := listed + chunk) > LIST_BYTES:
                    return []
        names = (str(row["id"]) for row in json.loads(listed)["data"])
        return [name for name in names if _MODEL.fullmatch(name) and not _NO_CHAT.search(name)]
    except (TimeoutError, httpx2.HTTPError, ValueError, LookupError, TypeError):
        return []


def write_example(path: Path, kind: Kind, offered: str, *, used: bool) -> None:
    """Write a kind's example, with an offered model in use or in a comment; raise InvalidRequest where the file is there already."""
    example = (files("gradeloop.cli") / f"{kind}_example.yaml").read_text(encoding="utf-8")
    if offered:
        example = _OFFER.sub(rf"\1{offered}" if used else rf"\g<0>\n# \1{offered}", example)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(example)
    except FileExistsError:
        raise InvalidRequest(f"{str(path)!r} exists already; name another file") from None
    except OSError as error:
        raise InvalidRequest(f"{str(path)!r} cannot be written: {error.strerror}") from None
