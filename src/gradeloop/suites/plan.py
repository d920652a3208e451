"""The cases of a suite: prompts, generators and tests multiplied out, with their ids and rubrics."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import groupby, islice, product
from pathlib import Path
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import to_json

from gradeloop.batches.contract import CASE_BYTES, COMPARED_CASES, Case
from gradeloop.batches.draft_checks import COMPARISON_CHECK
from gradeloop.contract.base import CodeText
from gradeloop.contract.model_spec import HTTP_REQUEST, ModelSpec
from gradeloop.contract.named_metrics import MetricShare
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import Generator, Grader
from gradeloop.errors import InvalidRequest, explained, field_path
from gradeloop.files.yaml import Location, explained_at, located_error
from gradeloop.grading.code_checks import CODE_CHECK
from gradeloop.grading.grants import Grants, Kind
from gradeloop.grading.templates import LateText, fill_rubric, is_template, late_names
from gradeloop.settings.endpoints import UNNAMED, loopback_servers, own_names, refuse_unservable, require_default_model
from gradeloop.settings.trust import find_config_file
from gradeloop.suites import case_texts
from gradeloop.suites.assertions import AssertionList, located, shows_variables
from gradeloop.suites.chats import without_images
from gradeloop.suites.code_files import CodeGrant
from gradeloop.suites.datasets import LocatedTest
from gradeloop.suites.flags import PlannedCase, SuiteFlags
from gradeloop.suites.suite import Defaults, GraderSetting, Prompt, SuiteMessage, SuiteSettings
from gradeloop.suites.unsupported import UnsupportedFeatures
from gradeloop.text import clip

_NOTHING = Rubric(criteria=())
"""The rubric of a test that asks for no verdict."""

_CACHED_RUBRICS = 1000
"""The most rubrics that are kept for tests with the same assertions."""


@dataclass(frozen=True)
class TestRubric:
    """The rubric of a test, and what of its assertions is left out."""

    rubric: Rubric
    left_out: tuple[str, ...] = ()
    metrics: tuple[MetricShare, ...] = ()


@dataclass(frozen=True)
class CaseRubrics:
    """Builds the rubrics of a suite's tests; equal ones without templates are built once."""

    defaults: Defaults
    spot: Location
    """The place of the defaults in the suite."""
    grader_given: bool = False
    """Whether a flag names the grader, which then replaces the defaults' provider."""
    allow_code: CodeGrant = field(default_factory=CodeGrant)
    """The user's leave for the code of the suite to run, and what it may import."""
    findings: UnsupportedFeatures = field(default_factory=UnsupportedFeatures)
    """Takes the assertions that are not supported."""
    asks_nothing: bool = False
    """Whether a test may ask for no verdict."""
    _made: dict[str, TestRubric] = field(default_factory=dict, repr=False)

    def build(self, located_test: LocatedTest, variables: dict[str, JsonValue]) -> TestRubric:
        """Return the rubric of a test with the variables filled in."""
        test = located_test.test
        own = test.rubric or (self.defaults.rubric if not test.assertions else None)
        if own is None:
            return self._build_from_assertions(located_test, variables)
        threshold = test.threshold if test.threshold is not None else self.defaults.threshold
        if threshold is not None:
            own = own.model_copy(update={"threshold": threshold})
        return TestRubric(_filled(own, variables, (located_test.spot if test.rubric else self.spot).at("rubric")))

    def _build_from_assertions(self, located_test: LocatedTest, variables: dict[str, JsonValue]) -> TestRubric:
        test = located_test.test
        shared = () if test.options.disable_default_asserts else located(self.defaults.assertions, self.spot.at("assert"))
        assertions = (*shared, *located(test.assertions, located_test.spot.at("assert")))
        if not assertions and self.asks_nothing:
            return TestRubric(_NOTHING)
        if not assertions:
            raise InvalidRequest(
                f"{located_test.spot}: there is nothing to judge by; give the test a rubric or assert, or the suite's defaults"
            )
        threshold = test.threshold if test.threshold is not None else self.defaults.threshold
        options = self._options(located_test)
        # Suites have thousands of tests with the same assertions, and building their rubric is most of the
        # work. It is kept by what it is made of, but only where neither a template nor a check reads the test's
        # variables: otherwise the first test's values would be judged in all of them.
        key = json.dumps([[value for value, _ in assertions], options, threshold])
        if key in self._made:
            return self._made[key]
        built = self._build_what_can(
            AssertionList(assertions, options, threshold, allow_code=self.allow_code.allowed), variables, located_test.spot
        )
        if not is_template(key) and not any(shows_variables(value) for value, _ in assertions) and len(self._made) < _CACHED_RUBRICS:
            self._made[key] = built
        return built

    def _build_what_can(self, listed: AssertionList, variables: dict[str, JsonValue], spot: Location) -> TestRubric:
        """Build a rubric of the assertions that are supported, and leave out the others.

        Raises:
            InvalidRequest: An assertion has none, and nothing may be left out; or all together make no rubric.
        """
        try:
            return _built(listed, variables, spot)
        except InvalidRequest:
            if not self.findings.skips:
                raise
        kept, reasons = [], list[str]()
        for assertion in listed.assertions:
            with self.findings.leaving_out("not judged", reasons):
                replace(listed, assertions=(assertion,)).rubric(variables, spot)
                kept.append(assertion)
        if not kept or not reasons:
            return TestRubric(_NOTHING, tuple(reasons)) if reasons else _built(listed, variables, spot)
        return replace(_built(replace(listed, assertions=tuple(kept)), variables, spot), left_out=tuple(reasons))

    def _options(self, located_test: LocatedTest) -> dict[str, Any]:
        default = self.defaults.options.model_dump(by_alias=True, exclude_none=True)
        if self.grader_given:
            default.pop("provider", None)
        return default | located_test.test.options.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)


