"""A headless Firefox, driven by WebDriver BiDi, which it speaks itself; its page answers as Playwright's does where the tests ask it."""

import asyncio
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

NAMES = ("firefox-esr", "firefox")
PREFERENCES = {"datareporting.policy.dataSubmissionEnabled": False, "ui.prefersReducedMotion": 1}

KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c"}
MOST_BYTES = 1 << 26


def executable() -> str | None:
    """Return the Firefox that is installed here; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class FirefoxPage:
    """One tab."""

    def __init__(self, wire: ClientConnection) -> None:
        self._wire = wire
        self._numbers = itertools.count()
        self._context = ""
        self._size = {"width": 1280, "height": 900}

    async def command(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result; an error of the browser is an `AssertionError`."""
        number = next(self._numbers)
        await self._wire.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (said := json.loads(await self._wire.recv())).get("id") != number:
            pass
        assert said["type"] == "success", f"{method}: {said['error']}: {said['message'][:500]}"
        return said["result"]

    async def goto(self, url: str) -> None:
        """Open an address in a new tab, which has the focus wherever the last one left it, and wait until it is loaded."""
        self._context = (await self.command("browsingContext.create", type="tab"))["context"]
        await self.set_viewport_size(self._size)
        await self.command("browsingContext.navigate", context=self._context, url=url, wait="complete")

    async def set_viewport_size(self, size: dict[str, int]) -> None:
        """Give this tab, and those that follow, a size in CSS pixels."""
        self._size = size
        if self._context:
            await self.command("browsingContext.setViewport", context=self._context, viewport=size)

    async def evaluate(self, script: str) -> Any:
        """Return what an expression, or a function without arguments, comes to."""
        called = f"(each => typeof each === 'function' ? each() : each)(\n{script}\n)"
        text = f"Promise.resolve({called}).then((all) => JSON.stringify(all) ?? 'null')"
        if "\n" in script and not script.startswith("("):
            text = f"{script}\n;'null'"  # a whole program
        target = {"context": self._context}
        found = await self.command("script.evaluate", expression=text, target=target, awaitPromise=True)
        assert found["type"] == "success", found["exceptionDetails"]["text"]
        return json.loads(found["result"]["value"])

    async def press(self, key: str) -> None:
        """Press and release a key."""
        value = KEYS.get(key, key)
        actions = [{"type": kind, "value": value} for kind in ("keyDown", "keyUp")]
        await self.command("input.performActions", context=self._context, actions=[{"type": "key", "id": "keys", "actions": actions}])


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[FirefoxPage]:
    """Run Firefox with a new profile in a folder, on a port that it chooses."""
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in PREFERENCES.items())
    (folder / "user.js").write_text("\n".join(lines))
    command = (str(executable()), "--headless", "--no-remote", "--profile", str(folder), "--remote-debugging-port=0", "about:blank")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        async for line in process.stderr:
            if found := re.search(rb"WebDriver BiDi listening on (ws://\S+)", line):
                break
        else:
            raise AssertionError("Firefox ended before it listened")
        async with connect(f"{found.group(1).decode()}/session", max_size=MOST_BYTES) as wire:
            page = FirefoxPage(wire)
            await page.command("session.new", capabilities={})
            yield page
    finally:
        process.terminate()
        await process.wait()
