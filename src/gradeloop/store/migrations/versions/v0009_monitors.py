"""Monitors: their definitions and cursors, their ticks, the runs that they have read, and their alerts."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "monitors",
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("definition", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("cursor", sa.Text()),
        _created(),
    )
    op.create_table(
        "monitor_ticks",
        sa.Column("monitor", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("tick", sa.String(200), nullable=False),
        sa.Column("batch_id", sa.String(200)),
        sa.Column("request", sa.Text()),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("settled", sa.Integer(), nullable=False, server_default="0"),
        _created(),
    )
    op.create_index("monitor_ticks_by_tick", "monitor_ticks", ["monitor", "tick"], unique=True)
    op.create_table(
        "monitor_runs",
        sa.Column("monitor", sa.String(64), primary_key=True),
        sa.Column("run_sha256", sa.String(64), primary_key=True),
        sa.Column("run_id", sa.String(200), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("why", sa.String(20), nullable=False),
        sa.Column("stratum", sa.String(200)),
        sa.Column("case_id", sa.String(200)),
        sa.Column("verdict", sa.String(20)),
        _created(),
    )
    op.create_index("monitor_runs_by_tick", "monitor_runs", ["monitor", "number"])
    op.create_table(
        "monitor_alerts",
        sa.Column("monitor", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("kind", sa.String(100), primary_key=True),
        sa.Column("alert", sa.Text(), nullable=False),
        sa.Column("cleared", sa.Integer()),
        _created(),
    )


def downgrade() -> None:
    """Drop the tables; the batches that monitors have judged stay."""
    for name in ("monitor_alerts", "monitor_runs", "monitor_ticks", "monitors"):
        op.drop_table(name)


def _created() -> sa.Column[object]:
    return sa.Column("created", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False)
