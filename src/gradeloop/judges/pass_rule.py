"""The rule that passes a judgement, by the values that are wanted of an output, and the verdicts with too few votes to decide."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import JsonValue

from gradeloop.contract.evaluation import CriterionRow
from gradeloop.errors import InvalidRequest
from gradeloop.grading.verdicts import contradicted, contradiction
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, JudgeResult, PassGate
from gradeloop.judges.schema import Path, keys_of, value_at
from gradeloop.stats.reliability import is_below
from gradeloop.text import canonical_json, clip, did_you_mean, objects_in

_GOOD = {"true", "pass", "passes", "passed", "match", "yes", "correct", "satisfied", "met"}
"""The values that mean that an answer is good: a rule may as well pass the absence of something, of which a reason speaks otherwise."""

Rule = Sequence[tuple[Path, JsonValue]]
"""The values that pass, by the paths of their keys."""


class JudgementCounts(NamedTuple):
    """The numbers of judgements that pass, have a verdict, are failures, and are unsure, which is neither a verdict nor a failure."""

    passed: int
    judged: int
    errors: int
    unsure: int


def said_rows(result: JudgeResult) -> list[CriterionRow]:
    """Return the rows of a judgement by criteria; none of one by a schema."""
    return [CriterionRow.model_construct(**row) for row in objects_in(result.output.get("criteria")) if {"id", "passed"} <= row.keys()]


class PassRule:
    """The rule that passes a judgement: the output has every `--pass KEY=VALUE`, else every value of the judge's own `pass_if`.

    Without either a judge by criteria passes what it says is `satisfied`, and nothing says what one with a schema passes. Every command
    asks only this rule what passes, and which value of a key is the positive one. `schema` is that of labels which keys are compared with.

    Raises:
        InvalidRequest: A value of `--pass` names no key of the schema, or a value that it does not allow.
    """

    def __init__(self, judge: JudgeConfig, wanted: Sequence[str], schema: Mapping[str, Any] | None = None) -> None:
        self.judge = judge
        schema = judge.output_schema if schema is None else schema
        own = {"result": "satisfied"} if isinstance(judge, CriteriaJudge) else judge.pass_if or {}
        self.wanted = [_parse(schema, text) for text in wanted] or rule_of(schema, own)

    @property
    def values(self) -> dict[str, JsonValue]:
        """The value that passes, by the name of its key; empty where nothing is stated."""
        return {".".join(path): value for path, value in self.wanted}

    @property
    def stated(self) -> bool:
        """True if the rule can pass or fail a judgement."""
        return bool(self.wanted)

    def passed(self, result: JudgeResult) -> bool | None:
        """Return whether a result passes; None for a FAILURE, an unsure one, or without a rule."""
        return _passes(result, self.wanted)

    def count(self, results: Sequence[JudgeResult]) -> JudgementCounts:
        """Return how many results there are of each kind."""
        errors, unsure = sum(result.failed for result in results), sum(bool(result.unsure) for result in results)
        return JudgementCounts(sum(bool(self.passed(result)) for result in results), len(results) - errors - unsure, errors, unsure)

    def contradictions(self, result: JudgeResult) -> tuple[str, ...]:
        """Return where a result's reason contradicts its verdict, in words: of rows by their ids, else of all that it says in texts."""
        if isinstance(self.judge, CriteriaJudge):
            rows = said_rows(result)
            return tuple(f"{row.id}: {note}" for row in rows if (note := contradiction(row, self.judge.rubric)))
        passed, wanted = self.passed(result), [str(value).lower() for value in self.values.values()]
        texts = [text for text in result.output.values() if isinstance(text, str)] if len(wanted) == 1 and wanted[0] in _GOOD else []
        said = "" if passed is None else contradicted("\n".join(texts), passed=passed)
        return (said,) if said else ()

    def gate(self, pass_rate: float | None = None, allow_errors: float = 0.0) -> PassGate | None:
        """Return the rule as results carry it, with what else a `PassGate` says; None where no rule is stated."""
        return PassGate(pass_if=self.values, pass_rate=pass_rate, allow_errors=allow_errors) if self.stated else None


# Values are compared as canonical JSON: in Python 1 equals true, and a score of 1 must not pass a rule that
# wants true.
def passes_rule(rule: Rule, output: Mapping[str, JsonValue]) -> bool | None:
    """Return whether an output or a label passes; None where it lacks a value that the rule asks for."""
    values = [(value_at(dict(output), path), wanted) for path, wanted in rule]
    if any(value is None for value, _ in values):
        return None
    return all(canonical_json(value) == canonical_json(wanted) for value, wanted in values)


def refuse_two_values(key: str, values: Sequence[JsonValue]) -> None:
    """Raise InvalidRequest for a key of two values of which nothing says which passes: their order says nothing."""
    if len(values) == 2:  # noqa: PLR2004 - of one value, or of more, none is the opposite of another
        one, other = (json.dumps(value) for value in values)
        cure = f"add pass_if: {{{key}: VALUE}} to the judge's file, or --pass {key}=VALUE"
        raise InvalidRequest(f"nothing says which value of {clip(key)} passes, {one} or {other}; {cure}")


