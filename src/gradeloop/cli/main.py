"""The command line: every command reads its input, hands it to the library, and returns lines and an exit code."""

import asyncio
import json
import os
import sys
from collections.abc import Coroutine
from importlib.metadata import version
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from gradeloop.cli.eval import batch_app, batches_app
from gradeloop.cli.help import GroupedCommands, codes_help
from gradeloop.cli.judge import judge_app, registry_app
from gradeloop.cli.reports import report_app
from gradeloop.cli.rubrics import people_app, rubric_app
from gradeloop.cli.threads import Grader, Json, Scripted, ThreadId, Tools, code_of, thread_app, words_of
from gradeloop.exit_codes import BAD_INPUT, BROKEN_PIPE, STOPPED, code_of_error, fail, leave

if TYPE_CHECKING:
    from rich.console import Console

    from gradeloop.cli.threads import RunEnding


app = typer.Typer(
    cls=GroupedCommands,
    help="Say what done looks like; gradeloop drives the work until an independent judge agrees.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
dev_app = typer.Typer(
    cls=GroupedCommands,
    help="Run server, worker and UI in the foreground for a service under development; `dev stop` ends background processes.",
    short_help="Run server, worker and UI; `dev stop` ends them.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.add_typer(dev_app, name="dev")
app.add_typer(thread_app)
app.add_typer(judge_app)
app.add_typer(batch_app)
app.add_typer(batches_app, name="batches")
app.add_typer(report_app)
app.add_typer(rubric_app, name="rubric")
app.add_typer(registry_app, name="registry")
app.add_typer(people_app)

BudgetTokens = Annotated[int | None, typer.Option(metavar="N", help="Interrupt the run when the thread has used this many tokens.")]
BudgetUsd = Annotated[float | None, typer.Option(metavar="USD", help="Interrupt the run when the thread has cost this many dollars.")]


def main() -> None:
    """Run the command line; a user's mistake ends with one sentence, not a traceback."""
    from gradeloop.errors import GradeloopError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except GradeloopError as error:
        fail(str(error), code_of_error(error))
    except OSError as error:
        fail(f"{error.filename or 'a file'}: {error.strerror or error}", BAD_INPUT)
    except KeyboardInterrupt:
        fail("stopped", STOPPED)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # for which click and rich exit with 1, as a capped run does
            leave(BROKEN_PIPE)
        leave(ended.code if isinstance(ended.code, int) else 0)


@app.callback(invoke_without_command=True)
def _top(*, show: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if show:
        typer.echo(version("gradeloop"))
        raise typer.Exit


@app.command(epilog=codes_help("run"))
def run(  # noqa: PLR0913 - one parameter a flag
    task: Annotated[Path | None, typer.Argument(metavar="TASK.yaml", help="The task's file; `gradeloop init` writes one.")] = None,
    *,
    prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Give the task as one message.")] = None,
    rubric: Annotated[str | None, typer.Option(metavar="RUBRIC", help="Grade by this rubric: a file, or its text.")] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Draft with this model, written provider:model.")] = None,
    grader: Grader = None,
    max_iterations: Annotated[int | None, typer.Option(metavar="N", help="Draft at most this often, 1 to 20; 3 by default.")] = None,
    tools: Tools = None,
    thread: Annotated[str | None, typer.Option(metavar="THREAD", help="Give the thread this id; a new id by default.")] = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Record every exchange with a model in this file.")] = None,
    replay: Annotated[Path | None, typer.Option(metavar="FILE", help="Replay the models' replies from a recording; needs no key.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the run and return without waiting for it.")] = False,
    as_json: Json = False,
) -> None:
    """Draft, grade and revise until the draft meets the rubric."""
    from gradeloop.cli.task_file import TaskFlags, budget_of, read_task
    from gradeloop.cli.threads import run_task

    budget = budget_of(budget_tokens, budget_usd)
    flags = TaskFlags(prompt, rubric, model, grader, max_iterations, tuple(tools or ()), thread, budget, record, replay)
    _finish(run_task(read_task(task, flags), _console(), as_json=as_json, detach=detach))


@app.command(epilog=codes_help("demo"))
def demo() -> None:
    """Watch a model write a function, fail its tests, and fix it."""
    from gradeloop.cli.task_file import TaskFlags, read_task
    from gradeloop.cli.threads import run_task
    from gradeloop.settings.default_model import default_model
    from gradeloop.temporal.worker import application_folder

    chosen, model = default_model(os.environ), "scripted:demo"
    if chosen and chosen.spec.config.base_url is None:
        model = chosen.spec.id
    else:
        typer.echo("No provider key is set, so the models' replies come from a script; the tests really run, in the sandbox.\n")
    task = application_folder() / "examples" / "find_duplicates" / "task.yaml"
    _finish(run_task(read_task(task, TaskFlags(model=model, grader=model)), _console(), as_json=False, detach=False))


@app.command(epilog=codes_help("resume"))
def resume(thread: ThreadId, *, budget_tokens: BudgetTokens = None, budget_usd: BudgetUsd = None, as_json: Json = False) -> None:
    """Resume an interrupted run where it stopped."""
    from gradeloop.cli.task_file import budget_of
    from gradeloop.cli.threads import resume_thread

    _finish(resume_thread(thread, _console(), budget=budget_of(budget_tokens, budget_usd), as_json=as_json))


@app.command(epilog=codes_help("watch"))
def watch(thread: ThreadId, *, as_json: Json = False) -> None:
    """Show a thread from its beginning, and follow it live."""
    from gradeloop.cli.threads import watch_thread

    _finish(watch_thread(thread, _console(), as_json=as_json))


@app.command()
def init(path: Annotated[Path, typer.Argument(metavar="TASK.yaml", help="Write the task to this file.")] = Path("task.yaml")) -> None:
    """Write an example task to edit."""
    from gradeloop.cli.task_file import write_example

    write_example(path)
    typer.echo(f"wrote {path}; run it with: gradeloop run {path}")


@app.command()
def schema(name: Annotated[str | None, typer.Argument(metavar="NAME", help="Print this schema alone.")] = None) -> None:
    """Print the JSON Schemas of the wire contract."""
    from gradeloop.cli.schemas import schemas_of

    typer.echo(json.dumps(schemas_of(name), indent=2))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def worker(context: typer.Context) -> None:
    """Run a worker; `worker --help` lists its settings."""
    from gradeloop.temporal.worker import application_folder

    script = str(application_folder() / "worker.py")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, script, *context.args])  # noqa: S606 - our own file, the user's own flags


@dev_app.callback()
def dev(context: typer.Context, *, tools: Tools = None, scripted: Scripted = None) -> None:
    """Serve the queue `gradeloop` on the embedded server until Ctrl-C."""
    if context.invoked_subcommand is None:
        from gradeloop.cli.dev import develop

        raise typer.Exit(asyncio.run(develop(tuple(tools or ()), scripted, _console())))


@dev_app.command("stop")
def dev_stop() -> None:
    """Stop the embedded server and its workers; threads stay on disk."""
    from gradeloop.cli.dev import stop_all

    typer.echo(asyncio.run(stop_all()))


def _finish(work: "Coroutine[Any, Any, RunEnding]") -> NoReturn:
    """Follow a run to its end and exit with its code."""
    ending = asyncio.run(work)
    if words := words_of(ending):
        typer.echo(words, err=True)
    raise typer.Exit(code_of(ending))


def _console() -> "Console":
    from rich.console import Console

    class Terminal(Console):
        """A console that ends the program when the output pipe is closed."""

        def on_broken_pipe(self) -> None:
            leave(BROKEN_PIPE)

    return Terminal(highlight=False, markup=False, emoji=False)
