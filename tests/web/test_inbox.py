"""The inbox: what waits for a person, oldest first, on the live page and in the terminal, each as a card that decides."""

import asyncio
import io
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import expect
from rich.console import Console
from temporalio.client import Client

from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.unsure import UnsureBatch
from gradeloop.batches.unsure import questions as unsure_asked
from gradeloop.cli.rubrics import inbox_lines
from gradeloop.client.client import GradingClient
from gradeloop.client.listing import ListedThread
from gradeloop.client.waiting import WaitingThread
from gradeloop.contract.evaluation import DraftInQuestion, WaitingCriterion, WaitingFor
from gradeloop.monitors.labelling import MonitorLabels
from gradeloop.monitors.labelling import questions as labels_asked
from gradeloop.reports.html import batch_path, case_path, thread_path
from gradeloop.reports.run_page import run_page
from gradeloop.settings.paths import user_name
from gradeloop.temporal.connect import Connection
from gradeloop.web.app import inbox_page
from gradeloop.web.pages import waiting_line
from gradeloop.web.site import IndexSection, SteeredPage
from tests.batches.test_unsure import unsure, votes
from tests.monitors.test_monitoring import watched
from tests.reports.test_first_look import rejecting
from tests.rig.batches import batching, drafted, fails, passes
from tests.rig.browser import axe_findings, too_wide, watch
from tests.rig.page_payloads import PAYLOADS
from tests.rig.pages import Browser, paged
from tests.rig.stories import mended
from tests.rig.threads import draft, grade, request, serving, until
from tests.workflows.test_people import RUBRIC

SECONDS = 240.0


def inbox_of(client: GradingClient, folder: Path) -> AbstractAsyncContextManager[Browser]:
    """Serve the live pages of the test's server."""
    address = client.temporal.service_client.config.target_host
    return paged(client, Connection(address, "default", embedded=False), folder)


async def inbox_with(browser: Browser, words: str) -> str:
    """Return the inbox once it shows the words."""
    text = ""
    async with asyncio.timeout(SECONDS):
        while words not in (text := unescape((await browser.get("/inbox")).text)):
            await asyncio.sleep(0.1)
    return text


async def test_the_inbox_leads_to_the_runs_of_monitors_that_wait_for_a_label(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, fails("bad"), passes()) as monitor:
        monitor.write("a.jsonl", "x", said="bad")
        monitor.write("b.jsonl", "y")
        await monitor.tick()
        waiting = await MonitorLabels(monitor.batches.store).waiting(None)
        async with inbox_of(GradingClient(client, task_queue="none"), tmp_path) as browser:
            shown = (await browser.get("/inbox")).text
            led = await browser.get(f"/monitors/{monitor.name}/labels")
    printed = [str(line) for line in inbox_lines([], NOW, [labels_asked(waiting)])]

    assert f'<a href="/monitors/{monitor.name}/labels">{monitor.name}</a>' in shown
    assert "2 RUNS TO LABEL" in shown
    assert "Nothing waits for a person" not in shown
    assert led.status_code == 200
    assert printed == ["2 runs of monitors to label", f"  {monitor.name}: 2 runs; label them: gradeloop monitor label {monitor.name}"]


@pytest.mark.slow
async def test_a_person_decides_on_a_card_of_the_inbox(client: Client, tmp_path: Path) -> None:
    async with (
        serving(client, draft(text="a cat **sat**"), grade()) as served,
        inbox_of(served.client, tmp_path) as browser,
    ):
        thread = await served.start(request(RUBRIC))
        path = thread_path(thread.id)
        state = await until(thread, "waiting")
        page = await inbox_with(browser, thread.id)
        about = {name: state["waiting_for"][name] for name in ("grading_run_id", "iteration")} | {"criterion": "promise"}
        taken = await browser.say(f"{path}/decide", about | {"passed": True})
        result = await thread.result()
        async with asyncio.timeout(SECONDS):
            while thread.id in (await browser.get("/inbox")).text:
                await asyncio.sleep(0.1)

    assert taken.json() == {"ok": True, "by": user_name()}
    assert result.status == "satisfied"
    assert "WAITING FOR A PERSON" in page
    assert page.index("a cat <strong>sat</strong>") < page.index(f'data-to="{path}/decide"')


