"""Batches read for their pages: from the store, from exported files, and from threads of their cases."""

import asyncio
import gc
import json
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import JsonValue

from gradeloop.batches.answer import (
    ANSWER_COLOURS,
    STATUS_LABELS,
    answer_of,
    failure_reason,
    gate_lines,
    next_step,
    rate_of,
    report_step,
    words_by_column,
)
from gradeloop.batches.client import BatchClient
from gradeloop.batches.column_table import ColumnTable
from gradeloop.batches.contract import JUDGING_PREFIX, BatchSummary, Case, CaseResult, CaseStatus
from gradeloop.batches.exports import read_export
from gradeloop.batches.pages.collection_page import METRICS, PageHeader, PageRow, PastBatch, Stat, collection_page
from gradeloop.batches.pages.judgement_page import judging_head, live_next
from gradeloop.batches.pages.read_judgement import read_case_judgement, registered_name
from gradeloop.batches.ratings import remarks
from gradeloop.batches.reader import BatchReader
from gradeloop.client.client import GradingClient
from gradeloop.contract.evaluation import Evaluation, EvaluationResult, VerdictResult
from gradeloop.contract.messages import Message, Usage
from gradeloop.errors import GradeloopError
from gradeloop.reports.html import Live, write_page
from gradeloop.reports.model import NextStep, RunReport, Verdict
from gradeloop.reports.read_thread import read_thread_report
from gradeloop.temporal.connect import OURS, connect, ensure_worker_of, find
from gradeloop.text import counted, money, percent, token_count

THREADS = 1_000
"""The most threads of a batch that are read; those that did not pass first."""

CONCURRENCY = 8
"""Threads that are read at the same time."""


@dataclass(frozen=True)
class BatchReport:
    """A batch as its page shows it."""

    head: PageHeader
    cases: Iterable[tuple[Case | None, CaseResult]]
    """The cases in their order; gone through once, when the page is made."""
    threads: dict[str, RunReport] = field(default_factory=dict)
    """The reports of threads by their ids."""
    columns: ColumnTable | None = None
    """The columns of the batch, which tell which cases are of one test; None where each case is a test of its own."""


ThreadsOpener = Callable[[str], Awaitable[GradingClient]]
"""Connects to the server with the threads of a batch, and sees to it that a worker answers for them."""


HISTORY = 20
"""The most earlier batches of a suite that its line shows."""

READ_BATCHES = 200
"""The newest batches that are looked through for those of the suite."""

KEPT_RESULTS = 10_000
"""The most results that are read once for columns and rows: each takes some kilobytes of memory."""


async def stored_batch_page(reader: BatchReader, name: str, open_threads: ThreadsOpener | None = None, *, live: Live | None = None) -> str:
    """Return the page of a batch of the store, whose numbers and cases are of one moment.

    `name`: the batch's id, or `latest`.
    `open_threads`: called where a case has a thread; without it, or where it fails, such cases show only their last draft.

    Raises:
        InvalidRequest: There is no such batch.
    """
    found: dict[str, RunReport] = {}
    notes: list[str] = []
    if open_threads is not None:
        name, wanted = await asyncio.to_thread(_threads, reader, name)
        found, notes = await read_threads(open_threads, name, wanted) if wanted else (found, notes)
    known = await reader.summaries(READ_BATCHES)
    step = await _rule_of(reader, name) if name.startswith(JUDGING_PREFIX) else None
    return await asyncio.to_thread(_stored_page, reader, name, found, notes, known, live, step)


