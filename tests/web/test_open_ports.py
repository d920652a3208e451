"""Every port that our processes listen on, tried as another site's page and as a name that was rebound would."""

import asyncio
import base64
import contextlib
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import psutil  # type: ignore[import-untyped]
import pytest
from playwright.async_api import Browser, expect
from temporalio.client import Client

from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import free_port
from tests.rig.cli import CommandLine

pytestmark = pytest.mark.slow

FOREIGN = "http://evil.example"
START = {
    "workflowType": {"name": "GradingThread"},
    "taskQueue": {"name": "gradeloop"},
    "input": [{"messages": [{"role": "user", "content": "x"}], "rubric": "- x", "generator": {"model": "scripted:g"}}],
}
THREADS = "/api/v1/namespaces/default/workflows"
NEXUS = (
    "/nexus/callback",
    "/namespaces/default/nexus/callback",
    "/nexus/endpoints/x/services/s/o",
    "/namespaces/default/task-queues/gradeloop/nexus-services/s/o",
)
PATHS = ("/", THREADS, f"{THREADS}/evil", "/api/v1/system-info", "/v1/traces", "/mcp", "/decode", "/healthz", "/readyz", "/metrics", *NEXUS)
SECONDS = 240.0


@dataclass(frozen=True)
class Served:
    """Our processes, and where they listen."""

    ports: frozenset[int]
    empty: frozenset[int]
    """The ports of the empty server that serves the UI's files: there is nothing to find, and no worker."""
    server: str
    """The address of the embedded server."""
    page: str
    ui: str
    command: CommandLine


def listens(process: psutil.Process) -> dict[int, list[str]]:
    """Return the command of the process that listens, by the port."""
    family = [process, *process.children(recursive=True)]
    found = ((connection, one.cmdline()) for one in family for connection in one.net_connections("tcp"))
    return {connection.laddr.port: command for connection, command in found if connection.status == psutil.CONN_LISTEN}


def first_lines(process: "subprocess.Popen[str]", pattern: str, stream: str) -> dict[str, str]:
    """Read what a command prints until it has said what was asked for, and return it by its first word."""
    said: dict[str, str] = {}
    for line in iter(getattr(process, stream).readline, ""):
        name, _, rest = line.strip().partition(" ")
        said[name] = rest.strip()
        if re.search(pattern, line):
            return said
    raise AssertionError(said)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("ports")
    (folder / "keys").write_text(f"k1 {base64.b64encode(bytes(32)).decode()}\n")
    (folder / "replies.yaml").write_text('{"replies": []}')
    command = CommandLine(tmp_path_factory.mktemp("state"), folder, {"GRADELOOP_ENCRYPTION_KEYS": "", "PYTHONUNBUFFERED": "1"})
    metrics, health, otlp = (free_port() for _ in range(3))
    try:
        dev = command.start(
            *("dev", "--scripted", "replies.yaml", "--metrics-address", f"127.0.0.1:{metrics}", "--otlp", f"127.0.0.1:{otlp}"),
            GRADELOOP_PAGE_PORT="0",
            GRADELOOP_HEALTH_ADDRESS=f"127.0.0.1:{health}",
        )
        said = first_lines(dev, "^UI", "stdout")
        codec = command.start("codec", "--address", "127.0.0.1:0", GRADELOOP_ENCRYPTION_KEYS=str(folder / "keys"))
        first_lines(codec, "^Codec", "stdout")
        address = said["Temporal"].split()[0]
        mcp = command.start("mcp", "--http", "127.0.0.1:0", TEMPORAL_ADDRESS=address)
        first_lines(mcp, "^serving", "stderr")
        record = json.loads((command.state / "server.json").read_text())
        httpx2.get(said["UI"], trust_env=False, timeout=SECONDS)  # which starts what serves the UI's files
        until = time.monotonic() + SECONDS
        ports: dict[int, list[str]] = {}
        while not {metrics, health, otlp} <= set(ports) and time.monotonic() < until:
            for pid in (dev.pid, codec.pid, mcp.pid, record["pid"]):
                ports |= listens(psutil.Process(pid))
            time.sleep(0.1)
        assert {metrics, health, otlp} <= set(ports)
        empty = frozenset(port for port, words in ports.items() if "--ui-port" in words)
        yield Served(frozenset(ports), empty, address, said["Page"], said["UI"], command)
    finally:
        for process in command._started:
            process.terminate()
            process.communicate(timeout=SECONDS)
        command.end()


