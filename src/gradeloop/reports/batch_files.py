"""The page of a batch in files, as `-o` names them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from gradeloop.batches.reader import BatchReader
from gradeloop.reports.batch_report import batch_page, batch_report
from gradeloop.reports.batch_threads import threads_of
from gradeloop.reports.page_file import write_page


async def write_pages(paths: Sequence[Path], reader: BatchReader, batch_id: str) -> None:
    """Write a batch's page to files."""
    page = await asyncio.to_thread(batch_page, await batch_report(reader, batch_id, threads_of))
    for path in paths:
        write_page(path, page)
