"""Labelled runs by which monitors watch their judge, and what people say of judged runs."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "monitor_anchors",
        sa.Column("monitor", sa.String(64), primary_key=True),
        sa.Column("run_sha256", sa.String(64), primary_key=True),
        sa.Column("run_id", sa.String(200), nullable=False),
        sa.Column("label", sa.String(20), nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("first", sa.String(20)),
        sa.Column("verdict", sa.String(20)),
        sa.Column("judged", sa.Integer()),
        sa.Column("tick", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    )
    op.create_table(
        "monitor_labels",
        sa.Column("monitor", sa.String(64), primary_key=True),
        sa.Column("run_sha256", sa.String(64), primary_key=True),
        sa.Column("created_by", sa.String(200), primary_key=True),
        sa.Column("passed", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    )


def downgrade() -> None:
    """Drop the tables: monitors go on without anchors, and the labels are gone."""
    op.drop_table("monitor_labels")
    op.drop_table("monitor_anchors")
