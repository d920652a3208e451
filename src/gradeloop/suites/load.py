"""Loads a suite from its file, our own or a `promptfooconfig.yaml`, and checks what of it would be taken."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import require_files
from gradeloop.files.yaml import Location, explained_at, read_placed
from gradeloop.grading.grants import named_in
from gradeloop.suites.datasets import LocatedTest, find_files, parse_row, read_rows, refuse_number
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.plan import CaseRubrics, NamedPrompt, Plan, Suite, SuiteGenerator, SuiteModels, parse_grader, refuse_duplicates
from gradeloop.suites.promptfoo import PromptfooConfig, build_promptfoo_suite, is_promptfoo
from gradeloop.suites.suite import SuiteFile, SuiteSettings, SuiteTest, resolve_prompts, resolve_rubric, resolve_test
from gradeloop.suites.unsupported import FindingGroup, Unsupported, UnsupportedFeatures, describe_group
from gradeloop.text import counted

_YAML_SUFFIXES = (".yaml", ".yml", ".json")


def read_suite(
    path: Path,
    flags: SuiteFlags = SuiteFlags(),  # noqa: B008 - frozen
    outside: Sequence[Path] = (),
    findings: UnsupportedFeatures | None = None,
) -> Suite:
    """Load a suite, our own or a `promptfooconfig.yaml`; files of tests are read when the cases are iterated.

    `outside`: the folders besides its own in which it may name files.

    Raises:
        InvalidRequest: Something is missing or invalid; the message names file, line, field and cure.
    """
    value, spot = _read_value(path, flags)
    promptfoo = is_promptfoo(path, value)
    value = flags.overrides.apply(value, promptfoo=promptfoo)
    scope = FileScope.of(path, (*outside, *flags.overrides.files))
    if promptfoo:
        known = UnsupportedFeatures(skips=flags.skip_unsupported or flags.check) if findings is None else findings
        suite = build_promptfoo_suite(PromptfooConfig(value, path, spot, scope), flags, known)
    else:
        suite = _build_suite(path, value, spot, flags, scope)
    return _with_variables(suite, flags.overrides.variables)


def _read_value(path: Path, flags: SuiteFlags) -> tuple[dict[str, JsonValue], Location]:
    """Return a suite's value with its place; an empty one where only the flags make the suite."""
    if path.suffix not in _YAML_SUFFIXES:
        raise InvalidRequest(f"the suite {str(path)!r} is not a YAML file; name one that ends with {', '.join(_YAML_SUFFIXES)}")
    if flags.overrides.makes_suite and not path.exists():
        return {}, Location("the flags")
    value, placed = read_placed(path, "the suite", aliases=True)
    spot = Location(f"the suite {str(path)!r}", (), placed)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{spot}: it is not a mapping; write 'prompts:', 'rubric:' and 'tests:' with their values")
    return value, spot


def _with_variables(suite: Suite, variables: Mapping[str, str]) -> Suite:
    """Return a suite whose tests have these values where they set none themselves."""
    if not variables:
        return suite
    defaults = suite.plan.defaults.model_copy(update={"vars": {**suite.plan.defaults.vars, **variables}})
    return replace(suite, plan=replace(suite.plan, defaults=defaults))


def _build_suite(path: Path, value: dict[str, JsonValue], spot: Location, flags: SuiteFlags, scope: FileScope) -> Suite:
    suite = _parse_suite(value, scope, spot)
    tools = require_files((*(scope.find(name, spot.at("tools")) for name in suite.tools), *flags.tools), "tools")
    scripted = flags.scripted or (scope.find(suite.scripted, spot.at("scripted")) if suite.scripted else None)
    if scripted:
        require_files((scripted,), "scripted")
    queues = {named.value for named in named_in(suite) if named.kind == "queue"}
    models = SuiteModels(scripted=scripted is not None, checks=flags.check, allow_code=flags.allow_code, queues=queues)
    return Suite(
        name=suite.name,
        path=path,
        settings=SuiteSettings.model_construct(**{name: getattr(suite, name) for name in SuiteSettings.model_fields}),
        tools=tools,
        scripted=scripted,
        outputs=(),
        plan=_build_plan(suite, scope, spot, flags, models),
        flags=flags,
    )


def _parse_suite(value: dict[str, JsonValue], scope: FileScope, spot: Location) -> SuiteFile:
    raw = value | resolve_rubric(value, scope, spot)
    if "prompts" in raw:
        raw["prompts"] = list(resolve_prompts(raw["prompts"], scope, spot.at("prompts")))
    if "defaults" in raw:
        raw["defaults"] = resolve_test(raw["defaults"], scope, spot.at("defaults"))
    if isinstance(tests := raw.get("tests"), list):
        raw["tests"] = [_resolve_test(test, scope, spot.at("tests", at)) for at, test in enumerate(tests)]
    with explained_at(spot):
        suite = SuiteFile.model_validate(raw)
    if not suite.tests:
        raise InvalidRequest(f"{spot.at('tests')}: there are no tests; write them here, or name a file of them")
    return suite


