"""The CPU of a call by the HTTP client beneath the openai SDK: `python -m lab.transports`.

The SDK's own client, the one on aiohttp, and with `--http2 URL` HTTP/2, for which something has to serve `/v1/chat/completions` there: an
HTTP/2 server needs TLS or another package, for example `hypercorn --bind 127.0.0.1:8443 lab.transports:plain`. All take turns.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from statistics import median
from typing import Any

import httpx2
from openai import AsyncOpenAI, DefaultAioHttpClient

from lab.provider_layer import CONCURRENCY, PROMPT, REPLIES, models
from lab.served_app import served

PATH = "/v1/chat/completions"


async def plain(scope: Mapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    """Answer every request, as an application for a server that speaks HTTP/2."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        body = json.dumps(REPLIES[PATH]).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def cpu_of_a_call(client: AsyncOpenAI, calls: int) -> float:
    """Return the milliseconds of this process's CPU that a call takes."""
    free = asyncio.Semaphore(CONCURRENCY)

    async def ask() -> None:
        async with free:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": PROMPT}])

    before = time.process_time()
    await asyncio.gather(*(ask() for _ in range(calls)))
    return (time.process_time() - before) / calls * 1000


async def measure(url: str, http2: str | None, calls: int, rounds: int) -> dict[str, float]:
    """Return the median of some rounds for each client; what the first call loads is left out."""
    made: dict[str, tuple[str, httpx2.AsyncClient]] = {"httpcore2": (url, httpx2.AsyncClient()), "aiohttp": (url, DefaultAioHttpClient())}
    if http2:
        made["HTTP/2"] = (http2, httpx2.AsyncClient(http1=False, http2=True))
    clients = {name: AsyncOpenAI(api_key="k", base_url=f"{place}/v1", http_client=client) for name, (place, client) in made.items()}
    for client in clients.values():
        await cpu_of_a_call(client, CONCURRENCY)
    took: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(rounds):
        for name, client in clients.items():
            took[name].append(await cpu_of_a_call(client, calls))
    for client in clients.values():
        await client.close()
    return {name: median(each) for name, each in took.items()}


def main() -> None:
    """Measure, and print a line for each client."""
    parser = argparse.ArgumentParser(prog="python -m lab.transports", description=__doc__)
    parser.add_argument("--http2", metavar="URL", help="what serves HTTP/2")
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with served(models) as url:
        for name, took in asyncio.run(measure(url, given.http2, given.calls, given.rounds)).items():
            print(f"{name}: {took:.2f} ms of CPU a call")


if __name__ == "__main__":
    main()
