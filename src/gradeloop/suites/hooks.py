"""The hooks of a promptfoo configuration, its `extensions`; those before the batch are called in the sandbox while the suite is read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from gradeloop.batches.after_each import hook_arguments
from gradeloop.contract.base import CodeText
from gradeloop.errors import InvalidRequest
from gradeloop.files.roots import FileScope
from gradeloop.files.yaml import Location
from gradeloop.sandbox.execution import SandboxError
from gradeloop.suites.case_texts import call_code
from gradeloop.suites.code_files import CodeGrant, names_code, parse_transform, read_code_file, refuse_code
from gradeloop.suites.unsupported import UnsupportedFeatures, as_list
from gradeloop.text import clip

HookName = Literal["beforeAll", "beforeEach", "afterEach"]

_NAMES = {"beforeAll", "beforeEach", "afterEach", "afterAll"}
"""The functions that are called for the hook of their name; any other is called for all hooks, with the name first."""

CHANGED = ("prompts", "tests", "scenarios", "defaultTest", "derivedMetrics")
"""The parts of a suite that `beforeAll` may change, as in promptfoo."""


@dataclass(frozen=True)
class Hook:
    """A function that changes the suite or its tests, or adds to the results of its cases."""

    code: CodeText
    spot: Location


@dataclass(frozen=True)
class Hooks:
    """The hooks of a configuration, in the order of their calls."""

    listed: tuple[Hook, ...] = ()
    grant: CodeGrant = CodeGrant()  # noqa: RUF009 - frozen

    def of(self, name: HookName) -> list[Hook]:
        """Return the functions that are called for a hook."""
        return [hook for hook in self.listed if hook.code.function == name or hook.code.function not in _NAMES]

    def call(self, name: HookName, key: str, values: Sequence[dict[str, JsonValue]]) -> list[dict[str, JsonValue] | InvalidRequest]:
        """Return values as the functions of a hook leave them, each the `key` of a context; for one that fails its error.

        Raises:
            InvalidRequest: There is no sandbox.
        """
        found: list[dict[str, JsonValue] | InvalidRequest] = list(values)
        for hook in self.of(name):
            going = {at: value for at, value in enumerate(found) if not isinstance(value, InvalidRequest)}
            what = f"{hook.spot}: {name} of {hook.code.file}"
            given = tuple(json.dumps(hook_arguments(hook.code, name, {key: value})) for value in going.values())
            try:
                results = call_code(hook.code.model_dump_json(), given, self.grant.imports, int(hook.code.function != name))
            except SandboxError as error:
                raise InvalidRequest(f"{what} cannot be run: {error}") from None
            for at, result in zip(going, results, strict=True):
                if result.error is not None:
                    found[at] = InvalidRequest(f"{what} has failed: {result.error}; correct it, or leave the hook out")
                elif result.value:
                    made = result.value.get(key) if isinstance(result.value, dict) else None
                    wrong = InvalidRequest(f"{what} returned {clip(str(result.value))}; return the context with its {key}, or nothing")
                    if isinstance(made, dict) and name == "beforeAll":
                        made = {**going[at], **{part: made.get(part) for part in CHANGED}}
                    found[at] = made if isinstance(made, dict) else wrong
        return found


def read_hooks(
    value: JsonValue, where: Location, scope: FileScope, grant: CodeGrant, findings: UnsupportedFeatures
) -> tuple[Hooks, list[str]]:
    """Read `extensions`, and return the hooks, and why some of them are left out.

    Raises:
        InvalidRequest: One is not a file of code, is not supported, or its user has not allowed code.
    """
    hooks, left_out = list[Hook](), list[str]()
    for at, entry in enumerate(as_list(value, where)):
        spot = where.at(at)
        if isinstance(entry, str) and entry.endswith(":afterAll"):  # which changes nothing in promptfoo either
            findings.note(f"{spot}: afterAll is not run; what it does with the results, do with the files of -o")
            continue
        with findings.leaving_out("not judged", left_out):
            if not isinstance(entry, str) or not names_code(entry):
                raise InvalidRequest(f"{spot}: {clip(str(entry))} names no file of code; write file://hooks.js:beforeAll")
            code = parse_transform(read_code_file(entry, scope, spot), "get_transform", spot)
            if not grant.allowed:
                raise refuse_code(spot, f"the hook {code.file}")
            if code.function not in _NAMES:
                findings.note(f"{spot}: {code.file} is called for all hooks but afterAll")
            hooks.append(Hook(code, spot))
    return Hooks(tuple(hooks), grant), left_out
