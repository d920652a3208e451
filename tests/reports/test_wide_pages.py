"""Pages in a window of 1,280 pixels: two columns that are both filled, and rows that stay low, in a narrow window too."""

from pathlib import Path

import pytest
from playwright.async_api import Browser

from gradeloop.batches.pages.read_batch import batch_page
from rig.large_batch import report_of
from tests.reports.test_two_browsers import PAGES

pytestmark = pytest.mark.slow

COLUMNS = """() => {
  const split = document.querySelector('.split'), aside = split.querySelector(':scope > .aside'), edge = aside.getBoundingClientRect();
  const box = (each) => each.getBoundingClientRect(), bottom = (all) => Math.max(...all.map((each) => box(each).bottom)) - edge.top;
  const shown = [...split.children].filter((each) => box(each).height);
  const right = shown.filter((each) => box(each).left >= edge.left).flatMap((each) => (each === aside ? [...each.children] : [each]));
  return [edge.left, bottom(shown.filter((each) => box(each).right <= edge.left)), bottom(right)];
}"""

ROW = """(bodies) => {
  for (const each of bodies) each.style.contentVisibility = 'visible';
  const of = (count) => bodies.reduce((sum, each) => sum + count(each), 0);
  return of((each) => each.offsetHeight) / of((each) => each.rows.length);
}"""


@pytest.mark.parametrize(
    "name", ["backtest", "batch", "diff", "failed", "judgements", "measured", "models", "monitor", "run", "run to rate", "waiting"]
)
async def test_both_columns_of_a_wide_page_are_filled(browser: Browser, tmp_path: Path, name: str) -> None:
    (tmp_path / "page.html").write_text(PAGES[name](tmp_path))
    page = await browser.new_page(viewport={"width": 1280, "height": 900})
    await page.goto((tmp_path / "page.html").as_uri())
    place, left, right = await page.evaluate(COLUMNS)
    await page.close()

    assert 850 < place < 1000
    assert min(left, right) > 0.4 * max(left, right), (left, right)


@pytest.mark.parametrize(("models", "width", "most"), [(1, 1280, 54), (1, 400, 112), (3, 1280, 150), (3, 400, 240)])
async def test_rows_of_a_batch_stay_low(browser: Browser, tmp_path: Path, models: int, width: int, most: float) -> None:
    (tmp_path / "page.html").write_text(batch_page(report_of(60, models)))
    page = await browser.new_page(viewport={"width": width, "height": 900})
    await page.goto((tmp_path / "page.html").as_uri())
    height = await page.locator("#table tbody").evaluate_all(ROW)
    await page.close()

    assert height < most
