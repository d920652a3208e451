"""A suite read from its file."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import JsonValue, ValidationError

from gradeloop.errors import InvalidRequest
from gradeloop.files.rubric import require_files
from gradeloop.files.yaml import Location, located_error, read_placed
from gradeloop.suites.datasets import LocatedTest, find_files, parse_row, read_rows, refuse_number
from gradeloop.suites.plan import (
    CaseRubrics,
    NamedPrompt,
    Plan,
    Suite,
    SuiteFlags,
    SuiteGenerator,
    SuiteModels,
    parse_grader,
    refuse_duplicates,
)
from gradeloop.suites.promptfoo import build_promptfoo_suite, is_promptfoo
from gradeloop.suites.suite import SuiteFile, SuiteSettings, SuiteTest, resolve_prompts, resolve_rubric, resolve_test

_YAML_SUFFIXES = (".yaml", ".yml", ".json")


def read_suite(path: Path, flags: SuiteFlags = SuiteFlags()) -> Suite:  # noqa: B008 - frozen
    """Read a suite, our own or a `promptfooconfig.yaml`; its tests are read as the cases are asked for.

    Raises:
        InvalidRequest: Something is missing or wrong; the message names file, line, field and cure.
    """
    if path.suffix not in _YAML_SUFFIXES:
        raise InvalidRequest(f"the suite {str(path)!r} is no YAML file; name one that ends with {', '.join(_YAML_SUFFIXES)}")
    value, placed = read_placed(path, "the suite")
    spot = Location(f"the suite {str(path)!r}", (), placed)
    if not isinstance(value, dict):
        raise InvalidRequest(f"{spot}: it is no mapping; write 'prompts:', 'rubric:' and 'tests:' with their values")
    if is_promptfoo(path, value):
        return build_promptfoo_suite(path, value, spot, flags)
    told = _suite(value, path.parent, spot)
    tools = require_files((*(path.parent / name for name in told.tools), *flags.tools), "tools")
    scripted = flags.scripted or (path.parent / told.scripted if told.scripted else None)
    if scripted:
        require_files((scripted,), "scripted")
    return Suite(
        name=told.name,
        path=path,
        settings=SuiteSettings.model_construct(**{name: getattr(told, name) for name in SuiteSettings.model_fields}),
        tools=tools,
        scripted=scripted,
        outputs=(),
        told=(),
        plan=_plan(told, path.parent, spot, flags, SuiteModels(scripted=scripted is not None)),
        flags=flags,
    )


def _suite(value: dict[str, JsonValue], folder: Path, spot: Location) -> SuiteFile:
    raw = value | resolve_rubric(value, folder, spot)
    if "prompts" in raw:
        raw["prompts"] = list(resolve_prompts(raw["prompts"], folder, spot.at("prompts")))
    if "defaults" in raw:
        raw["defaults"] = resolve_test(raw["defaults"], folder, spot.at("defaults"))
    if isinstance(tests := raw.get("tests"), list):
        raw["tests"] = [_test(each, folder, spot.at("tests", at)) for at, each in enumerate(tests)]
    try:
        told = SuiteFile.model_validate(raw)
    except ValidationError as error:
        raise located_error(error, spot) from None
    if not told.tests:
        raise InvalidRequest(f"{spot.at('tests')}: there are no tests; write them here, or name a file of them")
    return told


def _test(value: JsonValue, folder: Path, spot: Location) -> JsonValue:
    if isinstance(value, dict):
        refuse_number(value.get("output"), spot)
    return resolve_test(value, folder, spot)


def _plan(told: SuiteFile, folder: Path, spot: Location, flags: SuiteFlags, roles: SuiteModels) -> Plan:
    defaults = told.defaults.model_copy(
        update={
            "rubric": told.rubric or told.defaults.rubric,
            "grader": told.defaults.grader or told.grader,
            "loop": told.loop if told.defaults.loop is None else told.defaults.loop,
            "max_iterations": told.defaults.max_iterations or told.max_iterations,
        }
    )
    return Plan(
        prompts=_prompts(told, spot),
        drafters=_drafters(told, spot),
        defaults=defaults,
        rubrics=CaseRubrics(defaults, spot if told.rubric else spot.at("defaults"), grader_given=flags.grader is not None),
        tests=_Tests(told, folder, spot),
        roles=roles,
        repeat=flags.repeat or told.repeat,
        grader=parse_grader(flags.grader),
        loop=flags.loop,
    )


class _Tests:
    """Yields a suite's tests, the files' as they stand when it is called."""

    def __init__(self, told: SuiteFile, folder: Path, spot: Location) -> None:
        self._tests = told.tests
        self._spot = spot.at("tests")
        self._files = {at: find_files(each, folder, self._spot.at(at)) for at, each in enumerate(told.tests) if isinstance(each, str)}

    def __call__(self) -> Iterator[LocatedTest]:
        for at, each in enumerate(self._tests):
            if isinstance(each, SuiteTest):
                yield LocatedTest(each, self._spot.at(at))
            else:
                yield from (parse_row(row) for path in self._files[at] for row in read_rows(path))


def _prompts(told: SuiteFile, spot: Location) -> tuple[NamedPrompt, ...]:
    found = tuple(NamedPrompt(each.label or f"p{at}", each) for at, each in enumerate(told.prompts, 1))
    refuse_duplicates([each.label for each in found], spot.at("prompts"))
    return found


def _drafters(told: SuiteFile, spot: Location) -> tuple[SuiteGenerator, ...]:
    found = tuple(SuiteGenerator(generator.named, generator.plain()) for generator in told.generators)
    refuse_duplicates([each.label for each in found], spot.at("generators"))
    return found
