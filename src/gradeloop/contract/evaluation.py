"""Answers of graders and gradeloop's records: verdicts, evaluations, events, tool evidence, and questions to a person."""

import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, JsonValue
from pydantic_core import PydanticSerializationError, core_schema, from_json, to_json
from temporalio import exceptions

from gradeloop.contract.base import Bounded, OmitEmpty, Strict, Tolerant
from gradeloop.contract.messages import Message, Usage
from gradeloop.text import clip, shortened, whole_characters

VerdictResult = Literal["satisfied", "needs_revision", "failed"]

EvaluationResult = Literal[VerdictResult, "grader_error"]

RunStatus = Literal["running", "waiting", "interrupted", "satisfied", "max_iterations_reached", "failed", "grader_error", "superseded"]

InterruptReason = Literal["person", "budget", "failure", "outage"]
"""The cause of an interruption: a person, a used-up budget, a failed generator, or a provider that was away for too long."""

CURTAILED_CHARACTERS = 200
"""The characters that a full thread keeps of a gap or an explanation."""

EVIDENCE_BYTES = 64 * 1024
"""The bytes that are kept of a tool's output, head and tail: 25 such results stay below one 2 MiB payload."""

GRADED_BYTES = 1024 * 1024
"""The largest value, as JSON, that a grader's function may return: half of the 2 MiB that one Temporal payload may have."""

CHECK_FALSE = "the check returned false"
"""The gap of a check that returns no more than `false`."""

QuoteMatch = Literal["exact", "near", "none"]


class Quote(Strict):
    """A passage of the conversation that a grader gives as evidence."""

    record: int
    """The number of the record that is quoted."""
    quote: str
    quote_verified: OmitEmpty[bool | None] = None
    """Whether gradeloop found the quote in its record, word for word; a grader may not set it."""
    quote_match: OmitEmpty[QuoteMatch | None] = None
    """The match of the quote with its record: verbatim, nearly (no evidence), or none; a grader may not set it."""
    quote_nearest: OmitEmpty[str | None] = None
    """The passage of the record that a quote resembles which is nearly there, white space folded; None for any other quote."""


class VerdictRow(Strict):
    """A grader's verdict on one criterion."""

    id: str
    reason: str
    passed: bool
    gap: str | None
    """The defect; None on a pass."""
    score: OmitEmpty[Annotated[float, Field(allow_inf_nan=False)] | None] = None
    """The number on the criterion's own scale."""
    quotes: OmitEmpty[tuple[Quote, ...] | None] = None
    metadata: OmitEmpty[dict[str, JsonValue] | None] = None
    """Data that a remote grader returned beside its verdict."""


class Verdict(Strict):
    """A grader's whole answer, with the result that its rows come to, or `failed` where it says that the rubric cannot be judged."""

    criteria: tuple[VerdictRow, ...]
    explanation: str
    """The grader's summary."""
    result: VerdictResult
    dropped: OmitEmpty[tuple[str, ...]] = ()
    """Ids of rows that nobody asked for, in quotes and shortened; a grader may not set it."""


class Malformed(Strict):
    """An answer that is not a verdict, and therefore never a grade."""

    problems: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Ids without a row, where nothing else is wrong."""
    rows: tuple[VerdictRow, ...] = ()
    """The well-formed rows, those of earlier answers included, where nothing but missing ids is wrong."""
    explanation: str = ""
    """The explanation that came with those rows."""
    dropped: OmitEmpty[tuple[str, ...]] = ()
    """Ids of rows that nobody asked for, in quotes and shortened, where nothing but missing ids is wrong."""


class Decision(Strict):
    """A person's verdict on a criterion that waited for it."""

    passed: bool
    gap: OmitEmpty[str | None] = None
    by: str


class Override(Strict):
    """A person's verdict that counts instead of the grader's, which stays beside it."""

    passed: bool
    why: str
    by: str
    time: str
    """Time of the recording, ISO 8601, UTC."""


class Vote(Strict):
    """The vote of one of several graders."""

    grader: str
    """The model, activity or function that voted."""
    passed: bool | None = None
    """The vote; None where the grader gave no verdict."""
    unasked: OmitEmpty[bool] = False
    """True where the grader was not asked, since no further vote could change the row."""
    instead_of: OmitEmpty[str | None] = None
    """The model that was to vote, where the grader is its fallback."""


