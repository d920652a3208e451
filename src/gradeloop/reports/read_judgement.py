"""Judgements read for their pages: from the store, from files of results, and from workflow histories."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue, ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.client.thread import error_of_rpc
from gradeloop.contract.evaluation import CriterionRow, Evaluation
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.transcript import AgentRun, draft_index, run_as_messages
from gradeloop.errors import InvalidRequest
from gradeloop.grading.scoring import status_of
from gradeloop.judges.answers import Citation
from gradeloop.judges.contract import JUDGING_WORKFLOW, CriteriaJudge, JudgeConfig, JudgeResult, SchemaJudge, parse_judge
from gradeloop.judges.prompt import blocks_of
from gradeloop.reports.collection_page import Entry, Head, Tile, collection_page
from gradeloop.reports.model import Passage, RunReport, SchemaVerdict, ToolEvidence, Verdict
from gradeloop.reports.read_thread import GONE, UnreadablePayload, started_with, tool_uses
from gradeloop.reports.run_page import run_page
from gradeloop.text import money


@dataclass(frozen=True)
class JudgementRecord:
    """What is known of a judgement beside its result."""

    run: AgentRun | None = None
    judge: JudgeConfig | None = None
    tools: tuple[ToolEvidence, ...] = ()
    notes: tuple[str, ...] = ()


async def judgement_record(temporal: Client, result: JudgeResult) -> JudgementRecord:
    """Return what the server still has of a judgement; an empty record where it has nothing.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    first = await _first_event(temporal, result.id)
    if first is None:
        return JudgementRecord()
    try:
        asked = await started_with(temporal, first)
    except UnreadablePayload as error:
        return JudgementRecord(notes=(f"the judgement's input cannot be read: {error}",))
    run, judge = _run(asked.get("run")), _judge(asked.get("judge"))
    if run is not None and run.id != result.agent_run_id:
        return JudgementRecord(notes=(f"the judgement of that id belongs to another run, {run.id!r}, so its tool calls are not shown",))
    if not isinstance(judge, CriteriaJudge):
        return JudgementRecord(run, judge)
    tools, notes = await tool_uses(temporal, result.id)
    mine = tuple(tool.model_copy(update={"grading_run_id": result.id}) for tool in tools)  # its evaluation is told under that id
    return JudgementRecord(run, judge, mine, tuple(notes))


async def _first_event(temporal: Client, name: str) -> HistoryEvent | None:
    """Return how the judgement began; None where the server does not know, or where the id is that of something else."""
    try:
        async for event in temporal.get_workflow_handle(name).fetch_history_events(page_size=1):
            kind = event.workflow_execution_started_event_attributes.workflow_type.name
            return event if kind == JUDGING_WORKFLOW else None
    except RPCError as error:
        if error.status not in GONE:
            raise error_of_rpc(error, name) from None
    return None


def _run(value: JsonValue) -> AgentRun | None:
    try:
        return AgentRun.model_validate(value)
    except ValidationError:  # of another version
        return None


def _judge(value: JsonValue) -> JudgeConfig | None:
    try:
        return parse_judge(value)
    except InvalidRequest:  # of another version
        return None


@dataclass(frozen=True)
class KeptJudgements:
    """What a judge came to, as the store has it."""

    name: str
    """The judge's: its id and version."""
    judge: JudgeConfig
    results: tuple[JudgeResult, ...]
    """By run, then by repeat."""


async def judgements_named(name: str) -> KeptJudgements:
    """Return the judgements that the store has of `COLLECTION/RUBRIC[@VERSION]`, or of the judge in a file.

    Raises:
        InvalidRequest: There is no such judge, or nothing that it judged was kept.
        StoreUnavailable: The store cannot be opened.
    """
    from gradeloop.judges.registry import Registry
    from gradeloop.judges.sources import load_judge
    from gradeloop.store.engine import own_store

    store = own_store()
    try:
        registry = Registry(store)
        judge = await load_judge(name, registry)
        results = await registry.judgements(judge)
    finally:
        store.close()
    if not results:
        raise InvalidRequest(f"the store has no judgements by {name!r}; judge some runs first: gradeloop judge {name} RUNS")
    return KeptJudgements(f"{judge.rubric_id}, version {judge.version}", judge, tuple(results))


AT_ONCE = 20
"""Judgements that are read from the server at once."""

