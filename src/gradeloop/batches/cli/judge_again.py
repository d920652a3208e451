"""Runs that were judged before, to be judged again by another judge, and what that would cost."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from temporalio.client import Client

from gradeloop.batches.judge_many import escalation_judge
from gradeloop.batches.pages.read_judgement import read_judgement_record
from gradeloop.batches.preview import JudgingPreview, preview_judgements
from gradeloop.batches.reader import BatchReader
from gradeloop.contract.thread import Priority
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.judges.chunks import chunked_id, is_too_long, requests_in_parts
from gradeloop.judges.contract import JudgeConfig, JudgeResult, JudgingRequest, judging_id
from gradeloop.judges.pass_rule import with_unsure
from gradeloop.judges.sources import load_judge, names_file, parse_reference
from gradeloop.settings.endpoints import default_model
from gradeloop.store.engine import Store, own_store
from gradeloop.text import counted, money

if TYPE_CHECKING:
    from gradeloop.judges.registry import JudgeRegistry


async def load_older_judge(name: str, judge: str, registry: "JudgeRegistry") -> JudgeConfig:
    """Load the judge that `--only-judge` names: a file, `COLLECTION/RUBRIC[@VERSION]`, or `RUBRIC@VERSION` of the new judge's collection.

    Raises:
        InvalidRequest: There is no such judge.
    """
    reference = None if names_file(judge) else parse_reference(judge)
    if reference is not None and "/" not in name and not names_file(name):
        name = f"{reference[0]}/{name}"
    return await load_judge(name, registry)


async def judged_runs(
    older: Sequence[JudgeConfig], named: Sequence[AgentRun], registry: "JudgeRegistry", temporal: Client
) -> list[AgentRun]:
    """Return the runs that a judge has judged: those of the named ones, or where none is named all whose transcripts are still there.

    Args:
        older: The judge as it is written, and with the model that the command chooses where it names none.
        named: Runs out of files; empty for all that the store has judgements of.
        registry: The judgements.
        temporal: The server that is asked for transcripts which no batch of the store has.

    Raises:
        InvalidRequest: It has judged none of them, or the transcript of one is gone.
        ServerUnreachable: The server does not answer.
    """
    results = {result.id: result for judge in older for result in await registry.judgements(judge)}
    what = f"{older[0].rubric_id}@{older[0].version}"
    if not results:
        raise InvalidRequest(f"--only-judge: the store has no judgements by {what}; name a judge and version that has judged")
    if not named:
        return await _stored_runs(list(results.values()), what, temporal)
    shas = [(run, run.sha256()) for run in named]
    made = (judging_id, chunked_id)  # of the run as it is shown, and in parts
    found = [run for run, sha256 in shas if any(name(judge, sha256) in results for judge in older for name in made)]
    if not found:
        raise InvalidRequest(f"--only-judge: {what} has judged none of these {counted(len(named), 'run')}; name the runs that it judged")
    return found


async def _stored_runs(results: Sequence[JudgeResult], what: str, temporal: Client) -> list[AgentRun]:
    runs: dict[str, AgentRun] = {}
    missing: list[str] = []
    for result in results:
        if result.agent_run_id in runs:
            continue
        record = await read_judgement_record(temporal, result)
        if record.run is None:
            missing.append(result.agent_run_id)
        else:
            runs[result.agent_run_id] = record.run
    if lost := [name for name in missing if name not in runs]:
        some = ", ".join(sorted(lost)[:5])
        raise InvalidRequest(
            f"--only-judge: {counted(len(lost), 'run')} judged by {what} are gone from store and server ({some}); name their files"
        )
    return list(runs.values())


async def preview_of(
    config: JudgeConfig,
    runs: Sequence[AgentRun],
    repeats: int,
    registry: "JudgeRegistry | None",
    *,
    priority: Priority | None = None,
    chunk: bool = False,
    retry: bool = False,
) -> JudgingPreview:
    """Return what judging runs would cost, with what is stored and cached left out; with `chunk`, long runs in parts.

    With `retry`, stored failures are judged again. The escalation judge's calls are counted for the stored judgements that are unsure: of
    others nobody knows yet whether they will be.
    """
    stored = {result.id: result for result in await registry.judgements(config)} if registry is not None else {}
    rows = [(run, repeat) for run in runs for repeat in range(repeats)]
    named = [_requests(config, run, repeat, priority, chunk=chunk) for run, repeat in rows]
    judged = _already_made(stored, retry=retry)
    escalated = []
    if (escalation := escalation_judge(config)) is not None and registry is not None:
        unsure = [row for row, (name, _) in zip(rows, named, strict=True) if name in judged and with_unsure(config, stored[name]).unsure]
        decided = _already_made({result.id: result for result in await registry.judgements(escalation)}, retry=retry)
        asked = dict(_requests(escalation, run, repeat, priority, chunk=chunk) for run, repeat in unsure)
        escalated = [made for name, made in asked.items() if name not in decided]
    chosen = default_model(os.environ)
    reader = BatchReader(own_store()) if registry is not None else None
    return await preview_judgements(named, judged, chosen.spec if chosen else None, reader, escalated=escalated)


def _already_made(stored: Mapping[str, JudgeResult], *, retry: bool) -> set[str]:
    """Return the ids of the stored results that are read, rather than made again."""
    return {name for name, result in stored.items() if not (result.failed if retry else result.result_metadata.get("again"))}


def _requests(
    config: JudgeConfig, run: AgentRun, repeat: int, priority: Priority | None, *, chunk: bool
) -> tuple[str, list[JudgingRequest]]:
    """Return a judgement's id, and the requests that it takes."""
    if chunk and is_too_long(run):
        made = [one.model_copy(update={"repeat": repeat, "priority": priority}) for one in requests_in_parts(config, run)]
        return chunked_id(config, run.sha256(), repeat, priority=priority), made
    asked = JudgingRequest(judge=config, run=run, repeat=repeat, priority=priority)
    return judging_id(config, run.sha256(), repeat, priority=priority), [asked]


async def preview_requests(
    requests: Sequence[JudgingRequest], judged: set[str], environ: dict[str, str], store: Store | None
) -> JudgingPreview:
    """Return what judgements would cost, with those of these ids and what is cached left out."""
    named = [(judging_id(one.judge, one.run.sha256(), one.repeat, priority=one.priority), [one]) for one in requests]
    chosen = default_model(environ)
    return await preview_judgements(named, judged, chosen.spec if chosen else None, BatchReader(store) if store is not None else None)


def preview_lines(found: JudgingPreview) -> Iterator[str]:
    """Yield a preview in words."""
    done = f", {found.judged} of them in the store" if found.judged else ""
    unsure = f", {found.to_escalate} of which the escalation judge is to be asked" if found.to_escalate else ""
    yield f"{counted(found.judgements, 'judgement')}{done}{unsure}"
    cached = f", {found.cached} more are cached" if found.cached else ""
    cost = f"about {money(found.cost_usd)}" if found.calls and found.cost_usd else "nothing to pay"
    if found.calls and found.cost_usd is None:
        cost = "what they cost is unknown: a model has no price"
    yield f"{counted(found.calls, 'call')} to make{cached}; {cost}"
