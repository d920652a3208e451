"""How far a judge agrees with people, key by key: the statistics are scikit-learn's and krippendorff's."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field, JsonValue

from gradeloop.errors import InvalidRequest
from gradeloop.judges.config import CriteriaJudge, JudgeConfig
from gradeloop.judges.judge_result import JudgeResult
from gradeloop.judges.labels import Label, LabelSet, comparable
from gradeloop.judges.schema_shape import Key, keys_of, value_at
from gradeloop.strict import Strict

JUDGE = "judge"


class Disagreement(Strict):
    """A run of which judge and person say different things."""

    agent_run_id: str
    key: str
    label: JsonValue
    judge: JsonValue
    by: str
    label_reason: str
    judge_reason: str


class KeyAgreement(Strict):
    """Agreement on one key."""

    key: str
    pairs: int
    """Of a label and the judge's value for it."""
    accuracy: float
    """The share of pairs that are equal."""
    kappa: float | None
    """Cohen's, unweighted; None for numbers, and where everybody always says the same."""
    alpha: float | None
    """Krippendorff's, over the judge and every person: nominal for what is voted on, interval for numbers; None as above."""
    mean_error: float | None = None
    """Of numbers, the mean absolute difference."""
    confusion: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By the label's value, then by the judge's; both as JSON, so that `true` is no text."""


class Agreement(Strict):
    """What comes out of labels and judgements."""

    labels: int
    judged: int
    """Labels whose run the judge gave an output for."""
    missing: tuple[str, ...]
    """Runs with a label and no output."""
    keys: tuple[KeyAgreement, ...]
    disagreements: tuple[Disagreement, ...]


@dataclass(frozen=True)
class _Pair:
    label: Label
    said: JsonValue
    judged: JsonValue
    reason: str


def agreement(judge: JudgeConfig, labels: LabelSet, results: Sequence[JudgeResult]) -> Agreement:
    """Return how far results agree with labels; of several results for a run, the first counts.

    Raises:
        InvalidRequest: No labelled run has an output, or the packages for the statistics are missing.
    """
    outputs: dict[str, dict[str, JsonValue]] = {}
    for result in results:
        if not result.failed:
            outputs.setdefault(result.agent_run_id, result.output)
    found = [each for each in labels.labels if each.agent_run_id in outputs]
    if not found:
        raise InvalidRequest("none of the labelled runs has a judgement; judge them first, or check the ids (agent_run_id)")
    told: list[KeyAgreement] = []
    disagreements: list[Disagreement] = []
    for key in keys_of(labels.label_schema):
        pairs = [pair for each in found if (pair := _pair(judge, key, each, outputs[each.agent_run_id])) is not None]
        if pairs:
            told.append(_key(key, pairs))
            disagreements += [_disagreement(key, pair) for pair in pairs if not _equal(pair.said, pair.judged)]
    missing = tuple(dict.fromkeys(each.agent_run_id for each in labels.labels if each.agent_run_id not in outputs))
    if not told:
        raise InvalidRequest("the labels and the judge's outputs have no key in common that can be compared")
    return Agreement(labels=len(labels.labels), judged=len(found), missing=missing, keys=tuple(told), disagreements=tuple(disagreements))


def _pair(judge: JudgeConfig, key: Key, label: Label, output: dict[str, JsonValue]) -> _Pair | None:
    said, judged = value_at(label.label_value, key.path), value_at(comparable(judge, output), key.path)
    if said is None or judged is None:
        return None
    return _Pair(label, said, judged, _reason(judge, key, output))


def _reason(judge: JudgeConfig, key: Key, output: Mapping[str, JsonValue]) -> str:
    """Return why the judge says so: the row's reason, or the explanation, or the first text that is no choice."""
    rows = output.get("criteria")
    if isinstance(judge, CriteriaJudge) and key.path[0] == "criteria" and isinstance(rows, list):
        return next((str(row.get("reason") or "") for row in rows if isinstance(row, dict) and row.get("id") == key.path[-1]), "")
    texts = [name for name, each in judge.output_schema["properties"].items() if each["type"] == "string" and "enum" not in each]
    named = ("explanation", *texts)
    return next((str(output[name]) for name in named if output.get(name)), "")


