"""Many finished runs judged at once: as a batch where there is a store, else by a workflow each; and the escalation judge that is asked."""

import asyncio
import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import NamedTuple, TypedDict, Unpack

from pydantic import JsonValue

from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import BATCH_PRIORITY, JUDGING_PREFIX, MAX_CASES, NO_STORE, BatchRequest, BatchSummary, Case
from gradeloop.batches.judged import judging_case
from gradeloop.batches.reader import PAGE, BatchReader
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.thread import Grader
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import BatchLost, InvalidRequest
from gradeloop.judges import chunks
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult, JudgingRequest, judging_id, refuse_unanswered
from gradeloop.judges.judgements import Label
from gradeloop.stats.decided import EarlyAnswer, UntilDecided
from gradeloop.store.engine import Store
from gradeloop.temporal.process import beside

CONCURRENCY = 50
"""Judgements that are open at the same time by default; the worker has limits of its own."""

READ_SECONDS = 0.25
"""The pause between two reads of the store."""

RESUMES = 3
"""Times that a batch is started again that another process has paused, or an earlier command was about to leave."""

PAUSE_SECONDS = 5.0
"""Seconds for which a command that is stopped waits for its batch to be paused."""

BY_A_PERSON = "paused by a person"


class RunVerdict(NamedTuple):
    """One result of `judge_many`, which sorts by run and repeat."""

    position: int
    """The run's position among the runs, from 0."""
    repeat: int
    """Number of this judgement of the run, from 0."""
    result: JudgeResult
    first: JudgeResult | None = None
    """The judge's own result, where it was unsure and an escalation judge was asked."""
    escalation: JudgeResult | None = None
    """The escalation judge's own judgement, where it was asked, also where that is a failure."""


class JudgementRequest(NamedTuple):
    """One judgement to make: a run, and the judge that it is asked of."""

    judge: Judge
    run: AgentRun
    repeat: int = 0
    """Number of this judgement of the run by this judge, from 0."""


@dataclass
class EarlyGoal:
    """The wish that no further run is judged once it is known whether enough pass, and the answer; of the rest there is no result."""

    until: UntilDecided | None = None
    """The end of judging; by default all are judged."""
    pass_rate: float = 1.0
    """The least share, 0 to 1."""
    decision: EarlyAnswer | None = None
    labels: tuple[Label, ...] = ()
    """The labels that correct the rate, where that decides."""


class MakeOptions(TypedDict, total=False):
    """Options of judging."""

    concurrency: int
    """The number that is open at the same time; 50 by default."""
    store: Store | None
    """The store that the worker writes to; by default each judgement has a workflow of its own."""
    budget: Budget | None
    """The budget of all together; those that it does not allow are failures that can be run again."""
    chunk: bool
    """Whether a run that is too long to be shown whole is judged in parts, with a last call that is shown what was found in them."""
    retry: bool
    """Whether failures for which the judge's answers stayed invalid are judged again; those without an answer always are."""
    gate: EarlyGoal
    """The goal after which no further run is judged; not with `chunk`."""


@dataclass
class _Wanted:
    """A judgement that is wanted, once or, where runs are given twice, in several places."""

    judge: Judge
    request: JudgingRequest
    places: list[int] = field(default_factory=list)


