"""The pages of monitors: rates over time, alerts, strata and failures with their judgements; whatever runs are called."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import expect
from sqlalchemy import Connection
from temporalio.client import Client

from gradeloop.batches.trends import HEIGHT
from gradeloop.client.client import GradingClient
from gradeloop.monitors import anchors
from gradeloop.monitors.client import MonitorSchedules
from gradeloop.monitors.contract import Alert, AlertRule, MonitorDefinition, MonitorState, OpenAlert, Rate, TickReport
from gradeloop.monitors.labelling import MonitorLabels
from gradeloop.monitors.overview import MonitorReader, MonitorSummary
from gradeloop.monitors.pages.live import POINTS, monitor_answer, rate_chart, rate_points
from gradeloop.settings.paths import user_name
from gradeloop.stats.intervals import wilson
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from gradeloop.temporal.connect import Connection as ServerConnection
from gradeloop.web.site import main_of
from tests.monitors.test_anchors import change_judge, with_anchors
from tests.monitors.test_anchors import ticks as run_ticks
from tests.monitors.test_monitoring import JUDGE, watched
from tests.rig.batches import fails, passes
from tests.rig.browser import axe_findings, too_wide, watch
from tests.rig.page_payloads import PAYLOADS
from tests.rig.pages import paged

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def rate(passed: int, judged: int) -> Rate:
    return Rate(passed=passed, judged=judged, interval=wilson(passed, judged) if judged else None)


def tick(number: int, passed: int, judged: int, **more: Any) -> TickReport:
    time = (BEGAN + timedelta(minutes=10 * number)).isoformat()
    return TickReport(number=number, tick=f"t{number}", time=time, read=judged, rate=rate(passed, judged), settled=True, **more)


def definition(**more: Any) -> MonitorDefinition:
    about = {"name": "support", "source": {"kind": "folder", "path": "/runs"}, "judge": JUDGE, "stratum": "plan"}
    return MonitorDefinition.model_validate(about | more)


async def fill(store: Store, names: tuple[str, ...] = ("a run",), strata: tuple[str, ...] = ("free",)) -> None:
    """Store a monitor that went from 95 % to 80 % and back, with alerts, strata and failures of these names."""
    await MonitorReader(store).create(definition(alerts=[{"rate": "pass_rate", "below": True, "limit": 0.9}]))
    ticks = []
    for number in range(1, 101):
        passed = 16 if 40 <= number < 70 else 19
        ticks.append(tick(number, passed, 20, strata={name: rate(passed // len(strata), 20 // len(strata)) for name in strata}))
    first, second = ticks[45].time, ticks[80].time
    alerts = [
        Alert(kind="pass_rate < 0.9", number=46, time=first, text="pass_rate is below 90%: 80% (16 of 20) in this tick", cleared=second),
        Alert(kind="drift", number=60, time=ticks[59].time, text=f"pass_rate has left {names[0]}", runs=names[:10]),
    ]
    state = MonitorState(ticks=100, open={"drift": OpenAlert(number=60)})

    def write(connection: Connection) -> None:
        connection.execute(table("monitors").update().values(state=state.model_dump_json()))
        rows = [
            {"monitor": "support", "number": one.number, "tick": one.tick, "settled": 1, "report": one.model_dump_json()} for one in ticks
        ]
        connection.execute(table("monitor_ticks").insert(), rows)
        for alert in alerts:
            values = {
                "number": alert.number,
                "kind": alert.kind,
                "alert": alert.model_dump_json(),
                "cleared": 81 if alert.cleared else None,
            }
            connection.execute(table("monitor_alerts").insert().values(monitor="support", **values))
        runs = [
            {"monitor": "support", "run_sha256": f"{at:064d}", "run_id": name, "number": 100 - at, "judged": 100 - at, "why": "sampled"}
            | {"stratum": strata[at % len(strata)], "verdict": "failed"}
            for at, name in enumerate(names[:20])
        ]
        connection.execute(table("monitor_runs").insert(), runs)

    await store.write(write)


def found(*ticks: TickReport, alerts: tuple[Alert, ...] = (), opened: dict[str, OpenAlert] | None = None) -> MonitorSummary:
    """Return a monitor that warns below 90 %, with these ticks, the newest first."""
    return MonitorSummary(
        name="support",
        definition=definition(alerts=[{"rate": "pass_rate", "below": True, "limit": 0.9}]),
        state=MonitorState(open=opened or {}),
        rate=rate(sum(one.rate.passed for one in ticks), sum(one.rate.judged for one in ticks)),
        strata={},
        ticks=ticks,
        alerts=alerts,
        failed=(),
    )


def test_a_rate_beyond_its_limit_is_not_green_before_the_alert_is_decided() -> None:
    why = "the pass rate is 50% (1 of 2), below its limit of 90%, which may be chance: more judged runs decide"
    raised = Alert(kind="pass_rate < 0.9", number=1, time=tick(1, 1, 2).time, text="it fell")
    over = raised.model_copy(update={"cleared": tick(2, 1, 1).time})

    assert monitor_answer(found()) == ("NOTHING JUDGED YET", "waiting")
    assert monitor_answer(found(tick(1, 1, 2))) == (f"NO ALERT YET: {why}", "waiting")
    assert monitor_answer(found(tick(1, 19, 20))) == ("NO ALERT", "passed")
    assert monitor_answer(found(tick(1, 1, 2), alerts=(raised,), opened={raised.kind: OpenAlert(number=1)})) == (
        f"1 OPEN ALERT: {raised.kind}",
        "failed",
    )
    assert monitor_answer(found(tick(3, 5, 5), tick(1, 1, 2), alerts=(over,))) == ("NO ALERT", "passed")


def test_points_are_bounded_and_lose_no_run() -> None:
    points = rate_points([tick(number, 1, 2) for number in range(1, 1001)])

    assert len(points) <= POINTS
    assert sum(point.rate.judged for point in points) == 2000
    assert sum(point.rate.passed for point in points) == 1000


def test_a_chart_has_its_band_around_the_rate_and_limits_and_alerts_in_their_places() -> None:
    reports = [tick(number, 18, 20) for number in (3, 2, 1)]
    alert = Alert(kind="drift", number=2, time=reports[1].time, text="it fell", cleared=reports[0].time)
    chart = rate_chart(reports, [alert], definition(alerts=[{"rate": "pass_rate", "below": True, "limit": 0.8}]))
    band = wilson(18, 20)

    assert chart is not None
    floor = 0.6
    height = [float(y) for y in re.findall(r" ([\d.]+)", chart.band)]
    assert chart.scale == ("100%", "80%", "60%")
    assert min(height) == pytest.approx(HEIGHT * (1 - band.high) / (1 - floor), abs=0.1)
    assert max(height) == pytest.approx(HEIGHT * (1 - band.low) / (1 - floor), abs=0.1)
    assert chart.limits == (100.0,)
    assert [(kind, x) for x, kind, _ in chart.markers] == [("raised", 500.0), ("cleared", 1000.0)]
    assert chart.label.startswith("Pass rate over time, 3 points: first 90%")


def test_a_single_tick_is_a_band_that_can_be_seen_and_no_tick_is_no_chart() -> None:
    one = rate_chart([tick(1, 1, 2)], [], definition())

    assert one is not None
    assert {float(x) for x in re.findall(r"[ML]([\d.]+)", one.band)} == {494.0, 506.0}
    assert rate_chart([tick(1, 0, 0)], [], definition()) is None


async def test_a_failure_of_a_monitor_leads_to_its_judgement(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes(), fails("bad", gap="it is rude"), stratum="plan") as monitor:
        monitor.write("a.jsonl", "a")
        monitor.write("b.jsonl", "b", said="bad")
        server = ServerConnection(client.service_client.config.target_host, "default", embedded=False)
        async with paged(GradingClient(client, task_queue="none"), server, tmp_path) as browser:
            before = await browser.get(f"/monitors/{monitor.name}")
            await monitor.tick()
            page = await browser.get(f"/monitors/{monitor.name}")
            again = await browser.part(f"/monitors/{monitor.name}", page.headers["ETag"])
            (link,) = re.findall(r'<a href="(/batches/[^"]+)">b</a>', page.text)
            judgement = await browser.get(unescape(link))
            listed = await browser.get("/monitors")
            index = await browser.get("/")
            unknown = await browser.get("/monitors/none")

    assert "NOTHING JUDGED YET" in before.text
    assert "the first tick is still to come" in before.text
    assert "No judged run has failed." in before.text
    assert "Pass rate 50%" in page.text
    assert page.headers["ETag"] != before.headers["ETag"]
    assert again.status_code == 304
    assert "it is rude" in judgement.text
    assert f'<a href="/monitors/{monitor.name}">' in listed.text
    assert f'<a href="/monitors/{monitor.name}">{monitor.name}</a> <span class="badge none">no alert</span>' in index.text
    assert (unknown.status_code, "there is no monitor" in unknown.text) == (404, True)


async def test_a_page_says_that_no_worker_is_there_for_the_ticks_until_one_is(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes()) as monitor:
        schedules, name = MonitorSchedules(client), monitor.name
        await schedules.create(name, 86_400, f"nobody-{name}")
        try:
            server = ServerConnection(client.service_client.config.target_host, "default", embedded=False)
            async with paged(GradingClient(client, task_queue="none"), server, tmp_path) as browser:
                unserved, listed = await browser.get(f"/monitors/{name}"), await browser.get("/monitors")
                await schedules.create(name, 86_400, monitor.batches.served.task_queue)
                served, listed_again = await browser.get(f"/monitors/{name}"), await browser.get("/monitors")
        finally:
            await schedules.delete(name)

    assert '<p class="error" dir="auto">no worker is there for its ticks: run `gradeloop dev`' in unserved.text
    assert "no worker is there for its ticks" in listed.text
    assert "no worker is there" not in served.text + listed_again.text
    assert served.headers["ETag"] != unserved.headers["ETag"]


async def test_people_label_runs_on_a_page_that_does_not_say_what_the_judge_says(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes(), fails("bad", gap="it is rude")) as monitor:
        monitor.write("a.jsonl", "a")
        monitor.write("b.jsonl", "b", said="bad <b>words</b>")
        await monitor.tick()
        server = ServerConnection(client.service_client.config.target_host, "default", embedded=False)
        path = f"/monitors/{monitor.name}/labels"
        async with paged(GradingClient(client, task_queue="none"), server, tmp_path) as browser:
            seen, known = list[str](), (await browser.get(f"/monitors/{monitor.name}")).headers["ETag"]
            while run := re.search(r'name="run" value="([0-9a-f]+)"', (page := await browser.get(path)).text):
                seen.append(main_of(page.text))
                given = await browser.say(path, {"run": run[1], "passed": "bad" in seen[-1], "reason": "read"})
                assert given.status_code == 200, given.text
            shown = await browser.part(f"/monitors/{monitor.name}", known)
            nobody = await browser.say(path, {"run": "0" * 64, "passed": True})
            named = await browser.say(path, {"run": "a", "passed": True, "by": "ada"})
            stranger = await browser.say(path, {"run": "a", "passed": True}, X_Gradeloop_Token="other")
            unknown = await browser.get("/monitors/none/labels")
        labels = await MonitorLabels(monitor.batches.store).given(monitor.name)

    assert ["2 RUNS TO LABEL" in text for text in seen] == [True, False]
    assert not any(word in text for text in seen for word in ("it is rude", "failed", "satisfied", "needs_revision"))
    assert any("bad &lt;b&gt;words&lt;/b&gt; b" in text for text in seen)
    assert "No run waits for a label." in page.text
    assert {(one.run_id, one.passed, one.created_by) for one in labels} == {("a", False, user_name()), ("b", True, user_name())}
    assert "labels: people pass 0 of 1 that the judge passed, and 1 of 1 that it failed" in shown.text
    assert (nobody.status_code, "has judged no run" in nobody.text) == (400, True)
    assert (named.status_code, "by: the server of this page says who decides" in named.json()["error"]) == (400, True)
    assert stranger.status_code == 403
    assert unknown.status_code == 404


async def test_a_store_without_monitors_says_how_to_create_one(client: Client, tmp_path: Path) -> None:
    server = ServerConnection(client.service_client.config.target_host, "default", embedded=False)
    async with paged(GradingClient(client, task_queue="none"), server, tmp_path) as browser:
        listed, index = await browser.get("/monitors"), await browser.get("/")

    assert "gradeloop monitor create NAME" in listed.text
    assert "/monitors" not in index.text


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_narrow_page_fits_and_nothing_in_it_runs(browser: Chromium, client: Client, tmp_path: Path, scheme: Any) -> None:
    (store := Store(f"sqlite:///{tmp_path / 'results.db'}")).do(lambda _: None)
    await fill(store, tuple(PAYLOADS), tuple(PAYLOADS[:5]))
    store.close()
    server = ServerConnection(client.service_client.config.target_host, "default", embedded=False)
    async with paged(GradingClient(client, task_queue="none"), server, tmp_path) as served:
        page = await browser.new_page(viewport={"width": 400, "height": 900}, color_scheme=scheme)
        seen = watch(page)
        widths, issues = [], []
        for path in ("/monitors/support", "/monitors/support/labels", "/monitors", "/"):
            await page.goto(served.address + path)
            widths.append(await too_wide(page))
            issues += await axe_findings(page)
        await page.goto(f"{served.address}/monitors/support")
        attacked = await page.evaluate("window.attacked")
        chart = await page.locator(".rate-chart svg").bounding_box()
        await page.close()

    assert (widths, issues) == ([0, 0, 0, 0], [])
    assert (attacked, seen.dialogs, seen.complaints) == (None, [], [])
    assert [url for url in seen.requests if not url.startswith((served.address, "data:"))] == []
    assert chart is not None
    assert chart["width"] > 250


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moved", "says"),
    [
        ("judge", r"the judge has moved: of \d+ of \d+ anchors it says what it first said"),
        ("world", r"the world has moved, not the judge: of (\d+) of \1 anchors it says what it first said"),
    ],
)
async def test_an_alert_on_the_page_says_whether_the_world_or_the_judge_has_moved(
    browser: Chromium, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: str, says: str
) -> None:
    """The page is open while the rate falls, and shows the alert as it comes."""
    monkeypatch.setattr(anchors, "ANCHOR_BASELINE", 100)
    server = ServerConnection(client.service_client.config.target_host, "default", embedded=False)
    async with watched(client, tmp_path, fails("bad"), passes()) as plain:
        monitor = await with_anchors(plain, alerts=(AlertRule.parse("pass_rate < 0.9"),))
        await run_ticks(monitor, range(7), 5)
        async with paged(GradingClient(client, task_queue="none"), server, tmp_path) as served:
            page = await browser.new_page()
            seen = watch(page)
            await page.goto(f"{served.address}/monitors/{monitor.name}")
            calm = await page.locator("main").inner_text()
            if moved == "judge":
                change_judge(monitor, fails())
            await run_ticks(monitor, range(7, 13), 5, "good" if moved == "judge" else "bad")
            alert = page.locator("main li, main p, main td, main section").filter(has_text="pass_rate is below 90%").last
            await expect(alert).to_contain_text(re.compile(says), timeout=20_000)
            if moved == "judge":
                await expect(page.locator("main")).to_contain_text("the judge has changed", timeout=20_000)
            said = await page.locator("main").inner_text()
            await page.close()

    other = "the world has moved" if moved == "judge" else "the judge has moved"
    assert "has moved" not in calm
    assert "NO ALERT" in calm
    assert other not in said
    assert ("the judge has changed" in said) == (moved == "judge")
    assert seen.complaints == []
