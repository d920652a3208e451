"""All tables of the store, and how they are made."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker without a store, and most commands, do not load SQLAlchemy
    from sqlalchemy import Column, Engine, MetaData, Table


SCHEMA_VERSION = 2
"""The version of the tables; a store of a higher one is refused, one of a lower one gets the tables that it lacks."""

USAGE_COUNTS = ("input", "cached", "cache_written", "output", "reasoning", "calls", "attempts")
"""The columns of a batch that count its usage in whole numbers."""


@cache
def metadata() -> "MetaData":
    """Return the tables: `rubrics` and their `rubric_versions`, `judgements`; those of batches; and `schema_version`."""
    from sqlalchemy import MetaData

    tables = MetaData()
    _judging_tables(tables)
    _batches_table(tables)
    _case_tables(tables)
    return tables


def table(name: str) -> "Table":
    """Return a table by its name."""
    return metadata().tables[name]


def prepare_tables(engine: "Engine") -> int:
    """Make the missing tables, and return the version that the store then has."""
    from sqlalchemy import inspect, select
    from sqlalchemy.exc import IntegrityError

    versions = table("schema_version")
    if inspect(engine).has_table("schema_version"):
        with engine.connect() as connection:
            found = connection.execute(select(versions.c.version)).scalar()
        if found is not None and int(found) >= SCHEMA_VERSION:
            return int(found)
        if found is not None:  # every later version has only added tables
            _create(engine)
            with engine.begin() as connection:
                connection.execute(versions.update().where(versions.c.version < SCHEMA_VERSION).values(version=SCHEMA_VERSION))
            return prepare_tables(engine)
    _create(engine)
    try:
        with engine.begin() as connection:
            connection.execute(versions.insert().values(version=SCHEMA_VERSION))
    except IntegrityError:  # another process was faster
        return prepare_tables(engine)
    return SCHEMA_VERSION


def _create(engine: "Engine") -> None:
    """Create the tables, though other processes may do the same at the same time."""
    from sqlalchemy.exc import DBAPIError

    for _ in metadata().tables:  # whoever loses a race finds one table more at the next try
        try:
            metadata().create_all(engine)
        except DBAPIError:
            continue
        return
    metadata().create_all(engine)


def _judging_tables(tables: "MetaData") -> None:
    from sqlalchemy import Column, ForeignKeyConstraint, Integer, String, Table, Text

    Table("schema_version", tables, Column("version", Integer, primary_key=True))
    Table(
        "rubrics",
        tables,
        Column("collection", String(200), primary_key=True),
        Column("rubric_id", String(200), primary_key=True),
        Column("latest", Integer, nullable=False),
        _created(),
    )
    Table(
        "rubric_versions",
        tables,
        Column("collection", String(200), primary_key=True),
        Column("rubric_id", String(200), primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("sha256", String(64), nullable=False),
        Column("judge", Text, nullable=False),
        _created(),
        ForeignKeyConstraint(["collection", "rubric_id"], ["rubrics.collection", "rubrics.rubric_id"]),
    )
    Table(
        "judgements",
        tables,
        Column("id", String(100), primary_key=True),
        Column("judge_sha256", String(64), nullable=False, index=True),
        Column("agent_run_id", String(200), nullable=False, index=True),
        Column("repeat", Integer, nullable=False),
        Column("result_type", String(20), nullable=False),
        Column("result", Text, nullable=False),
        _created(),
    )


def _batches_table(tables: "MetaData") -> None:
    from sqlalchemy import Column, Float, String, Table, Text

    Table(
        "batches",
        tables,
        Column("id", String(200), primary_key=True),
        Column("request", Text, nullable=False),
        Column("status", String(20), nullable=False),
        Column("reason", Text),
        *map(_counter, ("total", "settled", "passed", "failed", "errors", "reused", "throttled", "unpriced")),
        *map(_counter, USAGE_COUNTS),
        Column("seconds", Float, nullable=False, server_default="0"),
        Column("cost_usd", Float, nullable=False, server_default="0"),
        Column("throttled_by", String(200)),
        _created(),
    )


def _case_tables(tables: "MetaData") -> None:
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