def attacks(port: int) -> list[bytes]:
    """Return requests as a page of another site sends them, and one whose name was rebound to this machine."""
    body = json.dumps(START)
    simple = f"Host: 127.0.0.1:{port}\r\nOrigin: {FOREIGN}\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors"
    rebound = f"Host: evil.example:{port}\r\nOrigin: {FOREIGN}:{port}\r\nSec-Fetch-Site: same-origin"
    heads = [f"GET {path} HTTP/1.1\r\n{fields}\r\n" for path in PATHS for fields in (simple, rebound)]
    heads += [
        f"POST {path} HTTP/1.1\r\n{fields}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
        for path in PATHS
        for fields in (simple, rebound)
    ]
    return [f"{head}Connection: close\r\n\r\n{body if head.startswith('POST') else ''}".encode() for head in heads]


async def answer(port: int, request: bytes) -> bytes:
    """Return the beginning of what a port answers; nothing where it hangs up or waits."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(3):
            writer.write(request)
            return await reader.read(4096)
    except (TimeoutError, OSError):
        return b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def first_line(text: bytes) -> str:
    return text.partition(b"\r\n")[0].decode("latin-1")


async def started(served: Served) -> list[str]:
    client: Client = await connect(Connection(served.server, "default", embedded=True))
    return [found.id async for found in client.list_workflows()]


async def test_no_port_does_or_says_anything_for_another_site(served: Served) -> None:
    """Metrics aside, which quote nothing that people or models wrote.

    Temporal's Nexus routes look at no Host: what they are sent reaches workers with Nexus handlers alone, and ours have none.
    """
    tried = [(port, request) for port in sorted(served.ports) for request in attacks(port)]
    places = asyncio.Semaphore(50)

    async def tell(port: int, request: bytes) -> bytes:
        async with places:
            return await answer(port, request)

    answers = await asyncio.gather(*(tell(port, request) for port, request in tried))
    taken = [
        (port, first_line(request), first_line(said), said[-200:])
        for (port, request), said in zip(tried, answers, strict=True)
        if re.match(rb"HTTP/1.1 [23]", said) and port not in served.empty and b" /metrics " not in request[:20]
    ]

    assert taken == []
    assert await started(served) == []


async def test_a_page_of_another_site_in_chromium_starts_nothing_and_reads_nothing(served: Served, browser: Browser) -> None:
    page = await browser.new_page()
    with socket.create_server(("127.0.0.1", 0)) as site:
        origin = f"http://localhost:{site.getsockname()[1]}"
    await page.route(f"{origin}/", lambda route: route.fulfill(body="<title>another site</title>", content_type="text/html"))
    await page.goto(f"{origin}/")
    script = """async ([ports, paths, body]) => {
        const read = [];
        const tries = ports.flatMap(port => paths.flatMap(path => ["GET", "POST"].flatMap(method => ["cors", "no-cors"].map(async mode => {
            const type = {"Content-Type": "text/plain"};
            const init = {method, mode, headers: type, signal: AbortSignal.timeout(3000), body: method == "POST" ? body : undefined};
            try {
                const answer = await fetch(`http://127.0.0.1:${port}${path}`, init);
                if (answer.type != "opaque") read.push([port, path, method, answer.status]);
            } catch {}
        }))));
        await Promise.all(tries);
        return read;
    }"""
    read = await page.evaluate(script, [sorted(served.ports), list(PATHS), json.dumps(START)])
    await page.evaluate(
        """url => { const frame = document.createElement("iframe"); frame.src = url; document.body.append(frame); }""", served.ui
    )
    await page.close()

    assert read == []
    assert await started(served) == []


async def test_temporals_ui_is_one_click_away_and_shows_the_threads_of_the_users_server(served: Served, browser: Browser) -> None:
    client = await connect(Connection(served.server, "default", embedded=True))
    await client.start_workflow("Anything", {"bird": "osprey"}, id="shown", task_queue="nobody")
    page = await browser.new_page(viewport={"width": 1400, "height": 1000})
    await page.goto(served.page)
    await page.get_by_role("link", name=served.ui).click()
    await expect(page.get_by_text("shown").first).to_be_visible(timeout=30_000)
    await page.goto(f"{served.ui}/namespaces/default/workflows/shown")
    await expect(page.get_by_text("osprey").first).to_be_visible(timeout=30_000)
    terminated = await page.evaluate(
        """async () => (await fetch("/api/v1/namespaces/default/workflows/shown/terminate", {method: "POST", body: "{}"})).status"""
    )
    await page.close()
    await client.get_workflow_handle("shown").describe()

    assert terminated == 200
