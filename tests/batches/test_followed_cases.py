"""Cases that follow others: one after the other, filled with what came before from the store, and errors where nothing did."""

from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from gradeloop.grading.templates import late_mark
from tests.rig.batches import batching, breaks, case, drafted, passes
from tests.rig.stores import ON_EITHER
from tests.rig.threads import Reply
from workflows.batches import grading_batch

JUDGED = {
    "criteria": [{"id": "c1", "description": "long", "check": {"tool": "text_check", "arguments": {"kind": "contains", "value": "draft"}}}]
}


def writes(text: str, when: str, **more: Any) -> Reply:
    return {"role": "generator", "text": text, "when": when} | more


def follower(name: str, follows: dict[str, str], prompt: str, **more: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": prompt}]
    return drafted(name, rubric=JUDGED) | {"messages": said, "follows": follows} | more


def mark(name: str) -> str:
    return str(late_mark(name))


CHAIN = [
    follower("a", {}, "Begin."),
    follower("b", {"draft/0": "a"}, f"Go on from <{mark('draft/0')}>."),
    follower("c", {"draft/0": "a", "draft/1": "b"}, f"End <{mark('draft/0')}> <{mark('draft/1')}>."),
]
REPLIES = [writes("draft A", "Begin."), writes("draft B", "Go on from <draft A>."), writes("draft C", "End <draft A> <draft B>.")]


@ON_EITHER
async def test_each_case_is_asked_with_the_outputs_of_those_before_it(client: Client, tmp_path: Path, url: str) -> None:
    async with batching(client, tmp_path, *REPLIES, url=url) as batches:
        summary, results = await batches.run([*CHAIN, case("free", rubric=JUDGED, output="a draft")])

    assert [(result.status, result.output) for result in results[:3]] == [("passed", f"draft {name}") for name in "ABC"]
    assert (summary.passed, summary.usage.calls) == (4, 3)


async def test_a_case_without_what_it_needs_is_an_error_that_names_the_other(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, breaks("Begin.", role="generator"), *REPLIES[1:]) as batches:
        failed, results = await batches.run(CHAIN, batch_id="mended")
        assert [result.status for result in results] == ["error"] * 3
    async with batching(client, tmp_path, *REPLIES) as batches:
        mended = await (await batches.start("mended", 3, again="errors")).result()

    assert (failed.errors, mended.passed) == (3, 3)
    assert results[1].error == "it needs the output of 'a', which has none: auth: scripted:writer: as it was told to"
    assert str(results[2].error).startswith("it needs the output of 'a', which has none: ")


@pytest.mark.slow
async def test_a_batch_that_stops_goes_on_from_the_store(client: Client, tmp_path: Path) -> None:
    """The second worker knows nothing of what the first one drafted."""
    stays_away = breaks("Go on", kind="connection", role="generator")
    async with batching(client, tmp_path, REPLIES[0], stays_away, outage_timeout=0.3) as batches:
        paused, _ = await batches.run(CHAIN, batch_id=f"stopped-{tmp_path.name}")
    async with batching(client, tmp_path, *REPLIES[1:]) as batches:
        ended = await (await batches.start(f"stopped-{tmp_path.name}", 3)).result()
        assert await batches.upload(f"stopped-{tmp_path.name}", CHAIN) == 3

    assert (paused.status, paused.passed, ended.status, ended.passed) == ("paused", 1, "finished", 3)


@pytest.mark.slow
async def test_ranges_of_cases_run_in_turn_where_cases_follow_others(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradeloop.batches.store.SHARD_CASES", 1)
    monkeypatch.setattr(grading_batch, "LANES", 1)
    async with batching(client, tmp_path, *REPLIES) as batches:
        summary, _ = await batches.run(CHAIN)

    assert summary.passed == 3


@pytest.mark.slow
async def test_what_was_made_of_an_output_is_filled_in_where_it_is_judged(client: Client, tmp_path: Path) -> None:
    echo: dict[str, Any] = {"output": f"the draft was: {mark('first')}", "generator": None, "messages": []}
    cases = [case("a", rubric="- it is good"), follower("b", {"first": "a"}, "", **echo)]
    async with batching(client, tmp_path, passes()) as batches:
        _, results = await batches.run(cases)

    assert (results[1].status, results[1].output) == ("passed", "the draft was: the output of a.")


@pytest.mark.parametrize(("other", "says"), [("b", "'b'"), ("c", "'c'"), ("nobody", "'nobody'")])
async def test_a_case_that_follows_none_before_it_is_refused_by_name(client: Client, tmp_path: Path, other: str, says: str) -> None:
    cases = [follower("a", {}, "Begin."), follower("b", {"x": other}, f"<{mark('x')}>"), follower("c", {}, "End.")]
    async with batching(client, tmp_path, *REPLIES) as batches:
        with pytest.raises(WorkflowFailureError) as caught:
            await batches.run(cases)

    assert f"the case 'b' follows {says}, which is not before it in the batch; put that one first" in str(caught.value.cause)
