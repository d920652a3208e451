"""Calls of a batch that are reserved before they are paid, and each is counted once."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table of charges."""
    op.create_table(
        "charges",
        sa.Column("call", sa.String(200), primary_key=True),
        sa.Column("attempt", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("batch_id", sa.String(200), nullable=False, index=True),
        sa.Column("counted", sa.Integer(), nullable=False),
    )


def downgrade() -> None:
    """Drop the table of charges: what a call in flight costs is then counted as before there was one."""
    op.drop_table("charges")
