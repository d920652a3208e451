"""A webhook as a chat service or a company has one: it keeps what is posted, and may refuse at first."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer


class Hook:
    """A webhook on a free port."""

    def __init__(self, *statuses: int) -> None:
        self.posts: list[tuple[dict[str, str], bytes]] = []
        """The headers, in lower case, and the bodies."""
        self._statuses = list(statuses)
        self._changed = asyncio.Condition()
        app = web.Application()
        app.router.add_post("/hook", self._take)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        """Its address."""
        return str(self.server.make_url("/hook"))

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return the table of `[notify]` that names it."""
        return {"ops": {"url": self.url, "networks": ["127.0.0.0/8"], **more}}

    async def posted(self, count: int = 1) -> list[dict[str, Any]]:
        """Return the bodies, once there are so many."""
        async with asyncio.timeout(240), self._changed:
            await self._changed.wait_for(lambda: len(self.posts) >= count)
        return [json.loads(body) for _, body in self.posts]

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        async with self._changed:
            self.posts.append((headers, await request.read()))
            self._changed.notify_all()
        return web.Response(status=self._statuses.pop(0) if self._statuses else 200, headers={"Location": "http://localhost/elsewhere"})


@asynccontextmanager
async def hooked(*statuses: int) -> AsyncIterator[Hook]:
    """Serve a webhook; its first answers have these statuses."""
    hook = Hook(*statuses)
    await hook.server.start_server()
    try:
        yield hook
    finally:
        await hook.server.close()
