"""Cases made of a suite: prompts, generators and tests multiplied out, with their ids and rubrics."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError

from gradeloop.batches.contract import CASE_BYTES, Case
from gradeloop.contract.messages import MESSAGE_BYTES, Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Generator, Grader
from gradeloop.errors import InvalidRequest, explain
from gradeloop.files.yaml import Location, located_error
from gradeloop.grading.templates import fill_rubric, fill_text, is_template
from gradeloop.settings.default_model import refuse_unservable_model, require_default_model
from gradeloop.suites.assertions import AssertionList, located
from gradeloop.suites.datasets import LocatedTest
from gradeloop.suites.suite import Defaults, GraderSetting, Prompt, SuiteMessage, SuiteSettings, SuiteTest
from gradeloop.text import clip

SLUG_CHARACTERS = 32
"""Of a made id, before its ten hexadecimal digits: enough to tell what the case is about."""


class CaseIds:
    """The ids of one suite, each of which is given once."""

    def __init__(self) -> None:
        self._places: dict[str, Location] = {}
        self._made: Counter[str] = Counter()

    def of(self, test: SuiteTest) -> str:
        """Return a test's own id, or one made of it; where others say the same, `-2`, `-3` is added in the order of the file."""
        if test.id is not None:
            return test.id
        made = make_id(test)
        self._made[made] += 1
        return made if self._made[made] == 1 else f"{made}-{self._made[made]}"

    def take(self, name: str, spot: Location) -> None:
        """Note where a case stands.

        Raises:
            InvalidRequest: Another one has the same id; both places are named.
        """
        first = self._places.setdefault(name, spot)
        if first is not spot:
            raise InvalidRequest(f"{spot}: the id {clip(name)} is that of {first}, too; give each test an id of its own")


def make_id(test: SuiteTest) -> str:
    """Return an id made of a test's description, variables and messages, or of all of it where it has none of them.

    So it stays when prompts, rubric or output change, and two batches can be compared.
    """
    told = test.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    asked = {name: told[name] for name in ("description", "vars", "messages") if name in told} or told
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, ensure_ascii=False).encode(errors="surrogatepass")).hexdigest()[:10]
    words = test.description or next((value for value in test.vars.values() if isinstance(value, str) and value.strip()), "")
    slug = re.sub(r"[^a-z0-9]+", "-", words[:200].lower()).strip("-")[:SLUG_CHARACTERS].rstrip("-")
    return f"{slug}-{digest}" if slug else f"case-{digest}"


_KEPT = 1000
"""Rubrics that are kept for tests with the same assertions."""


@dataclass(frozen=True)
class CaseRubrics:
    """Makes the rubrics of a suite's tests; equal literal ones are made once."""

    defaults: Defaults
    spot: Location
    """Where the defaults stand."""
    grader_given: bool = False
    """True: a grader named for this run takes the place of the defaults' provider."""
    _made: dict[str, Rubric] = field(default_factory=dict, repr=False)

    def of(self, tested: LocatedTest, variables: dict[str, JsonValue]) -> Rubric:
        """Return the rubric of a test, the variables filled in."""
        test = tested.test
        own = test.rubric or (self.defaults.rubric if not test.assertions else None)
        if own is None:
            return self._asserted(tested, variables)
        threshold = test.threshold if test.threshold is not None else self.defaults.threshold
        if threshold is not None:
            own = own.model_copy(update={"threshold": threshold})
        return _filled(own, variables, (tested.spot if test.rubric else self.spot).at("rubric"))

    def _asserted(self, tested: LocatedTest, variables: dict[str, JsonValue]) -> Rubric:
        test = tested.test
        told = (*located(self.defaults.assertions, self.spot.at("assert")), *located(test.assertions, tested.spot.at("assert")))
        if not told:
            raise InvalidRequest(f"{tested.spot}: there is nothing to judge by; give the test a rubric or assert, or the suite's defaults")
        threshold = test.threshold if test.threshold is not None else self.defaults.threshold
        options = self._options(tested)
        key = json.dumps([[value for value, _ in told], options, threshold])
        if key in self._made:
            return self._made[key]
        rubric = AssertionList(told, options, threshold).rubric(variables, tested.spot)
        if not is_template(key) and len(self._made) < _KEPT:
            self._made[key] = rubric
        return rubric

    def _options(self, tested: LocatedTest) -> dict[str, Any]:
        default = self.defaults.options.model_dump(by_alias=True, exclude_none=True)
        if self.grader_given:
            default.pop("provider", None)
        return default | tested.test.options.model_dump(by_alias=True, exclude_none=True)