def _resolve_test(value: JsonValue, scope: FileScope, spot: Location) -> JsonValue:
    if isinstance(value, dict):
        refuse_number(value.get("output"), spot)
    return resolve_test(value, scope, spot)


def _build_plan(suite: SuiteFile, scope: FileScope, spot: Location, flags: SuiteFlags, models: SuiteModels) -> Plan:
    defaults = suite.defaults.model_copy(
        update={
            "rubric": suite.rubric or suite.defaults.rubric,
            "grader": suite.defaults.grader or suite.grader,
            "loop": suite.loop if suite.defaults.loop is None else suite.defaults.loop,
            "max_iterations": suite.defaults.max_iterations or suite.max_iterations,
        }
    )
    prompts = tuple(NamedPrompt(prompt.label or f"p{at}", prompt) for at, prompt in enumerate(suite.prompts, 1))
    generators = tuple(SuiteGenerator(generator.named, generator.plain()) for generator in suite.generators)
    refuse_duplicates([prompt.label for prompt in prompts], spot.at("prompts"))
    refuse_duplicates([generator.label for generator in generators], spot.at("generators"))
    return Plan(
        prompts=prompts,
        generators=generators,
        defaults=defaults,
        rubrics=CaseRubrics(
            defaults, spot if suite.rubric else spot.at("defaults"), grader_given=flags.grader is not None, allow_code=flags.grant(scope)
        ),
        tests=_tests_of(suite, scope, spot.at("tests")),
        models=models,
        repeat=flags.repeat or suite.repeat,
        grader=parse_grader(flags.grader),
        loop=flags.loop,
    )


def _tests_of(suite: SuiteFile, scope: FileScope, spot: Location) -> Callable[[], Iterator[LocatedTest]]:
    """Return what yields the tests of a suite; the files of tests are found now, and read at each call."""
    files = {at: find_files(test, scope, spot.at(at)) for at, test in enumerate(suite.tests) if isinstance(test, str)}

    def tests() -> Iterator[LocatedTest]:
        for at, test in enumerate(suite.tests):
            if isinstance(test, SuiteTest):
                yield LocatedTest(test, spot.at(at))
            else:
                yield from (parse_row(row) for path in files[at] for row in read_rows(path))

    return tests


Verdict = Literal["whole", "in part", "refused"]
"""`in part`: with `--skip-unsupported` some of it runs, and the rest is not judged."""


@dataclass(frozen=True)
class CheckedSuite:
    """A suite's file, and what of it is taken."""

    path: Path
    verdict: Verdict
    cases: int
    """The cases that run, whole or in part."""
    not_whole: int
    """The cases of which something is left out, the ones that do not run included."""
    asks_nothing: int
    """The cases that nothing is asked of."""
    refusal: str | None
    """The reason why nothing of it runs; None if some of it does."""
    findings: tuple[FindingGroup, ...]

    def lines(self) -> list[str]:
        """Return the report as text: the verdict, and a line for each kind of finding."""
        counts = [counted(self.cases, "case")]
        counts += [f"{self.not_whole:,} not judged whole"] if self.not_whole else []
        counts += [f"{self.asks_nothing:,} without assertions"] if self.asks_nothing else []
        found = [f"  {describe_group(group)}" for group in self.findings]
        if self.refusal is not None:
            return [f"{self.path}: refused: {self.refusal}", *found]
        return [f"{self.path}: taken {'whole' if self.verdict == 'whole' else 'in part'}: {', '.join(counts)}", *found]

    def as_json(self) -> dict[str, object]:
        """Return the report as an object for programs."""
        return asdict(self) | {"path": str(self.path)}


def check_suite(
    path: Path, flags: SuiteFlags, outside: Sequence[Path] = (), refuse: Callable[[Suite], None] = lambda _: None
) -> CheckedSuite:
    """Read a suite's file with all its tests, and return what of it is taken; `refuse` raises InvalidRequest where no worker takes it."""
    findings = UnsupportedFeatures(skips=True)
    try:
        suite = read_suite(path, replace(flags, check=True), outside, findings)
        cases = not_whole = asks_nothing = 0
        for case in suite.cases():
            cases += case.runs
            not_whole += bool(case.left_out)
            asks_nothing += case.asks_nothing and not case.left_out
        refuse(suite)
    except InvalidRequest as error:
        refused = Unsupported(str(error), "refused")
        others = tuple(group for group in findings.groups() if group.effect != "no effect")
        return CheckedSuite(path, "refused", 0, 0, 0, refused.message, others)
    whole = findings.is_whole and not not_whole
    return CheckedSuite(path, "whole" if whole else "in part", cases, not_whole, asks_nothing, None, findings.groups())
