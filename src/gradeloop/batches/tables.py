"""The tables of batches and judges: their shape, what is pruned of them, and what is forgotten with a subject."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING

from gradeloop.admin.forgetting import ForgottenSubject, OwnedData
from gradeloop.batches.contract import UPLOAD_WORKFLOW
from gradeloop.contract.thread import BATCH_WORKFLOW, tenant_named
from gradeloop.grading.cache_key import tenant_digits
from gradeloop.store.tables import StoreTables, counter, created, prune_by_age, stored_moment, table
from gradeloop.temporal.histories import WorkflowRun

if TYPE_CHECKING:  # a worker without a store, and most commands, do not load SQLAlchemy
    from sqlalchemy import ColumnElement, Connection, MetaData

CHUNK = 500
"""Ids in one statement: SQLite takes 32,766 at most."""

PARTS = ("case_units", "cases", "case_ratings", "charges", "batch_changes")
"""The tables of what a batch is made of."""

ENDED = ("finished", "stopped")
"""The statuses of batches that nothing continues by itself."""

USAGE_COUNTS = ("input", "cached", "cache_written", "output", "reasoning", "calls", "attempts")
"""The columns of a batch that count its usage in whole numbers."""

SPENDING = (*USAGE_COUNTS, "unpriced", "unreported", "seconds", "cost_usd")
"""The counters of a batch that a call adds to."""

ENDS = ("passed", "failed", "errors", "ungraded", "unsure", "reused", "settled")
"""The counters of a batch that the end of a case adds to."""

COUNTERS = (*SPENDING, *ENDS)

FRACTIONS = frozenset({"seconds", "cost_usd"})
"""The counters that are not whole numbers."""


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
    from sqlalchemy import Column, Float, Integer, String, Table, Text

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
        Column("models", Text),
        created(),
    )
    # On PostgreSQL, whoever spends or ends something adds a row here, so that no two calls wait for one row of `batches`. A trigger adds
    # the rows to the batch's counters at the next change of that row, whoever makes it, and numbers the cases that have ended.
    # Invariant: a batch's counters and the sum of its rows here are exact together, at each moment.
    Table(
        "batch_changes",
        tables,
        Column("batch_id", String(200), nullable=False, index=True),
        Column("position", Integer),
        *(Column(name, Float, nullable=False, server_default="0") if name in FRACTIONS else counter(name) for name in COUNTERS),
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
        "case_ratings",
        tables,
        *(Column(name, String(200), primary_key=True) for name in ("batch_id", "case_id", "created_by")),
        Column("attempt", Integer, nullable=False),
        Column("passed", Integer),
        Column("comment", Text, nullable=False),
        created(),
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
        Column("worker", String(64)),
        counter("lost"),
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


def batches_of(connection: "Connection | None", subject: ForgottenSubject, runs: Iterable[WorkflowRun]) -> list[str]:
    """Return the ids of a subject's batches, of a time those that have ended; of a tenant those, too, that were only uploaded."""
    from sqlalchemy import select

    if subject.batch is not None:
        return [subject.batch]
    begun = {run.workflow_id.removeprefix("store/").partition("/")[0] for run in runs if run.type in {BATCH_WORKFLOW, UPLOAD_WORKFLOW}}
    if subject.thread is not None or connection is None:
        return sorted(begun) if subject.tenant is not None else []
    rows = table("batches")
    if subject.before is not None:
        old = rows.c.created < stored_moment(connection, subject.before)
        return list(connection.execute(select(rows.c.id).where(old, rows.c.status.in_(ENDED))).scalars())
    stored = {name: tenant_named(json.loads(request)) for name, request in connection.execute(select(rows.c.id, rows.c.request)).all()}
    return sorted({name for name, tenant in stored.items() if tenant == subject.tenant} | (begun - stored.keys()))


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
    for name in ("verdicts", *PARTS):
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


OWNED = OwnedData(remove, roots=batches_of, below=("", "store/", "shard/", "notices/"))
