"""Say what done looks like; gradeloop drives the work until an independent judge agrees.

The public names are those of `__all__`. Each one loads its module where it is first used, so that `import gradeloop` loads no SDK.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradeloop.batches.client import BatchClient
    from gradeloop.batches.contract import BatchRequest, BatchSummary, Case, CaseResult
    from gradeloop.client.blocking import SyncGradingClient
    from gradeloop.client.client import GradingClient
    from gradeloop.client.listing import ListedBatch, ListedThread
    from gradeloop.client.waiting import WaitingThread
    from gradeloop.client.watch import DetailedEvent
    from gradeloop.contract.base import Page
    from gradeloop.contract.criterion import Criterion
    from gradeloop.contract.evaluation import CriterionRow, Evaluation, Event, WaitingFor
    from gradeloop.contract.messages import Message, ToolCall, Usage
    from gradeloop.contract.model_spec import Budget, ModelConfig, ModelSpec
    from gradeloop.contract.rubric import Rubric
    from gradeloop.contract.thread import Generator, Grader, GradingThread, Priority, RunResult, ThreadRequest, ThreadState
    from gradeloop.contract.transcript import AgentRun, RunMessage, RunTranscript
    from gradeloop.errors import (
        BatchLost,
        GradeloopError,
        InvalidRequest,
        JudgeFailed,
        RunTooLarge,
        ServerUnreachable,
        StoreUnavailable,
        ThreadClosed,
        ThreadNotFound,
        ThreadTooLarge,
        WorkerFailed,
    )
    from gradeloop.integrations.loop import loop
    from gradeloop.integrations.reward import reward
    from gradeloop.judges.client import Judge
    from gradeloop.judges.contract import JudgeConfig, JudgeResult
    from gradeloop.temporal.connect import Connection


__all__ = [
    "AgentRun",
    "BatchClient",
    "BatchLost",
    "BatchRequest",
    "BatchSummary",
    "Budget",
    "Case",
    "CaseResult",
    "Connection",
    "Criterion",
    "CriterionRow",
    "DetailedEvent",
    "Evaluation",
    "Event",
    "Generator",
    "GradeloopError",
    "Grader",
    "GradingClient",
    "GradingThread",
    "InvalidRequest",
    "Judge",
    "JudgeConfig",
    "JudgeFailed",
    "JudgeResult",
    "ListedBatch",
    "ListedThread",
    "Message",
    "ModelConfig",
    "ModelSpec",
    "Page",
    "Priority",
    "Rubric",
    "RunMessage",
    "RunResult",
    "RunTooLarge",
    "RunTranscript",
    "ServerUnreachable",
    "StoreUnavailable",
    "SyncGradingClient",
    "ThreadClosed",
    "ThreadNotFound",
    "ThreadRequest",
    "ThreadState",
    "ThreadTooLarge",
    "ToolCall",
    "Usage",
    "WaitingFor",
    "WaitingThread",
    "WorkerFailed",
    "loop",
    "reward",
]

_MODULES = {
    "gradeloop.batches.client": "BatchClient",
    "gradeloop.batches.contract": "BatchRequest BatchSummary Case CaseResult",
    "gradeloop.client.blocking": "SyncGradingClient",
    "gradeloop.client.client": "GradingClient",
    "gradeloop.client.listing": "ListedBatch ListedThread",
    "gradeloop.client.waiting": "WaitingThread",
    "gradeloop.client.watch": "DetailedEvent",
    "gradeloop.contract.base": "Page",
    "gradeloop.contract.criterion": "Criterion",
    "gradeloop.contract.evaluation": "CriterionRow Evaluation Event WaitingFor",
    "gradeloop.contract.messages": "Message ToolCall Usage",
    "gradeloop.contract.model_spec": "Budget ModelConfig ModelSpec",
    "gradeloop.contract.rubric": "Rubric",
    "gradeloop.contract.thread": "Generator Grader GradingThread Priority RunResult ThreadRequest ThreadState",
    "gradeloop.contract.transcript": "AgentRun RunMessage RunTranscript",
    "gradeloop.errors": (
        "BatchLost GradeloopError InvalidRequest JudgeFailed RunTooLarge "
        "ServerUnreachable StoreUnavailable ThreadClosed ThreadNotFound ThreadTooLarge WorkerFailed"
    ),
    "gradeloop.integrations.loop": "loop",
    "gradeloop.integrations.reward": "reward",
    "gradeloop.judges.client": "Judge",
    "gradeloop.judges.contract": "JudgeConfig JudgeResult",
    "gradeloop.temporal.connect": "Connection",
}
"""The names that each module defines; a test compares them with the imports above."""

if not TYPE_CHECKING:  # a type checker would take any name for one that exists

    def __getattr__(name: str) -> object:
        from importlib import import_module

        for module, names in _MODULES.items():
            if name in names.split():
                globals()[name] = value = getattr(import_module(module), name)
                return value
        from difflib import get_close_matches

        close = get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'gradeloop' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
