"""Fixtures of the lab's tests: an environment without keys, and a server for those that run workers in their own process."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from rig.fixtures import environment, named_connections, patient_detector_of_deadlocks
from rig.processes import Engine, engine_in

__all__ = ["environment", "named_connections", "patient_detector_of_deadlocks"]


@pytest.fixture(scope="session")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    """Run one embedded server for all of them."""
    async with engine_in(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.fixture(scope="session")
async def client(engine: Engine) -> Client:
    """Connect to it as every part of gradeloop does."""
    return await engine.client()
