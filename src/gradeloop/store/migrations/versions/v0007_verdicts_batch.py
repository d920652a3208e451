"""The batch that a cached verdict comes from, with which it is forgotten."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the column; of the verdicts until now it is not known."""
    op.add_column("verdicts", sa.Column("batch_id", sa.String(200)))


def downgrade() -> None:
    """Drop the column: a cached verdict is then forgotten by its age alone."""
    op.drop_column("verdicts", "batch_id")