async def _rule_of(reader: BatchReader, batch_id: str) -> NextStep | None:
    """Return how the judgements of a batch get a rule for what passes, named by the first that has none."""
    first = next(iter((await reader.first_results([batch_id], ["ungraded"], 1)).get(batch_id, ())), None)
    if first is None or first.judgement is None:
        return None
    case, result = await reader.case(batch_id, first.id)
    judge = case.judging.judge if case.judging is not None else None
    return live_next(read_case_report(result, case), await registered_name(first.judgement, reader.store, judge=judge))


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the garbage collector from running: it takes a third of the time in which thousands of rows are made, none of them garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_without_collection()
def _stored_page(
    reader: BatchReader,
    name: str,
    threads: dict[str, RunReport],
    notes: Sequence[str],
    known: Sequence[BatchSummary],
    live: Live | None,
    step: NextStep | None,
) -> str:
    with reader.snapshot(name) as found:
        # A row of a live page leads to its case's own page: here its result is enough, and quicker to read.
        lists_results = live is not None and not found.summary.batch_id.startswith(JUDGING_PREFIX)
        kept = [*found.results()] if lists_results and found.summary.total <= KEPT_RESULTS else None
        table = ColumnTable(found.summary, found.results() if kept is None else kept)
        head = head_of(found.summary, notes, table)
        if found.summary.batch_id.startswith(JUDGING_PREFIX):
            head = judging_head(head, found.summary, step)
        head = replace(head, history=past_batches(found.summary, known))
        cases = ((None, result) for result in kept or found.results()) if lists_results else found.cases()
        return batch_page(BatchReport(head, cases, threads, table), live=live)


def past_batches(summary: BatchSummary, known: Sequence[BatchSummary]) -> tuple[PastBatch, ...]:
    """Return the batches of a suite, the oldest first and this one last; none where it is the first."""
    mine = (summary.name, summary.tenant)
    earlier = [batch for batch in known if batch.name and (batch.name, batch.tenant) == mine and batch.batch_id != summary.batch_id]
    before = sorted((batch for batch in earlier if batch.created <= summary.created), key=lambda batch: batch.created)[-HISTORY:]
    known_answers = [(batch, answer_of(batch)) for batch in ([*before, summary] if before else ())]
    return tuple(
        PastBatch(one.batch_id, one.created, answer.text, ANSWER_COLOURS[answer.word], rate_of(one)) for one, answer in known_answers
    )


def batch_page(report: BatchReport, *, live: Live | None = None) -> str:
    """Return the page of a batch: one HTML document that needs nothing else."""
    return collection_page(report.head, entries(report), live=live)


def entries(report: BatchReport) -> Iterator[PageRow]:
    """Yield the cases as runs, with their tests and generators."""
    for case, result in report.cases:
        thread = report.threads.get(thread_of(result, report.head.batch_id) or "")
        run = with_thread(result, thread) if thread else read_case_report(result, case)
        yield PageRow(run, report.columns.test_of(result) if report.columns else result.id, (result.prompt, result.label))


