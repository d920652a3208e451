"""Batches that end once decided ask no vote that cannot change a verdict, on the server, by the model's own count of calls."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.batches.contract import CaseResult
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import parse_judging
from tests.rig.batches import batching, case
from tests.rig.judging import FRANCE, PARIS
from tests.rig.stores import ON_EITHER
from tests.rig.threads import Reply, row, verdict

UNTIL = {"until_decided": {"risk": 0.05}, "pass_rate": 0.5, "at_once": 5}


def votes(name: str, *said: bool, **more: Any) -> list[Reply]:
    """Return what each vote on a case says."""
    rows = [verdict(row("c1", None if passes else f"{name} {at} is not")) for at, passes in enumerate(said)]
    return [{"role": "grader", "sample": at, "when": f"of {name}.", "verdict": one, **more} for at, one in enumerate(rows)]


def voted(name: str, count: int, **more: Any) -> dict[str, Any]:
    return case(name, rubric={"criteria": [{"description": "it is good", "votes": count}]}, **more)


def asked(result: CaseResult) -> int:
    return sum(not vote.unasked for vote in result.criteria[0].votes)


def stated(result: CaseResult) -> Any:
    rows = [(row.id, row.passed, row.unverified, row.reason) for row in result.criteria]
    return result.id, result.status, result.score, result.explanation, rows, result.error, result.decided_by


@pytest.mark.slow
@ON_EITHER
async def test_votes_are_asked_while_they_can_change_the_verdict(client: Client, tmp_path: Path, url: str) -> None:
    said = {"".join("pf"[not one] for one in row): row for row in product((True, False), repeat=5)}
    cases = [voted(name, 5) for name in reversed(said)]  # the last one passes, by which the batch is decided
    replies = [reply for name, row in said.items() for reply in votes(name, *row)]
    async with batching(client, tmp_path, *replies, url=url) as batches:
        rest, found = await batches.run(cases, **UNTIL | {"until_decided": {"risk": 1e-9}}, cache=False)
        whole, expected = await batches.run(cases, pass_rate=0.5, cache=False)

    assert rest.open == 0
    assert [stated(result) for result in found] == [stated(result) for result in expected]
    assert [result.usage.calls for result in found] == [asked(result) for result in found]
    assert {result.id: asked(result) for result in found} == {name: least(row) for name, row in said.items()}
    assert whole.usage.calls == 5 * len(cases)
    assert rest.usage.calls == sum(map(asked, found)) < whole.usage.calls


def least(said: Sequence[bool]) -> int:
    """Return after how many of five votes three are equal: that many are asked, three at first and then as few as may do."""
    return next(count for count in range(3, 6) if max(said[:count].count(True), said[:count].count(False)) >= 3)


@pytest.mark.slow
async def test_a_vote_that_is_lost_is_made_up_for_by_another(client: Client, tmp_path: Path) -> None:
    lost: Reply = {"role": "grader", "sample": 1, "error": {"kind": "auth", "message": "no"}}
    replies = [lost, *(vote for vote in votes("a", True, True, True, True, True) if vote["sample"] != 1)]
    async with batching(client, tmp_path, *replies) as batches:
        _, (result,) = await batches.run([voted("a", 5)], **UNTIL)
        _, (expected,) = await batches.run([voted("a", 5)], cache=False)

    assert (result.status, asked(result)) == ("passed", 4)
    assert stated(result) == stated(expected)


@pytest.mark.slow
async def test_several_groups_are_each_asked_for_themselves(client: Client, tmp_path: Path) -> None:
    rubric = {"criteria": [{"description": "good", "votes": 3}, {"description": "short", "votes": 5}, "kind"], "mode": "per_criterion"}
    said = (True, False, True), (False,) * 5, (True,)
    replies: list[Reply] = [
        {"role": "grader", "group": group, "sample": at, "verdict": verdict(row("c1", None if passes else "it is not"))}
        for group, votes in enumerate(said)
        for at, passes in enumerate(votes)
    ]
    async with batching(client, tmp_path, *replies) as batches:
        _, (result,) = await batches.run([case("a", rubric=rubric)], **UNTIL)
        _, (expected,) = await batches.run([case("a", rubric=rubric)], cache=False)

    assert [row.votes_text for row in result.criteria] == ["2 of 3 votes", "0 of 3 votes, 2 not asked", "0 of 0 votes"]
    assert (stated(result), result.usage.calls, expected.usage.calls) == (stated(expected), 7, 9)


@pytest.mark.parametrize("more", [{"abstain": 0.8}, {}])
async def test_all_votes_are_asked_where_their_share_decides_or_nobody_wants_fewer(
    client: Client, tmp_path: Path, more: dict[str, Any]
) -> None:
    until = UNTIL if more else {}
    async with batching(client, tmp_path, *votes("a", True, True, True, False, False)) as batches:
        _, (result,) = await batches.run([voted("a", 5, **more)], **until)

    assert (asked(result), result.usage.calls) == (5, 5)
    assert result.status == ("unsure" if more else "passed")


@pytest.mark.slow
async def test_a_paused_batch_goes_on_with_the_votes_that_it_has(client: Client, tmp_path: Path) -> None:
    cases = [voted(f"c{at}", 5) for at in range(6)]
    replies = [reply for at in range(6) for reply in votes(f"c{at}", True, False, True, True, True, delay=0.05)]
    async with batching(client, tmp_path, *replies) as batches:
        await batches.upload("held", cases)
        handle = await batches.start("held", 6, **UNTIL | {"pass_rate": 0.99}, budget={"max_tokens": 200})
        await handle.result()
    async with batching(client, tmp_path, *replies) as batches:
        summary = await (await batches.start("held", 6, **UNTIL | {"pass_rate": 0.99})).result()
        results = list(batches.reader.results("held"))

    assert [asked(result) for result in results] == [4] * 6
    assert summary.usage.calls == 24


@pytest.mark.slow
async def test_a_grader_with_tools_is_asked_no_further_vote_either(client: Client, tmp_path: Path) -> None:
    looks = [{"role": "grader", "sample": at, "step": 0, "tool_calls": [{"name": "word_count"}]} for at in range(5)]
    said = [reply | {"step": 1} for reply in votes("a", True, False, True, True, False)]
    grader = {"model": "scripted:judge", "tools": ["word_count"]}
    async with batching(client, tmp_path, *looks, *said) as batches:
        _, (result,) = await batches.run([voted("a", 5, grader=grader)], **UNTIL)
        _, (expected,) = await batches.run([voted("a", 5, grader=grader)])
        _, (shared,) = await batches.run([voted("a", 5, grader=grader, abstain=0.8)], **UNTIL)

    assert (stated(result), result.usage.calls, expected.usage.calls) == (stated(expected), 8, 10)
    assert (asked(result), asked(expected)) == (4, 5)
    assert (shared.status, asked(shared)) == ("unsure", 5)


async def test_a_lost_vote_of_a_grader_with_tools_is_no_verdict(client: Client, tmp_path: Path) -> None:
    lost: Reply = {"role": "grader", "sample": 1, "error": {"kind": "auth", "message": "no"}}
    said = [lost, *(vote for vote in votes("a", True, True, True) if vote["sample"] != 1)]
    grader = {"model": "scripted:judge", "tools": ["word_count"]}
    async with batching(client, tmp_path, *said) as batches:
        _, (result,) = await batches.run([voted("a", 3, grader=grader)])

    assert (result.status, result.criteria[0].votes_text) == ("passed", "2 of 3 votes")
    assert [vote.passed for vote in result.criteria[0].votes] == [True, None, True]


VOTED = {"criteria": [{"description": "good", "votes": 5}]}


REFLECTING = FRANCE | {"n_rollouts_per_input": 3, "judge_variant": "multi-reflect"}


@pytest.mark.parametrize("judge", [REFLECTING, {"rubric": VOTED, "abstain": {"criteria.c1": 0.8}}])
def test_a_judgement_that_needs_all_of_its_votes_asks_all(judge: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"until_decided: .* needs all of its votes"):
        parse_judging({"judge": judge, "run": PARIS, "until_decided": True})
