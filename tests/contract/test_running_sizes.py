"""What a long thread counts as it grows is what a count of all of it gives."""

import pytest
from pydantic import BaseModel, ValidationError

from gradeloop.contract.evaluation import Evaluation, Evaluations
from gradeloop.contract.messages import Log, Message


class Held(BaseModel):
    """A state that holds evaluations."""

    evaluations: Evaluations


def evaluation(at: int, explanation: str) -> Evaluation:
    """Return an evaluation."""
    told = {"result": "satisfied", "status": "satisfied", "criteria": (), "score": 1.0, "draft": at, "rubric_sha256": "0" * 64}
    return Evaluation.model_validate({"grading_run_id": "r", "iteration": at, "explanation": explanation, "unverified": False, **told})


def test_evaluations_know_their_size_however_they_came_there() -> None:
    held = Evaluations([evaluation(0, "kurz"), evaluation(1, "ein Satz")])
    held.append(evaluation(2, "drei"))
    held.replace(1, evaluation(1, "ein viel längerer Satz"))
    read = Held.model_validate_json(Held(evaluations=held).model_dump_json()).evaluations

    assert [one.explanation for one in held] == ["kurz", "ein viel längerer Satz", "drei"]
    assert held.bytes == sum(one.size() for one in held) == read.bytes
    assert read == held
    assert isinstance(read, Evaluations)


def test_a_mistake_in_many_evaluations_is_named_by_its_place() -> None:
    rows = [one.model_dump(mode="json") for one in (evaluation(0, "a"), evaluation(1, "b"))]
    rows[1]["result"] = "fine"

    with pytest.raises(ValidationError) as refused:
        Held.model_validate({"evaluations": rows})

    assert refused.value.errors()[0]["loc"] == ("evaluations", 1, "result")


def test_the_beginning_of_a_log_is_a_log_that_grows_by_itself() -> None:
    messages = [Message(role="user", content=f"message {at}") for at in range(5)]
    log = Log(messages)
    first = log.first(2)
    first.append(messages[4])

    assert (len(log), len(first)) == (5, 3)
    assert first.bytes == Log([*messages[:2], messages[4]]).bytes
    assert first.sha256() == Log([*messages[:2], messages[4]]).sha256() != log.sha256(3)
    assert log.first(0).sha256() == Log().sha256()
    assert log.first(9).sha256() == log.sha256()
