"""The rule that passes a judgement: what a criteria judge says itself, or the values that are wanted of an output."""

import json
from collections.abc import Sequence

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.grading.checks import canonical_json
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult
from gradeloop.judges.schema import keys_of, value_at
from gradeloop.text import clip, did_you_mean


class PassRule:
    """The rule that passes a judgement: a criteria judge says `satisfied`, or the output has every `--pass KEY=VALUE`."""

    def __init__(self, judge: JudgeConfig, wanted: Sequence[str]) -> None:
        self.wanted = [self._parse(judge, text) for text in wanted]
        if isinstance(judge, CriteriaJudge) and not self.wanted:
            self.wanted = [(("result",), "satisfied")]

    @property
    def stated(self) -> bool:
        """True if the rule can pass or fail a judgement."""
        return bool(self.wanted)

    def passed(self, result: JudgeResult) -> bool | None:
        """Return whether a result passes; None for a FAILURE, an unsure one, or without a rule."""
        if result.failed or result.unsure or not self.wanted:
            return None
        return all(canonical_json(value_at(result.output, path)) == canonical_json(value) for path, value in self.wanted)

    @staticmethod
    def _parse(judge: JudgeConfig, text: str) -> tuple[tuple[str, ...], JsonValue]:
        name, found, value = text.partition("=")
        keys = {key.name: key for key in keys_of(judge.output_schema)}
        if not found or name.strip() not in keys:
            hint = did_you_mean(name.strip(), list(keys)) if keys else ""
            raise InvalidRequest(f"--pass {clip(text)} names no key of the judge's output; write KEY=VALUE.{hint}")
        path = keys[name.strip()].path
        return path, _parse_value(judge, path, value.strip(), text)


def _parse_value(judge: JudgeConfig, path: tuple[str, ...], value: str, text: str) -> JsonValue:
    """Parse a value as the type that the judge's schema gives its key."""
    schema = judge.output_schema
    for name in path:
        schema = schema["properties"][name]
    if schema["type"] == "string":
        wanted: JsonValue = value
    else:
        try:
            wanted = json.loads(value)
        except ValueError:
            wanted = None
    if "enum" in schema and wanted not in schema["enum"]:
        known = [str(value) for value in schema["enum"]]
        raise InvalidRequest(f"--pass {clip(text)}: the judge's schema does not allow that value.{did_you_mean(value, known)}")
    if wanted is None:
        raise InvalidRequest(f"--pass {clip(text)}: {clip(value)} is not of type {schema['type']}; write KEY=VALUE with such a value")
    return wanted