def _filled(rubric: Rubric, variables: dict[str, JsonValue], where: Location) -> Rubric:
    if rubric.cleared:
        raise InvalidRequest(f"{where}: it is empty; write a criterion a line")
    if not is_template(rubric.model_dump_json()):
        return rubric
    try:
        return fill_rubric(rubric, variables)
    except InvalidRequest as error:
        raise InvalidRequest(f"{where}: {error}") from None
    except ValidationError as error:
        raise located_error(error, where) from None


SYSTEM_CHARACTERS = 65_536
"""Of a generator's system prompt, as in a thread's request."""


@dataclass(frozen=True)
class CasePrompt:
    """Messages, and what the generator is told before them."""

    messages: tuple[Message, ...] = ()
    system: str | None = None

    def led(self, generator: Generator, where: Location) -> Generator:
        """Return a generator whose system prompt ends with the conversation's.

        Raises:
            InvalidRequest: It takes none, or it would be too long.
        """
        if self.system is None:
            return generator
        if generator.model is None:
            raise InvalidRequest(f"{where}: a message of role 'system' is for a model; leave it out")
        whole = "\n\n".join(each for each in (generator.system_prompt, self.system) if each)
        if len(whole) > SYSTEM_CHARACTERS:
            raise InvalidRequest(f"{where}: the system prompt has {len(whole)} characters, {SYSTEM_CHARACTERS} at most; shorten it")
        return generator.model_copy(update={"system_prompt": whole})


def fill_prompt(prompt: Prompt, variables: Mapping[str, JsonValue], where: Location, name: str) -> CasePrompt:
    """Return a prompt with the variables in it; a text is one message of the user's."""
    said = prompt.messages or (SuiteMessage(role="user", content=prompt.text or ""),)
    return fill_messages(said, variables, where, f"prompt {name}")


def fill_messages(
    said: Sequence[SuiteMessage], variables: Mapping[str, JsonValue] | None, where: Location, what: str = "messages"
) -> CasePrompt:
    """Return messages, with the variables in them where there are any: those that were recorded are literal.

    Raises:
        InvalidRequest: A variable is missing, a system message is not at the beginning, or a message cannot be.
    """
    system: list[str] = []
    messages: list[Message] = []
    for at, each in enumerate(said):
        told = f"{where}: {what}[{at}]" if len(said) > 1 else f"{where}: {what}"
        content = each.content if variables is None else fill_text(each.content, variables, told, MESSAGE_BYTES)
        if each.role == "system" and messages:
            raise InvalidRequest(f"{told}: a message of role 'system' stands after others; put it at the beginning")
        if each.role == "system":
            system.append(content)
        else:
            messages.append(_message(each, content, Location(told)))
    return CasePrompt(tuple(messages), "\n\n".join(system) or None)


def _message(said: SuiteMessage, content: str, where: Location) -> Message:
    raw = said.model_dump(exclude={"content"}, exclude_none=True) | {"content": content}
    try:
        return Message.model_validate(raw)
    except ValidationError as error:
        raise located_error(error, where) from None


