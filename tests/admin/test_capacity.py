"""`gradeloop plan`: a load in, a fleet out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gradeloop.admin.capacity import BATCH_SHARE, BUSY, MEASURED, Workload, own_times, parse_rate, parse_seconds, plan_fleet
from gradeloop.cli.main import app
from gradeloop.errors import InvalidRequest
from workflows.batches.grading_batch import SHARE

RATES = st.floats(0.001, 10_000)
SECONDS = st.floats(0.001, 3_600)


def test_the_share_of_the_slots_is_the_one_that_batches_use() -> None:
    assert BATCH_SHARE == SHARE


@given(RATES, SECONDS, st.sampled_from(Workload), st.integers(1, 1000))
def test_every_part_of_a_plan_has_room_and_a_smaller_fleet_has_none(rate: float, latency: float, work: Workload, most: int) -> None:
    times = MEASURED[work]
    plan = plan_fleet(rate, latency, work, times, most)
    needed = rate * latency / BATCH_SHARE

    assert plan.models * BUSY >= rate * times.models / 1000
    assert plan.loop * BUSY >= rate * times.loop / 1000
    assert needed <= plan.models * plan.slots
    assert plan.slots <= most
    if plan.models > 2:
        fewer = plan.models - 1
        assert fewer * BUSY < rate * times.models / 1000 or fewer * most < (plan.in_flight + 1) / BATCH_SHARE


@given(RATES, SECONDS, st.sampled_from(Workload))
def test_twice_the_load_never_needs_less(rate: float, latency: float, work: Workload) -> None:
    one, two = (plan_fleet(times * rate, latency, work, MEASURED[work]).model_dump(exclude={"work", "slots"}) for times in (1, 2))

    assert all(two[name] >= one[name] for name in one)


@pytest.mark.parametrize(("text", "rate"), [("50/s", 50), ("3000/min", 50), ("180000/h", 50), ("86400/day", 1), ("0.5/s", 0.5)])
def test_rates_are_read_with_their_unit(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["50", "0/s", "-1/s", "1e3/s", "1.2.3/s", "/s", "50/month", "nan/s", "", "9" * 400 + "/s"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--rate is .*for example 50/s"):
        parse_rate(text)


@pytest.mark.parametrize(("text", "seconds"), [("800ms", 0.8), ("5s", 5), ("2min", 120)])
def test_latencies_are_read_with_their_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "0s", "5 s", "5m", "five"])
def test_what_is_no_latency_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--latency is .*for example 800ms"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["model=3", "models", "models=", "models=-1", "models=x", "models=0", "write=0.0", "rows=3", "=3"])
def test_a_service_time_that_is_none_is_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"--time is .*loop, models, evidence, temporal, write"):
        own_times(MEASURED[Workload.BATCH], [text])


def test_a_slower_worker_of_your_own_takes_more_workers() -> None:
    asked = ["plan", "--rate", "200/s", "--latency", "500ms", "--json"]
    plans = [json.loads(CliRunner().invoke(app, [*asked, *more]).output) for more in ([], ["--time", "models=40"])]

    assert [plan["models"] for plan in plans] == [3, 12]
    assert [plan["connections"] for plan in plans] == [45, 180]


def test_the_terminal_shows_a_plan_a_line_each_part() -> None:
    shown = CliRunner().invoke(app, ["plan", "--rate", "50/s", "--latency", "5s"], env={"COLUMNS": "80"}).output

    assert "251 calls in flight" in shown
    assert "3,000  provider    calls a minute that it has to allow" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
