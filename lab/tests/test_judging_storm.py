"""Many runs judged while their worker is killed, some and as many as in `python -m lab.judging_storm`."""

from pathlib import Path

import pytest

from lab.judging_storm import Plan, storm

SMALL = Plan(runs=30, rollouts=3, kills=1, at_once=20, delay=0.2, longest=100.0)

WHOLE = Plan()

MANY = Plan(runs=1000, rollouts=1, kills=3, at_once=160, delay=0.2, longest=900.0, calm=False)
"""As `python -m lab.judging_storm --runs 10000 --rollouts 1 --kills 3 --at-once 160 --no-calm`, of a tenth of the runs."""


@pytest.mark.storm
@pytest.mark.parametrize("plan", [SMALL, WHOLE, MANY], ids=["small", "whole", "many"])
async def test_every_paid_answer_is_kept_and_none_is_paid_twice_but_those_in_flight(tmp_path: Path, plan: Plan) -> None:
    report = await storm(plan, tmp_path)
    print(report)

    assert report.faults == []
    assert report.kills == plan.kills
    assert report.calls == plan.runs * plan.rollouts + report.again
