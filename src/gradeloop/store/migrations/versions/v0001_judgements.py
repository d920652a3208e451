"""Registered rubrics and their versions, judgements, and the version of the tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Make the tables of judgements and rubrics."""
    op.create_table("schema_version", sa.Column("version", sa.Integer(), primary_key=True))
    op.create_table(
        "rubrics",
        sa.Column("collection", sa.String(200), primary_key=True),
        sa.Column("rubric_id", sa.String(200), primary_key=True),
        sa.Column("latest", sa.Integer(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
    )
    op.create_table(
        "rubric_versions",
        sa.Column("collection", sa.String(200), primary_key=True),
        sa.Column("rubric_id", sa.String(200), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("judge", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.ForeignKeyConstraint(["collection", "rubric_id"], ["rubrics.collection", "rubrics.rubric_id"]),
    )
    op.create_table(
        "judgements",
        sa.Column("id", sa.String(100), primary_key=True),
        sa.Column("judge_sha256", sa.String(64), nullable=False, index=True),
        sa.Column("agent_run_id", sa.String(200), nullable=False, index=True),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("result_type", sa.String(20), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
    )


def downgrade() -> None:
    """Drop the tables of judgements and rubrics, with all that is in them."""
    for name in ("judgements", "rubric_versions", "rubrics", "schema_version"):
        op.drop_table(name)
