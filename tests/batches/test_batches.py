"""Batches on the real server, with a real store: every case judged once, errors as errors, limits that pause, and nothing lost."""

import asyncio
import csv
import json
import re
from collections import Counter
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.batches.cases import BatchActivities
from gradeloop.batches.answer import spending
from gradeloop.batches.client import BatchClient
from gradeloop.batches.contract import CaseAnswer, GradingBatch
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.pages.read_batch import stored_batch_page
from gradeloop.client.client import GradingClient
from gradeloop.errors import GradeloopError, InvalidRequest
from tests.rig.batches import JUDGE, Batches, batching, breaks, case, drafted, fails, passes
from tests.rig.stores import ON_EITHER
from tests.rig.threads import fall_silent, row, serving, verdict
from workflows.batches import grading_batch


def many(count: int, **more: Any) -> list[dict[str, Any]]:
    return [case(f"c{at}", **more) for at in range(count)]


@pytest.mark.slow
async def test_every_case_is_judged_and_told_in_its_order(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes(), fails("of b.")) as batches:
        summary, results = await batches.run([case("a"), case("b"), case("c")])

    assert (summary.status, summary.passed, summary.failed, summary.errors) == ("finished", 2, 1, 0)
    assert [(result.index, result.id, result.status) for result in results] == [(0, "a", "passed"), (1, "b", "failed"), (2, "c", "passed")]
    assert results[1].criteria[0].gap == "it is not"


async def test_what_cannot_be_judged_is_an_error_and_no_failure(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes(), breaks("of b.")) as batches:
        summary, results = await batches.run([case("a"), case("b")])

    assert (summary.passed, summary.failed, summary.errors) == (1, 0, 1)
    assert results[1].error == "auth: scripted:judge: as it was told to"
    assert results[1].score is None


@pytest.mark.slow
async def test_a_provider_that_stays_away_is_waited_for_and_then_pauses_the_batch(client: Client, tmp_path: Path) -> None:
    """Retries are for other errors: without any, the provider is waited for all the same."""
    async with batching(client, tmp_path, passes(), breaks("of b.", kind="overloaded"), outage_timeout=0.3) as batches:
        summary, results = await batches.run([case("a"), case("b")], retries=0)

    assert (summary.status, summary.passed, summary.failed, summary.errors) == ("paused", 1, 0, 0)
    assert str(summary.reason).startswith("outage: scripted:judge has answered no call for ")
    assert [result.status for result in results] == ["passed", "queued"]
    assert summary.usage.attempts > 2


async def test_a_batch_that_an_outage_has_paused_is_resumed(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, breaks(kind="connection"), outage_timeout=0.3) as batches:
        paused, _ = await batches.run([case("a")], batch_id="of-an-outage")
    async with batching(client, tmp_path, passes()) as batches:
        resumed = await (await batches.start("of-an-outage", 1)).result()

    assert (paused.status, paused.errors) == ("paused", 0)
    assert (resumed.status, resumed.passed, resumed.errors) == ("finished", 1, 0)
    assert resumed.usage.attempts == paused.usage.attempts + 1


@pytest.mark.parametrize("more", [{"loop": True}, {}])
async def test_a_drafted_case_whose_provider_stays_away_pauses_the_batch_too(client: Client, tmp_path: Path, more: dict[str, Any]) -> None:
    async with batching(client, tmp_path, breaks(kind="connection", role="generator"), outage_timeout=0.3) as batches:
        summary, results = await batches.run([drafted("a", **more)])

    assert (summary.status, summary.errors, [result.status for result in results]) == ("paused", 0, ["queued"])
    assert str(summary.reason).startswith("outage: scripted:writer has answered no call for ")
    assert summary.usage.attempts > 0


async def test_a_batch_without_retries_tries_once(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, breaks(kind="server")) as batches:
        _, results = await batches.run([case("a")], retries=0)

    assert results[0].error == "server: scripted:judge: as it was told to"
    assert results[0].usage.attempts == 1


