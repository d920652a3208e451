"""What every test stands on: one Temporal server a run, a client for it, and an environment without keys."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gradeloop.connection import Connection, connect
from gradeloop.embedded import ServerInfo, ensure_server, stop_server

PRIVATE = (
    "ANTHROPIC_", "OPENAI_", "GOOGLE_", "GEMINI_", "PALM_", "OPENROUTER_", "MISTRAL_", "AZURE_OPENAI_", "GITHUB_TOKEN", "TEMPORAL_",
    "GRADELOOP_TASK_QUEUE", "GRADELOOP_BASE_URLS", "GRADELOOP_PRICES",
)  # fmt: skip
"""How the environment variables begin that would tie a test to the machine it runs on, or let it pay."""

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the test no provider key, no Temporal server, and a state folder of its own, which is returned."""
    for name in [name for name in os.environ if name.startswith(PRIVATE)]:
        monkeypatch.delenv(name)
    folder = tmp_path_factory.mktemp("state")
    profiles = folder / "no-profiles.toml"
    profiles.touch()
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(profiles))
    monkeypatch.setenv("GRADELOOP_STATE_DIR", str(folder))
    return folder


@pytest.fixture(scope="session")
async def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServerInfo]:
    """Run one embedded server, with time skipping, for all the tests that need one."""
    folder = str(tmp_path_factory.mktemp("server"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADELOOP_STATE_DIR", folder)
        server = await ensure_server(time_skipping=True)
    try:
        yield server
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GRADELOOP_STATE_DIR", folder)
            await stop_server()


@pytest.fixture(scope="session")
async def client(temporal_server: ServerInfo) -> Client:
    """Connect to the test run's server as every part of gradeloop does."""
    return await connect(Connection(temporal_server.address, "default", embedded=False, ui=temporal_server.ui))


def _shared_folder() -> Path:
    """Return the folder of recorded traffic and replay tools that lies beside the repository."""
    return Path(os.environ.get("GRADELOOP_SHARED", ROOT.parent / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the shared folder, or skip where it is missing."""
    folder = _shared_folder()
    if not folder.is_dir():
        pytest.skip(f"no recorded provider traffic at {folder}; GRADELOOP_SHARED names the folder that holds cassettes/ and tools/")
    return folder


@pytest.fixture(scope="session")
def cassettes() -> Path:
    """Return the folder of recorded provider traffic, or skip where it is missing."""
    folder = Path(os.environ.get("GRADELOOP_CASSETTES", _shared_folder() / "cassettes"))
    if not folder.is_dir():
        pytest.skip(f"no recorded provider traffic at {folder}; GRADELOOP_CASSETTES names the folder")
    return folder
