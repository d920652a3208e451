"""A monitor on the real server: runs of a folder are judged once each, whatever becomes of a tick, and alerts reach the webhook."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from gradeloop.monitors import alerts
from gradeloop.monitors.client import MonitorSchedules
from gradeloop.monitors.contract import WAITING_DAYS, MonitorDefinition, Monitoring, MonitorTick
from gradeloop.monitors.overview import MonitorReader, MonitorSummary, tick_notes
from gradeloop.settings.catalog import Price
from gradeloop.store.tables import table
from tests.rig.batches import Batches, batching, breaks, fails, passes
from tests.rig.judging import FRANCE
from tests.rig.threads import Reply
from tests.rig.webhooks import hooked

JUDGE = {"rubric": "- it is good", "grader": {"model": "scripted:judge"}}


@dataclass(frozen=True)
class Watched:
    """A monitor, and the worker that serves it."""

    batches: Batches
    folder: Path
    name: str

    @property
    def reader(self) -> MonitorReader:
        return MonitorReader(self.batches.store)

    def write(self, file: str, *names: str, said: str = "good") -> None:
        """Put runs into the folder."""
        lines = (
            {"id": one, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": f"{said} {one}"}]} for one in names
        )
        (self.folder / file).write_text("".join(json.dumps(line) + "\n" for line in lines))

    async def tick(self) -> MonitorSummary:
        """Run a tick to its end."""
        name = f"monitor/{self.name}-{uuid4()}"
        priority = (await self.reader.summary(self.name)).definition.priority
        argument, queue = MonitorTick(monitor=self.name, priority=priority), self.batches.served.task_queue
        await self.batches.client.execute_workflow(Monitoring.run, argument, id=name, task_queue=queue)
        return await self.reader.summary(self.name)

    async def next_day(self) -> MonitorSummary:
        """Have a day pass, and run a tick."""
        state = (await self.reader.summary(self.name)).state.model_copy(update={"day": "2026-01-01"})
        monitors = table("monitors")
        changed = monitors.update().where(monitors.c.name == self.name).values(state=state.model_dump_json())
        await self.batches.store.write(lambda connection: connection.execute(changed))
        return await self.tick()

    async def beside(self, folder: str, **changed: Any) -> "Watched":
        """Create another monitor like this one, of a folder of its own."""
        (place := self.folder.parent / folder).mkdir()
        definition = (await self.reader.summary(self.name)).definition
        source = {"kind": "folder", "path": str(place), "quiet": 0}
        other = definition.model_dump(exclude_none=True) | {"name": f"{folder}-{uuid4().hex[:8]}", "source": source} | changed
        await self.reader.create(MonitorDefinition.model_validate(other))
        return Watched(self.batches, place, other["name"])

    @property
    def calls(self) -> int:
        """How many calls were made to models."""
        return len(self.batches.served.models.requests)


@asynccontextmanager
async def watched(
    client: Client, tmp_path: Path, *replies: Reply, settings: dict[str, Any] | None = None, url: str | None = None, **more: Any
) -> AsyncIterator[Watched]:
    """Serve a monitor of a folder."""
    (folder := tmp_path / "runs").mkdir()
    name = f"m-{uuid4().hex[:8]}"
    source = {"kind": "folder", "path": str(folder), "quiet": 0}
    async with batching(client, tmp_path, *replies, url=url, **(settings or {})) as batches:
        found = Watched(batches, folder, name)
        await found.reader.create(MonitorDefinition.model_validate({"name": name, "source": source, "judge": JUDGE} | more))
        yield found


async def test_a_tick_says_which_webhook_its_worker_does_not_have(client: Client, tmp_path: Path) -> None:
    async with hooked() as hook, watched(client, tmp_path, passes(), settings={"notify": hook.settings()}) as known:
        name = next(iter(hook.settings()))
        definition = (await known.reader.summary(known.name)).definition.model_copy(update={"name": "other", "notify": (name, "pager")})
        await known.reader.create(definition)
        known.write("a.jsonl", "a")
        tick = (await Watched(known.batches, known.folder, "other").tick()).ticks[0]
        silent = (await known.tick()).ticks[0]

    assert tick.no_webhooks == ("pager",)
    assert "the worker has no webhook pager; add it to [notify] in its settings" in tick_notes(tick)
    assert silent.no_webhooks == ()


async def test_runs_of_a_folder_are_judged_once_each(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes(), fails("bad")) as monitor:
        monitor.write("a.jsonl", "a", "b")
        monitor.write("c.jsonl", "c", said="bad")
        first = await monitor.tick()
        monitor.write("again.jsonl", "b", "d")
        second = await monitor.tick()
        third = await monitor.tick()

        assert (first.rate.passed, first.rate.judged) == (2, 3)
        assert [run.run_id for run in first.failed] == ["c"]
        assert (second.rate.judged, second.ticks[0].read, second.ticks[0].known) == (4, 1, 1)
        assert (third.rate.judged, third.ticks[0].read) == (4, 0)
        assert monitor.calls == 4


@pytest.mark.slow
async def test_a_second_monitor_pays_for_nothing_that_was_judged(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes()) as monitor:
        monitor.write("a.jsonl", "a", "b")
        await monitor.tick()
        definition = (await monitor.reader.summary(monitor.name)).definition.model_copy(update={"name": f"{monitor.name}-2"})
        await monitor.reader.create(definition)

        found = await Watched(monitor.batches, monitor.folder, definition.name).tick()

        assert (found.rate.judged, monitor.calls) == (2, 2)


@pytest.mark.slow
async def test_what_a_terminated_tick_has_collected_is_judged_by_the_next(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes()) as monitor:
        monitor.write("a.jsonl", "a", "b")
        monitor.batches.served.models.hold("grader")
        name, queue = f"monitor/{monitor.name}-killed", monitor.batches.served.task_queue
        killed = await client.start_workflow(Monitoring.run, MonitorTick(monitor=monitor.name), id=name, task_queue=queue)
        await monitor.batches.served.models.called("grader")
        await killed.terminate("a test")
        monitor.batches.served.models.release("grader")

        found = await monitor.tick()

        assert [tick.settled for tick in found.ticks] == [True, True]
        assert (found.rate.judged, found.state.ticks, found.ticks[1].read) == (2, 2, 2)


async def test_a_day_that_is_paid_up_begins_no_call_and_what_is_left_out_is_counted(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"max_concurrent_activities": 1}  # so that the second call sees what the first has cost
    async with watched(client, tmp_path, passes(usage={"input": 10, "output": 10}), settings=one, budget_usd=1.5) as monitor:
        price = Price(provider="scripted", models=".*", input=50_000, output=50_000)
        monkeypatch.setattr(monitor.batches.served.models, "cost", lambda _, usage: price.cost(usage))
        monitor.write("a.jsonl", "a", "b", "c", "d")
        first = await monitor.tick()
        monitor.write("e.jsonl", "e")
        second = await monitor.tick()

        assert first.ticks[0].problem
        assert first.rate.judged + first.ticks[0].unjudged == 4
        assert second.ticks[0].over_budget == 1
        assert first.rate.judged == monitor.calls
        assert second.waiting == first.ticks[0].unjudged + 1


@pytest.mark.slow
async def test_what_the_budget_left_out_is_judged_first_within_that_of_the_next_day(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"max_concurrent_activities": 1}
    async with watched(client, tmp_path, passes(usage={"input": 10, "output": 10}), settings=one, budget_usd=1.5) as monitor:
        price = Price(provider="scripted", models=".*", input=50_000, output=50_000)
        monkeypatch.setattr(monitor.batches.served.models, "cost", lambda _, usage: price.cost(usage))
        monitor.write("a.jsonl", "a", "b")
        await monitor.tick()
        monitor.write("b.jsonl", "c")
        await monitor.tick()
        monitor.write("c.jsonl", "d")
        paid_up = await monitor.tick()
        days = [await monitor.next_day() for _ in range(2)]
        judged = [run for run in await monitor.reader.runs(monitor.name) if run.judgement]
        (batch, *_) = {run.batch_id for run in judged if run.run_id == "c"}

        assert (paid_up.rate.judged, paid_up.waiting) == (2, 2)
        assert paid_up.waiting_since
        assert [(day.ticks[0].late, day.rate.judged, day.waiting) for day in days] == [(2, 4, 0), (0, 4, 0)]
        assert {run.run_id: (run.verdict, run.why) for run in judged} == dict.fromkeys("abcd", ("passed", "sampled"))
        assert monitor.calls == 4
        assert batch is not None
        assert (await monitor.batches.reader.summary(batch)).passed == 2


@pytest.mark.slow
async def test_what_an_outage_left_out_is_judged_once_it_is_over(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, breaks(kind="connection"), settings={"outage_timeout": 0.3}) as monitor:
        monitor.write("a.jsonl", "a", "b")
        out = await monitor.tick()
        ids = {run.batch_id for run in await monitor.reader.runs(monitor.name)}
        statuses = [(await monitor.batches.reader.summary(name)).status for name in ids if name]
    async with batching(client, tmp_path, passes()) as batches:
        back = await Watched(batches, monitor.folder, monitor.name).tick()

    assert (out.rate.judged, out.ticks[0].unjudged, out.waiting) == (0, 2, 2)
    assert (out.ticks[0].problem or "").startswith("outage:")
    assert statuses == ["stopped"]
    assert (back.rate.judged, back.ticks[0].late, back.waiting) == (2, 2, 0)


@pytest.mark.slow
async def test_what_waits_for_a_week_is_given_up(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, breaks(kind="connection"), settings={"outage_timeout": 0.3}) as monitor:
        monitor.write("a.jsonl", "a")
        await monitor.tick()
        moment = datetime.now(UTC) - timedelta(days=WAITING_DAYS, minutes=1)
        await monitor.batches.store.write(lambda connection: connection.execute(table("monitor_runs").update().values(created=moment)))

        found = await monitor.tick()

        assert (found.ticks[0].given_up, found.waiting, found.ticks[0].late) == (1, 0, 0)
        assert [run.verdict for run in await monitor.reader.runs(monitor.name)] == ["unjudged"]


@pytest.mark.slow
async def test_errors_are_never_verdicts(client: Client, tmp_path: Path) -> None:
    broken = {"role": "grader", "error": {"kind": "auth", "message": "as it was told to"}}
    async with watched(client, tmp_path, broken) as monitor:
        monitor.write("a.jsonl", "a", "b")

        found = await monitor.tick()

        assert (found.rate.judged, found.ticks[0].errors) == (0, 2)


@pytest.mark.slow
async def test_a_judge_by_a_schema_passes_what_its_rule_says(client: Client, tmp_path: Path) -> None:
    said = {"role": "grader", "text": '<response>{"label": "match", "explanation": "x"}</response>'}
    async with watched(client, tmp_path, said, judge=FRANCE, passes=["label=match"]) as monitor:
        monitor.write("a.jsonl", "a")

        found = await monitor.tick()

        assert (found.rate.passed, found.rate.judged) == (1, 1)


async def test_an_alert_and_its_end_reach_the_webhook_once(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "EMPTY_TICKS", 1)
    async with hooked() as hook, watched(client, tmp_path, passes(), settings={"notify": hook.settings()}) as monitor:
        await monitor.tick()
        await client.get_workflow_handle(f"notices/monitor/{monitor.name}/1").result()  # which is there before the alert is over
        (begun,) = [post for post in await hook.posted(1) if "monitor" in post]
        await monitor.tick()
        monitor.write("a.jsonl", "a")
        found = await monitor.tick()

        assert begun["type"] == "monitor.alert"
        posts = [post for post in await hook.posted(2) if "monitor" in post]
        assert [(post["type"], post["monitor"]) for post in sorted(posts, key=lambda post: post["type"])] == [
            ("monitor.alert", monitor.name),
            ("monitor.clear", monitor.name),
        ]
        assert [alert.kind for alert in found.alerts] == ["silence"]
        assert not found.open_alerts


async def test_a_source_that_cannot_be_read_is_a_problem_of_the_tick(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes()) as monitor:
        monitor.folder.rmdir()

        found = await monitor.tick()

        assert "does not exist" in (found.ticks[0].problem or "")


@pytest.mark.slow
async def test_a_schedule_begins_ticks_until_it_is_paused(client: Client, tmp_path: Path) -> None:
    schedules = MonitorSchedules(client)
    async with watched(client, tmp_path, passes()) as monitor:
        monitor.write("a.jsonl", "a")
        await schedules.create(monitor.name, 3600, monitor.batches.served.task_queue)
        await schedules.create(monitor.name, 3600, monitor.batches.served.task_queue)
        try:
            await schedules.run_now(monitor.name)
            await monitor.batches.served.models.called("grader")
            await schedules.pause(monitor.name)
            paused = await schedules.find(monitor.name)
            await schedules.resume(monitor.name)
            resumed = await schedules.find(monitor.name)
        finally:
            await schedules.delete(monitor.name)

    assert paused is not None
    assert resumed is not None
    assert (paused.paused, resumed.paused) == (True, False)
    assert resumed.next_tick
    assert await schedules.find(monitor.name) is None
