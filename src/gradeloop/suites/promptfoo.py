"""Configurations of promptfoo, read as suites."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue, ValidationError

from gradeloop.contract.named_metrics import MOST_DERIVED, DerivedMetric
from gradeloop.errors import InvalidRequest, explain
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import require_files
from gradeloop.files.yaml import Location, located_error
from gradeloop.suites.datasets import LocatedTest
from gradeloop.suites.fields import as_list, as_object, refuse_others
from gradeloop.suites.findings import Findings
from gradeloop.suites.plan import (
    CaseRubrics,
    NamedPrompt,
    Plan,
    Suite,
    SuiteFlags,
    SuiteGenerator,
    SuiteModels,
    parse_grader,
)
from gradeloop.suites.prompt_files import name_prompts, parse_prompt, prompt_entries
from gradeloop.suites.promptfoo_tests import PromptfooTests
from gradeloop.suites.provider_list import parse_generators
from gradeloop.suites.suite import Prompt, SuiteSettings
from gradeloop.text import clip

_PROMPTFOO_KEYS = {"providers", "targets", "defaultTest", "evaluateOptions", "scenarios", "assertionTemplates", "outputPath"}
"""Keys that make a file promptfoo's, unless it has a key of ours."""

_GRADELOOP_KEYS = {"generators", "grader", "rubric", "defaults"}
_KNOWN = _PROMPTFOO_KEYS | {"description", "prompts", "tests", "env", "derivedMetrics"}
_IGNORED = {"$schema", "tags", "metadata", "sharing", "writeLatestResults", "tracing", "commandLineOptions"}
_CHANGES_TESTS = {"extensions", "nunjucksFilters"}
"""Keys of code that changes what is asked: where they are left out no case passes."""

_KEY = re.compile(r"(?:^|_)(?:API_?)?(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD)(?:_|$)")
_OPTIONS = {"maxConcurrency": "concurrency", "repeat": "repeat", "cache": "cache", "delay": "delay"}
_IGNORED_OPTIONS = {"showProgressBar", "generateSuggestions"}


@dataclass(frozen=True)
class PromptfooConfig:
    """A configuration with the places of its values."""

    value: dict[str, JsonValue]
    path: Path
    spot: Location
    scope: FileScope

    def at(self, key: str) -> tuple[JsonValue, Location]:
        """Return the value of a key, and its place."""
        return self.value.get(key), self.spot.at(key)


def is_promptfoo(path: Path, value: Mapping[str, JsonValue]) -> bool:
    """Tell whether a file is promptfoo's, by its name or its keys."""
    return path.stem.startswith("promptfooconfig") or (not _PROMPTFOO_KEYS.isdisjoint(value) and _GRADELOOP_KEYS.isdisjoint(value))


def build_promptfoo_suite(config: PromptfooConfig, flags: SuiteFlags, findings: Findings) -> Suite:
    """Build a suite from a configuration; `findings` takes what has no counterpart.

    Raises:
        InvalidRequest: Something in the configuration has no counterpart, or is invalid.
    """
    value, left_out = config.value, list[str]()
    for key in sorted(set(value) - _KNOWN - _IGNORED):
        with findings.leaving_out("not judged" if key in _CHANGES_TESTS else "no effect", left_out if key in _CHANGES_TESTS else None):
            refuse_others({key: value[key]}, _KNOWN | _IGNORED, config.spot)
    for note in _warnings(config):
        findings.note(note)
    settings, repeat = _settings(config, findings)
    name = value.get("description")
    if flags.scripted:
        require_files((flags.scripted,), "scripted")
    return Suite(
        name=name[:200] if isinstance(name, str) and name.strip() else None,
        path=config.path,
        settings=settings,
        tools=require_files(flags.tools, "tools"),
        scripted=flags.scripted,
        outputs=tuple(_outputs(config)),
        warnings=(),
        plan=_build_plan(config, flags, repeat, findings, left_out),
        flags=flags,
    )


def _build_plan(config: PromptfooConfig, flags: SuiteFlags, repeat: int, findings: Findings, left_out: list[str]) -> Plan:
    scope = config.scope
    default, place = config.at("defaultTest")
    options = as_object(as_object(default, place).get("options"), place.at("options")) if isinstance(default, dict) else {}
    templates = as_object(*config.at("assertionTemplates"))
    reader = PromptfooTests(
        scope,
        templates,
        expands=not options.get("disableVarExpansion"),
        findings=findings,
        allow_code=flags.allow_code,
        transform_vars=options.get("transformVars"),
    )
    defaults, reasons = reader.defaults(default, place)
    reader = replace(reader, shared=defaults.vars)
    defaults = defaults.model_copy(update={"vars": _environment(config, findings) | defaults.vars})
    prompts, generators = _prompts(config, findings), _generators(config, findings)
    return Plan(
        prompts=prompts,
        generators=generators,
        by_prompt=_by_prompt(config, prompts, generators, findings),
        allows_unknown=True,
        defaults=defaults,
        rubrics=CaseRubrics(
            defaults, place, grader_given=flags.grader is not None, findings=findings, asks_nothing=True, allow_code=flags.allow_code
        ),
        tests=lambda: _tests(config, reader),
        models=SuiteModels(scripted=flags.scripted is not None, checks=flags.check, allow_code=flags.allow_code),
        repeat=flags.repeat or repeat,
        grader=parse_grader(flags.grader),
        loop=flags.loop,
        findings=findings,
        left_out=(*left_out, *reasons),
    )