class CriterionRow(Strict):
    """The verdict on one criterion: who decided, and why: `[row.gap for row in evaluation.criteria if not row.passed]`."""

    id: str
    name: str
    """The criterion's description, as text."""
    passed: bool
    reason: str
    """The judge's reason, in a sentence or two."""
    gap: OmitEmpty[str | None] = None
    """The defect; absent on a pass."""
    unverified: OmitEmpty[bool] = False
    """Whether no verdict was given: the row is neither a pass nor a confirmed fail."""
    by: Literal["model", "tool", "human", "cached", "nobody"] = "model"
    """The judge; `cached` is a model that had answered the identical question before, `nobody` a person who was not asked."""
    score: OmitEmpty[float | None] = None
    """The grader's number on the criterion's scale (the median of several), a check's share of the score, or an assertion's number."""
    contested: OmitEmpty[bool] = False
    """Whether several graders disagreed."""
    votes: OmitEmpty[tuple[Vote, ...]] = ()
    """The votes of several graders; absent for a single one."""
    quotes: OmitEmpty[tuple[Quote, ...]] = ()
    metadata: OmitEmpty[dict[str, JsonValue] | None] = None
    """Data that a remote grader returned beside its verdict."""
    grader: OmitEmpty[str | None] = None
    """The grader, where the criterion names its own, or a fallback answered."""
    instead_of: OmitEmpty[str | None] = None
    """The model that was to judge, where the grader is its fallback."""
    override: OmitEmpty[Override | None] = None
    """A person's verdict, which counts instead."""

    @property
    def verdict(self) -> Literal["passed", "failed", "unverified"]:
        """The verdict that counts: a person's override before the grader's."""
        if self.override is not None:
            return "passed" if self.override.passed else "failed"
        return "unverified" if self.unverified else "passed" if self.passed else "failed"

    @property
    def votes_text(self) -> str:
        """The votes in words: `2 of 3 votes, 2 not asked`."""
        asked = [vote.passed for vote in self.votes if not vote.unasked]
        left = len(self.votes) - len(asked)
        return f"{asked.count(True)} of {len(asked)} votes{f', {left} not asked' if left else ''}"

    @property
    def why_failed(self) -> str:
        """The gap, or the reason where there is none."""
        return self.gap or self.reason

    def curtailed(self) -> "CriterionRow":
        """Return the row without its reason and quotes, with a shortened gap."""
        gap = self.gap and shortened(self.gap, CURTAILED_CHARACTERS)
        return self.model_copy(update={"reason": "", "quotes": (), "metadata": None, "gap": gap})


class Evaluation(Strict):
    """One grading pass: result, rows, usage, and which draft was judged: `result.evaluations[-1].explanation`."""

    grading_run_id: str
    iteration: int
    """The iteration of the run, from 0."""
    result: EvaluationResult
    """The result of the pass, computed from its rows."""
    status: RunStatus
    """The status of the run after this pass."""
    explanation: str
    """The grader's summary, or the error's type, message and status."""
    criteria: tuple[CriterionRow, ...] = ()
    """A row for each criterion; none for a `grader_error`."""
    score: float | None = None
    """The score by the rubric's own scoring, 0 to 1 unless an assertion in code gives more or less; None where nothing could be graded."""
    unverified: bool = False
    """Whether some row has no verdict."""
    usage: Usage = Usage()
    """The usage of this pass."""
    draft: int
    """Index of the judged message in the thread."""
    grader: str | None = None
    """The model that judged, a fallback where it did so; None where only checks decided."""
    rubric_sha256: OmitEmpty[str | None] = None
    """The sha256 of the rubric's canonical form."""
    prompt_version: OmitEmpty[str | None] = None
    """The version of the grading prompts."""
    notes: OmitEmpty[tuple[str, ...]] = ()
    """Notes about the models: settings passed on unchecked, a model that is retired."""
    overridden_result: OmitEmpty[VerdictResult | None] = None
    """The result with people's overrides; None where there are none."""

    def size(self) -> int:
        """Return the bytes of the evaluation as JSON."""
        return len(to_json(self))

    def curtailed(self) -> "Evaluation":
        """Return the evaluation as a full thread keeps it: without reasons and quotes, with shortened gaps and explanation."""
        rows = tuple(row.curtailed() for row in self.criteria)
        return self.model_copy(update={"criteria": rows, "explanation": shortened(self.explanation, CURTAILED_CHARACTERS)})