def _built(listed: AssertionList, variables: dict[str, JsonValue], spot: Location) -> TestRubric:
    rubric = listed.rubric(variables, spot)
    return TestRubric(rubric, metrics=listed.metrics(rubric, variables))


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


MOST_ASKED = 1_000
"""The most cases of a suite that a worker is asked about: those that differ in more than their texts are few."""


class SuiteModels:
    """The default models of a suite, and the check that every model can be served, once each.

    Where `checks` is set nothing is going to run: no key is asked for. Cases name only the `queues` that the suite's own text names:
    neither a row of a dataset nor a file of promptfoo's calls an activity that is not ours. None has code without `allow_code`.
    """

    def __init__(self, *, scripted: bool, checks: bool = False, allow_code: bool = False, queues: Iterable[str] = ()) -> None:
        self.notes: list[str] = []
        """The default models that were chosen, and why."""
        self.asked: dict[bytes, Case] = {}
        """The first of the cases that a worker serves alike, by what is asked of it; filled only with `checks`."""
        self.local_servers: frozenset[str] = frozenset()
        """The loopback addresses that models of the cases so far have."""
        self._scripted = scripted
        self._checks = checks
        self._endpoints: frozenset[str] | None = None
        self._defaults: dict[str, ModelSpec] = {}
        cure = "leave it out, or name a queue in the suite's own file and allow code with --allow-code"
        kinds: set[Kind] = {"queue"} if allow_code else {"queue", "code"}
        self._grants = Grants(frozenset(kinds), frozenset(("queue", queue) for queue in queues), cure)

    def generator(self) -> Generator:
        """Return the default generator."""
        return Generator(model=self._default("generator"))

    def grader(self) -> Grader:
        """Return the default grader."""
        return Grader(model=self._default("grader"))

    def _default(self, role: str) -> ModelSpec:
        if role not in self._defaults:
            if self._checks:
                return ModelSpec(id=UNNAMED)
            chosen = require_default_model(os.environ, role)
            self._defaults[role] = chosen.spec
            self.notes.append(f"{role}: {chosen.spec.id}, because {chosen.variable} is set")
        return self._defaults[role]

    def refuse_unservable(self, case: Case) -> None:
        """Refuse a case that names a foreign queue, or whose models need a missing key or file of replies.

        The worker of a named task queue has keys of its own.
        """
        if self._checks and case.runs and len(self.asked) < MOST_ASKED:
            self.asked.setdefault(
                to_json([case.generator, case.grader, case.escalate, case.rubric, case.transforms, case.after_each]), case
            )
        place = f"case {case.id!r}: "
        self._grants.check(case, place)
        if not os.environ.get("GRADELOOP_TASK_QUEUE"):
            if self._endpoints is None:
                self._endpoints = own_names(os.environ, find_config_file((), os.environ))
            calls, endpoints = not self._checks, self._endpoints
            self.local_servers |= loopback_servers(case)
            refuse_unservable(case, os.environ, scripted=self._scripted, endpoints=endpoints, calls=calls, place=place)


