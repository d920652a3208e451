"""The statements that run for every case, made once: SQLAlchemy takes longer to build one than SQLite to run it."""

from functools import cache
from typing import TYPE_CHECKING, Any

from gradeloop.batches.tables import COUNTS
from gradeloop.store_tables import table
from gradeloop.usage import Usage

if TYPE_CHECKING:
    from sqlalchemy import Insert, Select, Update

ENDS = ("passed", "failed", "errors", "reused", "settled")
"""Counters of a batch that a case's end adds to."""

_COST = (*COUNTS, "unpriced", "seconds", "cost_usd")


def spending(usage: Usage) -> dict[str, Any]:
    """Return the values that `count` adds for a usage."""
    told: dict[str, Any] = {f"add_{name}": getattr(usage, name) for name in COUNTS}
    told |= {"add_seconds": usage.seconds, "add_cost_usd": usage.cost_usd or 0.0}
    return told | {"add_unpriced": int(bool(usage.calls) and usage.cost_usd is None)}


@cache
def count() -> "Update":
    """Add to a batch's counters, which `add_<name>` name, and return how many cases have ended."""
    from sqlalchemy import bindparam

    batches = table("batches")
    added = {name: batches.c[name] + bindparam(f"add_{name}") for name in (*_COST, *ENDS)}
    return batches.update().where(batches.c.id == bindparam("batch")).values(**added).returning(batches.c.settled)


@cache
def end_case() -> "Update":
    """Write down how a case ended that is queued in this attempt."""
    from sqlalchemy import bindparam

    cases = table("cases")
    mine = (cases.c.batch_id == bindparam("batch"), cases.c.position == bindparam("at"), cases.c.attempt == bindparam("in_attempt"))
    told: dict[str, Any] = {name: bindparam(f"to_{name}") for name in ("status", "result", "settled", "reused")}
    return cases.update().where(*mine, cases.c.status == "queued").values(**told)


@cache
def batch() -> "Select[Any]":
    """Read a batch's row."""
    from sqlalchemy import bindparam, select

    batches = table("batches")
    return select(batches).where(batches.c.id == bindparam("batch"))


@cache
def unit() -> "Select[Any]":
    """Read a conversation."""
    from sqlalchemy import bindparam, select

    units = table("case_units")
    places = (("batch_id", "batch"), ("position", "at"), ("attempt", "in_attempt"), ("unit", "number"))
    return select(units.c.held).where(*(units.c[column] == bindparam(name) for column, name in places))


@cache
def verdict() -> "Select[Any]":
    """Read a verdict of the cache."""
    from sqlalchemy import bindparam, select

    verdicts = table("verdicts")
    return select(verdicts.c.verdict).where(verdicts.c.key == bindparam("named"))


@cache
def keep_verdict(dialect: str) -> "Insert":
    """Write a verdict into the cache, unless one is there."""
    from sqlalchemy import bindparam
    from sqlalchemy.dialects import postgresql, sqlite

    insert: Any = (postgresql if dialect == "postgresql" else sqlite).insert(table("verdicts"))
    made: Insert = insert.values(key=bindparam("named"), verdict=bindparam("told")).on_conflict_do_nothing()
    return made