class Evaluations(list[Evaluation]):
    """Evaluations in order with their running size, so that a thread of a thousand turns does not count them anew at each."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Return the schema by which they are read and written as a list."""
        return core_schema.no_info_after_validator_function(cls, handler(Annotated[list[Evaluation], Bounded()]))

    def __init__(self, evaluations: Iterable[Evaluation] = ()) -> None:
        super().__init__(evaluations)
        self.bytes = sum(evaluation.size() for evaluation in self)
        """The size of all evaluations as JSON."""

    def append(self, evaluation: Evaluation) -> None:
        """Append an evaluation."""
        super().append(evaluation)
        self.bytes += evaluation.size()

    def replace(self, index: int, evaluation: Evaluation) -> None:
        """Put an evaluation in place of another."""
        self.bytes += evaluation.size() - self[index].size()
        self[index] = evaluation


class CheckOutcome(Strict):
    """A check's verdict on its criterion."""

    passed: bool
    gap: str | None = None
    share: OmitEmpty[Annotated[float, Field(allow_inf_nan=False)] | None] = None
    """The criterion's share of the score, 0 to 1 (any number from an assertion in code); 1 or 0 by `passed` where the check has none."""


class Judgement(Strict):
    """The findings of a pass before its run's status is known: the rows, and the grader's own summary."""

    rows: tuple[CriterionRow, ...] = ()
    explanation: str
    impossible: bool = False
    """Whether the grader answered that the rubric cannot be judged."""
    error: str | None = None
    """The reason why the pass has no verdict; None if it has one."""
    remarks: tuple[str, ...] = ()
    """The explanations of the graders that object to something; of all graders where none does."""


class WaitingCriterion(Strict):
    """A criterion that waits for a person."""

    id: str
    name: str
    """The criterion's description, as text."""


class PendingCall(Strict):
    """A tool call that waits for a person."""

    call: str
    """The id of the call, by which `approve` and `deny` name it."""
    tool: str
    arguments: dict[str, JsonValue]
    """The arguments that the model wrote."""
    role: Literal["generator", "grader", "check"]
    """The role that made the call."""


class DraftPiece(Strict):
    """A stretch of a comparison of two drafts."""

    kind: Literal["same", "added", "removed", "left_out"]
    text: str
    """The text; for `left_out` a note of how many unchanged characters are not shown."""


class DraftInQuestion(Strict):
    """The draft about which a person is asked, with what checks and graders found in it."""

    index: int
    """Index of the message in the thread."""
    text: str | None
    """The draft; None above 128 KiB (read it with the query `messages`)."""
    rows: tuple[CriterionRow, ...]
    """The verdicts on this draft that are there already; above 64 KiB without their reasons and quotes."""
    previous: OmitEmpty[int | None] = None
    """Index of the draft about which a person was asked before; None where this is the first."""
    changes: OmitEmpty[tuple[DraftPiece, ...] | None] = None
    """The difference from that draft; None if there is none, or if it is too large."""


class WaitingFor(Strict):
    """The criteria or calls that wait for a person, for `decide`, `approve` or `deny`: `(await client.state("haiku-1")).waiting_for`."""

    grading_run_id: str | None
    """The grading run; None where a generator without a rubric made the call."""
    iteration: int | None
    criteria: tuple[WaitingCriterion, ...]
    calls: OmitEmpty[tuple[PendingCall, ...]] = ()
    draft: OmitEmpty[DraftInQuestion | None] = None
    """The draft that is asked about, or that was being judged when the call was made; None where the generator made the call."""


class Rejection(Strict):
    """A person's No to an earlier draft of a grading run, on a criterion about which a person is asked again."""

    criterion: str
    iteration: int
    """The iteration of the draft that was rejected, from 0."""
    gap: str
    """The defect of that draft, in the person's words."""


def rejections_of(evaluations: Sequence[Evaluation], waiting: WaitingFor) -> tuple[Rejection, ...]:
    """Return what people rejected of the earlier drafts of the run that waits, on the criteria that are asked about, the oldest first."""
    asked = {criterion.id for criterion in waiting.criteria}
    return tuple(
        Rejection(criterion=row.id, iteration=evaluation.iteration, gap=row.gap or row.reason)
        for evaluation in evaluations
        if evaluation.grading_run_id == waiting.grading_run_id
        for row in evaluation.criteria
        if row.id in asked and row.by == "human" and not row.passed
    )


