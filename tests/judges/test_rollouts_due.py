"""The rollouts of a judge that are asked: while a further one can change the output, and never fewer."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from gradeloop.judges.answers import build_consensus, rollouts_due
from gradeloop.judges.contract import SchemaJudge

CHOICE = {"type": "string", "enum": ["a", "b", "c"]}
TEXT = {"type": "string"}

Said = dict[str, Any] | None


def judge_of(count: int, properties: Mapping[str, Any], *, required: Sequence[str] = ("label",), **more: Any) -> SchemaJudge:
    schema = {"type": "object", "properties": {"label": CHOICE, "why": TEXT, **properties}, "required": [*required, "why"]}
    given = {"rubric_text": "Judge.", "output_schema": schema, "n_rollouts_per_input": count} | more
    return SchemaJudge.model_validate(given)


def asked_of(judge: SchemaJudge, said: Sequence[Said]) -> list[Said]:
    """Return what the rollouts that are asked say, in order."""
    known: dict[int, Said] = {}
    while due := rollouts_due(judge, known):
        known |= {at: said[at] for at in due}
    return [known[at] for at in range(len(known))]


def output_of(judge: SchemaJudge, said: Sequence[Said]) -> Any:
    """Return the output, or none without a quorum."""
    outputs = [one for one in said if one is not None]
    return build_consensus(judge.output_schema, outputs).output if len(outputs) >= judge.answers_needed else None


def numbered(said: Sequence[Mapping[str, Any] | None]) -> list[Said]:
    """Return answers each of which gives a reason of its own."""
    return [None if one is None else {**one, "why": f"reason {at}"} for at, one in enumerate(said)]


@pytest.mark.parametrize("count", range(1, 10))
def test_every_sequence_of_two_values_comes_to_the_output_of_all(count: int) -> None:
    judge, asked = judge_of(count, {}), 0
    for labels in product("ab", repeat=count):
        said = numbered([{"label": label} for label in labels])
        first = asked_of(judge, said)
        asked += len(first)

        assert output_of(judge, first) == output_of(judge, said), labels
        assert len(first) >= min(count, count // 2 + 1)
    assert asked <= count * 2**count
    if count > 2:
        assert asked < count * 2**count


@pytest.mark.slow
@pytest.mark.parametrize("quorum", [None, *(pytest.param(quorum, marks=pytest.mark.slow) for quorum in (1, 4))])
def test_every_sequence_with_lacking_keys_and_invalid_answers_comes_to_the_output_of_all(quorum: int | None) -> None:
    judge = judge_of(5, {"flag": {"type": "boolean"}}, required=("label",), **({} if quorum is None else {"quorum": quorum}))
    answers: list[dict[str, Any] | None] = [{"label": "a"}, {"label": "b", "flag": True}, {"label": "a", "flag": False}, None]
    asked = 0
    for chosen in product(answers, repeat=5):
        said = numbered(chosen)
        first = asked_of(judge, said)
        asked += len(first)

        assert output_of(judge, first) == output_of(judge, said), chosen
    assert asked < 5 * len(answers) ** 5


def test_a_number_needs_all_answers() -> None:
    judge = judge_of(5, {"grade": {"type": "number"}})

    assert rollouts_due(judge, {}) == [0, 1, 2, 3, 4]


def test_a_late_answer_changes_nothing_of_what_is_asked() -> None:
    """The rollouts that count are the first ones, whichever answers first."""
    judge = judge_of(5, {})

    assert rollouts_due(judge, {2: {"label": "a", "why": ""}}) == [0, 1]
    assert rollouts_due(judge, {2: {"label": "a", "why": ""}, 0: {"label": "a", "why": ""}}) == [1]
