"""What a thread shows of itself, on a server or without one, in the words of the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradeloop.contract.messages import Message
from gradeloop.contract.rubric import Rubric
from tests.races.model import Model
from tests.races.story import RUBRICS, Story, line_of, rubric
from tests.races.thread import Judged, Outcome

Page = list[dict[str, Any]]


@dataclass(frozen=True)
class View:
    """The answers of a thread's queries, those to its updates, and how its workflow ended."""

    story: Story
    state: Mapping[str, Any]
    events: Page
    messages: Page
    evaluations: Page
    answers: Mapping[str, dict[str, Any] | str | None]
    """By the name of the update: a result, `done`, the type of a refusal, or None while it waits."""
    closed: str | None

    def differences(self, model: Model) -> list[str]:
        """Return what is otherwise than in the model, a sentence each."""
        seen, due = self.seen(), _due(model, list(self.answers))
        return [f"{name} is {seen[name]}, and is to be {due[name]}" for name in due if seen[name] != due[name]]

    def seen(self) -> dict[str, object]:
        """Return everything by a name for it."""
        shas = {Rubric.model_validate(rubric(name, self.story)).sha256(): name for name in RUBRICS}
        started = [event["grading_run_id"] for event in self.events if event["type"] == "run_started"]
        ended = {event["grading_run_id"]: event["status"] for event in self.events if _ends_run(event)}
        judged = [
            Judged(
                started.index(item["grading_run_id"]),
                item["iteration"],
                item["result"],
                item["status"],
                item["draft"],
                shas[sha],
                any(row["id"] == "c0" for row in item["criteria"]),
            )
            for item in self.evaluations
            if (sha := item["rubric_sha256"])
        ]
        usage = self.state["usage"]
        return {
            "the answers": {name: _answer(answer, started) for name, answer in self.answers.items()},
            "the conversation": [line_of(Message.model_validate(message)) for message in self.messages],
            "the evaluations": judged,
            "the status": self.state["status"],
            "how it closed": self.closed,
            "the rubric": shas[self.state["rubric_sha256"]] if self.state["rubric_sha256"] else "cleared",
            "how the runs ended": [ended.get(run, "running") for run in started],
            "calls and attempts paid for": (usage["calls"], usage["attempts"]),
            "the rubrics refused": sum(event["type"] == "rubric_rejected" for event in self.events),
        }


def _due(model: Model, updates: list[str]) -> dict[str, object]:
    thread = model.thread
    return {
        "the answers": {name: model.answers.get(name) for name in updates},
        "the conversation": thread.log,
        "the evaluations": thread.evaluations,
        "the status": model.status,
        "how it closed": model.closed,
        "the rubric": thread.rubric,
        "how the runs ended": [run.status for run in thread.runs],
        "calls and attempts paid for": (model.calls, model.attempts),
        "the rubrics refused": model.rejected,
    }


def _answer(answer: dict[str, Any] | str | None, runs: list[str]) -> Outcome | str | None:
    if not isinstance(answer, dict):
        return answer
    if "thread_id" not in answer:  # an evaluation, which `override` returns
        return "done"
    run = answer["grading_run_id"]
    number = None if run is None else runs.index(run)
    return Outcome(answer["status"], number, answer["iterations"], answer["output"], answer["reason"])


def _ends_run(event: dict[str, Any]) -> bool:
    """Return whether an event tells that a grading run has ended for good."""
    return event["type"] == "run_ended" and event["grading_run_id"] is not None and event["status"] != "interrupted"
