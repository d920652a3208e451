"""An HTTP server that a program measures with: in a process of its own, at a free port."""

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from aiohttp import web


def _serve(pipe: Connection, application: Callable[..., web.Application], arguments: tuple[object, ...]) -> None:
    async def run() -> None:
        runner = web.AppRunner(application(*arguments), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        pipe.send(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def served(application: Callable[..., web.Application], *arguments: object) -> Iterator[str]:
    """Serve the application that a function of a module makes of its arguments, and yield its address."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, application, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield str(ours.recv())
    finally:
        process.terminate()
        process.join()