class SuiteModels:
    """The models of a suite's cases, each looked at once."""

    def __init__(self, *, scripted: bool) -> None:
        self.notes: list[str] = []
        """What was decided for the user."""
        self._scripted = scripted
        self._defaults: dict[str, ModelSpec] = {}
        self._served: set[str] = set()

    def generator(self) -> Generator:
        """Return the default one."""
        return Generator(model=self._default("generator"))

    def grader(self) -> Grader:
        """Return the default one."""
        return Grader(model=self._default("grader"))

    def _default(self, role: str) -> ModelSpec:
        if role not in self._defaults:
            chosen = require_default_model(os.environ, role)
            self._defaults[role] = chosen.spec
            self.notes.append(f"{role}: {chosen.spec.id}, because {chosen.variable} is set")
        return self._defaults[role]

    def refuse_unservable(self, case: Case) -> None:
        """Refuse a case whose models need a key, or a file of replies, that is not there; a named queue's worker has its own."""
        for where, model in _models(case):
            if model.id not in self._served and not os.environ.get("GRADELOOP_TASK_QUEUE"):
                refuse_unservable_model(f"case {case.id!r}: {where}", model, os.environ, scripted=self._scripted)
            self._served.add(model.id)


def _models(case: Case) -> Iterator[tuple[str, ModelSpec]]:
    if case.generator and case.generator.model:
        yield "generator.model", case.generator.model
    if case.grader and case.grader.model:
        yield "grader.model", case.grader.model
    for at, criterion in enumerate(case.rubric.criteria):
        yield from ((f"rubric.criteria[{at}].grader", judge) for judge in criterion.judges if isinstance(judge, ModelSpec))


@dataclass(frozen=True)
class NamedPrompt:
    """A prompt of the suite, and its name."""

    label: str
    prompt: Prompt


@dataclass(frozen=True)
class SuiteGenerator:
    """A column of the matrix."""

    label: str
    generator: Generator | None
    """None: the prompt itself is what is judged."""


@dataclass(frozen=True)
class Plan:
    """All that makes cases of tests."""

    prompts: tuple[NamedPrompt, ...]
    drafters: tuple[SuiteGenerator, ...]
    defaults: Defaults
    rubrics: CaseRubrics
    tests: Callable[[], Iterator[LocatedTest]]
    """Reads them anew each time."""
    roles: SuiteModels
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

    def _of(self, tested: LocatedTest, name: str) -> Iterator[Case]:
        test = tested.test
        variables = {**self.defaults.vars, **test.vars}
        rubric = self.rubrics.of(tested, variables)
        grader = self._grader(tested, rubric)
        own = test.messages or self.defaults.messages
        prompts: tuple[NamedPrompt | None, ...] = (None,) if own else self.prompts or (None,)
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

    def _suffixes(
        self, asked: NamedPrompt | None, drafter: SuiteGenerator | None, count: int, prompts: int, drafters: int
    ) -> Iterator[str]:
        if asked and prompts > 1:
            yield asked.label
        if drafter and drafters > 1:
            yield drafter.label
        if self.repeat > 1:
            yield str(count)

    def _grader(self, tested: LocatedTest, rubric: Rubric) -> Grader | None:
        """Return who judges what names no judge of its own; None where nothing does."""
        if not any(None in criterion.judges for criterion in rubric.judged):
            return None
        return self.grader or tested.test.grader or self.defaults.grader or self.roles.grader()

    def _drafter(self) -> SuiteGenerator:
        generator = self.roles.generator()
        return SuiteGenerator(generator.model.id if generator.model else "", generator)

    def _conversation(self, tested: LocatedTest, asked: NamedPrompt | None, variables: dict[str, JsonValue]) -> CasePrompt:
        test = tested.test
        if asked is not None:
            return fill_prompt(asked.prompt, variables, tested.spot, clip(asked.label))
        if not test.messages:
            return fill_messages(self.defaults.messages, variables, tested.spot)
        return fill_messages(test.messages, None if tested.recorded else variables, tested.spot)

    def _drafted(self, tested: LocatedTest, drafter: SuiteGenerator | None, said: CasePrompt) -> dict[str, object]:
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

    def _case(self, tested: LocatedTest, raw: dict[str, object]) -> Case:
        try:
            case = Case.model_validate(raw | {"description": tested.test.description})
        except ValidationError as error:
            raise located_error(error, tested.spot) from None
        if (size := case.size()) > CASE_BYTES:
            cure = "shorten its output, messages or vars"
            raise InvalidRequest(f"{tested.spot}: the case {clip(case.id)} has {size} bytes as JSON, {CASE_BYTES} at most; {cure}")
        return case


