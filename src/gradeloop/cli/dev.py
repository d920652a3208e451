"""Commands for this machine: doctor, trust, dev, worker, codec, docs."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console

from gradeloop.admin.doctor import Finding, findings, lines
from gradeloop.cli.commands import Json, Scripted, Tools, Trust, codes_help
from gradeloop.cli.init import SHOWN_MODELS, find_servers, server_places
from gradeloop.cli.render.table import Terminal, show_lines
from gradeloop.client.client import GradingClient
from gradeloop.contract.thread import TASK_QUEUE
from gradeloop.errors import InvalidRequest, WorkerFailed, installed
from gradeloop.exit_codes import UNREACHABLE
from gradeloop.extensions import parts
from gradeloop.settings.paths import state_folder
from gradeloop.settings.secrets import scrubbed
from gradeloop.settings.trust import CONFIG_FILE, TRUST_FLAG, named_code, revoke_trust, trust
from gradeloop.settings.worker import load_settings
from gradeloop.store.engine import Store, store_url
from gradeloop.telemetry.health import is_loopback, parse_address
from gradeloop.telemetry.logs import LOG_VARIABLE, configure_logging
from gradeloop.temporal.codec import VARIABLE, EncryptionCodec, load_ring
from gradeloop.temporal.connect import Connection, application_folder, connect
from gradeloop.temporal.process import DetachedProcess, beside
from gradeloop.temporal.server import NAMESPACE, STOP_SECONDS, ServerInfo, ensure_server, running_server, stop_server
from gradeloop.text import clip, counted, did_you_mean
from gradeloop.web.guard import asked_port, asked_user_header, listening, open_socket

app = typer.Typer(rich_markup_mode=None)
dev_app = typer.Typer(
    help="Run server, worker and UI in the foreground for a service under development; `dev stop` ends background processes.",
    short_help="Run server, worker and UI; `dev stop` ends them.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.add_typer(dev_app, name="dev")

MetricsAddress = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve the worker's metrics for Prometheus here, under /metrics.")
]

OtlpAddress = Annotated[
    str | None, typer.Option("--otlp", metavar="HOST:PORT", help="Receive OTLP here; at 127.0.0.1:4318 by default, where that is free.")
]

WORKER_GRACE = 5.0
"""Seconds that a background worker has to stop; the next worker continues its calls."""

WITHOUT_PAGE = "not served; install it with: pip install 'gradeloop[embedded]'"


@app.command(epilog=codes_help("doctor"))
def doctor(*, trust: Trust = False, as_json: Json = False) -> None:
    """Check this machine: server, keys, sandboxes, OTLP."""

    async def look() -> list[Finding]:
        seen = [found async for found in findings(trust=trust)]
        return [*seen, *other_servers(await find_servers(os.environ), seen)]

    seen = asyncio.run(look())
    show_lines([found.model_dump(mode="json") for found in seen], (line for found in seen for line in lines(found)), as_json=as_json)
    raise typer.Exit(1 if any(found.ok is False for found in seen) else 0)


def other_servers(found: Mapping[str, Sequence[str]], seen: Sequence[Finding]) -> Iterator[Finding]:
    """Yield the model servers of this machine of which the worker found out nothing; where there are none at all, where it was looked."""
    known = " ".join(one.detail for one in seen if one.subject.startswith("server ")).replace("//localhost", "//127.0.0.1")
    for address, models in found.items():
        if address not in known:
            cure = None if find_spec("openai") else "pip install 'gradeloop[openai]', by which its models are called"
            detail = f"answers at {address}: {', '.join(models[:SHOWN_MODELS])}"
            yield Finding(subject="model server", ok=None if cure else True, detail=detail, cure=cure)
    if not (found or known):
        places = ", ".join(f"{address} ({name})" for address, name in server_places(os.environ).items())
        yield Finding(subject="model servers", ok=None, detail=f"none answers on this machine: {places}")


@app.command("trust")
def trust_folder(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The gradeloop.toml, or its folder.")] = Path(CONFIG_FILE),
    *,
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust it no longer.")] = False,
) -> None:
    """Trust this folder's gradeloop.toml and the code it names."""
    if revoke:
        typer.echo(f"no longer trusted: {revoke_trust(file)}")
        return
    config = trust(file)
    typer.echo(f"trusted as it is now: {config.path}")
    for path in dict.fromkeys(named_code(config.read(), config.path.parent)):
        typer.echo(f"  with {path}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def worker(context: typer.Context) -> None:
    """Run a worker; `worker --help` lists its settings."""
    script = str(application_folder() / "worker.py")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, script, *context.args])  # noqa: S606 - our own file, the user's own flags


@dev_app.callback()
def dev(
    context: typer.Context,
    *,
    tools: Tools = None,
    scripted: Scripted = None,
    trust: Trust = False,
    metrics_address: MetricsAddress = None,
    otlp: OtlpAddress = None,
) -> None:
    """Serve the queue `gradeloop` on the embedded server until Ctrl-C."""
    if context.invoked_subcommand is None:
        if os.environ.get(LOG_VARIABLE) == "json":
            configure_logging("json", scrubbed)
        more = [TRUST_FLAG] if trust else []
        if metrics_address:
            parse_address(metrics_address, "--metrics-address")
            more += ["--metrics-address", metrics_address]
        raise typer.Exit(asyncio.run(serve_until_stopped(tuple(tools or ()), scripted, Terminal(), more, otlp)))


