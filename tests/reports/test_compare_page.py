"""The page of a batch of several prompts and models: rates by column, outputs side by side, what filters, sorts and links to a cell."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from gradeloop.batches.column_table import ColumnTable
from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.pages.collection_page import METRICS
from gradeloop.batches.pages.read_batch import BatchReport, batch_page, head_of
from gradeloop.contract.messages import Usage
from gradeloop.contract.named_metrics import MetricShare
from gradeloop.web.site import SteeredPage
from tests.rig.batch_results import HOSTILE, case, row, summary_of
from tests.rig.browser import Seen, axe_findings, too_wide, watch
from tests.rig.page_payloads import PAYLOADS

pytestmark = pytest.mark.slow

LARGE, MINI = "openai:gpt-5", "openai:gpt-5-mini"


def cell(at: int, test: str, label: str, status: str = "passed", **facts: Any) -> CaseResult:
    """Return a case of a suite of two models."""
    return case(at, status, **{"id": f"{test}/{label}", "label": label} | facts)


SUITE = [
    cell(0, "greeting", LARGE, output="Good morning!\nHow can I help?"),
    cell(1, "greeting", MINI, "failed", output="yo"),
    cell(2, "refund", LARGE, "failed", output="No."),
    cell(3, "refund", MINI, "failed", output="x" * 5_000, criteria=(row("c1", passed=False), row("c2", passed=False))),
    cell(4, "hours", LARGE, output="At nine."),
    cell(5, "hours", MINI, output="At nine, too."),
    cell(6, "silence", LARGE, "error"),
    cell(7, "silence", MINI, "failed", output=""),
    cell(8, "only-large", LARGE, output="alone"),
]


def page_of(results: list[CaseResult], *, live: bool = False, **facts: Any) -> str:
    """Return the page of a batch with these cases."""
    summary: BatchSummary = summary_of(results, **{"pass_rate": 0.8, "allow_errors": 0.5} | facts)
    table = ColumnTable(summary, results)
    report = BatchReport(head_of(summary, table=table), [(None, result) for result in results], columns=table)
    return batch_page(report, live=SteeredPage(token="t", path="/batches/batch-1") if live else None)


async def opened(browser: Browser, folder: Path, html: str, fragment: str = "", width: int = 1280) -> tuple[Page, Seen]:
    """Open a page from disk."""
    (folder / "page.html").write_bytes(html.encode(errors="replace"))
    page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme="light")
    seen = watch(page)
    await page.goto((folder / "page.html").as_uri() + fragment)
    return page, seen


async def visible(page: Page) -> list[str]:
    """Return the tests that are shown, in their order."""
    return [text.split()[0] for text in await page.locator("#table tbody tr:not([hidden]) th").all_text_contents()]


async def test_the_first_screen_says_which_model_is_below_the_gate_and_what_each_costs(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, page_of(SUITE))

    assert await page.inner_text("#answer") == "FAILED 50% of 80%"
    assert f"Below 80%: {MINI} 25% of 4, {LARGE} 75% of 4" in " ".join(await page.locator(".in-words").all_inner_texts())
    rates = page.locator(".rates")
    await expect(rates).to_be_in_viewport()
    assert (await rates.locator("tbody tr").all_inner_texts())[1].split("\t")[0].strip() == MINI
    words = await rates.inner_text()
    for text in ("75.0%", "25.0%", "4.6% to 69.9%", "3 of 4", "1 of 4", "$0.0050", "$0.0040", "1.2 s"):
        assert text in words, text
    assert seen == Seen()
    await page.close()


async def test_outputs_stand_side_by_side_with_why_each_failed(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, page_of(SUITE))
    await page.locator("#cases").scroll_into_view_if_needed()
    await page.locator("#table tbody").first.evaluate("(body) => { body.style.contentVisibility = 'visible'; }")
    cells = page.locator("#table tbody tr", has_text="greeting").locator("td")

    assert await page.locator("#table thead th").all_inner_texts() == ["Test", LARGE, MINI]
    assert "Good morning!\nHow can I help?" in await cells.nth(0).inner_text()
    assert {"failed", "it says nothing", "yo"} <= {
        text.strip() for text in (await cells.nth(1).inner_text()).replace("c2 ", "\n").split("\n")
    }
    refund = page.locator("#table tbody tr", has_text="refund").locator("td").nth(1)
    assert await refund.locator(".gap").all_inner_texts() == ["c1 it says nothing", "c2 it says nothing"]
    assert len(await refund.locator(".said").text_content() or "") == 401
    silence = page.locator("#table tbody tr", has_text="silence").locator("td")
    assert "the provider says 529" in await silence.nth(0).inner_text()
    assert "(an empty output)" in await silence.nth(1).inner_text()
    assert await page.locator("#table tbody tr", has_text="only-large").locator("td").nth(1).inner_text() == "not run with it"
    await page.close()


async def test_search_filters_and_order_work_on_tests_and_stand_in_the_address(browser: Browser, tmp_path: Path) -> None:
    page, seen = await opened(browser, tmp_path, page_of(SUITE))
    everything = await visible(page)

    await page.click("[data-filter=differs]")
    assert await visible(page) == ["greeting"]
    await page.click(f"button[aria-label='3 failed: {MINI}']")
    assert sorted(await visible(page)) == ["greeting", "refund", "silence"]
    assert "f=failed" in page.url
    await page.click(f"button[aria-label='1 errors: {LARGE}']")
    assert await visible(page) == ["silence"]
    await page.click("[data-filter='']")
    await page.fill("#search", "nine too")
    assert await visible(page) == ["hours"]
    await page.fill("#search", "")
    await page.click("[data-sort=id] button")
    assert await visible(page) == sorted(everything)
    await page.click("[data-sort=column1] button")
    assert sorted((await visible(page))[:3]) == ["greeting", "refund", "silence"]
    assert (await visible(page))[3:] == ["hours", "only-large"]
    address = page.url
    await page.goto("about:blank")
    await page.goto(f"{address}&f=failed&c=0")
    assert await visible(page) == ["refund"]
    assert seen == Seen()
    await page.close()


async def test_each_cell_has_an_address_that_opens_its_case_and_the_case_can_be_left(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, page_of(SUITE))

    await page.locator("#table tbody tr", has_text="refund").locator("td >> nth=1").locator("a.name").click()
    await page.wait_for_selector("dialog[open] h1")
    assert await page.inner_text("dialog h1") == f"refund/{MINI}"
    address = page.url
    await page.keyboard.press("Escape")
    assert await page.evaluate("document.activeElement.closest('.beside').dataset.id") == f"refund/{MINI}"
    await page.goto("about:blank")
    await page.goto(address)
    await page.wait_for_selector("dialog[open] h1")
    assert await page.inner_text("dialog h1") == f"refund/{MINI}"
    await page.click("#failure-next")
    await expect(page.locator("dialog h1")).not_to_have_text(f"refund/{MINI}")
    await page.close()


async def test_the_keys_go_from_cell_to_cell(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, page_of(SUITE))
    at = "document.activeElement.closest('.beside')?.dataset.id"

    await page.keyboard.press("n")
    assert await page.evaluate(at) == f"greeting/{MINI}"
    await page.keyboard.press("k")
    assert await page.evaluate(at) == f"greeting/{LARGE}"
    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await page.wait_for_selector("dialog[open] h1")
    assert await page.inner_text("dialog h1") == f"greeting/{MINI}"
    await page.close()


async def test_nobody_is_kept_out_of_a_comparison_and_it_fits_its_window(browser: Browser, tmp_path: Path) -> None:
    many = [cell(at, f"t{at // 6}", f"model-{at % 6}", "failed" if at % 5 == 0 else "passed") for at in range(60)]
    for results in (SUITE, many):
        page, _ = await opened(browser, tmp_path, page_of(results))
        assert await axe_findings(page) == []
        await page.emulate_media(color_scheme="dark")
        assert await axe_findings(page) == []
        for width in (320, 400, 768, 1280, 2560):
            await page.set_viewport_size({"width": width, "height": 900})
            assert await too_wide(page) <= 0, width
        last = page.locator("#table tbody tr >> nth=0").locator("td").last
        await last.scroll_into_view_if_needed()
        await expect(last).to_be_in_viewport()
        await page.close()


async def test_prompts_times_models_are_columns_and_repetitions_share_a_cell(browser: Browser, tmp_path: Path) -> None:
    results = [
        case(at, "failed" if at % 3 == 0 else "passed", id=f"t/{prompt}/{label}/{count}", prompt=prompt, label=label, repeat=count - 1)
        for at, (prompt, label, count) in enumerate(
            (prompt, label, count) for prompt in ("short", "long") for label in ("a", "b") for count in (1, 2)
        )
    ]
    page, _ = await opened(browser, tmp_path, page_of(results))

    assert await page.locator("#table thead th").all_inner_texts() == ["Test", "short / a", "short / b", "long / a", "long / b"]
    assert await page.locator("#table tbody tr").count() == 1
    assert [await cell.locator(".beside").count() for cell in await page.locator("#table tbody td").all()] == [2, 2, 2, 2]
    await page.close()


async def test_what_is_unsure_ungraded_or_not_run_yet_is_said_in_its_cell(browser: Browser, tmp_path: Path) -> None:
    results = [
        cell(0, "t", LARGE, "unsure", output="perhaps", unsure=("c1",), criteria=(row("c1"),)),
        cell(1, "t", MINI, "queued", error="not run"),
        cell(2, "u", LARGE, "ungraded", output="as it is", explanation="nothing was asked"),
        cell(3, "u", MINI, "waiting"),
    ]
    page, _ = await opened(browser, tmp_path, page_of(results, status="running", unsure=1, waiting=1, ungraded=1))

    assert (await page.inner_text("#answer")).startswith("RUNNING")
    words = [text.split()[0] for text in await page.locator("#table a.name").all_inner_texts()]
    assert sorted(words) == ["not", "ungraded", "unsure", "waiting"]
    assert "perhaps" in await page.inner_text("#table")
    await page.close()


async def test_a_cell_of_a_live_page_leads_to_its_cases_own_page(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, page_of(SUITE, live=True))

    href = await page.locator("#table tbody tr", has_text="refund").locator("td >> nth=1").locator("a.name").get_attribute("href")
    assert href == "/batches/batch-1/cases/refund%2Fopenai%3Agpt-5-mini"
    assert await page.locator("#table tbody tr").count() == 5
    await page.close()


async def test_a_comparison_that_changes_keeps_its_filter_and_has_the_new_cells(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, page_of(SUITE[:3], live=True), "#f=failed&c=1")
    assert await visible(page) == ["greeting"]

    await page.evaluate(
        """html => {
          const fresh = new DOMParser().parseFromString(html, 'text/html').querySelector('main');
          document.getElementById('main').replaceChildren(...document.adoptNode(fresh).childNodes);
          document.dispatchEvent(new CustomEvent('part', { detail: { left: 0, top: 0, behavior: 'instant' } }));
        }""",
        page_of(SUITE, live=True),
    )

    assert sorted(await visible(page)) == ["greeting", "refund", "silence"]
    assert await page.get_attribute(f"button[aria-label='3 failed: {MINI}']", "aria-pressed") == "true"
    await page.close()


async def test_named_metrics_stand_beside_the_rates(browser: Browser, tmp_path: Path) -> None:
    share = (MetricShare(name="cost", criterion="c1", weight=1), MetricShare(name="<b>Tone", criterion="c2", weight=1))
    page, _ = await opened(browser, tmp_path, page_of([result.model_copy(update={"metrics": share}) for result in SUITE]))

    heads = await page.locator(".rates thead th").all_inner_texts()
    assert heads[-4:] == ["cost", "latency", "cost", "<b>Tone"]
    assert "0.25" in await page.locator(".rates tbody tr >> nth=1").locator("td").last.inner_text()
    assert METRICS >= 2
    await page.close()


async def test_nothing_that_a_model_says_does_anything_beside_others(browser: Browser, tmp_path: Path) -> None:
    texts = [*PAYLOADS, HOSTILE, "![x](http://attack.example/p.png)", "data:image/png;base64,iVBORw0KGgo=", "\n" * 300]
    results = [
        cell(
            2 * at + turn,
            f"{at}",
            label,
            "failed",
            output=text,
            criteria=(row("c1", passed=False, gap=text), row(text[:40].strip() or "c2", passed=False, gap=text)),
            vars={"v": text},
        )
        for at, text in enumerate(texts)
        for turn, label in enumerate(("</script><script>window.attacked=1</script>", MINI))
    ]
    page, seen = await opened(browser, tmp_path, page_of(results))
    await page.evaluate("for (const each of document.querySelectorAll('tbody')) each.style.contentVisibility = 'visible'")

    assert await page.locator("#table tbody tr").count() == len(texts)
    assert await page.locator("main img, main iframe, object, embed, form, base, math, video, main script:not([type])").count() == 0
    assert await page.evaluate("window.attacked") is None
    assert await page.locator("main a:not([href^='#'])").count() == 0
    assert seen == Seen()
    await page.close()


async def test_tests_beyond_the_first_are_packed_found_sorted_and_opened(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradeloop.batches.pages.collection_page.PLAIN_TESTS", 20)
    results = [cell(2 * at + turn, f"t{at:03}", label, output=f"said {at}") for at in range(90) for turn, label in enumerate((LARGE, MINI))]
    html = page_of(results)
    page, seen = await opened(browser, tmp_path, html, "#case-t089%2Fopenai%3Agpt-5-mini")

    assert html.count('<div class="beside"') == 40
    await page.wait_for_selector("dialog[open] h1")
    assert await page.inner_text("dialog h1") == f"t089/{MINI}"
    await page.keyboard.press("Escape")
    await page.wait_for_function("document.querySelectorAll('#table tbody tr').length === 90")
    await page.fill("#search", "said 77")
    assert await visible(page) == ["t077"]
    await page.fill("#search", "")
    await page.click("[data-sort=id] button")
    await page.click("[data-sort=id] button")
    assert (await visible(page))[0] == "t089"
    assert await page.locator("#table tbody").evaluate_all("(all) => all.map((body) => body.rows.length)") == [20, 20, 20, 20, 10]
    assert seen == Seen()
    await page.close()


async def test_a_batch_of_one_model_looks_as_before(browser: Browser, tmp_path: Path) -> None:
    page, _ = await opened(browser, tmp_path, page_of([case(at, id=f"t{at}", label=MINI, usage=Usage()) for at in range(3)]))

    assert await page.locator(".rates, .beside").count() == 0
    assert await page.locator("#table button.open").all_inner_texts() == ["t0", "t1", "t2"]
    await page.close()
