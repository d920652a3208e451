"""Runs over OTLP while receiver, worker and server are killed: 2,000, and as many as a release is tried with."""

from pathlib import Path

import pytest

from lab.otlp_storm import Plan, storm

SMALL = Plan(runs=2000, rate=200, share=0.05, kills=2, server_kills=1, settle=1, longest=550)
LARGE = Plan(runs=20_000, rate=250, longest=1000)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(SMALL, marks=[pytest.mark.slow, pytest.mark.timeout(600)], id="small"),
        pytest.param(LARGE, marks=pytest.mark.storm, id="large"),
    ],
)
async def test_what_is_acknowledged_is_there_once_and_is_paid_for_once(tmp_path: Path, plan: Plan) -> None:
    report = await storm(plan, tmp_path)
    print(report)

    assert report.faults == []
    assert (report.acknowledged, report.stored, report.kills, report.server_kills) == (plan.runs, plan.runs, plan.kills, plan.server_kills)
    assert report.calls == report.judged + report.in_flight
    assert max(report.receiver_mib) < 1.5 * min(report.receiver_mib) + 64
