"""The page about testing a service tells the truth: its service, its fixtures and its tests run as they stand."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import blocks

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"

FILES = {"settings": "pytest.ini", "service": "service.py", "conftest": "conftest.py", "tests": "test_service.py"}


@pytest.mark.slow
async def test_the_pages_tests_pass(tmp_path: Path) -> None:
    for block in (block for block in blocks(PAGE) if block.about in FILES):
        (tmp_path / FILES[block.about]).write_text(block.text)

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    out, _ = await asyncio.wait_for(process.communicate(), 100)

    assert "4 passed" in out.decode(), out.decode()
