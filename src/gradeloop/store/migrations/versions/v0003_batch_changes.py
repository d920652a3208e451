"""Changes of a batch's counters that are only appended, which PostgreSQL adds to the batch whenever its row is written."""

# ruff: noqa: S608 - made only of names of columns

from alembic import op
from sqlalchemy import Column, DateTime, Float, Integer, String, func

revision, down_revision, oldest = "0003", "0002", 1

COUNTS = (
    *("input", "cached", "cache_written", "output", "reasoning", "calls", "attempts", "unpriced", "unreported"),
    *("passed", "failed", "errors", "ungraded", "unsure", "reused", "settled"),
)
FRACTIONS = ("seconds", "cost_usd")

# A trigger, since programs of the version before write the row, too: they add to its counters, and close the batch by them. It runs once
# the row is locked, so that one transaction at a time takes rows away, and numbers follow each other in the order of the commits. What is
# written by a version that knows no `batch_changes` has the next number after those of the cases that are added with it.
FOLD = f"""
CREATE FUNCTION fold_batch_changes() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    added record;
BEGIN
    WITH gone AS (DELETE FROM batch_changes WHERE batch_id = NEW.id RETURNING *),
    numbered AS (
        UPDATE cases SET settled = OLD.settled + ended.number
        FROM (SELECT position, row_number() OVER (ORDER BY created, position) AS number FROM gone WHERE settled = 1) AS ended
        WHERE cases.batch_id = NEW.id AND cases.position = ended.position AND cases.status <> 'queued'
    )
    SELECT {", ".join(f"coalesce(sum({name}), 0) AS {name}" for name in (*COUNTS, *FRACTIONS))} INTO added FROM gone;
    {" ".join(f"NEW.{name} := NEW.{name} + added.{name};" for name in (*COUNTS, *FRACTIONS))}
    RETURN NEW;
END $$;
CREATE TRIGGER fold_batch_changes BEFORE UPDATE ON batches FOR EACH ROW EXECUTE FUNCTION fold_batch_changes();
"""


def upgrade() -> None:
    """Make the table, and have PostgreSQL fold it; SQLite has one writer at a time, which counts at once."""
    op.create_table(
        "batch_changes",
        Column("batch_id", String(200), nullable=False, index=True),
        Column("position", Integer),
        *(Column(name, Integer, nullable=False, server_default="0") for name in COUNTS),
        *(Column(name, Float, nullable=False, server_default="0") for name in FRACTIONS),
        Column("created", DateTime(timezone=True), server_default=func.now(), nullable=False),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(FOLD)


def downgrade() -> None:
    """Add what is appended to the batches, and drop the table."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("UPDATE batches SET settled = settled")
        op.execute("DROP TRIGGER fold_batch_changes ON batches; DROP FUNCTION fold_batch_changes")
    op.drop_table("batch_changes")
