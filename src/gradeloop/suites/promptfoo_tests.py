"""The tests of promptfoo's configurations: inline, in files and tables, and as scenarios."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from typing import Any
from urllib.parse import parse_qs

from pydantic import JsonValue

from gradeloop.batches.contract import CASE_BYTES
from gradeloop.contract.base import CodeText
from gradeloop.errors import InvalidRequest, field_path
from gradeloop.files.roots import FileScope
from gradeloop.files.yaml import Location, explained_at, read_yaml
from gradeloop.grading.templates import is_template, late_mark
from gradeloop.sandbox.code_calls import CALLS_A_START
from gradeloop.suites.assertions import find_type
from gradeloop.suites.case_texts import run_code
from gradeloop.suites.code_files import FILE, CodeGrant, is_code_file, names_code, parse_transform, read_code_file
from gradeloop.suites.datasets import DatasetRow, LocatedTest, find_files, match_files, parse_number, read_rows, refuse_number
from gradeloop.suites.hooks import Hooks
from gradeloop.suites.providers import is_setting
from gradeloop.suites.suite import Defaults, SuiteTest, is_file, refuse_named_code, resolve_files
from gradeloop.suites.unsupported import Keys, UnsupportedFeatures, as_list, as_object, keys_of
from gradeloop.text import clip

_OF_THE_TEST = {
    *("transformVars", "disableVarExpansion", "repeat", "prefix", "suffix", "storeOutputAs", "runSerially", "disableConversationVar")
}
"""The options that say how a test runs, beside those on how it is judged."""

_NAME = re.compile(r"\{\{\s*(?P<name>[A-Za-z_]\w*)\s*\}\}")

_NESTED = 5
"""The depth to which variables are filled into one another, as in promptfoo."""

_REFERENCE = "#/assertionTemplates/"


@dataclass(frozen=True)
class RawTest:
    """A test as it is written."""

    value: dict[str, JsonValue]
    spot: Location
    recorded: bool = False
    """Whether it is a row of CSV, whose values are data."""


@dataclass(frozen=True)
class PromptfooTests:
    """Reads the tests of one configuration."""

    scope: FileScope
    templates: Mapping[str, JsonValue]
    """The `assertionTemplates` by name."""
    expands: bool = True
    """Whether a variable with a list of texts makes a test for each of them; else the list is one value."""
    findings: UnsupportedFeatures = field(default_factory=UnsupportedFeatures)
    """Takes what is not supported."""
    allow_code: CodeGrant = field(default_factory=CodeGrant)
    """The user's leave for the code of the suite to run, and what it may import."""
    transform_vars: JsonValue = None
    """The `transformVars` of all tests that have none of their own."""
    prompts: tuple[str, ...] = ("",)
    """The prompts as they are written, of which code that makes a variable is told."""
    shared: Mapping[str, JsonValue] = field(default_factory=dict)
    """The variables of `defaultTest`, whose lists make a test for each of their texts, too."""
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    """The options of `defaultTest`."""
    conversation: JsonValue = None
    """The conversation of all tests that name none."""
    stored: dict[str, int] = field(default_factory=dict)
    """Numbers of tests so far that store their output, by the name."""
    hooks: Hooks = Hooks()  # noqa: RUF009 - frozen
    """The hooks of the configuration, of which `beforeEach` changes tests."""
    default: Mapping[str, JsonValue] = field(default_factory=dict)
    """The `defaultTest` as it is written, of which hooks are told."""

    def defaults(self, value: JsonValue, where: Location) -> tuple[Defaults, tuple[str, ...]]:
        """Return the settings of tests, and the unsupported ones; raise InvalidRequest where `defaultTest` has what is not supported."""
        raw, reasons = self._resolve(as_object(value, where), keys_of("defaultTest"), where)
        with explained_at(where):
            return Defaults.model_validate(_without_own_options(raw)), tuple(reasons)

    def read(self, tests: Iterable[RawTest | LocatedTest]) -> Iterator[LocatedTest]:
        """Yield tests, one for each combination of listed variables; raise InvalidRequest where one has what is not supported."""
        for test in self._hooked(tests) if self.hooks.of("beforeEach") else tests:
            yield from self._expand(test) if isinstance(test, RawTest) else (test,)

    def _hooked(self, tests: Iterable[RawTest | LocatedTest]) -> Iterator[RawTest | LocatedTest]:
        """Yield tests as `beforeEach` leaves them, which is called with each combination of listed variables, many in one start."""
        found = (made for test in tests for made in (self._combined(test) if isinstance(test, RawTest) else [test]))
        while part := list(islice(found, CALLS_A_START)):
            made = iter(self.hooks.call("beforeEach", "test", [test.value for test in part if isinstance(test, RawTest)]))
            for test in part:
                yield self._left_by_hook(test, next(made)) if isinstance(test, RawTest) else test

    def _combined(self, test: RawTest) -> Iterator[RawTest | LocatedTest]:
        """Yield a test with the defaults, for each combination of listed variables."""
        try:
            options, spot = as_object(test.value.get("options"), test.spot.at("options")), test.spot.at("vars")
            off = {"assert"} if options.get("disableDefaultAsserts") else set()
            both = merged({key: item for key, item in self.default.items() if key not in off}, test.value)
            variables = as_object(both.get("vars") if test.recorded else self._matched(both.get("vars"), spot), spot)
            expands = self.expands and not options.get("disableVarExpansion")
            yield from [replace(test, value={**both, "vars": own}) for own in variable_combinations(variables, expands=expands)]
        except InvalidRequest as error:
            yield self._left_out(error, test.spot, test.value)

    def _left_by_hook(self, test: RawTest, left: dict[str, JsonValue] | InvalidRequest) -> RawTest | LocatedTest:
        """Return a test as a hook left it; a row of a table that it has changed is no longer one."""
        try:
            if isinstance(left, InvalidRequest):
                raise left
            return replace(test, value=self._without_defaults(left, test.spot), recorded=test.recorded and left == test.value)
        except InvalidRequest as error:
            return self._left_out(InvalidRequest(f"{error} (for {test.spot})"), test.spot, test.value)

    def _without_defaults(self, left: dict[str, JsonValue], spot: Location) -> dict[str, JsonValue]:
        """Return what a hook left of a test without the defaults in it, which are added later."""
        shared = self.default
        value = {key: item for key, item in left.items() if item != shared.get(key)}
        for key in ("vars", "options", "metadata"):
            common = as_object(shared.get(key), spot.at(key))
            value[key] = {name: item for name, item in as_object(left.get(key), spot.at(key)).items() if item != common.get(name)}
        options: dict[str, JsonValue] = {**as_object(value["options"], spot), "disableVarExpansion": True}
        given, asserted = as_list(shared.get("assert"), spot.at("assert")), as_list(left.get("assert"), spot.at("assert"))
        if options.get("disableDefaultAsserts") or asserted[: len(given)] != given:
            return value | {"assert": asserted, "options": options | {"disableDefaultAsserts": True}}
        return value | {"assert": asserted[len(given) :], "options": options}

    def scenarios(self, value: JsonValue, where: Location) -> Iterator[RawTest | LocatedTest]:
        """Yield every test of a scenario with every configuration of it; raise InvalidRequest where one has what is not supported."""
        for at, scenario in enumerate(as_list(value, where)):
            spot = where.at(at)
            fields = as_object(resolve_files(scenario, self.scope, spot) if is_file(scenario) else scenario, spot)
            fields = self.findings.heeded(fields, keys_of("scenario"), spot)
            tests: JsonValue = fields.get("tests") or [{}]
            for config in list(self.raw(fields.get("config") or [{}], spot.at("config"))):
                for test in self.raw(tests, spot.at("tests")):
                    if isinstance(config, RawTest) and isinstance(test, RawTest):
                        both = merged(config.value, test.value)
                        own = {"conversationId": self.conversation or f"scenario {at}", **as_object(both.get("metadata"), spot)}
                        yield replace(test, value={**both, "metadata": own})
                    else:
                        yield test if isinstance(test, LocatedTest) else config  # the one that was left out

    def raw(self, value: JsonValue, where: Location) -> Iterator[RawTest | LocatedTest]:
        """Yield the tests of a value as they are written; one that cannot be read is left out."""
        for at, test in enumerate(value if isinstance(value, list) else [value]):
            spot = where.at(at) if isinstance(value, list) else where
            try:
                if (made := _code_of_tests(test, spot)) is not None:
                    yield from self._made_tests(*made, spot)
                elif isinstance(test, str):
                    refuse_remote(test, spot)
                    for file, row in ((path, row) for path in find_files(test, self.scope, spot) for row in read_rows(path)):
                        value = parse_cells(row) if row.table else with_variables(row.value, self.scope.beside(file), row.spot)
                        yield RawTest(value, row.spot, recorded=row.table)
                else:
                    yield RawTest(with_variables(as_object(test, spot), self.scope, spot), spot)
            except InvalidRequest as error:
                yield self._left_out(error, spot, {})

    def _made_tests(self, name: str, config: JsonValue, where: Location) -> Iterator[RawTest]:
        """Yield the tests that a function makes."""
        read = read_code_file(name, self.scope, where)
        if read["language"] == "python" and not read["function"]:
            raise InvalidRequest(f"{where}: {clip(name)} names no function; write the one that makes the tests, as {name}:function")
        code = CodeText.model_validate(read)
        arguments: list[JsonValue] = [] if config is None else [resolve_files(config, self.scope, where.at("config"))]
        made = run_code(code, arguments, where, f"the file of tests {code.file}", allow_code=self.allow_code)
        if not (tests := as_list(made, f"{where}: what {code.file} returned")):
            raise InvalidRequest(f"{where}: {code.file} returned no tests; return a list of them")
        for test in tests:
            yield RawTest(as_object(test, f"{where}: a test of {code.file}"), where)

    def _left_out(self, error: InvalidRequest, where: Location, value: Mapping[str, JsonValue]) -> LocatedTest:
        """Return a test that does not run, in the place of one that cannot."""
        reason = self.findings.leave_out(error, "not run")
        description = value.get("description")
        name = description if isinstance(description, str) and description.strip() else field_path(where.path)
        return LocatedTest(SuiteTest(description=name[:1000]), where, left_out=(reason,), runs=False)

    def _expand(self, test: RawTest) -> Iterator[LocatedTest]:
        try:
            yield from list(self._expanded(test))
        except InvalidRequest as error:
            yield self._left_out(error, test.spot, test.value)

    def _expanded(self, test: RawTest) -> Iterator[LocatedTest]:
        where = test.spot
        raw, reasons = (dict(test.value), []) if test.recorded else self._resolve(test.value, keys_of("test"), where)
        refuse_number(raw.get("providerOutput"), where)
        options = as_object(raw.get("options"), where.at("options"))
        more: dict[str, Any] = {
            "left_out": tuple(reasons),
            "prompts": _names(raw.pop("prompts", None), where.at("prompts")),
            "providers": _names(raw.pop("providers", None), where.at("providers")),
            "repeat": parse_times(options.get("repeat"), where.at("options", "repeat")),
            "around": (str(options.get("prefix") or ""), str(options.get("suffix") or "")),
            "serially": bool(options.get("runSerially", self.options.get("runSerially"))),
            "conversation": as_object(test.value.get("metadata"), where.at("metadata")).get("conversationId", self.conversation),
            "talks": not options.get("disableConversationVar", self.options.get("disableConversationVar")),
        }
        stores = options.get("storeOutputAs")
        if stores is not None and not (isinstance(stores, str) and stores.isidentifier()):
            raise InvalidRequest(f"{where.at('options', 'storeOutputAs')}: {clip(str(stores))} is not a name of a variable; write letters")
        raw = _without_own_options(raw)
        given = {"output": raw.pop("providerOutput")} if "providerOutput" in raw else {}
        given |= {"metadata": test.value["metadata"]} if test.value.get("metadata") else {}
        expands = self.expands and not options.get("disableVarExpansion")
        lists = {name: value for name, value in self.shared.items() if expands and is_text_list(value)}
        for own in variable_combinations(lists | as_object(raw.get("vars"), where.at("vars")), expands=expands):
            late = {name: str(late_mark(f"{name}.{count}")) for name, count in self.stored.items()}
            called = self._called({**self.shared, **own, **late}, where)
            made = {name: called[name] for name, value in self.shared.items() if is_code_file(value) and name not in own}
            filled = {**own, **made} if test.recorded else fill_variables(called, where.at("vars"))
            changed = {name: filled[name] for name in filled if name not in late and (name in own or filled[name] != self.shared.get(name))}
            more["late"] = late
            variables = self._transformed(changed, options.get("transformVars", self.transform_vars), where.at("options", "transformVars"))
            if stores:
                self.stored[stores] = self.stored.get(stores, 0) + 1
                more["stores"] = f"{stores}.{self.stored[stores]}"
            with explained_at(where):
                yield LocatedTest(SuiteTest.model_validate(raw | given | {"vars": variables}), where, **more)

    def _called(self, variables: Mapping[str, JsonValue], where: Location) -> dict[str, JsonValue]:
        """Return variables with what the functions return that stand in the place of some, called with those before them."""
        called = {name: value for name, value in variables.items() if not is_code_file(value)}
        for name in [name for name, value in variables.items() if is_code_file(value)]:
            spot = where.at("vars", name)
            code = parse_transform(variables[name], "get_var", spot)
            what = f"the variable {code.file}"
            made = [run_code(code, [name, text, dict(called)], spot, what, allow_code=self.allow_code) for text in self.prompts]
            if any(one != made[0] for one in made):
                raise InvalidRequest(f"{spot}: what {code.file} returns differs from prompt to prompt; write a suite for each prompt")
            found = made[0] if isinstance(made[0], dict) else {}
            if found.get("error") or found.get("output") is None:
                raise InvalidRequest(f"{spot}: {code.file} returned {clip(str(found.get('error') or made[0]))}; return {{output}}")
            called[name] = found["output"]
        return {name: called[name] for name in variables}

    def _transformed(self, variables: dict[str, JsonValue], value: JsonValue, where: Location) -> dict[str, JsonValue]:
        """Return the variables with those that the code of `transformVars` makes of them."""
        if value is None:
            return variables
        code = parse_transform(resolve_files(value, self.scope, where), "get_transform", where)
        made = run_code(code, [dict(variables), {"vars": dict(variables)}], where, "transformVars", allow_code=self.allow_code)
        return {**variables, **as_object(made, f"{where}: what it returned")}

    def _resolve(self, value: dict[str, JsonValue], keys: Keys, where: Location) -> tuple[dict[str, Any], list[str]]:
        """Return a test, or the defaults, with what its files hold, and what of it is left out."""
        reasons: list[str] = []
        raw: dict[str, Any] = self.findings.heeded(value, keys, where, reasons)
        raw.pop("metadata", None)
        refuse_named_code({key: item for key, item in raw.items() if key not in {"assert", "options", "vars"}}, where)
        if raw.get("options") is not None:
            spot = where.at("options")
            options = as_object(raw["options"], spot)
            options = {"transform": options.pop("postprocess"), **options} if "postprocess" in options else options
            of_providers = {key: "write it into the provider's config" for key, item in options.items() if is_setting(key, item)}
            known = keys_of("options")
            known = replace(known, refused={**of_providers, **known.refused})
            raw["options"] = resolve_files(self.findings.heeded(options, known, spot, reasons), self.scope, spot)
        if raw.get("vars") is not None:
            given = as_object(raw["vars"], where.at("vars")) if isinstance(raw["vars"], dict) else {}
            refuse_named_code({key: item for key, item in given.items() if not names_code(item)}, where.at("vars"))
            raw["vars"] = resolve_files(self._matched(raw["vars"], where.at("vars")), self.scope, where.at("vars"))
        if raw.get("assert") is not None:
            spot, listed = where.at("assert"), raw["assert"]
            found: list[JsonValue] = []
            for at, assertion in enumerate(as_list(resolve_files(listed, self.scope, spot) if is_file(listed) else listed, spot)):
                with self.findings.leaving_out("not judged", reasons):
                    found.append(self._resolve_reference(resolve_files(assertion, self.scope, spot.at(at)), spot.at(at)))
            raw["assert"] = found
        return raw, reasons

    def _matched(self, variables: JsonValue, where: Location) -> JsonValue:
        """Return variables with the files that a pattern matches as the list of its values."""
        if not isinstance(variables, dict):
            return variables
        found = {
            key: match_files(str(value), self.scope, where.at(key))
            for key, value in variables.items()
            if is_file(value) and "*" in str(value)
        }
        if empty := next((key for key, paths in found.items() if not paths), None):
            raise InvalidRequest(f"{where.at(empty)}: no file matches {clip(str(variables[empty]))}; correct the pattern")
        return variables | {key: [f"{FILE}{path.relative_to(self.scope.folder)}" for path in paths] for key, paths in found.items()}

    def _resolve_reference(self, value: JsonValue, where: Location) -> JsonValue:
        """Return an assertion, or the template that it refers to."""
        fields = as_object(value, where)
        if "assert" in fields:
            inner = as_list(fields["assert"], where.at("assert"))
            members: list[JsonValue] = [self._resolve_reference(one, where.at("assert", at)) for at, one in enumerate(inner)]
            return self.findings.heeded(fields, keys_of("assert-set"), where) | {"assert": members}
        if "$ref" not in fields:
            row = find_type(str(fields.get("type")))
            return self.findings.heeded(fields, row.keys, where) if row is not None else fields
        name = str(fields["$ref"]).removeprefix(_REFERENCE)
        if name not in self.templates:
            raise InvalidRequest(f"{where}: {clip(str(fields['$ref']))} is not among the assertionTemplates; write the assertion out")
        rest = {key: item for key, item in fields.items() if key != "$ref"}
        return self._resolve_reference(as_object(self.templates[name], where) | rest, where)


