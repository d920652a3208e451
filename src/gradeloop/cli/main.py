"""The entry point of the command line: `gradeloop`, its errors and exit codes."""

import os
import sys
import traceback
from io import TextIOWrapper
from typing import Annotated, NoReturn

import typer

from gradeloop.cli.commands import GroupedCommands
from gradeloop.errors import GradeloopError
from gradeloop.exit_codes import BAD_INPUT, BROKEN_PIPE, INTERNAL, STOPPED, code_of_error, fail, leave
from gradeloop.settings.secrets import scrubbed
from gradeloop.text import one_line, shortened, without_commands

app = typer.Typer(
    cls=GroupedCommands,
    help="Say what done looks like; gradeloop drives the work until an independent judge agrees.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

TRACEBACK = "GRADELOOP_TRACEBACK"
"""The variable with which an internal error prints where it happened."""


def main() -> None:
    """Run the command line; a user's mistake ends with one sentence, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
            if not stream.isatty():
                _defuse(stream)
    try:
        app()
    except GradeloopError as error:
        fail(str(error), code_of_error(error))
    except OSError as error:
        fail(f"{error.filename or 'a file'}: {error.strerror or error}", BAD_INPUT)
    except Exception as error:  # noqa: BLE001 - whatever nobody foresaw: Python would end with 1, which means a gate
        _fail_internally(error)
    except SystemExit as ended:
        if isinstance(ended.__context__ and ended.__context__.__cause__, KeyboardInterrupt):  # for which typer exits without a word
            fail("stopped", STOPPED)
        if isinstance(ended.__context__, BrokenPipeError):  # for which click and rich exit with 1, as a capped run does
            leave(BROKEN_PIPE)
        leave(ended.code if isinstance(ended.code, int) else 0)


def _fail_internally(error: Exception) -> NoReturn:
    """Print what to report of an error that nobody foresaw, with its traceback where `GRADELOOP_TRACEBACK` asks for it, and exit."""
    if os.environ.get(TRACEBACK):
        typer.echo(scrubbed("".join(traceback.format_exception(error))), err=True)
    what = shortened(one_line(scrubbed(f"{type(error).__name__}: {error}")), 500)  # a validation's message quotes whatever it was given
    cure = f"the fault is in gradeloop; please report it, with the command and what it prints with {TRACEBACK}=1"
    fail(f"internal error: {what}; {cure}", INTERNAL)


def _defuse(stream: TextIOWrapper) -> None:
    """Let no line that is written to a pipe be a command of the CI system that reads it."""
    write = stream.write
    stream.write = lambda text: write(without_commands(text))  # type: ignore[method-assign]  # rich, click and print call it by its name


@app.callback(invoke_without_command=True)
def _top(*, show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if show:
        from importlib.metadata import version

        typer.echo(version("gradeloop"))
        raise typer.Exit
