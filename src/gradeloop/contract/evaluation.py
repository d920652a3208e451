"""What a grader may answer and what gradeloop records: verdicts, evaluations, events, evidence, and what a person is asked."""

import hashlib
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue
from pydantic_core import PydanticSerializationError, from_json, to_json

from gradeloop.contract.base import Recorded, Sparse, Strict
from gradeloop.contract.messages import Message, Usage
from gradeloop.text import clip, shortened

VerdictResult = Literal["satisfied", "needs_revision", "failed"]


class Quote(Strict):
    """What a grader judges by, in the words of the conversation."""

    record: int
    quote: str
    quote_verified: Sparse[bool | None] = None
    """Whether it was found there; nothing a grader may say."""


class VerdictRow(Strict):
    """The grader's word on one criterion."""

    id: str
    reason: str
    passed: bool
    gap: str | None
    score: Sparse[Annotated[float, Field(allow_inf_nan=False)] | None] = None
    """On the criterion's own scale."""
    quotes: Sparse[tuple[Quote, ...] | None] = None
    metadata: Sparse[dict[str, JsonValue] | None] = None
    """Of a grader that is not ours."""


class Verdict(Strict):
    """The grader's whole answer."""

    criteria: tuple[VerdictRow, ...]
    explanation: str
    result: VerdictResult


class Malformed(Strict):
    """An answer that is no verdict: never a grade."""

    problems: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Ids without a row, where that is all that is wrong."""
    rows: tuple[VerdictRow, ...] = ()
    """The well-formed rows, where missing ids are all that is wrong."""
    explanation: str = ""


def verdict_schema(*, scored: bool = False, quoted: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a verdict, in the dialect that all providers take."""
    text: dict[str, Any] = {"type": "string"}
    null = {"type": "null"}
    quotes: dict[str, Any] = {"type": "array", "items": _closed({"record": {"type": "integer"}, "quote": text})}
    row: dict[str, Any] = {"id": text} | ({"quotes": quotes} if quoted else {}) | {"reason": text}
    row |= {"score": {"anyOf": [{"type": "number"}, null]}} if scored else {}
    row |= {"passed": {"type": "boolean"}, "gap": {"anyOf": [text, null]}}
    verdict = {
        "criteria": {"type": "array", "items": _closed(row)},
        "explanation": text,
        "result": {"type": "string", "enum": ["satisfied", "needs_revision", "failed"]},
    }
    return _closed(verdict)


def pass_score_schema() -> dict[str, Any]:
    """Return the JSON Schema of an answer `{reason, pass, score}`, as promptfoo's graders give it."""
    return _closed({"reason": {"type": "string"}, "pass": {"type": "boolean"}, "score": {"type": "number"}})


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


class WaitingCriterion(Strict):
    """A criterion that waits for a person."""

    id: str
    name: str
    """Its description."""


class PendingCall(Strict):
    """A tool call that waits for a person."""

    call: str
    """Its id, which `approve` and `deny` name."""
    tool: str
    arguments: dict[str, JsonValue]
    role: Literal["generator", "grader", "check"]
    """Who wants it."""


class WaitingFor(Strict):
    """What a person is asked: criteria, which `decide` names, or tool calls, which `approve` and `deny` name."""

    grading_run_id: str | None
    """None where a generator without a rubric wants a tool."""
    iteration: int | None
    criteria: tuple[WaitingCriterion, ...]
    calls: Sparse[tuple[PendingCall, ...]] = ()


EvaluationResult = Literal[VerdictResult, "grader_error"]
RunStatus = Literal["running", "waiting", "interrupted", "satisfied", "max_iterations_reached", "failed", "grader_error", "superseded"]
InterruptReason = Literal["person", "budget", "failure"]
"""Why a run is interrupted: somebody stopped it, the budget is used up, or the generator failed."""

TERMINAL: frozenset[RunStatus] = frozenset({"satisfied", "max_iterations_reached", "failed", "grader_error", "superseded"})

CURTAILED_CHARACTERS = 200
"""What a full thread keeps of a gap or an explanation."""


class Decision(Strict):
    """A person's word on a criterion."""

    passed: bool
    gap: Sparse[str | None] = None
    by: str


class Override(Strict):
    """A person's verdict beside the machine's."""

    passed: bool
    why: str
    by: str
    time: str
    """ISO 8601, UTC."""