@pytest.mark.slow
async def test_a_case_without_an_output_is_drafted_first(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, {"role": "generator", "text": "a fine text"}, passes("a fine text")) as batches:
        summary, results = await batches.run([drafted("a")])

    assert (summary.passed, results[0].output) == (1, "a fine text")
    assert results[0].usage.calls == summary.usage.calls == 2


async def test_a_draft_that_fails_is_an_error(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, breaks(role="generator"), passes()) as batches:
        summary, results = await batches.run([drafted("a")])

    assert (summary.errors, results[0].status, results[0].output) == (1, "error", None)


async def test_criteria_with_judges_of_their_own_and_votes_are_asked_side_by_side(client: Client, tmp_path: Path) -> None:
    rubric = {"criteria": ["it is good", {"description": "it is short", "grader": "scripted:other", "votes": 3}]}
    said = [
        passes(),
        *({"role": "grader", "group": 1, "sample": at, "verdict": verdict(row("c1", None if at else "too long"))} for at in range(3)),
    ]
    async with batching(client, tmp_path, *said) as batches:
        summary, results = await batches.run([case("a", rubric=rubric), case("b", rubric=rubric)])

    assert (summary.passed, summary.usage.calls) == (2, 8)
    assert [criterion.contested for criterion in results[0].criteria] == [False, True]
    assert [vote.passed for vote in results[0].criteria[1].votes] == [False, True, True]


async def test_an_answer_that_is_no_verdict_is_mended_in_a_call_of_its_own(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, {"role": "grader", "text": "It is good!"}, passes(step=1)) as batches:
        summary, results = await batches.run([case("a")])
        asked = batches.served.models.requests_of("grader")

    assert (summary.passed, results[0].usage.calls) == (1, 2)
    assert [len(request.messages) for request in asked] == [2, 4]


@pytest.mark.slow
async def test_a_whole_verdict_after_subsets_counts_as_it_stands(client: Client, tmp_path: Path) -> None:
    rubric = "- it is good\n- it is short\n- it rhymes"
    part = [{"role": "grader", "step": at, "verdict": verdict(row("c1", "it is not"))} for at in range(3)]
    whole = {"role": "grader", "step": 3, "verdict": verdict(row("c1"), row("c2"), row("c3"), row("c4"))}
    async with batching(client, tmp_path, *part, whole) as batches:
        summary, results = await batches.run([case("a", rubric=rubric)])

    assert (summary.passed, results[0].usage.calls) == (1, 4)
    assert [criterion.passed for criterion in results[0].criteria] == [True, True, True]
    assert results[0].explanation == "so it is (Rows that nobody asked for were dropped: 'k4'.)"


@pytest.mark.slow
async def test_a_verdict_that_comes_in_parts_is_done_with_its_last_row(client: Client, tmp_path: Path) -> None:
    parts = [{"role": "grader", "step": at, "verdict": verdict(row(name))} for at, name in enumerate(("c2", "c1"))]
    async with batching(client, tmp_path, *parts) as batches:
        summary, results = await batches.run([case("a", rubric="- it is good\n- it is short")])

    assert (summary.passed, results[0].usage.calls) == (1, 2)


async def test_one_that_is_never_mended_is_an_error(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *({"role": "grader", "step": at, "text": "Good!"} for at in range(3))) as batches:
        summary, results = await batches.run([case("a")])

    assert summary.errors == 1
    assert str(results[0].error).startswith("malformed_verdict: after 2 repairs:")
    assert results[0].usage.calls == 3


@pytest.mark.slow
async def test_checks_on_the_text_ask_nobody(client: Client, tmp_path: Path) -> None:
    greets = {"tool": "text_check", "arguments": {"kind": "contains", "value": "Hello"}}
    rubric = {"criteria": [{"description": "it greets", "check": greets}]}
    async with batching(client, tmp_path) as batches:
        summary, results = await batches.run([case("a", "Hello you", rubric=rubric), case("b", "Go away", rubric=rubric)])
        asked = list(batches.served.models.requests)

    assert [result.status for result in results] == ["passed", "failed"]
    assert (summary.usage.calls, asked) == (0, [])


