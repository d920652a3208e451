"""Commands on batches: list, show, export, pause and compare them."""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from gradeloop.batches.answer import answer_of, gate_lines, results_line
from gradeloop.batches.cases import lost_workers
from gradeloop.batches.cli.batch_view import answer_lines, batch_table, case_lines
from gradeloop.batches.cli.results_table import column_lines, result_lines
from gradeloop.batches.client import BatchClient
from gradeloop.batches.column_table import ColumnTable
from gradeloop.batches.compare import comparison, wording
from gradeloop.batches.compare.graded_drafts import read_compared
from gradeloop.batches.contract import BatchSummary
from gradeloop.batches.markdown import BatchStory
from gradeloop.batches.outputs import JsonFile, Outputs
from gradeloop.batches.outputs import as_json as batch_json
from gradeloop.batches.pages.diff_page import OutputPair, changed_ids, comparison_page, output_pairs, read_outputs
from gradeloop.batches.reader import LATEST, BatchReader
from gradeloop.batches.trends import named_trend
from gradeloop.cli.commands import BASELINE_HELP, BatchId, Json, Limit, OfTenant, OutputOption, Overwrite, codes_help
from gradeloop.cli.render.table import MOST_NAME, WHY_CHARACTERS, Column, line_width, show_lines, table
from gradeloop.errors import InvalidRequest
from gradeloop.exit_codes import CAPPED, NO_VERDICT, SATISFIED
from gradeloop.reports.html import checked_page, write_page
from gradeloop.settings.worker import is_embedded
from gradeloop.store.engine import Store, own_store, store_url
from gradeloop.temporal.connect import connect, find
from gradeloop.text import clip, counted, json_without_commands, one_line

