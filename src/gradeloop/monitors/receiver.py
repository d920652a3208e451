"""The OTLP receiver: takes traces and logs over HTTP, keeps them before it says so, and puts silent traces together."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.monitors.otlp import CONTENT_TYPES, Encoding, OtlpRequest, Signal, answer, read_request, refusal, unpacked
from gradeloop.monitors.received import KeptSpans, ReceivedLoad, ReceivedSpan, ReceivedSpans
from gradeloop.settings.secrets import remember_secret, scrubbed
from gradeloop.settings.worker import ReceiverSettings
from gradeloop.store.engine import Store
from gradeloop.telemetry.health import HealthChecks
from gradeloop.telemetry.metrics import RECEIVED_RUNS, RECEIVED_SPANS, RECEIVER_ANSWERS, RECEIVER_OPEN
from gradeloop.web.guard import Guard, RequestRefused, has_bearer, open_socket
from gradeloop.web.serving import health_routes, serving_app

LOOK_SECONDS = 1.0
"""How often it is looked which traces are silent."""

CLEAN_SECONDS = 60.0
"""How often what is old is removed."""

REQUESTS = 64
"""Requests that are taken at the same time; more are told to come again."""

BYTES_OF_ITEM = 10
"""The fewest bytes that a value of a request has on average: of empty spans 16 MiB are 8 million, and reading them takes a minute."""

KEPT_AT_ONCE = 1000
"""Spans that are written in one transaction."""

READ_AT_ONCE = 4
"""Bodies that are unpacked, read and written at the same time: a body takes several times its size meanwhile."""

_CODES = {400: 3, 413: 3, 415: 3, 401: 7, 403: 7, 405: 7, 421: 7, 429: 8, 408: 14, 503: 14}
"""The codes of gRPC that the statuses of refusals have."""

logger = logging.getLogger("gradeloop.receiver")


class OtlpReceiver:
    """Answers exporters; `work` puts traces together beside that."""

    def __init__(self, store: Store, settings: ReceiverSettings, token: str | None) -> None:
        self._spans = ReceivedSpans(store, settings)
        self._settings = settings
        self._token = token
        self._checks = HealthChecks({"store": store.ping}, scrubbed)
        self._slots = asyncio.Semaphore(READ_AT_ONCE)
        self._requests = 0
        self._load = ReceivedLoad(0, 0)

    def application(self, port: int) -> Guard:
        """Return the application behind its guard: `POST /v1/traces` and `/v1/logs`, `GET /healthz` and `/readyz`."""
        app = Router(
            routes=[
                Route("/v1/traces", self._answering("traces"), methods=["POST"]),
                Route("/v1/logs", self._answering("logs"), methods=["POST"]),
                *health_routes(self._checks),
            ],
            redirect_slashes=False,
        )
        most = self._settings.max_request_mib * 1024 * 1024
        return Guard(app, port, any_host=self._token is not None, admit=self._admit, refused=_refused, body_bytes=most)

    def _answering(self, signal: Signal) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            kind = _kind(request.headers)
            self._requests += 1
            try:
                body = await self._take(await request.body(), request.headers.get("content-encoding", ""), signal, CONTENT_TYPES[kind])
            finally:
                self._requests -= 1
            RECEIVER_ANSWERS.record(status="200")
            return Response(body, media_type=kind)

        return respond

    async def _take(self, body: bytes, compressed: str, signal: Signal, encoding: Encoding) -> bytes:
        """Keep what a request holds, and return the answer.

        Raises:
            RequestRefused: It is not taken, and nothing of it is acknowledged.
        """
        async with self._slots:
            read = await self._read(body, compressed.strip().lower(), signal, encoding)
            await self._keep(read.marks)
            kept = await self._keep(read.spans)
        rejected = read.rejected + kept.rejected
        for outcome, count in {"kept": kept.kept, "known": kept.known, "passed_over": read.others, "rejected": rejected}.items():
            if count:
                RECEIVED_SPANS.record(count, outcome=outcome)
        if rejected:
            logger.warning("%d of a request's %s are rejected; its answer says why", rejected, "spans" if signal == "traces" else "records")
        return answer(signal, encoding, rejected, read.why or kept.why)

    def _admit(self, method: str, _path: str, headers: Mapping[str, str]) -> None:
        """Refuse a request where its body need not be read for that; whoever asks for the health may."""
        if method == "GET":
            return
        if self._token is not None and not has_bearer(headers, self._token):
            raise RequestRefused(401, "send the receiver's token, as Authorization: Bearer TOKEN")
        if _kind(headers) not in CONTENT_TYPES:
            raise RequestRefused(415, f"send Content-Type: {' or '.join(CONTENT_TYPES)}")
        if self._requests >= REQUESTS:
            raise RequestRefused(429, "too many requests at once; try again", 1)
        if self._load.open >= self._settings.max_open_traces:
            why = f"{self._load.open} traces have not settled; try again, or raise receiver.max_open_traces"
            raise RequestRefused(429, why, max(1, min(30, round(self._settings.settle))))
        if self._load.runs >= self._settings.max_runs:
            raise RequestRefused(429, "the store has as many runs as receiver.max_runs allows; prune it, or raise that", 60)

    async def _read(self, body: bytes, compressed: str, signal: Signal, encoding: Encoding) -> OtlpRequest:
        """Return what a body holds; a thread reads it."""
        most = self._settings.max_request_mib * 1024 * 1024

        def read() -> OtlpRequest | None:
            plain = unpacked(body, compressed, most)
            return None if plain is None else read_request(plain, signal, encoding, most // BYTES_OF_ITEM)

        try:
            found = await asyncio.to_thread(read)
        except InvalidRequest as error:
            raise RequestRefused(400, str(error)) from None
        if found is None:
            raise RequestRefused(413, f"the body is larger than {most} bytes; shorten it")
        return found

    async def _keep(self, spans: Sequence[ReceivedSpan]) -> KeptSpans:
        """Write spans; what is written is committed before anything is acknowledged, and known when it comes again."""
        total = KeptSpans()
        for first in range(0, len(spans), KEPT_AT_ONCE):
            try:
                kept = await self._spans.keep(spans[first : first + KEPT_AT_ONCE])
            except Exception as error:  # noqa: BLE001
                # Whatever it is: the exporter has the spans still, and what the database says of them is nobody's to read.
                why = str(error) if isinstance(error, StoreUnavailable) else type(error).__name__
                logger.warning("spans cannot be kept, so exporters are told to try again: %s", why)
                raise RequestRefused(503, "the store cannot be used now; try again", 5) from None
            total = total.plus(kept)
        return total

    async def work(self) -> None:
        """Put silent traces together and remove what is old, until this is cancelled; a store that is away is waited for."""
        cleaned = -CLEAN_SECONDS
        while True:
            now = asyncio.get_running_loop().time()
            try:
                settled = await self._spans.settle()
                self._load = await self._spans.load()
                if now - cleaned >= CLEAN_SECONDS:
                    await self._spans.clean()
                    cleaned = now
            except Exception as error:  # noqa: BLE001 - whatever it is, exporters are answered, and it is tried again
                why = str(error) if isinstance(error, StoreUnavailable) else type(error).__name__
                logger.warning("traces are not put together now, and it is tried again: %s", why)
            else:
                RECEIVER_OPEN.record(self._load.open)
                for outcome, count in settled._asdict().items():
                    if count:
                        RECEIVED_RUNS.record(count, outcome=outcome)
            await asyncio.sleep(LOOK_SECONDS)


def _kind(headers: Mapping[str, str]) -> str:
    """Return the type of a request's body."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _refused(headers: Mapping[str, str], refused: RequestRefused) -> tuple[str, bytes]:
    """Return the type and the body of a refusal's answer: a `google.rpc.Status`, written as the request was."""
    RECEIVER_ANSWERS.record(status=str(refused.status))
    kind = found if (found := _kind(headers)) in CONTENT_TYPES else "application/json"
    return kind, refusal(CONTENT_TYPES[kind], _CODES[refused.status], refused.why)


def open_receiver(settings: ReceiverSettings, environment: Mapping[str, str]) -> Callable[[Store], AbstractAsyncContextManager[str]]:
    """Open the receiver's door, and return what receives into a store while its block runs, and yields the address.

    Raises:
        InvalidRequest: The address cannot be opened, or is open to other machines without a token.
    """
    if token := settings.read_token(environment):
        remember_secret(token)
    return partial(receiving, settings=settings, token=token, listening=open_socket(settings.address, "receiver.address"))


@contextlib.asynccontextmanager
async def receiving(store: Store, settings: ReceiverSettings, token: str | None, listening: socket.socket) -> AsyncIterator[str]:
    """Receive while the block runs, and yield the receiver's address."""
    receiver = OtlpReceiver(store, settings, token)
    host, port = listening.getsockname()[:2]
    async with serving_app(receiver.application(port), listening):
        working = asyncio.create_task(receiver.work())
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