class Vote(Strict):
    """How one of several graders voted."""

    grader: str
    passed: bool | None
    """None where it gave no verdict."""


class CriterionRow(Strict):
    """What was decided about one criterion, by whom, and why."""

    id: str
    name: str
    """The criterion's description."""
    passed: bool
    reason: str
    gap: Sparse[str | None] = None
    unverified: Sparse[bool] = False
    """True where nobody gave a verdict: neither a pass nor a confirmed fail."""
    by: Literal["model", "tool", "human", "cached"] = "model"
    """`cached`: by a model, which had answered the very same question before."""
    score: Sparse[float | None] = None
    """The grader's number on the criterion's scale, as it gave it; the median of several."""
    contested: Sparse[bool] = False
    """True where several graders were split."""
    votes: Sparse[tuple[Vote, ...]] = ()
    quotes: Sparse[tuple[Quote, ...]] = ()
    metadata: Sparse[dict[str, JsonValue] | None] = None
    """Whatever a grader that is not ours returned beside its verdict."""
    grader: Sparse[str | None] = None
    """Who judged, where the criterion names its own grader."""
    override: Sparse[Override | None] = None


class Evaluation(Strict):
    """One grading pass: the result, the rows, what it cost, and which draft it judged."""

    grading_run_id: str
    iteration: int
    result: EvaluationResult
    """The grader's, computed from its rows."""
    status: RunStatus
    """The run's, after this pass."""
    explanation: str
    criteria: tuple[CriterionRow, ...] = ()
    score: float | None = None
    """By the rubric's own scoring, 0 to 1; None where nothing could be graded."""
    unverified: bool = False
    usage: Usage = Usage()
    draft: int
    """Index of the judged message in the thread."""
    grader: str | None = None
    """The grader's model; None where checks alone decided."""
    rubric_sha256: Sparse[str | None] = None
    """Of the rubric that it was judged by, in its canonical form."""
    prompt_version: Sparse[str | None] = None
    """Of the texts around it that the grader was given."""
    overridden_result: Sparse[VerdictResult | None] = None
    """What it comes to with what people overrode."""

    def size(self) -> int:
        """Return the bytes of the evaluation as JSON."""
        return len(to_json(self))

    def curtailed(self) -> "Evaluation":
        """Return the evaluation without reasons and quotes, and gaps and explanation cut: what a full thread still holds."""
        bare = {"reason": "", "quotes": (), "metadata": None}
        rows = tuple(row.model_copy(update=bare | {"gap": row.gap and shortened(row.gap, CURTAILED_CHARACTERS)}) for row in self.criteria)
        return self.model_copy(update={"criteria": rows, "explanation": shortened(self.explanation, CURTAILED_CHARACTERS)})


class CheckOutcome(Strict):
    """A check's word on its criterion."""

    passed: bool
    gap: str | None = None


class Judgement(Strict):
    """A pass before it is placed in its run: the rows, and the grader's own summary."""

    rows: tuple[CriterionRow, ...] = ()
    explanation: str
    impossible: bool = False
    """True where the grader says that the rubric cannot be judged."""
    error: str | None = None
    """The machinery's failure, if the pass has no verdict."""


EventType = Literal[
    "run_started",
    "message",
    "rubric_evaluation_start",
    "rubric_evaluation_end",
    "tool_called",
    "run_ended",
    "interrupted",
    "resumed",
    "rubric_supplied",
    "rubric_rejected",
    "waiting",
    "decided",
    "approved",
    "denied",
    "overridden",
]


class Event(Strict):
    """Something that happened to a thread; references, never text."""

    seq: int
    """From 1, without gaps."""
    type: EventType
    time: str
    """ISO 8601, UTC."""
    grading_run_id: str | None = None
    iteration: int | None = None
    index: Sparse[int | None] = None
    """Of the message or evaluation that is told of."""
    criterion: Sparse[str | None] = None
    """That a person decided."""
    call: Sparse[str | None] = None
    """The id of a tool call that a person approved or denied."""
    tool: Sparse[str | None] = None
    role: Sparse[Literal["generator", "grader", "check"] | None] = None
    why: Sparse[str | None] = None
    """Of a refusal: what is wrong with the rubric that was supplied."""
    reason: Sparse[InterruptReason | None] = None
    """Of an interruption."""
    result: Sparse[str | None] = None
    status: Sparse[RunStatus | None] = None


