"""The tables of the store, and how they come to be there; SQLAlchemy is imported with them, by whoever opens a store."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Engine, MetaData, Table

SCHEMA_VERSION = 2
"""Of the tables; a store that says a higher one is refused, one that says a lower one gets what it lacks."""


@cache
def metadata() -> "MetaData":
    """Return the tables: `rubrics` and their `rubric_versions`, `judgements`; those of batches; and `schema_version`."""
    from sqlalchemy import MetaData

    from gradeloop.batches.tables import batch_tables

    tables = MetaData()
    _judging_tables(tables)
    batch_tables(tables)
    return tables


def _judging_tables(tables: "MetaData") -> None:
    from sqlalchemy import Column, DateTime, ForeignKeyConstraint, Integer, String, Table, Text, func

    Table("schema_version", tables, Column("version", Integer, primary_key=True))
    Table(
        "rubrics",
        tables,
        Column("collection", String(200), primary_key=True),
        Column("rubric_id", String(200), primary_key=True),
        Column("latest", Integer, nullable=False),
        Column("created", DateTime(timezone=True), server_default=func.now(), nullable=False),
    )
    Table(
        "rubric_versions",
        tables,
        Column("collection", String(200), primary_key=True),
        Column("rubric_id", String(200), primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("sha256", String(64), nullable=False),
        Column("judge", Text, nullable=False),
        Column("created", DateTime(timezone=True), server_default=func.now(), nullable=False),
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
        Column("created", DateTime(timezone=True), server_default=func.now(), nullable=False),
    )


def table(name: str) -> "Table":
    """Return a table by its name."""
    return metadata().tables[name]


def prepare(engine: "Engine") -> int:
    """Make the tables that are not there, and return the version that the store then says it has."""
    from sqlalchemy import inspect, select
    from sqlalchemy.exc import IntegrityError

    versions = table("schema_version")
    if inspect(engine).has_table("schema_version"):
        with engine.connect() as connection:
            found = connection.execute(select(versions.c.version)).scalar()
        if found is not None and int(found) >= SCHEMA_VERSION:
            return int(found)
        if found is not None:  # of before: all that came since are tables of their own
            _create(engine)
            with engine.begin() as connection:
                connection.execute(versions.update().where(versions.c.version < SCHEMA_VERSION).values(version=SCHEMA_VERSION))
            return prepare(engine)
    _create(engine)
    try:
        with engine.begin() as connection:
            connection.execute(versions.insert().values(version=SCHEMA_VERSION))
    except IntegrityError:  # somebody else was faster
        return prepare(engine)
    return SCHEMA_VERSION


def _create(engine: "Engine") -> None:
    """Create the tables, beside others who do the same at the same time."""
    from sqlalchemy.exc import DBAPIError

    for _ in range(3):
        try:
            metadata().create_all(engine)
        except DBAPIError:
            continue
        return
    metadata().create_all(engine)
