"""The simulation of many workers gives what queueing theory says where one thing binds."""

import pytest

from gradeloop.admin.capacity import MEASURED, FleetPlan, Workload, plan_fleet
from lab.fleet import TIMES, Fleet, Means, Simulated

CALLS = 20_000

pytestmark = pytest.mark.slow


def simulate(workers: int, **means: float) -> Simulated:
    """Run a fleet with every other mean at its default."""
    return Fleet(workers, Means(**means)).run(CALLS)  # type: ignore[arg-type]  # the whole numbers among them are not set here


def test_twice_the_workers_do_twice_the_work_until_something_else_binds() -> None:
    assert simulate(2).rate == pytest.approx(2 * simulate(1).rate, rel=0.03)

    row = simulate(10, cores=2)

    assert row.rate == pytest.approx(2 / (TIMES.temporal / 1000), rel=0.03)
    assert row.binds == "Temporal's cores"


def test_no_fleet_is_faster_than_its_provider_allows() -> None:
    row = simulate(30, provider_limit=100.0)

    assert row.rate == pytest.approx(100, rel=0.01)
    assert row.binds == "provider's limit"


def test_rate_times_latency_is_what_is_in_flight() -> None:
    row = simulate(4, provider=5_000.0, worker=1.0)

    assert row.rate * row.latency == pytest.approx(4 * 200, rel=0.1)
    assert row.binds == "calls in flight"


def test_one_shard_of_histories_makes_a_write_at_a_time() -> None:
    row = simulate(10, shards=1, write=4.0)

    assert row.rate == pytest.approx(1 / 0.008, rel=0.03)
    assert row.binds == "its fullest shard"


@pytest.mark.parametrize("work", Workload)
@pytest.mark.parametrize(("rate", "latency"), [(5, 0.2), (50, 5), (400, 1), (1_000, 5), (1_200, 20)])
def test_a_planned_fleet_carries_its_load_in_the_simulation(work: Workload, rate: float, latency: float) -> None:
    times = MEASURED[work]
    plan = plan_fleet(rate, latency, work, times)

    def carried(plan: FleetPlan, **means: float) -> Simulated:
        cores = max(round(plan.temporal_cores), 1)
        fleet = {"worker": times.models, "temporal": times.temporal, "shards": plan.shards, "cores": cores, "shard_calls": 1}
        return Fleet(plan.models, Means(provider=1000 * latency, slots=plan.slots, **fleet | means)).run(CALLS)  # type: ignore[arg-type]

    assert carried(plan).rate >= rate
    if plan.models > 2:
        assert carried(plan.model_copy(update={"models": plan.models // 2})).rate < rate
