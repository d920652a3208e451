"""Configurations of promptfoo, read as suites."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.errors import InvalidRequest, explain
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import require_files
from gradeloop.files.yaml import Location, located_error
from gradeloop.grading.templates import is_template
from gradeloop.suites.assertions import parse_provider
from gradeloop.suites.datasets import DatasetRow, LocatedTest, find_files, parse_number, read_rows, refuse_number
from gradeloop.suites.fields import as_list, as_object, refuse_others
from gradeloop.suites.plan import (
    CaseRubrics,
    Plan,
    Suite,
    SuiteFlags,
    SuiteGenerator,
    SuiteModels,
    parse_grader,
)
from gradeloop.suites.prompt_files import own_labels, parse_prompts
from gradeloop.suites.suite import (
    FILE,
    Defaults,
    NamedGenerator,
    SuiteSettings,
    SuiteTest,
    is_file,
    resolve_files,
)
from gradeloop.text import clip

_PROMPTFOO_KEYS = {"providers", "targets", "defaultTest", "evaluateOptions", "scenarios", "assertionTemplates", "outputPath"}
"""Keys that make a file promptfoo's, unless it has a key of ours."""

_GRADELOOP_KEYS = {"generators", "grader", "rubric", "defaults"}
_KNOWN = _PROMPTFOO_KEYS - {"scenarios"} | {"description", "prompts", "tests"}
_IGNORED = {"$schema", "tags", "metadata", "sharing", "writeLatestResults"}
_OPTIONS = {"maxConcurrency": "concurrency", "repeat": "repeat", "cache": "cache", "delay": "delay"}
_IGNORED_OPTIONS = {"showProgressBar", "generateSuggestions"}


@dataclass(frozen=True)
class _Config:
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


def build_promptfoo_suite(path: Path, value: dict[str, JsonValue], spot: Location, flags: SuiteFlags, scope: FileScope) -> Suite:
    """Build a suite from a configuration.

    Raises:
        InvalidRequest: Something in the configuration has no counterpart, or is invalid.
    """
    refuse_others(value, _KNOWN | _IGNORED, spot)
    config = _Config(value, path, spot, scope)
    settings, repeat = _settings(config)
    name = value.get("description")
    if flags.scripted:
        require_files((flags.scripted,), "scripted")
    return Suite(
        name=name[:200] if isinstance(name, str) and name.strip() else None,
        path=path,
        settings=settings,
        tools=require_files(flags.tools, "tools"),
        scripted=flags.scripted,
        outputs=tuple(_outputs(config)),
        warnings=tuple(_warnings(config)),
        plan=_build_plan(config, flags, repeat),
        flags=flags,
    )


def _build_plan(config: _Config, flags: SuiteFlags, repeat: int) -> Plan:
    scope = config.scope
    tests, where = config.at("tests")
    default, place = config.at("defaultTest")
    options = as_object(as_object(default, place).get("options"), place.at("options")) if isinstance(default, dict) else {}
    reader = PromptfooTests(scope, as_object(*config.at("assertionTemplates")), expands=not options.get("disableVarExpansion"))
    defaults = reader.defaults(default, place)
    providers = "targets" if "targets" in config.value else "providers"
    listed: JsonValue = [{}] if tests is None else tests
    return Plan(
        prompts=parse_prompts(config.value.get("prompts"), scope, config.spot.at("prompts")),
        generators=parse_generators(*config.at(providers)),
        defaults=defaults,
        rubrics=CaseRubrics(defaults, place, grader_given=flags.grader is not None),
        tests=lambda: reader.tests(listed, where),
        models=SuiteModels(scripted=flags.scripted is not None),
        repeat=flags.repeat or repeat,
        grader=parse_grader(flags.grader),
        loop=flags.loop,
    )


def _settings(config: _Config) -> tuple[SuiteSettings, int]:
    """Return the settings in `evaluateOptions`, and the number of runs of every case."""
    value, where = config.at("evaluateOptions")
    options = as_object(value, where)
    refuse_others(options, {*_OPTIONS, *_IGNORED_OPTIONS}, where)
    raw = {ours: options[theirs] for theirs, ours in _OPTIONS.items() if options.get(theirs) is not None}
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
    for name in value if isinstance(value, list) else [] if value is None else [value]:
        if not isinstance(name, str):
            raise InvalidRequest(f"{where}: {clip(str(name))} is no path; write the file's name")
        yield config.scope.find(name, where)