class ForkedFrom(Strict):
    """The iteration at which a thread was forked off another: `(await client.state("haiku-1-fork")).forked_from`."""

    thread_id: str
    grading_run_id: str
    iteration: int
    """Counted from 0."""


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
    "drafting",
]


class Event(Strict):
    """Something that happened in a thread, without its texts: `async for event in client.watch("haiku-1"): print(event.type)`."""

    seq: int
    """The event's number in the thread, from 1 without gaps."""
    type: EventType
    """The kind of event; `docs/watching.md` lists them."""
    time: str
    """Time of the event, ISO 8601, UTC."""
    grading_run_id: str | None = None
    iteration: int | None = None
    index: OmitEmpty[int | None] = None
    """Index of the message or evaluation that the event is about."""
    criterion: OmitEmpty[str | None] = None
    """The id of the criterion that a person decided or overrode."""
    call: OmitEmpty[str | None] = None
    """The id of a tool call that a person approved or denied."""
    tool: OmitEmpty[str | None] = None
    """The tool that was called, approved or denied."""
    role: OmitEmpty[Literal["generator", "grader", "check"] | None] = None
    """The role that called the tool."""
    why: OmitEmpty[str | None] = None
    """The fault of a supplied rubric that was rejected."""
    reason: OmitEmpty[InterruptReason | None] = None
    """The reason why the run was interrupted."""
    result: OmitEmpty[str | None] = None
    """The result of an evaluation that ended."""
    status: OmitEmpty[RunStatus | None] = None
    """The status of the run after an evaluation, or at its end."""
    draft: OmitEmpty[str | None] = None
    """The end of the draft so far, of an event `drafting`: a watcher makes it, with the `seq` before it, and no thread records it."""


class Evidence(Tolerant):
    """A tool's result, as text for the model and as the history keeps it."""

    call: str
    """The id of the tool call that it answers."""
    text: str
    failed: bool = False
    """Whether the tool raised or timed out; the text is then the error."""
    bytes: OmitEmpty[int | None] = None
    """Size of the whole output, where only its head and tail were kept."""
    sha256: OmitEmpty[str | None] = None
    """The sha256 of the whole output, where only its head and tail were kept."""
    outcome: OmitEmpty[CheckOutcome | None] = None
    """The verdict of a tool that served as a check."""
    value: OmitEmpty[JsonValue] = None
    """The value that a tool returned as a grader."""

    def message(self, tool: str) -> Message:
        """Return the message that gives the model this result."""
        return Message(role="tool", name=tool, tool_call_id=self.call, content=self.text)


def build_evidence(call: str, value: Any, *, failed: bool = False) -> Evidence:  # noqa: ANN401 - whatever a tool returns
    """Return a tool's value as evidence: text as it is, anything else as JSON, and only head and tail where it is too large."""
    text = value if isinstance(value, str) else _json(value)
    raw = text.encode(errors="replace")
    if len(raw) <= EVIDENCE_BYTES:
        return Evidence(call=call, text=raw.decode(), failed=failed)
    # Of each half 100 bytes are kept free for the note between them. A cut may fall within a character, whose
    # rest is dropped; so the text stays valid and below the limit.
    half = EVIDENCE_BYTES // 2 - 100
    head, tail = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
    shown = f"{head}\n[… the middle of {len(raw)} bytes left out …]\n{tail}"
    return Evidence(call=call, text=shown, failed=failed, bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())


def build_grader_evidence(call: str, value: Any) -> Evidence:  # noqa: ANN401 - whatever a grader's function returns
    """Return a grading function's whole value as evidence; raise TypeError where it is not JSON, or more than a mebibyte of it."""
    text = _json(value)
    if len(text) > GRADED_BYTES:
        raise TypeError(f"the function returned {len(text)} bytes as JSON, {GRADED_BYTES} at most")
    return Evidence(call=call, text="", value=from_json(text))


def describe_uncertain_call(tool: str, operation: str) -> str:
    """Return the message for a call whose effect is unknown, of a tool that must not run twice."""
    return f"uncertain: {tool} was begun and its end is not known; it may have had its effect, and is not run again ({operation})"


