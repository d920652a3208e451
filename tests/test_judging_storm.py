"""Many runs judged while their worker is killed: a small storm; `python -m benchmarks.judging_storm` is the whole one."""

from pathlib import Path

from benchmarks.judging_storm import Plan, storm

SMALL = Plan(runs=30, rollouts=3, kills=1, at_once=20, delay=0.2, longest=100.0)


async def test_every_paid_answer_is_kept_and_none_is_paid_twice_but_those_in_flight(tmp_path: Path) -> None:
    report = await storm(SMALL, tmp_path)
    print(report)

    assert report.faults == []
    assert report.kills == 1
    assert report.calls == 30 * 3 + report.again