def _tests(config: PromptfooConfig, reader: PromptfooTests) -> Iterator[LocatedTest]:
    """Yield the tests, then those of scenarios; without either there is one test without variables."""
    tests, where = config.at("tests")
    scenarios, place = config.at("scenarios")
    if tests is not None or not scenarios:
        yield from reader.tests([{}] if tests is None else tests, where)
    yield from reader.scenarios(scenarios, place)


def _prompts(config: PromptfooConfig, findings: Findings) -> tuple[NamedPrompt, ...]:
    """Return the prompts; one that cannot be read is left out, and its cases are not run."""
    prompts: list[NamedPrompt] = []
    for entry, where in prompt_entries(*config.at("prompts")):
        try:
            prompts += parse_prompt(entry, config.scope, where)
        except InvalidRequest as error:
            reason = findings.leave_out(error, "not run")
            prompts.append(NamedPrompt("", Prompt(text="(left out)"), left_out=(reason,)))
    return name_prompts(prompts)


def _generators(config: PromptfooConfig, findings: Findings, own: Mapping[str, JsonValue] | None = None) -> tuple[SuiteGenerator, ...]:
    """Return the providers; `own` are settings of a prompt, which take the place of theirs."""
    key = "targets" if "targets" in config.value else "providers"
    value, where = config.at(key)
    return parse_generators(value, where, config.scope, findings, own)


def _by_prompt(
    config: PromptfooConfig, prompts: tuple[NamedPrompt, ...], generators: tuple[SuiteGenerator, ...], findings: Findings
) -> dict[tuple[str, str], SuiteGenerator]:
    """Return the providers of the prompts with settings of their own, by the labels of both."""
    labels = [generator.label for generator in generators]
    return {
        (prompt.label, label): generator
        for prompt in prompts
        if prompt.config
        for label, generator in zip(labels, _generators(config, findings, prompt.config), strict=True)
    }


def _environment(config: PromptfooConfig, findings: Findings) -> dict[str, JsonValue]:
    """Return the variables that `env` sets, as `env` of the templates; one that is named as keys are is never taken from a file."""
    value, where = config.at("env")
    found: dict[str, JsonValue] = {}
    for name, item in as_object(value, where).items():
        with findings.leaving_out("no effect"):
            if _KEY.search(name.upper()):
                raise InvalidRequest(f"{where.at(name)}: a key is no part of a configuration; set {name} in the worker's environment")
            found[name] = item
    return {"env": found} if found else {}


def _settings(config: PromptfooConfig, findings: Findings) -> tuple[SuiteSettings, int]:
    """Return the settings in `evaluateOptions`, and the number of runs of every case."""
    value, where = config.at("evaluateOptions")
    options = as_object(value, where)
    for key in sorted(set(options) - {*_OPTIONS, *_IGNORED_OPTIONS}):
        with findings.leaving_out("no effect"):
            refuse_others({key: options[key]}, {*_OPTIONS, *_IGNORED_OPTIONS}, where)
    raw = {ours: options[theirs] for theirs, ours in _OPTIONS.items() if options.get(theirs) is not None}
    repeat = raw.pop("repeat", 1)
    if not isinstance(repeat, int) or not 1 <= repeat <= 100:  # noqa: PLR2004 - as in a suite of ours
        raise InvalidRequest(f"{where.at('repeat')}: {clip(str(repeat))} is no number from 1 to 100")
    derived = _derived_metrics(config, findings)
    try:
        return SuiteSettings.model_validate({**raw, "derived_metrics": derived}), repeat
    except ValidationError as error:
        theirs = next(name for name, ours in _OPTIONS.items() if ours == error.errors()[0]["loc"][0])
        raise InvalidRequest(f"{where.at(theirs)}: {explain(error).partition(': ')[2]}") from None


_MISSHAPEN = {"model_type", "missing", "string_type", "string_too_short"}
"""The mistakes of a derived metric that has not even the keys of one."""


def _derived_metrics(config: PromptfooConfig, findings: Findings) -> tuple[DerivedMetric, ...]:
    """Return the derived metrics whose formulas are arithmetic; others are code, which runs nowhere."""
    given, where = config.at("derivedMetrics")
    values = as_list(given, where) if given is not None else []
    if len(values) > MOST_DERIVED:
        raise InvalidRequest(f"{where}: there are {len(values)} derived metrics, {MOST_DERIVED} at most; leave some out")
    metrics: list[DerivedMetric] = []
    for at, value in enumerate(values):
        with findings.leaving_out("no effect"):
            try:
                metrics.append(DerivedMetric.model_validate(value))
            except ValidationError as error:
                if error.errors()[0]["type"] not in _MISSHAPEN:
                    raise located_error(error, where.at(at)) from None
                written = clip(json.dumps(value, ensure_ascii=False))
                raise InvalidRequest(f"{where.at(at)}: {written} is no derived metric; write {{name: NAME, value: FORMULA}}") from None
    return tuple(metrics)


def _outputs(config: PromptfooConfig) -> Iterator[Path]:
    value, where = config.at("outputPath")
    for name in value if isinstance(value, list) else [] if value is None else [value]:
        if not isinstance(name, str):
            raise InvalidRequest(f"{where}: {clip(str(name))} is no path; write the file's name")
        yield config.scope.find(name, where)


def _warnings(config: PromptfooConfig) -> Iterator[str]:
    options = as_object(*config.at("evaluateOptions"))
    for name in [*sorted(_IGNORED & set(config.value) - {"$schema"}), *sorted(_IGNORED_OPTIONS & set(options))]:
        yield f"{config.path.name}: {name} has no effect here"
