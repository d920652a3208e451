"""A person's path through the live page, driven in a browser: find the failing case, see what decided it, override it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.async_api import Browser, Page, expect
from temporalio.client import Client

from gradeloop.batches.pages.read_batch import stored_batch_page
from gradeloop.client.client import GradingClient
from gradeloop.settings.paths import user_name
from gradeloop.temporal.connect import Connection
from tests.rig.batches import Batches, batching, breaks, case, drafted, fails, passes
from tests.rig.browser import Seen, axe_findings, cut_off, too_wide, watch
from tests.rig.page_payloads import PAYLOADS
from tests.rig.pages import paged
from tests.rig.threads import Reply, a_thread, answering, row, serving, start, verdict

pytestmark = pytest.mark.slow

RUBRIC = {"criteria": [{"id": "step", "description": "It names a next step", "quotes": True}]}
DRAFTS = {"a refund": "You get your money back by Friday.", "a broken chain": "Dear customer, your chain is gone. Kind regards"}
QUOTE = "your chain is gone"


WIDE_BADGES = "[...document.querySelectorAll('td .badge')].filter((each) => each.offsetWidth > each.closest('td').clientWidth + 1).length"
"""How many badges lie over the cell beside theirs."""


def replies() -> list[Reply]:
    """Return a writer's drafts, and a judge who passes the one and quotes from the other."""
    missing = row("step", "no step is named", quotes=[{"record": 1, "quote": QUOTE}])
    named = row("step", quotes=[{"record": 1, "quote": "by Friday"}])
    drafts: list[Reply] = [{"role": "generator", "text": text, "when": f"Write {name}."} for name, text in DRAFTS.items()]
    judged = ((named, "Write a refund."), (missing, "Write a broken chain."))
    return drafts + [{"role": "grader", "verdict": verdict(row_of), "when": when} for row_of, when in judged]


@asynccontextmanager
async def visited(browser: Browser, client: GradingClient, folder: Path, path: str = "/") -> AsyncIterator[tuple[Page, Seen]]:
    """Open the live page in a browser."""
    address = client.temporal.service_client.config.target_host
    async with paged(client, Connection(address, "default", embedded=False), folder) as served:
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        seen = watch(page)
        await page.goto(served.address + path)
        yield page, seen
        await page.close()


@asynccontextmanager
async def judged(client: Client, folder: Path) -> AsyncIterator[tuple[Batches, str]]:
    """Run a batch whose cases are threads of their own, one of which fails."""
    async with batching(client, folder, *replies()) as batches:
        name = f"letters-{uuid4().hex[:8]}"
        cases = [drafted(case, rubric=RUBRIC, loop=True, max_iterations=1) for case in DRAFTS]
        summary, _ = await batches.run(cases, batch_id=name, name="letters")
        assert (summary.passed, summary.failed) == (1, 1)
        yield batches, name


async def test_a_person_finds_the_failing_case_sees_the_quote_and_overrides_the_verdict(
    browser: Browser, client: Client, tmp_path: Path
) -> None:
    async with judged(client, tmp_path) as (batches, name):
        typed = GradingClient(client, task_queue=batches.served.task_queue)
        async with visited(browser, typed, tmp_path) as (page, seen):
            await page.click(f"text={name} >> nth=0")
            await page.click("[data-filter=failed]")
            await page.click("#table tbody tr:visible a")
            await page.wait_for_selector("h1:has-text('a broken chain')")
            assert "no step is named" in await page.inner_text(".row.failed .gap")
            await page.click("text=its page")
            await page.wait_for_url("**/threads/**")
            await page.click(f"text=“{QUOTE}”")
            await expect(page.locator("mark.hit")).to_have_text(QUOTE)
            assert await axe_findings(page) == []

            await page.click("summary:has-text('Override')")
            await page.check("input[name=passed][value=true]")
            await page.fill(".overriding textarea[name=why]", "The customer was told on the phone.")
            await page.click("text=Save override")
            await page.wait_for_selector(f".override:has-text('Passed by {user_name()}')")
            await page.click("summary:has-text('event')")
            assert "overridden" in await page.inner_text("table.plain:visible")
            assert (seen.dialogs, seen.complaints) == ([], [])

        events = [event.type for event in (await typed.events(f"{name}/a broken chain")).items]
        assert events.count("overridden") == 1

        async def opened(_batch_id: str) -> GradingClient:
            return typed

        report = await stored_batch_page(batches.reader, name, opened)
        assert '<span class="tag person">overridden</span>' in report


