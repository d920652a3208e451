"""Anchors: labelled runs tell a change of the judge from a change of the world, and are outside of every rate."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from temporalio.client import Client

from activities.providers.scripted import Script
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import SchemaJudge, parse_judge
from gradeloop.monitors import anchors
from gradeloop.monitors.alerts import alert_changes
from gradeloop.monitors.anchor_runs import anchors_of, plan_of_anchors
from gradeloop.monitors.anchors import ANCHOR_BASELINE, AnchorCounts, AnchorState, moved_of
from gradeloop.monitors.cli.monitor import read_anchors
from gradeloop.monitors.contract import Alert, AlertRule, MonitorDefinition, MonitorState, Rate, TickReport
from gradeloop.monitors.overview import MonitorReader, MonitorSummary, anchor_text
from gradeloop.store.tables import table
from tests.monitors.test_monitoring import JUDGE, Watched, watched
from tests.rig.batches import fails, passes
from tests.rig.webhooks import hooked

Verdict = Callable[[random.Random, bool, int], bool]
"""What a judge says of a run that is good or bad, in a tick."""


def run(name: str, said: str = "good", **metadata: Any) -> AgentRun:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": f"{said} {name}"}]
    return AgentRun.model_validate({"id": name, "transcripts": [{"messages": messages}], "metadata": metadata})


def labelled(total: int = 20) -> list[tuple[AgentRun, bool]]:
    """Return runs of which every other one is good."""
    return [(run(f"anchor {number}", "good" if number % 2 == 0 else "bad", label="x"), number % 2 == 0) for number in range(total)]


def definition(total: int = 30, per_tick: int = 20, **more: Any) -> MonitorDefinition:
    plan = {"sha256": "0" * 64, "total": total, "per_tick": per_tick}
    about = {"name": "m", "source": {"kind": "folder", "path": "/runs"}, "judge": JUDGE, "anchors": plan, "every": 3600}
    return MonitorDefinition.model_validate(about | more)


class Simulated:
    """A monitor of simulated runs and anchors."""

    def __init__(self, seed: int, judge: Verdict, good: Callable[[int], float], *, runs: int = 40, anchors: int = 30, **more: Any) -> None:
        self.random = random.Random(seed)
        self.definition = definition(total=anchors, **({"alerts": [AlertRule.parse("pass_rate < 0.8")]} | more))
        self.state = MonitorState()
        self.raised: list[Alert] = []
        self._judge, self._good, self._runs = judge, good, runs
        self._labels = [number % 2 == 0 for number in range(anchors)]
        self._first: list[bool | None] = [None] * anchors
        self._turn = 0

    def tick(self, number: int) -> None:
        """Judge a tick's runs and anchors, and settle it."""
        draws = [self.random.random() < self._good(number) for _ in range(self._runs)]
        passed = sum(self._judge(self.random, is_good, number) for is_good in draws)
        report = TickReport(
            number=number, tick=str(number), time=f"t{number}", rate=Rate(passed=passed, judged=self._runs), anchors=self._anchors(number)
        )
        found = alert_changes(self.definition, self.state, report, [])
        self.state, self.raised = found.state, [*self.raised, *found.raised]

    def _anchors(self, number: int) -> AnchorCounts:
        plan, total = self.definition.anchors, AnchorCounts()
        assert plan is not None
        count = len(self._labels) if number == 1 else plan.per_tick
        for _ in range(count):
            at = self._turn = (self._turn + 1) % len(self._labels)
            said, first = self._judge(self.random, self._labels[at], number), self._first[at]
            same, right = int(first == said), int(said == self._labels[at])
            total = total.plus(
                AnchorCounts(
                    judged=1,
                    right=right,
                    repeated=int(first is not None),
                    same=same,
                    passed_before=int(first is True),
                    passed_again=int(first is True and said),
                )
            )
            self._first[at] = said if first is None else first
        return total

    def moved(self, kind: str) -> str | None:
        """Return what an alert said when it came, or, while it was open, what the anchors have said since."""
        if kind in self.state.open:
            return self.state.open[kind].moved
        return next((alert.moved for alert in self.raised if alert.kind == kind), None)

    def first(self, *kinds: str) -> int | None:
        """Return the tick of the first alert of these kinds; None where there was none."""
        return min((alert.number for alert in self.raised if alert.kind in kinds), default=None)


def steady(dice: random.Random, is_good: bool, _: int) -> bool:
    """Judge with errors of 1 %."""
    return is_good != (dice.random() < 0.01)


CHANGE = 40


def stricter(dice: random.Random, is_good: bool, number: int) -> bool:
    """Judge with errors of 1 %, and from a tick on as a model that fails every fifth good run."""
    said = steady(dice, is_good, number)
    return said and not (number >= CHANGE and is_good and dice.random() < 0.2)


RATES = ("pass_rate < 0.8", "drift")


