"""promptfoo's tests as tests of ours: variables that fan out, `__expected` columns, references to templates.

Facts of their shapes: promptfoo 0.123.1, `src/csv.ts`, `src/evaluator.ts` and `src/util/testCaseReader.ts`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from gradeloop.errors import InvalidRequest
from gradeloop.printable import clip
from gradeloop.promptfoo_models import as_list, as_object, refuse_others
from gradeloop.spot import Spot, refused
from gradeloop.suites.datasets import Tested, files_of, read_rows, refuse_number
from gradeloop.suites.fields import Defaults, SuiteTest
from gradeloop.suites.promptfoo_cells import test_of_cells
from gradeloop.suites.suite_files import followed, is_file
from gradeloop.templates import is_template

_DEFAULTS = {"vars", "assert", "threshold", "options", "metadata"}
_TEST = _DEFAULTS | {"description", "providerOutput"}
_OPTIONS = {"provider", "rubricPrompt", "disableVarExpansion"}
_CODE = (".js", ".cjs", ".mjs", ".ts", ".cts", ".mts", ".py", ".rb")

_REFERENCE = "#/assertionTemplates/"


@dataclass(frozen=True)
class Reader:
    """Reads the tests of one configuration."""

    folder: Path
    templates: Mapping[str, JsonValue]
    """Assertions by the names under which tests refer to them."""
    expands: bool = True
    """False: a list of texts among the variables is one value."""

    def defaults(self, value: JsonValue, where: Spot) -> Defaults:
        """Return what holds for all tests.

        Raises:
            InvalidRequest: Something in it has no counterpart.
        """
        told = self._followed(as_object(followed(value, self.folder, where) if is_file(value) else value, where), _DEFAULTS, where)
        try:
            return Defaults.model_validate(told)
        except ValidationError as error:
            raise refused(error, where) from None

    def tests(self, value: JsonValue, where: Spot) -> Iterator[Tested]:
        """Yield the tests, one for each combination of variables that are lists.

        Raises:
            InvalidRequest: Something in them has no counterpart.
        """
        for at, each in enumerate(value if isinstance(value, list) else [value]):
            spot = where.at(at) if isinstance(value, list) else where
            if isinstance(each, str):
                for path in files_of(each, self.folder, spot):
                    for row in read_rows(path):
                        yield from self._tested(test_of_cells(row) if row.table else row.value, row.spot, recorded=row.table)
            else:
                yield from self._tested(as_object(each, spot), spot)

    def _tested(self, value: dict[str, JsonValue], where: Spot, *, recorded: bool = False) -> Iterator[Tested]:
        told = dict(value) if recorded else self._followed(value, _TEST, where)
        refuse_number(told.get("providerOutput"), where)
        output = {"output": told.pop("providerOutput")} if "providerOutput" in told else {}
        expands = self.expands and not as_object(value.get("options"), where).get("disableVarExpansion")
        for variables in _combinations(as_object(told.get("vars"), where.at("vars")), expands=expands):
            try:
                yield Tested(SuiteTest.model_validate(told | output | {"vars": variables}), where)
            except ValidationError as error:
                raise refused(error, where) from None

    def _followed(self, value: dict[str, JsonValue], known: set[str], where: Spot) -> dict[str, Any]:
        refuse_others(value, known, where)
        told: dict[str, Any] = {key: item for key, item in value.items() if key != "metadata"}
        options = as_object(told.get("options"), where.at("options"))
        refuse_others(options, _OPTIONS, where.at("options"))
        _refuse_code(told, where)
        read = {key: followed(told[key], self.folder, where.at(key)) for key in ("vars", "assert", "options") if told.get(key) is not None}
        if isinstance(read.get("options"), dict):
            read["options"] = {key: item for key, item in as_object(read["options"], where).items() if key != "disableVarExpansion"}
        _refuse_templates(as_object(read.get("vars"), where.at("vars")), where.at("vars"))
        if "assert" in read:
            read["assert"] = [
                self._resolved(each, where.at("assert", at)) for at, each in enumerate(as_list(read["assert"], where.at("assert")))
            ]
        return told | read

    def _resolved(self, value: JsonValue, where: Spot) -> JsonValue:
        """Return an assertion, or the template that it refers to."""
        told = as_object(value, where)
        if "assert" in told:
            inner = as_list(told["assert"], where.at("assert"))
            return told | {"assert": [self._resolved(each, where.at("assert", at)) for at, each in enumerate(inner)]}
        if "$ref" not in told:
            return told
        name = str(told["$ref"]).removeprefix(_REFERENCE)
        if name not in self.templates:
            raise InvalidRequest(f"{where}: {clip(str(told['$ref']))} is not among the assertionTemplates; write the assertion out")
        rest = {key: item for key, item in told.items() if key != "$ref"}
        return as_object(self.templates[name], where) | rest


def _refuse_code(value: JsonValue, where: Spot) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_code(item, where.at(key))
    elif isinstance(value, list):
        for at, item in enumerate(value):
            _refuse_code(item, where.at(at))
    elif isinstance(value, str) and is_file(value) and value.partition("#")[0].rpartition(":")[0].endswith(_CODE) | value.endswith(_CODE):
        raise InvalidRequest(f"{where}: {clip(value)} is code, which is not run; write it as a check, a function of the worker's tools")


def _refuse_templates(variables: Mapping[str, JsonValue], where: Spot) -> None:
    for name, value in variables.items():
        if isinstance(value, str) and is_template(value):
            raise InvalidRequest(f"{where.at(name)}: {clip(value)} is a template; variables are data here, write it out")


def _combinations(variables: Mapping[str, JsonValue], *, expands: bool) -> Iterator[dict[str, JsonValue]]:
    """Yield every combination of the variables whose values are lists that begin with a text."""
    values = [item if expands and isinstance(item, list) and item and isinstance(item[0], str) else [item] for item in variables.values()]
    for combination in product(*values):
        yield dict(zip(variables, combination, strict=True))
