"""A rubric as a reward function for training: batched and cached, and without a verdict no reward, which is None and never 0."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, MutableMapping, Sequence
from math import nan
from typing import Any, Protocol

from pydantic import JsonValue, ValidationError

from gradeloop.batches.judge_many import CONCURRENCY, RunVerdict, judge_many
from gradeloop.client.loop_thread import LoopThread
from gradeloop.contract.base import Strict
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.transcript import AgentRun, RunMessage, RunTranscript
from gradeloop.errors import GradeloopError, InvalidRequest
from gradeloop.judges.client import Judge, served_judge
from gradeloop.judges.contract import JudgeConfig, JudgeResult, SchemaJudge, parse_judge
from gradeloop.judges.sources import with_model
from gradeloop.store.engine import Store, own_store
from gradeloop.temporal.connect import Connection, done_before, keep_worker_alive, wake_worker
from gradeloop.transcripts.json_access import UnreadableMessage
from gradeloop.transcripts.message_forms import parse_messages

BATCH_SECONDS = 0.05
"""Seconds that a completion waits for others to be judged with it."""

CACHED = 10_000
"""The verdicts that are kept in memory; older ones are read from the server or the store."""

Chat = Sequence[Mapping[str, JsonValue]]


class VerifiersMessage(Protocol):
    """A message of verifiers' v1, a pydantic model."""

    def model_dump(self, *, mode: str, exclude_none: bool) -> dict[str, Any]:
        """Return it as JSON-like data."""


class VerifiersTrace(Protocol):
    """The part that is read of a trace of verifiers' v1, `verifiers.v1.Trace`."""

    info: dict[str, Any]

    @property
    def messages(self) -> Sequence[VerifiersMessage]:
        """The messages of the final branch, the task's first."""

    @property
    def assistant_messages(self) -> Sequence[VerifiersMessage]:
        """Those that the model wrote."""


class GradedCompletion(Strict):
    """A completion's reward, and the rows that it comes from."""

    reward: float | None
    """The score, 0 to 1; None where there is no verdict."""
    rows: tuple[dict[str, JsonValue], ...] = ()
    """A row for each criterion: id, name, passed, reason, gap; empty for a judge with a schema of its own."""
    judgement_id: str | None = None
    no_verdict: str | None = None
    """Reason that there is no reward; it says nothing about the completion."""


