"""All tables of the store in its first version; it stays as it is, whatever `store/tables.py` becomes."""

from collections.abc import Iterator

from alembic import op
from sqlalchemy import BigInteger, Column, DateTime, Float, ForeignKeyConstraint, Integer, String, Text, UniqueConstraint, func

revision = "0001"
down_revision = None
oldest = 1

Kind = Integer | String | Float[float]

TABLES = (
    *("received_runs", "received_spans", "received_traces", "monitor_labels", "monitor_anchors", "monitor_alerts", "monitor_runs"),
    *("monitor_ticks", "monitors", "tenant_days", "verdicts", "call_paces", "charges", "case_units", "cases", "batches"),
    *("judgements", "rubric_versions", "rubrics"),
)
"""The tables, those that refer to others before these."""


def upgrade() -> None:
    """Make the tables."""
    _make_judgements()
    _make_batches()
    _make_calls()
    _make_monitors()
    _make_labels()
    _make_received()


def downgrade() -> None:
    """Drop the tables, with all that is in them."""
    for name in TABLES:
        op.drop_table(name)


def _make_judgements() -> None:
    op.create_table(
        "rubrics",
        *(_key("collection", String(200)), _key("rubric_id", String(200))),
        _needed("latest", Integer()),
        _created(),
    )
    op.create_table(
        "rubric_versions",
        *(_key("collection", String(200)), _key("rubric_id", String(200)), _key("version", Integer())),
        *(_needed("sha256", String(64)), _needed("judge", Text())),
        _created(),
        ForeignKeyConstraint(["collection", "rubric_id"], ["rubrics.collection", "rubrics.rubric_id"]),
    )
    op.create_table(
        "judgements",
        _key("id", String(100)),
        *(_needed("judge_sha256", String(64), index=True), _needed("agent_run_id", String(200), index=True)),
        *(_needed("repeat", Integer()), _needed("result_type", String(20)), _needed("result", Text())),
        _created(),
    )


def _make_batches() -> None:
    op.create_table(
        "batches",
        _key("id", String(200)),
        *(_needed("request", Text()), _needed("status", String(20)), Column("reason", Text())),
        *_counters("total", "settled", "passed", "failed", "errors", "ungraded", "unsure", "reused", "throttled", "unpriced", "unreported"),
        *_counters("input", "cached", "cache_written", "output", "reasoning", "calls", "attempts"),
        *_counters("seconds", "cost_usd", kind=Float()),
        Column("throttled_by", String(200)),
        _created(),
    )
    op.create_table(
        "cases",
        *(_key("batch_id", String(200)), _key("position", Integer())),
        *(_needed("case_id", String(200)), _needed("spec", Text()), _needed("plan", String(200)), _needed("status", String(20))),
        *_counters("attempt", "fresh", "reused"),
        *(Column("draft", Text()), Column("spent", Text()), Column("settled", Integer()), Column("result", Text())),
        UniqueConstraint("batch_id", "case_id"),
    )
    op.create_index("cases_by_end", "cases", ["batch_id", "settled"])
    op.create_table(
        "case_units",
        *(_key("batch_id", String(200)), _key("position", Integer()), _key("attempt", Integer()), _key("unit", Integer())),
        _needed("held", Text()),
    )


def _make_calls() -> None:
    op.create_table(
        "charges",
        *(_key("call", String(200)), _key("attempt", Integer())),
        *(_needed("batch_id", String(200), index=True), _needed("counted", Integer())),
    )
    op.create_table("call_paces", _key("model", String(700)), *_counters("turns", kind=BigInteger()), _needed("pace", Text()))
    op.create_table("verdicts", _key("key", String(64)), _needed("verdict", Text()), Column("batch_id", String(200)), _created())
    op.create_table(
        "tenant_days",
        *(_key("tenant", String(64)), _key("day", String(10))),
        *(*_counters("tokens", kind=BigInteger()), *_counters("cost_usd", kind=Float()), *_counters("calls", "unreported")),
        _created(),
    )


def _make_monitors() -> None:
    op.create_table(
        "monitors",
        _key("name", String(64)),
        *(_needed("definition", Text()), _needed("state", Text()), Column("cursor", Text())),
        _created(),
    )
    op.create_table(
        "monitor_ticks",
        *(_key("monitor", String(64)), _key("number", Integer())),
        *(_needed("tick", String(200)), Column("batch_id", String(200)), Column("request", Text()), _needed("report", Text())),
        *_counters("settled"),
        _created(),
    )
    op.create_index("monitor_ticks_by_tick", "monitor_ticks", ["monitor", "tick"], unique=True)
    op.create_table(
        "monitor_runs",
        *(_key("monitor", String(64)), _key("run_sha256", String(64))),
        *(_needed("run_id", String(200)), _needed("number", Integer()), _needed("why", String(20)), Column("stratum", String(200))),
        *(Column("case_id", String(200)), Column("verdict", String(20)), Column("judged", Integer()), Column("waiting", Text())),
        *(Column("shadow_case", String(200)), Column("shadow_verdict", String(20))),
        _created(),
    )
    op.create_index("monitor_runs_by_tick", "monitor_runs", ["monitor", "number"])
    op.create_index("monitor_runs_by_judged", "monitor_runs", ["monitor", "judged"])
    op.create_table(
        "monitor_alerts",
        *(_key("monitor", String(64)), _key("number", Integer()), _key("kind", String(100))),
        *(_needed("alert", Text()), Column("cleared", Integer())),
        _created(),
    )


def _make_labels() -> None:
    op.create_table(
        "monitor_anchors",
        *(_key("monitor", String(64)), _key("run_sha256", String(64))),
        *(_needed("run_id", String(200)), _needed("label", String(20)), _needed("spec", Text())),
        *(Column("first", String(20)), Column("verdict", String(20)), Column("judged", Integer())),
        *_counters("tick"),
        _created(),
    )
    op.create_table(
        "monitor_labels",
        *(_key("monitor", String(64)), _key("run_sha256", String(64)), _key("created_by", String(200))),
        *(_needed("passed", Integer()), _needed("reason", Text())),
        _created(),
    )


def _make_received() -> None:
    op.create_table(
        "received_traces",
        _key("trace_id", String(32)),
        *(_needed("heard", BigInteger()), Column("settled", BigInteger())),
        *_counters("closed", "spans", "bytes"),
        _created(),
    )
    op.create_index("received_traces_by_silence", "received_traces", ["settled", "heard"])
    op.create_table(
        "received_spans",
        *(_key("trace_id", String(32)), _key("span_id", String(64))),
        *(_needed("ended", BigInteger()), _needed("span", Text())),
        _created(),
    )
    op.create_table(
        "received_runs",
        Column("number", Integer(), primary_key=True),
        *(_needed("trace_id", String(32), unique=True), Column("run", Text()), Column("problem", Text())),
        _created(),
        sqlite_autoincrement=True,
    )


def _key(name: str, kind: Kind) -> Column[object]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _needed(name: str, kind: Kind, *, index: bool | None = None, unique: bool | None = None) -> Column[object]:
    return Column(name, kind, nullable=False, index=index, unique=unique)


def _counters(*names: str, kind: Kind | None = None) -> Iterator[Column[object]]:
    for name in names:
        yield Column(name, kind or Integer(), nullable=False, server_default="0")


def _created() -> Column[object]:
    return Column("created", DateTime(timezone=True), server_default=func.now(), nullable=False)