async def judge_many(
    judge: Judge, runs: Sequence[AgentRun], on_result: Callable[[RunVerdict], object], *, repeats: int = 1, **options: Unpack[MakeOptions]
) -> None:
    """Judge every run, several at the same time; when this is cancelled, judgements in flight go on at the server.

    What the judge is unsure of is asked anew of the model that its `escalate` names, within the same budget.
    With a store the judgements are a batch: what was asked before, by any judge, about the same content comes from the cache of verdicts.
    A judgement that needs tools, checks or a second round, or is too large for a case, has a workflow of its own.

    `on_result`: called with each result as soon as it is there, in no particular order.
    `options`: see `MakeOptions`.

    Raises:
        GradeloopError: A run is refused, or the server stays unreachable.
    """
    rows = [(position, repeat) for position in range(len(runs)) for repeat in range(repeats)]
    if (until := options.get("gate", EarlyGoal()).until) is not None:
        random.Random(until.seed).shuffle(rows)  # noqa: S311 - an order that can be had again
        # Runs with a label come first: their verdicts measure the judge's error, without which no rate can be
        # corrected, however many others are judged.
        labelled = {label.agent_run_id for label in options["gate"].labels}
        rows.sort(key=lambda row: runs[row[0]].id not in labelled)
        first = sum(runs[position].id in labelled for position, _ in rows)
        options["gate"].until = until.model_copy(update={"first": first})
    wanted = [JudgementRequest(judge, runs[position], repeat) for position, repeat in rows]
    second = escalation_judge(judge.config)
    escalation = None if second is None else Judge(second, await judge.connected(), task_queue=judge.task_queue, priority=judge.priority)
    unsure, spent = dict[int, JudgeResult](), dict[str, Usage]()

    def report(at: int, result: JudgeResult) -> None:
        # A run that is given twice is judged once and reported twice. By its id the cost counts once.
        spent[result.id] = result.usage
        if escalation is not None and result.unsure:
            unsure[at] = result
        else:
            on_result(RunVerdict(*rows[at], result))

    await make_judgements(wanted, report, **options)
    used, places, budget = sum(spent.values(), Usage()), list(unsure), options.get("budget")
    refusal = budget.refusal(used) if budget else None
    if escalation is None or refusal is not None:
        for at in places:
            on_result(RunVerdict(*rows[at], not_escalated(unsure[at], str(refusal), again=True), unsure[at]))
        return
    asked = [JudgementRequest(escalation, wanted[at].run, wanted[at].repeat) for at in places]

    def report_escalated(number: int, result: JudgeResult) -> None:
        at = places[number]
        on_result(RunVerdict(*rows[at], decided_by(unsure[at], result), unsure[at], result))

    options["budget"], options["gate"] = _rest_of(budget, used), EarlyGoal()
    await make_judgements(asked, report_escalated, **options)


async def make_judgements(
    judgements: Sequence[JudgementRequest], on_result: Callable[[int, JudgeResult], object], **options: Unpack[MakeOptions]
) -> None:
    """Make judgements of one or several judges, as `judge_many` does; the judges share client, task queue and priority.

    Args:
        judgements: What is asked of whom; in random order where there is a `gate`.
        on_result: Called with the position of a judgement, from 0, and its result as soon as it is there, in no particular order.
        options: See `MakeOptions`.

    Raises:
        GradeloopError: A run is refused, or the server stays unreachable.
    """
    if not judgements:
        return
    if options.pop("chunk", False) and (chunked := _in_parts(judgements)):
        await _make_in_parts(judgements, chunked, on_result, options)
        return
    store, budget, gate = options.get("store"), options.get("budget"), options.get("gate", EarlyGoal())
    concurrency, retry = options.get("concurrency", CONCURRENCY), options.get("retry", False)
    judge, wanted = judgements[0].judge, await _wanted(judgements)
    found = _Results(wanted, on_result)
    cases = {name: case for name, one in wanted.items() if store is not None and (case := judging_case(one.request)) is not None}
    alone = [name for name in wanted if name not in cases]
    if gate.until is not None and not len(cases) == len(judgements) <= MAX_CASES:
        what = "a run is given twice or too long, or the judge has tools, checks or reflections"
        raise InvalidRequest(f"--until decided: leave it out, since {what}, so that not all judgements are cases of one batch")
    # A batch needs a store that caller and worker share. Where the worker has none, or another one, each
    # judgement gets a workflow of its own. An early answer cannot be had so, since it is found over the cases of
    # one batch.
    if store is not None and 0 < len(cases) <= MAX_CASES:
        try:
            await _JudgingBatch(judge, BatchReader(store), cases, found, retry=retry, gate=gate).run(concurrency, budget)
        except _NoStoreAtWorkerError:
            if gate.until is not None:
                raise InvalidRequest("--until decided: the worker has no store; set GRADELOOP_STORE there, or leave the flag out") from None
            alone = list(wanted)
    await _judge_alone({name: wanted[name] for name in alone}, found, concurrency, budget, retry=retry)


