"""The servers and processes of a run, and the work that is given to them."""

import asyncio
import base64
import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gradeloop.batches.contract import BatchSummary
from gradeloop.batches.reader import BatchReader
from gradeloop.client.client import GradingClient
from gradeloop.contract.messages import Usage
from gradeloop.store.engine import Store
from gradeloop.temporal.connect import application_folder, connect, find
from lab.live_alerts import RULES, Watch, begin, prometheus
from lab.watched import Collector, collecting
from rig.counting_server import CountingServer, Paid, Said
from rig.pooler import pooled
from rig.postgresql import Postgresql, free_port, postgresql
from rig.processes import Engine, WorkerProcess, engine_in
from rig.tls_proxy import Authority, TlsProxy, running

QUEUE = "operate"
DRAIN_SECONDS = 10.0
PRICES = 'prices = [{provider = "house", models = ".*", input = 1, output = 1}]\n'


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    calls: int = 20_000
    """Calls of the worker whose memory is watched."""
    threads: int = 60
    """Threads of the first work; steps that need fewer take a third."""
    cases: int = 400
    longest: float = 1800.0
    """Seconds after which the run is given up."""


class Provider(CountingServer):
    """A provider that knows who may call, refuses by rate, and fails."""

    def __init__(self) -> None:
        super().__init__(delay=0.2)
        self.requests = Counter[str]()
        """All requests by the thread or batch that they were made for, refused ones included."""
        self.revoked: set[str] = set()
        self.failures: list[int] = []
        """The statuses with which the next requests are refused."""

    def model(self, role: str, thread: str) -> dict[str, Any]:
        """Return the model of a request, at the endpoint that the workers' settings name."""
        return {"id": f"house:{role}@{thread}", "config": {"structured_output": True}}

    async def _complete(self, request: web.Request) -> web.Response:
        role, _, thread = str((await request.json())["model"]).partition("@")
        self.requests[thread] += 1
        if request.headers["authorization"].removeprefix("Bearer ") in self.revoked:
            status = 401
        elif role == "grader" and thread.startswith("refused"):
            status = 400
        elif self.failures:
            status = self.failures.pop()
        else:
            return await super()._complete(request)
        after = {"retry-after": "6"} if status == 429 else {}  # longer than a call may wait in its worker
        return web.json_response({"error": {"message": "not now"}}, status=status, headers=after)

    def _said(self, role: str, call: Paid) -> Said:
        if role == "grader" and call.thread.startswith("tool") and call.name == "grader 0":
            code = json.dumps({"code": "while True: pass"})
            return [{"id": "call-0", "type": "function", "function": {"name": "run_python", "arguments": code}}]
        if call.thread == "watched":
            return json.dumps({"k1": {"reason": "seen", "passed": False, "gap": "more"}, "unjudgeable": "", "summary": "it is not"})
        return super()._said(role, call)


