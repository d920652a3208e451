"""The command that serves the codec of encrypted payloads to Temporal's web UI."""

import asyncio
import os
import signal
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gradeloop.errors import InvalidRequest
from gradeloop.telemetry.health import is_loopback, parse_address
from gradeloop.temporal.codec import VARIABLE, EncryptionCodec, load_ring
from gradeloop.web.guard import open_socket

app = typer.Typer(rich_markup_mode=None, add_completion=False)

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
    try:
        asyncio.run(_serve(address, origin or [UI]))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"starlette", "uvicorn"}:
            raise
        raise InvalidRequest("the codec server is not installed; run: pip install 'gradeloop[embedded]'") from None


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