def in_words(values: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Return values by their keys in words: `label is partial`."""
    return tuple(f"{name} is {value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items())


def with_gate(result: JudgeResult, gate: PassGate | None) -> JudgeResult:
    """Return a result with the rule that a command had, and whether it passes by it."""
    if gate is None:
        return result
    wanted = [(_path_in(result.output, name), value) for name, value in gate.pass_if.items()]
    return result.model_copy(update={"gate": gate, "passed": _passes(result, wanted)})


def unmet_values(result: JudgeResult) -> tuple[str, ...]:
    """Return in words for which of its values a result does not pass by its gate: `label is partial`; none where it passes."""
    if result.passed is not False or result.gate is None:
        return ()
    said = {name: value_at(result.output, _path_in(result.output, name)) for name in result.gate.pass_if}
    return in_words({name: value for name, value in said.items() if canonical_json(value) != canonical_json(result.gate.pass_if[name])})


def _path_in(output: JsonValue, name: str) -> tuple[str, ...]:
    """Return the path of a key in an output by its name, in which a dot leads into an object or is a part of a property's name."""
    inner = output if isinstance(output, dict) else {}
    if name in inner:
        return (name,)
    key = next((key for key in inner if name.startswith(f"{key}.")), None)
    return (name,) if key is None else (key, *_path_in(inner[key], name.removeprefix(f"{key}.")))


def gate_of_outputs(outputs: Sequence[dict[str, JsonValue]], wanted: Sequence[str], pass_rate: float | None) -> PassGate:
    """Return the rule of `--pass` for outputs whose judge is not known: a key is one that an output has, a value of the same type.

    Raises:
        InvalidRequest: No output has such a key.
    """
    found: dict[str, JsonValue] = {}
    for text in wanted:
        name, _, value = text.partition("=")
        path = next((path for output in outputs if value_at(output, path := _path_in(output, name.strip())) is not None), ())
        known = [one for output in outputs if isinstance(one := value_at(output, path), str | bool | int | float)]
        if "=" not in text or not known:
            hint = did_you_mean(name.strip(), sorted({key for output in outputs for key in output}))
            raise InvalidRequest(f"--pass {clip(text)} names no key of these judgements; write KEY=VALUE.{hint}")
        wanted_value = value.strip() if isinstance(known[0], str) else _value_in(value)
        if wanted_value is None:
            raise InvalidRequest(f"--pass {clip(text)}: {clip(value.strip())} is not a number, true or false, as they have")
        found[".".join(path)] = wanted_value
    return PassGate(pass_if=found, pass_rate=pass_rate)


def rule_of(schema: Mapping[str, Any], values: Mapping[str, JsonValue]) -> Rule:
    """Return the rule of the values that pass, by the names of a schema's keys; `PassRule.values` names them."""
    paths = {key.name: key.path for key in keys_of(schema)}
    return [(paths[name], value) for name, value in values.items() if name in paths]


def _passes(result: JudgeResult, wanted: Rule) -> bool | None:
    if result.failed or result.unsure or not wanted:
        return None
    return all(canonical_json(value_at(result.output, path)) == canonical_json(value) for path, value in wanted)


def _parse(schema: Mapping[str, Any], text: str) -> tuple[Path, JsonValue]:
    """Parse KEY=VALUE, the value as the type that the schema gives its key."""
    name, found, value = (part.strip() for part in text.partition("="))
    keys = {key.name: key for key in keys_of(schema)}
    if not found or name not in keys:
        hint = did_you_mean(name, list(keys)) if keys else ""
        raise InvalidRequest(f"--pass {clip(text)} names no key of the judge's output; write KEY=VALUE.{hint}")
    key = keys[name]
    wanted = value if key.type == "string" else _value_in(value)
    if key.choices and wanted not in key.choices:
        known = list(map(str, key.choices))
        raise InvalidRequest(f"--pass {clip(text)}: the judge's schema does not allow that value.{did_you_mean(value, known)}")
    if wanted is None:
        raise InvalidRequest(f"--pass {clip(text)}: {clip(value)} is not of type {key.type}; write KEY=VALUE with such a value")
    return key.path, wanted


def _value_in(text: str) -> JsonValue:
    try:
        read: JsonValue = json.loads(text)
    except ValueError:
        return None
    return read


CRITERIA = "criteria."
"""The prefix of a criterion's id among the keys of an output, as `gradeloop agreement` prints it."""


def with_unsure(judge: JudgeConfig, result: JudgeResult) -> JudgeResult:
    """Return a result with the keys that the judge is unsure of, by the least shares of votes that its `abstain` names."""
    if not judge.abstain or result.failed:
        return result
    shares = {key: share_of_votes(judge, result, key) for key in judge.abstain}
    unsure = tuple(key for key, share in shares.items() if share is not None and is_below(share, judge.abstain[key]))
    return result.model_copy(update={"unsure": unsure})


def share_of_votes(judge: JudgeConfig, result: JudgeResult, key: str) -> float | None:
    """Return the share of a judgement's votes on a key that agree with its verdict, 0 to 1; None without votes."""
    if isinstance(judge, CriteriaJudge):
        row = next((row for row in objects_in(result.output.get("criteria")) if f"{CRITERIA}{row.get('id')}" == key), {})
        said = [vote["passed"] for vote in objects_in(row.get("votes")) if vote.get("passed") is not None]
        return sum(vote == row.get("passed") for vote in said) / len(said) if said else None
    verdict, shares = (value_at(result.result_metadata, ("keys", key, name)) for name in ("value", "distribution"))
    return next((float(one["share"]) for one in objects_in(shares) if one.get("value") == verdict), None)