EVIDENCE_BYTES = 64 * 1024
"""What is kept of a tool's output: head and tail; 25 such results stay below one 2 MiB payload."""


CHECK_FALSE = "the check returned false"
"""The gap of a check that says no more than that."""


GRADED_BYTES = 1024 * 1024
"""Of what a grader's function returns: half of the 2 MiB that one Temporal payload may have."""


class Evidence(Recorded):
    """A tool's result, as text for the model and as the history keeps it."""

    call: str
    """The id of the tool call that it answers."""
    text: str
    failed: bool = False
    """True where the tool raised or timed out: the text is then the error."""
    bytes: Sparse[int | None] = None
    """Size of the whole output, where only head and tail were kept."""
    sha256: Sparse[str | None] = None
    """Of the whole output, where only head and tail were kept."""

    outcome: Sparse[CheckOutcome | None] = None
    """Where the tool served as a check."""
    value: Sparse[JsonValue] = None
    """Where the tool served as a grader: what it returned."""

    def message(self, tool: str) -> Message:
        """Return the message that gives the result back to the model."""
        return Message(role="tool", name=tool, tool_call_id=self.call, content=self.text)


def build_evidence(call: str, value: Any, *, failed: bool = False) -> Evidence:  # noqa: ANN401 - whatever a tool returns
    """Return a tool's value as evidence: text as it is, all else as JSON, head and tail where it is too large."""
    text = value if isinstance(value, str) else _json(value)
    raw = text.encode(errors="replace")
    if len(raw) <= EVIDENCE_BYTES:
        return Evidence(call=call, text=raw.decode(), failed=failed)
    half = EVIDENCE_BYTES // 2 - 100
    head, tail = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
    cut = f"{head}\n[… the middle of {len(raw)} bytes left out …]\n{tail}"
    return Evidence(call=call, text=cut, failed=failed, bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())


def describe_uncertain_call(tool: str, operation: str) -> str:
    """Say that nobody knows whether a tool ran that must not run twice."""
    return f"uncertain: {tool} was begun and its end is not known; it may have had its effect, and is not run again ({operation})"


def build_grader_evidence(call: str, value: Any) -> Evidence:  # noqa: ANN401 - whatever a grader's function returns
    """Return what a function that judges returned, whole.

    Raises:
        TypeError: It is no JSON, or more than a mebibyte of it.
    """
    text = _json(value)
    if len(text) > GRADED_BYTES:
        raise TypeError(f"the function returned {len(text)} bytes as JSON, {GRADED_BYTES} at most")
    return Evidence(call=call, text="", value=from_json(text))


def _json(value: Any) -> str:  # noqa: ANN401 - whatever a tool returns
    _refuse_bytes(value)
    try:
        return to_json(value).decode()
    except (PydanticSerializationError, UnicodeDecodeError, ValueError) as error:
        raise TypeError(f"the tool returned {type(value).__name__}, which is not JSON: {error}") from None


def _refuse_bytes(value: Any) -> None:  # noqa: ANN401 - whatever a tool returns
    """Raise where a tool returned bytes, which are no evidence that a model reads, or a container of them, one deep."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for part in (value, *parts):
        if isinstance(part, bytes | bytearray | memoryview):
            raise TypeError(f"the tool returned {len(part)} bytes of binary data; return text, or JSON")


def parse_check_outcome(value: Any) -> CheckOutcome:  # noqa: ANN401 - whatever a check returns
    """Read a check's value: `true`, `false`, or an object with `ok`, the rest of which is the gap.

    Raises:
        TypeError: It is neither; that is the checker's error, never a grade.
    """
    if isinstance(value, bool):
        return CheckOutcome(passed=value, gap=None if value else CHECK_FALSE)
    if isinstance(value, dict) and isinstance(value.get("ok"), bool):
        rest = {key: item for key, item in value.items() if key != "ok"}
        if value["ok"]:
            return CheckOutcome(passed=True)
        return CheckOutcome(passed=False, gap=shortened(_told(rest)) or CHECK_FALSE)
    raise TypeError(f"a check returns true, false or an object with 'ok': true or false; this one returned {clip(repr(value))}")


def _told(rest: dict[str, Any]) -> str:
    """Return the rest of a failing check in words: `key: value`, without the JSON around it."""
    return "; ".join(f"{key}: {item if isinstance(item, str) else _json(item)}" for key, item in rest.items())
