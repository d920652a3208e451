"""What failed at first, a part of a long run or an escalation judge, is asked again alone: what was answered is not paid for twice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.batches.judge_many import RunVerdict, escalation_judge
from gradeloop.contract.messages import Usage
from gradeloop.contract.provider import ModelFault
from gradeloop.contract.transcript import AgentRun
from gradeloop.judges.contract import parse_judge
from tests.batches.test_judge_many import judged, runs
from tests.batches.test_judged_in_parts import long_run
from tests.rig.batches import Batches, batching
from tests.rig.judging import FRANCE, MATCH, NO_MATCH, answers

PLACES = ("part 1", "part 2", "the last call")
MARKS = dict(zip(PLACES, ('{"part": 1, "of": 2}', '{"part": 2, "of": 2}', '"type": "finding"'), strict=True))
SPLIT: dict[str, Any] = FRANCE | {"n_rollouts_per_input": 3, "abstain": {"label": 0.8}, "escalate": "scripted:dear"}


def say(batches: Batches, answer: Callable[[str, str, int], object]) -> None:
    """Have a judge's model answer by its name, the place of the question and the rollout; None is not a valid answer."""
    models = batches.served.models

    def reply(step: Any, number: int) -> str:
        request = models.requests[number - 1]
        asked = "\n".join(message.content for message in request.messages)
        place = next((place for place, mark in MARKS.items() if mark in asked), "whole")
        said = answer(request.spec.model, place, step.sample)
        return "nothing" if said is None else str(answers(said)["text"])

    models.answers["grader"] = reply


def asked_since(batches: Batches, count: int) -> int:
    """Return how many calls were made since there were so many."""
    return len(batches.served.models.requests) - count


def kinds(found: list[RunVerdict]) -> list[str]:
    """Return what became of each judgement."""
    return ["failed" if one.result.failed else "unsure" if one.result.unsure else str(one.result.output["label"]) for one in found]


@pytest.mark.parametrize("bad", [PLACES[0], *(pytest.param(place, marks=pytest.mark.slow) for place in PLACES[1:])])
@pytest.mark.parametrize("kept", [True, False], ids=["in a batch", "by workflows"])
async def test_of_a_run_in_parts_what_was_invalid_is_asked_again_alone(client: Client, tmp_path: Path, bad: str, kept: bool) -> None:
    run = long_run(f"again-{bad}-{kept}")

    async with batching(client, tmp_path) as batches:
        options: dict[str, Any] = {"chunk": True, "store": batches.store if kept else None}
        say(batches, lambda _, place, __: None if place == bad else MATCH)
        failed = await judged(batches, FRANCE, [run], **options)
        paid = len(batches.served.models.requests)
        say(batches, lambda *_: MATCH)
        read = await judged(batches, FRANCE, [run], **options)
        read_for = asked_since(batches, paid)
        again = await judged(batches, FRANCE, [run], **options, retry=True)
        asked_again = asked_since(batches, paid)
        once_more = await judged(batches, FRANCE, [run], **options, retry=True)

    assert [kinds(found) for found in (failed, read, again, once_more)] == [["failed"], ["failed"], ["match"], ["match"]]
    assert failed[0].result.result_metadata["again"] is False
    assert (read_for, asked_again, asked_since(batches, paid)) == (0, *[1 if bad == PLACES[2] else 2] * 2)
    assert again[0].result.result_metadata["parts"]


@pytest.mark.slow
async def test_of_a_run_in_parts_a_part_without_an_answer_is_asked_again_by_the_same_call(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path) as batches:
        say(batches, lambda *_: MATCH)
        batches.served.models.fail_first("grader", kind="auth", usage=Usage())
        failed = await judged(batches, FRANCE, [long_run("unanswered")], chunk=True)
        paid = len(batches.served.models.requests)
        again = await judged(batches, FRANCE, [long_run("unanswered")], chunk=True)

    assert (kinds(failed), failed[0].result.result_metadata["again"]) == (["failed"], True)
    assert (kinds(again), asked_since(batches, paid)) == (["match"], 2)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [*(pytest.param(place, marks=pytest.mark.slow) for place in PLACES), "whole"])
async def test_an_escalation_judge_whose_answers_were_invalid_is_asked_again_alone(client: Client, tmp_path: Path, bad: str) -> None:
    given: list[AgentRun] = runs(f"dear-{bad}") if bad == "whole" else [long_run(f"dear-{bad}")]

    def by_votes(model: str, sample: int) -> object | None:
        return MATCH if model == "dear" or sample != 1 else NO_MATCH

    async with batching(client, tmp_path) as batches:
        say(batches, lambda model, place, sample: None if (model, place) == ("dear", bad) else by_votes(model, sample))
        unsure = await judged(batches, SPLIT, given, chunk=True)
        paid = len(batches.served.models.requests)
        say(batches, lambda model, _, sample: by_votes(model, sample))
        read = await judged(batches, SPLIT, given, chunk=True)
        read_for = asked_since(batches, paid)
        decided = await judged(batches, SPLIT, given, chunk=True, retry=True)
        asked = batches.served.models.requests[paid:]

    about = unsure[0].result.result_metadata
    assert [kinds(found) for found in (unsure, read, decided)] == [["unsure"], ["unsure"], ["match"]]
    assert ("there is no object" in str(about["escalation"]), about["escalation_again"]) == (True, False)
    assert unsure[0].escalation is not None
    assert unsure[0].escalation.failed
    assert unsure[0].escalation.judge_sha256 == _escalation_sha256()
    assert read_for == 0
    assert [request.spec.model for request in asked] == ["dear"] * (1 if bad in {"whole", PLACES[2]} else 2)
    assert decided[0].result.escalated_from == unsure[0].result.id


@pytest.mark.slow
async def test_an_escalation_judge_that_did_not_answer_is_asked_again_by_the_same_call(client: Client, tmp_path: Path) -> None:
    def away(model: str, _: str, sample: int) -> object:
        if model == "dear":
            raise ModelFault("auth", "as it was told to", model=model)
        return NO_MATCH if sample == 1 else MATCH

    async with batching(client, tmp_path) as batches:
        say(batches, away)
        (unsure,) = await judged(batches, SPLIT, runs("unheard"))
        paid = len(batches.served.models.requests)
        say(batches, lambda *_: MATCH)
        (decided,) = await judged(batches, SPLIT, runs("unheard"))

    assert (kinds([unsure]), unsure.result.result_metadata["escalation_again"]) == (["unsure"], True)
    assert (kinds([decided]), asked_since(batches, paid)) == (["match"], 1)


def _escalation_sha256() -> str:
    escalation = escalation_judge(parse_judge(SPLIT))
    assert escalation is not None
    return escalation.sha256()
