"""One conversation with a grader: what follows an answer, without a model, a server or a clock."""

import pytest

from gradeloop.contract.evaluation import Malformed, Verdict, VerdictRow
from gradeloop.contract.messages import Message
from gradeloop.grading.verdicts import REPAIRS, GraderConversation, GraderFailure

ASKED = ("c1", "c2")
NO_JSON = Malformed(problems=("it is no JSON",))


def row(name: str) -> VerdictRow:
    return VerdictRow(id=name, reason="It holds.", passed=True, gap=None)


def verdict(*names: str) -> Verdict:
    return Verdict(criteria=tuple(row(name) for name in names), explanation="All hold.", result="satisfied")


def incomplete(name: str = "c2") -> Malformed:
    return Malformed(problems=(f"{name} is missing",), missing=(name,), rows=(row("c1"),), explanation="The first holds.")


def exhausted(reading: Malformed) -> GraderConversation:
    """Return a conversation whose repairs were all in vain."""
    conversation = GraderConversation()
    for _ in range(REPAIRS):
        conversation.take(reading, ASKED)
    return conversation


def test_a_verdict_ends_the_conversation() -> None:
    conversation = GraderConversation()

    assert conversation.take(verdict("c1", "c2"), ASKED) == verdict("c1", "c2")
    assert conversation.ended
    assert conversation.error is None


def test_a_malformed_answer_is_asked_for_again_with_its_problems() -> None:
    conversation = GraderConversation()

    following = conversation.take(NO_JSON, ASKED)

    assert isinstance(following, Message)
    assert "it is no JSON" in following.content
    assert "k1, k2" in following.content
    assert (conversation.repairs, conversation.ended) == (1, False)


def test_repairs_in_vain_are_a_failure_and_no_grade() -> None:
    conversation = exhausted(NO_JSON)

    error = f"malformed_verdict: after {REPAIRS} repairs: it is no JSON"

    assert conversation.take(NO_JSON, ASKED) == GraderFailure(error)
    assert (conversation.verdict, conversation.error) == (None, error)


def test_missing_criteria_are_asked_for_alone_once_the_repairs_are_used_up() -> None:
    conversation = exhausted(incomplete())

    following = conversation.take(incomplete(), ASKED)

    assert isinstance(following, Message)
    assert conversation.pending == ("c2",)


def test_a_row_that_comes_again_counts_where_others_stay_open() -> None:
    three = Malformed(problems=("c2, c3 are missing",), missing=("c2", "c3"), rows=(row("c1"),))
    conversation = exhausted(three)
    conversation.take(three, (*ASKED, "c3"))
    again = row("c1").model_copy(update={"reason": "It really holds."})

    found = conversation.take(Malformed(problems=("c3 is missing",), missing=("c3",), rows=(again, row("c2"))), (*ASKED, "c3"))

    assert isinstance(found, Verdict)
    assert found.criteria == (again, row("c2"))
    assert conversation.missing == ("c3",)


def test_criteria_that_are_missing_even_then_stay_open_beside_the_error() -> None:
    conversation = exhausted(incomplete())
    conversation.take(incomplete(), ASKED)

    found = conversation.take(incomplete(), ASKED)

    assert isinstance(found, Verdict)
    assert [criterion.id for criterion in found.criteria] == ["c1"]
    assert (conversation.missing, conversation.error) == (("c2",), "malformed_verdict: asked only for the missing criteria: c2 is missing")


def test_another_mistake_in_that_turn_is_a_failure() -> None:
    conversation = exhausted(incomplete())
    conversation.take(incomplete(), ASKED)

    found = conversation.take(NO_JSON, ASKED)

    assert found == GraderFailure("malformed_verdict: asked only for the missing criteria: it is no JSON")
    assert conversation.verdict is None


def test_a_loose_answer_is_asked_for_by_the_schema_and_costs_no_repair() -> None:
    conversation = GraderConversation()

    following = conversation.take(NO_JSON, ASKED, loose=True)

    assert isinstance(following, Message)
    assert (conversation.forced, conversation.repairs) == (True, 0)


def test_a_second_loose_answer_costs_a_repair() -> None:
    conversation = GraderConversation()
    conversation.take(NO_JSON, ASKED, loose=True)

    conversation.take(NO_JSON, ASKED, loose=True)

    assert conversation.repairs == 1


def test_the_last_turn_is_not_repaired() -> None:
    conversation = GraderConversation()

    found = conversation.take(NO_JSON, ASKED, spent="30 turns")

    assert found == GraderFailure("malformed_verdict: no verdict after 30 turns and one last turn: it is no JSON")


@pytest.mark.parametrize("key", ["forced"])
def test_a_conversation_that_no_schema_was_forced_on_is_stored_as_ever(key: str) -> None:
    assert key not in GraderConversation().model_dump()
