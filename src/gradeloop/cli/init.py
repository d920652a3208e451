"""The command `init`: examples to edit, each with the JSON Schema that an editor checks it by."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import typer

from gradeloop.cli.schemas import json_schemas
from gradeloop.errors import InvalidRequest

app = typer.Typer(rich_markup_mode=None)

Kind = Literal["task", "suite", "judge"]

USES: dict[Kind, tuple[str, str]] = {
    "task": ("Task", "gradeloop run {path}"),
    "suite": ("Suite", "gradeloop eval {path}"),
    "judge": ("CriteriaJudge", "gradeloop judge {path} RUN..., where a run is a text or a transcript"),
}
"""The schema of each kind by its name on the wire, and the command that takes the file."""


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
    write_example(path, kind)
    schema.write_text(json.dumps(json_schemas(name), indent=1) + "\n")
    typer.echo(f"wrote {path}, and {schema} for editors; run it with: {command.format(path=path)}")


def write_example(path: Path, kind: Kind) -> None:
    """Write the example of a kind, where there is no file yet.

    Raises:
        InvalidRequest: The file exists already, or cannot be written.
    """
    example = (files("gradeloop.cli") / f"{kind}_example.yaml").read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(example)
    except FileExistsError:
        raise InvalidRequest(f"{str(path)!r} exists already; name another file") from None
    except OSError as error:
        raise InvalidRequest(f"{str(path)!r} cannot be written: {error.strerror}") from None
