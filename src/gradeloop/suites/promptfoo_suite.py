"""`promptfooconfig.yaml` as a suite; what has no counterpart is refused by name and line.

Facts of its shape: promptfoo 0.123.1, `src/types`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from gradeloop.errors import InvalidRequest, explain
from gradeloop.printable import clip
from gradeloop.promptfoo_models import as_object, refuse_others
from gradeloop.rubric_file import existing
from gradeloop.spot import Spot
from gradeloop.suites.case_rubrics import CaseRubrics
from gradeloop.suites.plan import Plan
from gradeloop.suites.promptfoo_prompts import drafters_in, prompts_in
from gradeloop.suites.promptfoo_tests import Reader
from gradeloop.suites.roles import Roles
from gradeloop.suites.suite import SuiteSettings
from gradeloop.suites.suite_run import Suite, SuiteFlags, grader_of

_OWN = {"providers", "targets", "defaultTest", "evaluateOptions", "scenarios", "assertionTemplates", "outputPath"}
"""Keys that make a file promptfoo's, where none of ours is in it."""

_OURS = {"generators", "grader", "rubric", "defaults"}
_TAKEN = _OWN - {"scenarios"} | {"description", "prompts", "tests"}
_PASSED_OVER = {"$schema", "tags", "metadata", "sharing", "writeLatestResults"}
_OPTIONS = {"maxConcurrency": "concurrency", "repeat": "repeat", "cache": "cache"}
_OPTIONS_PASSED_OVER = {"showProgressBar", "generateSuggestions", "delay"}


@dataclass(frozen=True)
class _Config:
    """A configuration, as it was read."""

    value: dict[str, JsonValue]
    path: Path
    spot: Spot

    def at(self, key: str) -> tuple[JsonValue, Spot]:
        """Return what stands under a key, and where."""
        return self.value.get(key), self.spot.at(key)


def is_promptfoos(path: Path, value: Mapping[str, JsonValue]) -> bool:
    """Tell whether a file is promptfoo's, by its name or its keys."""
    return path.stem.startswith("promptfooconfig") or (not _OWN.isdisjoint(value) and _OURS.isdisjoint(value))


def promptfoo_suite(path: Path, value: dict[str, JsonValue], spot: Spot, flags: SuiteFlags) -> Suite:
    """Return a configuration as a suite.

    Raises:
        InvalidRequest: Something in it has no counterpart, or is wrong.
    """
    refuse_others(value, _TAKEN | _PASSED_OVER, spot)
    config = _Config(value, path, spot)
    settings, repeat = _settings(config)
    name = value.get("description")
    if flags.scripted:
        existing((flags.scripted,), "scripted")
    return Suite(
        name=name[:200] if isinstance(name, str) and name.strip() else None,
        path=path,
        settings=settings,
        tools=existing(flags.tools, "tools"),
        scripted=flags.scripted,
        outputs=tuple(_outputs(config)),
        told=tuple(_notes(config)),
        plan=_plan(config, flags, repeat),
        flags=flags,
    )


def _plan(config: _Config, flags: SuiteFlags, repeat: int) -> Plan:
    folder = config.path.parent
    tests, where = config.at("tests")
    default, place = config.at("defaultTest")
    options = as_object(as_object(default, place).get("options"), place.at("options")) if isinstance(default, dict) else {}
    reader = Reader(folder, as_object(*config.at("assertionTemplates")), expands=not options.get("disableVarExpansion"))
    defaults = reader.defaults(default, place)
    providers = "targets" if "targets" in config.value else "providers"
    given: JsonValue = [{}] if tests is None else tests
    return Plan(
        prompts=prompts_in(config.value.get("prompts"), folder, config.spot.at("prompts")),
        drafters=drafters_in(*config.at(providers)),
        defaults=defaults,
        rubrics=CaseRubrics(defaults, place, grader_given=flags.grader is not None),
        tests=lambda: reader.tests(given, where),
        roles=Roles(scripted=flags.scripted is not None),
        repeat=flags.repeat or repeat,
        grader=grader_of(flags.grader),
        loop=flags.loop,
    )


def _settings(config: _Config) -> tuple[SuiteSettings, int]:
    """Return what `evaluateOptions` says of a batch, and how often each case is run."""
    value, where = config.at("evaluateOptions")
    told = as_object(value, where)
    refuse_others(told, {*_OPTIONS, *_OPTIONS_PASSED_OVER}, where)
    raw = {ours: told[theirs] for theirs, ours in _OPTIONS.items() if told.get(theirs) is not None}
    repeat = raw.pop("repeat", 1)
    if not isinstance(repeat, int) or not 1 <= repeat <= 100:  # noqa: PLR2004 - as in a suite of ours
        raise InvalidRequest(f"{where.at('repeat')}: {clip(str(repeat))} is no number from 1 to 100")
    try:
        return SuiteSettings.model_validate(raw), repeat
    except ValidationError as error:
        theirs = next(name for name, ours in _OPTIONS.items() if ours == error.errors()[0]["loc"][0])
        raise InvalidRequest(f"{where.at(theirs)}: {explain(error).partition(': ')[2]}") from None


def _outputs(config: _Config) -> Iterator[Path]:
    value, where = config.at("outputPath")
    for each in value if isinstance(value, list) else [] if value is None else [value]:
        if not isinstance(each, str):
            raise InvalidRequest(f"{where}: {clip(str(each))} is no path; write the file's name")
        yield config.path.parent / each


def _notes(config: _Config) -> Iterator[str]:
    options = as_object(*config.at("evaluateOptions"))
    for name in [*sorted(_PASSED_OVER & set(config.value) - {"$schema"}), *sorted(_OPTIONS_PASSED_OVER & set(options))]:
        yield f"{config.path.name}: {name} has no effect here"
