"""A gate that knows the judge's error: the pass rate of judgements, or of a batch, corrected by labels, against a threshold."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import TYPE_CHECKING

from gradeloop.batches.contract import CONCURRENCY, BatchRequest, BatchSummary, Case, CaseResult
from gradeloop.batches.reader import BatchReader
from gradeloop.errors import explained
from gradeloop.judges.contract import JudgeConfig, JudgeResult
from gradeloop.judges.judgements import Label, comparable, select_judgements
from gradeloop.judges.pass_rule import Rule, passes_rule, rule_of
from gradeloop.stats.correction import GatedRate, deciding_passes, hold_verdicts
from gradeloop.stats.decided import EarlyGate, UntilDecided, share_asked
from gradeloop.stats.reliability import Rated
from gradeloop.text import counted

if TYPE_CHECKING:  # loads SQLAlchemy
    from gradeloop.judges.registry import JudgeRegistry


def rated_judgements(
    judge: JudgeConfig, rule: Rule, labels: Sequence[Label], results: Iterable[JudgeResult], stored: Sequence[JudgeResult]
) -> tuple[list[Rated], list[Rated]]:
    """Return what judge and people say of results, and of labelled runs that only the judge's stored results have.

    `rule`: what passes, of a label and of an output alike; a label that lacks a key of it says nothing.
    """
    people: dict[str, list[bool]] = {}
    for label in labels:
        if (said := passes_rule(rule, label.label_value)) is not None:
            people.setdefault(label.agent_run_id, []).append(said)
    clusters = {label.agent_run_id: label.cluster for label in labels}

    def rated(run: str, result: JudgeResult) -> Rated:
        return Rated(_verdict(judge, rule, result), tuple(people.get(run, ())), clusters.get(run, ""))

    verdicts, earlier = {result.agent_run_id: rated(result.agent_run_id, result) for result in results}, select_judgements(judge, stored)
    known = [rated(run, found) for run in clusters if run not in verdicts and (found := earlier.verdict(run)) is not None]
    return list(verdicts.values()), known


def _verdict(judge: JudgeConfig, rule: Rule, result: JudgeResult) -> bool | None:
    return None if result.failed or result.unsure else passes_rule(rule, comparable(judge, result.output))


EARLIER_BATCHES = 50
"""The newest batches of the suite in which labelled outputs are looked for."""

READ_BATCHES = 200
"""The newest batches that are looked through for those of the suite."""

Output = tuple[str, str]
"""A case's id, and the digest of what it said."""


async def gate_batch(reader: BatchReader, summary: BatchSummary, labels: Sequence[Label], threshold: float | None) -> GatedRate:
    """Return the pass rate of a batch, corrected by labels.

    A label counts for the output that it names, wherever this batch or an earlier one of the same suite asked the same of it: the same
    rubric and conversation, judged by the same model.

    `threshold`: the least rate, 0 to 1; None to decide nothing.
    """
    rows, known = await _rated(reader, summary.batch_id, summary.name, labels)
    return hold_verdicts(rows, threshold, known)


async def corrected_gate(reader: BatchReader, request: BatchRequest, registry: "JudgeRegistry") -> EarlyGate:
    """Return the gate of a rate that labels correct, for the cases behind those that may have labels, which have ended."""
    until = request.until_decided or UntilDecided()
    if until.pass_if is None:
        rows, known = await _rated(reader, request.batch_id, request.name, request.labels, until.first)
    else:
        rows, known = await _rated_runs(reader, request, registry, until)
    free = [row for row in rows if not row.labels and row.judged is not None]
    found, rest = hold_verdicts(rows, None, known), request.total - until.first
    worth = found.error.worth(*found.worth[1:])
    least, most = await asyncio.to_thread(deciding_passes, len(free) + rest, worth, request.pass_rate)
    passed = sum(row.judged is True for row in free)
    return EarlyGate(rest, request.pass_rate, until.risk, bounds=(least - passed, most - passed), seen=until.first)


async def _rated_runs(
    reader: BatchReader, request: BatchRequest, registry: "JudgeRegistry", until: UntilDecided
) -> tuple[list[Rated], list[Rated]]:
    """Return what judge and people say of the first runs of a batch of judgements, and of labelled runs that were judged before."""
    names = await asyncio.to_thread(lambda: [result.id for result in islice(reader.results(request.batch_id), until.first or 1)])
    cases = await reader.cases_named(request.batch_id, names)
    if (asked := cases[0][0].judging) is None:
        raise ValueError(f"{request.batch_id}: its cases are not judgements")
    rule, stored = rule_of(asked.judge.output_schema, until.pass_if or {}), await registry.judgements(asked.judge, newest_first=True)
    results = [result.judgement for _, result in cases[: until.first] if result.judgement is not None]
    return rated_judgements(asked.judge, rule, request.labels, results, stored)