def _disagreement(key: Key, pair: _Pair) -> Disagreement:
    return Disagreement(
        agent_run_id=pair.label.agent_run_id,
        key=key.name,
        label=pair.said,
        judge=pair.judged,
        by=pair.label.created_by,
        label_reason=pair.label.reason,
        judge_reason=pair.reason,
    )


def _key(key: Key, pairs: Sequence[_Pair]) -> KeyAgreement:
    equal = sum(_equal(pair.said, pair.judged) for pair in pairs)
    numeric = key.how == "median"
    confusion: dict[str, dict[str, int]] = {}
    for pair in pairs if not numeric else ():
        row = confusion.setdefault(json.dumps(pair.said), {})
        row[json.dumps(pair.judged)] = row.get(json.dumps(pair.judged), 0) + 1
    errors = [abs(float(pair.said) - float(pair.judged)) for pair in pairs] if numeric else []  # type: ignore[arg-type]  # numbers, by the schema
    return KeyAgreement(
        key=key.name,
        pairs=len(pairs),
        accuracy=equal / len(pairs),
        kappa=None if numeric else kappa([(json.dumps(pair.said), json.dumps(pair.judged)) for pair in pairs]),
        alpha=alpha(_ratings(pairs), numeric=numeric),
        mean_error=sum(errors) / len(errors) if errors else None,
        confusion=confusion,
    )


def _ratings(pairs: Sequence[_Pair]) -> list[tuple[str, str, JsonValue]]:
    """Return who said what of which run, the judge once a run."""
    judged = {pair.label.agent_run_id: (JUDGE, pair.label.agent_run_id, pair.judged) for pair in pairs}
    return [*judged.values(), *((f"person {pair.label.created_by}", pair.label.agent_run_id, pair.said) for pair in pairs)]


def kappa(pairs: Sequence[tuple[str, str]]) -> float | None:
    """Return Cohen's kappa of pairs of ratings; None where it is not defined, since both always say the same.

    Raises:
        InvalidRequest: scikit-learn is not installed.
    """
    try:
        from sklearn.metrics import cohen_kappa_score  # type: ignore[import-untyped]  # it has no types
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    if len({each for pair in pairs for each in pair}) == 1:
        return None
    return _number(float(cohen_kappa_score([one for one, _ in pairs], [other for _, other in pairs])))


def alpha(ratings: Sequence[tuple[str, str, JsonValue]], *, numeric: bool) -> float | None:
    """Return Krippendorff's alpha of ratings by rater, unit and value; None where it is not defined, since all values are equal.

    Args:
        ratings: A rater need not have rated every unit.
        numeric: Whether values are numbers, whose distance counts; otherwise they are equal or not.

    Raises:
        InvalidRequest: The package krippendorff is not installed.
    """
    try:
        import krippendorff
        import numpy as np
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    told = [(rater, unit, float(value) if numeric else json.dumps(value)) for rater, unit, value in ratings]  # type: ignore[arg-type]  # as above
    domain = sorted({value for _, _, value in told}, key=str)
    if len(domain) == 1:
        return None
    raters, units = ([*dict.fromkeys(each[at] for each in told)] for at in (0, 1))
    table = np.full((len(raters), len(units)), math.nan)
    for rater, unit, value in told:
        table[raters.index(str(rater)), units.index(str(unit))] = float(value) if numeric else domain.index(value)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = krippendorff.alpha(reliability_data=table, level_of_measurement="interval" if numeric else "nominal")
    except ValueError:  # no unit has two ratings
        return None
    return _number(float(found))


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _equal(one: JsonValue, other: JsonValue) -> bool:
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other))
    return one == other if numbers else json.dumps(one) == json.dumps(other)


def _missing(error: ModuleNotFoundError) -> InvalidRequest:
    return InvalidRequest(f"the statistics need a package that is not installed ({error.name}); run: pip install 'gradeloop[agreement]'")
