"""The number of cases of a batch that their judge does not decide."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the counter; the cases until now are decided, errors or ungraded."""
    op.add_column("batches", sa.Column("unsure", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop the counter: batches with unsure cases count them as not run."""
    op.drop_column("batches", "unsure")
