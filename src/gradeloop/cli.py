"""The command line: each command reads its input, hands it to the library, and gives back lines and an exit code."""

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

from gradeloop.cli_batches import batch_app, batches_app
from gradeloop.cli_judge import judge_app, rubrics_app
from gradeloop.cli_reports import report_app
from gradeloop.cli_rubric import people_app, rubric_app
from gradeloop.cli_threads import Json, ThreadId, code_of, thread_app, words_of
from gradeloop.departure import BAD_INPUT, BROKEN_PIPE, STOPPED, code_of_error, fail, leave

if TYPE_CHECKING:
    from rich.console import Console

    from gradeloop.attendance import Ending

app = typer.Typer(
    help="Say what done looks like; gradeloop drives the work until an independent judge agrees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
dev_app = typer.Typer(
    help="Server, worker and UI in the foreground, for services that you write; `dev stop` ends what runs in the background.",
    short_help="Server, worker and UI in the foreground; `dev stop` ends them.",
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
app.add_typer(rubrics_app, name="rubrics")
app.add_typer(people_app)

Scripted = Annotated[Path | None, typer.Option(help="A file of replies for the provider `scripted`.")]
BudgetTokens = Annotated[int | None, typer.Option(help="Tokens, in and out, that the thread may use in all.")]
BudgetUsd = Annotated[float | None, typer.Option(help="US dollars that the thread may cost in all.")]
Tools = Annotated[list[Path] | None, typer.Option("--tools", help="A Python file of evidence tools; repeatable.")]


def main() -> None:
    """Run the command line; a user's mistake ends with one sentence, never a traceback."""
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
        if isinstance(ended.__context__, BrokenPipeError):  # for which click and rich leave with 1, as a capped run does
            leave(BROKEN_PIPE)
        leave(ended.code if isinstance(ended.code, int) else 0)


@app.callback(invoke_without_command=True)
def _top(*, show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        typer.echo(version("gradeloop"))
        raise typer.Exit


@app.command()
def run(  # noqa: PLR0913 - one parameter a flag
    task: Annotated[Path | None, typer.Argument(metavar="[TASK.yaml]", help="The task; `gradeloop init` writes one.")] = None,
    *,
    prompt: Annotated[str | None, typer.Option(help="The task, as one message.")] = None,
    rubric: Annotated[str | None, typer.Option(help="The rubric: a file, or its text.")] = None,
    model: Annotated[str | None, typer.Option(help="Who drafts, as provider:model.")] = None,
    grader: Annotated[str | None, typer.Option(help="Who judges, as provider:model.")] = None,
    max_iterations: Annotated[int | None, typer.Option(help="Drafts at most, 1 to 20; 3 by default.")] = None,
    tools: Tools = None,
    thread: Annotated[str | None, typer.Option(help="The thread's id; a new one by default.")] = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
    record: Annotated[Path | None, typer.Option(help="Write every exchange with the models to this file.")] = None,
    replay: Annotated[Path | None, typer.Option(help="Play the models' words back from such a file; no key is needed.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the run and leave it running.")] = False,
    as_json: Json = False,
) -> None:
    """Draft, grade and revise until the rubric is met."""
    from gradeloop.task_file import read_task
    from gradeloop.task_flags import Flags, budget_of
    from gradeloop.terminal import run_task

    budget = budget_of(budget_tokens, budget_usd)
    flags = Flags(prompt, rubric, model, grader, max_iterations, tuple(tools or ()), thread, budget, record, replay)
    _finish(run_task(read_task(task, flags), _console(), as_json=as_json, detach=detach))


@app.command()
def demo() -> None:
    """Watch a function being written, tested, judged and mended."""
    from gradeloop.default_model import default_model
    from gradeloop.task_file import read_task
    from gradeloop.task_flags import Flags
    from gradeloop.terminal import run_task
    from gradeloop.worker_process import application_folder

    chosen, model = default_model(os.environ), "scripted:demo"
    if chosen and chosen.spec.config.base_url is None:
        model = chosen.spec.id
    else:
        typer.echo("No provider key is set, so the models' words come from a script; the tests really run, in the sandbox.\n")
    task = application_folder() / "examples" / "find_duplicates" / "task.yaml"
    _finish(run_task(read_task(task, Flags(model=model, grader=model)), _console(), as_json=False, detach=False))


@app.command()
def resume(thread: ThreadId, *, budget_tokens: BudgetTokens = None, budget_usd: BudgetUsd = None, as_json: Json = False) -> None:
    """Go on with an interrupted run, where it stopped."""
    from gradeloop.task_flags import budget_of
    from gradeloop.terminal import resume_thread

    _finish(resume_thread(thread, _console(), budget=budget_of(budget_tokens, budget_usd), as_json=as_json))


@app.command()
def watch(thread: ThreadId, *, as_json: Json = False) -> None:
    """Show a thread from its beginning, and go on as it does."""
    from gradeloop.terminal import watch_thread

    _finish(watch_thread(thread, _console(), as_json=as_json))


@app.command()
def init(path: Annotated[Path, typer.Argument(metavar="[TASK.yaml]")] = Path("task.yaml")) -> None:
    """Write a task to start from."""
    from gradeloop.task_file import write_example

    write_example(path)
    typer.echo(f"wrote {path}; run it with: gradeloop run {path}")


@app.command()
def schema(name: Annotated[str | None, typer.Argument(help="One of them, by name.")] = None) -> None:
    """Print the wire contract as JSON Schemas."""
    from gradeloop.schemas import schemas_of

    typer.echo(json.dumps(schemas_of(name), indent=2))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def worker(context: typer.Context) -> None:
    """Serve threads; `worker --help` lists its settings."""
    from gradeloop.worker_process import application_folder

    script = str(application_folder() / "worker.py")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, script, *context.args])  # noqa: S606 - our own file, the user's own flags


@dev_app.callback()
def dev(context: typer.Context, *, tools: Tools = None, scripted: Scripted = None) -> None:
    """Serve the queue `gradeloop` on the embedded server until Ctrl-C."""
    if context.invoked_subcommand is None:
        from gradeloop.development import develop

        raise typer.Exit(asyncio.run(develop(tuple(tools or ()), scripted, _console())))


@dev_app.command("stop")
def dev_stop() -> None:
    """End the embedded server and the workers that were started for it; threads stay on disk."""
    from gradeloop.development import stop_all

    typer.echo(asyncio.run(stop_all()))


def _finish(work: "Coroutine[Any, Any, Ending]") -> NoReturn:
    """Follow a run to its end and leave with its exit code."""
    ending = asyncio.run(work)
    if words := words_of(ending):
        typer.echo(words, err=True)
    raise typer.Exit(code_of(ending))


def _console() -> "Console":
    from rich.console import Console

    class Terminal(Console):
        """Ends the program where nobody reads any more."""

        def on_broken_pipe(self) -> None:
            leave(BROKEN_PIPE)

    return Terminal(highlight=False, markup=False, emoji=False)
