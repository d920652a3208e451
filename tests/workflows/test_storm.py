"""Many threads with everything at once, for a quarter of a minute and for as long as `python -m benchmarks.storm`."""

from pathlib import Path

import pytest

from benchmarks.storm.plan import KILLS, Plan
from benchmarks.storm.storm import storm

SMALL = Plan(threads=20, seconds=15.0, calm=(1.0, 2.0), delay=0.4, grace=0.3, away=1.5)
WHOLE = Plan()


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(SMALL, id="small", marks=pytest.mark.slow),
        pytest.param(WHOLE, id="whole", marks=[pytest.mark.storm, pytest.mark.timeout(900)]),
    ],
)
async def test_every_result_of_a_storm_is_what_it_has_to_be(tmp_path: Path, plan: Plan) -> None:
    async with storm(plan, tmp_path) as prepared:
        report = await prepared.run()
    print(report)

    assert report.faults == []
    assert {kill.kind for kill in report.kills} == set(KILLS)
    assert report.histories >= plan.threads
