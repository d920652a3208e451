"""Say what done looks like; gradeloop drives the work until an independent judge agrees.

The public names are those of `__all__`. Each one loads its module where it is first used, so that `import gradeloop` loads no SDK.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradeloop.batches.batch_request import BatchRequest
    from gradeloop.batches.case import Case
    from gradeloop.batches.case_result import BatchSummary, CaseResult
    from gradeloop.batches.client import BatchClient
    from gradeloop.budget import Budget
    from gradeloop.client import GradingClient
    from gradeloop.connection import Connection
    from gradeloop.contracts import GradingThread, RunResult, ThreadState
    from gradeloop.criterion import Criterion
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
    from gradeloop.evaluation import CriterionRow, Evaluation
    from gradeloop.event import Event
    from gradeloop.judges.agent_run import AgentRun, RunMessage, RunTranscript
    from gradeloop.judges.config import JudgeConfig
    from gradeloop.judges.judge import Judge
    from gradeloop.judges.judge_result import JudgeResult
    from gradeloop.modelspec import ModelConfig, ModelSpec
    from gradeloop.page import Page
    from gradeloop.request import Generator, Grader, Priority, ThreadRequest
    from gradeloop.rubric import Rubric
    from gradeloop.transcript import Message, ToolCall
    from gradeloop.usage import Usage
    from gradeloop.waiting_for import WaitingFor

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
    "ThreadClosed",
    "ThreadNotFound",
    "ThreadRequest",
    "ThreadState",
    "ThreadTooLarge",
    "ToolCall",
    "Usage",
    "WaitingFor",
    "WorkerFailed",
]

_MODULES = {
    "gradeloop.batches.batch_request": "BatchRequest",
    "gradeloop.batches.case": "Case",
    "gradeloop.batches.case_result": "BatchSummary CaseResult",
    "gradeloop.batches.client": "BatchClient",
    "gradeloop.budget": "Budget",
    "gradeloop.client": "GradingClient",
    "gradeloop.connection": "Connection",
    "gradeloop.contracts": "GradingThread RunResult ThreadState",
    "gradeloop.criterion": "Criterion",
    "gradeloop.errors": (
        "BatchLost GradeloopError InvalidRequest JudgeFailed RunTooLarge "
        "ServerUnreachable StoreUnavailable ThreadClosed ThreadNotFound ThreadTooLarge WorkerFailed"
    ),
    "gradeloop.evaluation": "CriterionRow Evaluation",
    "gradeloop.event": "Event",
    "gradeloop.judges.agent_run": "AgentRun RunMessage RunTranscript",
    "gradeloop.judges.config": "JudgeConfig",
    "gradeloop.judges.judge": "Judge",
    "gradeloop.judges.judge_result": "JudgeResult",
    "gradeloop.modelspec": "ModelConfig ModelSpec",
    "gradeloop.page": "Page",
    "gradeloop.request": "Generator Grader Priority ThreadRequest",
    "gradeloop.rubric": "Rubric",
    "gradeloop.transcript": "Message ToolCall",
    "gradeloop.usage": "Usage",
    "gradeloop.waiting_for": "WaitingFor",
}
"""The names that each module defines; a test compares them with the imports above."""

if not TYPE_CHECKING:  # a type checker would take any name for one that exists

    def __getattr__(name: str) -> object:
        from importlib import import_module

        for module, names in _MODULES.items():
            if name in names.split():
                globals()[name] = found = getattr(import_module(module), name)
                return found
        from difflib import get_close_matches

        close = get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AttributeError(f"module 'gradeloop' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