class _InParts:
    """A judgement of a run in parts."""

    def __init__(self, wanted: JudgementRequest, parts: list[chunks.RunPart]) -> None:
        self.wanted = wanted
        self.parts = parts
        self.results: dict[int, JudgeResult] = {}
        """The judgements of its parts, by their indexes."""
        self.name = chunks.chunked_id(wanted.judge.config, wanted.run.sha256(), wanted.repeat, priority=wanted.judge.priority)

    def asked(self) -> list[JudgementRequest]:
        """Return the judgements of its parts."""
        judge = _with_config(self.wanted.judge, chunks.judge_of_parts(self.wanted.judge.config))
        return [JudgementRequest(judge, part.run, self.wanted.repeat) for part in self.parts]

    def last(self) -> JudgementRequest:
        """Return the last judgement, which is shown what was found in the parts."""
        judge, run, repeat = self.wanted
        shown = chunks.findings_run(judge.config, run, self.parts, self._ordered())
        return JudgementRequest(_with_config(judge, chunks.judge_of_findings(judge.config)), shown, repeat)

    def failure(self, refusal: str | None = None) -> JudgeResult | None:
        """Return the failure of a run of which a part was not judged, or whose last call is refused; None for no failure."""
        found = chunks.failure_of_parts(self._ordered())
        if found is None and refusal is None:
            return None
        spent = sum((result.usage for result in self.results.values()), Usage())
        reason, usage, again = found or (f"not judged: {refusal}", spent, True)
        failed = self.wanted.judge.failed(self.name, self.wanted.run, reason, usage)
        return failed.model_copy(update={"result_metadata": failed.result_metadata | {"again": again}})

    def whole(self, shown: AgentRun, found: JudgeResult) -> JudgeResult:
        """Return the judgement of the whole run, by what the last call says."""
        result = chunks.judgement_of_whole(self.name, self.wanted.run, self.parts, self._ordered(), (shown, found))
        return self.wanted.judge.named(result, self.wanted.run)

    def _ordered(self) -> list[JudgeResult]:
        return [self.results[at] for at in range(len(self.parts))]


def _with_config(judge: Judge, config: JudgeConfig) -> Judge:
    return Judge(config, judge.client, task_queue=judge.task_queue, priority=judge.priority)


def _in_parts(judgements: Sequence[JudgementRequest]) -> dict[int, _InParts]:
    """Return the judgements of runs that are too long to be shown whole, by their positions."""
    parts: dict[tuple[int, int], list[chunks.RunPart]] = {}
    found: dict[int, _InParts] = {}
    for at, one in enumerate(judgements):
        key = (id(one.run), id(one.judge))
        if key not in parts:
            refuse_unanswered(one.run)  # its parts are judged, too, of which not all have the answer
            parts[key] = chunks.parts_of(one.judge.config, one.run) if chunks.is_too_long(one.run) else []
        if parts[key]:
            found[at] = _InParts(one, parts[key])
    return found


async def _make_in_parts(
    judgements: Sequence[JudgementRequest],
    chunked: Mapping[int, _InParts],
    on_result: Callable[[int, JudgeResult], object],
    options: MakeOptions,
) -> None:
    """Make judgements of which some are made in parts: first all parts and all other judgements, then the last calls."""
    asked: list[JudgementRequest] = []
    targets: list[tuple[int, int]] = []
    for at, one in enumerate(judgements):
        made = chunked[at].asked() if at in chunked else [one]
        asked += made
        targets += [(at, number) for number in range(len(made))]
    spent: dict[str, Usage] = {}

    def report(position: int, result: JudgeResult) -> None:
        at, number = targets[position]
        spent[result.id] = result.usage
        if at in chunked:
            chunked[at].results[number] = result
        else:
            on_result(at, result)

    await make_judgements(asked, report, **options)
    used, budget = sum(spent.values(), Usage()), options.get("budget")
    refusal = budget.refusal(used) if budget else None
    due: list[int] = []
    for at, planned in chunked.items():
        if (failed := planned.failure(refusal)) is not None:
            on_result(at, failed)
        else:
            due.append(at)
    last = [chunked[at].last() for at in due]

    def report_last(position: int, result: JudgeResult) -> None:
        on_result(due[position], chunked[due[position]].whole(last[position].run, result))

    if last:
        options["budget"] = _rest_of(budget, used)
        await make_judgements(last, report_last, **options)


def _rest_of(budget: Budget | None, spent: Usage) -> Budget | None:
    """Return the rest of a budget that is not used up."""
    if budget is None:
        return None
    tokens, cost = budget.max_tokens, budget.max_cost_usd
    left_tokens = None if tokens is None else tokens - (spent.tokens or 0)
    return Budget(max_tokens=left_tokens, max_cost_usd=None if cost is None else cost - (spent.cost_usd or 0))


async def _wanted(judgements: Sequence[JudgementRequest]) -> dict[str, _Wanted]:
    """Return the judgements by their ids; a run that is given twice is judged once."""
    wanted: dict[str, _Wanted] = {}
    shas: dict[int, str] = {}
    for place, (judge, run, repeat) in enumerate(judgements):
        if id(run) not in shas:
            shas[id(run)] = run.sha256()
        name = judging_id(judge.config, shas[id(run)], repeat, priority=judge.priority)
        if name not in wanted:
            wanted[name] = _Wanted(judge, await judge.request(run, repeat=repeat))
        wanted[name].places.append(place)
    return wanted


