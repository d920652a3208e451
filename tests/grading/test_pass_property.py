"""Whatever graders, tools and people say, in any order: a rubric is met only by verdicts that were really given."""

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from activities.capabilities import WorkerCapabilities
from activities.grade import GradeCall, GraderReply
from activities.tool_call import ToolRequest
from gradeloop.contract.evaluation import CheckOutcome, Decision, EventType, Evidence, Verdict
from gradeloop.contract.messages import Log, Message, Usage
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.answer_form import names_of
from gradeloop.grading.scoring import call_groups, result_of
from gradeloop.grading.verdicts import parse_verdict
from tests.rig.threads import JUDGE, row, verdict
from workflows.activity_calls import ActivityCalls, WaitingForPerson
from workflows.grading_pass import GradingPass
from workflows.thread_state import GradingRun, PassState, Thread

IDS = ("c1", "c2", "c3")


class Script:
    """Every conversation's replies from a list of its own, read by the code that the activity itself uses."""

    def __init__(self, rubric: Rubric, replies: Sequence[str | dict[str, bool]], checks: bool) -> None:
        self.rubric = rubric
        self.said: dict[tuple[int, int], list[str]] = {}
        self.capabilities = WorkerCapabilities(search_attributes=False, external_storage=False, cacheable=("read_transcript",))
        self.unknown_judge = False
        self.stopping = None
        self.calls = 0
        self._replies = replies
        self._checks = checks

    async def make(self, _activity: str, call: GradeCall | ToolRequest, _options: object, **_more: object) -> GraderReply | Evidence:
        """Answer a grader's call, or a check."""
        if isinstance(call, ToolRequest):
            return Evidence(call=call.call, text="", outcome=CheckOutcome(passed=self._checks, gap=None if self._checks else "no"))
        reply = self._replies[self.calls % len(self._replies)] if self._replies else "nothing"
        text = reply if isinstance(reply, str) else self._well_formed(call, reply)
        self.calls += 1
        earlier = self.said.setdefault((call.step.group, call.step.sample), [])
        reading = parse_verdict(text, call_groups(self.rubric)[call.step.group], call.pending or None, earlier=earlier)
        earlier.append(text)
        good = reading if isinstance(reading, Verdict) else None
        bad = None if isinstance(reading, Verdict) else reading
        message = Message(role="assistant", content=text or "nothing")
        return GraderReply(message=message, verdict=good, malformed=bad, usage=Usage(calls=1), offer=self.capabilities)

    def _well_formed(self, call: GradeCall, passed: dict[str, bool]) -> str:
        """Return a verdict on just what is asked."""
        ids = call_groups(self.rubric)[call.step.group].ids
        rows = [{names_of(ids)[name]: row(name, None if passed[name] else "a gap")[name]} for name in call.pending or ids]
        return json.dumps(verdict(*rows))

    def thread_reference(self) -> dict[str, object]:
        """Return a reference that nobody follows."""
        return {"brief": {"sha256": ""}, "messages": self.log_reference("messages", Log())}

    def log_reference(self, key: str, log: Log) -> dict[str, object]:
        """Return a reference that nobody follows."""
        return {"key": key, "count": len(log), "sha256": log.sha256()}

    def note_returned(self, key: str, log: Log) -> None:
        """Take no note."""

    def learn(self, capabilities: WorkerCapabilities) -> None:
        """Take no note."""

    async def make_paid(self, activity: str, call: Callable[[], GradeCall], *_more: object) -> GraderReply | Evidence:
        """Answer a grader's call, whose budget is unlimited."""
        return await self.make(activity, call(), None)

    async def find_capabilities(self, **_more: object) -> WorkerCapabilities:
        """Return what the worker offers."""
        return self.capabilities


class Quiet(Thread):
    """A thread outside of a workflow, where there is no time to tell."""

    def record_event(self, kind: EventType, **fields: object) -> None:
        """Tell nobody."""


