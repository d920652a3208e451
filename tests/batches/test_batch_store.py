"""What batches keep, on SQLite and on a real PostgreSQL: counted once whoever ends a case, and brought up to date."""

import asyncio
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import text
from temporalio.client import Client

from gradeloop.batches.cases import CaseConversation, build_result
from gradeloop.batches.charges import CallCost
from gradeloop.batches.contract import BatchRequest, Case, Upload
from gradeloop.batches.reader import BatchReader
from gradeloop.batches.store import BatchStore
from gradeloop.contract.evaluation import Verdict
from gradeloop.contract.messages import Usage
from gradeloop.errors import InvalidRequest, StoreRefused
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from tests.rig.batches import batching, case, drafted, fails, passes

USAGE = Usage(input=90, output=10, calls=1, attempts=1, seconds=0.1, cost_usd=0.5)

PAID = CallCost(USAGE)


def cases(count: int) -> tuple[Case, ...]:
    return tuple(Case.model_validate(case(f"c{at}")) for at in range(count))


async def ledger(store: Store, count: int = 1) -> BatchStore:
    """Return the ledger of a batch that has begun."""
    made = BatchStore(store)
    await made.add(Upload(batch_id="b", first=0, cases=cases(count)))
    await made.open(BatchRequest(batch_id="b", total=count))
    return made


@pytest.mark.slow
async def test_a_batch_runs_on_either_database(client: Client, tmp_path: Path, url: str) -> None:
    groups = {"criteria": ["it is good", {"description": "it is short", "grader": "scripted:other", "votes": 3}]}
    votes = [passes(group=1, sample=at) for at in range(3)]
    async with batching(client, tmp_path, passes(), fails("of c7."), *votes, url=url) as batches:
        summary, results = await batches.run([case(f"c{at}", rubric=groups) for at in range(25)], at_once=40)
        again, _ = await batches.run([case(f"c{at}", rubric=groups) for at in range(25)])

    assert (summary.passed, summary.failed, summary.usage.calls) == (24, 1, 100)
    assert [result.index for result in results] == list(range(25))
    assert (again.passed, again.cached, again.usage.calls) == (24, 25, 0)


@pytest.mark.slow
async def test_any_text_that_a_model_writes_is_kept_as_it_is(client: Client, tmp_path: Path, url: str) -> None:
    said = "a \x00 zero, \x1b[31m red, \u202e turned, 😀 and {{ braces }}"
    replies = [{"role": "generator", "text": said}, fails(gap=said)]
    async with batching(client, tmp_path, *replies, url=url) as batches:
        _, (result,) = await batches.run([drafted("a")])

    assert result.output == said
    assert result.criteria[0].gap == said


async def test_a_case_ends_once_however_many_end_it(url: str) -> None:
    store = Store(url)
    made, result = await ledger(store), build_result(cases(1)[0], "passed", output="x", attempt=0)

    accepted = await asyncio.gather(*(made.end_case("b", 0, result.model_copy(update={"score": at / 10}), PAID) for at in range(8)))
    summary = await BatchReader(store).summary("b")
    store.close()

    assert set(accepted) == {"passed"}
    assert (summary.passed, summary.usage.calls, summary.usage.cost_usd) == (1, 8, 4.0)  # eight were paid for, all of them are counted


async def test_the_last_of_several_answers_sees_all_of_them(url: str) -> None:
    store = Store(url)
    made, count = await ledger(store), 12
    conversation = CaseConversation(verdict=Verdict(criteria=(), explanation="", result="satisfied"))

    seen = await asyncio.gather(*(made.keep_conversation("b", (0, 0, at), conversation, PAID, f"key-{at % 3}") for at in range(count)))
    known = [(await made.look_up("b", (0, 0, 0), f"key-{at}")).verdict for at in range(4)]
    store.close()

    assert sorted(len(page) for page in seen) == list(range(1, count + 1))
    assert [value is not None for value in known] == [True, True, True, False]


async def test_a_batch_is_cut_into_stretches_of_which_each_is_named_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeloop.batches.store.SHARD_CASES", 4)
    store = Store(url)
    made = BatchStore(store)
    await made.add(Upload(batch_id="b", first=0, cases=cases(10)))
    whole, _ = await made.open(BatchRequest(batch_id="b", total=10))
    for at in (4, 5, 6, 7, 9):
        await made.end_case("b", at, build_result(cases(10)[at], "passed", attempt=0), PAID)
    rest, _ = await made.open(BatchRequest(batch_id="b", total=10))
    store.close()

    assert whole == [(0, 4), (4, 8), (8, 10)]
    assert rest == [(0, 4), (8, 10)]


async def test_the_latest_batch_is_the_one_that_began_last_and_what_is_run_again_is_not_counted_as_cached(url: str) -> None:
    store = Store(url)
    made, reader = BatchStore(store), BatchReader(store)
    for name in ("z", "a"):  # in the same second
        await made.add(Upload(batch_id=name, first=0, cases=cases(2)))
        await made.open(BatchRequest(batch_id=name, total=2))
    latest = (await reader.summary("latest")).batch_id
    for at, status in enumerate(("passed", "failed")):
        await made.end_case("a", at, build_result(cases(2)[at], status, attempt=0, cached=True), CallCost())  # type: ignore[arg-type]  # two of the statuses
    before = (await reader.summary("a")).cached
    await made.open(BatchRequest(batch_id="a", total=2, again="failures"))
    after = (await reader.summary("a")).cached
    store.close()

    assert (latest, before, after) == ("a", 2, 1)