async def test_a_check_that_could_never_decide_is_refused_at_the_upload(client: Client, tmp_path: Path) -> None:
    broken = {"description": "it fits", "check": {"tool": "text_check", "arguments": {"kind": "regex", "value": "("}}}
    async with batching(client, tmp_path, passes()) as batches:
        with pytest.raises(WorkflowFailureError) as refused:
            await batches.upload("never", [case("a"), case("b", rubric={"criteria": ["it is good", broken]})])

    assert "the case 'b': the check text_check of c2 could not decide: " in str(refused.value.cause)


@pytest.mark.slow
async def test_a_case_with_loop_is_a_thread_of_its_own(client: Client, tmp_path: Path) -> None:
    said: list[dict[str, Any]] = [
        {"role": "generator", "text": "a draft"},
        {"role": "generator", "iteration": 1, "text": "a better draft"},
        fails(),
        passes(iteration=1),
    ]
    async with batching(client, tmp_path, *said) as batches:
        summary, results = await batches.run([drafted("a", loop=True)], batch_id="looping")
        state = await client.get_workflow_handle("looping/a").query("state")

    assert (summary.passed, results[0].output, results[0].iterations) == (1, "a better draft", 2)
    assert results[0].thread_id == "looping/a"
    assert (state["status"], results[0].usage.calls) == ("idle", 4)


@pytest.mark.slow
async def test_a_case_whose_grader_has_tools_is_a_judgement_of_its_own(client: Client, tmp_path: Path) -> None:
    def look(draft: str) -> str:
        """Look at it."""
        return f"{len(draft)} characters"

    said: list[dict[str, Any]] = [{"role": "grader", "tool_calls": [{"name": "look"}]}, passes(step=1)]
    async with batching(client, tmp_path, *said, tools=[look]) as batches:
        summary, results = await batches.run([case("a", grader=JUDGE | {"tools": ["look"]})], batch_id="tooled")

    assert (summary.passed, results[0].status, results[0].thread_id) == (1, "passed", "tooled/a")


@pytest.mark.slow
async def test_a_verdict_that_was_paid_for_is_not_paid_again(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes(), fails("of b."), breaks("of c.")) as batches:
        cases = [case("a"), case("b"), case("c")]
        first, _ = await batches.run(cases)
        again, results = await batches.run(cases)
        anew, _ = await batches.run(cases, cache=False)
        other, _ = await batches.run([case("a", rubric="- it is bad")])

    assert (first.usage.calls, first.cached) == (2, 0)
    assert (again.usage.calls, again.cached, again.errors) == (0, 2, 1)  # an error is asked for again
    assert [(result.cached, result.usage.calls, result.status) for result in results] == [
        (True, 0, "passed"),
        (True, 0, "failed"),
        (False, 0, "error"),
    ]
    assert results[0].criteria[0].by == "cached"
    assert (anew.usage.calls, anew.cached, other.usage.calls) == (2, 0, 1)


async def test_the_criterion_that_decided_is_named_and_never_one_that_weighs_nothing(client: Client, tmp_path: Path) -> None:
    rubric = {"criteria": [{"description": "it is brief", "weight": 0, "required": False}, "it is good"]}
    said = verdict(row("c1", "too long"), row("c2", "it is not"))
    async with batching(client, tmp_path, {"role": "grader", "verdict": said}) as batches:
        _, (result,) = await batches.run([case("a", rubric=rubric)])

    assert (result.status, result.decided_by, result.worst_criterion, result.optional) == ("failed", ("c2",), "c2", ("c1",))


@pytest.mark.slow
async def test_an_edited_check_has_no_judge_paid_again(client: Client, tmp_path: Path) -> None:
    def checked(word: str) -> dict[str, Any]:
        check = {"tool": "text_check", "arguments": {"kind": "contains", "value": word}}
        return {"criteria": [{"description": f"It says {word}", "check": check}, {"description": "it is good"}]}

    async with batching(client, tmp_path, passes()) as batches:
        first, _ = await batches.run([case("a", rubric=checked("answer"))])
        again, _ = await batches.run([case("a", rubric=checked("nowhere"))])

    assert (first.usage.calls, again.usage.calls) == (1, 0)


