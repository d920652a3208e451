"""Reports as a browser shows them: from disk, wide and narrow, light and dark, without a script, under attack."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from gradeloop.batches.pages.collection_page import PageHeader, PageRow, Stat, collection_page
from gradeloop.batches.pages.read_batch import BatchReport, batch_page, head_of
from gradeloop.reports.html import FOLDER
from gradeloop.reports.model import RunReport
from gradeloop.reports.run_page import run_page
from gradeloop.web.site import SteeredPage
from rig.large_batch import report_of
from tests.reports.test_first_look import failed, rejecting
from tests.rig.batch_results import case, summary_of
from tests.rig.browser import Seen, axe_findings, too_wide, watch
from tests.rig.page_payloads import PAYLOADS
from tests.rig.stories import gated_page, hostile, judged, mended

pytestmark = pytest.mark.slow

HEAD = PageHeader(
    name="support answers", word="finished", verdict="none", noun="case", tiles=(Stat("passed", "3", "passed"),), about={"batch": "b-1"}
)

PAGES: dict[str, Callable[[], str]] = {
    "a run": lambda: run_page(mended()),
    "a judgement": lambda: run_page(judged()),
    "a batch": lambda: batch_page(report_of(60)),
    "models compared": lambda: batch_page(report_of(60, 3)),
    "judgements": gated_page,
    "judgements without a rule": lambda: gated_page(None),
    "a draft that waits": lambda: run_page(rejecting()),
}


CASES = [case(0), case(1, "failed"), case(2), case(3, "failed")]


def collected(stories: Iterable[RunReport]) -> str:
    """Return the page of many runs."""
    return collection_page(HEAD, (PageRow(story, story.name) for story in stories))


async def opened(browser: Browser, folder: Path, html: str, *, width: int = 1280, **context: object) -> tuple[Page, Seen]:
    """Open a page from disk, as whoever got it by mail does."""
    path = folder / "report.html"
    path.write_bytes(html.encode())
    page = await browser.new_page(viewport={"width": width, "height": 900}, **context)  # type: ignore[arg-type]  # Playwright's own options
    seen = watch(page)
    await page.goto(path.as_uri())
    return page, seen


@pytest.mark.parametrize("name", PAGES)
async def test_nobody_is_kept_out_of_a_report(browser: Browser, tmp_path: Path, name: str) -> None:
    page, seen = await opened(browser, tmp_path, PAGES[name](), color_scheme="light")
    await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")

    assert await axe_findings(page) == []
    await page.emulate_media(color_scheme="dark")
    assert await axe_findings(page) == []
    assert (seen.complaints, seen.requests) == ([], [])
    await page.close()


async def test_nobody_is_kept_out_of_a_case_that_is_opened(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, batch_page(report_of(60)))

    await page.click("button.open >> nth=3")
    await page.wait_for_selector("#case-body .evaluation")
    assert await axe_findings(page) == []
    await page.close()


@pytest.mark.parametrize("name", PAGES)
async def test_a_report_fits_its_window(browser: Browser, tmp_path: Path, name: str) -> None:
    page, _ = await opened(browser, tmp_path, PAGES[name]())
    await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")

    for width in (320, 390, 768, 1280, 2560):
        await page.set_viewport_size({"width": width, "height": 900})
        assert await too_wide(page) <= 0, width
    await page.close()


@pytest.mark.parametrize("name", PAGES)
async def test_a_report_is_read_without_its_script(browser: Browser, tmp_path: Path, name: str) -> None:
    page, _ = await opened(browser, tmp_path, PAGES[name](), java_script_enabled=False)

    words = {
        "a run": "Bring the bike on Monday",
        "a judgement": "I ran grep -r main first.",
        "a batch": "question-00029",
        "models compared": "question-00019",
        "judgements": "FAILED 33.3% of 80%",
        "judgements without a rule": "No rule says what passes.",
        "a draft that waits": "it promises <b>a refund</b>",
    }
    assert words[name] in await page.inner_text("main")
    await page.close()


async def test_a_quote_leads_to_the_very_words(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, run_page(mended()))

    await page.click("text=“Your chain  is gone.”")
    await expect(page.locator("mark.hit")).to_have_text("Your chain is gone.")
    await page.click("text=“Bring the bike on Monday”")
    await expect(page.locator("mark.hit")).to_have_text("Bring the bike on Monday")
    await expect(page.locator("mark.hit")).to_be_visible()
    await page.close()


async def test_a_citation_leads_to_the_words_that_it_cites(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, run_page(judged()))

    await page.click("a.cite")
    await expect(page.locator("mark.hit")).to_have_text("grep -r main")
    assert await page.locator(".cite.missing").get_attribute("title") == "there is no block T0B9"
    await page.close()


async def test_a_cell_of_the_strip_says_what_it_means_and_leads_to_the_verdict(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, run_page(mended()))

    cells = await page.locator(".strip tbody tr").first.locator(".cell .sr").all_inner_texts()
    assert cells == ["not passed", "passed"]
    last = await page.locator(".strip tbody tr").nth(2).locator(".cell .sr").all_inner_texts()
    assert last == ["passed, 2 of 3 votes (contested)", "not passed by a person, passed by the grader, 2 of 3 votes (contested)"]
    await page.click(".strip thead a >> nth=1")
    await expect(page.locator(".evaluation:target h4")).not_to_be_empty()
    await page.close()


async def test_cases_are_filtered_searched_sorted_and_opened_by_keys(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, batch_page(report_of(60)))
    visible = "tbody tr:visible .badge"

    await page.click("[data-filter=failed]")
    assert set(await page.locator(f"#table {visible}").all_text_contents()) == {"failed"}
    await page.click("[data-filter='']")
    await page.press("body", "/")
    await page.keyboard.type("question-00007/anthropic")
    assert await page.locator("#table tbody tr:visible").count() == 1
    assert await page.inner_text("#count") == "1 of 60 shown"
    await page.fill("#search", "")
    await page.click("[data-sort=score] button")
    scores = [float(text) for text in await page.locator("#table tbody td:nth-child(3)").all_text_contents()]
    assert scores == sorted(scores)
    assert await page.get_attribute("[data-sort=score]", "aria-sort") == "ascending"
    await page.click("button.open >> nth=0")
    await page.wait_for_selector("#case-body h1")
    first = await page.inner_text("#case-body h1")
    await page.keyboard.press("j")
    await page.wait_for_function("name => document.querySelector('#case-body h1').textContent !== name", arg=first)
    await page.keyboard.press("k")
    await page.wait_for_function("name => document.querySelector('#case-body h1').textContent === name", arg=first)
    await page.keyboard.press("Escape")
    await expect(page.locator("#case")).to_be_hidden()
    assert seen == Seen()
    await page.close()


async def test_the_next_failure_is_a_button_and_a_key_away_and_the_filters_decide_which_it_is(browser: Browser, tmp_path: Path) -> None:
    statuses = {1: "failed", 3: "error", 4: "failed", 6: "failed"}
    results = [case(at, statuses.get(at, "passed"), description="odd" if at % 2 else "even") for at in range(8)]
    page, seen = await opened(browser, tmp_path, batch_page(BatchReport(head_of(summary_of(results)), [(None, one) for one in results])))
    heading, place = page.locator("#case-body h1"), page.locator("#case-place")

    await page.press("body", "n")
    assert await page.evaluate("document.activeElement.textContent") == "case-1"
    await page.keyboard.press("Enter")
    await expect(heading).to_have_text("case-1")
    await expect(place).to_have_text("1 of 8 shown, failure 1 of 4")
    await expect(page.locator("#failure-previous")).to_be_disabled()
    await expect(page.locator("#case-body .next")).to_contain_text("Next: mend the prompt or the rubric, run the suite again, then")
    for name in ("case-4", "case-6", "case-3"):
        await page.click("#failure-next")
        await expect(heading).to_have_text(name)
    await expect(page.locator("#case-body .next code")).to_have_text("gradeloop eval --retry errors --attach batch-1")
    await expect(page.locator("#failure-next")).to_be_disabled()
    assert await axe_findings(page) == []
    await page.keyboard.press("p")
    await expect(heading).to_have_text("case-6")
    await page.keyboard.press("Escape")

    await page.fill("#search", "odd")
    await page.click("text=case-7")
    await expect(place).to_have_text("4 of 4 shown, 2 failures")
    await page.keyboard.press("n")
    await expect(heading).to_have_text("case-1")
    await page.keyboard.press("n")
    await expect(heading).to_have_text("case-3")
    await expect(place).to_have_text("2 of 4 shown, failure 2 of 2")
    assert "n p next and previous failure" in await page.text_content("#cases .keys")  # type: ignore[operator]  # it is there
    assert seen == Seen()
    await page.close()


async def test_the_bar_of_a_case_fits_a_narrow_window(browser: Browser, tmp_path: Path) -> None:
    results = [case(0, "failed"), case(1, "failed")]
    html = batch_page(BatchReport(head_of(summary_of(results)), [(None, one) for one in results]))
    page, _ = await opened(browser, tmp_path, html, width=400)

    await page.click("#table button.open >> nth=0")
    await page.wait_for_selector("#case-body h1")
    bar, button = await page.locator(".dialog-bar").bounding_box(), await page.locator("#failure-next").bounding_box()
    assert bar is not None
    assert button is not None
    assert bar["x"] >= 0
    assert button["x"] + button["width"] <= 400
    assert await page.evaluate("(() => { const d = document.getElementById('case'); return d.scrollWidth - d.clientWidth; })()") <= 0
    await page.close()


async def test_what_is_shown_is_in_the_address_and_criteria_filter_the_table(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, batch_page(report_of(60)))
    everyone = await page.locator("#table tbody tr:visible").count()

    await page.click("#criteria [data-criterion] >> nth=0")
    filtered = await page.locator("#table tbody tr:visible").count()
    await page.click("[data-sort=id] button")
    await page.click("[data-sort=id] button")
    address = page.url
    assert 0 < filtered < everyone
    assert {"k", "sort", "down"} == {part.partition("=")[0] for part in address.partition("#")[2].split("&")}
    await page.goto("about:blank")
    await page.goto(address)
    assert await page.locator("#table tbody tr:visible").count() == filtered
    assert await page.get_attribute("[data-sort=id]", "aria-sort") == "descending"
    assert await page.get_attribute("#criteria [data-criterion] >> nth=0", "aria-pressed") == "true"
    assert seen.complaints == []
    await page.close()


@pytest.mark.parametrize("width", [400, 1280])
async def test_a_failed_thread_says_what_failed_and_what_comes_next_on_the_first_screen(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    page, _ = await opened(browser, tmp_path, run_page(failed(best=1)), width=width)
    await page.set_viewport_size({"width": width, "height": 800})
    step = page.locator(".next")

    await expect(page.locator(".answer")).to_contain_text("FAILED: not met: the text of when")
    await expect(page.locator("h2.failed-first")).to_be_in_viewport(ratio=1)
    await expect(step).to_have_text("Next: mend the task or the rubric, and run it as a new thread with gradeloop run TASK.yaml")
    await expect(step).to_be_in_viewport(ratio=1)
    assert await axe_findings(page) == []
    assert await too_wide(page) <= 0
    await page.close()


async def test_an_address_that_is_put_into_an_open_page_filters_it(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, batch_page(BatchReport(head_of(summary_of(CASES)), [(None, result) for result in CASES])))
    shown, at = page.locator("#table tbody tr:visible .name"), page.url
    await page.fill("#search", "nothing of this")
    await expect(shown).to_have_count(0)
    await page.goto(f"{at}#f=failed")
    await expect(shown).to_have_text(["case-1", "case-3"])
    assert await page.input_value("#search") == ""
    assert await page.inner_text("#count") == "2 of 4 shown"
    await page.goto(f"{at}#case-case-3&q=case-3")
    await expect(page.locator("#case-body h1")).to_have_text("case-3")
    await page.keyboard.press("Escape")
    await expect(shown).to_have_text(["case-3"])
    assert await page.input_value("#search") == "case-3"
    assert (seen.dialogs, seen.complaints) == ([], [])
    await page.close()


async def test_the_search_sees_outputs_and_says_what_to_do_where_nothing_matches(browser: Browser, tmp_path: Path) -> None:
    story = mended()
    page, _ = await opened(browser, tmp_path, collected([story, judged()]))

    await page.fill("#search", "the new chain costs nothing")
    await expect(page.locator("#table tbody tr:visible")).to_have_count(1)
    await page.fill("#search", "nobody said this")
    await expect(page.locator("#empty")).to_be_visible()
    await page.click("#clear")
    await expect(page.locator("#table tbody tr:visible")).to_have_count(2)
    await page.close()


async def test_a_case_is_opened_by_its_id_in_the_address(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, collected([mended(), judged().model_copy(update={"name": "50% & more/é"})]))

    await page.goto(f"{(tmp_path / 'report.html').as_uri()}#case-50%25%20%26%20more%2F%C3%A9&q=e")
    await page.wait_for_selector("#case-body h1:has-text('50% & more/é')")
    await page.keyboard.press("Escape")
    await page.wait_for_url("**/report.html#q=e")
    await page.goto(f"{(tmp_path / 'report.html').as_uri()}#case-%E0%A4%A")
    await expect(page.locator("#case")).to_be_hidden()
    await page.close()


async def test_a_draft_in_markdown_is_rendered_and_a_quote_leads_to_its_raw_text(browser: Browser, tmp_path: Path) -> None:
    story = mended()
    messages = list(story.messages)
    messages[3] = messages[3].model_copy(update={"content": f"# Reply\n\n{messages[3].content}\n\n```python\nx = 1\n```"})
    page, seen = await opened(browser, tmp_path, run_page(story.model_copy(update={"messages": tuple(messages)})))

    assert await page.inner_text(".md .md-h1") == "Reply"
    assert await page.locator(".md pre .hl-mi").inner_text() == "1"
    assert await axe_findings(page) == []
    await page.click("text=“Bring the bike on Monday”")
    await expect(page.locator("mark.hit")).to_be_visible()
    await expect(page.locator(".md")).to_be_hidden()
    assert seen == Seen()
    await page.close()


async def test_no_payload_in_markdown_does_anything(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, "")
    own = len((FOLDER / "page.js").read_text())
    for payload in PAYLOADS:
        forms = f"# {payload}\n\n[a]({payload}) ![b]({payload}) <{payload}>\n\n```html\n{payload}\n```\n\n- {payload}\n\n> `{payload}`\n"
        (tmp_path / "report.html").write_bytes(run_page(replaced(forms)).encode(errors="replace"))
        await page.reload()

        assert await page.evaluate("[...document.scripts].map((each) => each.textContent.length)") == [own], payload
        assert await page.locator("img, iframe, object, embed, form, base, dialog, marquee, math, video").count() == 0, payload
        assert await page.locator("main a:not([href^='#']):not([href^='http']):not(.anchor)").count() == 0, payload
        assert await page.evaluate("window.attacked") is None, payload
    assert seen == Seen()
    await page.close()


async def test_the_address_of_a_case_opens_it_and_its_links_stay_in_it(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, collected([mended(), judged()]))

    await page.goto(f"{(tmp_path / 'report.html').as_uri()}#case-0")
    await page.wait_for_selector("#case-body .evaluation")
    await page.click("#case-body >> text=“Bring the bike on Monday”")
    await expect(page.locator("#case-body mark.hit")).to_have_text("Bring the bike on Monday")
    assert page.url.endswith("#case-0")
    await page.close()


async def test_on_paper_nothing_stays_folded_or_cut(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, run_page(mended()))

    await page.pdf()
    await page.emulate_media(media="print")
    assert await page.locator("details:not([open])").count() == 0
    cut = "[...document.querySelectorAll('.text')].filter((each) => each.scrollHeight > each.clientHeight + 1).length"
    assert await page.evaluate(cut) == 0
    await page.close()


async def test_no_payload_in_any_field_of_a_run_does_anything(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, "")
    own = len((FOLDER / "page.js").read_text())
    for payload in PAYLOADS:
        (tmp_path / "report.html").write_bytes(run_page(hostile(payload)).encode())
        await page.reload()
        await page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        await page.mouse.move(400, 300)
        scripts = await page.evaluate("[...document.scripts].map((each) => each.textContent.length)")
        active = "[...document.querySelectorAll('*')].filter((each) => [...each.attributes].some((at) => /^on/i.test(at.name))).length"

        assert scripts == [own], payload
        assert await page.evaluate(active) == 0, payload
        assert await page.locator("img, iframe, object, embed, form, base, dialog, marquee, math, video").count() == 0, payload
        assert await page.evaluate("window.attacked") is None, payload
        assert page.url == (tmp_path / "report.html").as_uri(), payload
    assert seen == Seen()
    await page.close()


async def test_no_payload_in_any_case_of_a_batch_does_anything(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, collected(hostile(payload) for payload in PAYLOADS))
    active = "document.querySelectorAll('img, iframe, object, embed, form, base, marquee, math, video, dialog dialog').length"
    for number in range(len(PAYLOADS)):
        await page.evaluate("at => { location.hash = `#case-${at}` }", number)
        await page.wait_for_function("words => document.getElementById('case-place').textContent.startsWith(words)", arg=f"{number + 1} of")
        await page.evaluate("for (const each of document.querySelectorAll('#case-body details')) each.open = true")

        assert await page.evaluate(active) == 0, PAYLOADS[number]
    assert await page.evaluate("window.attacked") is None
    assert seen == Seen()
    await page.close()


async def test_a_payload_is_shown_as_it_was_written(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, run_page(replaced("<b>bold</b> & \u202egnp.exe \x1b[2J")))

    assert "<b>bold</b> & \\u202egnp.exe \\u001b[2J" in await page.inner_text(".message.draft .text")
    await page.close()


def replaced(draft: str) -> RunReport:
    """Return a story whose first draft says something else."""
    story = mended()
    messages = list(story.messages)
    messages[1] = messages[1].model_copy(update={"content": draft})
    return story.model_copy(update={"messages": tuple(messages)})


async def test_rows_far_away_are_laid_out_when_they_come_near_and_found_and_printed_all_the_same(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, batch_page(report_of(600)))
    last = page.locator("#table tbody tr").last

    assert await page.locator("#table tbody tr").count() == 600
    assert (await last.locator("td").first.inner_text(), bool(await last.locator("td").first.text_content())) == ("", True)
    assert await page.evaluate("(id) => window.find(id)", await last.locator(".name").text_content())
    await last.scroll_into_view_if_needed()
    await expect(last).to_be_in_viewport()
    assert await last.locator("td").first.inner_text()
    await page.locator("#tools [data-filter=failed]").click()
    few = await page.locator("#table tbody tr:not([hidden])").count()
    assert 0 < few < 600
    assert await page.locator("#table").evaluate("(table) => table.offsetHeight") < 120 * (few + 2)
    await page.emulate_media(media="print")
    printed = await page.locator("#table tbody").evaluate_all("(all) => all.map((body) => getComputedStyle(body).contentVisibility)")
    assert set(printed) == {"visible"}
    assert not seen.complaints


async def test_a_page_without_cases_says_so_and_works(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, collection_page(replace(HEAD, notes=("Nothing was run.",)), []))

    assert "Nothing was run." in await page.inner_text("main")
    assert seen == Seen()
    await page.close()


async def test_rows_beyond_the_first_are_unpacked_filtered_and_opened_by_their_address(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradeloop.batches.pages.collection_page.PLAIN_ROWS", 20)
    html = batch_page(report_of(60))
    page, seen = await opened(browser, tmp_path, html)
    await page.wait_for_function("document.querySelectorAll('#table tbody tr').length === 60")
    last = await page.locator("#table tbody tr >> nth=59").locator(".name").text_content()

    assert html.count('<tr id="case-') == 20
    assert await page.evaluate("new Set([...document.querySelectorAll('#table tbody tr')].map((row) => row.id)).size") == 60
    await page.close()

    again, _ = await opened(browser, tmp_path, html)
    await again.goto("about:blank")
    await again.goto(f"{(tmp_path / 'report.html').as_uri()}#case-{last}")
    await again.wait_for_selector("dialog[open] h1")
    assert await again.inner_text("dialog h1") == last
    assert seen.complaints == []
    await again.close()


async def test_the_answer_of_a_failed_batch_opens_its_first_failed_case(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, batch_page(report_of(60)))
    first = await page.locator("#table tbody tr .name").first.text_content()

    await page.click("#answer a")
    await page.wait_for_selector("dialog[open] h1")
    assert await page.inner_text("dialog h1") == first
    assert seen.complaints == []
    await page.close()


async def test_rows_are_sorted_by_their_verdicts_in_the_order_in_which_the_page_lists_them(browser: Browser, tmp_path: Path) -> None:
    results = [case(at, status) for at, status in enumerate(("passed", "queued", "waiting", "unsure", "error", "failed"))]
    listed = BatchReport(head_of(summary_of(results)), [(None, result) for result in results])
    page, _ = await opened(browser, tmp_path, batch_page(listed))
    words = ["failed", "error", "unsure", "waiting", "not run", "passed"]

    assert await page.locator("#table tbody .badge").all_text_contents() == words
    await page.click("[data-sort=verdict] button")
    assert await page.locator("#table tbody .badge").all_text_contents() == words
    await page.click("[data-sort=verdict] button")
    assert await page.locator("#table tbody .badge").all_text_contents() == words[::-1]
    await page.close()


async def test_a_live_page_lists_rows_beyond_the_first_and_again_after_an_update(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradeloop.batches.pages.collection_page.PLAIN_ROWS", 20)
    live = SteeredPage(token="t", path="/batches/b")
    page, seen = await opened(browser, tmp_path, batch_page(report_of(60), live=live))
    await expect(page.locator("#table tbody tr")).to_have_count(60)
    await page.evaluate(
        """html => {
          const fresh = new DOMParser().parseFromString(html, 'text/html').querySelector('main');
          document.getElementById('main').replaceChildren(...document.adoptNode(fresh).childNodes);
          document.dispatchEvent(new CustomEvent('part', { detail: { left: 0, top: 900, behavior: 'instant' } }));
        }""",
        batch_page(report_of(60), live=live),
    )
    await expect(page.locator("#table tbody tr")).to_have_count(60)
    async with asyncio.timeout(240):
        while await page.evaluate("scrollY") != 900:
            await asyncio.sleep(0.05)
    await page.fill("#search", "question-00029")
    await expect(page.locator("#table tbody tr:visible")).to_have_count(1)
    assert seen.complaints == [text for text in seen.complaints if "fetch" in text or "CORS" in text or "URL scheme" in text]
    await page.close()


async def test_a_citation_in_the_table_opens_its_judgement_at_the_words_that_it_cites(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, collected([judged(), judged().model_copy(update={"name": "run-8"})]))
    row = page.locator("#table tbody tr").nth(1)

    assert "[T0B" not in (await row.text_content() or "[T0B")
    assert await row.locator(".label-cell").all_text_contents() == ["match"]
    await row.locator("a.cite.found").click()
    await page.wait_for_selector("dialog[open] h1:has-text('run-8')")
    await expect(page.locator("#case-body mark.hit")).to_have_text("grep -r main")
    assert await axe_findings(page) == []
    assert seen.complaints == []
    await page.close()


async def test_a_page_of_judgements_says_whether_they_passed_and_leads_to_the_first_that_did_not(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, gated_page())
    answer, red = page.locator("#answer"), page.locator(".tile.failed b")
    colours = [await place.evaluate("(element) => getComputedStyle(element).color") for place in (answer, red)]
    await page.locator(".next a").click()

    await expect(answer).to_have_text("FAILED 33.3% of 80%")
    assert colours[0] == colours[1]
    await expect(page.locator("#case .answer")).to_have_text("FAILED: label is no match")
    await page.goto((tmp_path / "report.html").as_uri())
    (tmp_path / "report.html").write_text(gated_page(None))
    await page.reload()
    command = "gradeloop report results.jsonl --pass label=VALUE"
    await expect(page.locator(".next")).to_contain_text(f"No rule says what passes. Next: say it with {command}")
    assert (seen.complaints, seen.dialogs) == ([], [])
    await page.close()