NO_RUN = "the transcript is missing; name the file of the runs with --runs FILE"

ANOTHER_RUN = "the run in the given file differs from the judged run of the same id; the judged one is shown"

MISPLACED = "some citations point outside the given run; it may differ from the run that was judged"

CITATIONS = "citations"
"""The key of a result's metadata under which they stand."""


@dataclass(frozen=True)
class _Telling:
    """A judgement with all that is known of it."""

    result: JudgeResult
    run: AgentRun | None
    record: JudgementRecord
    repeat: int
    """Which judgement of this run by this judge it is, from 0."""
    repeats: int
    notes: tuple[str, ...]


async def read_judgement_reports(results: Sequence[JudgeResult], runs: Mapping[str, AgentRun], temporal: Client | None) -> list[RunReport]:
    """Return a story a judgement, in their order.

    Args:
        results: As `read_results` or `judgements_named` return them.
        runs: What was judged, by id, as far as it is at hand.
        temporal: Where the rest is looked for, and the tools that graders called; None looks nowhere.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    slots = asyncio.Semaphore(AT_ONCE)

    async def recorded(result: JudgeResult) -> JudgementRecord:
        async with slots:
            return await judgement_record(temporal, result) if temporal is not None else JudgementRecord()

    records = await asyncio.gather(*(recorded(result) for result in results))
    totals, seen = Counter(_key(result) for result in results), Counter[tuple[str, str, int]]()
    stories = []
    for result, record in zip(results, records, strict=True):
        key = _key(result)
        stories.append(_story(_telling(result, runs.get(result.agent_run_id), record, seen[key], totals[key])))
        seen[key] += 1
    return stories


def _key(result: JudgeResult) -> tuple[str, str, int]:
    return result.agent_run_id, result.rubric_id, result.rubric_version


def _telling(result: JudgeResult, given: AgentRun | None, record: JudgementRecord, repeat: int, repeats: int) -> _Telling:
    """Put together what is known; the run that was judged goes before the one that was named."""
    notes, run = list(record.notes), given or record.run
    if given is not None and record.run is not None and given.sha256() != record.run.sha256():
        run = record.run
        notes.append(ANOTHER_RUN)
    if run is None:
        notes.append(NO_RUN)
    return _Telling(result, run, record, repeat, repeats, tuple(notes))


def _story(telling: _Telling) -> RunReport:
    result = telling.result
    if not result.failed and isinstance(result.output.get("criteria"), list) and "variant" not in result.result_metadata:
        try:
            return _by_criteria(telling)
        except ValidationError:  # a schema judge's own key of that name, or a later version's row
            return _by_schema(telling)
    return _by_schema(telling)


def _by_criteria(telling: _Telling) -> RunReport:
    log = run_as_messages(telling.run) if telling.run else []
    evaluation = _evaluation(telling, log)
    passed = evaluation.result == "satisfied"
    update = {
        "verdict": "passed" if passed else "failed",
        "word": evaluation.result,
        "score": evaluation.score,
        "messages": tuple(log),
        "evaluations": (evaluation,),
        "best": evaluation.draft if log else None,
    }
    return _told(telling).model_copy(update=update)


def _evaluation(telling: _Telling, log: list[Message]) -> Evaluation:
    """Return a judgement by criteria as one pass.

    Raises:
        ValidationError: It is none.
    """
    result, judge = telling.result, telling.record.judge
    rows = [CriterionRow.model_validate(each) for each in _list(result.output.get("criteria"))]
    told = {
        "grading_run_id": result.id,
        "iteration": 0,
        "result": result.output.get("result"),
        "status": "running",
        "explanation": result.output.get("explanation", ""),
        "criteria": rows,
        "score": result.output.get("score"),
        "unverified": any(row.unverified for row in rows),
        "usage": result.usage,
        "draft": _draft(result, log),
        "grader": result.model,
        "rubric_sha256": judge.rubric.sha256() if isinstance(judge, CriteriaJudge) else None,
    }
    found = Evaluation.model_validate(told)
    return found.model_copy(update={"status": status_of(found.result, last=True)})


def _draft(result: JudgeResult, log: list[Message]) -> int:
    """Return the index of what was judged as the answer, as the judgement says, else as it would be chosen now."""
    said = result.result_metadata.get("draft")
    if isinstance(said, int) and said >= 0 and (not log or said < len(log)):
        return said
    return max(draft_index(log), 0)


def _by_schema(telling: _Telling) -> RunReport:
    result = telling.result
    passages = _passages(telling.run) if telling.run else ()
    metadata = {key: value for key, value in result.result_metadata.items() if key != CITATIONS}
    reason = result.result_metadata.get("reason") if result.failed else None
    citations, notes = _citations(result, passages)
    judged = SchemaVerdict(
        rubric_id=result.rubric_id,
        rubric_version=result.rubric_version,
        output=result.output,
        reason=None if reason is None else str(reason),
        citations=citations,
        metadata=metadata,
        repeat=telling.repeat,
    )
    ended = {"verdict": "error", "word": "failure", "error": judged.reason} if result.failed else {"word": "judged"}
    story = _told(telling)
    return story.model_copy(update={"judged": judged, "passages": passages, "notes": (*story.notes, *notes)} | ended)


def _passages(run: AgentRun) -> tuple[Passage, ...]:
    return tuple(Passage(label=block.label, role=block.role, name=block.name, text=block.text) for block in blocks_of(run))


def _citations(result: JudgeResult, passages: Sequence[Passage]) -> tuple[tuple[Citation, ...], list[str]]:
    """Return the citations that can be read, and what is wrong with them, in words."""
    told = _list(result.result_metadata.get(CITATIONS))
    found = []
    for each in told:
        try:
            found.append(Citation.model_validate(each))
        except ValidationError:  # a later version's
            continue
    lengths = {passage.label: len(passage.text) for passage in passages}
    misplaced = passages and any(each.block_end is not None and each.block_end > lengths.get(each.target, -1) for each in found)
    lost = len(told) - len(found)
    notes = [f"{lost} of {len(told)} citations cannot be read"] if lost else []
    return tuple(found), [*notes, MISPLACED] if misplaced else notes


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _told(telling: _Telling) -> RunReport:
    """Return what is told alike of all judgements."""
    result, judge = telling.result, telling.record.judge
    about = {
        "rubric": f"{result.rubric_id}, version {result.rubric_version}",
        "rubric text": judge.rubric_text if isinstance(judge, SchemaJudge) else "",
        "judge": result.model or "",
        "repeat": f"{telling.repeat + 1} of {telling.repeats}" if telling.repeats > 1 else "",
        "judgement": result.id,
    }
    return RunReport(
        name=result.agent_run_id,
        kind="judgement",
        verdict="none",
        word="judged",
        about={name: fact for name, fact in about.items() if fact},
        rubric=judge.rubric if isinstance(judge, CriteriaJudge) else None,
        tools=telling.record.tools,
        usage=result.usage,
        notes=telling.notes,
    )


@dataclass(frozen=True)
class JudgementReport:
    """All that a page of judgements is made of."""

    name: str
    stories: Sequence[RunReport]
    about: dict[str, str]


def judgement_page(report: JudgementReport) -> str:
    """Return the page of judgements: one HTML document that needs nothing else."""
    if len(report.stories) == 1:
        return run_page(report.stories[0])
    return collection_page(_head(report), (Entry(story, story.name) for story in report.stories))


def _head(report: JudgementReport) -> Head:
    usage = sum((story.usage for story in report.stories), Usage())
    counts = {verdict: sum(story.verdict == verdict for story in report.stories) for verdict in ("passed", "failed", "error", "none")}
    cited = [citation.verified for story in report.stories if story.judged for citation in story.judged.citations]
    tiles: list[tuple[str, str, Verdict | None, bool]] = [
        ("passed", f"{counts['passed']:,}", "passed", bool(counts["passed"])),
        ("failed", f"{counts['failed']:,}", "failed", bool(counts["failed"])),
        ("judged", f"{counts['none']:,}", None, bool(counts["none"])),
        ("failures", f"{counts['error']:,}", "error" if counts["error"] else None, True),
        (f"of {len(cited):,} citations found", f"{sum(cited):,}", None, bool(cited)),
        ("tokens", f"{usage.tokens:,}", None, bool(usage.tokens)),
        ("cost", money(usage.cost_usd), None, bool(usage.cost_usd)),
    ]
    return Head(
        name=report.name,
        word="",
        verdict="none",
        noun="judgement",
        tiles=tuple(Tile(label, value, kind) for label, value, kind, there in tiles if there),
        about=report.about,
    )