def refuse_duplicates(labels: list[str], spot: Location) -> None:
    """Raise InvalidRequest where two prompts or generators have one label."""
    for at, label in enumerate(labels):
        if label in labels[:at]:
            raise InvalidRequest(f"{spot.at(at)}: the label {clip(label)} is there twice; give each a label of its own")


MAX_CASES = 100_000
"""Cases of one batch at most: some hours of judging even with a hundred cases in flight. A larger suite is split into several batches."""

_NAMED = 10
"""How many case ids an error message lists."""


@dataclass(frozen=True)
class SuiteFlags:
    """Flags of `gradeloop eval` that override the suite file."""

    grader: str | None = None
    """The model that replaces the file's grader, except where a test or an assertion names its own."""
    filters: tuple[str, ...] = ()
    """Patterns with `*`, `?` and `[...]` on the cases' ids, or parts of them."""
    limit: int | None = None
    """How many of the selected cases run at most."""
    loop: bool | None = None
    repeat: int | None = None
    tools: tuple[Path, ...] = ()
    scripted: Path | None = None


@dataclass(frozen=True)
class Suite:
    """A suite whose cases are read as they are asked for."""

    name: str | None
    path: Path
    settings: SuiteSettings
    tools: tuple[Path, ...]
    scripted: Path | None
    outputs: tuple[Path, ...]
    """The output files that a promptfoo configuration names."""
    told: tuple[str, ...]
    """Warnings about settings that were ignored."""
    plan: Plan
    flags: SuiteFlags = SuiteFlags()

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings, and the default models that were chosen once all cases have been read."""
        return (*self.told, *dict.fromkeys(self.plan.roles.notes))

    def cases(self) -> Iterator[Case]:
        """Yield the cases in order, each time anew.

        Raises:
            InvalidRequest: A test is wrong, there are none, or too many.
        """
        for count, case in enumerate(self._selected(), 1):
            if count > MAX_CASES:
                cure = "split it into several suites, or run fewer cases with --limit"
                raise InvalidRequest(f"the suite {str(self.path)!r} has more than {MAX_CASES} cases; {cure}")
            yield case
            if count == self.flags.limit:
                return

    def _selected(self) -> Iterator[Case]:
        seen: list[str] = []
        selected = total = 0
        for case in self.plan.cases():
            total += 1
            if not self.flags.filters or any(_means(pattern, case.id) for pattern in self.flags.filters):
                selected += 1
                yield case
            elif len(seen) < _NAMED:
                seen.append(case.id)
        if not selected:
            more = f" and {total - len(seen)} more" if total > len(seen) else ""
            patterns = ", ".join(clip(pattern) for pattern in self.flags.filters)
            raise InvalidRequest(f"--filter: {patterns} matches no case of {str(self.path)!r}; its cases are {', '.join(seen)}{more}")


def _means(pattern: str, name: str) -> bool:
    return pattern in name or fnmatchcase(name, pattern)


def parse_grader(flag: str | None) -> Grader | None:
    """Return the grader that a flag names.

    Raises:
        InvalidRequest: It names no model.
    """
    try:
        return None if flag is None else TypeAdapter(GraderSetting).validate_python(flag)
    except ValidationError as error:
        raise InvalidRequest(f"--grader: {explain(error)}") from None