@dataclass
class Stand:
    """The servers and processes of a run."""

    plan: Plan
    folder: Path
    engine: Engine
    proxy: TlsProxy
    authority: Authority
    provider: Provider
    database: Postgresql
    behind: str
    """The URL of PgBouncer, without a database."""
    collector: Collector
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    receiver: "subprocess.Popen[bytes] | None" = None
    client: GradingClient = field(init=False)
    watch: Watch = field(init=False)

    @property
    def keys(self) -> Path:
        """The file of the keys that encrypt payloads."""
        return self.folder / "encryption-keys"

    def set_up(self, patch: pytest.MonkeyPatch) -> None:
        """Have this process, its workers and its commands read the same variables."""
        (self.folder / "prices.toml").write_text(PRICES)
        (self.folder / "command.key").write_text("command")
        variables = {
            "GRADELOOP_STATE_DIR": str(self.folder),
            "GRADELOOP_STORAGE": (self.folder / "payloads").as_uri(),
            "GRADELOOP_STORE": self.create("results"),
            "GRADELOOP_TASK_QUEUE": QUEUE,
            "GRADELOOP_ENCRYPTION_KEYS": str(self.keys),
            "GRADELOOP_PRICES": str(self.folder / "prices.toml"),
            "GRADELOOP_PROVIDERS": self.providers("command"),
            "GRADELOOP_PROBE": "off",
            "GRADELOOP_MAX_CACHED_WORKFLOWS": "50",  # fewer than there are threads, so that some leave it
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.1",
        }
        for name, value in (self.proxy.variables | variables).items():
            patch.setenv(name, value)

    def providers(self, name: str) -> str:
        """Return the settings by which the provider is called with the key in the file of this name."""
        house = {"protocol": "openai_chat", "base_url": f"{self.provider.url}/v1", "key": str(self.folder / f"{name}.key")}
        return json.dumps({"house": house})

    def create(self, name: str) -> str:
        """Make an empty database of PostgreSQL, and return its URL through PgBouncer."""
        return self.database.create(name).replace(self.database.url, self.behind, 1)

    async def start(self, name: str, *, exposed: bool = True, **variables: str) -> WorkerProcess:
        """Start a worker with a key file of its own, whose metrics Prometheus reads, or the collector alone."""
        (self.folder / f"{name}.key").write_text(name)
        own = {"GRADELOOP_PROVIDERS": self.providers(name), "OTEL_EXPORTER_OTLP_ENDPOINT": self.collector.url}
        own |= {"GRADELOOP_METRICS_ADDRESS": f"127.0.0.1:{self.ports[name]}"} if exposed else {"OTEL_METRIC_EXPORT_INTERVAL": "1000"}
        started = WorkerProcess(
            self.engine,
            variables.pop("queue", QUEUE),
            self.provider.url,
            name=name,
            address=self.proxy.address,
            grace=DRAIN_SECONDS,
            variables=own | variables,
        )
        self.workers[name] = await started.start()
        return started

    def start_receiver(self) -> None:
        """Start a receiver of traces, whose store is a file."""
        variables = {
            "GRADELOOP_STORE": f"sqlite:///{self.folder / 'received.db'}",
            "GRADELOOP_METRICS_ADDRESS": f"127.0.0.1:{self.ports['receiver']}",
            "GRADELOOP_RECEIVER__ADDRESS": f"127.0.0.1:{self.ports['otlp']}",
            "GRADELOOP_RECEIVER__SETTLE": "1",
        }
        command = [sys.executable, str(application_folder() / "worker.py"), "--role", "receiver"]
        self.receiver = begin(command, self.folder / "receiver.log", variables)

    def end(self) -> None:
        """End the receiver and all workers."""
        for worker in self.workers.values():
            worker.kill()
        if self.receiver is not None:
            self.receiver.kill()
            self.receiver.wait()

    async def connect(self) -> None:
        """Connect as a program does, with the credentials and keys as they are now."""
        self.client = GradingClient(await connect(await find()), task_queue=QUEUE)

    def write_keys(self, *ids: str) -> None:
        """Write the keys of these ids to the file, the first of which encrypts."""
        for key_id in ids:
            path = self.folder / f"key-{key_id}"
            if key_id != "plain" and not path.exists():
                path.write_text(base64.b64encode(secrets.token_bytes(32)).decode())
        lines = [key_id if key_id == "plain" else f"{key_id} {(self.folder / f'key-{key_id}').read_text()}" for key_id in ids]
        (self.folder / "keys.new").write_text("\n".join(lines) + "\n")
        (self.folder / "keys.new").replace(self.keys)

    async def turns(self, names: Sequence[str], **changed: object) -> Counter[str]:
        """Do one turn of each thread, which is begun where there is none, and return how they ended."""
        places = asyncio.Semaphore(20)

        async def one(name: str) -> str:
            async with places:
                return str((await self.client.invoke(name, "write", start=self.provider.request(name, **changed))).status)

        return Counter(await asyncio.gather(*(one(name) for name in names)))

    async def command(self, *arguments: str, **variables: str) -> tuple[int, str]:
        """Run a command to its end, and return its exit code and what it says."""
        words = [str(Path(sys.executable).parent / "gradeloop"), *arguments]
        process = await asyncio.create_subprocess_exec(
            *words, env=os.environ | variables, cwd=self.folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said, _ = await process.communicate()
        return process.returncode or 0, said.decode()

    async def evaluate(self, name: str, cases: int, **variables: str) -> int:
        """Run a suite as a batch, and return the command's exit code: 0 where every case passes."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        rows = [json.dumps({"id": f"case-{at}", "output": f"draft {at} of {name}. " * 10}) for at in range(1, cases + 1)]
        (folder / "cases.jsonl").write_text("\n".join(rows))
        grader = self.provider.model("grader", name)
        suite = {"name": name, "grader": grader, "rubric": "- it is good", "tests": "cases.jsonl", "concurrency": 50}
        (folder / "suite.yaml").write_text(json.dumps(suite))
        code, said = await self.command("eval", str(folder / "suite.yaml"), **variables)
        (folder / "log").write_text(said)
        return code

    async def counted(self, threads: Iterable[str], batches: Iterable[str] = ()) -> Usage:
        """Return what threads and batches say that they have used."""
        used = [(await self.client.state(name)).usage for name in threads]
        used += [summary.usage for summary in await self.summaries(*batches)]
        return sum(used, Usage())

    async def summaries(self, *names: str) -> list[BatchSummary]:
        """Return what the store says of the batches of these names."""
        store = Store(os.environ["GRADELOOP_STORE"])
        try:
            return [summary for summary in await BatchReader(store).summaries(100) if summary.name in names]
        finally:
            store.close()

    def billed(self, names: Iterable[str]) -> tuple[int, int, int]:
        """Return the requests for threads and batches, how many were answered, and how many of those again."""
        names = set(names)
        calls = [call for call in self.provider.calls if call.thread in names and call.answered]
        again = len(calls) - len({(call.thread, call.name, call.sha256) for call in calls})
        return sum(self.provider.requests[name] for name in names), len(calls), again


@asynccontextmanager
async def standing(plan: Plan, folder: Path) -> AsyncIterator[Stand]:
    """Start the servers, and end them and all workers, whatever has happened."""
    provider, authority = Provider(), Authority("first")
    async with AsyncExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        database = stack.enter_context(postgresql())
        behind = stack.enter_context(pooled(f"{database.url}/postgres")).removesuffix("/postgres")
        engine = await stack.enter_async_context(engine_in(folder))
        (folder / "tls").mkdir()
        proxy = TlsProxy(folder / "tls", engine.address, Authority("servers"), secrets.token_hex(16))
        proxy.renew(authority)
        stack.enter_context(running(proxy, authority))
        await provider.start()
        stack.push_async_callback(provider.close)
        collector = await stack.enter_async_context(collecting())
        stand = Stand(plan, folder, engine, proxy, authority, provider, database, behind, collector)
        stack.callback(stand.end)
        stand.ports.update({name: free_port() for name in ("one", "two", "receiver", "otlp")})
        targets = [f"127.0.0.1:{stand.ports[name]}" for name in ("one", "two", "receiver")]
        stand.watch = await stack.enter_async_context(prometheus(folder, RULES.read_text(), *targets))
        stand.set_up(patch)
        yield stand