@dataclass(frozen=True)
class NamedPrompt:
    """A prompt of the suite with its label."""

    label: str
    prompt: Prompt
    code: CodeText | None = None
    """The function that makes it of a test's variables."""
    left_out: tuple[str, ...] = ()
    """The reasons why it is not run; empty if it is."""
    config: Mapping[str, JsonValue] | None = None
    """Settings that take the place of a provider's own for this prompt."""


@dataclass(frozen=True)
class SuiteGenerator:
    """A generator of the suite with its label: a column of the matrix."""

    label: str
    generator: Generator | None
    """None where the prompt itself is judged."""
    transform: CodeText | None = None
    """The code that makes of its output what is judged."""
    code: CodeText | None = None
    """The function that answers, where it is a custom provider."""
    left_out: tuple[str, ...] = ()
    """The parts of it that are not supported and are left out, so that none of its cases passes."""
    runs: bool = True
    """Whether it runs at all."""
    prompts: tuple[str, ...] | None = None
    """The labels of the prompts that it runs with; None for all."""
    around: tuple[str, str] = ("", "")
    """The texts before and after its prompts."""
    reply: CodeText | None = None
    """The code that makes of an address's reply its output, before any transform."""

    @property
    def is_address(self) -> bool:
        """Whether it is a request to an address."""
        return self.generator is not None and self.generator.model is not None and self.generator.model.provider == HTTP_REQUEST


def _is_named(label: str, names: tuple[str, ...] | None) -> bool:
    return names is None or any(label == name or label.startswith(f"{name}:") or fnmatchcase(label, name) for name in names)


