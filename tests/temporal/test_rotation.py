"""A server behind mutual TLS and an API key, and certificates that are renewed while a worker runs."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.service import RPCError

from activities.tools.base import UNTRIED, ToolContext
from activities.tools.registry import ToolRegistry
from gradeloop.client.client import GradingClient
from gradeloop.errors import ServerUnreachable
from gradeloop.settings.worker import WorkerSettings
from gradeloop.temporal.connect import connect, find, follow_credentials
from gradeloop.temporal.server import ServerInfo
from rig.tls_proxy import PROGRAM, Authority, TlsProxy, running
from tests.rig.threads import Models, draft, request
from worker import build

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs haproxy: apt-get install haproxy")

TOKEN = "a-token-for-the-test"


@pytest.fixture
def authority() -> Authority:
    """Return the authority that the proxy accepts at first."""
    return Authority("first")


@pytest.fixture
def guarded(authority: Authority, temporal_server: ServerInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TlsProxy]:
    """Run the proxy, and have Temporal's environment name it, its authority and the client's files."""
    with running(TlsProxy(tmp_path, temporal_server.address, Authority("servers"), TOKEN), authority) as proxy:
        proxy.renew(authority)
        for name, value in proxy.variables.items():
            monkeypatch.setenv(name, value)
        yield proxy


async def test_a_wrong_token_is_refused_in_a_sentence(guarded: TlsProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_API_KEY", "another")

    with pytest.raises(ServerUnreachable, match=r"refuses the credentials .*correct TEMPORAL_API_KEY, TEMPORAL_TLS_\*") as error:
        await connect(await find())

    assert "another" not in str(error.value)


async def test_a_certificate_of_a_stranger_is_refused_in_a_sentence(guarded: TlsProxy) -> None:
    guarded.renew(Authority("stranger"))

    with pytest.raises(ServerUnreachable, match="No Temporal server answers at"):
        await connect(await find())


async def test_a_worker_goes_on_with_certificates_that_were_renewed_on_disk(guarded: TlsProxy, caplog: pytest.LogCaptureFixture) -> None:
    connection, queue = await find(), f"tls-{uuid4()}"
    client = await connect(connection)
    bystander = await connect(connection)
    settings = WorkerSettings(task_queue=queue)
    worker = build(client, Models((draft(0),)), ToolRegistry((), ToolContext(settings, UNTRIED)), settings)
    caplog.set_level("INFO", "gradeloop.temporal.connect")
    async with worker:
        following = asyncio.create_task(follow_credentials(client, connection, lambda: setattr(worker, "client", client), 0.1))
        assert (
            await GradingClient(client, task_queue=queue).result(await GradingClient(client, task_queue=queue).start(request()))
        ).output == "draft 0"

        second = Authority("second")
        guarded.renew(second)
        await said(caplog, "cannot be used yet")  # the proxy does not accept that authority so far
        guarded.start(second)
        await said(caplog, "anew, with the credentials as they are now")

        assert (
            await GradingClient(client, task_queue=queue).result(await GradingClient(client, task_queue=queue).start(request()))
        ).output == "draft 0"
        following.cancel()

    # The SDK by itself presents what it was connected with. Which words it fails with depends on who notices the refusal first.
    with pytest.raises(RPCError, match=r"transport error|operation was canceled"):
        await bystander.service_client.check_health(timeout=timedelta(seconds=5))


async def said(caplog: pytest.LogCaptureFixture, words: str) -> None:
    """Wait until a line of the log has these words."""
    async with asyncio.timeout(240):
        while words not in caplog.text:
            await asyncio.sleep(0.05)
