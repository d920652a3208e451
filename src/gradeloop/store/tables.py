"""The tables of the store, as statements name them; migrations make them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING

from gradeloop.extensions import parts

if TYPE_CHECKING:  # a worker without a store, and most commands, do not load SQLAlchemy
    from sqlalchemy import Column, Connection, MetaData, Table

Prune = Callable[["Connection", datetime], dict[str, int]]
"""Deletes what was created before a moment, and returns how many rows by table."""


@dataclass(frozen=True)
class StoreTables:
    """The tables of an owner: of the core, or of an extension."""

    define: Callable[["MetaData"], None]
    """Adds them to those of the others."""
    prunes: Mapping[str, Prune] = field(default_factory=dict)
    """Deletions of `gradeloop store prune`, by the name of their `--kind`."""
    parts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Tables whose rows belong to a row of another one, with that table and the column that names the row."""


@cache
def owners() -> tuple[StoreTables, ...]:
    """Return the tables of the core and of every extension."""
    return (*parts(lambda extension: extension.tables), StoreTables(_define, {"tenant_days": prune_by_age("tenant_days")}))


@cache
def metadata() -> "MetaData":
    """Return all tables."""
    from sqlalchemy import MetaData

    tables = MetaData()
    for owner in owners():
        owner.define(tables)
    return tables


def table(name: str) -> "Table":
    """Return a table by its name."""
    return metadata().tables[name]


def prune_by_age(*names: str) -> Prune:
    """Return what deletes the old rows of tables."""

    def work(connection: "Connection", before: datetime) -> dict[str, int]:
        moment = stored_moment(connection, before)
        return {name: connection.execute(table(name).delete().where(table(name).c.created < moment)).rowcount for name in names}

    return work


def _define(tables: "MetaData") -> None:
    from sqlalchemy import BigInteger, Column, DateTime, Float, Integer, String, Table, Text, func

    Table(
        "call_paces",
        tables,
        Column("model", String(700), primary_key=True),
        Column("turns", BigInteger, nullable=False, server_default="0"),
        Column("pace", Text, nullable=False),
    )
    Table(
        "tenant_days",
        tables,
        Column("tenant", String(64), primary_key=True),
        Column("day", String(10), primary_key=True),
        Column("tokens", BigInteger, nullable=False, server_default="0"),
        Column("cost_usd", Float, nullable=False, server_default="0"),
        *map(counter, ("calls", "unreported")),
        created(),
    )
    Table(
        "workers",
        tables,
        Column("id", String(64), primary_key=True),
        Column("queue", String(200), nullable=False, index=True),
        Column("slots", Integer, nullable=False),
        Column("seen", DateTime(timezone=True), server_default=func.now(), nullable=False),
        counter("left"),
    )


def counter(name: str) -> "Column[int]":
    """Return a column of a whole number that begins with 0."""
    from sqlalchemy import Column, Integer

    return Column(name, Integer, nullable=False, server_default="0")


def created() -> "Column[object]":
    """Return the column of the moment at which a row was made."""
    from sqlalchemy import Column, DateTime, func

    return Column("created", DateTime(timezone=True), server_default=func.now(), nullable=False)


def stored_moment(connection: "Connection", moment: datetime) -> datetime:
    """Return a moment as the database keeps it: SQLite has UTC, without saying so."""
    is_naive = connection.dialect.name == "sqlite" and moment.tzinfo is not None
    return moment.astimezone(UTC).replace(tzinfo=None) if is_naive else moment
