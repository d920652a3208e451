"""The commands about batches: a suite run or gone on with, and what the store holds of those that were."""

import asyncio
import shutil
from pathlib import Path
from typing import Annotated, Literal

import typer

from gradeloop.cli_threads import Json, show_lines

batch_app = typer.Typer(rich_markup_mode=None)
batches_app = typer.Typer(
    help="Batches that were run, as the store holds them (GRADELOOP_STORE).",
    short_help="List, show and export batches.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="The batch's id, or `latest`.")]
CaseId = Annotated[str | None, typer.Argument(metavar="[CASE]", help="One case, by its id.")]
Outputs = Annotated[
    list[Path] | None, typer.Option("--output", "-o", help="Write the results there: .json, .jsonl, .csv, .xml, .html; repeatable.")
]
Again = Literal["errors", "failures"]


@batch_app.command("eval")
def evaluate(  # noqa: PLR0913 - one parameter a flag
    suite: Annotated[Path | None, typer.Argument(metavar="[SUITE.yaml]", help="A suite, or a promptfooconfig.yaml.")] = None,
    *,
    output: Outputs = None,
    grader: Annotated[str | None, typer.Option(help="Who judges, as provider:model.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Cases whose id has this, or fits this pattern; repeatable.")] = None,
    first: Annotated[int | None, typer.Option(min=1, help="So many cases at most.")] = None,
    loop: Annotated[bool | None, typer.Option("--loop/--no-loop", help="Whether drafts are revised until they pass.")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, max=100, help="How often each case is run.")] = None,
    at_once: Annotated[int | None, typer.Option(min=1, max=1000, help="Calls in flight at most; 50 by default.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(help="Tokens, in and out, at which the batch is paused.")] = None,
    budget_usd: Annotated[float | None, typer.Option(help="US dollars at which the batch is paused.")] = None,
    max_errors: Annotated[int | None, typer.Option(min=1, help="Errors at which the batch is paused.")] = None,
    max_error_rate: Annotated[float | None, typer.Option(min=0, max=1, help="Their share that is borne; 0.5 by default.")] = None,
    pass_rate: Annotated[float | None, typer.Option(min=0, max=1, help="Exit 1 where less than this passes; 1.0 by default.")] = None,
    allow_errors: Annotated[float, typer.Option(min=0, max=1, help="The share of errors that is borne.")] = 0.0,
    retries: Annotated[int | None, typer.Option(min=0, max=20, help="Of a call that fails in passing; 7 by default.")] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Whether verdicts that were paid for before count.")] = True,
    tools: Annotated[list[Path] | None, typer.Option("--tools", help="A Python file of evidence tools; repeatable.")] = None,
    scripted: Annotated[Path | None, typer.Option(help="A file of replies for the provider `scripted`.")] = None,
    attach: Annotated[str | None, typer.Option(metavar="BATCH", help="Look at a batch that was started before, or `latest`.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="BATCH", help="Go on with a batch: cases not run, and errors.")] = None,
    retry: Annotated[Again | None, typer.Option(help="Run the errors of a batch again, or its failures too; --attach says which.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the batch and leave it running.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON line a case, as they end; nothing else on stdout.")] = False,
) -> None:
    """Run a suite as a batch that loses nothing, as a gate in CI."""
    from gradeloop.batches.command import Evaluation
    from gradeloop.batches.order import Limits, Order
    from gradeloop.suites.suite_run import SuiteFlags
    from gradeloop.task_flags import budget_of

    budget = budget_of(budget_tokens, budget_usd)
    flags = SuiteFlags(grader, tuple(only or ()), first, loop, repeat, tuple(tools or ()), scripted)
    limits = Limits(budget, at_once, max_errors, max_error_rate, pass_rate, retries)
    order = Order(suite, flags, limits, tuple(output or ()), attach, resume, retry, allow_errors, cache, detach, as_json)
    order.refuse_mixed()
    raise typer.Exit(asyncio.run(Evaluation(order).run()))


@batches_app.command("list")
def list_batches(*, limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20, as_json: Json = False) -> None:
    """List the batches, the newest first."""
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
    case: Annotated[str | None, typer.Argument(metavar="[CASE]", help="One case, by its id.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show what a batch came to, or everything about one of its cases."""
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
        raise InvalidRequest("there is no file to write; name one with --output, its suffix says the format")
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
    """Have a running batch begin no further case."""
    from gradeloop.batches.client import BatchClient
    from gradeloop.batches.reader import BatchReader
    from gradeloop.connection import connect, find
    from gradeloop.store import own_store

    async def work() -> str:
        summary = await BatchReader(own_store()).summary(batch)
        await BatchClient(await connect(await find()), "").pause(summary.batch_id)
        return summary.batch_id

    name = asyncio.run(work())
    typer.echo(f"{name} begins no further case; go on with: gradeloop eval --resume {name}")
