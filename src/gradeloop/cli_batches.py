"""The commands about batches: run or resume a suite, list, show, export and pause batches."""

import asyncio
import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer

from gradeloop.cli_help import CommandWithFormerFlags, codes_help
from gradeloop.cli_threads import Grader, Json, Limit, Scripted, Tools, show_lines

batch_app = typer.Typer(rich_markup_mode=None)
batches_app = typer.Typer(
    help="List, show, export and pause batches. The store that GRADELOOP_STORE names has them.",
    short_help="List, show, export and pause batches.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

FILTER_HELP = "Run the cases whose id contains this text or matches this pattern; repeatable."
CONCURRENCY_HELP = "Run at most this many model and tool calls at the same time; 50 by default."
MAX_ERROR_RATE_HELP = "Pause when more than this share of cases are errors; 0.5 by default."
RATE_HELP = "Exit 1 when a smaller share of the judged cases passes; 1.0 by default."
ALLOW_ERRORS_HELP = "Exit 3 only when a larger share of cases are errors."
RETRIES_HELP = "Retries per call after a transient error; 7 by default."

BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="The batch's id, or `latest` for the newest.")]
CaseId = Annotated[str | None, typer.Argument(metavar="CASE", help="Show this case of the batch, by its id.")]
Outputs = Annotated[
    list[Path] | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the results to a .json, .jsonl, .csv, .xml or .html file; repeatable."),
]
Again = Literal["errors", "failures"]


@batch_app.command("eval", cls=CommandWithFormerFlags, epilog=codes_help("eval"))
def evaluate(  # noqa: PLR0913 - one parameter a flag
    suite: Annotated[Path | None, typer.Argument(metavar="SUITE.yaml", help="The suite to run, or a promptfooconfig.yaml.")] = None,
    *,
    output: Outputs = None,
    grader: Grader = None,
    filters: Annotated[list[str] | None, typer.Option("--filter", metavar="TEXT", help=FILTER_HELP)] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Run at most this many cases.")] = None,
    loop: Annotated[bool | None, typer.Option("--loop/--no-loop", help="Revise each draft until it passes, or draft once.")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, max=100, metavar="N", help="Run each case this many times.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", "-j", min=1, max=1000, metavar="N", help=CONCURRENCY_HELP)] = None,
    budget_tokens: Annotated[int | None, typer.Option(metavar="N", help="Pause when the batch has used this many tokens.")] = None,
    budget_usd: Annotated[float | None, typer.Option(metavar="USD", help="Pause when the batch has cost this many US dollars.")] = None,
    max_errors: Annotated[int | None, typer.Option(min=1, metavar="N", help="Pause when this many cases are errors.")] = None,
    max_error_rate: Annotated[float | None, typer.Option(min=0, max=1, metavar="SHARE", help=MAX_ERROR_RATE_HELP)] = None,
    pass_rate: Annotated[float | None, typer.Option(min=0, max=1, metavar="SHARE", help=RATE_HELP)] = None,
    allow_errors: Annotated[float, typer.Option(min=0, max=1, metavar="SHARE", help=ALLOW_ERRORS_HELP)] = 0.0,
    retries: Annotated[int | None, typer.Option(min=0, max=20, metavar="N", help=RETRIES_HELP)] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Reuse verdicts from the cache, or judge everything again.")] = True,
    tools: Tools = None,
    scripted: Scripted = None,
    attach: Annotated[str | None, typer.Option(metavar="BATCH", help="Follow a batch that was started before, or `latest`.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="BATCH", help="Resume a batch: run what has not run, and retry its errors.")] = None,
    retry: Annotated[Again | None, typer.Option(help="Retry a batch's errors, or its failures too; name the batch with --attach.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the batch and return without waiting for it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per finished case, and nothing else on stdout.")] = False,
) -> None:
    """Run a suite as a batch; the exit code is a gate for CI."""
    from gradeloop.batches.command import Evaluation
    from gradeloop.batches.order import Limits, Order
    from gradeloop.suites.suite_run import SuiteFlags
    from gradeloop.task_flags import budget_of

    budget = budget_of(budget_tokens, budget_usd)
    flags = SuiteFlags(grader, tuple(filters or ()), limit, loop, repeat, tuple(tools or ()), scripted)
    limits = Limits(budget, concurrency, max_errors, max_error_rate, pass_rate, retries)
    order = Order(suite, flags, limits, tuple(output or ()), attach, resume, retry, allow_errors, cache, detach, as_json)
    order.refuse_mixed()
    raise typer.Exit(asyncio.run(Evaluation(order).run()))


@batches_app.command("list")
def list_batches(*, limit: Limit = 20, as_json: Json = False) -> None:
    """List the batches, newest first."""
    from gradeloop.batches.listing import batch_table
    from gradeloop.batches.reader import BatchReader
    from gradeloop.store import own_store

    found = asyncio.run(BatchReader(own_store()).summaries(limit))
    width = shutil.get_terminal_size().columns
    told = [each.model_dump(mode="json") for each in found]
    show_lines(told, [batch_table(found, width)] if found else ["no batches yet"], as_json=as_json)


@batches_app.command()
def show(
    batch: BatchId,
    case: Annotated[str | None, typer.Argument(metavar="CASE", help="Show this case of the batch, by its id.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show a batch's results, or one of its cases in full."""
    from gradeloop.batches.ending import results_line
    from gradeloop.batches.reader import BatchReader
    from gradeloop.batches.table import result_lines
    from gradeloop.store import own_store

    reader = BatchReader(own_store())
    summary = asyncio.run(reader.summary(batch))
    if case is not None:
        from gradeloop.batches.case_story import case_lines

        found = asyncio.run(reader.case(summary.batch_id, case))
        show_lines(found.model_dump(mode="json"), case_lines(found), as_json=as_json)
        return
    width = shutil.get_terminal_size().columns
    lines = [f"batch {summary.batch_id}", *result_lines(reader.results(summary.batch_id), width), results_line(summary)]
    show_lines(summary.model_dump(mode="json"), lines, as_json=as_json)


@batches_app.command()
def export(batch: BatchId, *, output: Outputs = None) -> None:
    """Write a batch's results to files."""
    from gradeloop.batches.outputs import Outputs as Files
    from gradeloop.batches.reader import BatchReader
    from gradeloop.errors import InvalidRequest
    from gradeloop.store import own_store

    if not output:
        raise InvalidRequest("No output file is named; name one with --output, its suffix sets the format")
    files, reader = Files(output), BatchReader(own_store())
    summary = asyncio.run(reader.summary(batch))
    for result in reader.results(summary.batch_id):
        if result.status not in {"queued", "waiting"}:
            files.finished(result)
    files.close(summary, lambda: reader.results(summary.batch_id))
    if files.pages:
        from gradeloop.reports.batch_files import write_pages

        asyncio.run(write_pages(files.pages, reader, summary.batch_id))
    typer.echo(f"wrote {', '.join(map(str, output))}")


@batches_app.command()
def pause(batch: BatchId) -> None:
    """Pause a running batch: cases in flight finish, no further case begins."""
    from gradeloop.batches.client import BatchClient
    from gradeloop.batches.reader import BatchReader
    from gradeloop.connection import connect, find
    from gradeloop.store import own_store

    async def work() -> str:
        summary = await BatchReader(own_store()).summary(batch)
        await BatchClient(await connect(await find()), "").pause(summary.batch_id)
        return summary.batch_id

    name = asyncio.run(work())
    typer.echo(f"pausing {name}; resume it with: gradeloop eval --resume {name}")
