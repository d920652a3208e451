"""A batch while its worker and its server are killed, small and as large as in `python -m benchmarks.batch_storm`."""

from pathlib import Path

import pytest

from benchmarks.batch_storm import Plan, storm

SMALL = Plan(cases=80, at_once=20, delay=0.8, seconds=5.0, pause=(0.8, 1.6), seed=2, longest=100.0)

WHOLE = Plan()


@pytest.mark.storm
@pytest.mark.parametrize("plan", [SMALL, WHOLE], ids=["small", "whole"])
async def test_every_case_gets_its_verdict_and_none_is_paid_twice_but_those_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan
) -> None:
    monkeypatch.setenv("GRADELOOP_STORE", "")  # which the storm sets for its workers
    report = await storm(plan, tmp_path)
    print(report)

    assert report.faults == []
    assert report.workers_killed > 0
    assert report.servers_killed > 0
    assert report.codes == [130, 1]
    assert report.calls == plan.cases + report.again