def head_of(summary: BatchSummary, notes: Sequence[str] = (), table: ColumnTable | None = None) -> PageHeader:
    """Return the head of a batch's page, with the columns and the named metrics of its table."""
    columns, metrics = (table.columns(), table.figures()) if table else ((), [])
    judged = summary.passed + summary.failed
    rate = percent(summary.passed / judged) if judged else ""
    answer = answer_of(summary)
    step = next_step(summary, answer)
    tiles: list[tuple[str, str, Verdict | None, bool]] = [
        ("passed", f"{summary.passed:,}", "passed", True),
        ("failed", f"{summary.failed:,}", "failed", True),
        ("unsure", f"{summary.unsure:,}", "unsure", bool(summary.unsure)),
        ("errors", f"{summary.errors:,}", "error" if summary.errors else None, True),
        ("ungraded", f"{summary.ungraded:,}", None, bool(summary.ungraded)),
        ("waiting", f"{summary.waiting:,}", None, bool(summary.waiting)),
        ("not asked" if summary.decided else "not run", f"{summary.open:,}", None, bool(summary.open)),
        (f"of {judged:,} judged, {percent(summary.pass_rate)} wanted", rate, None, bool(judged)),
        ("cached", f"{summary.cached:,}", None, bool(summary.cached)),
        ("tokens", token_count(summary.usage.tokens), None, summary.usage.tokens != 0),
        ("cost", money(summary.usage.cost_usd), None, bool(summary.usage.cost_usd)),
    ]
    about = {"batch": summary.batch_id} | ({"started": summary.created} if summary.created else {})
    return PageHeader(
        name=summary.name or summary.batch_id,
        word=summary.status + (f": {summary.reason}" if summary.reason else ""),
        verdict=ANSWER_COLOURS[answer.word],
        noun="case",
        tiles=(
            *(Stat(label, value, kind) for label, value, kind, is_shown in tiles if is_shown),
            *(Stat(figure.name, figure.text) for figure in metrics[:METRICS] if not columns),
        ),
        about=about,
        notes=(*(gate_lines(summary.corrected) if summary.corrected else ()), *notes),
        error=summary.corrected.error if summary.corrected else None,
        batch_id=summary.batch_id,
        status=summary.status,
        answer=answer.text,
        words=answer.words,
        compared=tuple(words_by_column(table, summary)) if table else (),
        columns=columns,
        metrics={one.key: {figure.name: figure.text for figure in metrics if figure.key == one.key} for one in columns},
        steps=case_steps(summary.batch_id),
        next_step="" if step == report_step(summary) else step,
        compare=f"gradeloop diff {shlex.quote(summary.batch_id)}" if answer.word in {"FAILED", "PASSED"} else "",
        progress=(summary.done, summary.total) if summary.open else None,
    )


MEND = "mend the prompt or the rubric, run the suite again, then"
"""The words for what is done about a case that failed, before the command that compares."""


def case_steps(batch_id: str) -> dict[Verdict, NextStep]:
    """Return what comes next for a case of a batch of the store, by its verdict; nothing does for one that passed."""
    batch = shlex.quote(batch_id)
    return {
        "failed": NextStep(words=MEND, command=f"gradeloop diff {batch}"),
        "error": NextStep(words="run the errors of its batch again with", command=f"gradeloop eval --retry errors --attach {batch}"),
        "unsure": NextStep(words="read its votes below; see what else is undecided with", command="gradeloop inbox"),
        "waiting": NextStep(words="decide it with", command="gradeloop inbox"),
    }


async def read_threads(open_threads: ThreadsOpener, batch_id: str, wanted: Sequence[str]) -> tuple[dict[str, RunReport], list[str]]:
    """Return the reports of a batch's threads by their ids, and a note about those that cannot be read."""
    try:
        client = await open_threads(batch_id)
    except GradeloopError as error:
        return {}, [_missing(len(wanted), str(error))]
    found: dict[str, RunReport] = {}
    errors: dict[str, str] = {}
    free = asyncio.Semaphore(CONCURRENCY)

    async def read(thread_id: str) -> None:
        async with free:
            if len(errors) < CONCURRENCY or found:  # where none can be read, the others are not tried
                try:
                    found[thread_id] = await read_thread_report(client, thread_id)
                except GradeloopError as error:
                    errors[thread_id] = str(error)

    await asyncio.gather(*(read(thread_id) for thread_id in wanted[:THREADS]))
    missing = len(wanted) - len(found)
    why = next(iter(errors.values()), f"a report reads at most {THREADS:,} threads")
    return found, [_missing(missing, why)] if missing else []


def _missing(number: int, why: str) -> str:
    return f"Only the result is shown of {counted(number, 'case')} with a thread: {why}"


def _threads(reader: BatchReader, name: str) -> tuple[str, list[str]]:
    """Return the id of a batch, and the threads of its cases, those that did not pass first."""
    with reader.snapshot(name) as found:
        batch_id = found.summary.batch_id
        threads = [(result.status == "passed", thread_of(result, batch_id)) for result in found.results()]
    return batch_id, [thread for _, thread in sorted(threads, key=lambda pair: pair[0]) if thread is not None]