def _warnings(config: _Config) -> Iterator[str]:
    options = as_object(*config.at("evaluateOptions"))
    for name in [*sorted(_IGNORED & set(config.value) - {"$schema"}), *sorted(_IGNORED_OPTIONS & set(options))]:
        yield f"{config.path.name}: {name} has no effect here"


def parse_generators(value: JsonValue, where: Location) -> tuple[SuiteGenerator, ...]:
    """Parse the providers of a configuration; `echo` is the one that returns the prompt.

    Raises:
        InvalidRequest: A provider has no counterpart.
    """
    providers = as_list([value] if isinstance(value, str) else value, where)
    generators = [_parse_generator(provider, where.at(at)) for at, provider in enumerate(providers)]
    labels = own_labels([generator.label for generator in generators])
    return tuple(replace(generator, label=label) for generator, label in zip(generators, labels, strict=True))


def _parse_generator(value: JsonValue, where: Location) -> SuiteGenerator:
    fields = {"id": value} if isinstance(value, str) else as_object(value, where)
    if len(fields) == 1 and "id" not in fields:  # {"openai:gpt-5-mini": {config: ...}}
        name, rest = next(iter(fields.items()))
        fields = {"id": name, **as_object(rest, where)}
    refuse_others(fields, {"id", "label", "config"}, where)
    name, label = str(fields.get("id")), fields.get("label")
    if name.startswith(FILE):
        raise InvalidRequest(
            f"{where}: {clip(name)} is code of a custom provider; serve it as an activity, and name that in a gradeloop suite"
        )
    if name == "echo":
        return SuiteGenerator(str(label or name), None)
    raw: dict[str, JsonValue] = {"label": label or name, "model": parse_provider({"id": name, "config": fields.get("config")}, where)}
    try:
        generator = NamedGenerator.model_validate(raw)
    except ValidationError as error:
        raise located_error(error, where) from None
    return SuiteGenerator(generator.named, generator.plain())


_DEFAULT_KEYS = {"vars", "assert", "threshold", "options", "metadata"}
_TEST_KEYS = _DEFAULT_KEYS | {"description", "providerOutput"}
_TEST_OPTIONS = {"provider", "rubricPrompt", "disableVarExpansion"}
_CODE = (".js", ".cjs", ".mjs", ".ts", ".cts", ".mts", ".py", ".rb")

_REFERENCE = "#/assertionTemplates/"