class RewardFunction:
    """Result of `gradeloop.reward`: `await reward(prompt, completion)` is the score, or None."""

    def __init__(self, judge: JudgeConfig, *, concurrency: int = CONCURRENCY) -> None:
        score = judge.output_schema.get("properties", {}).get("score")
        if isinstance(judge, SchemaJudge) and not (isinstance(score, dict) and score.get("type") in {"number", "integer"}):
            raise InvalidRequest(f"the judge {judge.rubric_id!r} has no number 'score' in its output_schema; add one, or give criteria")
        self.judge = judge
        self.concurrency = concurrency
        self._thread: LoopThread | None = None
        self._pending: list[tuple[AgentRun, asyncio.Future[GradedCompletion]]] = []
        self._verdicts: OrderedDict[str, GradedCompletion] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._alone: asyncio.Lock | None = None
        self._ready: tuple[Judge, Connection, Store | None] | None = None

    async def __call__(self, prompt: str | Chat, completion: str | Chat) -> float | None:
        """Return the score of a completion, 0 to 1; None where there is no verdict."""
        return (await self.graded(prompt, completion)).reward

    async def graded(self, prompt: str | Chat, completion: str | Chat) -> GradedCompletion:
        """Return a completion's reward with the rows that it comes from; raise InvalidRequest where the judge is refused."""
        return await asyncio.wrap_future(self._loop().submit(self._graded(prompt, completion)))

    def trl_reward(self, prompts: Sequence[str | Chat], completions: Sequence[str | Chat], **_: object) -> list[float | None]:
        """Return the rewards of a batch, as TRL's `reward_funcs` do; it leaves out a completion whose reward is None."""

        async def all_of_them() -> list[GradedCompletion]:
            return await asyncio.gather(*map(self._graded, prompts, completions))

        return [graded.reward for graded in self._loop().run(all_of_them())]

    async def verifiers_reward(self, prompt: str | Chat, completion: str | Chat, state: MutableMapping[str, object]) -> float:
        """Return a rollout's reward, as `Rubric(funcs=[...])` of verifiers took it before v1; the rows are put into `state["gradeloop"]`.

        Without a verdict the reward is NaN: verifiers turns None and exceptions into 0, which would be a grade.
        """
        try:
            graded = await self.graded(prompt, completion)
        except GradeloopError as error:
            graded = GradedCompletion(reward=None, no_verdict=str(error))
        state["gradeloop"] = graded.model_dump(mode="json")
        return nan if graded.reward is None else graded.reward

    async def verifiers_task_reward(self, trace: VerifiersTrace) -> float:
        """Return a trace's reward, for a method `@vf.reward` of a task of verifiers' v1, and put the rows into `trace.info["gradeloop"]`.

        Raises:
            GradeloopError: There is no verdict. verifiers then leaves the trace without a reward or grade.
        """
        messages, written = trace.messages, {id(message) for message in trace.assistant_messages}  # none of the prompt's
        begins = next((at for at, message in enumerate(messages) if id(message) in written), len(messages))
        graded = await self.graded([*map(_as_openai, messages[:begins])], [*map(_as_openai, messages[begins:])])
        trace.info["gradeloop"] = graded.model_dump(mode="json")
        if graded.reward is None:
            raise GradeloopError(f"no verdict: {graded.no_verdict}")
        return graded.reward

    def _loop(self) -> LoopThread:
        """Return the thread that judges, whichever event loops the callers have."""
        if self._thread is None:
            self._thread = LoopThread()
        return self._thread

    async def _graded(self, prompt: str | Chat, completion: str | Chat) -> GradedCompletion:
        try:
            run = completion_run(prompt, completion)
        except (InvalidRequest, UnreadableMessage, ValidationError) as error:
            return GradedCompletion(reward=None, no_verdict=str(error))
        key = run.sha256()
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
            return self._verdicts[key]
        future: asyncio.Future[GradedCompletion] = asyncio.get_running_loop().create_future()
        self._pending.append((run, future))
        if len(self._pending) == 1:
            task = asyncio.create_task(self._judge_pending())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await future

    async def _judge_pending(self) -> None:
        """Judge what has come together; whatever happens, everybody who waits gets an answer."""
        await asyncio.sleep(BATCH_SECONDS)
        waiting, self._pending = self._pending, []
        try:
            await self._judge_batch(waiting)
        except InvalidRequest as error:
            for _, future in waiting:
                if not future.done():
                    future.set_exception(InvalidRequest(str(error)))
        except GradeloopError as error:
            _answer_rest(waiting, str(error))
        finally:
            _answer_rest(waiting, "the judgement ended without a result")

    async def _judge_batch(self, waiting: Sequence[tuple[AgentRun, "asyncio.Future[GradedCompletion]"]]) -> None:
        judge, connection, store = await self._connected()
        judged: list[tuple[AgentRun, asyncio.Future[GradedCompletion]]] = []
        for run, future in waiting:
            try:
                await judge.request(run)
            except InvalidRequest as error:  # an empty or too large completion, which refuses no other
                future.set_result(GradedCompletion(reward=None, no_verdict=str(error)))
            else:
                judged.append((run, future))

        def report(row: RunVerdict) -> None:
            run, future = judged[row.position]
            found = graded_completion(row.result)
            if found.reward is not None:
                self._verdicts[run.sha256()] = found
                while len(self._verdicts) > CACHED:
                    self._verdicts.popitem(last=False)
            if not future.done():
                future.set_result(found)

        await wake_worker(judge.task_queue, connection)
        work = judge_many(judge, [run for run, _ in judged], report, concurrency=self.concurrency, store=store)
        await done_before(work, keep_worker_alive(judge.task_queue, connection))

    async def _connected(self) -> tuple[Judge, Connection, Store | None]:
        """Return the judge with its client and worker, and the store where one is known; connected once."""
        self._alone = self._alone or asyncio.Lock()
        async with self._alone:
            if self._ready is None:
                judge, connection = await served_judge(self.judge)
                try:
                    store: Store | None = own_store()
                except InvalidRequest:  # a server without a named store: a workflow a judgement
                    store = None
                self._ready = judge, connection, store
            return self._ready


