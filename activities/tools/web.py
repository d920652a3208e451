"""The tool `fetch_page`."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from fnmatch import fnmatchcase
from http import HTTPStatus
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx2

from activities.providers.http import PrivateAddress, guarded_transport, tls_context
from activities.tools.base import ToolContext, ToolUnavailable, require_package
from activities.tools.text import read_page
from gradeloop.sandbox.processes import await_in_process
from gradeloop.settings.worker import FetchSettings

REDIRECTS = 5

PART_SECONDS = 0.05
"""The longest time for which parts of a page that have come already keep other calls waiting."""

TEXT = ("text/", "application/json", "application/xml", "application/xhtml+xml", "application/javascript")
PORTS = {"http": 80, "https": 443}


def build_fetch_page(context: ToolContext) -> Callable[..., Coroutine[Any, Any, dict[str, Any]]]:
    """Return the tool `fetch_page`."""
    settings = context.settings.fetch
    if not settings.hosts:
        raise ToolUnavailable("no host is allowed; name some as fetch.hosts in gradeloop.toml")
    require_package("bs4")
    tls_context()

    async def fetch_page(url: str) -> dict[str, Any]:
        transport = guarded_transport("name its network in fetch.networks if it is meant", settings.networks)
        timeout = httpx2.Timeout(settings.seconds)
        async with httpx2.AsyncClient(timeout=timeout, follow_redirects=False, transport=transport, trust_env=False) as client:
            return await _fetch(client, url, settings)

    fetch_page.__doc__ = f"""Fetch a web page and return its text; HTML without its marks and scripts.

Args:
    url: http or https, on one of these hosts: {", ".join(settings.hosts)}."""
    return fetch_page


# Redirects are followed here, since a listed page may lead to a host that is not listed; the transport
# besides refuses private addresses at the moment of connecting, whatever a name resolved to before. The
# body is asked for unpacked and counted raw, so that no small reply unpacks to gigabytes.
async def _fetch(client: httpx2.AsyncClient, url: str, settings: FetchSettings) -> dict[str, Any]:
    at = url
    for _ in range(REDIRECTS + 1):
        _refuse_unlisted(at, settings)
        try:
            async with client.stream("GET", at, headers={"accept-encoding": "identity"}) as response:
                if response.is_redirect:
                    at = urljoin(at, response.headers.get("location", ""))
                    continue
                return await _page(response, at, settings)
        except PrivateAddress as error:
            raise ValueError(str(error)) from None
        except httpx2.HTTPError as error:
            raise ValueError(f"{at} cannot be fetched: {type(error).__name__}: {error}") from None
    raise ValueError(f"{url} leads from page to page more than {REDIRECTS} times")


def _refuse_unlisted(url: str, settings: FetchSettings) -> None:
    """Raise where an address is not one that the settings allow; each step of a redirection is looked at."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not an address: {error}") from None
    if parts.scheme not in PORTS or not parts.hostname or "@" in parts.netloc:
        raise ValueError(f"{url!r} is not an address of a page; it begins with http:// or https://, without a user")
    named = parts.hostname if port in {None, PORTS[parts.scheme]} else f"{parts.hostname}:{port}"
    if not any(fnmatchcase(named, host.lower()) for host in settings.hosts):
        raise ValueError(f"the host {named!r} is not allowed; those that are: {', '.join(settings.hosts)}")


async def _page(response: httpx2.Response, url: str, settings: FetchSettings) -> dict[str, Any]:
    kind = response.headers.get("content-type", "text/plain").partition(";")[0].strip().lower()
    if not kind.startswith(TEXT):
        raise ValueError(f"{url} is {kind}, no text")
    raw, most = bytearray(), settings.max_kib * 1024
    yielded = time.monotonic()
    async for part in response.aiter_raw():
        if time.monotonic() - yielded > PART_SECONDS:  # a page may come in millions of parts
            await asyncio.sleep(0)
            yielded = time.monotonic()
        raw += part[: most - len(raw)]
        if len(raw) >= most:
            break
    if response.status_code >= HTTPStatus.BAD_REQUEST:
        raise ValueError(f"{url} answers with {response.status_code}")
    arguments = {"encoding": _encoding(response), "html": "html" in kind}
    try:
        text = await await_in_process(read_page, arguments, settings.seconds, data=bytes(raw))
    except ValueError as error:
        raise ValueError(f"{url} cannot be read as text: {str(error).replace('read_page', 'it')}") from None
    page = {"url": url, "status": response.status_code, "text": text}
    return page | ({"cut_at_bytes": most} if len(raw) >= most else {})


def _encoding(response: httpx2.Response) -> str:
    named = response.charset_encoding or "utf-8"
    try:
        "".encode(named)
    except LookupError:
        return "utf-8"
    return named
