"""The page of a batch, a thread, or judgements, whichever a name means."""

import contextlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from temporalio.client import Client

from gradeloop.batches.contract import BatchSummary
from gradeloop.batches.reader import BatchReader
from gradeloop.client.client import GradingClient, open_thread
from gradeloop.client.listing import LATEST, threads
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import GradeloopError, InvalidRequest, ServerUnreachable, StoreUnavailable
from gradeloop.judges.contract import JudgeResult, PassGate
from gradeloop.judges.judgements import is_document, read_results
from gradeloop.judges.pass_rule import PassRule, gate_of_outputs, in_words, with_gate
from gradeloop.judges.sources import load_runs, parse_reference
from gradeloop.reports.collection_page import Head
from gradeloop.reports.judgement_page import JudgementSource, judgement_head, judgement_markdown, judgement_page
from gradeloop.reports.model import RunReport
from gradeloop.reports.read_batch import batch_page, report_of_file, stored_batch_page, threads_of
from gradeloop.reports.read_judgement import read_judgement_reports, read_question, read_stored_judgements, registered_name, stale_notes
from gradeloop.reports.read_thread import read_thread_report
from gradeloop.reports.run_page import run_page
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import connect, find
from gradeloop.text import clip, headline, percent

Kind = Literal["thread", "batch", "judgements"]


@dataclass(frozen=True)
class WantedPass:
    """What has to hold of judgements, as a command says it."""

    passes: tuple[str, ...] = ()
    """What passes one of them, as KEY=VALUE."""
    rate: float | None = None
    """The share of judged runs, 0 to 1, that has to pass; None where the command names none."""

    @property
    def named(self) -> bool:
        """True where the command says anything."""
        return bool(self.passes) or self.rate is not None


async def report_page(
    name: str, kind: Kind | None = None, runs: Sequence[str] = (), wanted: WantedPass = WantedPass(), *, markdown: bool = False
) -> str:
    """Return the page of what a name means.

    Args:
        name: An id, a file, or `latest`.
        kind: The kind of it, where the user says so; found out otherwise.
        runs: Files of runs that were judged, for their transcripts.
        wanted: What passes judgements; by default what their file or their judge says.
        markdown: Whether to return a summary as Markdown instead, which only judgements have here.

    Raises:
        GradeloopError: There is nothing of that name, or it cannot be read.
    """
    kind = kind or await _kind_of(name)
    if wanted.named and kind != "judgements":
        raise InvalidRequest(f"--pass and --pass-rate are for judgements, and {clip(name)} is a {kind}; leave them out")
    if markdown and kind != "judgements":
        batch = "BATCH" if _is_file(name) else shlex.quote(name)
        cure = f"gradeloop export {batch} -o summary.md writes that of a batch" if kind == "batch" else "name a file that ends in .html"
        raise InvalidRequest(f"a summary as Markdown is of judgements here, and {clip(name)} is a {kind}; {cure}")
    if kind == "thread":
        client, thread_id, _ = await open_thread(name)
        return run_page(await read_thread_report(client, thread_id))
    if kind == "judgements":
        return (judgement_markdown if markdown else judgement_page)(*await _judgements(name, runs, wanted))
    if _is_file(name):
        return batch_page(report_of_file(Path(name)))
    return await stored_batch_page(BatchReader(own_store()), name, threads_of)


async def _kind_of(name: str) -> Kind:
    """Find out what a name means: a file, a batch of the store, a thread of the server, or a judge with judgements."""
    if _is_file(name):
        return "judgements" if _names_judge(Path(name)) or _holds_judgements(Path(name)) else "batch"
    if name == LATEST:
        return "batch" if await _is_newest(await _stored_batch(LATEST)) else "thread"
    if await _stored_batch(name) is not None:
        return "batch"
    if await _is_thread(name):
        return "thread"
    if parse_reference(name) is not None:
        return "judgements"
    message = f"{clip(name)} is not a file, a batch in the store, a thread on the server, or a registered judge"
    raise InvalidRequest(f"{message}; `gradeloop batches list` and `gradeloop list` list what exists")


class JudgementStory(NamedTuple):
    """Judgements as their page and their summary show them."""

    head: Head
    reports: Sequence[RunReport]


async def _judgements(name: str, runs: Sequence[str], wanted: WantedPass) -> JudgementStory:
    results: Sequence[JudgeResult]
    if of_file := _is_file(name) and not _names_judge(Path(name)):
        results = _gated_file(read_results(Path(name)), wanted)
        judge = " and ".join(sorted({f"{result.rubric_id}, version {result.rubric_version}" for result in results}))
    else:
        stored = await read_stored_judgements(name)
        judge = stored.name
        gate = _gate_with_rate(PassRule(stored.judge, wanted.passes).gate(wanted.rate), wanted)
        results = [with_gate(result, gate) for result in stored.results]
    known = {run.id: run for run in await load_runs(runs, None)} if runs else {}
    temporal = None if all(result.agent_run_id in known for result in results) else await _connect_if_up()
    gate = results[0].gate if results else None
    known_as = name if not of_file else await registered_name(results[0]) if results else ""
    source = JudgementSource(name, is_file=of_file, gate=gate, judge=known_as, runs=tuple(runs))
    return await judgement_story(results, source, judge, known, temporal)


