"""The workers that share a store, and which of them makes a call that is reserved."""

from alembic import op
from sqlalchemy import Column, DateTime, Integer, String, func

revision, down_revision, oldest = "0002", "0001", 1


def upgrade() -> None:
    """Make the workers' table, and name the worker in each reservation."""
    op.create_table(
        "workers",
        Column("id", String(64), primary_key=True),
        Column("queue", String(200), nullable=False, index=True),
        Column("slots", Integer, nullable=False),
        Column("seen", DateTime(timezone=True), server_default=func.now(), nullable=False),
        Column("left", Integer, nullable=False, server_default="0"),
    )
    op.add_column("charges", Column("worker", String(64)))
    op.add_column("charges", Column("lost", Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    """Forget the workers."""
    op.drop_column("charges", "lost")
    op.drop_column("charges", "worker")
    op.drop_table("workers")