def test_a_change_of_the_judges_model_shows_in_the_anchors_and_alerts_say_that_the_judge_has_moved() -> None:
    found = [Simulated(seed, stricter, lambda _: 0.95) for seed in range(20)]
    for one in found:
        for number in range(1, CHANGE + 81):
            one.tick(number)

    caught = [one.first("judge") for one in found]
    moved = [one.moved(kind) for one in found for kind in RATES if one.first(kind)]

    assert all(number is not None and number >= CHANGE for number in caught)
    assert moved.count("world") <= 0.1 * len(moved)
    assert moved.count("judge") >= 0.8 * len(moved) > 0


@pytest.mark.slow
def test_a_change_that_leaves_the_rate_almost_as_it_is_shows_in_the_anchors_first() -> None:
    """A model that fails more of the good and passes more of the bad ones is seen although the rate hardly moves."""

    def other(dice: random.Random, is_good: bool, number: int) -> bool:
        return steady(dice, is_good, number) != (number >= CHANGE and dice.random() < 0.15)

    found = [Simulated(seed, other, lambda _: 0.6, alerts=[AlertRule.parse("pass_rate < 0.5")]) for seed in range(20)]
    for one in found:
        for number in range(1, CHANGE + 81):
            one.tick(number)

    judge = [one.first("judge") for one in found]
    before = [number for one, number in zip(found, judge, strict=True) if number and not (one.first(*RATES) or 999) < number]

    assert all(number is not None and CHANGE <= number < CHANGE + 80 for number in judge)
    assert len(before) >= 0.95 * len(found)


def test_a_change_of_the_world_is_called_that_and_leaves_the_anchors_quiet() -> None:
    found = [Simulated(seed, steady, lambda number: 0.95 if number < CHANGE else 0.7) for seed in range(20)]
    for one in found:
        for number in range(1, CHANGE + 81):
            one.tick(number)

    moved = [one.moved("pass_rate < 0.8") for one in found]

    assert sum(one.first("judge") is not None for one in found) <= 1
    assert moved.count("judge") == 0
    assert moved.count("world") >= 0.8 * len(moved)


@pytest.mark.slow
@pytest.mark.parametrize("error", [0.0, 0.01, 0.2])
def test_a_steady_judge_raises_hardly_any_alarm_in_1000_ticks(error: float) -> None:
    """At most 5 % of monitors are promised; of 25 more than 4 raise one with a probability below 1 %."""

    def judge(dice: random.Random, is_good: bool, _: int) -> bool:
        return is_good != (dice.random() < error)

    found = [Simulated(seed, judge, lambda _: 0.9, runs=0, drift=False, alerts=[]) for seed in range(25)]
    for one in found:
        for number in range(1, 1001):
            one.tick(number)

    assert sum(one.first("judge") is not None for one in found) <= 4


STEADY = AnchorState(same=297, repeated=300, passed_before=150, passed_again=149)


@pytest.mark.parametrize(
    ("known", "counts", "fall", "moved"),
    [
        (STEADY, AnchorCounts(judged=20, repeated=20, same=20, passed_before=10, passed_again=10), 0.3, "world"),
        (STEADY, AnchorCounts(judged=20, repeated=20, same=16, passed_before=10, passed_again=6), 0.3, "judge"),
        (STEADY, AnchorCounts(judged=4, repeated=4, same=4, passed_before=2, passed_again=2), 0.1, "unclear"),
        (
            AnchorState(same=50, repeated=50, passed_before=25, passed_again=25),
            AnchorCounts(judged=20, repeated=20, same=20, passed_before=10, passed_again=10),
            0.3,
            "unclear",
        ),
        (STEADY, AnchorCounts(), 0.3, "unclear"),
    ],
)
def test_what_has_moved_is_said_only_where_the_anchors_say_it(known: AnchorState, counts: AnchorCounts, fall: float, moved: str) -> None:
    assert moved_of(known, counts, fall, usual=0.9) == moved
    assert moved_of(known, counts, fall) == moved


def test_an_alert_reads_as_what_has_moved() -> None:
    counts = AnchorCounts(judged=20, repeated=20, same=14)
    alert = Alert(kind="drift", number=1, time="t", text="pass_rate has left 95%", moved="judge", anchors=counts)

    assert alert.said == "pass_rate has left 95%; the judge has moved: of 14 of 20 anchors it says what it first said"
    assert alert.model_copy(update={"moved": None}).said == "pass_rate has left 95%"


def change_judge(monitor: Watched, *replies: dict[str, Any]) -> None:
    """Have the provider answer as another model, under the same name."""
    models: Any = monitor.batches.served.models
    models.script = Script.model_validate({"replies": replies})
    models._adapters.clear()


