"""A worker with scripted models, on the tests' server: what the doors of other programs judge with."""

from collections.abc import AsyncIterator

import pytest

from gradeloop.temporal.connect import Connection
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import ScriptedModels, WorkerProcess, worker


@pytest.fixture(scope="module")
def models() -> ScriptedModels:
    return ScriptedModels()


@pytest.fixture(scope="module")
async def served(models: ScriptedModels, temporal_server: ServerInfo) -> AsyncIterator[WorkerProcess]:
    connection = Connection(temporal_server.address, "default", embedded=False)
    async with worker(models, server=connection) as process:
        yield process