async def judgement_story(
    results: Sequence[JudgeResult], source: JudgementSource, judge: str, known: Mapping[str, AgentRun], temporal: Client | None
) -> JudgementStory:
    """Return judgements as their page shows them.

    Args:
        results: The judgements.
        source: Where they are from, and what passes them.
        judge: The judge's id and version, as the page names it.
        known: The judged runs that are known, by their ids.
        temporal: The server that is asked for the other runs; None asks none.
    """
    reports = await read_judgement_reports(results, known, temporal)
    stale = await stale_notes(results)
    asks = await read_question(results[0]) if results else ""
    about = {"rubric": judge, "judgements": f"{len(results):,}"}
    title = _title_of(source.name, judge, asks)
    if gate := source.gate:
        wanted = "" if gate.pass_rate is None else f"; {percent(gate.pass_rate)} wanted"
        about["passes"] = f"{', '.join(in_words(gate.pass_if))}{wanted}"
    question = asks.strip().removeprefix(title).strip()
    return JudgementStory(judgement_head(title, reports, about, list(stale.values()), question=question, source=source), reports)


def _gated_file(results: Sequence[JudgeResult], wanted: WantedPass) -> list[JudgeResult]:
    """Return the judgements of a file with the rule that a command names; without one, with the rule that they were written with."""
    own = results[0].gate
    gate: PassGate | None
    if wanted.passes:
        gate = gate_of_outputs([result.output for result in results], wanted.passes, wanted.rate)
    elif wanted.rate is None:
        return list(results)
    else:
        gate = own.model_copy(update={"pass_rate": wanted.rate}) if own else None
    return [with_gate(result, _gate_with_rate(gate, wanted)) for result in results]


def _gate_with_rate(gate: PassGate | None, wanted: WantedPass) -> PassGate | None:
    """Return the gate as it is.

    Raises:
        InvalidRequest: A rate is wanted, and nothing says what passes.
    """
    if gate is None and wanted.rate is not None:
        raise InvalidRequest("--pass-rate needs a rule for what passes; add --pass KEY=VALUE")
    return gate


TITLE_CHARACTERS = 100
"""The most characters of a judge's question that are its page's name."""

_MADE_UP = re.compile(r"rubric-[0-9a-f]{12}, version \d+")
"""The name of a judge that has none of its own."""


def _title_of(name: str, judge: str, asks: str) -> str:
    """Return the name of a page of judgements: the judge's own, else what it asks, else that of the file."""
    if not _MADE_UP.fullmatch(judge):
        return judge
    return headline(asks.strip().partition("\n")[0], TITLE_CHARACTERS) if asks.strip() else Path(name).stem


JUDGE_BYTES = 1_000_000
"""The largest JSON file that is looked at for a judge: a batch may have gigabytes."""

JUDGE_KEYS = frozenset({"rubric_text", "rubric", "criteria"})
"""The keys one of which every judge in a file has."""

RESULT_KEYS = frozenset({"schema", "cases", "agent_run_id"})
"""The keys one of which a batch, a case and a judgement have."""


def _is_file(name: str) -> bool:
    return Path(name).suffix.lower() in {".json", ".jsonl"} or Path(name).is_file()


def _names_judge(path: Path) -> bool:
    """True for a file that holds a judge rather than results: what is written by hand, or JSON with what a judge alone has."""
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


async def _stored_batch(name: str) -> BatchSummary | None:
    """Return a batch of the store; None where there is none of that name, or no store."""
    try:
        reader = BatchReader(own_store())
        return await reader.summary(name) if name == LATEST or await reader.has(name) else None
    except (InvalidRequest, StoreUnavailable):
        return None


async def _is_newest(batch: BatchSummary | None) -> bool:
    """True where a batch was begun after the newest thread that is none of its own."""
    if batch is None:
        return False
    with contextlib.suppress(GradeloopError):
        async for thread in threads(await connect(await find()), limit=1):
            return thread.thread_id.startswith(f"{batch.batch_id}/") or thread.started < datetime.fromisoformat(batch.created)
    return True


async def _is_thread(name: str) -> bool:
    """True where the server knows a thread of that name.

    Raises:
        ServerUnreachable: It does not answer, and the name can mean nothing else.
    """
    try:
        await GradingClient(await connect(await find())).task_queue_of(name)
    except ServerUnreachable:
        if parse_reference(name) is None:
            raise
        return False
    except GradeloopError:
        return False
    return True


async def _connect_if_up() -> Client | None:
    """Return a connection to the server of the judgements; None where it does not answer."""
    with contextlib.suppress(GradeloopError):
        return await connect(await find())
    return None