async def with_anchors(monitor: Watched, total: int = 20, **more: Any) -> Watched:
    """Create another monitor of the same folder, with anchors."""
    known = (await monitor.reader.summary(monitor.name)).definition
    chosen = anchors_of(known.judge, labelled(total))
    plan = plan_of_anchors(chosen, more.pop("per_tick", 20))
    other = known.model_copy(update={"name": f"{monitor.name}-a", "anchors": plan} | more)
    await monitor.reader.create(other, chosen)
    return Watched(monitor.batches, monitor.folder, other.name)


async def ticks(monitor: Watched, numbers: range, runs: int, said: str = "good") -> MonitorSummary:
    """Run a tick for each number, with so many runs, and return the monitor after them."""
    for number in numbers[:-1]:
        monitor.write(f"{number}.jsonl", *(f"{number}-{name}" for name in range(runs)), said=said)
        await monitor.tick()
    monitor.write(f"{numbers[-1]}.jsonl", *(f"{numbers[-1]}-{name}" for name in range(runs)), said=said)
    return await monitor.tick()


async def test_a_silent_change_of_the_model_is_told_by_the_anchors_past_the_cache_and_outside_of_the_rate(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anchors, "ANCHOR_BASELINE", 100)
    async with hooked() as hook, watched(client, tmp_path, fails("bad"), passes(), settings={"notify": hook.settings()}) as plain:
        monitor = await with_anchors(plain)
        quiet = await ticks(monitor, range(7), 5)
        calls = monitor.calls
        change_judge(monitor, fails())
        found = await ticks(monitor, range(7, 11), 5)
        accepted = await monitor.reader.accept(monitor.name)
        monitor.write("12.jsonl", "12")
        begun = await monitor.tick()
        posts = await hook.posted(len(found.alerts))

    kinds = {alert.kind: alert for alert in found.alerts}
    assert quiet.alerts == ()
    assert (quiet.rate.passed, quiet.rate.judged) == (35, 35)
    assert calls == 35 + 7 * 20
    assert quiet.anchors is not None
    assert (quiet.anchors.error.passed_found, quiet.anchors.error.failed_found) == (10, 10)
    assert quiet.ticks[0].anchors == AnchorCounts(judged=20, right=20, repeated=20, same=20, passed_before=10, passed_again=10)
    assert "judge" in kinds
    assert kinds["judge"].text.startswith("the judge has changed: of 10 of 20 anchors it says what it first said, 100% at the beginning")
    assert found.anchors is not None
    assert anchor_text(found).startswith("anchors: the judge is right on 10 of 20; it passes 0 of 10 that pass and fails 10 of 10")
    assert {name: alert.moved for name, alert in kinds.items()} == dict.fromkeys(kinds, "judge")
    assert "judge" in accepted
    assert not set(begun.state.open) & {"judge", "drift"}
    assert begun.state.anchors == AnchorState()
    assert any(post["answer"].startswith("ALERT the judge has changed") for post in posts if post["type"] == "monitor.alert")


@pytest.mark.slow
async def test_a_world_that_changes_is_called_that_in_the_alert(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchors, "ANCHOR_BASELINE", 100)
    rules = (AlertRule.parse("pass_rate < 0.9"),)
    async with watched(client, tmp_path, fails("bad"), passes()) as plain:
        monitor = await with_anchors(plain, alerts=rules, drift=False)
        await ticks(monitor, range(7), 5)
        found = await ticks(monitor, range(7, 11), 10, said="bad")

    assert [(alert.kind, alert.moved) for alert in found.alerts] == [("pass_rate < 0.9", "world")]
    assert "the world has moved, not the judge: of " in found.alerts[0].said


@pytest.mark.slow
async def test_the_judge_is_blind_to_labels_and_a_tick_without_runs_asks_of_no_anchor(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, fails("bad"), passes()) as plain:
        monitor = await with_anchors(plain, per_tick=3)
        empty = await monitor.tick()
        monitor.write("a.jsonl", "a")
        first = await monitor.tick()
        monitor.write("b.jsonl", "b")
        second = await monitor.tick()
        requests = [message.content for request in monitor.batches.served.models.requests for message in request.messages]
        cases = table("cases")
        batch = second.ticks[0].number and (await monitor.reader.runs(monitor.name))[-1].batch_id
        order = await monitor.batches.store.read(
            lambda connection: connection.execute(
                select(cases.c.case_id, cases.c.fresh).where(cases.c.batch_id == batch).order_by(cases.c.position)
            ).all()
        )
        kept = table("monitor_anchors")
        taken = select(func.count()).where(kept.c.monitor == monitor.name, kept.c.tick == 3)
        turn = await monitor.batches.store.read(lambda connection: connection.execute(taken).scalar_one())

    assert empty.ticks[0].anchors == AnchorCounts()
    assert (first.ticks[0].anchors.judged, second.ticks[0].anchors.judged, turn) == (20, 3, 3)
    assert (first.rate.judged, second.rate.judged) == (1, 2)
    assert not any("label" in text for text in requests)
    assert sorted((name.endswith(".anchor"), fresh) for name, fresh in order) == [(False, 0)] + [(True, 1)] * 3


