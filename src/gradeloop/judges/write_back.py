"""Scores that are written back to where a judged run was traced: what they are, and the workflow that has a worker write them."""

import re
from datetime import datetime
from typing import Annotated, Literal
from uuid import NAMESPACE_URL, UUID, uuid5

from pydantic import Field, JsonValue

from gradeloop.contract.base import OmitEmpty, Strict, Tolerant
from gradeloop.contract.transcript import AgentRun
from gradeloop.judges.contract import CriteriaJudge, JudgeResult
from gradeloop.judges.pass_rule import CRITERIA, PassRule, said_rows, with_unsure
from gradeloop.judges.schema import keys_of, value_at
from gradeloop.text import counted, shortened

Target = Literal["langfuse", "langsmith"]

WRITE_BACK_WORKFLOW = "WriteBack"

PAGE = 500
"""Scores of one call: half a megabyte where each has the longest reason."""

REASON_CHARACTERS = 1_000

_UUID = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TRACES = {"langfuse": rf"[0-9a-f]{{32}}|{_UUID}", "langsmith": _UUID}
"""The ids of traces, by which a run's own id is known as one."""


class TraceScore(Strict):
    """One score of a trace. A later judgement's score of the same name has the same id, and takes its place."""

    id: UUID
    trace: str
    session: OmitEmpty[str | None] = None
    """The project of a run of LangSmith, where its export says it."""
    name: str
    value: bool | float | str
    reason: str = ""
    time: datetime


class WriteBackCall(Tolerant):
    """The argument of the workflow `WriteBack` and of its activity: some scores, or a tick of a monitor, whose scores the store has."""

    to: Target
    scores: OmitEmpty[Annotated[tuple[TraceScore, ...], Field(max_length=PAGE)]] = ()
    monitor: OmitEmpty[str | None] = None
    number: OmitEmpty[int] = 0
    seconds: int = 86_400
    """The time for which it is tried."""


class WriteBackReport(Tolerant):
    """A count of the scores that were written, and why others were not."""

    written: int = 0
    untraced: OmitEmpty[int] = 0
    """Judged runs whose trace is not known."""
    problems: OmitEmpty[tuple[str, ...]] = ()
    """Reasons that others were not written, the first of each kind."""

    def __add__(self, other: "WriteBackReport") -> "WriteBackReport":
        problems = tuple(dict.fromkeys((*self.problems, *other.problems)))
        return WriteBackReport(written=self.written + other.written, untraced=self.untraced + other.untraced, problems=problems)

    @property
    def text(self) -> str:
        """The report in words."""
        untraced = f"; the trace of {counted(self.untraced, 'run')} is not known" if self.untraced else ""
        return f"{counted(self.written, 'score')} written back{untraced}{''.join(f'; not written: {problem}' for problem in self.problems)}"


def scores_of(
    to: Target, rule: PassRule, run: AgentRun, result: JudgeResult, time: datetime, repeat: int = 0
) -> tuple[TraceScore, ...] | None:
    """Return the scores of a judgement: whether it passes, and each criterion or key; None for a run whose trace is not known.

    A failure has no score, nor has a key on which the judge is unsure. The trace is what the run's metadata has under `langfuse_trace_id`
    or `langsmith_trace_id`, else the run's own id where it is one.
    """
    given, own = run.metadata.get(f"{to}_trace_id"), run.id.rpartition("/")[2].lower()
    trace = given if isinstance(given, str) else own if re.fullmatch(_TRACES[to], own) else None
    if trace is None:
        return None
    judge, session = rule.judge, run.metadata.get("session_id")
    result = with_unsure(judge, result)
    said: list[tuple[str, JsonValue, str]] = [("", rule.passed(result), str(result.output.get("explanation") or ""))]
    if isinstance(judge, CriteriaJudge):
        said += [(f"{CRITERIA}{row.id}", row.passed, row.gap or row.reason) for row in said_rows(result)]
        said += [] if result.unsure else [("score", result.output.get("score"), "")]
    else:
        said += [(key.name, value_at(result.output, key.path), "") for key in keys_of(judge.output_schema)]
    return tuple(
        TraceScore(
            id=uuid5(NAMESPACE_URL, f"gradeloop:{to}/{trace}/{name}/{repeat}"),
            trace=trace,
            session=str(session) if session else None,
            name=name,
            value=value,
            reason=shortened(reason, REASON_CHARACTERS),
            time=time,
        )
        for key, value, reason in said
        if isinstance(value, bool | int | float | str) and key not in result.unsure
        for name in [f"{judge.rubric_id}.{key.removeprefix(CRITERIA)}".rstrip(".")]
    )
