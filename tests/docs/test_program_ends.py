"""Every documented Python program ends with exit status 0, each of many times."""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from temporalio.client import Client

from activities.tools.registry import ToolRegistry
from gradeloop.settings.worker import WorkerSettings
from gradeloop.temporal.server import ServerInfo
from tests.docs.test_docs import CONTRACT, QUEUE, README, ROOT, block, renamed, scripted
from tests.rig.judging import MATCH, answers
from tests.rig.threads import Models, verdict_text
from worker import build

AT_ONCE = 4

pytestmark = [
    pytest.mark.timeout(450),
    pytest.mark.parametrize("runs", [pytest.param(25, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.storm)]),
]


@pytest.fixture(scope="module")
async def models(client: Client) -> AsyncIterator[Models]:
    """Serve the documents' queue with models that pass whatever they are asked."""
    models = Models()
    models.answers = {"generator": lambda _, number: f"draft {number}", "grader": lambda _, __: verdict_text(True, "c1", "c2", "c3")}
    async with build(client, models, ToolRegistry(), WorkerSettings(task_queue=QUEUE)):
        yield models
    await models.aclose()


async def end(server: ServerInfo, folder: Path, *arguments: str) -> str:
    """Run a program to its end; return its exit status, and what it wrote to stderr if that is not 0."""
    environment = os.environ | {"TEMPORAL_ADDRESS": server.address, "GRADELOOP_STATE_DIR": str(folder)}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments), env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        _, err = await asyncio.wait_for(process.communicate(), 240)
    except TimeoutError:
        process.kill()
        await process.wait()
        return "it hangs"
    return f"{process.returncode} {err.decode()[-400:]}".strip()


async def ends(server: ServerInfo, folder: Path, programs: Sequence[tuple[str, ...]]) -> Counter[str]:
    """Run the programs, a few at once, and count how they end."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def run(number: int, arguments: tuple[str, ...]) -> str:
        async with slots:
            return await end(server, folder / str(number), *arguments)

    return Counter(await asyncio.gather(*(run(number, arguments) for number, arguments in enumerate(programs))))


@pytest.mark.usefixtures("models")
async def test_the_readmes_program(runs: int, temporal_server: ServerInfo, tmp_path: Path) -> None:
    text = block(README, "python", having="on_evaluation").scripted()
    programs = [("-c", renamed(text, f"readme-{number}")) for number in range(runs)]

    assert await ends(temporal_server, tmp_path, programs) == {"0": runs}


@pytest.mark.usefixtures("models")
async def test_the_service_of_the_examples(runs: int, temporal_server: ServerInfo, tmp_path: Path) -> None:
    programs = [(str(ROOT / "examples/service.py"), "scripted:model")] * runs

    assert await ends(temporal_server, tmp_path, programs) == {"0": runs}


@pytest.mark.usefixtures("models")
async def test_the_contracts_two_calls(runs: int, client: Client, temporal_server: ServerInfo, tmp_path: Path) -> None:
    argument = json.loads(block(CONTRACT, "json", "ThreadRequest").scripted())
    names = [f"closed-{number}" for number in range(runs)]
    await asyncio.gather(*(client.execute_workflow("GradingThread", argument, id=name, task_queue=QUEUE) for name in names))
    programs = [("-c", renamed(block(CONTRACT, "python").text, name)) for name in names]

    assert await ends(temporal_server, tmp_path, programs) == {"0": runs}


async def test_the_judge_of_a_service(
    runs: int, models: Models, temporal_server: ServerInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(models.answers, "grader", lambda _, __: str(answers(MATCH)["text"]))
    text = scripted(block(ROOT / "docs/judging.md", "python").text)
    programs = [("-c", text.replace("paris-1", f"ended-{number}")) for number in range(runs)]

    assert await ends(temporal_server, tmp_path, programs) == {"0": runs}
