"""The live index, trends and ratings, driven in a browser by keyboard: found, read, and said what one thinks of a case."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from temporalio.client import Client

from gradeloop.client.client import GradingClient
from gradeloop.settings.paths import user_name
from gradeloop.store.engine import Store
from tests.rig.browser import axe_findings, cut_off, too_wide
from tests.rig.stored_batches import put_batch
from tests.web.test_live_browser import visited

pytestmark = pytest.mark.slow

DAY = datetime(2026, 11, 1, 12, tzinfo=UTC)


def fill(folder: Path) -> None:
    """Put three suites into the store of a live page."""
    store = Store(f"sqlite:///{folder / 'results.db'}")
    for at in range(8):
        statuses = {f"case {number}": "passed" if (number + at) % 4 else "failed" for number in range(12)}
        more = {"case": {"rubric": f"- it is good\n- it is short, {at // 4}"}, "models": ("openai:gpt-5-mini",), "seconds": 1.0 + at / 3}
        put_batch(store, f"nightly-{at}", statuses, created=DAY + timedelta(at), name="nightly", **more)  # type: ignore[arg-type]
    put_batch(store, "letters-1", {"a": "unsure", "b": "passed"}, created=DAY, name="letters")
    put_batch(store, "release-1", {"a": "passed"}, created=DAY, name="before the release", suite="weekly", models=("mistral:small",))
    store.close()


async def test_a_suite_is_found_by_keyboard_and_its_trends_and_cases_are_read(browser: Browser, client: Client, tmp_path: Path) -> None:
    fill(tmp_path)
    async with visited(browser, GradingClient(client), tmp_path) as (page, seen):
        await expect(page.locator("p.answer.waiting")).to_contain_text("WAITING FOR A PERSON: 1 unsure case")
        home = page.url
        await page.get_by_role("searchbox").focus()
        await page.keyboard.type("mini nightly")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{home}?q=mini+nightly")
        await expect(page.locator(".listed").first.locator("tbody tr")).to_have_count(1)
        await page.locator("summary", has_text="arlier").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("details li").first).to_contain_text("fixed")
        await page.wait_for_timeout(2500)  # two looks for changes, which must keep both the search and what is open
        await expect(page.locator(".listed").first.locator("tbody tr")).to_have_count(1)
        await expect(page.locator("details li").first).to_be_visible()
        await page.get_by_role("link", name="Trends").press("Enter")
        await expect(page.locator("h1")).to_have_text("nightly")
        await expect(page.locator(".rate-chart path.limit")).to_have_count(3)
        await expect(page.locator("tbody tr").nth(3)).to_contain_text("rubric")
        assert await axe_findings(page) == []
        assert (seen.dialogs, seen.complaints) == ([], [])


async def test_the_search_works_without_a_script(browser: Browser, client: Client, tmp_path: Path) -> None:
    fill(tmp_path)
    async with visited(browser, GradingClient(client), tmp_path) as (page, _):
        bare = await browser.new_context(java_script_enabled=False)
        plain = await bare.new_page()
        await plain.goto(page.url)
        await plain.get_by_role("searchbox").fill("weekly")
        await plain.keyboard.press("Enter")
        await expect(plain.locator(".listed").first.locator("tbody tr")).to_have_count(1)
        await expect(plain.locator(".listed").first).to_contain_text("before the release")
        await bare.close()


async def test_a_person_rates_a_case_and_everybody_sees_it(browser: Browser, client: Client, tmp_path: Path) -> None:
    fill(tmp_path)
    async with visited(browser, GradingClient(client), tmp_path, "/batches/nightly-7/cases/case%201") as (page, seen):
        await page.keyboard.press("a")
        await expect(page.get_by_role("button", name="Agree: it fails")).to_be_focused()
        await page.keyboard.press("r")
        await page.keyboard.type("too <b>long</b>")
        await page.get_by_role("button", name="Disagree: it passes").press("Enter")
        await expect(page.locator(".note")).to_contain_text(f"{user_name()} disagrees: it passes: too <b>long</b>")
        await page.get_by_role("button", name="Only comment").press("Enter")
        await expect(page.locator("#rate .said")).to_contain_text("comment: it is empty")
        assert await axe_findings(page) == []
        assert seen.dialogs == []


@pytest.mark.parametrize("width", [360, 1280])
async def test_the_index_and_the_trends_fit_their_window_and_keep_nobody_out(
    browser: Browser, client: Client, tmp_path: Path, width: int
) -> None:
    fill(tmp_path)
    async with visited(browser, GradingClient(client), tmp_path) as (page, _):
        home = page.url.rstrip("/")
        await page.set_viewport_size({"width": width, "height": 800})
        for path in ("/", "/?q=nothing", "/batches/nightly-7/trend", "/batches/nightly-7/cases/case%201"):
            await page.goto(home + path)
            await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")

            assert await axe_findings(page) == [], path
            assert await too_wide(page) <= 0, path
            assert await cut_off(page) == [], path