@pytest.mark.slow
async def test_the_list_begins_with_the_threads_that_wait_and_names_them_by_their_tasks(client: Client, tmp_path: Path) -> None:
    async with serving(client, draft(), grade()) as served, inbox_of(served.client, tmp_path) as browser:
        words = f"Write about cats {uuid4()}"
        thread = await served.start(request(RUBRIC, messages=[{"role": "user", "content": words}]))
        await until(thread, "waiting")
        page = ""
        async with asyncio.timeout(SECONDS):
            while words not in page or "WAITING FOR A PERSON" not in page:
                page = (await browser.get("/")).text
                await asyncio.sleep(0.1)
        await thread.cancel()

    assert page.index("WAITING FOR A PERSON") < page.index(words) < page.index(f">{thread.id}, open, ")


async def test_unsure_cases_of_a_batch_are_in_the_inbox_with_links(client: Client, tmp_path: Path) -> None:
    async with batching(client, tmp_path, *votes(True, True, False)) as batches:
        summary, _ = await batches.run([unsure("a/b")])
        async with inbox_of(GradingClient(client, task_queue=batches.served.task_queue), tmp_path) as browser:
            page = await inbox_with(browser, summary.batch_id)
            shown = await browser.get(case_path(summary.batch_id, "a/b"))

    assert '<p class="answer unsure">1 UNSURE IN BATCHES</p>' in page
    assert "unsure of c1: 2 of 3 votes pass it" in page
    assert f'href="{case_path(summary.batch_id, "a/b")}"' in page
    assert "Nothing waits" not in page
    assert shown.status_code == 200


@pytest.mark.parametrize("total", [1, 21])
def test_the_terminal_names_unsure_cases_and_the_command_that_shows_them(total: int) -> None:
    case = CaseResult(index=0, id="paris", status="unsure", unsure=("c1",), output="In France.")
    batch = UnsureBatch(BatchSummary(batch_id="batch-1", name="capitals", created="", status="finished", total=total, unsure=total), [case])
    lines = [str(line) for line in inbox_lines([], NOW, [unsure_asked([batch])])]

    assert lines[0] == f"{total} unsure in batches: votes disagree, and no judge decides"
    assert "  paris: unsure of c1" in lines
    assert ("  and 20 more" in lines) == (total == 21)
    assert lines[-1] == "  read them: gradeloop report batch-1 --open"
    assert [str(line) for line in inbox_lines([], NOW)] == ["nothing waits for a person"]


def test_what_an_undecided_case_says_is_escaped_on_the_page() -> None:
    for payload in PAYLOADS[:20]:
        case = CaseResult(index=0, id=payload, status="unsure", unsure=(payload,), error=payload, output=payload)
        batch = BatchSummary(batch_id="b", name=payload, created="", status="finished", total=1, unsure=1)
        page = inbox_page([], unsure_asked([UnsureBatch(batch, [case])]).html(), token="t")

        assert payload not in page or "<" not in payload


async def test_a_paused_batch_goes_on_from_its_page(client: Client, tmp_path: Path) -> None:
    batch_id = f"batch-{uuid4()}"
    async with batching(client, tmp_path, passes(), draft()) as batches:
        gate = batches.served.models.gate("generator")
        await batches.upload(batch_id, [drafted(f"c{number}") for number in range(6)])
        handle = await batches.start(batch_id, 6, at_once=1)
        await gate.reached.wait()
        typed = GradingClient(client, task_queue=batches.served.task_queue)
        async with inbox_of(typed, tmp_path) as browser:
            running = (await browser.get(batch_path(batch_id))).text
            await browser.say(f"{batch_path(batch_id)}/pause")
            gate.opened.set()
            await handle.result()
            paused = (await browser.get(batch_path(batch_id))).text
            resumed = await browser.say(f"{batch_path(batch_id)}/resume")
            summary = await client.get_workflow_handle(batch_id).result()
            again = await browser.say(f"{batch_path(batch_id)}/resume")

    assert 'data-to="/batches/' in running
    assert "Pause</button>" in running
    assert "Resume</button>" in paused
    assert resumed.json() == {"ok": True}
    assert (summary["status"], summary["passed"]) == ("finished", 6)
    assert again.status_code == 200


NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def card(text: str, minutes: int = 90) -> WaitingThread:
    """Return a thread that says one thing wherever anybody but us writes."""
    question = DraftInQuestion(index=1, text=text, rows=mended().evaluations[0].criteria)
    waiting = WaitingFor(grading_run_id="run", iteration=0, criteria=(WaitingCriterion(id="legal", name=text),), draft=question)
    since = NOW - timedelta(minutes=minutes)
    return WaitingThread(thread_id="reply", started=since, since=since, task=text, waiting_for=waiting, task_queue="q")


