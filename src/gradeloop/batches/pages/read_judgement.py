"""Judgements read for their pages: from the store, from files of results, and from workflow histories."""

import asyncio
import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace

from pydantic import JsonValue, ValidationError
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.batches.contract import CaseStatus
from gradeloop.batches.reader import BatchReader
from gradeloop.client.thread import error_of_rpc
from gradeloop.contract.evaluation import CriterionRow, Evaluation
from gradeloop.contract.messages import Message
from gradeloop.contract.transcript import AgentRun, Citation, draft_index, run_as_messages
from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.grading.quotes import fold, written_forms
from gradeloop.grading.scoring import status_of
from gradeloop.judges.chunks import whole_run, without_part_text
from gradeloop.judges.contract import JUDGING_WORKFLOW, CriteriaJudge, JudgeConfig, JudgeResult, JudgingRequest, SchemaJudge, parse_judge
from gradeloop.judges.pass_rule import unmet_values
from gradeloop.judges.prompt import blocks_of
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.judges.sources import load_judge
from gradeloop.reports.html import as_json
from gradeloop.reports.model import Passage, PassageRecord, RunReport, SchemaVerdict, ToolEvidence
from gradeloop.reports.read_thread import GONE, UnreadablePayload, read_start_request, read_tool_calls
from gradeloop.store.engine import Store, own_store
from gradeloop.text import objects_in, shortened


@dataclass(frozen=True)
class JudgementRecord:
    """The facts about a judgement beside its result."""

    run: AgentRun | None = None
    judge: JudgeConfig | None = None
    tools: tuple[ToolEvidence, ...] = ()
    notes: tuple[str, ...] = ()


async def read_judgement_record(temporal: Client, result: JudgeResult) -> JudgementRecord:
    """Read what the server still has of a judgement, which may be nothing; raise ServerUnreachable where the server does not answer."""
    if isinstance(parts := result.result_metadata.get("parts"), list) and "findings" in result.result_metadata:
        return await _record_of_parts(temporal, result, parts)
    return await (_stored_record(result.batch_id, result.id) if result.batch_id is not None else _recorded(temporal, result))


async def _recorded(temporal: Client, result: JudgeResult) -> JudgementRecord:
    """Read a judgement's record from its workflow's history."""
    first = await _first_event(temporal, result.id)
    if first is None:
        return JudgementRecord()
    try:
        request = await read_start_request(temporal, first)
    except UnreadablePayload as error:
        return JudgementRecord(notes=(f"the judgement's input cannot be read: {error}",))
    run: AgentRun | None = None
    judge: JudgeConfig | None = None
    with suppress(ValidationError):  # of a later version
        run = AgentRun.model_validate(request.get("run"))
    with suppress(InvalidRequest):  # of a later version
        judge = parse_judge(request.get("judge"))
    if run is not None and run.id != result.agent_run_id:
        return JudgementRecord(notes=(f"the judgement of that id belongs to another run, {run.id!r}, so its tool calls are not shown",))
    if not isinstance(judge, CriteriaJudge):
        return JudgementRecord(run, judge)
    tools, notes = await read_tool_calls(temporal, result.id)
    mine = tuple(tool.model_copy(update={"grading_run_id": result.id}) for tool in tools)  # the id of its evaluation
    return JudgementRecord(run, judge, mine, tuple(notes))


async def _record_of_parts(temporal: Client, result: JudgeResult, parts: Sequence[JsonValue]) -> JudgementRecord:
    """Read a run that was judged in parts from the judgements of its parts; an empty record where one of them is gone."""
    known = [{"id": str(part.get("id")), "batch_id": part.get("batch_id")} for part in parts if isinstance(part, dict)]
    named = [result.model_copy(update={"result_metadata": {}, **ids}) for ids in known]
    records = [await read_judgement_record(temporal, one) for one in named]
    runs = [record.run for record in records if record.run is not None]
    run = whole_run(runs) if len(runs) == len(parts) else None
    judges = [record.judge for record in records]
    judge = judges[0] if run is not None else None
    return JudgementRecord(run, judge and without_part_text(judge), tuple(tool for record in records for tool in record.tools))


async def _stored_record(batch_id: str, name: str) -> JudgementRecord:
    """Read what the store still has of a judgement that a batch made; an empty record where it has nothing."""
    try:
        with closing(own_store()) as store:
            case, _ = await BatchReader(store).case(batch_id, name)
    except (InvalidRequest, StoreUnavailable):
        return JudgementRecord()
    return JudgementRecord(case.judging.run, case.judging.judge) if case.judging is not None else JudgementRecord()