def parse_check_outcome(value: Any) -> CheckOutcome:  # noqa: ANN401 - whatever a check returns
    """Parse a check's value: `true`, `false`, or an object with `ok`; its `share` is its part of the score, its other keys are the gap.

    Raises:
        TypeError: The value is none of these; that is the checker's error, never a grade.
    """
    if isinstance(value, CheckOutcome):  # of a tool of ours
        return value
    if isinstance(value, bool):
        return CheckOutcome(passed=value, gap=None if value else CHECK_FALSE)
    if isinstance(value, dict) and isinstance(value.get("ok"), bool):
        share = _share(value.get("share"))
        if value["ok"]:
            return CheckOutcome(passed=True, share=share)
        said = ((key, item) for key, item in value.items() if key not in {"ok", "share"})
        gap = "; ".join(f"{key}: {item if isinstance(item, str) else _json(item)}" for key, item in said)
        return CheckOutcome(passed=False, gap=shortened(whole_characters(gap)) or CHECK_FALSE, share=share)
    raise TypeError(f"a check returns true, false or an object with 'ok': true or false; this one returned {clip(repr(value))}")


def _share(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise TypeError(f"a check's 'share' is a number from 0 to 1; this one is {clip(repr(value))}")
    return float(value)


def _json(value: Any) -> str:  # noqa: ANN401 - whatever a tool returns
    _refuse_bytes(value)
    try:
        return to_json(value).decode()
    except (PydanticSerializationError, UnicodeDecodeError, ValueError) as error:
        raise TypeError(f"the tool returned {type(value).__name__}, which is not JSON: {error}") from None


def _refuse_bytes(value: Any) -> None:  # noqa: ANN401 - whatever a tool returns
    """Raise TypeError where a tool returned bytes, which no model reads, or a container of them, one level deep."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for part in (value, *parts):
        if isinstance(part, bytes | bytearray | memoryview):
            raise TypeError(f"the tool returned {len(part)} bytes of binary data; return text, or JSON")


Row = dict[str, JsonValue]

CELL_CHARACTERS = 500
"""The most characters of a cell in a notebook; a row has all of them."""


def criterion_rows(criteria: Sequence[CriterionRow], about: Mapping[str, JsonValue]) -> list[Row]:
    """Return a row for every criterion, with what they have in common first; a criterion without a verdict has None for `passed`."""
    return [
        dict(about)
        | {
            "criterion": row.id,
            "description": row.name,
            "passed": None if row.unverified else row.passed,
            "criterion_score": row.score,
            "by": row.by,
            "grader": row.grader,
            "reason": row.reason,
            "gap": row.gap,
            "overridden": row.override.passed if row.override else None,
        }
        for row in criteria
    ]


def html_table(title: str, rows: Sequence[Row]) -> str:
    """Return rows as a table with a title; columns in which nothing stands are left out."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if any(row.get(name) is not None for row in rows)]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>" for row in rows)
    return f"<p><b>{html.escape(title)}</b></p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: JsonValue) -> str:
    text = {None: "", True: "✓", False: "✗"}[value] if value is None or isinstance(value, bool) else str(value)
    shown = text if len(text) <= CELL_CHARACTERS else f"{text[:CELL_CHARACTERS]}…"
    return f'<td style="text-align:left;vertical-align:top;white-space:pre-wrap">{html.escape(shown)}</td>'


def describe_failure(error: BaseException) -> str:
    """Return the kind and the message of a failure of an activity."""
    if isinstance(error, exceptions.ApplicationError):
        return f"{error.type}: {error.message}" if error.type else error.message
    if isinstance(error, exceptions.TimeoutError) and error.type == exceptions.TimeoutType.SCHEDULE_TO_START:
        return "no_worker: no worker took the call in time; start one on that task queue"
    if isinstance(error, exceptions.TimeoutError):
        return f"timeout: no answer in time ({error.message})"
    return f"{type(error).__name__}: {error}"


def lowest_row(rows: Iterable[CriterionRow]) -> CriterionRow | None:
    """Return the row that did not pass with the lowest score, the first of several; None where all passed."""
    failing = [row for row in rows if not row.passed]
    return min(failing, key=lambda row: 0.0 if row.score is None else row.score, default=None)