def report_of_file(path: Path) -> BatchReport:
    """Return the report of a file of results; of a case that is there twice the last line counts.

    Raises:
        InvalidRequest: It is not such a file, or of another version; the message names the place.
    """
    found = read_export(path, lambda result: result)
    summary = found.summary or _counted(path, found.cases)
    table = ColumnTable(summary, found.cases)
    head = head_of(summary, found.notes, table)
    again = f"gradeloop diff {shlex.quote(str(path))}"
    steps: dict[Verdict, NextStep] = {"failed": NextStep(words=MEND, command=again)}
    compare = again if head.compare else ""
    head = replace(head, batch_id=None, compare=compare, steps=steps)
    return BatchReport(head, [(None, result) for result in found.cases], columns=table)


def _counted(path: Path, results: Sequence[CaseResult]) -> BatchSummary:
    """Return the summary of a file that holds nothing but cases."""
    counts = Counter(result.status for result in results)
    started = min((result.finished for result in results if result.finished), default="")
    usage = sum((result.usage for result in results), Usage())
    facts = {"batch_id": path.stem, "created": started, "status": "finished", "total": len(results), "usage": usage}
    numbers = {"passed": counts["passed"], "failed": counts["failed"], "errors": counts["error"], "waiting": counts["waiting"]}
    numbers |= {"ungraded": counts["ungraded"], "unsure": counts["unsure"]}
    return BatchSummary.model_validate(facts | numbers | {"cached": sum(result.cached for result in results)})


async def threads_of(batch_id: str) -> GradingClient:
    """Connect to the server of a batch's threads, and start their worker where it is one of ours and has ended.

    Raises:
        ServerUnreachable: The server does not answer.
        WorkerFailed: The worker does not start.
    """
    connection = await find()
    client = await connect(connection)
    there = await BatchClient(client, "").queue_of(batch_id)
    if there is not None and OURS.fullmatch(there[0]):
        await ensure_worker_of(there[0], connection)
    return GradingClient(client)


async def write_pages(paths: Sequence[Path], reader: BatchReader, batch_id: str) -> None:
    """Write a batch's page to files."""
    page = await stored_batch_page(reader, batch_id, threads_of)
    for path in paths:
        write_page(path, page)


COLOURS: dict[CaseStatus, Verdict] = {
    "passed": "passed",
    "failed": "failed",
    "unsure": "unsure",
    "error": "error",
    "waiting": "waiting",
    "queued": "none",
    "ungraded": "none",
}

OPEN: frozenset[CaseStatus] = frozenset({"queued", "waiting"})
"""The statuses of cases that a batch has not counted yet."""

VALUE_CHARACTERS = 2_000
"""The most characters of a variable among the facts about a case; the messages hold it in full."""


EMPTY_OUTPUT = "(an empty output)"
"""Text in place of a blank output."""


def read_case_report(result: CaseResult, case: Case | None = None) -> RunReport:
    """Return the report of a case: what was asked, what was judged, and the one pass over it."""
    if result.judgement is not None and case is not None and case.judging is not None:
        judged = read_case_judgement(result.judgement, case.judging)
        return judged.model_copy(update={"notes": (*judged.notes, *remarks(result))})
    messages = [*(case.messages if case else ())]
    if result.output is not None:
        messages.append(Message.model_construct(role="assistant", content=result.output if result.output.strip() else EMPTY_OUTPUT))
    evaluation = _evaluation(result, len(messages) - 1) if result.output is not None else None
    overrides = [row.override.passed for row in result.criteria if row.override is not None]
    return RunReport(
        name=result.id,
        kind="case",
        verdict=COLOURS[result.status],
        word=STATUS_LABELS[result.status][0],
        thread_id=thread_of(result, None),
        about=about(result),
        score=result.score,
        error=result.error if result.status in {"error", "ungraded"} else None,
        rubric=case.rubric if case else None,
        messages=tuple(messages),
        evaluations=(evaluation,) if evaluation else (),
        usage=result.usage,
        best=len(messages) - 1 if evaluation and result.iterations is not None else None,
        overridden=all(overrides) if overrides else None,
        decided_by=result.decided_by,
        known_optional=result.optional,
        worst=result.worst_criterion,
        notes=_notes(result, case),
    )