class _Results:
    """The results that were reported."""

    def __init__(self, wanted: Mapping[str, _Wanted], on_result: Callable[[int, JudgeResult], object]) -> None:
        self._wanted = wanted
        self._on_result = on_result
        self.reported: set[str] = set()
        self.spent = Usage()

    def report(self, name: str, result: JudgeResult) -> None:
        """Report a result, in every place where it is wanted, once."""
        if name in self.reported:
            return
        self.reported.add(name)
        self.spent += result.usage
        one = self._wanted[name]
        for place in one.places:
            self._on_result(place, one.judge.named(result, one.request.run))

    def report_failure(self, name: str, reason: str) -> None:
        """Report that a judgement was not made."""
        self.report(name, self._wanted[name].judge.failed(name, self._wanted[name].request.run, reason))


class _NoStoreAtWorkerError(Exception):
    """The worker has no store, or another one: judgements need a workflow each."""


class _JudgingBatch:
    """Judgements as a batch, whose id is made of them: the same judgements are the same batch."""

    def __init__(
        self, judge: Judge, reader: BatchReader, cases: Mapping[str, Case], found: _Results, *, retry: bool, gate: EarlyGoal
    ) -> None:
        self._judge = judge
        self._gate = gate
        self._retry = retry
        self._reader = reader
        self._cases = cases
        self._found = found
        early = [f"{gate.until} {gate.pass_rate}", *map(str, gate.labels)] if gate.until else []
        names = "\n".join([version("gradeloop"), judge.task_queue, *early, *cases])
        self._batch_id = f"{JUDGING_PREFIX}{hashlib.sha256(names.encode()).hexdigest()[:32]}"
        self._after = 0

    async def run(self, concurrency: int, budget: Budget | None) -> None:
        """Judge, and report every result.

        Raises:
            _NoStoreAtWorkerError: Nothing was paid for yet.
            InvalidRequest: The worker refuses the judge.
            ServerUnreachable: The server is gone for long.
        """
        batches = BatchClient(await self._judge.connected(), self._judge.task_queue)
        await self._upload(batches)
        request = BatchRequest(
            batch_id=self._batch_id,
            total=len(self._cases),
            name=f"judge {self._judge.config.rubric_id}"[:200],
            at_once=min(concurrency, 1000),
            budget=budget,
            max_error_rate=1,
            asks=any(case.asks for case in self._cases.values()),
            again="invalid" if self._retry else "errors",
            until_decided=self._gate.until,
            pass_rate=self._gate.pass_rate,
            labels=self._gate.labels,
            priority=self._judge.priority or BATCH_PRIORITY,
        )
        self._judge.in_flight[self._batch_id] = None
        try:
            # A batch that ended early has left judgements out on purpose. To start it again would ask them after all, so
            # its results are only read.
            known = await self._reader.summary(self._batch_id) if await self._reader.has(self._batch_id) else None
            is_over = known is not None and known.decided is not None and not (known.errors or self._retry)
            summary = known if known is not None and is_over else await self._follow(batches, request)
        except asyncio.CancelledError:
            with suppress(Exception):  # the batch begins no further judgement
                await asyncio.shield(asyncio.wait_for(batches.pause(self._batch_id), PAUSE_SECONDS))
            raise
        except InvalidRequest as error:
            raise self._named(error) from None
        finally:
            self._judge.in_flight.pop(self._batch_id, None)
        await self._report_rest(summary)
        self._gate.decision = summary.decided

    async def _upload(self, batches: BatchClient) -> None:
        """Store the cases, unless they are stored already."""
        if await self._reader.count_cases(self._batch_id) == len(self._cases):
            return
        try:
            tenant = self._judge.priority.tenant if self._judge.priority else None
            await batches.upload(self._batch_id, self._cases.values(), tenant=tenant)
        except InvalidRequest as error:
            if str(error).startswith(NO_STORE):
                raise _NoStoreAtWorkerError from None
            raise self._named(error) from None
        if await self._reader.count_cases(self._batch_id) != len(self._cases):
            raise _NoStoreAtWorkerError

    def _named(self, error: InvalidRequest) -> InvalidRequest:
        """Return the refusal of a case with the id of its run, which is what a caller knows."""
        for case in self._cases.values():
            if case.judging is not None and (named := f"the case {case.id!r}: ") in str(error):
                return InvalidRequest(str(error).replace(named, f"the run {case.judging.run.id!r}: "))
        return error

    async def _follow(self, batches: BatchClient, request: BatchRequest) -> BatchSummary:
        """Run the batch, or go on with it, and report results as they come; return its summary once it has ended or is paused."""
        resumed = 0
        if self._retry and (known := await batches.queue_of(self._batch_id)) is not None and known[1]:
            with suppress(BatchLost):  # another command's: what it leaves invalid is made again after it
                await batches.result(self._batch_id)
        while True:
            await batches.start(request)
            try:
                async with beside(batches.result(self._batch_id)) as (ending,):
                    while not ending.done():
                        await asyncio.wait([ending], timeout=READ_SECONDS)
                        await self._report_ended()
                    summary: BatchSummary = await ending
            except BatchLost as error:
                summary = (await self._reader.summary(self._batch_id)).model_copy(update={"reason": str(error)})
            # A retry asks invalid answers anew in the first start only. A resumption that did so, too, would pay for them
            # again each time.
            resumed, request = resumed + 1, request.model_copy(update={"again": "errors"})
            if summary.reason != BY_A_PERSON or resumed > RESUMES:
                return summary

    async def _report_ended(self) -> None:
        """Report the judgements that ended since the last read; those that may be judged again come at the end."""
        while True:
            results, self._after = await self._reader.ended_since(self._batch_id, self._after)
            for result in results:
                judged = result.judgement
                if judged is not None and not (judged.failed and (self._retry or judged.result_metadata.get("again"))):
                    self._report(result.id, judged)
            if len(results) < PAGE:
                return

    async def _report_rest(self, summary: BatchSummary) -> None:
        """Report what was not reported while the batch ran."""
        await self._report_ended()
        if self._found.reported.issuperset(self._cases):
            return
        for result in await asyncio.to_thread(lambda: list(self._reader.results(self._batch_id))):
            if summary.decided is not None and result.status == "queued":
                continue
            if result.judgement is not None:
                self._report(result.id, result.judgement)
            elif result.status == "error":
                self._found.report_failure(result.id, result.error or "it ended without a result")
            else:
                self._found.report_failure(result.id, f"not judged: {summary.reason or summary.status}")

    def _report(self, name: str, judgement: JudgeResult) -> None:
        self._found.report(name, judgement.model_copy(update={"batch_id": self._batch_id}))


