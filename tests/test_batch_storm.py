"""A batch while its worker and its server are killed: a small storm; `python -m benchmarks.batch_storm` is the whole one."""

from pathlib import Path

import pytest

from benchmarks.batch_storm import Plan, storm

SMALL = Plan(cases=80, at_once=20, delay=0.8, seconds=5.0, pause=(0.8, 1.6), seed=2, longest=100.0)


async def test_every_case_gets_its_verdict_and_none_is_paid_twice_but_those_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADELOOP_STORE", "")  # which the storm sets for its workers
    report = await storm(SMALL, tmp_path)
    print(report)

    assert report.faults == []
    assert report.workers_killed > 0
    assert report.servers_killed > 0
    assert report.codes == [130, 1]
    assert report.calls == SMALL.cases + report.again
