"""What ticks mean: rates count the sample alone, an alert comes once and is over once, and silence is an alarm."""

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.monitors.alerts import JudgedRun, alert_changes, finished_report, rate_of
from gradeloop.monitors.contract import CLEAR_RUNS, AlertRule, AlwaysRule, MonitorDefinition, MonitorState, Rate, TickReport
from gradeloop.monitors.ticks import choose, place_of

JUDGE = {"rubric": "- it is good", "grader": {"model": "scripted:judge"}}


def monitor(**more: Any) -> MonitorDefinition:
    return MonitorDefinition.model_validate({"name": "m", "source": {"kind": "folder", "path": "/runs"}, "judge": JUDGE} | more)


def run(name: str, **metadata: Any) -> AgentRun:
    return AgentRun.model_validate({"id": name, "transcripts": [{"messages": [{"role": "user", "content": name}]}], "metadata": metadata})


def watch(definition: MonitorDefinition, counts: Sequence[tuple[int, int]]) -> list[str]:
    """Return what is raised and cleared, with the number of the tick, over ticks of so many passed of so many judged."""
    state, said = MonitorState(), []
    for number, (passed, judged) in enumerate(counts, 1):
        report = TickReport(number=number, tick=str(number), time=f"t{number}", rate=Rate(passed=passed, judged=judged))
        state, raised, cleared, _ = alert_changes(definition, state, report, ["a", "b"])
        said += [f"{number} {alert.kind}" for alert in raised] + [f"{number} over: {kind}" for kind in cleared]
    return said


def test_an_alert_comes_once_and_is_over_once() -> None:
    counts = [(19, 20)] * 5 + [(10, 20)] * 8 + [(20, 20)] * 5

    found = watch(monitor(alerts=[AlertRule.parse("pass_rate < 0.9")], drift=False), counts)

    assert [text.partition(" ")[2] for text in found] == ["pass_rate < 0.9", "over: pass_rate < 0.9"]


def test_an_alert_is_over_once_enough_runs_were_at_the_limit() -> None:
    watched, bad, good = monitor(alerts=[AlertRule.parse("pass_rate < 0.9")], drift=False), (10, 20), (20, 20)
    begun = int(watch(watched, [bad] * 8)[0].partition(" ")[0])

    over = begun + math.ceil(CLEAR_RUNS / good[1])

    assert watch(watched, [bad] * begun + [good] * 8)[1:] == [f"{over} over: pass_rate < 0.9"]


def test_a_rate_at_its_limit_raises_nothing() -> None:
    assert watch(monitor(alerts=[AlertRule.parse("pass_rate < 90%")], drift=False), [(18, 20)] * 200) == []


def test_drift_is_measured_from_the_first_runs_of_the_monitor() -> None:
    found = watch(monitor(baseline_runs=100, every=7200), [(19, 20)] * 12 + [(8, 20)] * 10)

    assert [text.partition(" ")[2] for text in found] == ["drift"]


def test_the_beginning_lasts_for_a_day_at_least() -> None:
    counts = [(19, 20)] * 12 + [(8, 20)] * 12

    assert watch(monitor(baseline_runs=100, every=3600), counts) == []
    assert [text.partition(" ")[2] for text in watch(monitor(baseline_runs=100, every=7200), counts)] == ["drift"]


def test_the_more_first_runs_the_smaller_a_fall_that_is_seen() -> None:
    counts = [(47, 50)] * 20 + [(43, 50)] * 60

    assert [text.partition(" ")[2] for text in watch(monitor(every=86_400), counts)] == ["drift"]
    assert watch(monitor(every=86_400, baseline_runs=100), counts) == []


@pytest.mark.slow
def test_rates_that_vary_from_tick_to_tick_raise_nothing() -> None:
    """A mean of 0.90, which keeps the limit, with a standard deviation of 0.05 between ticks."""
    dice = random.Random(5)
    for _ in range(5):
        rates = [dice.betavariate(31.5, 3.5) for _ in range(1_000)]
        counts = [(sum(dice.random() < rate for _ in range(50)), 50) for rate in rates]

        assert watch(monitor(alerts=[AlertRule.parse("pass_rate < 0.9")]), counts) == []