async def test_results_come_in_the_order_in_which_cases_ended(url: str) -> None:
    store = Store(url)
    made, reader = await ledger(store, 5), BatchReader(store)
    for at in (3, 0, 4):
        await made.end_case("b", at, build_result(cases(5)[at], "passed", attempt=0), PAID)
    first, after = await reader.ended_since("b", 0)
    await made.end_case("b", 1, build_result(cases(5)[1], "error", attempt=0, error="away"), PAID)
    second, _ = await reader.ended_since("b", after)
    whole = [(result.index, result.status) for result in reader.results("b")]
    store.close()

    assert [item.index for item in first] == [3, 0, 4]
    assert [item.index for item in second] == [1]
    assert whole == [(0, "passed"), (1, "error"), (2, "queued"), (3, "passed"), (4, "passed")]


async def test_a_batch_or_case_that_is_not_there_is_told_with_what_is(url: str) -> None:
    store = Store(url)
    reader = BatchReader(store)
    with pytest.raises(InvalidRequest, match=r"there is no batch 'x' in the store. The store has none yet."):
        await reader.summary("x")
    await ledger(store)
    with pytest.raises(InvalidRequest, match=r"there is no batch 'bb' in the store. Did you mean 'b'\?"):
        await reader.summary("bb")
    with pytest.raises(InvalidRequest, match=r"the batch 'b' has no case 'c'. Did you mean 'c0'\?"):
        await reader.case("b", "c")
    assert (await reader.summary("latest")).batch_id == "b"
    store.close()


async def test_a_call_is_counted_once_however_often_its_transaction_is_sent(url: str) -> None:
    store = Store(url)
    made, result = await ledger(store), build_result(cases(1)[0], "passed", output="x", attempt=0)
    paid = CallCost(USAGE, "run/7", 1, requests=1)

    known = await made.reserve("b", paid)
    for _ in range(2):
        await made.keep_conversation("b", (0, 0, 0), CaseConversation(), paid)
        await made.end_case("b", 0, result, paid)
    counted = await made.reserve("b", CallCost(USAGE, "run/7", 2))
    summary = await made.close("b", None)
    store.close()

    assert (known, counted) == (False, True)
    assert (summary.passed, summary.usage.calls, summary.usage.cost_usd) == (1, 1, 0.5)


async def test_requests_of_which_nobody_has_heard_are_counted_as_attempts(url: str) -> None:
    store = Store(url)
    made = await ledger(store)
    for attempt in (1, 2, 3):
        await made.reserve("b", CallCost(USAGE, "run/7", attempt))  # the workers of the first two were lost
    await made.keep_conversation("b", (0, 0, 0), CaseConversation(), CallCost(USAGE, "run/7", 3, requests=1))
    during = (await BatchReader(store).summary("b")).usage
    await made.reserve("b", CallCost(USAGE, "run/8", 1))  # and so was this one, for good
    at_last = (await made.close("b", "paused")).usage
    again = (await made.close("b", "paused")).usage
    store.close()

    assert (during.calls, during.attempts) == (1, 3)
    assert (at_last.calls, at_last.attempts) == (1, 4)
    assert again == at_last


async def test_a_zombie_and_the_attempt_that_took_its_place_are_both_counted(url: str) -> None:
    store = Store(url)
    made = await ledger(store)
    zombie, second = CallCost(USAGE, "run/7", 1, requests=1), CallCost(USAGE, "run/7", 2, requests=1)
    await made.reserve("b", zombie)
    await made.reserve("b", second)

    await made.keep_conversation("b", (0, 0, 0), CaseConversation(), zombie)
    await made.keep_conversation("b", (0, 0, 0), CaseConversation(), second)
    usage = (await made.close("b", None)).usage
    store.close()

    assert (usage.calls, usage.attempts) == (2, 2)


async def test_what_a_store_refuses_is_not_waited_for(server_url: str) -> None:
    store = Store(server_url)
    made, notes = await ledger(store), list[str]()
    await store.write(lambda connection: connection.execute(text("ALTER TABLE case_units ALTER COLUMN held TYPE varchar(10)")))

    with pytest.raises(StoreRefused, match="value too long"):
        await made.keep_conversation("b", (0, 0, 0), CaseConversation(), CallCost(USAGE, "run/7", 1, on_wait=notes.append))
    store.close()

    assert notes == []


async def test_a_worker_that_is_gone_without_a_word_is_lost_with_what_it_reserved(url: str) -> None:
    store, workers = Store(url), table("workers")
    await ledger(store)
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    rows = [
        {"id": "here", "queue": "q", "slots": 1},
        {"id": "dead", "queue": "q", "slots": 1, "seen": moment},
        {"id": "stopped", "queue": "q", "slots": 1, "seen": moment, "left": 1},
    ]
    for row in rows:
        await store.write(partial(lambda insert, connection: connection.execute(insert), workers.insert().values(**row)))
    asking = BatchStore(store, "asks")
    found: dict[str, int] = {}
    for by, closed in [("here", 0), ("dead", 0), ("dead", 1), ("stopped", 0), ("asks", 0), ("forgotten", 0), (None, 0)]:
        call = f"run/{by}/{closed}"
        await BatchStore(store, by).reserve("b", CallCost(call=call, attempt=1, lost=1))
        found[call] = await asking.count_lost(call, closed)
    unreserved = await asking.count_lost("run/never", 0)
    written = [await asking.is_counted("run/dead/0")]
    await asking.count_failed("b", CallCost(call="run/dead/0", attempt=1))
    counted = await asking.count_lost("run/dead/0", 0)
    written += [await asking.is_counted("run/dead/0"), await asking.is_counted("run/dead/1")]
    store.close()

    assert found == {
        "run/here/0": 1,
        "run/dead/0": 2,
        "run/dead/1": 1,
        "run/stopped/0": 1,
        "run/asks/0": 1,
        "run/forgotten/0": 2,
        "run/None/0": 1,
    }
    assert (unreserved, counted, written) == (0, 0, [False, True, False])