async def test_a_run_of_the_source_that_is_an_anchor_is_judged_as_both(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, fails("bad"), passes()) as plain:
        monitor = await with_anchors(plain, total=2)
        lines = [one.model_copy(update={"metadata": {}}).model_dump_json(exclude_none=True) for one, _ in labelled(2)]
        (monitor.folder / "a.jsonl").write_text("\n".join(lines) + "\n")
        found = await monitor.tick()

    assert (found.rate.passed, found.rate.judged, found.ticks[0].anchors.judged) == (1, 2, 2)
    assert [one.run_id for one in found.failed] == ["anchor 1"]


async def test_other_anchors_under_the_same_name_are_refused_and_go_with_the_monitor(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes()) as plain:
        monitor = await with_anchors(plain)
        reader: MonitorReader = monitor.reader
        known = (await reader.summary(monitor.name)).definition
        more = anchors_of(known.judge, labelled(22))
        same = await reader.create(known, anchors_of(known.judge, labelled()))
        with pytest.raises(InvalidRequest, match="there is another monitor"):
            await reader.create(known.model_copy(update={"anchors": plan_of_anchors(more)}), more)
        await reader.delete(monitor.name)
        left = await monitor.batches.store.read(
            lambda connection: connection.execute(select(func.count()).select_from(table("monitor_anchors"))).scalar_one()
        )

    assert (same, left) == (False, 0)


def written(path: Path, runs: Sequence[AgentRun]) -> Path:
    path.write_text("".join(one.model_dump_json(exclude_none=True) + "\n" for one in runs))
    return path


def test_anchors_are_labelled_in_their_metadata_or_by_a_file_of_labels(tmp_path: Path) -> None:
    judge = parse_judge(JUDGE)
    inside = written(tmp_path / "in.jsonl", [run("a", label="passed"), run("b", label=False), run("c", label="Fail")])
    runs = written(tmp_path / "runs.jsonl", [run("a"), run("b"), run("c"), run("d")])
    labels = tmp_path / "labels.jsonl"
    rows = [("a", "satisfied", "p"), ("b", "needs_revision", "p"), ("c", "satisfied", "p"), ("c", "failed", "q")]
    labels.write_text(
        "".join(json.dumps({"agent_run_id": one, "label_value": {"result": said}, "created_by": by}) + "\n" for one, said, by in rows)
    )

    first = read_anchors(inside, None, judge, ())
    second = read_anchors(runs, labels, judge, ())

    assert {one.run_id: one.passed for one in first} == {"a": True, "b": False, "c": False}
    assert {one.run_id: one.passed for one in second} == {"a": True, "b": False}
    assert all("label" not in one.case.model_dump_json() for one in first)


def test_labels_of_a_judge_with_a_schema_pass_by_what_the_monitor_passes(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"tone": {"type": "string", "enum": ["warm", "cold", "rude"]}}, "required": ["tone"]}
    judge = parse_judge({"rubric_text": "How is the tone?", "output_schema": schema, "judge_model": "scripted:judge"})
    assert isinstance(judge, SchemaJudge)
    runs = written(tmp_path / "runs.jsonl", [run("a"), run("b"), run("c")])
    labels = tmp_path / "labels.jsonl"
    labels.write_text(
        "".join(json.dumps({"agent_run_id": one, "label_value": {"tone": said}}) + "\n" for one, said in [("a", "warm"), ("b", "rude")])
    )

    found = read_anchors(runs, labels, judge, ("tone=warm",))

    assert {one.run_id: one.passed for one in found} == {"a": True, "b": False}


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([run("a")], "the run 'a' has no label; write passed or failed as `label` into its metadata"),
        ([run("a", label="meh")], "the run 'a' has the label '\"meh\"'; write passed or failed"),
        ([run("a", label=True)], "there are 1 anchors; give 2 to 500"),
        ([run("a", label=True), run("b", label=True)], "all anchors are labelled to pass; add some that fail"),
        ([run("a", label=True), run("a", label=False)], "'a'"),
    ],
)
def test_anchors_that_cannot_watch_a_judge_are_refused(tmp_path: Path, runs: Sequence[AgentRun], said: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        read_anchors(written(tmp_path / "runs.jsonl", runs), None, parse_judge(JUDGE), ())

    assert said in str(error.value)


def test_the_beginning_is_so_many_repeated_judgements() -> None:
    one = Simulated(1, steady, lambda _: 0.9)
    for number in range(1, 17):
        one.tick(number)

    assert (one.state.anchors.repeated, one.state.anchors.is_known) == (ANCHOR_BASELINE, True)
