"""The ratings and comments of people about cases of batches, and the models that draft a batch."""

from alembic import op
from sqlalchemy import Column, DateTime, Integer, String, Text, func

revision, down_revision, oldest = "0004", "0003", 1


def upgrade() -> None:
    """Make the table, and the column."""
    op.add_column("batches", Column("models", Text))
    op.create_table(
        "case_ratings",
        *(Column(name, String(200), primary_key=True) for name in ("batch_id", "case_id", "created_by")),
        Column("attempt", Integer, nullable=False),
        Column("passed", Integer),
        Column("comment", Text, nullable=False),
        Column("created", DateTime(timezone=True), server_default=func.now(), nullable=False),
    )


def downgrade() -> None:
    """Drop the table, and the column."""
    op.drop_table("case_ratings")
    op.drop_column("batches", "models")
