"""The number of calls of a batch whose tokens their server did not report."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the counter; the calls until now count as reported."""
    op.add_column("batches", sa.Column("unreported", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop the counter: tokens that are not known count as 0 again."""
    op.drop_column("batches", "unreported")