@pytest.mark.slow
async def test_every_case_is_fenced_by_a_code_of_its_own(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes(step=1), {"role": "grader", "text": "?"}) as batches:
        await batches.run(many(3))
        asked = batches.served.models.requests_of("grader")
    codes = [re.findall(r"=== end of records (\w+) ===", "".join(message.content for message in request.messages)) for request in asked]

    assert len(asked) == 6
    assert len({code for (code,) in codes}) == 3  # one a case, the same when an answer is mended
    assert all(len(code) == 32 for (code,) in codes)


@pytest.mark.slow
async def test_each_repetition_of_a_case_is_judged_on_its_own(client: Client, tmp_path: Path) -> None:
    cases = [case(f"a/{at + 1}", "the same", repeat=at) for at in range(3)]
    async with batching(client, tmp_path, passes()) as batches:
        first, _ = await batches.run(cases)
        again, _ = await batches.run(cases)

    assert (first.usage.calls, first.cached, again.usage.calls, again.cached) == (3, 0, 0, 3)


@pytest.mark.slow
async def test_a_call_that_was_paid_and_written_down_is_not_made_again_when_its_worker_dies(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, died = BatchActivities.end_case, list[object]()

    async def settle_and_die(self: BatchActivities, *given: Any, **named: Any) -> Any:
        state = await settle(self, *given, **named)
        if not died:
            died.append(state)
            raise ConnectionError("the worker died before Temporal heard of it")
        return state

    monkeypatch.setattr(BatchActivities, "end_case", settle_and_die)
    async with batching(client, tmp_path, passes()) as batches:
        summary, results = await batches.run([case("a")], cache=False)
        asked = len(batches.served.models.requests)

    assert died
    assert (summary.passed, summary.total, asked) == (1, 1, 1)
    assert (summary.usage.calls, results[0].usage.calls) == (1, 1)


@pytest.mark.slow
async def test_too_many_errors_pause_a_batch_and_it_goes_on_where_it_stood(client: Client, tmp_path: Path) -> None:
    cases = many(30)
    async with batching(client, tmp_path, passes(), breaks("the output of c1")) as batches:  # c1 and c10 to c19
        paused, before = await batches.run(cases, batch_id="sick", max_errors=3, at_once=1)
    async with batching(client, tmp_path, passes()) as batches:
        finished = await (await batches.start("sick", 30, again="errors")).result()
        asked = len(batches.served.models.requests)

    assert (paused.status, paused.errors, paused.failed) == ("paused", 3, 0)
    assert paused.reason == "3 cases ended in an error; max_errors is 3"
    assert Counter(item.status for item in before) == {"passed": paused.passed, "error": 3, "queued": 27 - paused.passed}
    assert (finished.status, finished.passed, finished.errors) == ("finished", 30, 0)
    assert asked == 30 - paused.passed


@pytest.mark.slow
async def test_the_share_of_errors_counts_from_twenty_cases_on(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, breaks("the output of c"), passes("never")) as batches:
        by_default, _ = await batches.run(many(21), at_once=1)
        borne, _ = await batches.run(many(21), at_once=1, max_error_rate=1)

    assert (by_default.status, by_default.errors) == ("paused", 20)
    assert by_default.reason == "20 of 20 cases ended in an error; max_error_rate is 0.5"
    assert (borne.status, borne.errors) == ("finished", 21)


@pytest.mark.slow
async def test_a_budget_that_is_used_up_pauses_and_a_larger_one_goes_on(client: Client, tmp_path: Path) -> None:
    paid = passes(usage={"input": 90, "output": 10})
    async with batching(client, tmp_path, paid) as batches:
        paused, _ = await batches.run(many(10), batch_id="dear", budget={"max_tokens": 300}, at_once=1)
        finished = await (await batches.start("dear", 10, budget={"max_tokens": 5000}, at_once=1)).result()

    assert (paused.status, paused.reason) == ("paused", "the budget is used up: 300 of 300 tokens are used")
    assert (paused.passed, paused.open, paused.usage.tokens) == (3, 7, 300)
    assert (finished.status, finished.passed, finished.usage.tokens) == ("finished", 10, 1000)


@ON_EITHER
async def test_usage_that_a_server_does_not_report_is_unknown_in_the_batch_and_its_files(client: Client, tmp_path: Path, url: str) -> None:
    unknown = {"input": None, "output": None}
    paid = [passes(usage={"input": 90, "output": 10}), passes(when="of c1.", usage=unknown)]
    async with batching(client, tmp_path, *paid, url=url) as batches:
        summary, results = await batches.run(many(3), batch_id="local")
        refused, _ = await batches.run(many(3), batch_id="limited", budget={"max_tokens": 300}, at_once=1, cache=False)
        outputs = Outputs([tmp_path / name for name in ("results.json", "results.csv", "results.xml")])
        outputs.close(summary, lambda: iter(results))
        page = await stored_batch_page(batches.reader, "local")

    assert [(result.usage.input, result.usage.output, result.usage.calls) for result in results] == [
        (90, 10, 1),
        (None, None, 1),
        (90, 10, 1),
    ]
    assert (summary.usage.input, summary.usage.output, summary.usage.cost_usd, summary.usage.calls) == (None, None, None, 3)
    assert (refused.status, refused.passed) == ("paused", 2)
    assert (refused.reason or "").startswith("the budget cannot be checked: a model's server does not report the tokens of its calls")
    written = json.loads((tmp_path / "results.json").read_text())
    assert [one["usage"]["input"] for one in written["cases"]] == [90, None, 90]
    assert written["summary"]["usage"]["output"] is None
    rows = list(csv.DictReader(StringIO((tmp_path / "results.csv").read_text(encoding="utf-8-sig"))))
    assert [one["tokens"] for one in rows] == ["100", "", "100"]
    assert "input_tokens" not in (tmp_path / "results.xml").read_text()
    assert "<b>unknown</b><span>tokens</span>" in page
    assert spending(summary) == ["tokens not reported"]


async def test_limits_hold_cases_with_workflows_of_their_own_too(client: Client, tmp_path: Path) -> None:
    said: list[dict[str, Any]] = [
        {"role": "generator", "text": "a draft", "usage": {"input": 60, "output": 20}},
        passes(usage={"input": 20}),
    ]
    async with batching(client, tmp_path, *said) as batches:
        summary, results = await batches.run([drafted(f"c{at}", loop=True) for at in range(5)], budget={"max_tokens": 150}, at_once=1)

    assert (summary.status, summary.reason) == ("paused", "the budget is used up: 200 of 150 tokens are used")
    assert [result.status for result in results] == ["passed", "passed", "queued", "queued", "queued"]


@pytest.mark.slow
async def test_what_a_judgement_cost_that_nobody_gave_is_counted(client: Client, tmp_path: Path) -> None:
    said: list[dict[str, Any]] = [{"role": "grader", "tool_calls": [{"name": "word_count"}], "usage": {"input": 70}}, breaks(step=1)]
    async with batching(client, tmp_path, *said) as batches:
        summary, results = await batches.run([case("a", grader=JUDGE | {"tools": ["word_count"]})], batch_id="spent")

    assert (summary.errors, summary.usage.tokens, results[0].usage.tokens) == (1, 70, 70)
    assert "as it was told to" in str(results[0].error)


async def test_an_empty_output_is_judged_by_a_grader_and_is_nothing_for_tools(client: Client, tmp_path: Path) -> None:
    asked = {"messages": [{"role": "user", "content": "Write."}]}
    tooled = JUDGE | {"tools": ["word_count"]}
    async with batching(client, tmp_path, fails(gap="nothing is there")) as batches:
        _, results = await batches.run([case("a", "", **asked), case("b", "", grader=tooled, **asked)])

    assert [result.status for result in results] == ["failed", "error"]
    assert results[1].error == "no_output: the output is empty, and tools have nothing to look at"


@pytest.mark.parametrize("own", [{}, {"loop": True}])
async def test_a_budget_in_money_needs_prices(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]) -> None:
    async with batching(client, tmp_path, passes()) as batches:
        monkeypatch.setattr(batches.served.models, "cost", lambda *_: None)
        with pytest.raises(WorkflowFailureError) as refused:
            await batches.run([drafted("a", **own)], batch_id=f"unpriced{len(own)}", budget={"max_cost_usd": 1})
        summary = await batches.reader.summary(f"unpriced{len(own)}")
        asked = list(batches.served.models.requests)

    cause = refused.value.cause
    assert isinstance(cause, ApplicationError)
    assert (cause.type, "the price of 'scripted:writer' is not known" in cause.message) == ("InvalidRequest", True)
    assert (summary.status, summary.errors, summary.usage.attempts, asked) == ("stopped", 0, 0, [])  # what was reserved is released


