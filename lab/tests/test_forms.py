"""The labelled replies have the labels that their sentences decide, and the faults of the repairs' server are those of their names."""

import json
from collections.abc import Iterator

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest

from lab.labelled_replies import COUNT, FACTS, FILLER, replies
from lab.repairs import FAULTS, IDS, Form

TAG = "verdict-0123"


def stating(fact: str, text: str) -> Iterator[str]:
    """Yield the sentences of a fact that stand in a text."""
    return (sentence for sentence in FACTS[fact][1:] if sentence in text)


def test_a_reply_states_the_facts_of_its_label_and_no_other() -> None:
    for reply in replies():
        assert {fact for fact in FACTS if any(stating(fact, reply.text))} == reply.states
        assert any(sentence in reply.text for sentence in FILLER)


def test_each_fact_is_in_half_of_all_replies() -> None:
    assert {sum(fact in reply.states for reply in replies()) for fact in FACTS} == {COUNT // 2}


@pytest.mark.parametrize("keyed", [True, False])
def test_an_answer_without_a_fault_has_a_row_for_each_criterion(keyed: bool) -> None:
    answer = json.loads(FAULTS["none"](Form(keyed, None, full=True)))

    rows = [answer[f"k{at}"] for at in (1, 2, 3)] if keyed else answer["criteria"]
    assert [row["passed"] for row in rows] == [True, False, True]
    assert keyed or [row["id"] for row in rows] == list(IDS)


@pytest.mark.parametrize("keyed", [True, False])
def test_each_fault_is_another_answer(keyed: bool) -> None:
    answers = {fault: said(Form(keyed, TAG, full=True)) for fault, said in FAULTS.items()}

    assert len(set(answers.values())) == len(FAULTS)


def test_a_list_without_a_row_keeps_the_schema_of_a_list_and_an_object_without_a_key_not_that_of_keys() -> None:
    lists = {"type": "object", "properties": {"criteria": {"type": "array"}}, "required": ["criteria"]}
    keys = {"type": "object", "required": ["k1", "k2", "k3"]}

    assert jsonschema.Draft202012Validator(lists).is_valid(json.loads(FAULTS["missing row"](Form(False, None, full=True))))
    assert not jsonschema.Draft202012Validator(keys).is_valid(json.loads(FAULTS["missing row"](Form(True, None, full=True))))
