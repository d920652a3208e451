"""Every kind of page in Chromium and in Firefox: light and dark, wide and narrow, and with a keyboard alone."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from gradeloop.batches.pages.live import SHOWN
from gradeloop.batches.pages.read_batch import BatchReport, batch_page, head_of
from gradeloop.batches.trends import SuiteBatch, charts_of
from gradeloop.calibration.cli.backtest import Backtest, End, Outcome, backtest_page
from gradeloop.calibration.cli.measure import check_page
from gradeloop.calibration.labelled_sets import read_labelled_set
from gradeloop.contract.messages import Usage
from gradeloop.monitors.pages.live import monitor_page
from gradeloop.reports.html import document
from gradeloop.reports.run_page import run_page
from gradeloop.stats.intervals import Estimate
from gradeloop.web.app import inbox_page
from gradeloop.web.site import SteeredPage
from rig.large_batch import report_of
from tests.calibration.test_check_judge import checked, write
from tests.reports.test_first_look import DRAFTS, failed, rejecting
from tests.reports.test_narrow_pages import compared, waiting
from tests.rig import firefox
from tests.rig.batch_results import case, summary_of
from tests.rig.browser import axe_findings, cut_off, too_wide
from tests.rig.stories import SECOND, gated_page, judged, mended, row
from tests.web.test_inbox import card
from tests.web.test_monitor_pages import found, tick

pytestmark = pytest.mark.slow

STEERED = SteeredPage(token="t", path="/p", thread="/p", status="waiting", open=True, tag="")


def measured(folder: Path) -> str:
    """Return the page of a judge that a labelled set has measured."""
    rows = [{"prompt": "Q?", "output": f"x{at}", "label": bool(at % 2), "category": f"kind {at % 3}"} for at in range(12)]
    labelled = read_labelled_set(write(folder, rows, "labelled.jsonl"))
    return check_page(checked(labelled, lambda _: {"label": "no match", "explanation": "no"}), {"accuracy": 0.9})


RATED = SteeredPage(token="t", path="/batches/b/cases/a", batch="b", attempt=0)


def trend() -> str:
    """Return the page of a suite's trends, with a mark where its rubric changed."""
    past = [
        SuiteBatch(
            batch=summary_of([case(one, "passed" if one < at else "failed") for one in range(10)], batch_id=f"b{at}"),
            rate=Estimate.share(at, 10),
            seconds=1.5 + at,
            since=(2, at),
            changed=("rubric",) if at == 6 else (),
        )
        for at in range(9, 3, -1)
    ]
    facts: dict[str, Any] = {"name": "suite", "found": past, "charts": charts_of(past), "cases": 100}
    return document("live_trend.html", title="Trends", live=SteeredPage(token="t", path="/p", tag=""), **facts, **SHOWN)


def backtested() -> str:
    """Return the page of a rubric that would have sent an answer back, accepted another, and diverged from a third."""
    ends: list[End] = ["sent_back", "accepted", "diverges"]
    examples = tuple(
        Outcome(name=f"reply-{at}@1", end=end, draft=1, text=SECOND, why="step: no step", rows=(row("step", passed=at == 1), row("short")))
        for at, end in enumerate(ends)
    )
    counts = {
        "threads": 9,
        "drafts": 14,
        "asked": 12,
        "saved": 1,
        "diverged": {1: 1},
        "ends": {"same": 6, "unknown": 0, **dict.fromkeys(ends, 1)},
    }
    people = {"agreed": 0.8, "agrees_more": Estimate.share(1, 10), "left_out": {"are running": 2}, "usage": Usage()}
    criteria = {"step": {"asked": 12, "same": 10, "fell": 1, "rose": 1}}
    return backtest_page(Backtest(**counts, **people, criteria=criteria, examples=examples), Path("rubric-v2.md"))


PAGES: dict[str, Callable[[Path], str]] = {
    "backtest": lambda _: backtested(),
    "batch": lambda _: batch_page(report_of(12)),
    "models": lambda _: batch_page(report_of(12, 3)),
    "diff": compared,
    "failed": lambda _: run_page(failed(best=1)),
    "inbox": lambda _: inbox_page([waiting(), card("a dog ran")], token="t"),
    "judgement": lambda _: run_page(judged()),
    "judgement to rate": lambda _: run_page(judged(), live=RATED),
    "judgements": lambda _: gated_page(),
    "measured": measured,
    "monitor": lambda _: monitor_page(found(*(tick(number, 17, 20) for number in range(20, 0, -1))), None, "", live=STEERED),
    "run": lambda _: run_page(mended()),
    "run to rate": lambda _: run_page(failed(best=1), live=RATED),
    "several drafts": lambda _: run_page(failed(best=1).model_copy(update={"messages": (*DRAFTS, *DRAFTS[2:])})),
    "trend": lambda _: trend(),
    "waiting": lambda _: run_page(rejecting(), live=STEERED),
}

