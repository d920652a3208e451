"""The loop: a model drafts, another grades, and what fails goes back to the first, until the draft passes or the cap is reached."""

from pydantic import BaseModel
from temporalio import activity, workflow

from lab.handwritten.model_call import PAID_CALL, Message, Model
from lab.handwritten.verdict import Verdict, grade


class Task(BaseModel):
    """A task, and the rubric that its draft has to meet."""

    text: str
    rubric: list[str]
    """The criteria, in words."""
    generator: str
    """The name of the model that drafts."""
    grader: str
    """The name of the model that grades."""
    max_iterations: int = 3


class Drafting(BaseModel):
    """The argument of `write_draft`."""

    generator: str
    messages: list[Message]


class Grading(BaseModel):
    """The argument of `grade_draft`."""

    grader: str
    rubric: list[str]
    task: str
    draft: str


class Outcome(BaseModel):
    """The last draft, and the verdict on every draft."""

    draft: str
    verdicts: list[Verdict]

    @property
    def satisfied(self) -> bool:
        """Whether the last draft passes."""
        return self.verdicts[-1].satisfied


class LoopActivities:
    """The two paid calls of an iteration."""

    def __init__(self, model: Model) -> None:
        self._model = model

    @activity.defn
    async def write_draft(self, drafting: Drafting) -> str:
        """Return the next draft."""
        return await self._model.write(drafting.generator, drafting.messages)

    @activity.defn
    async def grade_draft(self, grading: Grading) -> Verdict:
        """Return the verdict on a draft."""
        return await grade(self._model, grading.grader, grading.rubric, grading.draft, grading.task)


@workflow.defn
class GradedDraft:
    """Drafts until the grader is satisfied."""

    @workflow.run
    async def run(self, task: Task) -> Outcome:
        """Return the last draft and all verdicts."""
        messages = [Message(role="user", content=task.text)]
        verdicts: list[Verdict] = []
        while True:
            drafting = Drafting(generator=task.generator, messages=messages)
            draft = await workflow.execute_activity_method(LoopActivities.write_draft, drafting, **PAID_CALL)
            grading = Grading(grader=task.grader, rubric=task.rubric, task=task.text, draft=draft)
            verdict = await workflow.execute_activity_method(LoopActivities.grade_draft, grading, **PAID_CALL)
            verdicts.append(verdict)
            if verdict.satisfied or len(verdicts) == task.max_iterations:
                return Outcome(draft=draft, verdicts=verdicts)
            messages += [Message(role="assistant", content=draft), Message(role="user", content=feedback(task, verdict))]


def feedback(task: Task, verdict: Verdict) -> str:
    """Return the message that asks for a revision: what fails and why, and what has to stay."""
    rows = list(zip(task.rubric, verdict.criteria, strict=True))
    failing = [f"- {criterion}\n  {row.gap or row.reason}" for criterion, row in rows if not row.passed]
    passing = [f"- {criterion}" for criterion, row in rows if row.passed]
    parts = ["An independent grader judged your draft. These criteria do not pass yet:", *failing]
    parts += ["These pass, and have to stay so:", *passing] if passing else []
    return "\n".join([*parts, "Answer with the whole revised text, and nothing else."])