def reward(
    rubric: Rubric | JudgeConfig | Mapping[str, JsonValue] | str, judge: str | None = None, *, concurrency: int = CONCURRENCY
) -> RewardFunction:
    """Return a reward function that scores completions by a rubric: `score = gradeloop.reward("- polite").trl_reward`.

    Args:
        rubric: The criteria, as text or object, or a judge with a schema that has a number `score`.
        judge: The model that judges, written `provider:model`; by default the first of a table for which a key is set.
        concurrency: How many judgements of one batch are open at the same time.

    Raises:
        InvalidRequest: Rubric or model are refused.
    """
    config, _ = with_model(parse_judge(dict(rubric) if isinstance(rubric, Mapping) else rubric), judge, scripted=False)
    return RewardFunction(config, concurrency=concurrency)


def _as_openai(message: VerifiersMessage) -> dict[str, JsonValue]:
    """Return a message of verifiers' v1 as OpenAI's chats have it, without parts that only a provider can read."""
    written = message.model_dump(mode="json", exclude_none=True)
    written.pop("provider_state", None)
    calls = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in written.pop("tool_calls", ())
    ]
    return {**written, **({"tool_calls": calls} if calls else {})}


def completion_run(prompt: str | Chat, completion: str | Chat) -> AgentRun:
    """Return a completion as a run: the prompt's messages, and its own.

    Raises:
        InvalidRequest: The completion is empty.
        UnreadableMessage: A message of either is none.
    """
    answer = _messages(completion, "assistant")
    if not any(message.says_something for message in answer):
        raise InvalidRequest("the completion is empty; there is nothing to judge")
    messages = (*_messages(prompt, "user"), *answer)
    digest = hashlib.sha256("\n".join(message.model_dump_json() for message in messages).encode()).hexdigest()[:16]
    return AgentRun(id=f"completion-{digest}", transcripts=(RunTranscript(messages=messages),))


def graded_completion(result: JudgeResult) -> GradedCompletion:
    """Return the reward of a judgement; None for one without a verdict, or whose rubric could not be judged."""
    if result.failed:
        return GradedCompletion(reward=None, judgement_id=result.id, no_verdict=str(result.result_metadata.get("reason")))
    score, rows = result.output.get("score"), result.output.get("criteria")
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        why = str(result.output.get("explanation") or f"the judge gave the score {score!r}, which is none from 0 to 1")
        return GradedCompletion(reward=None, judgement_id=result.id, no_verdict=why)
    return GradedCompletion(
        reward=float(score),
        rows=tuple(row for row in rows if isinstance(row, dict)) if isinstance(rows, list) else (),
        judgement_id=result.id,
    )


def _messages(value: str | Chat, role: str) -> tuple[RunMessage, ...]:
    if isinstance(value, str):
        return (RunMessage.model_validate({"role": role, "content": value}),) if value else ()
    return tuple(parse_messages([dict(message) for message in value]))


def _answer_rest(waiting: Sequence[tuple[AgentRun, "asyncio.Future[GradedCompletion]"]], why: str) -> None:
    for _, future in waiting:
        if not future.done():
            future.set_result(GradedCompletion(reward=None, no_verdict=why))
