"""A suite as cases: prompts times generators times tests times repetitions, one after the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

from pydantic import JsonValue, ValidationError

from gradeloop.batches.case import CASE_BYTES, Case
from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip
from gradeloop.request import Generator, Grader
from gradeloop.rubric import Rubric
from gradeloop.spot import Spot, refused
from gradeloop.suites.case_ids import CaseIds
from gradeloop.suites.case_rubrics import CaseRubrics
from gradeloop.suites.conversation import Conversation, of_messages, of_prompt
from gradeloop.suites.datasets import Tested
from gradeloop.suites.fields import Defaults
from gradeloop.suites.roles import Roles
from gradeloop.suites.suite import Prompt


@dataclass(frozen=True)
class Asked:
    """A prompt of the suite, and its name."""

    label: str
    prompt: Prompt


@dataclass(frozen=True)
class Drafter:
    """A column of the matrix."""

    label: str
    generator: Generator | None
    """None: the prompt itself is what is judged."""


@dataclass(frozen=True)
class Plan:
    """All that makes cases of tests."""

    prompts: tuple[Asked, ...]
    drafters: tuple[Drafter, ...]
    defaults: Defaults
    rubrics: CaseRubrics
    tests: Callable[[], Iterator[Tested]]
    """Reads them anew each time."""
    roles: Roles
    repeat: int = 1
    grader: Grader | None = None
    """Named for this run, instead of the file's."""
    loop: bool | None = None
    """The same."""

    def cases(self) -> Iterator[Case]:
        """Yield the cases in order.

        Raises:
            InvalidRequest: A test is none, or makes a case that cannot be run; the message names its place.
        """
        ids = CaseIds()
        for tested in self.tests():
            name = ids.of(tested.test)
            for case in self._of(tested, name):
                ids.take(case.id, tested.spot)
                self.roles.refuse_unservable(case)
                yield case

    def _of(self, tested: Tested, name: str) -> Iterator[Case]:
        test = tested.test
        variables = {**self.defaults.vars, **test.vars}
        rubric = self.rubrics.of(tested, variables)
        grader = self._grader(tested, rubric)
        own = test.messages or self.defaults.messages
        prompts: tuple[Asked | None, ...] = (None,) if own else self.prompts or (None,)
        drafters = (None,) if test.output is not None else self.drafters or (self._drafter(),)
        for asked, drafter in product(prompts, drafters):
            said = self._conversation(tested, asked, variables)
            for count in range(1, self.repeat + 1):
                yield self._case(
                    tested,
                    {
                        "id": "/".join((name, *self._suffixes(asked, drafter, count, len(prompts), len(drafters)))),
                        "vars": variables,
                        "prompt": asked.label if asked and (asked.prompt.label or len(prompts) > 1) else None,
                        "rubric": rubric,
                        "grader": grader,
                        "repeat": count - 1,
                        **self._drafted(tested, drafter, said),
                    },
                )

    def _suffixes(self, asked: Asked | None, drafter: Drafter | None, count: int, prompts: int, drafters: int) -> Iterator[str]:
        if asked and prompts > 1:
            yield asked.label
        if drafter and drafters > 1:
            yield drafter.label
        if self.repeat > 1:
            yield str(count)

    def _grader(self, tested: Tested, rubric: Rubric) -> Grader | None:
        """Return who judges what names no judge of its own; None where nothing does."""
        if not any(None in criterion.judges for criterion in rubric.judged):
            return None
        return self.grader or tested.test.grader or self.defaults.grader or self.roles.grader()

    def _drafter(self) -> Drafter:
        generator = self.roles.generator()
        return Drafter(generator.model.id if generator.model else "", generator)

    def _conversation(self, tested: Tested, asked: Asked | None, variables: dict[str, JsonValue]) -> Conversation:
        test = tested.test
        if asked is not None:
            return of_prompt(asked.prompt, variables, tested.spot, clip(asked.label))
        if not test.messages:
            return of_messages(self.defaults.messages, variables, tested.spot)
        return of_messages(test.messages, None if tested.recorded else variables, tested.spot)

    def _drafted(self, tested: Tested, drafter: Drafter | None, said: Conversation) -> dict[str, object]:
        """Return what is judged, or who drafts it and how often."""
        test = tested.test
        if drafter is None:
            return {"messages": said.messages, "output": test.output, "loop": bool(test.loop) and self.loop is None}
        if drafter.generator is None:
            if len(said.messages) != 1:
                raise InvalidRequest(f"{tested.spot}: echo gives the prompt back, and this one is a chat; write it as one text")
            return {"label": drafter.label, "output": said.messages[0].content}
        if not said.messages:
            raise InvalidRequest(f"{tested.spot}: there is nothing to answer; give the suite prompts, or the test messages or an output")
        loop = next((each for each in (self.loop, test.loop, self.defaults.loop) if each is not None), False)
        return {
            "label": drafter.label,
            "messages": said.messages,
            "generator": said.led(drafter.generator, tested.spot),
            "loop": loop,
            "max_iterations": test.max_iterations or self.defaults.max_iterations or 3,
        }

    def _case(self, tested: Tested, raw: dict[str, object]) -> Case:
        try:
            case = Case.model_validate(raw | {"description": tested.test.description})
        except ValidationError as error:
            raise refused(error, tested.spot) from None
        if (size := case.size()) > CASE_BYTES:
            cure = "shorten its output, messages or vars"
            raise InvalidRequest(f"{tested.spot}: the case {clip(case.id)} has {size} bytes as JSON, {CASE_BYTES} at most; {cure}")
        return case


def refuse_twins(labels: list[str], spot: Spot) -> None:
    """Raise InvalidRequest where two prompts or generators have one label."""
    for at, label in enumerate(labels):
        if label in labels[:at]:
            raise InvalidRequest(f"{spot.at(at)}: the label {clip(label)} is there twice; give each a label of its own")
