"""Many threads while workers and the server are killed, for a quarter of a minute and for as long as `python -m benchmarks.storm`."""

from pathlib import Path

import pytest

from benchmarks.storm import Plan, storm

SMALL = Plan(threads=20, seconds=15.0, calm=(3.0, 5.0), delay=0.3)
WHOLE = Plan()

EXTRA = {SMALL: 0.35, WHOLE: 0.15}
"""The part of calls that may be made again: more of them where there is a kill every four seconds."""


@pytest.mark.parametrize(
    "plan", [pytest.param(SMALL, id="small", marks=pytest.mark.slow), pytest.param(WHOLE, id="whole", marks=pytest.mark.storm)]
)
async def test_nothing_is_lost_or_doubled_in_a_storm(tmp_path: Path, plan: Plan) -> None:
    async with storm(plan, tmp_path) as prepared:
        report = await prepared.run()
    print(report)

    assert report.faults == []
    assert report.kills.total() >= 2
    assert report.extra_share < EXTRA[plan]
