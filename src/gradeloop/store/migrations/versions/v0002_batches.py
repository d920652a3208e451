"""Batches, their cases, what their graders said, and the cache of verdicts."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

COUNTERS = (
    *("total", "settled", "passed", "failed", "errors", "reused", "throttled", "unpriced"),
    *("input", "cached", "cache_written", "output", "reasoning", "calls", "attempts"),
)


def upgrade() -> None:
    """Make the tables of batches."""
    op.create_table(
        "batches",
        sa.Column("id", sa.String(200), primary_key=True),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text()),
        *(sa.Column(name, sa.Integer(), nullable=False, server_default="0") for name in COUNTERS),
        *(sa.Column(name, sa.Float(), nullable=False, server_default="0") for name in ("seconds", "cost_usd")),
        sa.Column("throttled_by", sa.String(200)),
        sa.Column("created", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
    )
    op.create_table(
        "cases",
        sa.Column("batch_id", sa.String(200), primary_key=True, autoincrement=False),
        sa.Column("position", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("case_id", sa.String(200), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("plan", sa.String(200), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        *(sa.Column(name, sa.Integer(), nullable=False, server_default="0") for name in ("attempt", "fresh", "reused")),
        sa.Column("draft", sa.Text()),
        sa.Column("spent", sa.Text()),
        sa.Column("settled", sa.Integer()),
        sa.Column("result", sa.Text()),
        sa.UniqueConstraint("batch_id", "case_id"),
    )
    op.create_index("cases_by_end", "cases", ["batch_id", "settled"])
    op.create_table(
        "case_units",
        sa.Column("batch_id", sa.String(200), primary_key=True, autoincrement=False),
        *(sa.Column(name, sa.Integer(), primary_key=True, autoincrement=False) for name in ("position", "attempt", "unit")),
        sa.Column("held", sa.Text(), nullable=False),
    )
    op.create_table(
        "verdicts",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
    )


def downgrade() -> None:
    """Drop the tables of batches, with all that is in them."""
    for name in ("verdicts", "case_units", "cases", "batches"):
        op.drop_table(name)
