"""How large the page of many cases is, how long it takes to write, and when a browser first paints it: `python -m lab.large_report`."""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from gradeloop.batches.pages.read_batch import batch_page
from gradeloop.reports.html import write_page
from gradeloop.web.site import SteeredPage
from rig.browser import FLAGS, executable
from rig.large_batch import report_of


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the browser, with a new empty profile."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def first_paint(page: Path, runs: int) -> tuple[list[float], list[float], list[tuple[int, float]]]:
    """Return, in ms, when a new browser's page first painted something, when it was loaded, and how many rows it had when, for each run."""
    painted, ready, filled = [], [], []
    for _ in range(runs):
        with chromium() as browser:
            opened = browser.new_page(viewport={"width": 1280, "height": 900})
            opened.goto(page.as_uri())
            paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            opened.wait_for_function("() => performance.getEntriesByName('first-contentful-paint').length > 0")
            painted.append(float(opened.evaluate(paint)))
            ready.append(float(opened.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")))
            opened.locator("#rows").wait_for(state="detached")
            filled.append(opened.evaluate("[document.querySelectorAll('#table tbody tr').length, performance.now()]"))
    return painted, ready, filled


def main() -> None:
    """Write the page, open it, and print what that took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="write the page there")
    parser.add_argument("--live", action="store_true", help="the page as `gradeloop dev` serves it, whose rows lead to pages of their own")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.keep or Path(folder) / "report.html"
        report = report_of(arguments.cases)
        began = time.perf_counter()
        size = write_page(path, batch_page(report, live=SteeredPage(token="t", path="/") if arguments.live else None))
        seconds = time.perf_counter() - began
        painted, ready, filled = first_paint(path.resolve(), arguments.runs)
    paint, loaded, rows = statistics.median(painted), statistics.median(ready), max(count for count, _ in filled)
    print(f"{arguments.cases:,} cases: {size}, written in {seconds:.1f} s")
    print(f"first paint {paint:.0f} ms, loaded {loaded:.0f} ms, medians of {arguments.runs} new browsers")
    print(f"{rows:,} rows are there after {statistics.median(when for _, when in filled):.0f} ms")


if __name__ == "__main__":
    main()