@dataclass(frozen=True)
class Plan:
    """Builds the cases of a suite from its tests."""

    prompts: tuple[NamedPrompt, ...]
    generators: tuple[SuiteGenerator, ...]
    defaults: Defaults
    rubrics: CaseRubrics
    tests: Callable[[], Iterator[LocatedTest]]
    """Yields the tests, read anew at each call."""
    models: SuiteModels
    repeat: int = 1
    grader: Grader | None = None
    """The grader that a flag names instead of the file's."""
    loop: bool | None = None
    """Whether cases loop, where a flag says so; None leaves it to the file."""
    findings: UnsupportedFeatures = field(default_factory=UnsupportedFeatures)
    """Takes what is not supported."""
    left_out: tuple[str, ...] = ()
    """The parts that are left out for all cases, so that none of them passes."""
    by_prompt: Mapping[tuple[str, str], SuiteGenerator] = field(default_factory=dict)
    """The generators of prompts with settings of their own, by the labels of both."""
    after_each: tuple[CodeText, ...] = ()
    """The hooks that are called with each result, which are told the metadata of its test."""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    """The metadata of all tests, of which a test's own take the place."""
    allows_unknown: bool = False
    """Whether a variable that a prompt names and a test lacks is empty, with a note."""

    @property
    def local_servers(self) -> frozenset[str]:
        """The loopback addresses of the models that the suite itself names, and those of the cases so far."""
        named = [self.defaults, self.grader, *(one.generator for one in self.generators)]
        return self.models.local_servers | loopback_servers(named)

    def cases(self) -> Iterator[PlannedCase]:
        """Yield the cases in order, each with its test.

        Raises:
            InvalidRequest: A test is invalid; the message names its place. Or nothing is left to run.
        """
        ids, turns = (
            case_texts.CaseIds(),
            case_texts.FollowedCases(talks=any(case_texts.mentions_conversation(named.prompt) for named in self.prompts)),
        )
        runs = 0
        for located_test in self.tests():
            name = ids.derive(located_test.test)
            for case in self._cases_of(located_test, name, turns):
                ids.take(case.id, located_test.spot)
                runs += case.runs
                yield PlannedCase(located_test, case, f"{name}/{case.repeat}")
        if not runs and (first := next((item for item in self.findings.items if item.effect == "not run"), None)):
            raise InvalidRequest(f"{first.message} (nothing is left to run)")

    def _variables(self, located_test: LocatedTest) -> dict[str, JsonValue]:
        """Return the variables of a test."""
        variables = {**self.defaults.vars, **located_test.test.vars, **located_test.late}
        return variables | {name: LateText(text) for name, text in variables.items() if isinstance(text, str) and late_names(text)}

    def _cases_of(self, located_test: LocatedTest, name: str, turns: case_texts.FollowedCases) -> Iterator[Case]:
        variables = self._variables(located_test)
        try:
            built = self._build_rubric(located_test, variables) if located_test.runs else TestRubric(_NOTHING)
        except InvalidRequest as error:
            left_out = (*located_test.left_out, self.findings.leave_out(error, "not run"))
            located_test, built = replace(located_test, left_out=left_out, runs=False), TestRubric(_NOTHING)
        if not located_test.runs:
            yield self._build_case(located_test, {"id": name, "left_out": located_test.left_out, "vars": located_test.test.vars})
            return
        grader, judged = self._grader(located_test, built.rubric), built.rubric.judged
        has_code = bool(built.rubric.checks(CODE_CHECK)) or any(criterion.transform for criterion in judged)  # which reads variables
        repeat = self.repeat if located_test.repeat is None else located_test.repeat
        for named, generator, labels in self._columns(located_test):
            for count in range(1, repeat + 1):
                raw: dict[str, object] = {
                    "id": "/".join(filter(None, (name, *labels, str(count) if repeat > 1 else ""))),
                    "vars": {key: without_images(value) for key, value in variables.items() if has_code or key not in located_test.late},
                    "prompt": named.label if named and (named.prompt.label or labels[0]) else None,
                    "label": generator.label if generator else None,
                    "repeat": count - 1,
                    "grader": grader,
                }
                column = (raw["prompt"], raw["label"], count)
                turn = turns.before(located_test, named.prompt if named else None, column)
                yield turns.follow(turn, column, self._case(turn, built, raw, named, generator))

    def _case(
        self,
        located_test: LocatedTest,
        built: TestRubric,
        raw: dict[str, object],
        named: NamedPrompt | None,
        generator: SuiteGenerator | None,
    ) -> Case:
        """Build a case of a test with a prompt and a generator; where one of them does not run, a case that is only reported."""
        parts = (self, located_test, built, named, generator)
        left_out = tuple(dict.fromkeys(reason for part in parts if part is not None for reason in part.left_out))
        if (named and named.left_out) or (generator and not generator.runs):
            return self._build_case(located_test, raw | {"left_out": left_out})
        # A test that cannot be asked as it is written becomes a case that only reports why. If it were dropped, the
        # suite would pass without it.
        try:
            prompt = self._fill_prompt(located_test, named, self._variables(located_test), generator)
            asked = self._output_or_generator(located_test, generator, prompt)
            own = tuple(code for code in (generator.reply, generator.transform) if code) if generator else ()
            asked |= {"transforms": case_texts.transforms_of(located_test, self.defaults, own, allow_code=self.rubrics.allow_code.allowed)}
            case_texts.refuse_unknown_call(built.rubric, asked, located_test.spot)
        except InvalidRequest as error:
            reason = self.findings.leave_out(error, "not run")
            return self._build_case(located_test, raw | {"left_out": (*left_out, reason)})
        abstain = located_test.test.abstain or self.defaults.abstain
        judged = {"abstain": abstain, "escalate": (located_test.test.escalate or self.defaults.escalate) if abstain else None}
        given = judged | {"rubric": built.rubric, "metrics": built.metrics, "left_out": left_out}
        if self.after_each:
            given |= {"after_each": self.after_each, "metadata": {**self.metadata, **located_test.test.metadata}}
        nothing = {} if built.rubric.criteria else {"asks_nothing": True, "loop": False}
        return self._build_case(located_test, raw | given | asked | nothing)

    def _columns(self, located_test: LocatedTest) -> list[tuple[NamedPrompt | None, SuiteGenerator | None, tuple[str, str]]]:
        """Return the prompts and generators that a test runs with, and of each pair the labels that tell it from others."""
        test = located_test.test
        prompts: tuple[NamedPrompt | None, ...] = (None,) if test.messages or self.defaults.messages else self.prompts or (None,)
        generators: tuple[SuiteGenerator | None, ...] = (None,) if test.output is not None else self.generators
        if not generators:
            default = self.models.generator()
            generators = (SuiteGenerator(default.model.id if default.model else "", default),)
        found = [
            (
                named,
                self.by_prompt.get((named.label, generator.label), generator) if named and generator else generator,
                (named.label if named and len(prompts) > 1 else "", generator.label if generator and len(generators) > 1 else ""),
            )
            for named, generator in product(prompts, generators)
            if (named is None or _is_named(named.label, located_test.prompts))
            and (generator is None or _is_named(generator.label, located_test.providers))
            and (named is None or generator is None or _is_named(named.label, generator.prompts))
        ]
        if not found:
            raise InvalidRequest(f"{located_test.spot}: none of the prompts and providers has a label that it names; correct the labels")
        return found

    def _build_rubric(self, located_test: LocatedTest, variables: dict[str, JsonValue]) -> TestRubric:
        """Return the rubric of a test; what is wrong with one that several tests share is said with the test that it is wrong for."""
        try:
            return self.rubrics.build(located_test, variables)
        except InvalidRequest as error:
            text, spot = str(error), located_test.spot
            if field_path(spot.path) in text and text.startswith(spot.file):
                raise
            raise InvalidRequest(f"{text} (for {spot})") from None

    def _grader(self, located_test: LocatedTest, rubric: Rubric) -> Grader | None:
        """Return the grader of the criteria that name no judge of their own; None where there are none."""
        asked = [check.arguments for _, check in rubric.checks(COMPARISON_CHECK)]
        chooses = any(one["kind"] == "select-best" and not one.get("grader") for one in asked)
        if not chooses and not any(None in criterion.judges for criterion in rubric.judged):
            return None
        return self.grader or located_test.test.grader or self.defaults.grader or self.models.grader()

    def _fill_prompt(
        self, located_test: LocatedTest, prompt: NamedPrompt | None, variables: dict[str, JsonValue], generator: SuiteGenerator | None
    ) -> case_texts.CasePrompt:
        test = located_test.test
        if prompt is not None and prompt.code is not None:
            label, allowed = generator.label if generator else None, self.rubrics.allow_code
            made = case_texts.prompt_of_code(prompt.code, variables, label, located_test.spot, allow_code=allowed)
            messages = made.messages or (SuiteMessage.model_construct(role="user", content=made.text or ""),)
            filled = case_texts.fill_messages(messages, None, located_test.spot, f"prompt {clip(prompt.label)}")
            return filled.between(*generator.around) if generator else filled
        if prompt is not None:
            note = self.findings.note if self.allows_unknown else None
            called = generator is not None and (generator.code is not None or generator.is_address)
            filled = case_texts.fill_prompt(prompt.prompt, variables, located_test.spot, clip(prompt.label), note, may_be_blank=called)
            filled = filled.between(*located_test.around)
            return filled.between(*generator.around) if generator else filled
        if not test.messages:
            return case_texts.fill_messages(self.defaults.messages, variables, located_test.spot)
        return case_texts.fill_messages(test.messages, None if located_test.recorded else variables, located_test.spot)

    def _output_or_generator(
        self, located_test: LocatedTest, generator: SuiteGenerator | None, prompt: case_texts.CasePrompt
    ) -> dict[str, object]:
        """Return the fields of a case that say what is judged, or who drafts it and how often."""
        test = located_test.test
        variables = self._variables(located_test)
        if generator is None:
            return {
                "messages": prompt.messages,
                "images": prompt.images,
                "output": test.output,
                "loop": bool(test.loop) and self.loop is None,
            }
        if generator.generator is None:
            if prompt.images:
                raise InvalidRequest(f"{located_test.spot}: an image is for a model; leave it out")
            if generator.code is not None:
                text, allowed = prompt.as_text(), self.rubrics.allow_code
                output = case_texts.output_of_code(generator.code, text, variables, located_test.spot, allow_code=allowed)
                return {"messages": prompt.messages, "output": output}
            if len(prompt.messages) != 1:
                raise InvalidRequest(f"{located_test.spot}: echo gives the prompt back, and this one is a chat; write it as one text")
            return {"output": prompt.messages[0].content}
        if not prompt.messages:
            raise InvalidRequest(
                f"{located_test.spot}: there is nothing to answer; give the suite prompts, or the test messages or an output"
            )
        loop = next((loop for loop in (self.loop, test.loop, self.defaults.loop) if loop is not None), False)
        instructed = prompt.instruct(generator.generator, located_test.spot)
        return {
            "messages": prompt.messages,
            "images": prompt.images,
            "generator": case_texts.fill_target(instructed, prompt.as_text(), variables, located_test.spot),
            "loop": loop,
            "max_iterations": test.max_iterations or self.defaults.max_iterations or 3,
        }

    def _build_case(self, located_test: LocatedTest, raw: dict[str, object]) -> Case:
        with explained_at(located_test.spot):
            case = Case.model_validate({"rubric": _NOTHING} | raw | {"description": located_test.test.description})
        if (size := case.size()) > CASE_BYTES:
            cure = "shorten its output, messages or vars"
            raise InvalidRequest(f"{located_test.spot}: the case {clip(case.id)} has {size} bytes as JSON, {CASE_BYTES} at most; {cure}")
        return case


