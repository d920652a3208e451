"""What metrics and traces cost: the same runs on workers that export nothing, metrics, and metrics with a tenth or all of their traces.

The workers take turns on one server, so that whatever else the machine does falls on all of them.
"""

import argparse
import asyncio
import os
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, quantiles

import httpx2
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from rich.console import Console
from rich.table import Table
from temporalio.client import Client

from gradeloop.exit_codes import leave
from gradeloop.telemetry.traces import trace_with
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo, ensure_server, stop_server
from lab.measure import Bench
from lab.overhead import Measured, Plan, bench_of, measure
from lab.subjects import READY, WATCHED

SCRAPE_SECONDS = 5.0

COLLECT = "--collect"


@dataclass(frozen=True)
class Collector:
    """A collector in a process of its own."""

    url: str

    async def seen(self, kind: str = "spans") -> Counter[str]:
        """Return how many spans of each name have come, or how often metrics of each name: `metrics`."""
        async with httpx2.AsyncClient(trust_env=False) as http:
            return Counter((await http.get(f"{self.url}/{kind}")).json())


async def collect(port: int) -> None:
    """Take whatever is sent by OTLP, and keep the names of spans and metrics alone."""
    seen = {"spans": Counter[str](), "metrics": Counter[str]()}

    async def take(request: web.Request) -> web.Response:
        body = await request.read()
        if request.path.endswith("/traces"):
            sent = ExportTraceServiceRequest.FromString(body)
            seen["spans"].update(span.name for one in sent.resource_spans for scope in one.scope_spans for span in scope.spans)
        elif request.path.endswith("/metrics"):
            told = ExportMetricsServiceRequest.FromString(body)
            seen["metrics"].update(metric.name for one in told.resource_metrics for scope in one.scope_metrics for metric in scope.metrics)
        return web.Response(content_type="application/x-protobuf")

    async def tell(request: web.Request) -> web.Response:
        return web.json_response(seen[request.match_info["kind"]])

    app = web.Application(client_max_size=2**28)
    app.router.add_post("/{tail:.*}", take)
    app.router.add_get("/{kind:spans|metrics}", tell)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(READY, flush=True)
    await asyncio.Event().wait()


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """Run a collector in a process of its own."""
    port = _free_port()
    command = [sys.executable, "-m", "lab.watched", COLLECT, str(port)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        if process.stdout is None or (await process.stdout.readline()).decode().strip() != READY:
            raise RuntimeError("the collector does not start; its words are above")
        yield Collector(f"http://127.0.0.1:{port}")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def scrape(addresses: Sequence[str]) -> None:
    """Ask for the metrics of workers now and then, as Prometheus does."""
    async with httpx2.AsyncClient(trust_env=False) as http:
        while True:
            for address in addresses:
                (await http.get(f"http://{address}/metrics")).raise_for_status()
            await asyncio.sleep(SCRAPE_SECONDS)


async def traced_client(server: ServerInfo, share: float) -> Client:
    """Return a client whose calls begin traces, of which so many are sent."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

    trace_with(TracerProvider(sampler=TraceIdRatioBased(share)), content=False)
    return await connect(Connection(server.address, "default", embedded=True))


@asynccontextmanager
async def embedded() -> AsyncIterator[ServerInfo]:
    """Run a server whose files are thrown away."""
    with tempfile.TemporaryDirectory(prefix="gradeloop-bench-") as folder:
        os.environ["GRADELOOP_STATE_DIR"] = folder
        try:
            yield await ensure_server()
        finally:
            await stop_server()


async def watched(plan: Plan) -> tuple[list[Measured], list[list[float]]]:
    """Measure the four on an embedded server of their own."""
    async with embedded() as server, AsyncExitStack() as stack:
        url = (await stack.enter_async_context(collecting())).url
        addresses = [f"127.0.0.1:{_free_port()}" for _ in range(3)]
        scraped = [{"GRADELOOP_METRICS_ADDRESS": address} for address in addresses]
        otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": url}
        client = await connect(Connection(server.address, "default", embedded=True))
        clients = (client, client, await traced_client(server, 0.1), await traced_client(server, 1.0))
        variables: tuple[dict[str, str], ...] = ({}, scraped[0], scraped[1] | otlp, scraped[2] | otlp)
        rows = zip(WATCHED.values(), clients, variables, strict=True)
        benches = [await stack.enter_async_context(bench_of(one, by, server, **more)) for one, by, more in rows]
        scraping = asyncio.create_task(scrape(addresses))
        try:
            return await measure(benches, plan), await side_by_side(benches, plan)
        finally:
            scraping.cancel()


async def side_by_side(benches: Sequence[Bench], plan: Plan) -> list[list[float]]:
    """Return each worker's milliseconds of CPU a run in every round, all of them at work at the same time.

    What the machine's other guests take falls on all four in the same moment, so a round's ratio has less noise than turns have.
    """
    spent: list[list[float]] = [[] for _ in benches]
    for _ in range(plan.rounds):
        round_ = await asyncio.gather(*(bench.at_once(max(plan.many // len(benches), 1), plan.runs) for bench in benches))
        for each, cost in zip(spent, round_, strict=True):
            each.append(cost.worker_cpu / cost.runs * 1000)
    return spent


def table(measured: Sequence[Measured], together: Sequence[Sequence[float]], plan: Plan) -> Table:
    """Return the figures side by side: medians, and what a subject adds to its neighbours of the same round, in the median over the rounds.

    A round's ratio tells what differs between the subjects, since the machine changes more slowly than they take turns; the two numbers in
    brackets hold half of the rounds between them.
    """
    rows: list[tuple[str, list[list[float]]]] = [
        ("one run alone, ms", [[seconds * 1000 for seconds in one.latencies] for one in measured]),
        (f"ms a run, {plan.many} at once", [[1000 / cost.rate for cost in one.costs] for one in measured]),
        ("worker CPU a run, ms", [[cost.worker_cpu / cost.runs * 1000 for cost in one.costs] for one in measured]),
        ("server CPU a run, ms", [[cost.server_cpu / cost.runs * 1000 for cost in one.costs] for one in measured]),
        ("worker CPU a run, ms, side by side", [list(one) for one in together]),
    ]
    shown = Table("", "off", "metrics", "and a tenth of traces", "and all traces", box=None, padding=(0, 3, 0, 0), header_style="dim")
    for name, (off, *others) in rows:
        shown.add_row(name, f"{median(off):.1f}", *(f"{median(values):.1f} {added(values, off)}" for values in others))
    return shown


def added(values: Sequence[float], off: Sequence[float]) -> str:
    """Return by how much the values exceed those of the same rounds: the median, and the quartiles."""
    ratios = [value / beside - 1 for value, beside in zip(values, off, strict=True)]
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or collect."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if port := next((port for flag, port in pairwise(given) if flag == COLLECT), None):
        asyncio.run(collect(int(port)))
        return
    parser = argparse.ArgumentParser(prog="python -m lab.watched", description=__doc__)
    for name, number in vars(Plan()).items():
        parser.add_argument(f"--{name}", type=int, default=number, metavar=str(number))
    plan = Plan(**vars(parser.parse_args(given)))
    measured, together = asyncio.run(watched(plan))
    console = Console(highlight=False, width=140)
    console.print("Three iterations of gradeloop with nothing exported, with metrics, and with traces")
    console.print(table(measured, together, plan))


if __name__ == "__main__":
    main()
    leave(0)