FOCUS = """() => {
  const at = document.activeElement, style = getComputedStyle(at), all = [...document.querySelectorAll('*')];
  return {
    place: at === document.body ? -1 : all.indexOf(at), name: at.id || at.className || at.tagName, inside: Boolean(at.closest('dialog')),
    ring: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2,
    seen: at.checkVisibility() && at.getBoundingClientRect().bottom > 0 && at.getBoundingClientRect().top < innerHeight,
  };
}"""

OPENED = """() => new Promise((resolve) => {
  const look = () => (document.querySelector('dialog[open] h1') ? resolve(true) : setTimeout(look, 20));
  look();
})"""


class ChromiumPage:
    """A page of Playwright that presses keys as the one of Firefox does."""

    def __init__(self, page: Any) -> None:
        self.evaluate, self.goto, self.set_viewport_size, self.press = page.evaluate, page.goto, page.set_viewport_size, page.keyboard.press


@pytest.fixture(params=["chromium", "firefox"])
async def page(request: pytest.FixtureRequest, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """Return a page of one of the browsers that are installed here."""
    if request.param == "chromium":
        tab = await browser.new_page(reduced_motion="reduce")
        yield ChromiumPage(tab)
        await tab.close()
        return
    if firefox.executable() is None:
        pytest.skip("Firefox is not installed (Debian, Ubuntu: apt install firefox-esr)")
    async with firefox.running(tmp_path_factory.mktemp("profile")) as other:
        yield other


async def open_page(page: Any, folder: Path, html: str, width: int = 1280) -> None:
    """Open a page from disk."""
    (folder / "page.html").write_text(html)
    await page.set_viewport_size({"width": width, "height": 900})
    await page.goto((folder / "page.html").as_uri())


async def test_every_page_fits_and_keeps_nobody_out(page: Any, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, made in PAGES.items():
        with subtests.test(name):
            await open_page(page, tmp_path, made(tmp_path))
            await page.evaluate("() => { for (const each of document.querySelectorAll('details')) each.open = true; }")
            for width in (1280, 400):
                await page.set_viewport_size({"width": width, "height": 900})
                for theme in ("light", "dark"):
                    await page.evaluate(f"() => {{ document.documentElement.dataset.theme = '{theme}'; }}")
                    assert await axe_findings(page) == [], (width, theme)
                assert (await too_wide(page), await cut_off(page)) == (0, []), width


async def test_the_keyboard_reaches_everything_in_the_order_of_the_page_and_shows_where_it_is(
    page: Any, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, made in PAGES.items():
        with subtests.test(name):
            await open_page(page, tmp_path, made(tmp_path))
            met: list[dict[str, Any]] = []
            while len(met) < 200:
                await page.press("Tab")
                at = await page.evaluate(FOCUS)
                if at["place"] < 0 or (met and at["place"] in (met[0]["place"], met[-1]["place"])):
                    break
                met.append(at)
            places = [each["place"] for each in met]

            assert met[0]["name"] == "skip"
            assert places == sorted(set(places))
            assert [each["name"] for each in met if not (each["ring"] and each["seen"])] == []


async def test_a_case_is_opened_kept_and_left_by_keys_and_the_focus_returns(page: Any, tmp_path: Path) -> None:
    results = [case(at, "failed" if at % 2 else "passed") for at in range(6)]
    await open_page(page, tmp_path, batch_page(BatchReport(head_of(summary_of(results)), [(None, one) for one in results])))
    await page.press("n")
    before = await page.evaluate(FOCUS)
    await page.press("Enter")
    await page.evaluate(OPENED)
    inside = [(await page.evaluate(FOCUS))["inside"]]
    for _ in range(30):
        await page.press("Tab")
        at = await page.evaluate(FOCUS)
        inside.append(at["inside"] or at["place"] < 0)
    await page.press("Escape")

    assert all(inside)
    assert await page.evaluate("document.querySelector('dialog').open") is False
    assert (await page.evaluate(FOCUS))["place"] == before["place"]
