"""The numbers of a batch while it runs: those at the head of a page, or of an export, agree with the cases below them."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gradeloop.batches.cases import build_result
from gradeloop.batches.charges import CallCost
from gradeloop.batches.cli.batches import export
from gradeloop.batches.contract import BatchRequest, Case, CaseStatus, Upload
from gradeloop.batches.pages.read_batch import stored_batch_page
from gradeloop.batches.reader import BatchReader
from gradeloop.batches.store import BatchStore
from gradeloop.contract.messages import Usage
from gradeloop.store.engine import STORE_VARIABLE, Store
from tests.rig.batches import case

CASES = 300
ENDS: tuple[CaseStatus, ...] = ("passed", "failed", "error")

FLAGS = {"failed": "failed", "errors": "error", "not run": "none"}
"""The filters of a page by the labels of its tiles."""

Counts = dict[str, int]


async def readings(url: str, read: Callable[[], tuple[Counts, Counts]]) -> list[tuple[Counts, Counts]]:
    """Return what is read, again and again, of a batch whose cases end meanwhile."""
    store = Store(url)
    batch, found = BatchStore(store), [Case.model_validate(case(f"c{at}")) for at in range(CASES)]
    await batch.add(Upload(batch_id="b", first=0, cases=tuple(found)))
    await batch.open(BatchRequest(batch_id="b", total=CASES))

    async def end_cases() -> None:
        for at, one in enumerate(found):
            await batch.end_case("b", at, build_result(one, ENDS[at % 3], output="x", error="broken"), CallCost(Usage(calls=1, attempts=1)))

    ending, seen = asyncio.create_task(end_cases()), []
    while not ending.done():
        seen.append(await asyncio.to_thread(read))
    await ending
    store.close()
    return seen


@pytest.mark.slow
async def test_the_tiles_of_a_page_and_its_filters_count_the_same_cases(url: str) -> None:
    store = Store(url)
    reader = BatchReader(store)

    def read() -> tuple[Counts, Counts]:
        page = asyncio.run(stored_batch_page(reader, "b"))
        tiles = re.findall(r'<div class="tile [^"]*"><b>(\d+)</b><span>(failed|errors|not run)</span>', page)
        filters = dict(re.findall(r'data-filter="(failed|error|none)"[^>]*>[a-z ]+ (\d+)', page))
        named = {name: int(number) for number, name in tiles}
        return named, {name: int(filters.get(flag, 0)) for name, flag in FLAGS.items() if name in named}

    seen = await readings(url, read)

    store.close()
    assert seen
    assert [pair for pair in seen if pair[0] != pair[1]] == []


@pytest.mark.slow
async def test_an_export_holds_the_cases_that_its_summary_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'results.db'}"
    monkeypatch.setenv(STORE_VARIABLE, url)

    def read() -> tuple[Counts, Counts]:
        export(["b"], output=[tmp_path / "results.json"])
        written = json.loads((tmp_path / "results.json").read_text())
        ended = Counter(one["status"] for one in written["cases"])
        summary = written["summary"]
        counted = {"passed": summary["passed"], "failed": summary["failed"], "error": summary["errors"]}
        return counted, {name: ended[name] for name in counted}

    seen = await readings(url, read)

    assert [pair for pair in seen if pair[0] != pair[1]] == []