@dev_app.command("stop")
def dev_stop() -> None:
    """Stop the embedded server and its workers; threads stay on disk."""
    typer.echo(asyncio.run(stop_all()))


async def serve_until_stopped(
    tools: tuple[Path, ...], scripted: Path | None, console: Console, more: Sequence[str] = (), otlp: str | None = None
) -> int:
    """Serve the queue `gradeloop` and the live page until Ctrl-C, which also stops a server that was started here."""
    with listening(asked_port()) as socket_of_page:
        was_running = running_server() is not None
        server = await ensure_server()
        try:
            async with _serve_page(server, socket_of_page) as (page, ui), _receive(otlp, more) as received:
                pressed = asyncio.Queue[None]()  # from now on, so that a Ctrl-C before the worker starts is not lost
                for number in (signal.SIGINT, signal.SIGTERM):
                    asyncio.get_running_loop().add_signal_handler(number, pressed.put_nowait, None)
                console.print(f"Page      {page}\nOTLP      {received}\nQueue     {TASK_QUEUE}", soft_wrap=True)
                console.print(f"Temporal  {server.address}   (export TEMPORAL_ADDRESS={server.address})\nUI        {ui}")
                return await _wait_for_worker(await _start_worker(server, tools, scripted, more), server, pressed, console)
        finally:
            if not was_running:
                await stop_server()


async def _start_worker(
    server: ServerInfo, tools: tuple[Path, ...], scripted: Path | None, more: Sequence[str]
) -> asyncio.subprocess.Process:
    flags = [flag for path in tools for flag in ("--tools", str(path))] + (["--scripted", str(scripted)] if scripted else [])
    command = [sys.executable, str(application_folder() / "worker.py"), "--task-queue", TASK_QUEUE, *flags, *more]
    environment = {**os.environ, "TEMPORAL_ADDRESS": server.address, "TEMPORAL_NAMESPACE": NAMESPACE}
    return await asyncio.create_subprocess_exec(*command, env=environment, start_new_session=True)


@asynccontextmanager
async def _serve_page(server: ServerInfo, socket_of_page: socket.socket) -> AsyncIterator[tuple[str, str]]:
    """Serve the live page and Temporal's UI, and yield their addresses, or how to install them."""
    try:
        from gradeloop.web.app import live_page, new_token
        from gradeloop.web.site import Site
        from gradeloop.web.temporal_ui import PORT, serving_ui
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"starlette", "uvicorn"}:
            raise
        yield WITHOUT_PAGE, WITHOUT_PAGE
        return
    connection = Connection(server.address, NAMESPACE, embedded=True)
    client = GradingClient(await connect(connection))
    with closing(Store(store_url(embedded=True))) as store:
        async with serving_ui(server, listening(None, PORT)) as ui:
            site = Site(client, connection, store, new_token(), asked_user_header(), ui)
            async with live_page(site, socket_of_page) as page:
                yield page, ui


@asynccontextmanager
async def _receive(address: str | None, flags: Sequence[str]) -> AsyncIterator[str]:
    """Receive OTLP and yield the address, or why not: without an address that was asked for, another receiver may have the port."""
    try:
        open_receiver = next(parts(lambda extension: extension.receives), None)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"starlette", "uvicorn", "opentelemetry"}:
            raise
        yield WITHOUT_PAGE
        return
    if open_receiver is None:
        yield "not served: no extension that is installed receives traces"
        return
    settings = load_settings(list(flags)).receiver
    try:
        receiving = open_receiver(settings if address is None else settings.model_copy(update={"address": address}), os.environ)
    except InvalidRequest as error:
        if address is not None or settings.model_fields_set:
            raise
        yield f"not served: {error}"
        return
    with closing(Store(store_url(embedded=True), durable=True)) as store:
        async with receiving(store) as url:
            yield url


SERVER_SECONDS = 1.0
"""Seconds between two checks that the server still runs."""


async def _wait_for_worker(worker: asyncio.subprocess.Process, server: ServerInfo, pressed: "asyncio.Queue[None]", console: Console) -> int:
    """Wait for the worker; the first Ctrl-C lets it finish its calls in flight, the second kills it. It ends with its server, too."""

    async def stop() -> None:
        for end in (worker.terminate, worker.kill):
            await pressed.get()
            with suppress(ProcessLookupError):
                end()

    async def end_with_server() -> None:
        while _runs(server):  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(SERVER_SECONDS)
        with suppress(ProcessLookupError):
            worker.kill()  # what it has in flight cannot be reported any more

    async with beside(stop(), end_with_server()):
        code = await worker.wait()
        if code in {0, -signal.SIGTERM}:  # the signal came before it could listen
            return 0
        if code == UNREACHABLE:  # a server that is being stopped answers nobody before it has ended
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    while _runs(server):  # noqa: ASYNC110 - another process ends it
                        await asyncio.sleep(SERVER_SECONDS / 10)
        if _runs(server):
            return code
        console.print("the server was stopped elsewhere, so `gradeloop dev` ends too; start both again with: gradeloop dev", soft_wrap=True)
        return 0


