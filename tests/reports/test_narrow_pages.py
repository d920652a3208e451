"""Pages in a window of 400 pixels: tables stand as cards, a label over each value, and nothing is cut or scrolled sideways."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from gradeloop.batches.pages.read_batch import batch_page
from gradeloop.client.waiting import WaitingThread
from gradeloop.contract.evaluation import PendingCall, WaitingFor
from gradeloop.reports.run_page import run_page
from gradeloop.web.app import inbox_page
from gradeloop.web.site import SteeredPage
from rig.large_batch import report_of
from tests.reports.test_diff_page import page_of
from tests.reports.test_first_look import rejecting
from tests.rig.batch_results import case
from tests.rig.browser import axe_findings, cut_off, too_wide, watch
from tests.rig.stories import gated_page, judged, mended
from tests.web.test_inbox import card

pytestmark = pytest.mark.slow

NARROW = {"width": 400, "height": 900}
TOOL = "look_up_the_customer_in_the_register_of_contracts_and_return_every_open_invoice_of_this_year"


async def opened(browser: Browser, folder: Path, html: str) -> Page:
    """Open a page from disk in a narrow window, with all that is folded unfolded."""
    (folder / "page.html").write_text(html)
    page = await browser.new_page(viewport=NARROW, color_scheme="light")  # type: ignore[arg-type]  # Playwright's own type of sizes
    await page.goto((folder / "page.html").as_uri())
    await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    return page


def compared(folder: Path) -> str:
    """Return the page of two batches with regressions, errors and long names."""
    before = [case(0, "failed"), case(1, output="we open at nine"), case(2), case(3, id="a/case/with/a/very/long/name/" * 4)]
    now = [case(0), case(1, "failed", output="we open at ten"), case(2, "error"), case(3, "failed", id="a/case/with/a/very/long/name/" * 4)]
    return page_of(folder, before, now)


def waiting() -> WaitingThread:
    """Return a thread that waits for a call of a tool with a long name."""
    call = PendingCall(call="c", tool=TOOL, arguments={"id": "x" * 200}, role="grader")
    return card("a cat sat").model_copy(update={"waiting_for": WaitingFor(grading_run_id="run", iteration=0, criteria=(), calls=(call,))})


@pytest.mark.parametrize("name", ["diff", "inbox", "batch", "models", "run", "judgement", "judgements", "waiting"])
async def test_nothing_is_cut_in_a_narrow_window(browser: Browser, tmp_path: Path, name: str) -> None:
    pages: dict[str, Callable[[], str]] = {
        "diff": lambda: compared(tmp_path),
        "inbox": lambda: inbox_page([waiting(), card("a dog ran")], token="t"),
        "batch": lambda: batch_page(report_of(60)),
        "models": lambda: batch_page(report_of(60, 3)),
        "run": lambda: run_page(mended()),
        "judgement": lambda: run_page(judged()),
        "judgements": gated_page,
        "waiting": lambda: run_page(rejecting(), live=SteeredPage(token="t", path="/p", thread="/p", status="waiting", open=True, tag="")),
    }
    page = await opened(browser, tmp_path, pages[name]())

    assert await cut_off(page) == []
    assert await too_wide(page) <= 0
    assert await axe_findings(page) == []
    await page.emulate_media(color_scheme="dark")
    assert await axe_findings(page) == []
    await page.close()


async def test_the_diff_stacks_its_rows_as_cards_with_a_label_over_each_value(browser: Browser, tmp_path: Path) -> None:
    page = await opened(browser, tmp_path, compared(tmp_path))
    row = page.locator("#table tbody tr").first
    a, b = row.locator("td[data-h=A]"), row.locator("td[data-h=B]")
    label = await a.evaluate("(cell) => getComputedStyle(cell, '::before').content")
    places = {name: await cell.bounding_box() for name, cell in (("id", row.locator("td").first), ("a", a), ("b", b))}

    assert label == '"A"'
    assert places["id"] is not None
    assert places["a"] is not None
    assert places["b"] is not None
    assert places["id"]["y"] + places["id"]["height"] <= places["a"]["y"]
    assert places["a"]["y"] == places["b"]["y"]
    assert places["a"]["x"] < places["b"]["x"]
    await page.close()


async def test_the_heading_of_a_diff_of_long_paths_takes_a_line_or_two(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / ("a-folder-with-a-long-name" * 6)
    folder.mkdir()
    page = await opened(browser, tmp_path, compared(folder))
    heading = await page.locator("h1").bounding_box()

    assert heading is not None
    assert heading["height"] < 80
    assert str(folder) in str(await page.locator("h1").get_attribute("title"))
    assert await too_wide(page) <= 0
    assert await cut_off(page) == []
    await page.close()


async def test_the_line_of_a_live_page_wraps(browser: Browser, tmp_path: Path) -> None:
    page = await opened(browser, tmp_path, inbox_page([waiting()], token="t"))
    seen = watch(page)
    await page.evaluate(
        "document.getElementById('live-line').textContent = '1 thread waiting; updated at 12:34:56 PM, and more words that follow'"
    )

    assert await too_wide(page) <= 0
    assert await cut_off(page) == []
    assert seen.complaints == []
    await page.close()
