"""What a tenant may use a day: calls beyond it are not sent, what they stop goes on tomorrow, and other tenants do not notice."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from activities.calls.tenant_budgets import TenantBudgets, used_today
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import Budget
from gradeloop.errors import InvalidRequest
from gradeloop.settings.worker import load_settings
from gradeloop.store.engine import Store
from tests.rig.batches import batching, case, passes
from tests.rig.threads import draft, request, row, serving, until, verdict

SPENT = {"input": 80, "output": 20}


def of(tenant: str | None) -> dict[str, Any]:
    """Return the priority of a tenant's calls."""
    return {"priority": {"tenant": tenant}} if tenant else {}


def limits(**tokens: int) -> dict[str, Budget]:
    """Return budgets of so many tokens; `others` is what each other tenant has."""
    return {"*" if name == "others" else name: Budget(max_tokens=most) for name, most in tokens.items()}


async def test_a_batch_pauses_where_its_tenant_has_used_up_the_day_and_goes_on_with_more(client: Client, url: str, tmp_path: Path) -> None:
    cases = [case(name) for name in "abc"]
    judge = passes(usage=SPENT)
    async with batching(client, tmp_path, judge, url=url, tenant_budgets=limits(acme=150), max_concurrent_activities=1) as batches:
        paused, results = await batches.run(cases, batch_id="of-acme", at_once=1, **of("acme"))
        other, _ = await batches.run([case("d")], **of("beta"))
        nobodys, _ = await batches.run([case("e")])
    async with batching(client, tmp_path, judge, url=url, tenant_budgets=limits(acme=1000)) as batches:
        resumed = await (await batches.start("of-acme", 3, **of("acme"))).result()

    assert (paused.status, paused.passed, paused.errors, paused.usage.tokens) == ("paused", 2, 0, 200)
    assert str(paused.reason) == (
        "tenant_budget: tenant 'acme', today in UTC: the budget is used up: 200 of 150 tokens are used; "
        "go on tomorrow, or raise GRADELOOP_TENANT_BUDGETS of the workers"
    )
    assert sorted(result.status for result in results) == ["passed", "passed", "queued"]
    assert (other.status, nobodys.status) == ("finished", "finished")
    assert (resumed.status, resumed.passed, resumed.usage.tokens) == ("finished", 3, 300)


async def test_a_thread_is_interrupted_by_its_tenants_budget_and_resumed_with_more(client: Client, tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'results.db'}")
    replies = (draft(0, usage=SPENT), {"role": "grader", "verdict": verdict(row("c1")), "usage": SPENT})
    asked = request("- it is good", priority={"tenant": "acme"})
    async with serving(client, *replies, store=store, tenant_budgets=limits(others=100)) as served:
        thread = await served.start(asked)
        stopped = await until(thread, "interrupted")
        again = await served.client.resume(thread.id)
    async with serving(client, *replies, store=store, tenant_budgets=limits(others=1000), task_queue=served.task_queue) as served:
        good = await served.client.resume(thread.id)
    store.close()

    assert (stopped["reason"], stopped["usage"]["calls"]) == ("budget", 1)
    assert (again.status, again.reason) == ("interrupted", "budget")
    assert str(again.error).startswith("tenant_budget: tenant 'acme', today in UTC: the budget is used up: 100 of 100 tokens are used")
    assert (good.output, good.reason, good.usage.calls) == ("draft 0", None, 2)


@pytest.mark.slow
async def test_a_drafted_case_of_a_tenant_without_budget_left_is_left_for_later(client: Client, tmp_path: Path) -> None:
    drafted = case("a", generator={"model": "scripted:writer"}, messages=[{"role": "user", "content": "Write a."}], loop=True)
    async with batching(client, tmp_path, draft(0, usage=SPENT), passes(), tenant_budgets=limits(acme=100)) as batches:
        paused, results = await batches.run([drafted], **of("acme"))

    assert (paused.status, paused.errors, [result.status for result in results]) == ("paused", 0, ["queued"])
    assert str(paused.reason).startswith("tenant_budget: tenant 'acme'")
    assert paused.usage.calls == 1


async def test_what_is_used_is_counted_by_tenant_and_day(url: str) -> None:
    store = Store(url)
    budgets = TenantBudgets(limits(acme=1000), store)
    for usage in (Usage(input=7, output=3, calls=1, cost_usd=0.25), Usage(input=1, output=0, calls=1, cost_usd=0.5), Usage(attempts=1)):
        await budgets.count("acme", usage)
    await budgets.count("beta", Usage(input=None, output=2, calls=1))
    used = [await store.read(partial(used_today, tenant=name)) for name in ("acme", "beta", "gamma")]
    store.close()

    assert used == [Usage(input=11, calls=2, cost_usd=0.75), Usage(input=None, calls=1, cost_usd=0), Usage()]


async def test_what_a_store_that_is_away_did_not_take_is_counted_with_the_next_call(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    store = Store(f"sqlite:///{folder / 'results.db'}")
    folder.write_text("in the way")
    budgets = TenantBudgets(limits(acme=1000), store)
    await budgets.count("acme", Usage(input=7, calls=1))
    folder.unlink()
    folder.mkdir()
    await budgets.count("acme", Usage(input=1, calls=1))
    used = await store.read(lambda connection: used_today(connection, "acme"))
    store.close()

    assert (used.input, used.calls) == (8, 2)


def test_budgets_without_a_store_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^GRADELOOP_TENANT_BUDGETS: .*set GRADELOOP_STORE$"):
        TenantBudgets(limits(acme=1))


def test_budgets_are_set_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADELOOP_TENANT_BUDGETS", '{"acme": {"max_cost_usd": 25}, "*": {"max_tokens": 2000000}}')

    assert load_settings([]).tenant_budgets == {"acme": Budget(max_cost_usd=25), "*": Budget(max_tokens=2_000_000)}


async def test_a_budget_in_money_wants_a_price(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.providers.Providers.cost", lambda *_: None)
    async with batching(client, tmp_path, passes(), tenant_budgets={"acme": Budget(max_cost_usd=1)}) as batches:
        with pytest.raises(Exception, match="Workflow execution failed") as refused:
            await batches.run([case("a")], **of("acme"))

    assert "GRADELOOP_TENANT_BUDGETS: the price of 'scripted:judge' is not known on this worker" in str(refused.value.__cause__)