@dataclass(frozen=True)
class PromptfooTests:
    """Reads the tests of one configuration."""

    scope: FileScope
    templates: Mapping[str, JsonValue]
    """The `assertionTemplates` by name."""
    expands: bool = True
    """Whether a variable with a list of texts makes a test for each of them; else the list is one value."""

    def defaults(self, value: JsonValue, where: Location) -> Defaults:
        """Return the settings of all tests.

        Raises:
            InvalidRequest: Something in `defaultTest` has no counterpart.
        """
        raw = self._resolve(as_object(resolve_files(value, self.scope, where) if is_file(value) else value, where), _DEFAULT_KEYS, where)
        try:
            return Defaults.model_validate(raw)
        except ValidationError as error:
            raise located_error(error, where) from None

    def tests(self, value: JsonValue, where: Location) -> Iterator[LocatedTest]:
        """Yield the tests, one for each combination of variables that are lists.

        Raises:
            InvalidRequest: Something in a test has no counterpart.
        """
        for at, test in enumerate(value if isinstance(value, list) else [value]):
            spot = where.at(at) if isinstance(value, list) else where
            if isinstance(test, str):
                for path in find_files(test, self.scope, spot):
                    for row in read_rows(path):
                        yield from self._expand(parse_cells(row) if row.table else row.value, row.spot, recorded=row.table)
            else:
                yield from self._expand(as_object(test, spot), spot)

    def _expand(self, value: dict[str, JsonValue], where: Location, *, recorded: bool = False) -> Iterator[LocatedTest]:
        raw = dict(value) if recorded else self._resolve(value, _TEST_KEYS, where)
        refuse_number(raw.get("providerOutput"), where)
        given = {"output": raw.pop("providerOutput")} if "providerOutput" in raw else {}
        given |= {"metadata": value["metadata"]} if value.get("metadata") else {}
        expands = self.expands and not as_object(value.get("options"), where).get("disableVarExpansion")
        for variables in variable_combinations(as_object(raw.get("vars"), where.at("vars")), expands=expands):
            try:
                yield LocatedTest(SuiteTest.model_validate(raw | given | {"vars": variables}), where)
            except ValidationError as error:
                raise located_error(error, where) from None

    def _resolve(self, value: dict[str, JsonValue], known: set[str], where: Location) -> dict[str, Any]:
        refuse_others(value, known, where)
        raw: dict[str, Any] = {key: item for key, item in value.items() if key != "metadata"}
        options = as_object(raw.get("options"), where.at("options"))
        refuse_others(options, _TEST_OPTIONS, where.at("options"))
        _refuse_code(raw, where)
        named = [key for key in ("vars", "assert", "options") if raw.get(key) is not None]
        read = {key: resolve_files(raw[key], self.scope, where.at(key)) for key in named}
        if isinstance(read.get("options"), dict):
            read["options"] = {key: item for key, item in as_object(read["options"], where).items() if key != "disableVarExpansion"}
        _refuse_templates(as_object(read.get("vars"), where.at("vars")), where.at("vars"))
        if "assert" in read:
            place = where.at("assert")
            read["assert"] = [self._resolve_reference(value, place.at(at)) for at, value in enumerate(as_list(read["assert"], place))]
        return raw | read

    def _resolve_reference(self, value: JsonValue, where: Location) -> JsonValue:
        """Return an assertion, or the template that it refers to."""
        fields = as_object(value, where)
        if "assert" in fields:
            inner = as_list(fields["assert"], where.at("assert"))
            return fields | {"assert": [self._resolve_reference(assertion, where.at("assert", at)) for at, assertion in enumerate(inner)]}
        if "$ref" not in fields:
            return fields
        name = str(fields["$ref"]).removeprefix(_REFERENCE)
        if name not in self.templates:
            raise InvalidRequest(f"{where}: {clip(str(fields['$ref']))} is not among the assertionTemplates; write the assertion out")
        rest = {key: item for key, item in fields.items() if key != "$ref"}
        return as_object(self.templates[name], where) | rest


