"""The rule that passes a judgement: the values that are wanted of an output, or what a judge by criteria says itself."""

import json
from collections.abc import Sequence

from pydantic import JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.grading.checks import canonical_json
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult, PassGate
from gradeloop.judges.schema import keys_of, value_at
from gradeloop.text import clip, did_you_mean


class PassRule:
    """The rule that passes a judgement: the output has every `--pass KEY=VALUE`, else every value of the judge's own `pass_if`.

    Without either a judge by criteria passes what it says is `satisfied`, and nothing says what one with a schema passes.
    """

    def __init__(self, judge: JudgeConfig, wanted: Sequence[str]) -> None:
        self.wanted = [self._parse(judge, text) for text in wanted] or _own_values(judge)

    @property
    def stated(self) -> bool:
        """True if the rule can pass or fail a judgement."""
        return bool(self.wanted)

    def passed(self, result: JudgeResult) -> bool | None:
        """Return whether a result passes; None for a FAILURE, an unsure one, or without a rule."""
        return _passes(result, self.wanted)

    def gate(self, pass_rate: float | None = None, allow_errors: float = 0.0) -> PassGate | None:
        """Return the rule as results carry it; None where none is stated.

        Args:
            pass_rate: The share of judged runs, 0 to 1, that has to pass; None where none decides.
            allow_errors: The share of judgements, 0 to 1, that may be failures.
        """
        return _gate_of(self.wanted, pass_rate, allow_errors) if self.stated else None

    @staticmethod
    def _parse(judge: JudgeConfig, text: str) -> tuple[tuple[str, ...], JsonValue]:
        name, found, value = text.partition("=")
        keys = {key.name: key for key in keys_of(judge.output_schema)}
        if not found or name.strip() not in keys:
            hint = did_you_mean(name.strip(), list(keys)) if keys else ""
            raise InvalidRequest(f"--pass {clip(text)} names no key of the judge's output; write KEY=VALUE.{hint}")
        path = keys[name.strip()].path
        return path, _parse_value(judge, path, value.strip(), text)


def with_gate(result: JudgeResult, gate: PassGate | None) -> JudgeResult:
    """Return a result with the rule that a command had, and whether it passes by it."""
    if gate is None:
        return result
    wanted = [(_path_in(result.output, name), value) for name, value in gate.pass_if.items()]
    return result.model_copy(update={"gate": gate, "passed": _passes(result, wanted)})


def unmet_values(result: JudgeResult) -> tuple[str, ...]:
    """Return in words for which of its values a result does not pass by its gate: `label is no match`; none where it passes."""
    if result.passed is not False or result.gate is None:
        return ()
    said = {name: value_at(result.output, _path_in(result.output, name)) for name in result.gate.pass_if}
    odd = {name: value for name, value in said.items() if canonical_json(value) != canonical_json(result.gate.pass_if[name])}
    return tuple(f"{name} is {value if isinstance(value, str) else json.dumps(value)}" for name, value in odd.items())


def _path_in(output: JsonValue, name: str) -> tuple[str, ...]:
    """Return the path of a key in an output by its name, in which a dot leads into an object or is a part of a property's name."""
    inner = output if isinstance(output, dict) else {}
    if name in inner:
        return (name,)
    within = (key for key in inner if name.startswith(f"{key}."))
    key = next(within, None)
    return (name,) if key is None else (key, *_path_in(inner[key], name.removeprefix(f"{key}.")))


def gate_of_outputs(outputs: Sequence[dict[str, JsonValue]], wanted: Sequence[str], pass_rate: float | None) -> PassGate:
    """Return the rule of `--pass` for outputs whose judge is not known: a key is one that an output has, a value of the same type.

    Raises:
        InvalidRequest: No output has such a key.
    """
    found = []
    for text in wanted:
        name, _, value = text.partition("=")
        path = next((path for output in outputs if value_at(output, path := _path_in(output, name.strip())) is not None), ())
        known = [one for output in outputs if isinstance(one := value_at(output, path), str | bool | int | float)]
        if "=" not in text or not known:
            hint = did_you_mean(name.strip(), sorted({key for output in outputs for key in output}))
            raise InvalidRequest(f"--pass {clip(text)} names no key of these judgements; write KEY=VALUE.{hint}")
        found.append((path, value.strip() if isinstance(known[0], str) else _read_value(value.strip(), text)))
    return _gate_of(found, pass_rate, 0.0)


def _own_values(judge: JudgeConfig) -> list[tuple[tuple[str, ...], JsonValue]]:
    if isinstance(judge, CriteriaJudge):
        return [(("result",), "satisfied")]
    paths = {key.name: key.path for key in keys_of(judge.output_schema)}
    return [(paths[name], value) for name, value in (judge.pass_if or {}).items()]


def _gate_of(wanted: Sequence[tuple[tuple[str, ...], JsonValue]], pass_rate: float | None, allow_errors: float) -> PassGate:
    return PassGate(pass_if={".".join(path): value for path, value in wanted}, pass_rate=pass_rate, allow_errors=allow_errors)


def _passes(result: JudgeResult, wanted: Sequence[tuple[tuple[str, ...], JsonValue]]) -> bool | None:
    if result.failed or result.unsure or not wanted:
        return None
    return all(canonical_json(value_at(result.output, path)) == canonical_json(value) for path, value in wanted)


def _read_value(value: str, text: str) -> JsonValue:
    try:
        read: JsonValue = json.loads(value)
    except ValueError:
        raise InvalidRequest(f"--pass {clip(text)}: {clip(value)} is no number, nor true or false, as they have") from None
    return read


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