def _runs(server: ServerInfo) -> bool:
    """Return whether that very server still runs."""
    found = running_server()
    return found is not None and found.address == server.address


async def stop_all() -> str:
    """Stop the background workers and the embedded server; return what was stopped."""
    workers = 0
    for record in (state_folder() / "workers").glob("*.json"):
        workers += await DetachedProcess(record.parent, record.stem, WorkerFailed).stop(WORKER_GRACE)
    server = await stop_server()
    count = counted(workers, "worker")
    return f"stopped the embedded server and {count}" if server else f"no embedded server was running; stopped {count}"


TOKEN_VARIABLE = "GRADELOOP_CODEC_TOKEN"  # noqa: S105 - a variable's name

ADDRESS = "127.0.0.1:8245"
UI = "http://127.0.0.1:8233"


@app.command("codec")
def codec_server(
    *,
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="Listen here; port 0 for any free one.")] = ADDRESS,
    origin: Annotated[
        list[str] | None,
        typer.Option("--origin", metavar="URL", help="Let this UI's pages call, the embedded one's by default; repeatable."),
    ] = None,
) -> None:
    """Decrypt payloads for Temporal's web UI until Ctrl-C."""
    with installed("the codec server is not installed; run: pip install 'gradeloop[embedded]'", "starlette", "uvicorn"):
        asyncio.run(_serve(address, origin or [UI]))


async def _serve(address: str, origins: list[str]) -> None:
    from gradeloop.web.app import new_token
    from gradeloop.web.serving import serving_app
    from gradeloop.web.temporal_ui import codec_application

    ring = load_ring()
    if ring is None:
        raise InvalidRequest(f"{VARIABLE} is not set; name the file of keys that the workers have")
    named = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not is_loopback(parse_address(address, "--address")[0]) and not named:
        raise InvalidRequest(f"--address {address} is open to others; set {TOKEN_VARIABLE}, and put TLS in front of it")
    token, found = named or new_token(), open_socket(address, "--address")
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    host, port = found.getsockname()[:2]
    checked = [_checked_origin(origin) for origin in origins]
    application = codec_application(EncryptionCodec(ring), token, checked, port, any_host=bool(named))
    async with serving_app(application, found):
        shown = f"/{token}" if not named else f"/ and your {TOKEN_VARIABLE}"
        typer.echo(f"Codec     http://{host}:{port}{shown}   (the UI's remote codec endpoint)")
        typer.echo(f"Pages of  {', '.join(origins)}\nKeys      {', '.join(ring.ids)}")
        await stopped.wait()


def _checked_origin(origin: str) -> str:
    parts = urlsplit(origin)
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.path.strip("/") or parts.query:
        raise InvalidRequest(f"--origin is {origin!r}; write scheme and host of the UI, for example {UI}")
    return f"{parts.scheme}://{parts.netloc}"


@app.command("docs")
def docs(
    page: Annotated[str | None, typer.Argument(metavar="PAGE", help="Show this page; all are listed without one.")] = None,
    *,
    path: Annotated[bool, typer.Option("--path", help="Print where the page is on this machine instead.")] = False,
) -> None:
    """Show a page of the documentation, or list them."""
    pages = find_pages()
    if page is None:
        width = max(map(len, pages))
        typer.echo("\n".join(f"{name.ljust(width)}  {file if path else title_of(file)}" for name, file in pages.items()))
        return
    file = pages.get(page.removesuffix(".md").lower())
    if file is None:
        raise InvalidRequest(f"there is no page {clip(page)}.{did_you_mean(page, sorted(pages))} All pages: gradeloop docs")
    if path:
        typer.echo(str(file))
    elif sys.stdout.isatty():
        from rich.markdown import Markdown  # loads Pygments

        Terminal().print(Markdown(file.read_text(encoding="utf-8")))
    else:
        typer.echo(file.read_text(encoding="utf-8"), nl=False)


def find_pages() -> dict[str, Path]:
    """Return the pages by name, those of a folder below it as `tools/run_python`; raise InvalidRequest where this installation has none."""
    folder = application_folder() / "docs"
    found = {file.relative_to(folder).with_suffix("").as_posix().lower(): file for file in sorted(folder.rglob("*.md"))}
    pages = {name.removesuffix("/readme"): file for name, file in found.items()}
    if not pages:
        raise InvalidRequest(f"this installation has no pages at {str(folder)!r}; pip install --force-reinstall gradeloop")
    return dict(sorted(pages.items(), key=lambda row: ("/" in row[0], row[0])))


def title_of(file: Path) -> str:
    """Return a page's heading."""
    with file.open(encoding="utf-8") as lines:
        return next(lines, "").removeprefix("#").strip()