def _refuse_code(value: JsonValue, where: Location) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_code(item, where.at(key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _refuse_code(item, where.at(at))
    elif isinstance(value, str) and is_file(value) and value.partition("#")[0].rpartition(":")[0].endswith(_CODE) | value.endswith(_CODE):
        raise InvalidRequest(f"{where}: {clip(value)} is code, which is not run; write it as a check, a function of the worker's tools")


def _refuse_templates(variables: Mapping[str, JsonValue], where: Location) -> None:
    for name, value in variables.items():
        if isinstance(value, str) and is_template(value):
            raise InvalidRequest(f"{where.at(name)}: {clip(value)} is a template; variables are data here, write it out")


def variable_combinations(variables: Mapping[str, JsonValue], *, expands: bool) -> Iterator[dict[str, JsonValue]]:
    """Yield every combination of the variables whose values are lists that begin with a text."""
    values = [item if expands and isinstance(item, list) and item and isinstance(item[0], str) else [item] for item in variables.values()]
    for combination in product(*values):
        yield dict(zip(variables, combination, strict=True))


_EXPECTED = re.compile(r"__expected\d*")
_CONFIG = re.compile(r"__config:(?P<column>__expected\d*):threshold")
_ASSERTION = re.compile(r"(?P<type>(?:not-)?[a-z][a-z-]*)(?:\((?P<threshold>\d+(?:\.\d+)?)\))?(?::(?P<value>.*))?", re.DOTALL)
_OTHER_NAMES = {"fn": "javascript", "eval": "javascript", "grade": "llm-rubric"}
_TYPES = {
    *("agent-rubric", "answer-relevance", "bleu", "classifier", "contains", "contains-all", "contains-any", "contains-html"),
    *("contains-json", "contains-sql", "contains-xml", "context-faithfulness", "context-recall", "context-relevance"),
    *("conversation-relevance", "cost", "equals", "factuality", "finish-reason", "g-eval", "gleu", "guardrails", "icontains"),
    *("icontains-all", "icontains-any", "is-html", "is-json", "is-refusal", "is-sql", "is-valid-function-call"),
    *("is-valid-openai-function-call", "is-valid-openai-tools-call", "is-xml", "javascript", "latency", "levenshtein"),
    *("llm-rubric", "pi", "meteor", "model-graded-closedqa", "model-graded-factuality", "moderation", "perplexity"),
    *("perplexity-score", "python", "regex", "rouge-n", "ruby", "similar", "starts-with", "tool-call-f1", "skill-used"),
    *("search-rubric", "webhook", "word-count"),
}
"""The types that a cell may begin with; a type without a counterpart is refused by its name."""


_METADATA = "__metadata:"


def _metadata_of(row: DatasetRow) -> dict[str, JsonValue]:
    """Return the metadata that the columns of a row give its test; a column that ends with `[]` has a list, its items between commas."""
    cells = {name.removeprefix(_METADATA): str(cell) for name, cell in row.value.items() if name.startswith(_METADATA)}
    found: dict[str, JsonValue] = {}
    for name, cell in cells.items():
        items: list[JsonValue] = [item.strip() for item in cell.split(",") if item.strip()]
        found |= {name.removesuffix("[]"): items if name.endswith("[]") else cell} if items else {}
    return {"metadata": found} if found else {}


def parse_cells(row: DatasetRow) -> dict[str, JsonValue]:
    """Parse a row of CSV into a raw test.

    Raises:
        InvalidRequest: A column or an assertion has no counterpart.
    """
    fields: dict[str, JsonValue] = {}
    variables: dict[str, JsonValue] = {}
    assertions: dict[str, dict[str, JsonValue]] = {}
    thresholds: dict[str, JsonValue] = {}
    metric: dict[str, JsonValue] = {}
    for name, cell in ((name, str(cell)) for name, cell in row.value.items()):
        if not name.startswith("__"):
            variables[name] = cell
        elif _EXPECTED.fullmatch(name):
            assertions |= {name: _parse_assertion(cell.strip(), row.spot.at(name))} if cell.strip() else {}
        elif config := _CONFIG.fullmatch(name):
            thresholds |= {config["column"]: parse_number(cell, row.spot.at(name))} if cell.strip() else {}
        elif name in {"__description", "__providerOutput"}:
            fields |= {name.removeprefix("__"): cell} if cell else {}
        elif name == "__threshold":
            fields |= {"threshold": parse_number(cell, row.spot.at(name))} if cell.strip() else {}
        elif name == "__metric":
            metric = {"metric": cell} if cell else {}
        elif not name.startswith("__metadata"):
            raise InvalidRequest(f"{row.spot}: the column {clip(name)} has no counterpart; leave it out")
    return fields | _metadata_of(row) | {"vars": variables, "assert": list(_with_thresholds(assertions, thresholds, row.spot, metric))}


def _with_thresholds(
    assertions: dict[str, dict[str, JsonValue]], thresholds: dict[str, JsonValue], where: Location, metric: dict[str, JsonValue]
) -> Iterator[JsonValue]:
    """Yield the assertions, each with the threshold from the column that configures it."""
    names = ("__expected", "__expected1")  # two names of one column
    for column, assertion in assertions.items():
        own = next((thresholds.pop(name) for name in (column, *(names if column in names else ())) if name in thresholds), None)
        yield assertion | metric | ({} if own is None else {"threshold": own})
    if left := next(iter(thresholds), None):
        raise InvalidRequest(f"{where}: a threshold for {left}, which has no assertion; remove the threshold, or write the assertion")


def _parse_assertion(text: str, where: Location) -> dict[str, JsonValue]:
    """Parse a cell such as `contains: 5 days`; a text without a type is the expected output."""
    match = _ASSERTION.fullmatch(text)
    kind = _OTHER_NAMES.get(match["type"], match["type"]) if match else ""
    if match is None or kind.removeprefix("not-") not in _TYPES:
        return {"type": "equals", "value": text}
    value = (match["value"] or "").strip()
    threshold = {} if match["threshold"] is None else {"threshold": parse_number(match["threshold"], where)}
    return {"type": kind, **({"value": value} if value else {}), **threshold}
