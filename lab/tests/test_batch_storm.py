"""A batch while its worker and its server are killed, small and as large as in `python -m lab.batch_storm`."""

from pathlib import Path

import pytest

from lab.batch_storm import WRITTEN_SECONDS, Plan, storm
from lab.judging_storm import Kill, Paid

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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "lost"),
    [
        (Paid("in flight", 8.0, 10.1), True),
        (Paid("never answered", 8.0), True),
        (Paid("sent before the kill, and read after it", 10.1, 10.2), True),
        (Paid("just answered", 8.0, 9.9), True),
        (Paid("answered long before", 8.0, 9.0), False),
        (Paid("hung up on long before", 3.0, 4.0), False),
        (Paid("made by the next worker", 12.1, 12.2), False),
    ],
    ids=lambda value: value.name if isinstance(value, Paid) else "",
)
def test_a_kill_explains_a_second_payment_for_what_it_may_have_lost_alone(call: Paid, lost: bool) -> None:
    assert Kill(10.0, 12.0).may_have_lost(call, WRITTEN_SECONDS) is lost
