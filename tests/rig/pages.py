"""The live page as the tests open it: served on a real port, asked as a browser asks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from gradeloop.client.client import GradingClient
from gradeloop.store.engine import Store
from gradeloop.temporal.connect import Connection
from gradeloop.web.app import live_page, new_token
from gradeloop.web.guard import listening
from gradeloop.web.site import Site
from rig.otlp import PLAIN

SECONDS = 240.0


class Browser:
    """Asks for pages, and says things as a page's script does."""

    def __init__(self, address: str, token: str, http: httpx2.AsyncClient) -> None:
        self.address = address
        self.token = token
        self.http = http

    @property
    def port(self) -> int:
        """Of the page."""
        return int(self.address.rpartition(":")[2])

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        """Ask for a page; `_` in a header's name is `-`."""
        return await self.http.get(self.address + path, headers=_named(headers))

    async def say(self, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        """Say something as the page does, the headers changed as told."""
        fields = {"Origin": self.address, "Sec-Fetch-Site": "same-origin", "X-Gradeloop-Token": self.token} | _named(headers)
        return await self.http.post(self.address + path, json={} if body is None else body, headers=fields)

    async def part(self, path: str, tag: str = "") -> httpx2.Response:
        """Look for changes."""
        return await self.get(f"{path}?part=1", **({"If_None_Match": tag} if tag else {}))


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def paged(
    client: GradingClient, connection: Connection, folder: Path, user_header: str = "", ui: str | None = None
) -> AsyncIterator[Browser]:
    """Serve the live page of a client, with the batches of a store in the folder."""
    store, token = Store(f"sqlite:///{folder / 'results.db'}"), new_token()
    site = Site(client, connection, store, token, user_header, ui)
    async with live_page(site, listening(0)) as address, httpx2.AsyncClient(timeout=SECONDS, trust_env=False, verify=PLAIN) as http:
        yield Browser(address, token, http)
    store.close()
