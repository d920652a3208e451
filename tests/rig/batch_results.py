"""Results of batches, for tests of how they are told."""

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.contract.evaluation import CriterionRow
from gradeloop.contract.messages import Usage

HOSTILE = "=cmd|' /C calc'!A0 \x1b[2J\x07\x00 \u202eevil\u2066 ]]> <b>&amp; [red]not markup[/red]\r\n\ud800 \ufffe 😀"
"""What a model or a data set may say."""


def case(index: int = 0, status: str = "passed", **facts: Any) -> CaseResult:
    """Return what a case came to; one that was judged has two criteria, the second of which decides."""
    fields: dict[str, Any] = {"index": index, "id": f"case-{index}", "status": status}
    fields |= {"usage": Usage(input=100, output=20, calls=1, seconds=1.25, cost_usd=0.001)}
    if status in {"passed", "failed"}:
        passes = status == "passed"
        fields |= {"score": 1.0 if passes else 0.5, "output": f"the draft {index}", "criteria": (row("c1"), row("c2", passed=passes))}
    return CaseResult.model_validate(fields | ({"error": "the provider says 529"} if status == "error" else {}) | facts)


def row(name: str, *, passed: bool = True, **facts: Any) -> CriterionRow:
    """Return what was decided about a criterion."""
    fields = {"id": name, "name": f"the text of {name}", "passed": passed, "reason": "Read.", "gap": None if passed else "it says nothing"}
    return CriterionRow.model_validate(fields | facts)


def summary_of(results: Iterable[CaseResult], **facts: Any) -> BatchSummary:
    """Return where the batch of these cases stands."""
    statuses = [result.status for result in results]
    fields: dict[str, Any] = {"batch_id": "batch-1", "name": "suite", "created": "2026-01-02T03:04:05Z", "status": "finished"}
    fields |= {"total": len(statuses), "errors": statuses.count("error")}
    counts = {status: statuses.count(status) for status in ("passed", "failed", "unsure", "waiting")}
    return BatchSummary.model_validate(fields | counts | facts)


TEXTS = st.text(st.characters(categories=("L", "N", "P", "S", "Z", "C")), max_size=40) | st.sampled_from(
    ["", "=1+1", "'=1+1", "''+x", "-1", "\t=x", "\r", "＝1", " @x", "\ufeff=1", '"', "a,b;c", "]]>", "\x00", "\ud800", HOSTILE]
)
STATUSES = st.sampled_from(["passed", "failed", "unsure", "error", "waiting", "queued"])
VALUES = TEXTS | st.none() | st.booleans() | st.integers(-9, 9) | st.lists(TEXTS, max_size=2)


@st.composite
def cases(draw: st.DrawFn) -> list[CaseResult]:
    """Draw the results of a batch whose texts are anything."""
    number = draw(st.integers(0, 4))
    return [
        case(
            index,
            draw(STATUSES),
            id=draw(TEXTS) or "id",
            description=draw(TEXTS | st.none()),
            label=draw(TEXTS | st.none()),
            vars=draw(st.dictionaries(TEXTS, VALUES, max_size=3)),
            output=draw(TEXTS | st.none()),
            error=draw(TEXTS | st.none()),
        )
        for index in range(number)
    ]
