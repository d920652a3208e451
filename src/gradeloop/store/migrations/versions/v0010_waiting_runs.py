"""Runs of monitors that wait to be judged, with what they are judged by, and the tick that judges a run."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the columns; what was judged until now was judged by the tick that read it."""
    op.add_column("monitor_runs", sa.Column("judged", sa.Integer()))
    op.add_column("monitor_runs", sa.Column("waiting", sa.Text()))
    op.execute("UPDATE monitor_runs SET judged = number WHERE verdict IS NOT NULL AND why <> 'over budget'")
    op.create_index("monitor_runs_by_judged", "monitor_runs", ["monitor", "judged"])


def downgrade() -> None:
    """Drop the columns: what waits is not judged any more."""
    op.drop_index("monitor_runs_by_judged", "monitor_runs")
    op.drop_column("monitor_runs", "waiting")
    op.drop_column("monitor_runs", "judged")
