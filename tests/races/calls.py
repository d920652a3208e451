"""The worker of the races: it names every call that the workflow makes, checks what it was sent, and answers by that alone."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel
from temporalio.api.common.v1 import Payload

from activities.calls.attempts import UnansweredAttempt
from activities.calls.retries import FailedAttempts
from activities.capabilities import ToolFacts, WorkerCapabilities
from activities.generate import GenerateCall, GeneratorReply
from activities.grade import GradeCall, GraderReply
from activities.state_cache import GradingSettings, GradingSettingsRef, LogRef
from activities.tool_call import ToolRequest
from gradeloop.contract.evaluation import CheckOutcome, Evidence, Verdict, VerdictRow
from gradeloop.contract.messages import Log, Message, ToolCall, Usage
from tests.races.story import PASSES_FROM, Story, draft_text, found, look_id, search_id

PAID = Usage(input=10, output=5, calls=1, attempts=1)
UNANSWERED = UnansweredAttempt(usage=PAID, problem="malformed_response: it is empty", pause=7.0, failed=FailedAttempts())
LOST = Usage(input=10, attempts=1)
"""What an attempt without an answer cost."""


class Called(BaseModel):
    """A call that the workflow made: its name in the model, and the result that it gets."""

    name: str
    result: BaseModel


class WrongCall(Exception):
    """The workflow sent something that hangs together with nothing."""


class RaceWorker:
    """Reads calls and builds their results."""

    def __init__(self, story: Story, query: Callable[..., Any]) -> None:
        """Serve a thread.

        Args:
            story: The story of the thread.
            query: Asks the thread's workflow, as a worker does that lacks what earlier calls carried.
        """
        facts = {tool: ToolFacts(sha256=tool, needs_approval=tool in story.approved) for tool in ("look", "count", "search")}
        self._offer = WorkerCapabilities(search_attributes=True, external_storage=False, tools="these", facts=facts)
        self._settings: dict[str, str] = {}
        self._logs: dict[str, list[Message]] = {}
        self._query = query
        self._runs: list[str] = []

    def read(self, activity: str, payload: Payload) -> Called:
        """Return a call by its name, with its result."""
        if activity == "generate":
            return self._generate(GenerateCall.model_validate_json(payload.data))
        if activity == "grade":
            return self._grade(GradeCall.model_validate_json(payload.data))
        if activity == "admit":
            self._read_settings(GradingSettingsRef.model_validate_json(payload.data))
            return Called(name="admit", result=self._offer)
        if activity == "tool.count":
            return self._count(ToolRequest.model_validate_json(payload.data))
        if activity in ("tool.look", "tool.search"):
            call = ToolRequest.model_validate_json(payload.data).call
            return Called(name=call, result=Evidence(call=call, text=found(call)))
        raise WrongCall(f"nobody serves {activity!r}")

    def _generate(self, call: GenerateCall) -> Called:
        log = self._read_log(call.thread.messages)
        self._read_settings(call.thread.brief)
        here = len(log)
        if log[-1].role == "tool":
            message = Message(role="assistant", content=draft_text(here))
        elif log[-1].role == "user":
            message = Message(role="assistant", tool_calls=(ToolCall(id=look_id(here), name="look"),))
        else:
            raise WrongCall(f"a draft is asked for after {log[-1]}")
        return Called(name=f"generate {here}", result=GeneratorReply(message=message, usage=PAID, offer=self._offer))

    def _grade(self, call: GradeCall) -> Called:
        log, scratch = self._read_log(call.thread.messages), self._read_log(call.scratch)
        rubric, place = self._read_settings(call.thread.brief), call.step
        if not 0 <= call.request < call.draft < len(log):
            raise WrongCall(f"the grader is asked about request {call.request} and draft {call.draft} of {len(log)} messages")
        if log[call.request].role != "user" or log[call.draft].role != "assistant" or log[call.draft].tool_calls:
            raise WrongCall(f"the grader is asked about request {log[call.request]} and draft {log[call.draft]}")
        if any(one.role == "user" and one.source is None for one in log[call.draft :]):
            raise WrongCall(f"the grader is asked about draft {call.draft}, and the user has spoken since: {log[call.draft :]}")
        if bool(scratch) != bool(place.step) or (scratch and scratch[-1].role != "tool"):
            raise WrongCall(f"the grader's step {place.step} comes with the conversation {scratch}")
        name = f"grade {rubric} {place.group} of {call.draft} at {place.run}.{place.iteration} step {place.step}"
        tool = ToolCall(id=search_id(call.draft, place.run, place.group), name="search")
        common: dict[str, Any] = {"usage": PAID, "tools": ("search",), "offer": self._offer}
        if place.step == 0:
            return Called(name=name, result=GraderReply(message=Message(role="assistant", tool_calls=(tool,)), **common))
        passed = place.iteration >= PASSES_FROM or place.group > 0
        rows = tuple(VerdictRow(id=one, reason="so it is", passed=passed, gap=None if passed else "too bad") for one in call.asked)
        verdict = Verdict(criteria=rows, explanation="as it is", result="satisfied" if passed else "needs_revision")
        message = Message(role="assistant", content=verdict.model_dump_json())
        return Called(name=name, result=GraderReply(message=message, verdict=verdict, **common))

    def _count(self, request: ToolRequest) -> Called:
        run, iteration, place = request.operation_id.rsplit(":", 2)
        draft = place.split(".")[1]
        if request.draft != draft_text(int(draft)):
            raise WrongCall(f"the check of draft {draft} is given {request.draft!r}")
        outcome, number = CheckOutcome(passed=True), self.number_of(run)
        return Called(name=f"count {draft} at {number}.{iteration}", result=Evidence(call=request.call, text="", outcome=outcome))

    def number_of(self, run: str) -> int:
        """Return the number of a grading run in its thread."""
        if run not in self._runs:
            self.learn_runs()
        return self._runs.index(run)

    def learn_runs(self) -> None:
        """Learn the ids of the grading runs, in the order in which they began."""
        self._runs = [event["grading_run_id"] for event in self._query("events", 0, 1000)["items"] if event["type"] == "run_started"]

    def name_of(self, call: str) -> str:
        """Return the name of a tool call in the model, by the id under which a person approves it."""
        run, iteration, step = call.rsplit(":", 2)
        role, place, *more = step.split(".")
        if role == "generator":
            return look_id(int(place))
        number = self.number_of(run)
        return f"count {place} at {number}.{iteration}" if role == "check" else search_id(int(place), number, int(more[0]))

    def id_of(self, number: int) -> str:
        """Return the id of a grading run; one that there is not has an id, too."""
        return self._runs[number] if 0 <= number < len(self._runs) else "none"

    def _read_settings(self, brief: GradingSettingsRef) -> str:
        """Return the name of the rubric in force; settings come in full the first time."""
        settings = brief.brief
        if settings is None and brief.sha256 not in self._settings:
            settings = GradingSettings.model_validate(self._query("brief"))
        if settings is not None:
            if settings.sha256() != brief.sha256:
                raise WrongCall("the settings are not those that are named")
            rubric = settings.rubric
            self._settings[brief.sha256] = rubric.criteria[0].text.removeprefix("short by ") if rubric else "cleared"
        return self._settings[brief.sha256]

    def _read_log(self, reference: LogRef) -> list[Message]:
        """Return the messages of a log as a worker puts them together from what calls carried."""
        known, tail = self._logs.get(reference.key, []), reference.tail or ()
        start = reference.count - len(tail)
        if start > len(known):
            page = self._query("log", reference.key, len(known), start - len(known))["items"]
            known = [*known, *(Message.model_validate(message) for message in page)]
        messages = [*known[:start], *tail]
        if Log(messages).sha256() != reference.sha256:
            raise WrongCall(f"{reference.key}: {reference.count} messages are others than those that were sent")
        self._logs[reference.key] = messages
        return messages

    def note_result(self, activity: str, payload: Payload, result: BaseModel) -> None:
        """Keep the message that a model call returned, as the worker that made it does."""
        if isinstance(result, GeneratorReply):
            key, count = "messages", GenerateCall.model_validate_json(payload.data).thread.messages.count
        elif isinstance(result, GraderReply):
            scratch = GradeCall.model_validate_json(payload.data).scratch
            key, count = scratch.key, scratch.count
        else:
            return
        self._logs[key] = [*self._logs[key][:count], result.message]