async def read_question(result: JudgeResult) -> str:
    """Return what the judge of a stored judgement asks, its rubric or its criteria in one line; empty where the store does not have it."""
    judge = (await _stored_record(result.batch_id, result.id)).judge if result.batch_id is not None else None
    if isinstance(judge, SchemaJudge):
        return judge.rubric_text.strip()
    return "; ".join(as_json(criterion.description) for criterion in judge.rubric.criteria) if judge is not None else ""


async def _first_event(temporal: Client, name: str) -> HistoryEvent | None:
    """Return the first event of a judgement; None where the server has none, or where the id is not that of a judgement."""
    try:
        async for event in temporal.get_workflow_handle(name).fetch_history_events(page_size=1):
            kind = event.workflow_execution_started_event_attributes.workflow_type.name
            return event if kind == JUDGING_WORKFLOW else None
    except RPCError as error:
        if error.status not in GONE:
            raise error_of_rpc(error, name) from None
    return None


@dataclass(frozen=True)
class StoredJudgements:
    """The judgements of a judge in the store."""

    judge: JudgeConfig
    results: tuple[JudgeResult, ...]
    """The judgements by run, then by repeat."""


async def read_stored_judgements(name: str) -> StoredJudgements:
    """Read the judgements of the store by `COLLECTION/RUBRIC[@VERSION]`, or of the judge in a file.

    Raises:
        InvalidRequest: There is no such judge, or the store has no judgements by it.
        StoreUnavailable: The store cannot be opened.
    """
    with closing(own_store()) as store:
        registry = JudgeRegistry(store)
        judge = await load_judge(name, registry)
        results = await registry.judgements(judge)
    if not results:
        raise InvalidRequest(f"the store has no judgements by {name!r}; judge some runs first: gradeloop judge {shlex.quote(name)} RUNS")
    return StoredJudgements(judge, tuple(results))


async def stale_notes(results: Sequence[JudgeResult]) -> dict[tuple[str, int], str]:
    """Return, by rubric and version, why judgements are stale: the registry has a newer version of their judge; empty without a store."""
    try:
        with closing(own_store()) as store:
            newest = await JudgeRegistry(store).newest_versions({result.rubric_id for result in results})
    except (InvalidRequest, StoreUnavailable):
        return {}
    notes = {}
    for rubric, version in {(result.rubric_id, result.rubric_version) for result in results}:
        known = newest.get(rubric, [])
        if known and all(latest > version for _, latest in known):
            collection, latest = known[0]
            again = f"gradeloop judge {collection}/{rubric} --again --only-judge {rubric}@{version}"
            notes[rubric, version] = f"stale: judged by version {version} of {rubric}, whose newest is {latest}; judge again with {again}"
    return notes


async def registered_name(result: JudgeResult, store: Store | None = None, *, judge: JudgeConfig | None = None) -> str:
    """Return the place of a judgement's judge in the registry, `COLLECTION/RUBRIC@VERSION`; empty where it has none.

    Args:
        result: The judgement.
        store: The store whose registry is asked; None for that of the settings, if there is one.
        judge: The judge, where it is known: a batch keeps it without its name.
    """
    try:
        with closing(own_store()) if store is None else nullcontext(store) as opened:
            sha256 = judge.sha256() if judge is not None else result.judge_sha256
            by_content = await JudgeRegistry(opened).names_of(sha256) if sha256 else []
            known = (await JudgeRegistry(opened).newest_versions({result.rubric_id})).get(result.rubric_id, [])
    except (InvalidRequest, StoreUnavailable):
        return ""
    named = f"{result.rubric_id}@{result.rubric_version}"
    found = [f"{collection}/{named}" for collection, latest in known if latest >= result.rubric_version]
    return next(iter([*by_content, *found]), "")


CONCURRENCY = 20
"""Judgements that are read from the server at the same time."""

NO_RUN = "the transcript is missing; name the file of the runs with --runs FILE"

INVALID = "the judge's answers stayed invalid; gradeloop judge asks again with --retry errors"

UNANSWERED = "no judge answered; the same gradeloop judge asks again"

ANOTHER_RUN = "the run in the given file differs from the judged run of the same id; the judged one is shown"

MISPLACED = "some citations point outside the given run; it may differ from the run that was judged"

FINDING_CHARACTERS = 600
"""The most characters of a finding on a part of a run that a page shows in a line; the metadata has more."""

CITATIONS = "citations"
"""The key of the citations in a result's metadata."""


@dataclass(frozen=True)
class _Judgement:
    """A judgement with all that is known of it."""

    result: JudgeResult
    run: AgentRun | None
    record: JudgementRecord
    repeat: int
    """Its number among the judgements of this run by this judge, from 0."""
    repeats: int
    notes: tuple[str, ...]


