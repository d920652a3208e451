"""A process that used Temporal's SDK ends by itself: no thread of the SDK is left where Python ends."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from gradeloop.temporal.server import ServerInfo

CLOSED = """
import asyncio
from pathlib import Path
from gradeloop import GradingClient


async def main():
    async with GradingClient.connect() as client:
        asking = asyncio.create_task(client.state("nobody"))
        await asyncio.sleep(0)
    await asyncio.wait([asking])
    print(sorted(task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")), type(asking.exception()).__name__)


asyncio.run(main())
"""

LEFT_OPEN = """
import asyncio
from gradeloop import GradingClient


async def main():
    client = await GradingClient.connect()
    asking = asyncio.create_task(client.state("nobody"))
    await asyncio.wait([asking], timeout=0.005)
    return client, asking


client, asking = asyncio.run(main())
"""


def run(program: str, server: ServerInfo, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a Python program that finds the server."""
    environment = os.environ | {"TEMPORAL_ADDRESS": server.address, "GRADELOOP_STATE_DIR": str(folder)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system does not list a process's threads")
def test_no_thread_of_the_sdk_is_left_behind_a_closed_client(temporal_server: ServerInfo, tmp_path: Path) -> None:
    done = run(CLOSED, temporal_server, tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "tokio" not in done.stdout
    assert done.stdout.split("]")[1].strip() in {"InvalidRequest", "ThreadNotFound"}


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_program_that_closes_nothing_ends_with_0_too(temporal_server: ServerInfo, tmp_path: Path) -> None:
    codes = Counter(run(LEFT_OPEN, temporal_server, tmp_path).returncode for _ in range(60))

    assert codes == {0: 60}
