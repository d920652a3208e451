"""The tables of batches and judges: their shape, what is pruned of them, and what is forgotten with a subject."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from gradeloop.admin.forgetting import ForgottenSubject, OwnedData
from gradeloop.contract.thread import BATCH_WORKFLOW
from gradeloop.grading.cache_key import tenant_digits
from gradeloop.store.tables import StoreTables, counter, created, prune_by_age, stored_moment, table

if TYPE_CHECKING:  # a worker without a store, and most commands, do not load SQLAlchemy
    from sqlalchemy import ColumnElement, Connection, MetaData

CHUNK = 500
"""Ids in one statement: SQLite takes 32,766 at most."""

PARTS = ("case_units", "cases", "charges")
"""The tables of what a batch is made of."""

ENDED = ("finished", "stopped")
"""The statuses of batches that nothing continues by itself."""

USAGE_COUNTS = ("input", "cached", "cache_written", "output", "reasoning", "calls", "attempts")
"""The columns of a batch that count its usage in whole numbers."""


def define(tables: "MetaData") -> None:
    """Add the tables."""
    _judging_tables(tables)
    _batches_table(tables)
    _case_tables(tables)


def _judging_tables(tables: "MetaData") -> None:
    from sqlalchemy import Column, ForeignKeyConstraint, Integer, String, Table, Text

    Table(
        "rubrics",
        tables,
        Column("collection", String(200), primary_key=True),
        Column("rubric_id", String(200), primary_key=True),
        Column("latest", Integer, nullable=False),
        created(),
    )
    Table(
        "rubric_versions",
        tables,
        Column("collection", String(200), primary_key=True),
        Column("rubric_id", String(200), primary_key=True),
        Column("version", Integer, primary_key=True),
        Column("sha256", String(64), nullable=False),
        Column("judge", Text, nullable=False),
        created(),
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
        created(),
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
        *map(counter, ("total", "settled", "passed", "failed", "errors", "ungraded", "unsure", "reused")),
        *map(counter, ("throttled", "unpriced", "unreported")),
        *map(counter, USAGE_COUNTS),
        Column("seconds", Float, nullable=False, server_default="0"),
        Column("cost_usd", Float, nullable=False, server_default="0"),
        Column("throttled_by", String(200)),
        created(),
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
        counter("attempt"),
        counter("fresh"),
        counter("reused"),
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
    Table(
        "charges",
        tables,
        Column("call", String(200), primary_key=True),
        Column("attempt", Integer, primary_key=True, autoincrement=False),
        Column("batch_id", String(200), nullable=False, index=True),
        Column("counted", Integer, nullable=False),
    )
    Table(
        "verdicts",
        tables,
        Column("key", String(64), primary_key=True),
        Column("verdict", Text, nullable=False),
        Column("batch_id", String(200)),
        created(),
    )


def _prune_batches(connection: "Connection", before: datetime) -> dict[str, int]:
    from sqlalchemy import select

    batches = table("batches")
    old = batches.c.created < stored_moment(connection, before)
    ended = select(batches.c.id).where(old, batches.c.status.in_(ENDED))
    rows = {name: connection.execute(table(name).delete().where(table(name).c.batch_id.in_(ended))).rowcount for name in PARTS}
    return rows | {"batches": connection.execute(batches.delete().where(old, batches.c.status.in_(ENDED))).rowcount}


TABLES = StoreTables(
    define,
    {"batches": _prune_batches, "verdicts": prune_by_age("verdicts"), "judgements": prune_by_age("judgements")},
    dict.fromkeys(PARTS, ("batches", "batch_id")),
)


def batches_of(connection: "Connection", subject: ForgottenSubject) -> list[str]:
    """Return the ids of a subject's batches; of a time those that have ended."""
    from sqlalchemy import select

    rows = table("batches")
    if subject.batch is not None:
        return [subject.batch]
    if subject.before is not None:
        old = rows.c.created < stored_moment(connection, subject.before)
        return list(connection.execute(select(rows.c.id).where(old, rows.c.status.in_(ENDED))).scalars())
    if subject.tenant is None:
        return []
    tenant = rows.c.request.contains('"tenant":', autoescape=True)
    found = connection.execute(select(rows.c.id, rows.c.request).where(tenant)).all()
    return [name for name, request in found if (json.loads(request).get("priority") or {}).get("tenant") == subject.tenant]


def remove(connection: "Connection", subject: ForgottenSubject, batches: Sequence[str]) -> Mapping[str, int]:
    """Delete a subject's rows, and return how many by table."""
    rows = Counter[str]()
    parts = (_of_batches(batches[at : at + CHUNK]) for at in range(0, len(batches), CHUNK))
    for name, which in chain(*parts, _of_subject(connection, subject)):
        rows[name] += connection.execute(table(name).delete().where(which)).rowcount
    return rows


def _of_batches(batches: Sequence[str]) -> Iterable[tuple[str, "ColumnElement[bool]"]]:
    from sqlalchemy import select

    cases = table("cases")
    named = select(cases.c.case_id).where(cases.c.batch_id.in_(batches))
    yield "judgements", table("judgements").c.id.in_(named)
    for name in ("verdicts", "case_units", "cases", "charges"):
        yield name, table(name).c.batch_id.in_(batches)
    yield "batches", table("batches").c.id.in_(batches)


def _of_subject(connection: "Connection", subject: ForgottenSubject) -> Iterable[tuple[str, "ColumnElement[bool]"]]:
    if subject.thread is not None:
        yield "judgements", table("judgements").c.id == subject.thread
    if subject.tenant is not None:
        yield "judgements", table("judgements").c.id.startswith(f"judging-{tenant_digits(subject.tenant)}")
        yield "verdicts", table("verdicts").c.key.startswith(tenant_digits(subject.tenant))
    if subject.before is not None:
        for name in ("judgements", "verdicts"):
            yield name, table(name).c.created < stored_moment(connection, subject.before)


OWNED = OwnedData(remove, roots=batches_of, root_type=BATCH_WORKFLOW, below=("", "store/", "shard/", "notices/"))
