"""Prints the reference of the commands: `python deploy/site/describe_commands.py > docs/cli.md`, as `make docs` does."""

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from gradeloop.cli.commands import HIDDEN, command_groups
from gradeloop.cli.main import app
from gradeloop.contract.base import describe_fields
from gradeloop.exit_codes import CODES
from gradeloop.settings.worker import WorkerSettings

HEAD = """# The command line

`make docs` writes this page from the commands; a test compares it with them. `gradeloop COMMAND --help` prints the same in a terminal.

`gradeloop --install-completion` sets up completion for your shell; `--show-completion` prints the script."""

TYPE = r" <(str|path|list\[str\])>$"
"""The Python type that typer adds to an argument's name."""

WORKER = """## `gradeloop worker`

Run a worker. A setting is a flag, a variable, or a key of `gradeloop.toml`; the first of these that sets it wins.
The file's `tools` are added to the others. A list or a mapping is written as JSON."""


def build_reference() -> str:
    """Return the whole page as Markdown."""
    top: Any = typer.main.get_command(app)
    top.load_all()
    own = ", ".join(f"[`{name}`](#gradeloop-{name})" for name in CODES if name)
    parts = [HEAD, *_overview(top), f"## Exit codes\n\n{_codes('')}\n\nThese commands have a table of their own: {own}."]
    for title, names in command_groups().items():
        for name in names if title != HIDDEN else ():
            parts += [_worker()] if name == "worker" else _pages(top.commands[name], f"gradeloop {name}")
    return "\n\n".join(parts) + "\n"


def _overview(top: Any) -> Iterator[str]:  # noqa: ANN401 - typer's own click has no public types
    for title, names in command_groups().items():
        if title == HIDDEN:
            yield "Scripts may say `state` for `show`, `view` for `report`, `export` for `batches export`, and `retry` for `eval --retry`."
            continue
        rows = [(f"[`{name}`](#gradeloop-{name})", _short_help(top.commands[name])) for name in names]
        yield f"**{title}**\n\n{_table(('command', 'what it does'), rows)}"


def _pages(command: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - as above
    """Yield a command, and below it the commands of a group."""
    context = command.make_context(path, [], resilient_parsing=True)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"## `{path}`\n\n{command.help or _short_help(command)}\n\n```text\n{usage}\n```"
    records = [param.get_help_record(context) for param in command.get_params(context) if param.name != "help"]
    rows = [(f"`{re.sub(TYPE, '', names)}`", text) for names, text in filter(None, records)]
    if rows:
        yield _table(("argument or flag", "what it does"), rows)
    if (name := path.removeprefix("gradeloop ")) in CODES:
        yield f"Exit codes:\n\n{_codes(name)}"
    for name, inner in getattr(command, "commands", {}).items():
        yield from _pages(inner, f"{path} {name}")


def _worker() -> str:
    describe_fields(WorkerSettings)
    rows = [
        (f"`--{name.replace('_', '-')}`", f"`GRADELOOP_{name.replace('.', '__').upper()}`", default, text)
        for name, default, text in _settings(WorkerSettings)
    ]
    return "\n\n".join([WORKER, _table(("flag", "variable", "default", "what it does"), rows), f"Exit codes:\n\n{_codes('worker')}"])


def _codes(command: str) -> str:
    return _table(("code", "meaning"), [(str(code), meaning) for code, meaning in sorted(CODES[command].items())])


def _settings(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield every setting by its path, with its default and what it does."""
    for name, field in model.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            yield from _settings(section, f"{prefix}{name}.")
        else:
            default = field.get_default(call_default_factory=True, validated_data={})
            shown = "" if default is PydanticUndefined or default in (None, [], (), {}) else f"`{str(default).lower()}`"
            choices = [str(choice) for choice in get_args(section) if isinstance(choice, str)]
            values = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
            yield f"{prefix}{name}", shown, f"{field.description or ''}{values}"


def _short_help(command: Any) -> str:  # noqa: ANN401 - as above
    text: str = command.short_help or command.help or ""
    return text


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(build_reference())
