"""The OTLP receiver: takes traces and logs over HTTP, keeps them before it says so, and puts silent traces together."""

import asyncio
import contextlib
import hmac
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gradeloop.admin.readiness import check_store
from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.monitors.received import KeptSpans, ReceivedLoad, ReceivedSpan, ReceivedSpans
from gradeloop.settings.secrets import remember_secret, scrubbed
from gradeloop.settings.worker import ReceiverSettings
from gradeloop.store.engine import Store
from gradeloop.telemetry.health import HealthChecks, is_loopback, parse_address, report
from gradeloop.telemetry.metrics import RECEIVED_RUNS, RECEIVED_SPANS, RECEIVER_ANSWERS, RECEIVER_OPEN
from gradeloop.web.guard import drop_body
from gradeloop.web.otlp import CONTENT_TYPES, Encoding, OtlpRequest, Signal, answer, read_request, refusal, unpacked
from gradeloop.web.serving import serving_app

LOOK_SECONDS = 1.0
"""How often it is looked which traces are silent."""

CLEAN_SECONDS = 60.0
"""How often what is old is removed."""

REQUESTS = 64
"""Requests that are taken at the same time; more are told to come again."""

BODY_SECONDS = 30.0
"""The time in which a request's body must have come."""

BYTES_IN_FLIGHT = 64 * 1024 * 1024
"""Bytes of bodies that are in memory at the same time."""

KEPT_AT_ONCE = 1000
"""Spans that are written in one transaction."""

READ_AT_ONCE = 4
"""Bodies that are unpacked, read and written at the same time: a body takes several times its size meanwhile."""

_INVALID, _PERMISSION, _EXHAUSTED, _UNAVAILABLE = 3, 7, 8, 14
"""The codes of gRPC that refusals have."""

logger = logging.getLogger("gradeloop.receiver")


class Refused(Exception):
    """A request that is not taken.

    Args:
        status: The status of the answer.
        code: The code of gRPC in it.
        why: Why, and what to do.
        wait: Seconds after which the exporter may try again; None where it is to give up.
    """

    def __init__(self, status: HTTPStatus, code: int, why: str, wait: int | None = None) -> None:
        super().__init__(why)
        self.status, self.code, self.why, self.wait = status, code, why, wait


class ReceiverDoor(NamedTuple):
    """Who may send."""

    token: str | None
    """The token that is to be sent; None for whoever is on this machine."""
    any_host: bool = False
    """Whether the receiver may be addressed by any name."""


def open_door(settings: ReceiverSettings, environment: Mapping[str, str]) -> tuple[ReceiverDoor, socket.socket]:
    """Return who may send, and the socket that listens.

    Raises:
        InvalidRequest: The address cannot be opened, or is open to other machines without a token.
    """
    host, port = parse_address(settings.address, "receiver.address")
    token = settings.read_token(environment)
    if token:
        remember_secret(token)
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(place)
            listening.listen(128)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise InvalidRequest(f"receiver.address {settings.address!r} cannot be opened ({error.strerror}); choose another") from None
    return ReceiverDoor(token, any_host=token is not None), listening