async def test_the_list_names_what_failed_and_a_case_leads_to_the_next_failure(browser: Browser, client: Client, tmp_path: Path) -> None:
    names = [f"case {number}/4" for number in range(1, 5)]
    said = [fails(name, "it names no day") for name in names[1:]]
    async with batching(client, tmp_path, passes(names[0]), *said) as batches:
        batch = f"letters-{uuid4().hex[:8]}"
        await batches.run([case(name, output=f"the text of {name}") for name in names], batch_id=batch, name="letters", pass_rate=0.8)
        typed = GradingClient(client, task_queue=batches.served.task_queue)
        async with visited(browser, typed, tmp_path) as (page, seen):
            row = page.locator("tr", has_text=batch)
            await expect(row).to_contain_text("FAILED 25% of 80%")
            await expect(row).to_contain_text("25% of 4 judged cases passed, 80% wanted")
            await expect(row.locator("li")).to_have_count(3)
            await expect(row.locator("li").first).to_contain_text("case 2/4 not met:")
            assert await axe_findings(page) == []
            for width in (400, 1280):
                await page.set_viewport_size({"width": width, "height": 900})
                assert (await too_wide(page), await cut_off(page)) == (0, [])
            await page.click("text=case 2/4")
            await expect(page.locator("h1")).to_have_text("case 2/4")
            await expect(page.locator(".failure-steps")).to_contain_text("failure 1 of 3")
            await expect(page.locator(".next code")).to_have_text(f"gradeloop diff {batch}")
            await page.click("text=Next failure")
            await expect(page.locator("h1")).to_have_text("case 3/4")
            await page.keyboard.press("n")
            await expect(page.locator("h1")).to_have_text("case 4/4")
            await expect(page.locator(".failure-steps a[rel=next]")).to_have_count(0)
            await page.keyboard.press("p")
            await expect(page.locator("h1")).to_have_text("case 3/4")
            assert await axe_findings(page) == []
            await page.set_viewport_size({"width": 400, "height": 900})
            assert (await too_wide(page), await cut_off(page)) == (0, [])
            assert (seen.dialogs, seen.complaints) == ([], [])


async def test_the_list_names_failures_beside_errors_and_the_rest_is_a_click_away(browser: Browser, client: Client, tmp_path: Path) -> None:
    failing = [f"wrong {number}/4" for number in range(1, 5)]
    async with batching(client, tmp_path, breaks("the broken one"), *(fails(name) for name in failing)) as batches:
        batch = f"letters-{uuid4().hex[:8]}"
        cases = [case(name, output=f"the text of {name}") for name in (*failing, "the broken one")]
        await batches.run(cases, batch_id=batch, name="letters", max_error_rate=1.0)
        typed = GradingClient(client, task_queue=batches.served.task_queue)
        async with visited(browser, typed, tmp_path) as (page, _):
            row = page.locator("tr", has_text=batch)
            await expect(row).to_contain_text("INCONCLUSIVE: 1 error")
            await expect(row.locator("li a")).to_have_text(["the broken one", "wrong 1/4", "wrong 2/4"])
            await expect(row.locator("code")).to_have_text(f"gradeloop eval --retry errors --attach {batch}")
            await row.get_by_text("and 2 more").click()
            await expect(page.locator("h1")).to_have_text("letters")
            await page.get_by_role("button", name="all failures").click()
            await expect(page.locator("#table tbody tr:visible .name")).to_have_text(failing)


@pytest.mark.parametrize("path", ["/nothing", "/threads/none", "/batches/none"])
async def test_an_address_of_nothing_says_so_and_leads_to_the_list(browser: Browser, client: Client, tmp_path: Path, path: str) -> None:
    async with visited(browser, GradingClient(client, task_queue="none"), tmp_path, path) as (page, _):
        await expect(page.locator("h1")).to_have_text("There is nothing here")
        assert await axe_findings(page) == []
        await page.click("text=All threads and batches")
        await expect(page.locator("h1")).to_have_text("Threads and batches")


