"""Many threads while workers and the server are killed: a small storm; `python -m benchmarks.storm` is the whole one."""

from pathlib import Path

from benchmarks.storm import Plan, storm

SMALL = Plan(threads=20, seconds=15.0, calm=(3.0, 5.0), delay=0.3)

EXTRA = 0.35
"""The part of calls that may be made again here, where there is a kill every four seconds; the whole storm's target is 15 %."""


async def test_nothing_is_lost_or_doubled_in_a_storm(tmp_path: Path) -> None:
    async with storm(SMALL, tmp_path) as prepared:
        report = await prepared.run()
    print(report)

    assert report.faults == []
    assert report.kills.total() >= 2
    assert report.extra_share < EXTRA
