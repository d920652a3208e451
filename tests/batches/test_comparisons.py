"""Outputs of one test compared with one another in a batch: one passes, and what cannot be told is an error of all."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from temporalio.client import Client, WorkflowFailureError

from gradeloop.batches.contract import Case
from tests.rig.batches import JUDGE, batching, breaks, case, drafted, passes
from tests.rig.threads import Reply

FUNNIEST = {"kind": "select-best", "value": "the funniest"}


def compared(arguments: dict[str, Any], ids: str, *criteria: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return the fields of a case that is compared with others."""
    check = {"id": "best", "description": "the best", "check": {"tool": "comparison_check", "arguments": arguments}}
    return {"rubric": {"criteria": [*criteria, check], **more}, "compared_with": list(ids), "grader": JUDGE}


def looks_for(word: str, **more: Any) -> dict[str, Any]:
    """Return a criterion that a check of the text decides."""
    return {"description": word, "check": {"tool": "text_check", "arguments": {"kind": "contains", "value": word}}, **more}


def chooses(first: str, second: str, **more: Any) -> list[Reply]:
    """Return what the judge chooses in the outputs' order, and in the reverse of it."""
    said = [json.dumps({"best": best, "explanation": "It made me laugh."}) for best in (first, second)]
    return [{"role": "grader", "sample": at, "text": f"<response>{text}</response>", **more} for at, text in enumerate(said)]