def with_thread(result: CaseResult, thread: RunReport) -> RunReport:
    """Return the report of a case from that of its thread: the whole way to its last draft.

    The verdict is the one that the batch counted; where the thread has another one since, a fact says so.
    """
    now = {"thread now": thread.word.replace("_", " ")} if thread.verdict != COLOURS[result.status] else {}
    notes = (*thread.notes, *remarks(result))
    case = {"kind": "case", "name": result.id, "about": about(result) | now | thread.about, "notes": notes}
    decided = {"decided_by": result.decided_by, "worst": result.worst_criterion}
    counted = {} if result.status in OPEN else {"verdict": COLOURS[result.status], "word": STATUS_LABELS[result.status][0]}
    return thread.model_copy(update={**case, **decided, **counted})


def thread_of(result: CaseResult, batch_id: str | None) -> str | None:
    """Return the id of the thread that drafts and judges a case, before its end too; None where the case has none."""
    if result.status == "waiting" and batch_id is not None:
        return f"{batch_id}/{result.id}"
    return result.thread_id if result.iterations is not None else None


def about(result: CaseResult) -> dict[str, str]:
    """Return the facts about a case, in their order."""
    named: Mapping[str, JsonValue] = {
        "description": result.description,
        "decided by": ", ".join(result.decided_by or ()) or None,
        "prompt": result.prompt,
        "generator": result.label,
        "grader": result.grader,
        **{f"{name} (variable)": value for name, value in result.vars.items()},
        "finished": result.finished,
        "retried": f"{result.attempt} times" if result.attempt else None,
        "cache": "its answers were cached" if result.cached else None,
    }
    return {name: _cut(value) for name, value in named.items() if value is not None}


def _cut(value: JsonValue) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}… ({len(text):,} characters)"


def _evaluation(result: CaseResult, draft: int) -> Evaluation | None:
    if (
        result.status in OPEN
        or (result.status == "ungraded" and not result.criteria)
        or (result.status == "error" and not result.criteria and not result.explanation)
    ):
        return None
    verdicts: dict[CaseStatus, VerdictResult] = {"passed": "satisfied", "failed": "needs_revision"}
    verdict: EvaluationResult = verdicts.get(result.status, "grader_error")
    return Evaluation(
        grading_run_id=result.id,
        iteration=max((result.iterations or 1) - 1, 0),
        result=verdict,
        status=verdict if verdict != "needs_revision" else "max_iterations_reached",
        explanation=result.explanation,
        criteria=result.criteria,
        score=result.score,
        draft=draft,
        grader=result.grader,
        usage=result.usage,
    )


def _notes(result: CaseResult, case: Case | None) -> tuple[str, ...]:
    notes = {
        f"U{failure_reason(result)[1:] if result.status == 'unsure' else ''}": result.status == "unsure",
        "The results file does not hold the prompt; the report of the batch itself shows it.": case is None and not result.thread_id,
        f"This is the last of {result.iterations} drafts; the thread {result.thread_id} has the others.": (result.iterations or 0) > 1,
        f"{result.escalated_from} was unsure; {result.grader} decided.": result.escalated_from is not None,
        f"Ungraded: {result.explanation}": result.status == "ungraded" and result.error is None,
        f"Not judged: {'; '.join(result.left_out)}": result.status != "ungraded" and bool(result.left_out),
        f"Not run: {result.error}": result.status == "queued" and bool(result.error) and not (result.error or "").startswith("not "),
    }
    return (*(note for note, applies in notes.items() if applies), *remarks(result))