async def test_a_thread_is_followed_interrupted_and_resumed_from_its_page(browser: Browser, client: Client, tmp_path: Path) -> None:
    models, thread = answering(), a_thread()
    models.hold("generator")
    async with serving(client, models=models) as served:
        await served.client.start(start(messages=[{"role": "user", "content": "Write."}], idle_timeout=60), thread_id=thread)
        async with visited(browser, served.client, tmp_path, f"/threads/{thread}") as (page, seen):
            await models.called("generator")
            await page.click("text=Interrupt")
            await page.wait_for_selector("h1 ~ .sum .badge:has-text('interrupted')")
            models.release()
            await page.click("text=Resume")
            await page.wait_for_selector("h1 ~ .sum .badge:has-text('satisfied')")
            assert await axe_findings(page) == []
            assert (seen.dialogs, seen.complaints) == ([], [])
        await served.client.close_thread(thread)


async def test_the_address_of_a_case_on_a_file_leads_to_the_case_on_its_live_page_and_no_other_name_anywhere(
    browser: Browser, client: Client, tmp_path: Path
) -> None:
    async with judged(client, tmp_path) as (batches, name):
        typed = GradingClient(client, task_queue=batches.served.task_queue)
        async with visited(browser, typed, tmp_path, f"/batches/{name}") as (page, seen):
            at = page.url
            await page.goto(f"{at}#case-a%20nother")
            await page.reload()
            await expect(page.locator("#table tbody tr")).to_have_count(2)
            assert page.url == f"{at}#case-a%20nother"
            await page.goto(f"{at}#case-a%20refund&f=passed")
            await page.wait_for_url(f"{at}/cases/a%20refund")
            await page.goto("about:blank")
            await page.goto(f"{at}#case-a%20broken%20chain")
            await page.wait_for_url(f"{at}/cases/a%20broken%20chain")
            await expect(page.locator("h1")).to_have_text("a broken chain")
            assert (seen.dialogs, seen.complaints) == ([], [])


@pytest.mark.parametrize("width", [360, 1280])
async def test_the_live_pages_fit_their_window_and_keep_nobody_out(browser: Browser, client: Client, tmp_path: Path, width: int) -> None:
    async with judged(client, tmp_path) as (batches, name):
        typed = GradingClient(client, task_queue=batches.served.task_queue)
        async with visited(browser, typed, tmp_path) as (page, _):
            home = page.url.rstrip("/")
            await page.set_viewport_size({"width": width, "height": 800})
            for path in ("/", f"/batches/{name}", f"/batches/{name}/cases/a%20refund", f"/threads/{name}%2Fa%20refund"):
                await page.goto(home + path)
                await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")

                assert await axe_findings(page) == [], path
                assert await too_wide(page) <= 0, path
                assert await cut_off(page) == [], path
                assert await page.evaluate(WIDE_BADGES) == 0, path


async def test_nothing_that_a_thread_says_does_anything_on_its_page(browser: Browser, client: Client, tmp_path: Path) -> None:
    said = "\n".join(payload.encode(errors="replace").decode() for payload in PAYLOADS)
    models, thread = answering(), f"{a_thread()}/<img src=x onerror=alert(1)>"
    models.answers = {"generator": lambda *_: said, "grader": lambda *_: json.dumps(verdict(row("c1", said[:3_000])))}
    async with serving(client, models=models) as served:
        await served.client.result(
            await served.client.start(
                start(messages=[{"role": "user", "content": said}], max_iterations=1, idle_timeout=0), thread_id=thread
            )
        )
        async with visited(browser, served.client, tmp_path) as (page, seen):
            await page.locator("li", has_text=thread).locator("a").click()
            await page.wait_for_selector(".evaluation")
            await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")

            assert await page.locator("img, iframe, object, embed, base, dialog, marquee, math, video").count() == 0
            assert await page.evaluate("window.attacked") is None
            assert seen.dialogs == []
            assert [request for request in seen.requests if "?part=1" not in request] == []