def three(arguments: dict[str, Any] = FUNNIEST, *criteria: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """Return three cases that are compared with one another."""
    return [case(name, f"the joke of {name}", **compared(arguments, "abc", *criteria, **more)) for name in "abc"]


def statuses(results: Sequence[Any]) -> list[str]:
    return [result.status for result in results]


async def test_the_output_that_the_judge_chooses_in_both_orders_passes(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *chooses("2", "2")) as batches:
        summary, results = await batches.run([*three(), case("other", rubric={"criteria": [looks_for("other")]})])
        again, _ = await batches.run(three())

    assert statuses(results) == ["failed", "passed", "failed", "passed"]
    assert results[0].criteria[0].gap == "answer 2 of 3 was chosen: It made me laugh."
    assert results[0].decided_by == ("best",)
    assert (summary.status, summary.passed, summary.failed, summary.usage.calls) == ("finished", 2, 2, 2)
    assert (again.passed, again.usage.calls) == (1, 0)


async def test_no_tenant_profits_from_the_comparison_of_another(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *chooses("2", "2")) as batches:
        found = [
            (await batches.run(three(), priority={"level": 4, "tenant": tenant}))[0].usage.calls for tenant in ("acme", "beta", "acme")
        ]

    assert found == [2, 2, 0]


async def test_a_judge_that_chooses_by_the_place_makes_errors_of_all_and_their_retry_asks_anew(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *chooses("1", "1")) as batches:
        summary, results = await batches.run(three(), batch_id="by-place", cache=False)
    async with batching(client, tmp_path, *chooses("3", "1")) as batches:
        retried = await (await batches.start("by-place", 3, again="errors", cache=False)).result()
        anew = list(batches.reader.results("by-place"))

    assert (summary.status, summary.reason, statuses(results)) == ("finished", None, ["error"] * 3)
    assert results[0].error == "best: asked in both orders, the judge chose a and c; it cannot tell which is the best"
    assert (summary.errors, summary.usage.calls, sum(result.usage.calls for result in results)) == (3, 2, 2)
    assert [(result.status, result.error) for result in anew] == [("failed", None), ("failed", None), ("passed", None)]
    assert (retried.errors, retried.passed, retried.usage.calls) == (0, 1, 4)


async def test_drafts_are_judged_by_themselves_first_and_then_compared(client: Client, tmp_path: Path) -> None:
    replies: list[Reply] = [{"role": "generator", "when": f"Write {name}.", "text": f"a joke about {name}"} for name in "ab"]
    shown = {"when": "the funniest"}
    kind = {"id": "kind", "description": "it is kind"}
    asked = compared(FUNNIEST, "ab", kind, gate="none", threshold=0.4)
    async with batching(client, tmp_path, *replies, *chooses("1", "2", **shown), passes()) as batches:
        summary, results = await batches.run([drafted("a", **asked), drafted("b", **asked)])

    assert [(result.status, result.score, result.output, result.error) for result in results] == [
        ("passed", 1.0, "a joke about a", None),
        ("passed", 0.5, "a joke about b", None),
    ]
    assert summary.usage.calls == 6


@pytest.mark.slow
async def test_the_output_with_the_best_scores_passes(client: Client, tmp_path: Path) -> None:
    best_by: list[tuple[dict[str, Any], str | None]] = [
        ({"kind": "max-score"}, "b"),
        ({"kind": "max-score", "weights": {"long": 5}}, "c"),
        ({"kind": "max-score", "method": "sum", "weights": {"long": 0.5}}, "b"),
        ({"kind": "max-score", "threshold": 0.9}, None),
    ]
    own = (looks_for("red", id="red"), looks_for("hot", id="hot"), looks_for("and so on", id="long"))
    outputs = {"a": "red", "b": "red and hot", "c": "and so on"}
    async with batching(client, tmp_path) as batches:
        for arguments, best in best_by:
            asked = compared(arguments, "abc", *own, gate="none", threshold=0.01)
            summary, results = await batches.run([case(name, output, **asked) for name, output in outputs.items()])

            assert [result.id for result in results if result.criteria[-1].passed] == ([best] if best else []), arguments
            assert (summary.errors, summary.usage.calls) == (0, 0)


async def test_an_output_that_is_an_error_is_not_compared(client: Client, tmp_path: Path) -> None:
    replies: list[Reply] = [{"role": "generator", "when": "Write a.", "text": "a joke"}, breaks("Write c.", role="generator")]
    replies.append({"role": "generator", "when": "Write b.", "text": "another joke"})
    asked = compared(FUNNIEST, "abc")
    async with batching(client, tmp_path, *replies, *chooses("2", "1")) as batches:
        summary, results = await batches.run([drafted(name, **asked) for name in "abc"])
        _, pair = await batches.run([drafted(name, **compared(FUNNIEST, "ac")) for name in "ac"])

    assert statuses(results) == ["failed", "passed", "error"]
    assert results[2].error == "auth: scripted:writer: as it was told to"
    assert summary.usage.calls == 4
    assert [result.error for result in pair] == [
        "there is nothing to compare it with: the other outputs are errors",
        "auth: scripted:writer: as it was told to",
    ]


@pytest.mark.slow
async def test_a_comparison_that_an_outage_has_stopped_goes_on_and_nothing_is_judged_twice(client: Client, tmp_path: Path) -> None:
    away: list[Reply] = [breaks("the funniest", kind="overloaded", sample=1), chooses("2", "2", when="the funniest")[0]]
    asked = compared(FUNNIEST, "abc", {"id": "kind", "description": "it is kind"})
    cases = [case(name, f"the joke of {name}", **asked) for name in "abc"]
    async with batching(client, tmp_path, *away, passes(), outage_timeout=0.3) as batches:
        paused, waiting = await batches.run(cases, batch_id="stopped", retries=0)
    async with batching(client, tmp_path, *chooses("1", "2", when="the funniest")) as batches:
        resumed = await (await batches.start("stopped", 3)).result()
        results = list(batches.reader.results("stopped"))

    assert (paused.status, statuses(waiting)) == ("paused", ["queued"] * 3)
    assert statuses(results) == ["failed", "passed", "failed"]
    assert (resumed.status, resumed.usage.calls) == ("finished", 5)


@pytest.mark.slow
async def test_cases_of_different_shards_are_compared(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeloop.batches.store.SHARD_CASES", 8)
    own = looks_for("a", id="word")
    first, last = (case(name, name * 3, **compared({"kind": "max-score"}, "ab", own)) for name in "ab")
    others = [case(f"c{at}", rubric={"criteria": [looks_for("output")]}) for at in range(15)]
    async with batching(client, tmp_path) as batches:
        summary, results = await batches.run([first, *others, last])

    assert (summary.status, summary.passed, summary.failed) == ("finished", 16, 1)
    assert (results[0].status, results[-1].status) == ("passed", "failed")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"compared_with": ["a"]}, "compared_with: give the ids of two cases or more"),
        ({"compared_with": ["b", "c"]}, "and this one's among them"),
        (
            {"loop": True, "output": None, "generator": {"model": "scripted:w"}, "messages": [{"role": "user", "content": "x"}]},
            "leave loop",
        ),
        ({"rubric": "- it is good"}, "no check of the rubric compares; leave it out"),
    ],
)
def test_a_case_that_cannot_be_compared_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Case.model_validate(three()[0] | more)


async def test_a_comparison_that_could_decide_nothing_is_refused_before_any_call(client: Client, tmp_path: Path) -> None:
    undecidable: list[tuple[dict[str, Any], str]] = [
        ({"kind": "best"}, "kind: Input should be 'select-best' or 'max-score', got 'best'"),
        ({"kind": "select-best"}, "the value of select-best is 'None'"),
        ({"kind": "max-score", "method": "median"}, "method: Input should be 'average' or 'sum', got 'median'"),
        ({"kind": "max-score", "weights": {"a": -1}}, "a of max-score is '-1'; write a number from 0"),
        ({"kind": "max-score", "value": "x"}, "unknown argument 'value' of max-score"),
    ]
    async with batching(client, tmp_path) as batches:
        for at, (arguments, words) in enumerate(undecidable):
            with pytest.raises(WorkflowFailureError) as refused:
                await batches.upload(f"refused-{at}", three(arguments))

            assert words in str(refused.value.cause)
