"""What the OTLP receiver keeps: traces, their spans, and the runs that are put together from them."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "received_traces",
        sa.Column("trace_id", sa.String(32), primary_key=True),
        sa.Column("heard", sa.BigInteger(), nullable=False),
        sa.Column("settled", sa.BigInteger()),
        sa.Column("closed", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("spans", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("bytes", sa.Integer(), nullable=False, server_default="0"),
        _created(),
    )
    op.create_index("received_traces_by_silence", "received_traces", ["settled", "heard"])
    op.create_table(
        "received_spans",
        sa.Column("trace_id", sa.String(32), primary_key=True),
        sa.Column("span_id", sa.String(64), primary_key=True),
        sa.Column("ended", sa.BigInteger(), nullable=False),
        sa.Column("span", sa.Text(), nullable=False),
        _created(),
    )
    op.create_table(
        "received_runs",
        sa.Column("number", sa.Integer(), primary_key=True),
        sa.Column("trace_id", sa.String(32), nullable=False, unique=True),
        sa.Column("run", sa.Text()),
        sa.Column("problem", sa.Text()),
        _created(),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    """Drop the tables: spans whose runs no monitor has read are gone."""
    for name in ("received_runs", "received_spans", "received_traces"):
        op.drop_table(name)


def _created() -> sa.Column[object]:
    return sa.Column("created", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False)