@pytest.mark.slow
async def test_failures_are_asked_anew_and_passes_stay(client: Client, tmp_path: Path) -> None:
    cases = [case("a"), case("b"), case("c")]
    async with batching(client, tmp_path, passes(), fails("of b."), breaks("of c.")) as batches:
        await batches.run(cases, batch_id="twice")
    async with batching(client, tmp_path, passes()) as batches:
        summary = await (await batches.start("twice", 3, again="failures")).result()
        results, asked = list(batches.reader.results("twice")), len(batches.served.models.requests)

    assert (summary.passed, summary.failed, summary.errors, asked) == (3, 0, 0, 2)
    assert [(result.attempt, result.cached) for result in results] == [(0, False), (1, False), (1, False)]


@pytest.mark.slow
async def test_a_batch_that_a_person_pauses_ends_what_is_in_flight(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes()) as batches:
        gate = batches.served.models.gate("grader")
        await batches.upload("calm", many(20))
        handle = await batches.start("calm", 20, at_once=2)
        await asyncio.wait_for(gate.reached.wait(), 240)
        await handle.signal(GradingBatch.pause)
        gate.opened.set()
        summary = await handle.result()
        finished = await (await batches.start("calm", 20)).result()

    assert (summary.status, summary.reason) == ("paused", "paused by a person")
    assert 1 <= summary.passed < 20
    assert (finished.status, finished.passed) == ("finished", 20)


