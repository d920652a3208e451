"""Options that several commands share, and the printing of JSON or lines."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from gradeloop.exit_codes import BROKEN_PIPE, leave

ThreadId = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id, or `latest` for the newest.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else on stdout.")]
Grader = Annotated[str | None, typer.Option(metavar="MODEL", help="Judge with this model, written provider:model.")]
Tools = Annotated[list[Path] | None, typer.Option("--tools", metavar="FILE", help="Load evidence tools from this Python file; repeatable.")]
Scripted = Annotated[Path | None, typer.Option(metavar="FILE", help="Read the replies of the provider `scripted` from this file.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="List at most this many.")]


def show_lines(value: object, lines: Any, *, as_json: bool) -> None:  # noqa: ANN401 - whatever rich can print
    """Print a value as JSON, or as lines for a terminal."""
    if as_json:
        typer.echo(json.dumps(value, ensure_ascii=False, default=str))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, Text))


class Terminal(Console):
    """A console that ends the program when the output pipe is closed."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Leave with the exit code of a closed output pipe."""
        leave(BROKEN_PIPE)