async def read_judgement_reports(results: Sequence[JudgeResult], runs: Mapping[str, AgentRun], temporal: Client | None) -> list[RunReport]:
    """Return the reports of judgements, in their order.

    Args:
        results: Judgements as `read_results` or `read_stored_judgements` return them.
        runs: The judged runs that are known, by id.
        temporal: The server that is asked for the other runs, and for the tool calls of graders; None asks no server.

    Raises:
        ServerUnreachable: The server does not answer.
    """
    slots = asyncio.Semaphore(CONCURRENCY)

    async def read(result: JudgeResult) -> JudgementRecord:
        async with slots:
            return await read_judgement_record(temporal, result) if temporal is not None else JudgementRecord()

    records = await _with_judges(results, await asyncio.gather(*(read(result) for result in results)))
    totals, seen = Counter(_key(result) for result in results), Counter[tuple[str, str, int]]()
    reports = []
    stale = await stale_notes(results)
    for result, record in zip(results, records, strict=True):
        key = _key(result)
        report = _report(_combine(result, runs.get(result.agent_run_id), record, seen[key], totals[key]))
        note = stale.get((result.rubric_id, result.rubric_version))
        reports.append(report if note is None else report.model_copy(update={"notes": (note, *report.notes)}))
        seen[key] += 1
    return reports


async def _with_judges(results: Sequence[JudgeResult], records: Sequence[JudgementRecord]) -> list[JudgementRecord]:
    """Return the records, each with the judge that the store has of a judgement by the same one, where none was read."""
    known: dict[tuple[str, int], JudgeConfig | None] = {}
    for result, record in zip(results, records, strict=True):
        key = (result.rubric_id, result.rubric_version)
        if known.get(key) is None and record.judge is not None:
            known[key] = record.judge
        elif key not in known and result.batch_id is not None:
            known[key] = (await _stored_record(result.batch_id, result.id)).judge
    judges = [record.judge or known.get((result.rubric_id, result.rubric_version)) for result, record in zip(results, records, strict=True)]
    return [replace(record, judge=judge) for record, judge in zip(records, judges, strict=True)]


def read_case_judgement(result: JudgeResult, request: JudgingRequest) -> RunReport:
    """Return the report of a judgement that a batch made, from what the batch has of it."""
    return _report(_combine(result, request.run, JudgementRecord(request.run, request.judge), request.repeat, request.repeat + 1))


def _key(result: JudgeResult) -> tuple[str, str, int]:
    return result.agent_run_id, result.rubric_id, result.rubric_version


def _combine(result: JudgeResult, given: AgentRun | None, record: JudgementRecord, repeat: int, repeats: int) -> _Judgement:
    """Return all that is known of a judgement; the run that was judged goes before the given one."""
    notes, run = list(record.notes), given or record.run
    if given is not None and record.run is not None and given.sha256() != record.run.sha256():
        run = record.run
        notes.append(ANOTHER_RUN)
    if run is None:
        notes.append(NO_RUN)
    if result.failed:
        notes.append(UNANSWERED if result.result_metadata.get("again") else INVALID)
    return _Judgement(result, run, record, repeat, repeats, tuple(notes))


def _report(judgement: _Judgement) -> RunReport:
    result = judgement.result
    if not result.failed and isinstance(result.output.get("criteria"), list) and "variant" not in result.result_metadata:
        try:
            return _by_criteria(judgement)
        except ValidationError:  # a schema judge's own key of that name, or a later version's row
            return _by_schema(judgement)
    return _by_schema(judgement)


_UNSURE = {"verdict": "unsure", "word": "unsure"}
"""A page shows a judgement in which too few votes agree neither as passed nor as failed."""

_ENDS: dict[CaseStatus, dict[str, str]] = {
    "error": {"verdict": "error", "word": "failure"},
    "unsure": _UNSURE,
    "ungraded": {"word": "judged"},
    "passed": {"verdict": "passed", "word": "passed"},
    "failed": {"verdict": "failed", "word": "not passed"},
}
"""The verdict of a judgement by a schema, by the rule that it was read with; without one it is only judged."""


def status_of_judgement(result: JudgeResult) -> CaseStatus:
    """Return what became of a judgement, as cases of a batch say it; `ungraded` where no rule says what passes."""
    if result.failed or result.unsure:
        return "error" if result.failed else "unsure"
    return "ungraded" if result.passed is None else "passed" if result.passed else "failed"


def _by_criteria(judgement: _Judgement) -> RunReport:
    log = run_as_messages(judgement.run) if judgement.run else []
    evaluation = _evaluation(judgement, log)
    passed = evaluation.result == "satisfied" if judgement.result.passed is None else judgement.result.passed
    update = {
        "verdict": "passed" if passed else "failed",
        "word": evaluation.result,
        "score": evaluation.score,
        "messages": tuple(log),
        "evaluations": (evaluation,),
        "best": evaluation.draft if log else None,
    } | (_UNSURE if judgement.result.unsure else {})
    return _common_report(judgement).model_copy(update=update)


