"""Batches and judgements as `gradeloop report` shows them."""

import contextlib
import json
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from temporalio.client import Client

from gradeloop.batches.contract import BatchSummary
from gradeloop.batches.pages.judgement_page import (
    JudgementSource,
    JudgementStory,
    judgement_markdown,
    judgement_page,
    judgement_story,
)
from gradeloop.batches.pages.read_batch import batch_page, report_of_file, stored_batch_page, threads_of
from gradeloop.batches.pages.read_judgement import read_stored_judgements, registered_name
from gradeloop.batches.reader import BatchReader
from gradeloop.client.listing import LATEST, threads
from gradeloop.errors import GradeloopError, InvalidRequest, StoreUnavailable
from gradeloop.judges.contract import JudgeResult, PassGate
from gradeloop.judges.judgements import is_document, read_results
from gradeloop.judges.pass_rule import PassRule, gate_of_outputs, with_gate
from gradeloop.judges.sources import load_runs, parse_reference
from gradeloop.reports.subject import ReportOptions, ReportSubject
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import connect, find
from gradeloop.transcripts.mapping import read_mapping
from gradeloop.transcripts.readers import Reading


async def _batch_page(name: str, options: ReportOptions) -> str:
    batch = "BATCH" if _is_file(name) else shlex.quote(name)
    options.refuse_judging(name, "batch", f"gradeloop batches export {batch} -o summary.md writes that of a batch")
    if _is_file(name):
        return batch_page(report_of_file(Path(name)))
    return await stored_batch_page(BatchReader(own_store()), name, threads_of)


async def _judgement_page(name: str, options: ReportOptions) -> str:
    return (judgement_markdown if options.markdown else judgement_page)(*await _judgements(name, options))


async def _judgements(name: str, options: ReportOptions) -> JudgementStory:
    results: Sequence[JudgeResult]
    if of_file := _is_file(name) and not _names_judge(Path(name)):
        results = _gated_file(read_results(Path(name)), options)
        judge = " and ".join(sorted({f"{result.rubric_id}, version {result.rubric_version}" for result in results}))
    else:
        stored = await read_stored_judgements(name)
        judge = f"{stored.judge.rubric_id}, version {stored.judge.version}"
        gate = _gate_with_rate(PassRule(stored.judge, options.passes).gate(options.pass_rate), options)
        results = [with_gate(result, gate) for result in stored.results]
    reading = Reading(mapping=read_mapping(options.mapping))
    known = {run.id: run for run in await load_runs(options.runs, None, reading)} if options.runs else {}
    temporal: Client | None = None
    if not all(result.agent_run_id in known for result in results):
        with contextlib.suppress(GradeloopError):  # a server that does not answer is done without
            temporal = await connect(await find())
    gate = results[0].gate if results else None
    known_as = name if not of_file else await registered_name(results[0]) if results else ""
    source = JudgementSource(name, is_file=of_file, gate=gate, judge=known_as, runs=options.runs)
    return await judgement_story(results, source, judge, known, temporal)


def _gated_file(results: Sequence[JudgeResult], options: ReportOptions) -> list[JudgeResult]:
    """Return the judgements of a file with the rule that a command names; without one, with the rule that they were written with."""
    own = results[0].gate
    gate: PassGate | None
    if options.passes:
        gate = gate_of_outputs([result.output for result in results], options.passes, options.pass_rate)
    elif options.pass_rate is None:
        return list(results)
    else:
        gate = own.model_copy(update={"pass_rate": options.pass_rate}) if own else None
    return [with_gate(result, _gate_with_rate(gate, options)) for result in results]


def _gate_with_rate(gate: PassGate | None, options: ReportOptions) -> PassGate | None:
    """Return the gate as it is; raise InvalidRequest where a rate is wanted, and nothing says what passes."""
    if gate is None and options.pass_rate is not None:
        raise InvalidRequest("--pass-rate needs a rule for what passes; add --pass KEY=VALUE")
    return gate


JUDGE_BYTES = 1_000_000
"""The largest JSON file that is looked at for a judge: a batch may have gigabytes."""

JUDGE_KEYS = frozenset({"rubric_text", "rubric", "criteria"})
"""The keys one of which every judge in a file has."""

RESULT_KEYS = frozenset({"schema", "cases", "agent_run_id"})
"""The keys one of which a batch, a case and a judgement have."""


def _is_file(name: str) -> bool:
    return Path(name).suffix.lower() in {".json", ".jsonl"} or Path(name).is_file()


def _names_judge(path: Path) -> bool:
    """True for a file with a judge rather than results: written by hand, or JSON with keys that only judges have."""
    if path.suffix.lower() != ".json":
        return path.suffix.lower() in {".yaml", ".yml", ".md", ".txt"}
    try:
        if path.stat().st_size > JUDGE_BYTES:
            return False
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(value, dict) and not value.keys().isdisjoint(JUDGE_KEYS) and value.keys().isdisjoint(RESULT_KEYS)


def _holds_judgements(path: Path) -> bool:
    """True for a file whose first line is a judgement."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            line = file.readline()
            if is_document(line + file.readline()):
                return True
            first = json.loads(line)
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and "agent_run_id" in first


async def _is_newest(batch: BatchSummary) -> bool:
    """True where a batch was begun after the newest thread that is none of its own."""
    with contextlib.suppress(GradeloopError):
        async for thread in threads(await connect(await find()), limit=1):
            return thread.thread_id.startswith(f"{batch.batch_id}/") or thread.started < datetime.fromisoformat(batch.created)
    return True


async def _is_judged_file(name: str) -> bool:
    return _is_file(name) and (_names_judge(Path(name)) or _holds_judgements(Path(name)))


async def _is_batch(name: str) -> bool:
    """True for any other file, for a batch of the store, and for `latest` where a batch is the newest of all."""
    if _is_file(name):
        return True
    with contextlib.suppress(InvalidRequest, StoreUnavailable):  # there is no such batch, or no store
        reader = BatchReader(own_store())
        return await _is_newest(await reader.summary(name)) if name == LATEST else await reader.has(name)
    return False


async def _is_reference(name: str) -> bool:
    return parse_reference(name) is not None


SUBJECTS = (
    ReportSubject("batch", "a batch in the store", {10: _is_batch}, _batch_page, "gradeloop batches list"),
    ReportSubject("judgements", "a registered judge", {0: _is_judged_file, 30: _is_reference}, _judgement_page),
)
