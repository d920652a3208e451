"""All tables of the store, as statements name them; migrations make them."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a worker without a store, and most commands, do not load SQLAlchemy
    from sqlalchemy import Column, MetaData, Table


USAGE_COUNTS = ("input", "cached", "cache_written", "output", "reasoning", "calls", "attempts")
"""The columns of a batch that count its usage in whole numbers."""


@cache
def metadata() -> "MetaData":
    """Return all tables."""
    from sqlalchemy import MetaData

    tables = MetaData()
    _judging_tables(tables)
    _batches_table(tables)
    _case_tables(tables)
    _call_tables(tables)
    _monitor_tables(tables)
    _label_tables(tables)
    _received_tables(tables)
    return tables


def table(name: str) -> "Table":
    """Return a table by its name."""
    return metadata().tables[name]


def _judging_tables(tables: "MetaData") -> None:
    from sqlalchemy import Column, ForeignKeyConstraint, Integer, String, Table, Text

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
        *map(_counter, ("total", "settled", "passed", "failed", "errors", "ungraded", "unsure", "reused")),
        *map(_counter, ("throttled", "unpriced", "unreported")),
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
    Table(
        "charges",
        tables,
        Column("call", String(200), primary_key=True),
        Column("attempt", Integer, primary_key=True, autoincrement=False),
        Column("batch_id", String(200), nullable=False, index=True),
        Column("counted", Integer, nullable=False),
    )


def _call_tables(tables: "MetaData") -> None:
    from sqlalchemy import BigInteger, Column, Float, String, Table, Text

    Table(
        "call_paces",
        tables,
        Column("model", String(700), primary_key=True),
        Column("turns", BigInteger, nullable=False, server_default="0"),
        Column("pace", Text, nullable=False),
    )
    Table(
        "verdicts",
        tables,
        Column("key", String(64), primary_key=True),
        Column("verdict", Text, nullable=False),
        Column("batch_id", String(200)),
        _created(),
    )
    Table(
        "tenant_days",
        tables,
        Column("tenant", String(64), primary_key=True),
        Column("day", String(10), primary_key=True),
        Column("tokens", BigInteger, nullable=False, server_default="0"),
        Column("cost_usd", Float, nullable=False, server_default="0"),
        *map(_counter, ("calls", "unreported")),
        _created(),
    )


def _monitor_tables(tables: "MetaData") -> None:
    from sqlalchemy import Column, Index, Integer, String, Table, Text

    Table(
        "monitors",
        tables,
        Column("name", String(64), primary_key=True),
        Column("definition", Text, nullable=False),
        Column("state", Text, nullable=False),
        Column("cursor", Text),
        _created(),
    )
    Table(
        "monitor_ticks",
        tables,
        Column("monitor", String(64), primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("tick", String(200), nullable=False),
        Column("batch_id", String(200)),
        Column("request", Text),
        Column("report", Text, nullable=False),
        _counter("settled"),
        _created(),
        Index("monitor_ticks_by_tick", "monitor", "tick", unique=True),
    )
    Table(
        "monitor_runs",
        tables,
        Column("monitor", String(64), primary_key=True),
        Column("run_sha256", String(64), primary_key=True),
        Column("run_id", String(200), nullable=False),
        Column("number", Integer, nullable=False),
        Column("why", String(20), nullable=False),
        Column("stratum", String(200)),
        Column("case_id", String(200)),
        Column("verdict", String(20)),
        Column("judged", Integer),
        Column("waiting", Text),
        Column("shadow_case", String(200)),
        Column("shadow_verdict", String(20)),
        _created(),
        Index("monitor_runs_by_tick", "monitor", "number"),
        Index("monitor_runs_by_judged", "monitor", "judged"),
    )
    Table(
        "monitor_alerts",
        tables,
        Column("monitor", String(64), primary_key=True),
        Column("number", Integer, primary_key=True, autoincrement=False),
        Column("kind", String(100), primary_key=True),
        Column("alert", Text, nullable=False),
        Column("cleared", Integer),
        _created(),
    )


def _label_tables(tables: "MetaData") -> None:
    from sqlalchemy import Column, Integer, String, Table, Text

    Table(
        "monitor_anchors",
        tables,
        Column("monitor", String(64), primary_key=True),
        Column("run_sha256", String(64), primary_key=True),
        Column("run_id", String(200), nullable=False),
        Column("label", String(20), nullable=False),
        Column("spec", Text, nullable=False),
        Column("first", String(20)),
        Column("verdict", String(20)),
        Column("judged", Integer),
        _counter("tick"),
        _created(),
    )
    Table(
        "monitor_labels",
        tables,
        Column("monitor", String(64), primary_key=True),
        Column("run_sha256", String(64), primary_key=True),
        Column("created_by", String(200), primary_key=True),
        Column("passed", Integer, nullable=False),
        Column("reason", Text, nullable=False),
        _created(),
    )


def _received_tables(tables: "MetaData") -> None:
    from sqlalchemy import BigInteger, Column, Index, Integer, String, Table, Text

    Table(
        "received_traces",
        tables,
        Column("trace_id", String(32), primary_key=True),
        Column("heard", BigInteger, nullable=False),
        Column("settled", BigInteger),
        _counter("closed"),
        _counter("spans"),
        _counter("bytes"),
        _created(),
        Index("received_traces_by_silence", "settled", "heard"),
    )
    Table(
        "received_spans",
        tables,
        Column("trace_id", String(32), primary_key=True),
        Column("span_id", String(64), primary_key=True),
        Column("ended", BigInteger, nullable=False),
        Column("span", Text, nullable=False),
        _created(),
    )
    Table(
        "received_runs",
        tables,
        Column("number", Integer, primary_key=True),
        Column("trace_id", String(32), nullable=False, unique=True),
        Column("run", Text),
        Column("problem", Text),
        _created(),
        sqlite_autoincrement=True,
    )


def _counter(name: str) -> "Column[int]":
    from sqlalchemy import Column, Integer

    return Column(name, Integer, nullable=False, server_default="0")


def _created() -> "Column[object]":
    from sqlalchemy import Column, DateTime, func

    return Column("created", DateTime(timezone=True), server_default=func.now(), nullable=False)