async def test_a_batch_that_does_not_run_cannot_be_paused(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="the batch 'nobody' is not running; there is nothing to pause"):
        await BatchClient(client, "x").pause("nobody")


@pytest.mark.parametrize("how", ["cancel", "terminate"])
async def test_a_batch_that_is_stopped_goes_on_when_it_is_started_again(client: Client, tmp_path: Path, how: str) -> None:
    async with batching(client, tmp_path, passes()) as batches:
        gate = batches.served.models.gate("grader")
        await batches.upload(f"cut-{how}", many(10))
        handle = await batches.start(f"cut-{how}", 10, at_once=2)
        await asyncio.wait_for(gate.reached.wait(), 240)
        await getattr(handle, how)()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        gate.opened.set()
        stopped = await batches.reader.summary(f"cut-{how}")
        finished = await (await batches.start(f"cut-{how}", 10)).result()

    assert how == "terminate" or stopped.status == "stopped"
    assert (finished.status, finished.passed, finished.errors) == ("finished", 10, 0)


@pytest.mark.slow
async def test_a_batch_that_is_cancelled_while_a_worker_is_gone_has_no_case_that_failed_by_it(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fall_silent(monkeypatch)
    async with batching(client, tmp_path, passes()) as batches:
        gate = batches.served.models.gate("grader")
        await batches.upload("gone", many(3))
        handle = await batches.start("gone", 3, at_once=3)
        await asyncio.wait_for(gate.reached.wait(), 240)
        await handle.cancel()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        stopped = await batches.reader.summary("gone")
        gate.opened.set()
        finished = await (await batches.start("gone", 3)).result()

    assert (stopped.status, stopped.errors) == ("stopped", 0)
    assert (finished.status, finished.passed, finished.errors) == ("finished", 3, 0)


@pytest.mark.slow
async def test_a_long_batch_goes_on_in_new_runs_and_a_long_shard_in_new_shards(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradeloop.batches.store.SHARD_CASES", 20)
    monkeypatch.setattr(grading_batch, "EVENTS", 12)
    monkeypatch.setattr(grading_batch, "HISTORY_EVENTS", 40)
    async with batching(client, tmp_path, passes(), fails("of c7.")) as batches:
        summary, results = await batches.run(many(60), batch_id="long", at_once=4)
        runs = [workflow async for workflow in client.list_workflows("WorkflowId = 'long'")]
        shards = [
            workflow async for workflow in client.list_workflows("WorkflowType = 'BatchShard' AND WorkflowId STARTS_WITH 'shard/long/'")
        ]

    assert (summary.status, summary.passed, summary.failed) == ("finished", 59, 1)
    assert [result.index for result in results] == list(range(60))
    assert len(runs) > 1
    assert len(shards) > 3


async def test_an_upload_of_anybody_that_is_malformed_is_refused_for_good(client: Client, tmp_path: Path) -> None:
    malformed: list[tuple[Any, str]] = [
        ([], "the request is not an object; send one JSON object with batch_id, first and cases"),
        ("cases", "the request is not an object; send one JSON object with batch_id, first and cases"),
        ({"batch_id": "b", "first": 0}, "cases: Field required"),
        ({"batch_id": "b", "first": 0, "cases": 3}, "cases: "),
        ({"batch_id": "b", "first": -1, "cases": [case("a")]}, "first: "),
        ({"batch_id": "b", "first": 0, "cases": [case("a", rubrik="- it is good")]}, "rubrik"),
    ]
    async with batching(client, tmp_path, passes()) as batches:
        for upload, said in malformed:
            assert said in await _refused(batches, "StoreCases", upload)


async def test_what_is_not_uploaded_whole_is_refused(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes()) as batches:
        await batches.upload("half", many(2))
        refused = await _refusal(batches, "half", 3)

    assert refused == "the batch 'half': 2 of its 3 cases are in the store; upload the others first, each once"


async def test_an_upload_may_come_twice_and_an_id_may_not(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes()) as batches:
        stored = [await batches.upload("b", many(2)), await batches.upload("b", many(2))]
        with pytest.raises(WorkflowFailureError, match="failed") as double:
            await batches.upload("b", [case("c1")], first=2)
        with pytest.raises(WorkflowFailureError, match="failed") as other:
            await batches.upload("b", [case("c9", vars={"follows": {"it": "is data"}})], first=1)

    assert stored == [2, 2]
    assert "two cases have the id 'c1'; give each its own" in str(double.value.cause)
    assert "position 1 holds another case than 'c9'" in str(other.value.cause)


async def test_a_request_that_is_none_is_refused_for_good(client: Client, tmp_path: Path) -> None:
    malformed: list[tuple[object, str]] = [
        (None, "the request is not an object; send one JSON object with batch_id and total"),
        ({"batch_id": "x y", "total": 1}, "batch_id: String should match pattern"),
        ({"batch_id": "x"}, "total: Field required"),
        ({"batch_id": "x", "total": 1, "max_error": 2}, "Did you mean 'max_errors'?"),
        ({"batch_id": "x", "total": 200_000}, "total: Input should be less than or equal to 100000"),
    ]
    async with batching(client, tmp_path) as batches:
        for argument, words in malformed:
            assert words in await _refused(batches, "GradingBatch", argument)


async def _refused(batches: Batches, kind: str, argument: object) -> str:
    """Start a workflow with an argument that is refused for good, and return why."""
    handle = await batches.client.start_workflow(kind, argument, id=f"odd-{uuid4()}", task_queue=batches.served.task_queue)
    with pytest.raises(WorkflowFailureError) as refused:
        await asyncio.wait_for(handle.result(), 240)
    assert isinstance(refused.value.cause, ApplicationError)
    assert refused.value.cause.type == "InvalidRequest"
    return refused.value.cause.message


async def test_what_the_worker_cannot_serve_is_refused_at_the_upload(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, passes()) as batches:
        with pytest.raises(WorkflowFailureError) as refused:
            await batches.upload("keyless", [case("a"), case("b", grader={"model": "openai:gpt-5"})])

    assert "the case 'b': OPENAI_API_KEY is not set in the worker's environment" in str(refused.value.cause)


async def _refusal(batches: Batches, batch_id: str, total: int) -> str:
    with pytest.raises(WorkflowFailureError) as refused:
        await (await batches.start(batch_id, total)).result()
    assert isinstance(refused.value.cause, ApplicationError)
    return refused.value.cause.message


async def test_a_shard_in_which_nothing_ends_is_not_opened_for_ever(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any, **__: Any) -> CaseAnswer:
        return CaseAnswer()

    monkeypatch.setattr(BatchActivities, "end_case", nothing)
    async with batching(client, tmp_path, passes()) as batches:
        await batches.upload("vain", many(3))
        with pytest.raises(WorkflowFailureError) as lost:
            await (await batches.start("vain", 3)).result()
        summary = await batches.reader.summary("vain")

    assert isinstance(lost.value.cause, ApplicationError)
    assert (lost.value.cause.type, lost.value.cause.message) == ("ShardLost", "of the cases 0 to 2 none comes to an end")
    assert (summary.status, summary.open) == ("stopped", 3)


async def test_a_worker_without_a_store_refuses_batches_with_the_cure(client: Client) -> None:
    requests: list[tuple[str, dict[str, Any]]] = [
        ("GradingBatch", {"batch_id": "x", "total": 1}),
        ("StoreCases", {"batch_id": "b", "first": 0, "cases": [{"id": "a", "typo": 1}]}),
        ("StoreCases", {"cases": 3}),
    ]
    async with serving(client, passes()) as served:
        for kind, argument in requests:
            handle = await client.start_workflow(kind, argument, id=f"storeless-{uuid4()}", task_queue=served.task_queue)
            with pytest.raises(WorkflowFailureError) as refused:
                await asyncio.wait_for(handle.result(), 240)

            assert "this worker has no store, in which a batch's cases are kept; set GRADELOOP_STORE to sqlite:" in str(refused.value.cause)


async def test_cases_that_wait_for_people_are_told_and_hold_up_what_comes_behind_them(client: Client, tmp_path: Path) -> None:
    rubric = {"criteria": ["it is good", {"description": "it may go out", "human": True}]}
    said: list[dict[str, Any]] = [{"role": "generator", "text": "a letter"}, passes()]
    async with batching(client, tmp_path, *said) as batches:
        await batches.upload("human", [drafted(f"c{at}", loop=True, rubric=rubric) for at in range(3)])
        handle = await batches.start("human", 3, at_once=2)
        asked = BatchClient(client, batches.served.task_queue)
        async with asyncio.timeout(240):
            while len(await asked.waiting("human")) < 2:
                await asyncio.sleep(0.1)
        in_flight = await asked.in_flight("human")
        for at in (0, 1, 2):
            await _decide(client, f"human/c{at}")
        summary = await handle.result()

    assert in_flight == 2
    assert (summary.status, summary.passed) == ("finished", 3)


async def _decide(client: Client, thread: str) -> None:
    """Decide the criterion of a thread once it waits for that."""
    people = GradingClient(client)
    async with asyncio.timeout(240):
        while True:
            with suppress(GradeloopError):
                await people.decide(thread, "c2", passed=True, by="ann")
                return
            await asyncio.sleep(0.1)
