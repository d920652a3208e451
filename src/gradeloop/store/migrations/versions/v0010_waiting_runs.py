"""Runs of monitors that wait to be judged, the tick that judges a run, and what a second judge says of it."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """Add the columns; what was judged until now was judged by the tick that read it."""
    op.add_column("monitor_runs", sa.Column("judged", sa.Integer()))
    op.add_column("monitor_runs", sa.Column("waiting", sa.Text()))
    op.add_column("monitor_runs", sa.Column("shadow_case", sa.String(200)))
    op.add_column("monitor_runs", sa.Column("shadow_verdict", sa.String(20)))
    op.execute("UPDATE monitor_runs SET judged = number WHERE verdict IS NOT NULL AND why <> 'over budget'")
    op.create_index("monitor_runs_by_judged", "monitor_runs", ["monitor", "judged"])


def downgrade() -> None:
    """Drop the columns: what waits is not judged any more, and what second judges said is gone."""
    op.drop_index("monitor_runs_by_judged", "monitor_runs")
    for name in ("shadow_verdict", "shadow_case", "waiting"):
        op.drop_column("monitor_runs", name)
    op.drop_column("monitor_runs", "judged")