async def _rated(
    reader: BatchReader, batch_id: str, name: str | None, labels: Sequence[Label], first: int | None = None
) -> tuple[list[Rated], list[Rated]]:
    """Return what judge and people say of the first cases of a batch, or all, and of labelled outputs that earlier batches have."""
    people: dict[Output, list[bool]] = {}
    for label in labels:
        if (status := label.label_value.get("status")) is not None:
            people.setdefault((label.agent_run_id, digest(label.output)), []).append(status == "passed")
    verdicts = await asyncio.to_thread(_verdicts, reader, batch_id, first)
    known = await _earlier_verdicts(reader, batch_id, name, people.keys() - verdicts.keys())

    def rated(said: Mapping[Output, CaseResult]) -> list[Rated]:
        return [Rated(one.status == "passed", tuple(people.get(output, ())), one.base_id) for output, one in said.items()]

    return rated(verdicts), rated(known)


def digest(output: str | None) -> str:
    """Return the digest of an output by which it is compared; that of a digest is the same."""
    text = output or ""
    return text if _DIGEST.fullmatch(text) else f"sha256:{hashlib.sha256(text.encode(errors='replace')).hexdigest()}"


_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _verdicts(reader: BatchReader, batch_id: str, first: int | None) -> dict[Output, CaseResult]:
    return {(result.id, digest(result.output)): result for result in islice(reader.results(batch_id), first) if _is_judged(result)}


async def _earlier_verdicts(reader: BatchReader, batch_id: str, name: str | None, wanted: AbstractSet[Output]) -> dict[Output, CaseResult]:
    """Return the judge's results on outputs in earlier batches of the suite, the newest first."""
    # A label is about an output and not about a case. An earlier verdict on the same output measures this
    # judge only if it was asked the same: the rubric, the conversation and the judging model are compared,
    # and the newest such verdict counts. A verdict of another model, or by an older rubric, would measure the
    # error of another judge.
    names = sorted({name for name, _ in wanted})
    asked = {case.id: (_question(case), result.grader) for case, result in await reader.cases_named(batch_id, names)}
    known: dict[Output, CaseResult] = {}
    found = await reader.summaries(READ_BATCHES) if asked else ()
    earlier = [batch for batch in found if batch.name == name and batch.batch_id != batch_id]
    for batch in earlier[:EARLIER_BATCHES]:
        for case, result in await reader.cases_named(batch.batch_id, [name for name in names if name in asked]):
            question, grader = asked[case.id]
            same = _question(case) == question and grader in {None, result.grader}
            if same and _is_judged(result) and (output := (case.id, digest(result.output))) in wanted:
                known.setdefault(output, result)
    return known


def _question(case: Case) -> str:
    """Return what is asked of a case's output, as JSON."""
    return case.model_dump_json(include={"rubric", "grader", "messages", "images", "transforms", "abstain", "escalate"})


def _is_judged(result: CaseResult) -> bool:
    return result.status in {"passed", "failed"}


def wish_of(risk: float | None, seed: int | None, **more: object) -> UntilDecided:
    """Return the wish that flags name: without a risk the usual one, without a seed a new one."""
    given = {"seed": secrets.randbelow(2**32) if seed is None else seed} | ({} if risk is None else {"risk": risk}) | more
    with explained():
        return UntilDecided.model_validate(given)


LABEL_BYTES = 1_000_000
"""The most bytes of labels in a batch's request, for a rate that decides early: Temporal takes 2 MB, some 10,000 labels."""


def sent_labels(labels: Sequence[Label]) -> tuple[Label, ...] | None:
    """Return labels as a batch's request has them, with digests of outputs; None where they are too large."""
    sent = tuple(one.model_copy(update={"output": one.output and digest(one.output), "reason": ""}) for one in labels)
    return sent if sum(len(one.model_dump_json()) for one in sent) <= LABEL_BYTES else None


def few_at_once(total: int) -> int:
    """Return how many calls of so many cases are made at once where an answer may come early: a twentieth, 5 at least."""
    return min(CONCURRENCY, max(5, total // 20))


def expectation(request: BatchRequest) -> str:
    """Return the share of a batch's cases that is expected to be asked, for some rates at which they may pass."""
    wanted, risk = request.pass_rate, request.until_decided.risk if request.until_decided else None
    if request.baseline is not None and request.until_decided is not None:
        may = request.until_decided.first
        some = ", ".join(f"{round((may + 1) / (fell + 1)):,} if {fell} {'does' if fell == 1 else 'do'}" for fell in (1, 5) if fell <= may)
        asked = f"{counted(request.total, 'case')}, {may:,} of which passed in {request.baseline}"
        return f"{asked}; expected to ask {round(may * share_asked(may, 1.0, 1.0, risk or 0)):,} if none regresses, {some}"
    asked = f"{counted(request.total, 'case')}, {100 * wanted:.4g}% wanted"
    if risk is None:
        return f"{asked}; all are asked"
    return f"{asked}; {expected_shares(request.total, wanted, risk)}"


def expected_shares(total: int, wanted: float, risk: float, verb: str = "ask") -> str:
    """Return the share that is expected to be asked until it is known whether the wanted share passes, for some rates."""
    rates = {round(wanted + (1 - wanted) * part, 3) for part in (0.7, 0.3, 0)} | ({0.97} if wanted == 1 else set())
    shares = (f"{share_asked(total, wanted, rate, risk):.0%} if {100 * rate:.4g}% pass" for rate in sorted(rates, reverse=True))
    return f"expected to {verb} {', '.join(shares)}"