def test_the_terminal_shows_the_same_card_with_the_commands_that_decide() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=120)
    for line in inbox_lines([card("a cat sat")], NOW):
        console.print(line)
    shown = screen.getvalue()

    assert shown.startswith("1 waiting for a person, oldest first")
    assert "a cat sat" in shown
    assert "no step" in shown
    assert "gradeloop decide reply legal --pass" in shown
    assert [line.plain for line in inbox_lines([], NOW) if hasattr(line, "plain")] == ["nothing waits for a person"]


@pytest.mark.slow
async def test_cards_keep_nobody_out_and_obey_keys_and_payloads_do_nothing(browser: Chromium, tmp_path: Path) -> None:
    page = await browser.new_page(viewport={"width": 400, "height": 800})
    seen = watch(page)
    path = tmp_path / "inbox.html"
    path.write_text(inbox_page([card("a cat sat"), card("a dog ran")], token="t"))
    await page.goto(path.as_uri())
    assert await axe_findings(page) == []
    assert await too_wide(page) <= 0
    await page.keyboard.press("r")
    await expect(page.locator("textarea[name=gap]").first).to_be_focused()
    await page.locator("h1").click()
    await page.keyboard.press("a")
    await expect(page.locator("button.yes").first).to_be_focused()
    for payload in PAYLOADS:
        path.write_bytes(inbox_page([card(payload)], token="t").encode(errors="replace"))
        await page.reload()
        assert await page.locator("main img, main iframe, main object, main embed, main base, main dialog, main video").count() == 0, (
            payload
        )
        assert await page.evaluate("window.attacked") is None, payload
    assert seen.dialogs == []
    await page.close()


@pytest.mark.slow
async def test_the_keys_of_a_card_lead_back_to_it_from_below(browser: Chromium, tmp_path: Path) -> None:
    page = await browser.new_page(viewport={"width": 1280, "height": 400})
    path = tmp_path / "waiting.html"
    live = SteeredPage(token="t", path="/p", thread="/p", status="waiting", open=True, tag="")
    path.write_text(run_page(rejecting(), live=live))
    await page.goto(path.as_uri())
    await page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    await expect(page.locator("form.asked").first).not_to_be_in_viewport()
    await page.keyboard.press("a")
    await expect(page.locator("button.yes").first).to_be_focused()
    await expect(page.locator("button.yes").first).to_be_in_viewport()
    await page.close()


def listed(*names: str) -> list[ListedThread]:
    """Return threads of these ids, all of which wait."""
    about = {"open": True, "started": NOW, "closed": None, "grading_run_id": None, "rubric_sha256": None, "task_queue": "q"}
    return [ListedThread.model_validate(about | {"thread_id": name, "status": "waiting"}) for name in names]


LINES = [
    ((), 0, ""),
    (("a",), 0, "WAITING FOR A PERSON: 1 thread"),
    (("b/x", "b/y"), 2, "WAITING FOR A PERSON: 2 cases in batches"),
    (("a", "b/x"), 1, "WAITING FOR A PERSON: 1 thread, 1 case in batches"),
    ((), 1, "WAITING FOR A PERSON: 1 case in batches"),
]


def test_the_line_of_the_list_counts_what_its_columns_count(subtests: pytest.Subtests) -> None:
    for names, cases, line in LINES:
        with subtests.test(line):
            assert waiting_line(listed(*names), [IndexSection("", waiting=cases, owners=("b",))]) == line


async def test_what_a_person_said_of_an_earlier_draft_is_on_the_card_and_in_the_terminal(client: Client, tmp_path: Path) -> None:
    async with serving(client, draft(), grade(), draft(1), grade(1)) as served, inbox_of(served.client, tmp_path) as browser:
        thread = await served.start(request(RUBRIC))
        asked = (await until(thread, "waiting"))["waiting_for"]
        about = {name: asked[name] for name in ("grading_run_id", "iteration")} | {"criterion": "promise", "by": "ann"}
        await thread.execute_update("decide", about | {"passed": False, "gap": "it promises a refund"})
        page = await inbox_with(browser, "Draft 1 was rejected because:")
        (waiting,) = [one for one in await served.client.waiting() if one.thread_id == thread.id]
        await thread.cancel()

    assert "it promises a refund" in page
    assert [(one.criterion, one.iteration, one.gap) for one in waiting.rejections] == [("promise", 0, "it promises a refund")]
    assert "promise: draft 1 was rejected because: it promises a refund" in [str(line) for line in inbox_lines([waiting], NOW)]
