"""Commands on batches: list, show, export and pause them."""

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gradeloop.batches.answer import answer_of, gate_lines, results_line
from gradeloop.batches.cli.batch_view import answer_lines, batch_table, case_lines
from gradeloop.batches.cli.results_table import result_lines
from gradeloop.batches.client import BatchClient
from gradeloop.batches.compare.comparison import load_batch, stored_source
from gradeloop.batches.compare.wording import baseline_of
from gradeloop.batches.markdown import BatchStory
from gradeloop.batches.outputs import JsonFile, Outputs
from gradeloop.batches.reader import LATEST, BatchReader
from gradeloop.cli.commands import BASELINE_HELP, BatchId, Json, Limit, OutputOption, Overwrite
from gradeloop.cli.render.table import show_lines
from gradeloop.errors import InvalidRequest
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import connect, find
from gradeloop.text import clip

app = typer.Typer(rich_markup_mode=None)
batches_app = typer.Typer(
    help="List, show, export and pause batches. The store that GRADELOOP_STORE names has them.",
    short_help="List, show, export and pause batches.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(batches_app, name="batches")


@batches_app.command("list")
def list_batches(*, limit: Limit = 20, as_json: Json = False) -> None:
    """List the batches, newest first."""
    found = asyncio.run(BatchReader(own_store()).summaries(limit))
    width = shutil.get_terminal_size().columns
    values = [summary.model_dump(mode="json") for summary in found]
    show_lines(values, [batch_table(found, width)] if found else ["no batches yet"], as_json=as_json)


@batches_app.command()
def show(
    batch: BatchId,
    case: Annotated[str | None, typer.Argument(metavar="CASE", help="Show this case of the batch, by its id.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show a batch's results, or one of its cases in full."""
    reader = BatchReader(own_store())
    if case is not None:
        asked, result = asyncio.run(reader.case(asyncio.run(reader.summary(batch)).batch_id, case))
        show_lines(result.model_dump(mode="json"), case_lines(result, asked.rubric), as_json=as_json)
        return
    with reader.snapshot(batch) as found:
        width, summary = shutil.get_terminal_size().columns, found.summary
        corrected = map(Text, gate_lines(summary.corrected) if summary.corrected else ())
        table = result_lines(found.results(), width)
        lines = [f"batch {summary.batch_id}", *answer_lines(summary), *table, results_line(summary), *corrected]
    show_lines(summary.model_dump(mode="json"), lines, as_json=as_json)


@batches_app.command()
def export(batch: BatchId, *, output: OutputOption = None, overwrite: Overwrite = False) -> None:
    """Write a batch's results to files."""
    if not output:
        raise InvalidRequest("No output file is named; name one with --output, its suffix sets the format")
    write_results(batch, output, overwrite=overwrite)


@app.command("export")
def export_batch(
    words: Annotated[list[str] | None, typer.Argument(metavar="[eval] [BATCH]", help="The batch's id; the newest by default.")] = None,
    *,
    output: OutputOption = None,
    overwrite: Overwrite = False,
    baseline: Annotated[str | None, typer.Option(metavar="BATCH", help=BASELINE_HELP)] = None,
) -> None:
    """Write a batch's results to files, or as JSON to stdout."""
    named = (words or [])[1:] if (words or [])[:1] == ["eval"] else words or []
    if len(named) > 1:
        raise InvalidRequest(f"export takes one batch, and {clip(' '.join(named))} is {len(named)}; export them one by one")
    batch = named[0] if named else LATEST
    if baseline and not any(path.suffix == ".md" for path in output or ()):
        raise InvalidRequest("--baseline is for a summary.md; name one with --output, or leave --baseline out")
    if output:
        write_results(batch, output, overwrite=overwrite, baseline=baseline)
        return
    with BatchReader(own_store()).snapshot(batch) as found:
        written = JsonFile(sys.stdout, found.summary)
        for result in found.results():
            written.write(result)
        written.end()


def write_results(batch: str, output: Sequence[Path], *, overwrite: bool, baseline: str | None = None) -> None:
    """Write a batch's results to files, whose suffixes set the formats.

    Raises:
        InvalidRequest: There is no such batch, or a file cannot be written.
    """
    files, reader = Outputs(output, overwrite=overwrite), BatchReader(own_store())
    earlier = load_batch(baseline, lambda: reader) if baseline else None
    with reader.snapshot(batch) as found:
        for result in found.results():
            if result.status not in {"queued", "waiting"}:
                files.finished(result)
        compared = baseline_of(earlier, stored_source(found.summary, found.results())) if earlier else None
        files.close(found.summary, found.results, BatchStory(answer_of(found.summary), compared))
    if files.pages:
        from gradeloop.batches.pages.read_batch import write_pages

        asyncio.run(write_pages(files.pages, reader, found.summary.batch_id))
    typer.echo(f"wrote {', '.join(map(str, output))}")


@batches_app.command()
def pause(batch: BatchId) -> None:
    """Pause a running batch after the cases in flight."""

    async def work() -> str:
        summary = await BatchReader(own_store()).summary(batch)
        await BatchClient(await connect(await find()), "").pause(summary.batch_id)
        return summary.batch_id

    name = asyncio.run(work())
    typer.echo(f"pausing {name}; resume it with: gradeloop eval --resume {name}")