app = typer.Typer(rich_markup_mode=None)
batches_app = typer.Typer(
    help="List, show, export and pause batches. The store that GRADELOOP_STORE names has them.",
    short_help="List, show, export and pause batches.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(batches_app, name="batches")


@batches_app.command("list")
def list_batches(
    *,
    suite: Annotated[str | None, typer.Option(metavar="NAME", help="Show how the rates of this suite's batches went.")] = None,
    tenant: OfTenant = None,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """List the batches, newest first."""
    reader, width = BatchReader(own_store()), line_width()
    trend = asyncio.run(named_trend(reader, suite, tenant, limit)) if suite is not None else []
    found = [one.batch for one in trend] or asyncio.run(reader.summaries(limit, tenant))
    values = [one.model_dump(mode="json") for one in (trend or found)]
    show_lines(values, [batch_table(found, width, trend)] if found else ["no batches yet"], as_json=as_json)


@batches_app.command()
def show(
    batch: BatchId,
    case: Annotated[str | None, typer.Argument(metavar="CASE", help="Show this case of the batch, by its id.")] = None,
    *,
    quarantined: Annotated[bool, typer.Option("--quarantined", help="List the cases whose calls lost their workers.")] = False,
    as_json: Json = False,
) -> None:
    """Show a batch's results, or one of its cases in full."""
    reader = BatchReader(own_store())
    if case is not None:
        asked, result = asyncio.run(reader.case(asyncio.run(reader.summary(batch)).batch_id, case))
        show_lines(result.model_dump(mode="json"), case_lines(result, asked.rubric), as_json=as_json)
        return
    with reader.snapshot(batch) as found:
        width, summary = line_width(), found.summary
        if quarantined:
            lost = {result.id: count for result in found.results() if (count := lost_workers(result))}
            show_lines(lost, quarantine_lines(summary, lost), as_json=as_json)
            return
        corrected = map(Text, gate_lines(summary.corrected) if summary.corrected else ())
        table = result_lines(found.results(), width)
        compared = ColumnTable(summary, found.results())
        columns = compared.columns()
        answer = [*answer_lines(summary, compared), *column_lines(columns, width)]
        lines = [f"batch {summary.batch_id}", *answer, *table, results_line(summary), *corrected]
    figures = {"columns": [column.model_dump(mode="json") for column in columns]} if columns else {}
    show_lines(summary.model_dump(mode="json") | figures, lines, as_json=as_json)


def quarantine_lines(summary: BatchSummary, lost: Mapping[str, int]) -> Iterator[Text | Table]:
    """Yield the cases that ended since workers were lost with their calls, how many those were, and how the cases are run again."""
    yield Text(f"{counted(len(lost), 'case')} of {summary.batch_id} in quarantine")
    if lost:
        yield table([Column("case", [*lost], wraps=True), Column("lost workers", [str(count) for count in lost.values()], right=True)])
        when = "once the batch has ended" if summary.status == "running" else "now"
        yield Text(f"run one again, {when}, with: gradeloop eval --attach {summary.batch_id} --retry errors --case ID", "dim")


@app.command("export", hidden=True)
@batches_app.command()
def export(
    words: Annotated[list[str] | None, typer.Argument(metavar="BATCH", help="The batch's id; the newest by default.")] = None,
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
        table = ColumnTable(found.summary)
        written = JsonFile(sys.stdout, found.summary, table)
        for result in found.results():
            table.add(result)
            written.write(result)
        written.end(table.figures())


def write_results(batch: str, output: Sequence[Path], *, overwrite: bool, baseline: str | None = None) -> None:
    """Write a batch's results to files of the formats of their suffixes; raise InvalidRequest where batch or file cannot be had."""
    files, reader = Outputs(output, overwrite=overwrite), BatchReader(own_store())
    earlier = comparison.load_batch(baseline, lambda: reader) if baseline else None
    with reader.snapshot(batch) as found:
        for result in found.results():
            if result.status not in {"queued", "waiting"}:
                files.finished(result)
        compared = wording.baseline_of(earlier, comparison.stored_source(found.summary, found.results())) if earlier else None
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


@app.command(epilog=codes_help("diff"))
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="The batch before: id, `latest~1`, results file; or a thread.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The batch or thread after.")] = "latest",
    *,
    fail_on: Annotated[
        list[comparison.ComparisonGate] | None,
        typer.Option(metavar="|".join(comparison.ComparisonGate), help="Exit 1 if there are any of these; repeatable."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write an HTML page to this file.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Show what regressed and improved from batch A to batch B."""
    checked_page(output, overwrite=overwrite)
    found = compare_named(a, b)
    if output is not None:
        write_page(output, comparison_page(found, pairs_of(found, a, b), fail_on or ()))
    if as_json:
        typer.echo(json_without_commands(batch_json(found)))
    else:
        show_lines(None, comparison_lines(found, line_width(), fail_on or ()), as_json=False)
    for gate in fail_on or ():
        if found.findings(gate):
            typer.echo(wording.gate_line(found, gate), err=True)
    code = code_of(found, fail_on or ())
    if code == NO_VERDICT:
        typer.echo(found.unknown(fail_on or ()), err=True)
    raise typer.Exit(code)


def compare_named(a: str, b: str) -> comparison.Comparison:
    """Compare two batches, named by id, as `latest~N`, or by file; or two threads."""
    return comparison.compare_batches(*(read_compared(name, _reader, comparison.compared_case) for name in (a, b)))


def pairs_of(found: comparison.Comparison, a: str, b: str) -> list[OutputPair]:
    """Return the outputs of what changed between two batches, read again by their names."""
    ids = frozenset(changed_ids(found))
    return output_pairs(found, read_outputs(a, ids, _reader), read_outputs(b, ids, _reader)) if ids else []


def _reader() -> BatchReader:
    return _reader_of(store_url(embedded=is_embedded()))


@cache
def _reader_of(url: str) -> BatchReader:
    return BatchReader(Store(url))


def code_of(found: comparison.Comparison, gates: Sequence[comparison.ComparisonGate]) -> int:
    """Return the exit code: 1 if a gate fails, 3 if too little was compared."""
    _, passes = wording.gated_answer(found, gates)
    return SATISFIED if passes or not gates else NO_VERDICT if passes is None else CAPPED


ROWS = 20
"""The most rows of a table on a terminal; `--json` and the page have all."""

STYLES: dict[comparison.Outcome, str] = {
    "regressed": "bold red",
    "lost": "bold yellow",
    "unsure": "yellow",
    "improved": "green",
    "gained": "cyan",
    "decided": "cyan",
}
"""The outcomes that have a table of their cases, in this order, and its colour."""

_IN_LISTS: tuple[comparison.Outcome, ...] = ("removed", "added")
_ALWAYS = {"batch", "thread", "pass rate", "cost"}
"""Facts about a batch or a thread that a narrow terminal shows too."""

_EXAMPLES = 3
"""The most cases that are named where only their number matters."""


def comparison_lines(found: comparison.Comparison, width: int, gates: Sequence[comparison.ComparisonGate] = ()) -> Iterator[Text | Table]:
    """Yield the comparison, for a terminal of that width."""
    best = "bold yellow" if found.overall is None else "bold green"
    worst = next((STYLES[outcome] for outcome in ("regressed", "lost", "unsure") if found.counts.get(outcome)), best)
    answer, passes = wording.gated_answer(found, gates)
    yield Text(answer, worst if passes is None else "bold green" if passes else "bold red")
    yield Text(wording.counts_line(found))
    yield from (Text(line) for line in wording.overall_lines(found))
    yield from (Text(f"note: {one_line(note)}", "yellow") for note in found.notes)
    a, b = wording.batch_facts(found.a), wording.batch_facts(found.b)
    facts = (Column(name, [a[name], b[name]], share=2 if name in {"batch", "thread"} else 0, wide=name not in _ALWAYS) for name in a)
    yield table([Column("", ["A", "B"], "bold"), *facts], width)
    for outcome in STYLES:
        yield from _cases(outcome, [row for row in found.cases if row.outcome == outcome], width)
    for outcome in _IN_LISTS:
        yield from _names(outcome, [row.id for row in found.cases if row.outcome == outcome])
    yield from _same_verdict(found.cases)
    yield from _criteria([tally for tally in found.criteria if tally.counts.keys() - {"same", "unjudged"}], width)
    step = wording.comparison_step(found)
    yield Text(f"\nnext: {step.words}{' ' if step.words else ''}{step.command}", "bold")


def _cases(outcome: comparison.Outcome, rows: Sequence[comparison.CaseComparison], width: int) -> Iterator[Text | Table]:
    if not rows:
        return
    yield Text(f"\n{len(rows):,} {wording.outcome_label(outcome)}", STYLES[outcome])
    shown = rows[:ROWS]
    columns = [
        Column("case", [row.id for row in shown], share=3),
        Column("A", [wording.side_result(row.a) for row in shown], wide=True),
        Column("B", [wording.side_result(row.b) for row in shown], STYLES[outcome]),
        Column("score", [wording.score_change(row) for row in shown], wide=True),
        Column("why", [wording.change_reason(row)[:WHY_CHARACTERS] for row in shown], fills=True),
    ]
    yield table(columns, width)
    yield from _more(len(rows) - len(shown))


def _names(outcome: comparison.Outcome, ids: Sequence[str]) -> Iterator[Text]:
    if ids:
        shown = ", ".join(one_line(name)[:MOST_NAME] for name in ids[:ROWS])
        yield Text(f"\n{len(ids):,} {wording.outcome_label(outcome)}: ", "bold").append(shown, "default")
        yield from _more(len(ids) - ROWS)


def _same_verdict(rows: Sequence[comparison.CaseComparison]) -> Iterator[Text]:
    """Yield how the cases changed that have the same verdict in both batches."""
    noise = [row for row in rows if row.noise]
    moved = [row for row in rows if row.outcome == "same" and row.score_change]
    if noise:
        examples = ", ".join(
            f"{one_line(row.id)[:MOST_NAME]} {wording.side_result(row.a)} -> {wording.side_result(row.b)}" for row in noise[:_EXAMPLES]
        )
        more = f", and {len(noise) - _EXAMPLES:,} more" if len(noise) > _EXAMPLES else ""
        yield Text(f"\n{len(noise):,} changed within noise: ", "dim").append(f"{examples}{more}")
    if moved:
        down = [row for row in moved if row.score_change == "down"]
        largest = f"; largest drop: {one_line(down[0].id)[:MOST_NAME]} {wording.score_change(down[0])}" if down else ""
        yield Text(f"\nscores under the same verdict: {len(down):,} down, {len(moved) - len(down):,} up{largest}", "dim")


def _criteria(tallies: Sequence[comparison.CriterionTally], width: int) -> Iterator[Text | Table]:
    if not tallies:
        return
    shown = tallies[:ROWS]
    yield Text("\nby criterion", "bold")
    texts = [one_line(tally.name) + (f" (and {tally.texts - 1} more)" if tally.texts > 1 else "") for tally in shown]
    columns = [
        Column("criterion", [tally.id for tally in shown], share=3),
        Column("regressed", [f"{tally.counts.get('regressed', 0):,}" for tally in shown], "red", right=True),
        Column("improved", [f"{tally.counts.get('improved', 0):,}" for tally in shown], right=True),
        Column("passed in A", [wording.passed_of(tally.a) for tally in shown], right=True, wide=True),
        Column("in B", [wording.passed_of(tally.b) for tally in shown], right=True, wide=True),
        Column("text", [text[:WHY_CHARACTERS] for text in texts], fills=True),
    ]
    yield table(columns, width)
    yield from _more(len(tallies) - len(shown))


def _more(number: int) -> Iterator[Text]:
    if number > 0:
        yield Text(f"and {number:,} more; --json lists them all", "dim")