async def _judge_alone(wanted: Mapping[str, _Wanted], found: _Results, concurrency: int, budget: Budget | None, *, retry: bool) -> None:
    """Judge by a workflow each; within a budget, none is begun once it is used up."""
    slots = asyncio.Semaphore(concurrency)

    async def judge_one(name: str, one: _Wanted) -> None:
        async with slots:
            refusal = budget.refusal(found.spent) if budget is not None else None
            if refusal is not None:
                found.report_failure(name, f"not judged: {refusal}")
                return
            result = await one.judge(one.request.run, repeat=one.request.repeat, retry=retry)
        found.report(name, result)

    async with beside(*(judge_one(name, one) for name, one in wanted.items())) as tasks:
        await asyncio.gather(*tasks)


def escalation_judge(judge: JudgeConfig) -> JudgeConfig | None:
    """Return the judge that is asked anew of what this one is unsure of: the same question to the model of `escalate`; None without one."""
    if judge.escalate is None:
        return None
    same = {"id": judge.rubric_id, "abstain": None, "escalate": None}
    if isinstance(judge, CriteriaJudge):
        return judge.model_copy(update=same | {"grader": (judge.grader or Grader()).model_copy(update={"model": judge.escalate})})
    alone = {"judge_model": judge.escalate, "panel": None, "quorum": None, "n_rollouts_per_input": 1, "judge_variant": "majority"}
    return judge.model_copy(update=same | alone)


def decided_by(first: JudgeResult, escalation: JudgeResult) -> JudgeResult:
    """Return what becomes of an unsure judgement once the escalation judge was asked: its answer, or the first one where it gave none."""
    usage = first.usage + escalation.usage
    about = {"usage": usage, "attempts": usage.attempts}
    if escalation.failed:
        reason = str(escalation.result_metadata.get("reason") or "the escalation judge gave no answer")
        return not_escalated(first.model_copy(update=about), reason, again=bool(escalation.result_metadata.get("again")))
    return escalation.model_copy(update=about | {"escalated_from": first.id})


def not_escalated(first: JudgeResult, reason: str, *, again: bool) -> JudgeResult:
    """Return an unsure judgement that stays one, for a reason, whether or not the same command asks the escalation judge again."""
    about: dict[str, JsonValue] = {"escalation": reason, "escalation_again": again}
    return first.model_copy(update={"result_metadata": first.result_metadata | about})