def with_variables(test: dict[str, JsonValue], scope: FileScope, where: Location) -> dict[str, JsonValue]:
    """Return a test with what its files of variables hold, later over earlier; raise InvalidRequest where one is missing, or has none."""
    value = test.get("vars")
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        return test
    found: dict[str, JsonValue] = {}
    for name in map(str, names):
        spot = where.at("vars")
        paths = match_files(name, scope, spot)
        if not paths:
            raise InvalidRequest(f"{spot}: {clip(name)} matches no file; name files of variables, relative to the file of the test")
        for path in paths:
            found |= as_object(read_yaml(path, "the variables", aliases=True), f"{spot}: the file {str(path)!r}")
    return {**test, "vars": found}


def _code_of_tests(test: JsonValue, where: Location) -> tuple[str, JsonValue] | None:
    """Return the file of code that makes tests, and what it is given; None of any other test."""
    fields = {"path": test} if isinstance(test, str) else test if isinstance(test, dict) else {}
    path = fields.get("path")
    if not isinstance(path, str) or "vars" in fields:
        return None
    name = path if path.startswith("file://") else f"file://{path}"
    if "assert" not in fields and names_code(name):
        return name, fields.get("config")
    if isinstance(test, dict):
        raise InvalidRequest(f"{where}: {clip(path)} is code that makes tests, which is not run; {_ROWS}")
    return None