def _evaluation(judgement: _Judgement, log: list[Message]) -> Evaluation:
    """Return a judgement by criteria as one pass; raise ValidationError where it is none."""
    result, judge = judgement.result, judgement.record.judge
    rows = [CriterionRow.model_validate(row) for row in _list(result.output.get("criteria"))]
    facts = {
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
    found = Evaluation.model_validate(facts)
    return found.model_copy(update={"status": status_of(found.result, last=True)})


def _draft(result: JudgeResult, log: list[Message]) -> int:
    """Return the index of the judged answer, by the judgement, else by the rule of today."""
    draft = result.result_metadata.get("draft")
    if isinstance(draft, int) and draft >= 0 and (not log or draft < len(log)):
        return draft
    return max(draft_index(log), 0)


def _title(fields: Mapping[str, JsonValue]) -> str:
    """Return a record's type and what else is known of it, as a heading; empty for a plain text."""
    about = [f"{key} {value}" for key, value in fields.items() if key != "type"]
    return "" if fields.get("type") == "text" and not about else ", ".join([str(fields.get("type")), *about])


def _by_schema(judgement: _Judgement) -> RunReport:
    result = judgement.result
    passages = tuple(
        Passage(
            label=block.label,
            role=block.role,
            name=block.name,
            text=block.text,
            records=tuple(PassageRecord(title=_title(record.fields), start=record.start, end=record.end) for record in block.records),
        )
        for block in (blocks_of(judgement.run) if judgement.run else ())
    )
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
        repeat=judgement.repeat,
        labels=_label_keys(judgement.record.judge),
        unmet=unmet_values(result),
    )
    ended = _ENDS[status_of_judgement(result)] | ({"error": judged.reason} if result.failed else {})
    report = _common_report(judgement)
    return report.model_copy(update={"judged": judged, "passages": passages, "notes": (*report.notes, *notes)} | ended)


def _label_keys(judge: JudgeConfig | None) -> tuple[str, ...] | None:
    """Return the keys whose values a judge chooses rather than writes; None where its schema is not known."""
    if not isinstance(judge, SchemaJudge):
        return None
    properties = judge.output_schema["properties"]
    return tuple(name for name, schema in properties.items() if schema.get("type") in {"boolean", "integer"} or "enum" in schema)


def _citations(result: JudgeResult, passages: Sequence[Passage]) -> tuple[tuple[Citation, ...], list[str]]:
    """Return the citations that can be read, and notes about the others."""
    written = _list(result.result_metadata.get(CITATIONS))
    found = []
    for citation in written:
        try:
            found.append(Citation.model_validate(citation))
        except ValidationError:  # a later version's
            continue
    texts = {passage.label: passage.text for passage in passages}
    misplaced = passages and any(_is_misplaced(citation, texts.get(citation.target, "")) for citation in found)
    lost = len(written) - len(found)
    notes = [f"{lost} of {len(written)} citations cannot be read"] if lost else []
    return tuple(found), [*notes, MISPLACED] if misplaced else notes


def _is_misplaced(citation: Citation, text: str) -> bool:
    """True for a citation that points outside of the block, or at other words than it quotes."""
    if citation.block_start is None or citation.block_end is None:
        return False
    shown = fold(text[citation.block_start : citation.block_end])
    quoted = citation.quote is None or any(fold(form) == shown for form in written_forms(citation.quote))
    return citation.block_end > len(text) or not quoted


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _common_report(judgement: _Judgement) -> RunReport:
    """Return the report of a judgement with the fields that all kinds have."""
    result, judge = judgement.result, judgement.record.judge
    parts = objects_in(result.result_metadata.get("parts"))
    about = {
        "rubric": f"{result.rubric_id}, version {result.rubric_version}",
        "rubric text": judge.rubric_text if isinstance(judge, SchemaJudge) else "",
        "judge": result.model or "",
        "repeat": f"{judgement.repeat + 1} of {judgement.repeats}" if judgement.repeats > 1 else "",
        "parts": f"{len(parts)}, which overlap; the last call was shown what was found in them" if parts else "",
        "judgement": result.id,
    }
    return RunReport(
        name=result.agent_run_id,
        kind="judgement",
        verdict="none",
        word="judged",
        about={name: fact for name, fact in about.items() if fact},
        rubric=judge.rubric if isinstance(judge, CriteriaJudge) else None,
        tools=judgement.record.tools,
        usage=result.usage,
        notes=(*judgement.notes, *(_part_note(number, part) for number, part in enumerate(parts, 1))),
    )


def _part_note(number: int, part: Mapping[str, JsonValue]) -> str:
    """Return what was found in a part of a run, in one line."""
    said = part.get("output")
    text = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    return f"part {number}, {part.get('first')} to {part.get('last')}: {shortened(text, FINDING_CHARACTERS)}"
