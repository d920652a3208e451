"""The cases of a batch on a real PostgreSQL: two round trips each, what they cost only appended, and every sum exact at every moment."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, text
from temporalio.client import Client

from gradeloop.batches.cases import CaseConversation, build_result
from gradeloop.batches.charges import CallCost
from gradeloop.batches.contract import BatchRequest, Case, Upload
from gradeloop.batches.reader import BatchReader, pause_reason, select_batches
from gradeloop.batches.store import BatchStore
from gradeloop.contract.evaluation import Verdict
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import Budget
from gradeloop.errors import StoreUnavailable
from gradeloop.store import fleet
from gradeloop.store.engine import Store
from gradeloop.temporal import store_gate
from tests.rig.batches import batching, case, passes
from tests.rig.cut_wire import cut_wire

USAGE = Usage(input=90, output=10, calls=1, attempts=1, seconds=0.25, cost_usd=0.5)
VERDICT = Verdict(criteria=(), explanation="", result="satisfied")


def cases(count: int) -> tuple[Case, ...]:
    return tuple(Case.model_validate(case(f"c{at}")) for at in range(count))


async def opened(store: Store, count: int, **more: Any) -> BatchStore:
    """Return the ledger of a batch that has begun."""
    made = BatchStore(store)
    await made.add(Upload(batch_id="b", first=0, cases=cases(count)))
    await made.open(BatchRequest.model_validate({"batch_id": "b", "total": count} | more))
    return made


def reserving(at: int, attempt: int = 1) -> CallCost:
    return CallCost(call=f"call-{at}", attempt=attempt)


def paid(at: int, attempt: int = 1, usage: Usage = USAGE) -> CallCost:
    return CallCost(usage, f"call-{at}", attempt, requests=attempt, on_wait=lambda _: None)


async def judge(made: BatchStore, at: int, known: Case) -> None:
    """Take a case from its look-up to its end."""
    found = await made.look_up("b", (at, 0, 0), f"{at:064d}", reserving(at))
    assert found.reserved
    await made.end_case("b", at, build_result(known, "passed", output="x"), paid(at), key=f"{at:064d}")


async def rows(store: Store, statement: str) -> list[tuple[Any, ...]]:
    return await store.read(lambda connection: [tuple(row) for row in connection.execute(text(statement))])


@pytest.fixture
async def store(server_url: str) -> AsyncIterator[Store]:
    store = Store(server_url)
    yield store
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize(("lanes", "most"), [(1, 2.0), (16, 0.75)])
async def test_a_case_takes_two_round_trips_and_cases_that_run_together_share_them(server_url: str, lanes: int, most: float) -> None:
    count = 64
    async with cut_wire(server_url) as (wire, through):
        store = Store(through)
        made, due = await opened(store, count), list(enumerate(cases(count)))
        await made.case("b", 0)  # the connection is there

        async def lane() -> None:
            while due:
                await judge(made, *due.pop())

        wire.arm(0)
        await asyncio.gather(*(lane() for _ in range(lanes)))
        trips = wire.statements
        summary = await BatchReader(store).summary("b")
        store.close()

    assert (summary.passed, summary.usage.calls) == (count, count)
    assert trips <= most * count


@pytest.mark.slow
async def test_a_batch_that_runs_one_case_after_the_other_takes_two_round_trips_for_each(
    client: Client, tmp_path: Path, server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_gate, "LOOK_SECONDS", 3600.0)  # what a worker asks of the store by the clock is no case's
    monkeypatch.setattr(fleet, "REFRESH_SECONDS", 3600.0)
    async with cut_wire(server_url) as (wire, through), batching(client, tmp_path, passes(), url=through) as batches:
        trips = []
        for count in (5, 25):
            await batches.upload(f"b{count}", [case(f"{count} {at}", output=f"{count} {at}") for at in range(count)])
            wire.arm(0)
            summary = await (await batches.start(f"b{count}", count, at_once=1)).result()
            trips.append(wire.statements)
            assert summary.passed == count

    assert trips[1] - trips[0] < 3 * 20  # a connection that lay unused is asked whether it is alive, often where the machine is slow


async def test_a_worker_that_knows_none_of_the_cases_reads_the_next_ones_with_the_first(store: Store) -> None:
    made, large = await opened(store, 6), cases(7)[6].model_copy(update={"output": "".join(map(str, range(200_000)))})
    await made.add(Upload(batch_id="b", first=6, cases=(large,)))
    await judge(made, 3, cases(6)[3])

    ahead, ended, alone = await made.cases_from("b", 1), await made.cases_from("b", 3), await made.cases_from("b", 6)
    with pytest.raises(LookupError, match="the batch 'b' has no case at position 7"):
        await made.case("b", 7)

    assert (list(ahead), list(ended), list(alone)) == ([1, 2, 4, 5], [3, 4, 5], [6])
    assert ended[3].status == "passed"


async def test_whoever_counts_waits_for_no_other_case_of_the_batch(store: Store, server_url: str) -> None:
    made = await opened(store, 2)
    engine = create_engine(server_url.replace("postgresql", "postgresql+psycopg", 1))
    with engine.connect() as other:
        other.execute(text("SELECT 1 FROM batches WHERE id = 'b' FOR UPDATE"))
        await judge(made, 0, cases(2)[0])
        during = await BatchReader(store).summary("b")
        other.rollback()
    engine.dispose()

    assert (during.passed, during.usage.calls, during.usage.cost_usd) == (1, 1, 0.5)


@pytest.mark.slow
async def test_readers_see_each_sum_at_once_and_the_rows_are_folded_when_the_batch_closes(store: Store) -> None:
    made, reader = await opened(store, 4), BatchReader(store)
    seen = []
    for at, known in enumerate(cases(4)):
        await judge(made, at, known)
        seen.append((await reader.summary("b")).usage.calls)
        seen.append((await made.look_up("b", (at, 0, 0))).conversation.ended)
    pending = await rows(store, "SELECT count(*) FROM batch_changes")
    closed = await made.close("b", None)
    left = await rows(store, "SELECT (SELECT count(*) FROM batch_changes), passed, settled, calls, input FROM batches")

    assert seen == [1, False, 2, False, 3, False, 4, False]
    assert pending > [(0,)]
    assert (closed.status, closed.passed, closed.usage.calls) == ("finished", 4, 4)
    assert left == [(0, 4, 4, 4, 360)]


@pytest.mark.slow
async def test_a_reader_that_follows_skips_no_case_that_is_committed_late(store: Store, server_url: str) -> None:
    made, reader, all_cases = await opened(store, 5), BatchReader(store), cases(5)
    engine = create_engine(server_url.replace("postgresql", "postgresql+psycopg", 1))
    with engine.connect() as slow:
        write = "UPDATE cases SET status = 'passed', result = :result WHERE batch_id = 'b' AND position = 4"
        result = build_result(all_cases[4], "passed", output="x").model_copy(update={"index": 4})
        slow.execute(text(write), {"result": result.model_dump_json()})
        slow.execute(text("INSERT INTO batch_changes (batch_id, position, settled, passed) VALUES ('b', 4, 1, 1)"))
        for at in (1, 0):
            await judge(made, at, all_cases[at])
        first, after = await reader.ended_since("b", 0)
        slow.commit()
    engine.dispose()
    for at in (3, 2):
        await judge(made, at, all_cases[at])
    second, last = await reader.ended_since("b", after)
    nothing, _ = await reader.ended_since("b", last)

    assert [result.index for result in first] == [1, 0]
    assert [result.index for result in second] == [4, 3, 2]
    assert nothing == []


async def test_a_program_of_the_version_before_counts_and_numbers_beside_this_one(store: Store) -> None:
    made, reader, all_cases = await opened(store, 4), BatchReader(store), cases(4)
    for at in (0, 1):
        await judge(made, at, all_cases[at])

    def end_as_before(connection: Connection) -> None:
        count = "UPDATE batches SET settled = settled + 1, failed = failed + 1, calls = calls + 1 WHERE id = 'b' RETURNING settled"
        number = connection.execute(text(count)).scalar_one()
        result = build_result(all_cases[2], "failed", output="x").model_copy(update={"index": 2}).model_dump_json()
        end = "UPDATE cases SET status = 'failed', result = :result, settled = :number WHERE batch_id = 'b' AND position = 2"
        connection.execute(text(end), {"result": result, "number": number})

    await store.write(end_as_before)
    await judge(made, 3, all_cases[3])
    results, after = await reader.ended_since("b", 0)
    as_before = await rows(store, "SELECT passed, failed, settled, calls FROM batches")

    assert ([result.index for result in results], after) == ([0, 1, 2, 3], 4)
    assert as_before == [(3, 1, 4, 4)]


@pytest.mark.parametrize(
    ("budget", "costs"), [(Budget(max_tokens=300), USAGE), (Budget(max_cost_usd=1.5), USAGE), (Budget(max_tokens=300), None)]
)
async def test_a_budget_holds_the_first_call_behind_it_though_nothing_is_folded_yet(
    store: Store, budget: Budget, costs: Usage | None
) -> None:
    made, all_cases, reserved = await opened(store, 6, budget=budget.model_dump()), cases(6), []
    usage = costs or Usage(input=None, output=None, calls=1, attempts=1)
    for at in range(6):
        found = await made.look_up("b", (at, 0, 0), None, reserving(at))
        assert found.reserved == (found.pause_reason is None)
        if found.reserved:
            reserved.append(at)
            await made.end_case("b", at, build_result(all_cases[at], "passed", output="x"), paid(at, usage=usage))
    charges = await rows(store, "SELECT call FROM charges ORDER BY call")

    assert reserved == ([0, 1, 2] if costs else [0])
    assert charges == [(f"call-{at}",) for at in reserved]


@pytest.mark.parametrize("seed", range(3))
async def test_a_call_is_reserved_where_no_limit_of_its_batch_is_reached(store: Store, seed: int) -> None:
    draw, made = random.Random(seed), await opened(store, 1)
    budgets = (None, {"max_tokens": 100}, {"max_cost_usd": 0.3}, {"max_tokens": 100, "max_cost_usd": 0.3})
    for at in range(60):
        limits = {"max_errors": draw.choice((None, 1, 3)), "max_error_rate": draw.choice((0.5, 0.25, 1.0))}
        request = BatchRequest.model_validate({"batch_id": "b", "total": 1, "budget": draw.choice(budgets)} | limits)
        values: dict[str, Any] = {"request": request.model_dump_json(), "status": draw.choice(("running", "running", "running", "paused"))}
        values |= {name: draw.choice((0, 0, 1, 5, 19)) for name in ("passed", "errors", "failed")}
        values |= {"input": draw.choice((0, 99, 100)), "calls": draw.choice((0, 1)), "cost_usd": draw.choice((0.0, 0.1 + 0.2, 0.4))}
        values |= {"unpriced": draw.choice((0, 0, 1)), "unreported": draw.choice((0, 0, 1))}
        changed = ", ".join(f"{name} = :{name}" for name in values)

        def write(connection: Connection, changed: str = changed, values: dict[str, Any] = values) -> bool:
            connection.execute(text(f"UPDATE batches SET {changed} WHERE id = 'b'"), values)
            return pause_reason(connection.execute(select_batches()).mappings().one()) is None

        free = await store.write(write)
        assert (await made.look_up("b", (0, 0, 0), None, reserving(at))).reserved == free, values


async def test_a_call_is_not_reserved_where_its_answer_is_there_already(store: Store) -> None:
    made = await opened(store, 4)
    zero = "a \x00 zero"
    await made.keep_conversation("b", (0, 0, 0), CaseConversation(verdict=VERDICT, judge=zero), paid(0), "k" * 64)
    await made.keep_conversation("b", (1, 0, 0), CaseConversation(error=zero), paid(1))
    await made.keep_conversation("b", (2, 0, 0), CaseConversation(judge=zero), paid(2))

    asked = [((0, 0, 0), None), ((1, 0, 0), None), ((2, 0, 0), None), ((3, 0, 0), "k" * 64), ((3, 0, 0), "l" * 64)]
    found = [await made.look_up("b", place, key, reserving(9 + at)) for at, (place, key) in enumerate(asked)]

    assert [lookup.reserved for lookup in found] == [False, False, True, False, True]


async def test_a_reservation_that_is_released_counts_nothing(url: str) -> None:
    store = Store(url)
    made = await opened(store, 2)
    for at in (0, 1):
        assert (await made.look_up("b", (at, 0, 0), None, reserving(at))).reserved
    await made.release(reserving(0))
    attempts = (await made.close("b", "paused")).usage.attempts
    store.close()

    assert attempts == 1


async def test_a_case_that_runs_again_is_counted_once_whatever_is_not_folded_yet(store: Store) -> None:
    made, reader, all_cases = await opened(store, 3), BatchReader(store), cases(3)
    for at, status in enumerate(("passed", "error", "failed")):
        await made.end_case("b", at, build_result(all_cases[at], status, output="x"), paid(at))  # type: ignore[arg-type]  # three of the statuses
    await made.open(BatchRequest(batch_id="b", total=3, again="errors"))
    before = await reader.summary("b")
    await made.end_case("b", 1, build_result(all_cases[1], "passed", output="x", attempt=1), paid(7))
    after = await made.close("b", None)

    assert (before.passed, before.errors, before.failed, before.usage.calls) == (1, 0, 1, 3)
    assert (after.passed, after.errors, after.failed, after.usage.calls) == (2, 0, 1, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
async def test_each_case_and_each_cost_is_counted_once_while_workers_lose_their_connections(server_url: str, seed: int) -> None:
    draw, count, workers = random.Random(seed), 60, 3
    async with cut_wire(server_url) as (wire, through):
        stores = [Store(through) for _ in range(workers)]
        ledgers, quiet = [BatchStore(store) for store in stores], Store(server_url)
        made, all_cases, reader = await opened(quiet, count), cases(count), BatchReader(quiet)
        due = [(at, twice) for at in range(count) for twice in range(draw.choice((1, 1, 2)))]  # a zombie does it once more
        draw.shuffle(due)
        seen, ended = 0, [False]

        async def lane(ledger: BatchStore) -> None:
            while due:
                at, _ = due.pop()
                wire.arm(draw.choice((0, 0, 1, 2, 3)), draw.choice(("request", "answer")))
                await surely(ledger.reserve, "b", reserving(at))
                if at % 3:
                    conversation = CaseConversation(verdict=VERDICT)
                    await surely(ledger.keep_conversation, "b", (at, 0, 0), conversation, paid(at), f"{at % 7:064d}")
                await surely(ledger.end_case, "b", at, build_result(all_cases[at], "passed", output="x"), paid(at), key=f"{at % 5:064d}")

        async def look() -> None:
            nonlocal seen
            while not ended[0]:
                summary = await reader.summary("b")
                assert seen <= summary.passed <= summary.usage.calls <= count
                seen = summary.passed
                await reader.ended_since("b", 0)

        looking = asyncio.create_task(look())
        await asyncio.gather(*(lane(ledger) for ledger in ledgers for _ in range(4)))
        ended[0] = True
        await looking
        appended = await reader.summary("b")
        closed = await made.close("b", None)
        numbers = sorted(await rows(quiet, "SELECT settled FROM cases"))
        for store in (*stores, quiet):
            store.close()

    for summary in (appended, closed):
        assert (summary.passed, summary.usage) == (
            count,
            Usage(input=90 * count, output=10 * count, calls=count, attempts=count, seconds=count / 4, cost_usd=count / 2),
        )
    assert numbers == [(number,) for number in range(1, count + 1)]


async def surely(write: Any, *arguments: Any, **more: Any) -> None:
    """Write until the store takes it, as an activity does that is tried again."""
    while True:
        try:
            await write(*arguments, **more)
        except StoreUnavailable:
            continue
        return
