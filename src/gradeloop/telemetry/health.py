"""Health: `/healthz` says whether the process works at all, `/readyz` whether it can do its work now."""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from socket import AF_INET6
from threading import Thread
from typing import cast

from gradeloop.errors import InvalidRequest

STALL_SECONDS = 30.0
"""Seconds without a turn of the event loop after which the process counts as hung: heartbeats of 10 s would be missed thrice."""

STEP_SECONDS = 60.0
"""Seconds of a workflow's step after which its thread counts as hung: the SDK gives each two, and then tries to interrupt it."""

PULSE_SECONDS = 1.0

CHECK_SECONDS = 5.0
"""Seconds that one check may take; a probe of Kubernetes is given longer than this."""

FRESH_SECONDS = 2.0
"""Seconds for which the results of checks are given again, so that many probes are not many checks."""

CLIENT_SECONDS = 5.0
"""Seconds that a client may take to send its request."""

Check = Callable[[], Awaitable[None]]
"""Returns where all is well, and raises an error whose text says what is wrong."""


def parse_address(text: str, name: str) -> tuple[str, int]:
    """Return host and port of an address to listen at, `127.0.0.1:9464` or `[::]:9464`; raise InvalidRequest where it is malformed."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/]+):(\d{1,5})", text)
    if found is None or int(found[2]) > 65_535:  # noqa: PLR2004 - the highest port
        raise InvalidRequest(f"{name} is {text!r}; write HOST:PORT, for example 127.0.0.1:9464, or 0.0.0.0:9464 for other machines")
    return found[1].strip("[]"), int(found[2])


def is_loopback(host: str) -> bool:
    """Return whether a host, as `parse_address` returns it, is this machine's own, which no other machine reaches."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_local_name(host: str) -> bool:
    """Return whether a Host header names this machine's own address; a web page can have a name of its own point at that."""
    return is_loopback(re.sub(r":\d+$", "", host).strip("[]"))


class Pulse:
    """Notes that an event loop turns."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    async def beat(self) -> None:
        """Note the loop's turns, until it is cancelled."""
        while True:
            self._last = time.monotonic()
            await asyncio.sleep(PULSE_SECONDS)

    @property
    def age(self) -> float:
        """Seconds since the loop was last seen turning."""
        return time.monotonic() - self._last


class HealthChecks:
    """The checks of a process, made in its event loop, with results that stay good for a moment."""

    def __init__(self, checks: Mapping[str, Check], clean: Callable[[str], str]) -> None:
        """Take the checks by name."""
        self._checks = checks
        self._clean = clean
        self._made: tuple[float, dict[str, str]] = (float("-inf"), {})
        self._running: asyncio.Task[dict[str, str]] | None = None

    async def results(self) -> dict[str, str]:
        """Return `ok` or what is wrong, by the name of the check."""
        # Probes come from several sides at once. One set of checks runs at a time and serves all who ask
        # meanwhile. It is shielded: a probe that gives up must not cancel the checks that the others wait for.
        at, known = self._made
        if time.monotonic() - at < FRESH_SECONDS:
            return known
        self._running = self._running or asyncio.create_task(self._make())
        return await asyncio.shield(self._running)

    async def _make(self) -> dict[str, str]:
        try:
            found = await asyncio.gather(*(self._result(check) for check in self._checks.values()))
            self._made = time.monotonic(), dict(zip(self._checks, found, strict=True))
            return self._made[1]
        finally:
            self._running = None

    async def _result(self, check: Check) -> str:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await check()
        except TimeoutError:
            return f"no answer within {CHECK_SECONDS:.0f} s"
        except Exception as error:  # noqa: BLE001 - whatever is wrong is the answer
            return self._clean(str(error) or type(error).__name__)
        return "ok"


def report(results: Mapping[str, str]) -> tuple[HTTPStatus, dict[str, object]]:
    """Return the status and the document that answer `/readyz`."""
    ready = all(result == "ok" for result in results.values())
    return HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE, {"ok": ready, "checks": dict(results)}


@contextmanager
def serving_health(address: tuple[str, int], checks: HealthChecks, longest_step: Callable[[], float] = float) -> Iterator[str]:
    """Answer `/healthz` and `/readyz` of this event loop while the block runs, and yield their address.

    A thread answers, so that a loop that hangs is said to hang.

    Args:
        address: Host and port to listen at.
        checks: What `/readyz` looks at.
        longest_step: Returns for how many seconds the oldest step of a workflow has run.

    Raises:
        InvalidRequest: The address cannot be opened.
    """
    pulse, loop = Pulse(), asyncio.get_running_loop()
    try:
        server = _HealthServer(address, lambda path: _answer(path, _hung(pulse, longest_step), checks, loop))
    except OSError as error:
        raise InvalidRequest(f"the health address {address[0]}:{address[1]} cannot be opened ({error.strerror}); choose another") from None
    beating = loop.create_task(pulse.beat())
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="gradeloop-health", daemon=True)
    thread.start()
    try:
        host = f"[{address[0]}]" if ":" in address[0] else address[0]
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        beating.cancel()
        server.shutdown()
        server.server_close()


def _hung(pulse: Pulse, longest_step: Callable[[], float]) -> str | None:
    """Return what no longer turns, for which only a new process helps; None where all does."""
    if pulse.age > STALL_SECONDS:
        return f"the event loop has not turned for {pulse.age:.0f} s"
    if (seconds := longest_step()) > STEP_SECONDS:
        return f"a workflow's thread has not come back for {seconds:.0f} s"
    return None


def _answer(path: str, hung: str | None, checks: HealthChecks, loop: asyncio.AbstractEventLoop) -> tuple[HTTPStatus, dict[str, object]]:
    if path not in {"/healthz", "/readyz"}:
        return HTTPStatus.NOT_FOUND, {"ok": False, "error": "only /healthz and /readyz are here"}
    if hung:
        return HTTPStatus.SERVICE_UNAVAILABLE, {"ok": False, "error": hung}
    if path == "/healthz":
        return HTTPStatus.OK, {"ok": True}
    asked: Future[dict[str, str]] = asyncio.run_coroutine_threadsafe(checks.results(), loop)
    try:
        return report(asked.result(CHECK_SECONDS + 1))
    except TimeoutError:
        asked.cancel()
        return HTTPStatus.SERVICE_UNAVAILABLE, {"ok": False, "error": f"the event loop did not answer within {CHECK_SECONDS + 1:.0f} s"}


class _HealthServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], answer: Callable[[str], tuple[HTTPStatus, dict[str, object]]]) -> None:
        if ":" in address[0]:
            self.address_family = AF_INET6
        self.answer = answer
        super().__init__(address, _HealthHandler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Send nothing to a client that hung up."""


class _HealthHandler(BaseHTTPRequestHandler):
    timeout = CLIENT_SECONDS
    server_version, sys_version = "gradeloop", ""

    def do_GET(self) -> None:
        """Answer."""
        server = cast(_HealthServer, self.server)
        status, document = server.answer(self.path.partition("?")[0])
        if is_loopback(str(server.server_address[0])) and not is_local_name(self.headers.get("Host", "")):
            status, document = HTTPStatus.MISDIRECTED_REQUEST, {"ok": False, "error": "this server is for this machine"}
        body = json.dumps(document).encode()
        with suppress(OSError):
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), "Cache-Control": "no-store"}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's own
        """Log nothing: probes come every few seconds."""