class OtlpReceiver:
    """Answers exporters; `work` puts traces together beside that."""

    def __init__(self, store: Store, settings: ReceiverSettings, door: ReceiverDoor) -> None:
        self._spans = ReceivedSpans(store, settings)
        self._settings = settings
        self._door = door
        self._checks = HealthChecks({"store": lambda: check_store(store)}, scrubbed)
        self._slots = asyncio.Semaphore(READ_AT_ONCE)
        self._requests = self._bytes = 0
        self._load = ReceivedLoad(0, 0)

    def application(self) -> Starlette:
        """Return the application: `POST /v1/traces` and `/v1/logs`, `GET /healthz` and `/readyz`."""

        async def alive(_request: Request) -> Response:
            return JSONResponse({"ok": True})

        async def ready(_request: Request) -> Response:
            status, document = report(await self._checks.results())
            return JSONResponse(document, status)

        app = Starlette(
            routes=[
                Route("/v1/traces", self._answering("traces"), methods=["POST"]),
                Route("/v1/logs", self._answering("logs"), methods=["POST"]),
                Route("/healthz", alive, methods=["GET"]),
                Route("/readyz", ready, methods=["GET"]),
            ]
        )
        app.router.redirect_slashes = False
        return app

    def _answering(self, signal: Signal) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            encoding = CONTENT_TYPES.get(kind)
            try:
                body, status, wait = await self._take(request, signal, encoding), HTTPStatus.OK, None
            except Refused as error:
                body, status, wait = refusal(encoding or "json", error.code, error.why), error.status, error.wait
            except ClientDisconnect:
                body, status, wait = b"", HTTPStatus.BAD_REQUEST, None
            RECEIVER_ANSWERS.record(status=str(int(status)))
            headers = {"Cache-Control": "no-store"} | ({"Retry-After": str(wait)} if wait is not None else {})
            headers |= {"Connection": "close"} if status is not HTTPStatus.OK else {}  # the body may still be on its way
            return Response(body, status, headers, media_type=kind if encoding else "application/json")

        return respond

    async def _take(self, request: Request, signal: Signal, encoding: Encoding | None) -> bytes:
        """Keep what a request holds, and return the answer.

        Raises:
            Refused: It is not taken, and nothing of it is acknowledged.
        """
        try:
            encoding = self._admit(request, encoding)
        except Refused:
            await drop_body(request.receive)
            raise
        self._requests += 1
        try:
            body = await self._body(request, self._settings.max_request_mib * 1024 * 1024)
            try:
                async with self._slots:
                    read = await self._read(body, request.headers.get("content-encoding", "").strip().lower(), signal, encoding)
                    await self._keep(read.marks)
                    kept = await self._keep(read.spans)
            finally:
                self._bytes -= len(body)
        finally:
            self._requests -= 1
        for outcome, count in {"kept": kept.kept, "known": kept.known, "passed_over": read.others}.items():
            if count:
                RECEIVED_SPANS.record(count, outcome=outcome)
        rejected = read.rejected + kept.rejected
        if rejected:
            RECEIVED_SPANS.record(rejected, outcome="rejected")
            logger.warning("%d of a request's %s are rejected; its answer says why", rejected, "spans" if signal == "traces" else "records")
        return answer(signal, encoding, rejected, read.why or kept.why)

    def _admit(self, request: Request, encoding: Encoding | None) -> Encoding:
        """Return the encoding of a request, or refuse it where its body need not be read for that."""
        self._refuse_strangers(request)
        if encoding is None:
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, _INVALID, f"send Content-Type: {' or '.join(CONTENT_TYPES)}")
        self._refuse_when_full()
        return encoding

    def _refuse_strangers(self, request: Request) -> None:
        """Refuse whoever sends no token where one is asked for, and pages of browsers, which no exporter is."""
        if self._door.token is not None:
            sent = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(sent.encode(), self._door.token.encode()):
                raise Refused(HTTPStatus.UNAUTHORIZED, _PERMISSION, "send the receiver's token, as Authorization: Bearer TOKEN")
        host = re.sub(r":\d+$", "", request.headers.get("host", "")).strip("[]")
        if not self._door.any_host and not is_loopback(host):
            raise Refused(HTTPStatus.MISDIRECTED_REQUEST, _PERMISSION, "this receiver is for this machine; address it as 127.0.0.1")
        if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
            raise Refused(HTTPStatus.FORBIDDEN, _PERMISSION, "the request comes from a page in a browser; export from a service")

    def _refuse_when_full(self) -> None:
        if self._requests >= REQUESTS:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, _EXHAUSTED, "too many requests at once; try again", 1)
        if self._load.open >= self._settings.max_open_traces:
            why = f"{self._load.open} traces have not settled; try again, or raise receiver.max_open_traces"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, _EXHAUSTED, why, max(1, min(30, round(self._settings.settle))))
        if self._load.runs >= self._settings.max_runs:
            why = "the store has as many runs as receiver.max_runs allows; prune it, or raise that"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, _EXHAUSTED, why, 60)

    async def _body(self, request: Request, most: int) -> bytes:
        """Return a body, whose bytes count as held."""
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.stream():
                    self._hold(len(part), len(body), most)
                    body += part
        except TimeoutError:
            self._bytes -= len(body)
            why = f"the body did not come within {BODY_SECONDS:.0f} s; send it again"
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, _UNAVAILABLE, why) from None
        except BaseException:
            self._bytes -= len(body)
            raise
        return bytes(body)

    def _hold(self, more: int, before: int, most: int) -> None:
        """Count some bytes of a body as held, unless that are too many."""
        if before + more > most:
            raise _too_large(most)
        if self._bytes + more > BYTES_IN_FLIGHT:
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, _EXHAUSTED, "too many bytes at once; try again", 1)
        self._bytes += more

    async def _read(self, body: bytes, compressed: str, signal: Signal, encoding: Encoding) -> OtlpRequest:
        """Return what a body holds; a thread reads it."""
        most = self._settings.max_request_mib * 1024 * 1024

        def read() -> OtlpRequest | None:
            plain = unpacked(body, compressed, most)
            return None if plain is None else read_request(plain, signal, encoding)

        try:
            found = await asyncio.to_thread(read)
        except InvalidRequest as error:
            raise Refused(HTTPStatus.BAD_REQUEST, _INVALID, str(error)) from None
        if found is None:
            raise _too_large(most)
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
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, _UNAVAILABLE, "the store cannot be used now; try again", 5) from None
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


def _too_large(most: int) -> Refused:
    why = f"the request is larger than {most} bytes; export fewer spans at once, or raise receiver.max_request_mib"
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _INVALID, why)


@contextlib.asynccontextmanager
async def receiving(store: Store, settings: ReceiverSettings, door: ReceiverDoor, listening: socket.socket) -> AsyncIterator[str]:
    """Receive while the block runs, and yield the receiver's address."""
    receiver = OtlpReceiver(store, settings, door)
    host, port = listening.getsockname()[:2]
    async with serving_app(receiver.application(), listening):
        working = asyncio.create_task(receiver.work())
        try:
            yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