_ROWS = "write its tests into a CSV or JSONL file, and name that"
_SHEET = re.compile(r"https://docs\.google\.com/spreadsheets/d/(?P<id>[\w-]+)")
_TAB = re.compile(r"[?&#]gid=(\d+)")
_DATASET = re.compile(r"huggingface://datasets/(?P<name>[^?]+)(?:\?(?P<query>.*))?")


def refuse_remote(name: str, where: Location) -> None:
    """Raise InvalidRequest for code, and for tests that lie elsewhere, with the command that downloads them."""
    if sheet := _SHEET.match(name):
        tab = "".join(f"&gid={number}" for number in _TAB.findall(name)[:1])
        command = f"curl -L -o tests.csv 'https://docs.google.com/spreadsheets/d/{sheet['id']}/export?format=csv{tab}'"
        raise InvalidRequest(f"{where}: {clip(name)} is a sheet of Google's, which is not fetched; run: {command} and name tests.csv")
    if dataset := _DATASET.fullmatch(name):
        command = _download(dataset)
        raise InvalidRequest(f"{where}: {clip(name)} is a dataset of HuggingFace, which is not fetched; run: {command} and name tests.csv")
    if "://" in name and not name.startswith("file://"):
        raise InvalidRequest(f"{where}: {clip(name)} lies elsewhere and is not fetched; download it as CSV, and name the file")
    if names_code(f"{FILE}{name.removeprefix(FILE)}"):
        raise InvalidRequest(f"{where}: {clip(name)} is not a dataset. It is code that makes tests, which is not run; {_ROWS}")


