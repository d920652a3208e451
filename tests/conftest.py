"""What every test stands on: one Temporal server a run, a client for it, and an environment without keys."""

import gc
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from temporalio.client import Client

from gradeloop.store import engine as store_engine
from gradeloop.store import upgrade
from gradeloop.store.engine import STORE_FILE
from gradeloop.temporal import server as embedded
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo, ensure_server, stop_server
from rig.fixtures import environment, named_connections, patient_detector_of_deadlocks
from rig.postgresql import NoPostgresqlError, Postgresql
from rig.postgresql import postgresql as one_postgresql
from tests.rig.cli import CommandLine
from tests.rig.leftovers import end_all
from tests.rig.reading import ReadsAgain

if TYPE_CHECKING:
    from playwright.async_api import Browser
    from sqlalchemy import Engine

    from tests.rig.kit import Kit
    from tests.rig.provider_server import ProviderServer

__all__ = ["environment", "named_connections", "patient_detector_of_deadlocks"]

settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=300, deadline=None)
settings.load_profile("quick")

ROOT = Path(__file__).parent.parent

SUGGESTED_AT = 60
"""Events of history after which the server of `impatient` suggests a new run, instead of 4,096."""

LONGEST = (
    "programs", "otlp_storm",
    "pairs", "wheel", "storm", "page_programs", "crash", "aimock", "sandboxes", "code_tools", "report_browser", "live_browser",
    "cli", "thread_rolling", "assert_rubric", "live", "cli_eval", "doctor", "builtin_tools", "testing", "thread_rubrics",
    "worker_settings", "house", "cli_errors", "cli_judge", "mcp", "batches", "worker", "worker_process", "replay", "priorities",
    "call_groups", "replay_batches", "embedded", "examples", "canary", "recording", "batch_store", "cli_report", "client",
)  # fmt: skip
"""Files that take longest, those first: with several processes none of them is left for the end, when the others have nothing to do."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have slow files run first, and then those with the most tests."""
    sizes = Counter(item.path for item in items)
    places = {f"test_{name}.py": at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (places.get(item.path.name, len(LONGEST)), -sizes[item.path]))