def refuse_duplicates(labels: list[str], spot: Location) -> None:
    """Raise InvalidRequest where two prompts or generators have one label."""
    for at, label in enumerate(labels):
        if label in labels[:at]:
            raise InvalidRequest(f"{spot.at(at)}: the label {clip(label)} is there twice; give each a label of its own")


MAX_CASES = 100_000
"""Cases of one batch at most: some hours of judging even with a hundred cases in flight. A larger suite is split into several batches."""

_LISTED_IDS = 10
"""The most case ids that an error message lists."""


@dataclass(frozen=True)
class Suite:
    """A suite whose tests are read as its cases are iterated."""

    name: str | None
    path: Path
    settings: SuiteSettings
    tools: tuple[Path, ...]
    scripted: Path | None
    outputs: tuple[Path, ...]
    """The output files that a promptfoo configuration names."""
    plan: Plan
    flags: SuiteFlags = SuiteFlags()  # noqa: RUF009 - frozen

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on what was ignored, and on the default models that were chosen once all cases have been read."""
        return (*self.plan.findings.notes, *dict.fromkeys(self.plan.models.notes))

    def cases(self) -> Iterator[Case]:
        """Yield the cases in order, each time anew; raise InvalidRequest for an invalid test, too many cases, or none by a filter."""
        for count, case in enumerate(with_rivals(islice(self._selected(), self.flags.limit)), 1):
            if count > MAX_CASES:
                cure = "split it into several suites, or run fewer cases with --limit"
                raise InvalidRequest(f"the suite {str(self.path)!r} has more than {MAX_CASES} cases; {cure}")
            yield case

    def _selected(self) -> Iterator[PlannedCase]:
        """Yield the cases that the flags select, once their models are known to be served."""
        total, first, selected = 0, list[str](), False

        def named() -> Iterator[PlannedCase]:
            nonlocal total
            for planned in self.plan.cases():
                total += 1
                first.extend([planned.case.id] if total <= _LISTED_IDS else [])
                filters, name = self.flags.filters, planned.case.id
                if not filters or any(pattern in name or fnmatchcase(name, pattern) for pattern in filters):
                    yield planned

        for planned in self.flags.select.select(named()):
            selected = True
            self.plan.models.refuse_unservable(planned.case)
            yield planned
        if not selected:
            more = f" and {total - len(first)} more" if total > len(first) else ""
            patterns = ", ".join(clip(pattern) for pattern in self.flags.filters)
            flags = "; ".join(part for part in (f"--filter: {patterns}" if patterns else "", str(self.flags.select)) if part)
            raise InvalidRequest(f"{flags} matches no case of {str(self.path)!r}; its cases are {', '.join(first)}{more}")


def with_rivals(planned: Iterable[PlannedCase]) -> Iterator[Case]:
    """Yield cases, those to be compared with the ids of all of them; raise InvalidRequest where there is one output, or too many."""
    # Only the cases of one test are held at once, since each of those that are compared names all others. The ids
    # of all cases so far are kept, since a case may follow only one that is selected.
    selected = set[str]()
    for _, found in groupby(planned, key=lambda one: id(one.test)):
        cases = list(found)
        selected.update(one.case.id for one in cases)
        for test, case, _ in cases:
            if left := next((name for name in case.follows.values() if name not in selected), None):
                raise InvalidRequest(
                    f"{test.spot}: the case {clip(case.id)} follows {clip(left)}, which the flags leave out; select it, too"
                )
        for test, case, group in cases:
            kinds = [str(check.arguments["kind"]) for _, check in case.rubric.checks(COMPARISON_CHECK)]
            if not kinds:
                yield case
                continue
            ids = tuple(other.case.id for other in cases if other.group == group and other.case.rubric.checks(COMPARISON_CHECK))
            if not 1 < len(ids) <= COMPARED_CASES:
                what = f"compares the outputs of several prompts or providers, {COMPARED_CASES} at most, and this test has {len(ids)}"
                raise InvalidRequest(f"{test.spot}: {kinds[0]} {what}")
            yield Case.model_validate(case.model_dump() | {"compared_with": ids})


def parse_grader(flag: str | None) -> Grader | None:
    """Return the grader that `--grader` names; raise InvalidRequest where the flag names no model."""
    with explained("--grader: "):
        return None if flag is None else TypeAdapter(GraderSetting).validate_python(flag)