def criterion(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return criteria of every kind."""
    kinds = st.sampled_from([{}, {}, {"negate": True}, {"votes": 3}, {"check": "t"}, {"human": True}, {"grader": "scripted:other"}])
    return st.builds(lambda kind, required: {"id": name, "description": name, "required": required} | kind, kinds, st.booleans())


RUBRICS = st.builds(
    lambda criteria, mode, gate: {"criteria": criteria, "mode": mode} | gate,
    st.tuples(*map(criterion, IDS)).map(list),
    st.sampled_from(["holistic", "per_criterion"]),
    st.sampled_from([{}, {}, {"gate": "any"}, {"gate": "none", "threshold": 0.9}]),
)

ROWS = st.lists(st.builds(row, st.sampled_from(IDS), st.sampled_from([None, None, None, "a gap", ""])), max_size=4)
VERDICTS = st.builds(
    lambda rows, more: json.dumps(verdict(*rows) | more),
    ROWS,
    st.sampled_from([{}, {}, {}, {"unjudgeable": "so"}, {"k1": {}}, {"score": 1}, {"k9": None}]),
)
ECHOES = st.sampled_from(["{}", "prose", '{"passed": true}', '{"reason": "r", "pass": true, "score": 1}'])
PASSES = st.fixed_dictionaries({name: st.sampled_from([True, True, False]) for name in IDS})
REPLIES = st.lists(st.one_of(PASSES, PASSES, PASSES, VERDICTS, ECHOES), max_size=8)


def passes(rubric: Rubric, name: str, script: Script, checks: bool, people: bool) -> bool:
    """Return whether somebody who may say so said that a criterion holds, by what was really said."""
    judged = rubric.criterion(name)
    if judged.check:
        return checks
    if judged.human:
        return people
    group = next(group for group in call_groups(rubric) if name in group.ids)
    votes = [
        _was_said(script.said.get((group.index, at), []), names_of(group.ids)[name], wanted=not judged.negate)
        for at in range(len(group.judges))
    ]
    return 2 * sum(votes) > len(votes)


def _was_said(said: list[str], key: str, *, wanted: bool) -> bool:
    """Return whether one of the replies of a conversation has such a row."""
    rows = [json.loads(text).get(key) for text in said if text.startswith("{")]
    return any(isinstance(row, dict) and row.get("passed") is wanted for row in rows)


@given(RUBRICS, REPLIES, st.booleans(), st.booleans())
async def test_a_rubric_is_met_only_by_verdicts_that_were_given(
    raw: dict[str, Any], replies: list[str], checks: bool, people: bool
) -> None:
    rubric = Rubric.model_validate(raw)
    log = Log([Message(role="user", content="q"), Message(role="assistant", content="draft")])
    grader = {"model": JUDGE}
    thread = Quiet.model_validate({"thread_id": "t", "max_iterations": 1, "generator": {"model": JUDGE}, "grader": grader, "log": log})
    thread.rubric = rubric
    run = GradingRun(grading_run_id="r", ordinal=0, nonce="0" * 32, max_iterations=1)
    state, script = PassState(draft=1), Script(rubric, replies, checks)
    thread.run = run

    async def judged() -> Any:
        return await GradingPass(thread, run, state, rubric, cast(ActivityCalls, script)).judge()

    try:
        judgement = await judged()
    except WaitingForPerson:
        for person in rubric.asked_of_people:
            state.decisions[person.id] = Decision(passed=people, gap=None if people else "no", by="ann")
        judgement = await judged()

    result = result_of(rubric, judgement)
    assert script.calls <= 4 * sum(len(group.judges) for group in call_groups(rubric))
    if result == "satisfied":
        due = [passes(rubric, name, script, checks, people) for name in rubric.gating]
        assert any(due) if rubric.gate == "any" else all(due)
        if rubric.gate == "none":
            assert any(passes(rubric, name, script, checks, people) for name in IDS)
    if result in {"grader_error", "failed"}:
        assert judgement.explanation