@pytest.fixture(scope="session")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the state folder of the test run's server."""
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="session")
async def temporal_server(server_folder: Path) -> AsyncIterator[ServerInfo]:
    """Run one embedded server, with time skipping, for all the tests that need one."""
    folder = str(server_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADELOOP_STATE_DIR", folder)
        server = await ensure_server(time_skipping=True)
    SERVERS.append(server)
    try:
        yield server
    finally:
        SERVERS.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GRADELOOP_STATE_DIR", folder)
            await stop_server()


SERVERS: list[ServerInfo] = []
"""The run's server, once a test needs it."""


@pytest.fixture(scope="session")
async def client(temporal_server: ServerInfo) -> Client:
    """Connect to the test run's server as every part of gradeloop does; a query that is to be sent again is."""
    connected = await connect(Connection(temporal_server.address, "default", embedded=False))
    return Client(**connected.config() | {"interceptors": [ReadsAgain()]})


@pytest.fixture(autouse=True, scope="session")
def copied_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have each new SQLite store of this process begin as a copy of the first one: migrations take a tenth of a second of CPU."""
    folder, copying = tmp_path_factory.mktemp("templates"), threading.Lock()

    def prepare(engine: "Engine") -> None:
        file, template = Path(str(engine.url.database)), folder / f"{upgrade.VERSION}.db"
        if engine.dialect.name != "sqlite" or file.stat().st_size:
            upgrade.prepare_store(engine)
            return
        with copying:
            if not template.exists():
                upgrade.prepare_store(engine)
                engine.dispose()  # so that all of it is in the one file
                shutil.copyfile(file, template)
            elif not file.stat().st_size:  # whole at once: other threads may look at it
                shutil.copyfile(template, part := file.with_suffix(".part"))
                shutil.copymode(file, part)
                part.replace(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_engine, "prepare_store", prepare)
        yield


@pytest.fixture(autouse=True, scope="module")
async def nothing_left_open() -> AsyncIterator[None]:
    """End what the tests of a module left open on the run's server."""
    yield
    for server in SERVERS:
        await end_all(await connect(Connection(server.address, "default", embedded=False)))


@pytest.fixture(scope="module")
def collected_here() -> Iterator[None]:
    """Collect what the tests of a module left open, as the MCP package does, where that is expected: later it fails any other test."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
async def kit(temporal_server: ServerInfo, tmp_path_factory: pytest.TempPathFactory) -> "AsyncIterator[Kit]":
    """Run one worker of the shipped test kit for all the tests that script its models."""
    from gradeloop.testing import ScriptedModels, worker
    from tests.rig.kit import TOOLS, Kit

    models, server = ScriptedModels(), Connection(temporal_server.address, "default", embedded=False)
    file = tmp_path_factory.mktemp("tools") / "tools.py"
    file.write_text(TOOLS)
    async with worker(models, tools=[file], server=server) as process:
        yield Kit(models, process, server)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """Run a server of S3 and return its address."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make a bucket, which this process's environment names, and return its client."""
    settings = {"ENDPOINT_URL_S3": s3_server, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "DEFAULT_REGION": "us-east-1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    import boto3  # type: ignore[import-untyped,import-not-found,unused-ignore]  # it has no types

    client = boto3.client("s3")
    client.create_bucket(Bucket="runs")
    yield client
    for page in client.get_paginator("list_objects_v2").paginate(Bucket="runs"):
        for key in page.get("Contents", ()):
            client.delete_object(Bucket="runs", Key=key["Key"])
    client.delete_bucket(Bucket="runs")


@pytest.fixture(scope="module")
def commands(temporal_server: ServerInfo, server_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Return the command line with folders of this module's own, in which it finds the test run's server."""
    from tests.rig.in_process import lend

    command = CommandLine(tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("files"), lent=True)
    lend(server_folder, command.state)
    yield command
    command.end()


@pytest.fixture(scope="module")
async def impatient(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Client]:
    """Run a server of its own that suggests a new run early."""
    folder = str(tmp_path_factory.mktemp("impatient"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADELOOP_STATE_DIR", folder)
        early = f"limit.historyCount.suggestContinueAsNew={SUGGESTED_AT}"
        patch.setattr(embedded, "DYNAMIC_CONFIG", (*embedded.DYNAMIC_CONFIG, early))
        server = await ensure_server()
        client = await connect(Connection(server.address, "default", embedded=True))
    try:
        yield client
    finally:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GRADELOOP_STATE_DIR", folder)
            await stop_server()


@pytest.fixture(scope="session")
async def one_provider_server() -> "AsyncIterator[ProviderServer]":
    """Run one server for the calls of all providers."""
    from tests.rig.provider_server import provider_server

    async with provider_server() as served:
        yield served


@pytest.fixture
def provider(one_provider_server: "ProviderServer") -> "ProviderServer":
    """Return the server that all providers are called at, which has received nothing yet."""
    one_provider_server.forget()
    return one_provider_server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Postgresql]:
    """Run a PostgreSQL of our own, or skip where it is not installed."""
    try:
        with one_postgresql() as server:
            yield server
    except NoPostgresqlError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return an empty database's URL, of either kind."""
    if request.param == "sqlite":
        (folder := tmp_path / "a folder").mkdir()
        return f"sqlite:///{folder / STORE_FILE}"
    return str(request.getfixturevalue("server_url"))


@pytest.fixture
def server_url(postgresql: Postgresql, tmp_path: Path) -> str:
    """Return the URL of an empty database of a real PostgreSQL."""
    return postgresql.create(f"d{abs(hash(str(tmp_path)))}")


@pytest.fixture(scope="session")
async def browser() -> "AsyncIterator[Browser]":
    """Run one headless Chromium for all the tests that look at pages, or skip where there is none."""
    from playwright.async_api import async_playwright, expect

    from rig.browser import FLAGS, executable

    if executable() is None:
        pytest.skip("Chromium is not installed (Debian, Ubuntu: apt install chromium)")
    expect.set_options(timeout=240_000)
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=executable(), args=list(FLAGS))
        yield running
        await running.close()