def test_all_alerts_of_a_monitor_share_one_chance_of_a_false_alarm() -> None:
    """Each alert more makes each of them ask for more evidence."""
    rules = [AlertRule.parse(f"error_rate > 0.{percent}") for percent in range(11, 100)]
    counts = [(18, 20)] * 20 + [(14, 20)] * 60

    alone, among_others = (
        int(watch(monitor(alerts=[AlertRule.parse("pass_rate < 0.9"), *others], drift=False), counts)[0].partition(" ")[0])
        for others in ([], rules)
    )

    assert 20 < alone < among_others


def test_the_state_of_an_older_release_is_read_and_its_alert_on_decline_ends() -> None:
    old = {
        "ticks": 40,
        "baseline_passed": 950,
        "baseline_judged": 1000,
        "tests": {"drift": {"windows": 20, "log_evidence": [12.0] * 5}, "pass_rate < 0.9": {"windows": 40, "log_evidence": [1.0] * 5}},
        "cusum": {"total": 11.5},
        "anchors": {"same": 300, "repeated": 300, "test": {"windows": 3, "log_evidence": [0.1] * 5}},
        "open": {"decline": {"number": 38, "recent": [[10, 20]]}},
    }
    state = MonitorState.model_validate_json(json.dumps(old))

    report = TickReport(number=41, tick="41", time="t41", rate=Rate(passed=19, judged=20))
    found = alert_changes(monitor(alerts=[AlertRule.parse("pass_rate < 0.9")]), state, report, [])

    assert found.cleared == ("decline",)
    assert found.raised == ()
    assert (found.state.baseline_judged, found.state.baseline_spread.windows) == (1020, 1)
    assert MonitorState.model_validate_json(found.state.model_dump_json()) == found.state


def test_three_ticks_without_a_judged_run_are_an_alarm_and_the_next_run_ends_it() -> None:
    assert watch(monitor(), [(1, 1), (0, 0), (0, 0), (0, 0), (0, 0), (1, 1)]) == ["4 silence", "6 over: silence"]


def test_runs_that_a_rule_takes_and_errors_are_outside_of_the_rate() -> None:
    runs = [
        JudgedRun("a", "sampled", "de", "passed"),
        JudgedRun("b", "sampled", "de", "error"),
        JudgedRun("c", "always", None, "failed"),
        JudgedRun("d", "over budget", None, "unjudged"),
        JudgedRun("e", "backfill", None, "failed"),
    ]

    found = finished_report(TickReport(number=1, tick="1", time="t"), runs, 0.5, None)

    assert (found.rate, found.errors, found.unjudged) == (rate_of(["passed"]), 1, 1)
    assert found.always_rate.judged == 1
    assert found.strata == {"de": rate_of(["passed"])}


def test_a_sample_is_the_same_for_each_monitor_with_its_share() -> None:
    runs = [run(f"r{at}") for at in range(400)]
    shas = [one.sha256() for one in runs]

    few, many = (
        {sha for one, sha in zip(runs, shas, strict=True) if choose(monitor(sample=share), one, sha) == "sampled"} for share in (0.1, 0.3)
    )

    assert few < many
    assert few == {sha for sha in shas if place_of(sha) < 0.1}
    assert 20 < len(few) < 65


def test_a_stratum_may_have_a_share_of_its_own_and_rules_take_what_the_share_leaves_out() -> None:
    definition = monitor(
        sample=1e-9, stratum="plan", strata={"paid": 1.0}, always=[AlwaysRule.parse("feedback=down"), AlwaysRule.parse("error")]
    )

    found = [
        choose(definition, one, one.sha256())
        for one in (run("a", plan="paid"), run("b", feedback="down"), run("c", error="timeout"), run("d", feedback="up"))
    ]

    assert found == ["sampled", "always", "always", "left out"]


@pytest.mark.parametrize("text", ["pass_rate", "pass_rate < 2", "rate < 0.5", "pass_rate <= 0.5", "pass_rate < 0"])
def test_an_alert_that_is_no_rule_is_refused_with_the_cure(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"such as 'pass_rate < 0\.9'"):
        AlertRule.parse(text)


def test_a_judge_by_a_schema_needs_a_rule_for_what_passes() -> None:
    with pytest.raises(ValidationError, match="--pass KEY=VALUE"):
        monitor(judge={"rubric_text": "x", "judge_model": "scripted:judge"})


@pytest.mark.parametrize("grader", [{"model": "scripted:judge", "tools": ["python"]}, {"activity": "grade", "task_queue": "elsewhere"}])
def test_a_judge_that_no_batch_takes_is_refused(grader: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="which no batch takes; leave them out"):
        monitor(judge=JUDGE | {"grader": grader})
