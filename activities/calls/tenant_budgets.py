"""The budgets of tenants: asked before each of their calls, counted after it, in the store that all workers share."""

import logging
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from activities.calls.retries import TENANT_BUDGET
from activities.errors import FailureDetails, invalid, priced_failure, store_away
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import Budget
from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.settings.endpoints import ANY_TENANT

if TYPE_CHECKING:  # a worker without a store does not load SQLAlchemy
    from sqlalchemy import Connection

    from gradeloop.store.engine import Store

VARIABLE = "GRADELOOP_TENANT_BUDGETS"

logger = logging.getLogger("gradeloop.budgets")


class TenantBudgets:
    """Keeps what each tenant has used since midnight in UTC, where the settings limit it.

    What is in flight when a budget is used up still ends, and is counted.

    Args:
        budgets: The budgets by tenant; that of `*` is each other tenant's own.
        store: Where the sums are kept; needed where there is a budget.

    Raises:
        InvalidRequest: There are budgets, and no store.
    """

    def __init__(self, budgets: Mapping[str, Budget] | None = None, store: "Store | None" = None) -> None:
        if budgets and store is None:
            raise InvalidRequest(f"{VARIABLE}: what tenants use is kept in a store, and this worker has none; set GRADELOOP_STORE")
        self._budgets = dict(budgets or {})
        self._store = store
        self._uncounted: dict[tuple[str, str], Usage] = defaultdict(Usage)

    def limited(self, tenant: str | None) -> str | None:
        """Return the tenant where it has a budget; else None."""
        return tenant if tenant is not None and self._budget_of(tenant) is not None else None

    def _budget_of(self, tenant: str) -> Budget | None:
        return self._budgets.get(tenant, self._budgets.get(ANY_TENANT))

    async def require_left(self, tenant: str, model: str, spent: Usage, *, priced: bool) -> None:
        """Refuse a call of a tenant that has used up its budget of today.

        `spent`: what earlier attempts of the call have used, for the failure's details.

        Raises:
            ApplicationError: Of type `tenant_budget`; `InvalidRequest` where the budget is one in money and the model has no price;
                `StoreUnavailable`, for another attempt, where it cannot be known what is used.
        """
        budget = self._budget_of(tenant)
        if budget is None or self._store is None:
            return
        if budget.max_cost_usd is not None and not priced:
            cure = "add its price to the file that GRADELOOP_PRICES names, or give the tenant max_tokens instead"
            why = f"{VARIABLE}: the price of {model!r} is not known on this worker, and tenant {tenant!r} has a budget in money; {cure}"
            raise invalid(why)
        try:
            used = await self._store.read(lambda connection: used_today(connection, tenant))
        except StoreUnavailable as error:
            raise store_away(error) from None
        why_not = budget.refusal(used + self._uncounted.get((tenant, _today()), Usage()))
        if why_not is not None:
            text = f"tenant {tenant!r}, today in UTC: {why_not}; go on tomorrow, or raise {VARIABLE} of the workers"
            raise priced_failure(text, TENANT_BUDGET, FailureDetails(usage=spent), final=True)

    # What the store could not take is owed by this worker: it goes with the tenant's next call, and
    # `require_left` adds it until then. Otherwise an outage of the store would be a time without a budget. It
    # is popped before the wait, or two calls would write it twice.
    async def count(self, tenant: str, usage: Usage) -> None:
        """Add what a call used to its tenant's day; where the store is away, with the tenant's next call."""
        if self._store is None or not usage.calls:
            return
        key = (tenant, _today())
        owed = self._uncounted.pop(key, Usage()) + usage
        try:
            await self._store.write(lambda connection: _add(connection, *key, owed))
        except StoreUnavailable as error:
            self._uncounted[key] += owed
            logger.warning("what tenants use is not counted in the store for now, but in this worker: %s", error)


def used_today(connection: "Connection", tenant: str) -> Usage:
    """Return what a tenant has used since midnight in UTC: tokens, as prompt tokens, and cost."""
    from sqlalchemy import select

    from gradeloop.store.tables import table

    days = table("tenant_days")
    row = connection.execute(select(days).where(days.c.tenant == tenant, days.c.day == _today())).one_or_none()
    if row is None:
        return Usage()
    # One call without reported tokens makes the sum of its day unknown, and a budget in tokens then allows no
    # other. If it counted as 0, a model that reports nothing would be free.
    return Usage(input=None if row.unreported else row.tokens, calls=row.calls, cost_usd=row.cost_usd)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _add(connection: "Connection", tenant: str, day: str, usage: Usage) -> None:
    from sqlalchemy.dialects import postgresql, sqlite

    from gradeloop.store.tables import table

    days = table("tenant_days")
    added = {
        "tokens": usage.tokens or 0,
        "cost_usd": usage.cost_usd or 0.0,
        "calls": usage.calls,
        "unreported": usage.calls if usage.tokens is None else 0,
    }
    made = (sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert)(days).values(tenant=tenant, day=day, **added)
    sums = {name: days.c[name] + value for name, value in added.items()}
    connection.execute(made.on_conflict_do_update(index_elements=["tenant", "day"], set_=sums))
