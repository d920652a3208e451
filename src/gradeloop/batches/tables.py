"""The tables of batches: the batch with its counters, its cases, the grader calls that are half done, and the verdict cache."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Column, MetaData

COUNTS = ("input", "cached", "cache_written", "output", "reasoning", "calls", "attempts")
"""Of a batch's usage, the whole numbers."""


def batch_tables(tables: "MetaData") -> None:
    """Add `batches`, `cases`, `case_units` and `verdicts`."""
    _batches(tables)
    _cases(tables)


def _batches(tables: "MetaData") -> None:
    from sqlalchemy import Column, Float, String, Table, Text

    Table(
        "batches",
        tables,
        Column("id", String(200), primary_key=True),
        Column("request", Text, nullable=False),
        Column("status", String(20), nullable=False),
        Column("reason", Text),
        *map(_counter, ("total", "settled", "passed", "failed", "errors", "reused", "throttled", "unpriced")),
        *map(_counter, COUNTS),
        Column("seconds", Float, nullable=False, server_default="0"),
        Column("cost_usd", Float, nullable=False, server_default="0"),
        Column("throttled_by", String(200)),
        _created(),
    )


def _cases(tables: "MetaData") -> None:
    from sqlalchemy import Column, Index, Integer, String, Table, Text, UniqueConstraint

    place = (("batch_id", String(200)), ("position", Integer))
    Table(
        "cases",
        tables,
        *(Column(name, kind, primary_key=True, autoincrement=False) for name, kind in place),
        Column("case_id", String(200), nullable=False),
        Column("spec", Text, nullable=False),
        Column("plan", String(200), nullable=False),
        Column("status", String(20), nullable=False),
        _counter("attempt"),
        _counter("fresh"),
        _counter("reused"),
        Column("draft", Text),
        Column("spent", Text),
        Column("settled", Integer),
        Column("result", Text),
        UniqueConstraint("batch_id", "case_id"),
        Index("cases_by_end", "batch_id", "settled"),
    )
    Table(
        "case_units",
        tables,
        *(Column(name, kind, primary_key=True, autoincrement=False) for name, kind in (*place, ("attempt", Integer), ("unit", Integer))),
        Column("held", Text, nullable=False),
    )
    Table("verdicts", tables, Column("key", String(64), primary_key=True), Column("verdict", Text, nullable=False), _created())


def _counter(name: str) -> "Column[int]":
    from sqlalchemy import Column, Integer

    return Column(name, Integer, nullable=False, server_default="0")


def _created() -> "Column[object]":
    from sqlalchemy import Column, DateTime, func

    return Column("created", DateTime(timezone=True), server_default=func.now(), nullable=False)