def _download(dataset: re.Match[str]) -> str:
    """Return the command that saves a dataset of HuggingFace as CSV."""
    query = {key: values[0] for key, values in parse_qs(dataset["query"] or "").items()}
    limit = f"[:{query['limit']}]" if query.get("limit", "").isdigit() else ""
    config = query.get("config") or query.get("subset")
    given = [dataset["name"], *([config] if config else [])]
    words = ", ".join(json.dumps(re.sub(r"[^\w./-]", "", word)) for word in given)
    split = json.dumps(re.sub(r"[^\w]", "", query.get("split", "test")) + limit)
    return (
        f"pip install datasets && python -c 'from datasets import load_dataset; load_dataset({words}, split={split}).to_csv(\"tests.csv\")'"
    )


def merged(config: Mapping[str, JsonValue], test: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a test of a scenario with a configuration of it: the test's values come first, and the assertions of both count."""
    both: dict[str, JsonValue] = {**config, **test}
    for key in ("vars", "options", "metadata"):
        if isinstance(config.get(key), dict) and isinstance(test.get(key), dict):
            both[key] = {**config[key], **test[key]}  # type: ignore[dict-item]  # both are objects
    asserted = [value for value in (config.get("assert"), test.get("assert")) if isinstance(value, list)]
    return both | ({"assert": [assertion for value in asserted for assertion in value]} if asserted else {})


def _without_own_options(raw: dict[str, Any]) -> dict[str, Any]:
    options = raw.get("options")
    return raw | {"options": {key: item for key, item in options.items() if key not in _OF_THE_TEST}} if isinstance(options, dict) else raw


def _names(value: JsonValue, where: Location) -> tuple[str, ...] | None:
    """Return the labels that a test names, or None where it names none, so that it runs with all."""
    if value is None:
        return None
    names = [value] if isinstance(value, str) else as_list(value, where)
    if not all(isinstance(name, str) for name in names):
        raise InvalidRequest(f"{where} names no labels; write a list of them")
    return tuple(map(str, names))


def parse_times(value: JsonValue, where: Location) -> int | None:
    """Return how often a test runs, None where nothing says so; raise InvalidRequest where it is not a number from 1 to 100."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100:  # noqa: PLR2004 - as in a suite of ours
        raise InvalidRequest(f"{where}: {clip(str(value))} is not a number from 1 to 100")
    return value


def fill_variables(variables: Mapping[str, JsonValue], where: Location) -> dict[str, JsonValue]:
    """Return variables with the others that their texts name as `{{ name }}` filled in, to a depth of five.

    Raises:
        InvalidRequest: A text names what is not a variable, or is more of a template than that; or what it becomes is too long.
    """
    filled = dict(variables)
    for _ in range(_NESTED):
        named = {name: value for name, value in filled.items() if isinstance(value, str) and is_template(value)}
        if not named:
            break
        filled |= {name: _NAME.sub(partial(_variable_text, dict(filled)), value) for name, value in named.items()}
        if long := next((name for name in named if len(str(filled[name])) > CASE_BYTES), None):
            raise InvalidRequest(f"{where.at(long)}: filled, it has more than {CASE_BYTES} characters; use less of the other variables")
    for name, value in filled.items():
        if isinstance(value, str) and is_template(value):
            problem = "is a template; a variable may name others as {{ name }} and nothing more, so write it out"
            raise InvalidRequest(f"{where.at(name)}: {clip(value)} {problem}")
    return filled


def _variable_text(variables: Mapping[str, JsonValue], found: re.Match[str]) -> str:
    value = variables.get(found["name"])
    return value if isinstance(value, str) else found[0] if value is None else json.dumps(value, ensure_ascii=False)


def is_text_list(value: JsonValue) -> bool:
    """Return whether a value is a list that begins with a text."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], str)


def variable_combinations(variables: Mapping[str, JsonValue], *, expands: bool) -> Iterator[dict[str, JsonValue]]:
    """Yield every combination of the variables whose values are lists that begin with a text."""
    values = [item if expands and isinstance(item, list) and is_text_list(item) else [item] for item in variables.values()]
    for combination in product(*values):
        yield dict(zip(variables, combination, strict=True))


_EXPECTED = re.compile(r"__expected\d*")
_CONFIG = re.compile(r"__config:(?P<column>__expected\d*):threshold")
_ASSERTION = re.compile(r"(?P<negated>not-)?(?P<type>[a-z][a-z-]*)(?:\((?P<threshold>\d+(?:\.\d+)?)\))?(?::(?P<value>.*))?", re.DOTALL)
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
    """Parse a row of CSV into a raw test; raise InvalidRequest where a column or an assertion is not supported."""
    fields: dict[str, JsonValue] = {}
    variables: dict[str, JsonValue] = {}
    assertions: dict[str, dict[str, JsonValue]] = {}
    thresholds: dict[str, JsonValue] = {}
    metric, options = dict[str, JsonValue](), dict[str, JsonValue]()
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
        elif name in {"__prefix", "__suffix"}:
            options[name.removeprefix("__")] = cell
        elif not name.startswith("__metadata"):
            raise InvalidRequest(f"{row.spot}: the column {clip(name)} is not supported; leave it out")
    asserted = list(_with_thresholds(assertions, thresholds, row.spot, metric))
    return fields | _metadata_of(row) | {"vars": variables, "assert": asserted} | ({"options": options} if options else {})


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
    row = find_type(match["type"]) if match else None
    if names_code(text):
        raise InvalidRequest(f"{where}: {clip(text)} is code, which a table does not name; write the assertion into the configuration")
    if match is None or row is None or not row.negatable:
        return {"type": "equals", "value": text}
    value = (match["value"] or "").strip()
    threshold = row.cell_threshold if match["threshold"] is None else parse_number(match["threshold"], where)
    return {
        "type": (match["negated"] or "") + row.name,
        **({"value": value} if value else {}),
        **({} if threshold is None else {"threshold": threshold}),
    }
