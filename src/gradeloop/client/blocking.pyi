# The types of `blocking.py`, written by `python -m tests.client.blocking_stub`.

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, overload

from pydantic import JsonValue

from gradeloop.client.listing import ListedBatch, ListedThread, Since
from gradeloop.client.waiting import WaitingThread
from gradeloop.client.watch import DetailedEvent, Until
from gradeloop.contract.base import Page
from gradeloop.contract.evaluation import Evaluation, Event
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import Budget, ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import GivenPrompt, Interruption, RunResult, SuppliedRubric, ThreadRequest, ThreadState
from gradeloop.temporal.connect import Connection

OnEvaluation: TypeAlias = Callable[[Evaluation], Awaitable[None] | None]
Messages: TypeAlias = str | Sequence[Message | Mapping[str, Any]]

class SyncGradingClient:
    @classmethod
    def connect(cls, connection: Connection | None = None, *, task_queue: str = ...) -> Self: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...
    def start(self, request: ThreadRequest | Mapping[str, Any], *, thread_id: str | None = None, owner: str | None = None) -> str: ...
    def invoke(
        self,
        thread_id: str,
        messages: Messages = (),
        *,
        rubric: Rubric | str | Mapping[str, Any] | None = None,
        max_iterations: int | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        key: str | None = None,
        start: ThreadRequest | Mapping[str, Any] | None = None,
        on_evaluation: OnEvaluation | None = None,
    ) -> RunResult: ...
    def resume(
        self,
        thread_id: str,
        *,
        budget: Budget | Mapping[str, Any] | None = None,
        model: ModelSpec | Mapping[str, Any] | str | None = None,
        grader: ModelSpec | Mapping[str, Any] | str | None = None,
    ) -> RunResult: ...
    def fork(
        self,
        thread_id: str,
        iteration: int | None = None,
        *,
        grading_run_id: str | None = None,
        fork_id: str | None = None,
        rubric: Rubric | str | Mapping[str, Any] | None = None,
        model: ModelSpec | Mapping[str, Any] | str | None = None,
        grader: ModelSpec | Mapping[str, Any] | str | None = None,
        system_prompt: str | None = None,
        max_iterations: int | None = None,
    ) -> str: ...
    def forks(self, thread_id: str) -> tuple[str, ...]: ...
    def result(self, thread_id: str) -> RunResult: ...
    def supply_rubric(self, thread_id: str, rubric: Rubric | str | Mapping[str, Any]) -> SuppliedRubric | None: ...
    def decide(
        self,
        thread_id: str,
        criterion: str,
        passed: bool,
        *,
        by: str,
        gap: str | None = None,
        grading_run_id: str | None = None,
        iteration: int | None = None,
    ) -> None: ...
    def approve(self, thread_id: str, call: str | None = None, *, by: str) -> None: ...
    def deny(self, thread_id: str, call: str | None = None, *, why: str, by: str) -> None: ...
    def override(
        self,
        thread_id: str,
        criterion: str,
        passed: bool,
        *,
        why: str,
        by: str,
        grading_run_id: str | None = None,
        iteration: int | None = None,
    ) -> Evaluation: ...
    def interrupt(self, thread_id: str) -> Interruption | None: ...
    def close_thread(self, thread_id: str) -> None: ...
    def cancel(self, thread_id: str) -> None: ...
    def task_queue_of(self, thread_id: str) -> str: ...
    def owner_of(self, thread_id: str) -> str | None: ...
    def last_result(self, thread_id: str) -> RunResult | None: ...
    @overload
    def watch(
        self, thread_id: str, *, after: int = 0, details: Literal[True], until: Until = ..., patience: float = ..., drafts: bool = False
    ) -> Iterator[DetailedEvent]: ...
    @overload
    def watch(
        self, thread_id: str, *, after: int = 0, details: bool = False, until: Until = ..., patience: float = ..., drafts: bool = False
    ) -> Iterator[Event]: ...
    def threads(
        self, *, status: str | None = None, since: Since = None, tenant: str | None = None, limit: int = 100
    ) -> Iterator[ListedThread]: ...
    def batches(self, *, since: Since = None, limit: int = 100) -> Iterator[ListedBatch]: ...
    def waiting(self, *, limit: int = 100) -> list[WaitingThread]: ...
    def state(self, thread_id: str) -> ThreadState: ...
    def events(self, thread_id: str, *, after: int = 0, limit: int = 1000) -> Page[Event]: ...
    def evaluations(self, thread_id: str, *, after: int = 0, limit: int = 1000) -> Page[Evaluation]: ...
    def messages(self, thread_id: str, *, after: int = 0, limit: int = 1000) -> Page[Message]: ...
    def prompt(self, thread_id: str, evaluation: int, *, group: int = 0) -> GivenPrompt | None: ...
    def checkpoint(self, thread_id: str, evaluation: int | None = None) -> dict[str, JsonValue]: ...
