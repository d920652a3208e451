"""The steps of a run, each with the promises that it looks at."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import httpx2
import psutil  # type: ignore[import-untyped]  # it ships no types
from temporalio.client import Client
from temporalio.service import RPCError

from gradeloop.client.client import GradingClient
from gradeloop.errors import GradeloopError
from gradeloop.temporal.connect import connect, find
from lab.live_alerts import RULES
from lab.operate.stand import DRAIN_SECONDS, QUEUE, Stand
from rig.otlp import PROTOBUF, chat, request_of
from rig.pooler import PROGRAM as POOLER
from rig.processes import WorkerProcess
from rig.tls_proxy import PROGRAM as PROXY
from rig.tls_proxy import Authority

DASHBOARDS = RULES.parents[1] / "grafana"
METRIC = r"\b(?:gradeloop|temporal)_[a-z_]+"
OF_FILES = {"gradeloop_store_free_bytes"}
"""Metrics of a worker whose store is a file."""
ALERT = "GradeloopWorkerDown"
QUARTERS = 4
GROWTH = 1.1
"""The memory after all calls, as a share of that after the second quarter, at most."""


async def until(what: str, test: Callable[[], Any], seconds: float = 240.0) -> float:
    """Wait until a test, or what it returns, holds; return the seconds that it took.

    Raises:
        TimeoutError: It did not hold in time; the error says what was waited for.
    """
    began = time.monotonic()
    while True:
        found = test()
        if await found if isinstance(found, Awaitable) else found:
            return time.monotonic() - began
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"after {seconds:.0f} s still not: {what}")
        await asyncio.sleep(0.2)


class Operation:
    """The steps, one after the other; the worker `one` is the same process in all of them."""

    def __init__(self, stand: Stand) -> None:
        self._stand, self._watch, self._plan = stand, stand.watch, stand.plan
        self.broken = 0
        self.seconds: dict[str, float] = {}
        """What each step took."""
        self._step = ""

    async def run(self) -> None:
        """Do every step; one that ends in an error is a broken promise, and the next one is done."""
        print("| step | what was done | promise | figure | kept |\n|---|---|---|---|---|", flush=True)
        steps = {
            "start": self._start,
            "work": self._work,
            "keys": self._rotate,
            "codec": self._switch_codec,
            "copies": self._copy_store,
            "stop": self._stop,
            "metrics": self._watch_all,
            "memory": self._grow,
        }
        for self._step, step in steps.items():
            began = time.monotonic()
            try:
                await step()
            except (GradeloopError, RPCError, RuntimeError, OSError, ExceptionGroup) as error:
                self._say("all of it", "it ends", f"{type(error).__name__}: {error}", held=False)
            self.seconds[self._step] = time.monotonic() - began

    def _say(self, made: str, promise: str, figure: str, *, held: bool) -> None:
        self.broken += not held
        print(f"| {self._step} | {made} | {promise} | {figure} | {'yes' if held else '**no**'} |", flush=True)

    async def _say_bill(self, made: str, statuses: Counter[str], threads: Iterable[str], batches: Iterable[str] = ()) -> None:
        """Compare what the provider was asked with what threads and batches have counted."""
        threads, batches = list(threads), list(batches)
        used, (asked, answered, again) = await self._stand.counted(threads, batches), self._stand.billed([*threads, *batches])
        figure = f"{asked} requests, {used.attempts} counted; {answered} answered, {used.calls} counted; {again} twice; {_shown(statuses)}"
        held = (asked, answered, again) == (used.attempts, used.calls, 0) and set(statuses) <= {"satisfied"}
        self._say(made, "the provider's bill is what is counted; no answer is paid for twice", figure, held=held)

    async def _start(self) -> None:
        """Start the workers."""
        stand = self._stand
        stand.write_keys("k1")
        await asyncio.gather(*(stand.start(name) for name in ("one", "two")))
        await stand.connect()
        stand.start_receiver()
        await until("three targets are up", lambda: self._up() == 3)
        versions = f"Temporal {stand.engine.server.version if stand.engine.server else '?'} (dev server, SQLite), {_versions()}"
        self._say("start of two workers and a receiver", "Prometheus reads all three", versions, held=True)

    def _up(self) -> int:
        return sum(row["value"][1] == "1" for row in self._watch.ask("query", query="up")["result"])

    async def _work(self) -> None:
        """Run threads and a batch, while HAProxy is away for some seconds and the provider fails now and then."""
        stand, plan = self._stand, self._plan
        names = [f"work-{at}" for at in range(plan.threads)]
        stand.provider.failures = [500, 429, 503]
        work = asyncio.gather(stand.turns(names), stand.evaluate("batch", plan.cases))
        await until("the work is under way", lambda: len(stand.provider.calls) > plan.threads)
        stand.proxy.stop()
        await asyncio.sleep(5)
        stand.proxy.start(stand.authority)
        statuses, code = await work
        made = f"{plan.threads} threads and a batch of {plan.cases}; HAProxy stopped for 5 s, three requests refused"
        await self._say_bill(made, statuses, names, ["batch"])
        self._say("the same", "the command that follows the batch ends by its gate", f"exit code {code}", held=code == 0)

    async def _rotate(self) -> None:
        """Renew keys of providers, keys that encrypt, and certificates, each while threads run."""
        stand, few = self._stand, self._plan.threads // 3
        names = [f"keyed-{at}" for at in range(few)]
        running = asyncio.create_task(stand.turns(names))
        await until("the threads are under way", lambda: self._calls_for(names) > few // 2)
        for name in ("one", "two"):
            (stand.folder / f"{name}.key").write_text(f"{name}-renewed")
        stand.provider.revoked = {"one", "two"}
        statuses, callers = await running, Counter(call.worker for name in names for call in stand.provider.of(name))
        await self._say_bill(f"new provider keys in two files under {few} threads, the old ones revoked", statuses, names)
        renewed = sum(count for name, count in callers.items() if name.endswith("-renewed"))
        self._say("the same", "calls go on with the new keys", f"{renewed} calls of {callers.total()}", held=renewed > 0)
        await self._rotate_encryption(names)
        await self._rotate_certificates(names)

    async def _rotate_encryption(self, older: Sequence[str]) -> None:
        stand = self._stand
        stand.write_keys("k1", "k2")
        stand.write_keys("k2", "k1")
        newer = [f"newer-{at}" for at in range(len(older))]
        statuses = await stand.turns([*older, *newer])
        by_key = [sum([b"k2" in await self._history(name) for name in names]) for names in (older, newer)]
        figure = f"{_shown(statuses)}; histories with the new key: {by_key[0]} of {len(older)} continued, {by_key[1]} of {len(newer)} new"
        held = statuses == {"satisfied": 2 * len(older)} and by_key == [len(older), len(newer)]
        self._say("encryption key k2 above k1", "threads of before and new ones go on with it", figure, held=held)

        stranger = stand.folder / "stranger-keys"
        stand.write_keys("k9", "k2", "k1")
        shutil.copy(stand.keys, stranger)
        stand.write_keys("k2", "k1")
        os.environ["GRADELOOP_ENCRYPTION_KEYS"] = str(stranger)
        theirs = GradingClient(await connect(await find()), task_queue=QUEUE)
        os.environ["GRADELOOP_ENCRYPTION_KEYS"] = str(stand.keys)
        turn = asyncio.create_task(theirs.invoke("strange", "write", start=stand.provider.request("strange")))
        await until("a workflow task has failed", self._failed_task)
        waited, began = not turn.done(), time.monotonic()
        stand.write_keys("k2", "k1", "k9")
        status = (await turn).status
        figure = f"{status} {time.monotonic() - began:.0f} s after the key was added"
        self._say("a thread by a key that no worker has", "it waits for the key", figure, held=waited and status == "satisfied")

    async def _failed_task(self) -> bool:
        try:
            return any(event.HasField("workflow_task_failed_event_attributes") for event in await self._events("strange"))
        except RPCError:
            return False

    async def _rotate_certificates(self, names: Sequence[str]) -> None:
        stand, first = self._stand, self._stand.authority
        second, connected = Authority("second"), self._reconnections()
        stand.proxy.renew_own()
        stand.proxy.start(first, second)
        stand.proxy.renew(second)

        seconds = await until("both workers connected anew", lambda: self._reconnections() >= connected + 2)
        stand.proxy.start(second)
        stand.authority = second
        await stand.connect()
        before = len(stand.provider.calls)
        statuses = await stand.turns(names)
        callers = {call.worker.partition("-")[0] for call in stand.provider.calls[before:]}
        figure = f"both connected anew within {seconds:.0f} s, {len(callers)} made calls; {_shown(statuses)}"
        made = "certificates of another authority for workers, another one for HAProxy, the old authority refused"
        self._say(made, "workers go on without a restart", figure, held=statuses == {"satisfied": len(names)} and len(callers) == 2)

    def _reconnections(self) -> int:
        return self._stand.workers["one"].log.read_text().count("anew, with the credentials as they are now")

    async def _events(self, name: str) -> list[Any]:
        """Return the events of a thread as the server has them, undecoded."""
        direct = await Client.connect(self._stand.engine.address)
        return list((await direct.get_workflow_handle(name).fetch_history()).events)

    async def _history(self, name: str) -> bytes:
        return b"".join([event.SerializeToString() for event in await self._events(name)])

    async def _switch_codec(self) -> None:
        """Switch encryption off and on again with threads open."""
        stand, few = self._stand, self._plan.threads // 6
        sealed, plain, again = ([f"{kind}-{at}" for at in range(few)] for kind in ("sealed", "plain", "again"))
        statuses = await stand.turns(sealed)
        readable = [sum([f"draft 0 of {name}".encode() in await self._history(name) for name in sealed])]
        stand.write_keys("plain", "k2", "k1", "k9")
        statuses += await stand.turns([*sealed, *plain])
        readable += [sum([f"draft 0 of {name}".encode() in await self._history(name) for name in plain])]
        stand.write_keys("k2", "k1", "k9")
        statuses += await stand.turns([*sealed, *plain, *again])
        readable += [sum([f"draft 0 of {name}".encode() in await self._history(name) for name in again])]
        made = f"encryption on, off and on again under {few} threads each, all of them continued"
        await self._say_bill(made, statuses, [*sealed, *plain, *again])
        figure = f"histories with readable drafts: on {readable[0]}, off {readable[1]}, on again {readable[2]} of {few}"
        self._say("the same", "what is begun encrypted is unreadable on the server", figure, held=readable == [0, few, 0])
        shown = [await stand.command("show", names[0]) for names in (sealed, plain, again)]
        shown.append(await stand.command("list", "--limit", "5"))
        told = sum(code == 0 and "draft" in said for code, said in shown[:3])
        figure = f"`show` of one of each kind: {told} of 3 read; `list`: exit code {shown[3][0]}"
        self._say("the same", "commands read both", figure, held=told == 3 and shown[3][0] == 0)

    async def _copy_store(self) -> None:
        """Copy the store while a batch runs, then from PostgreSQL into SQLite and back, and go on with the copy."""
        stand, cases = self._stand, self._plan.cases
        work, gate = asyncio.create_task(stand.evaluate("copied", cases)), stand.provider.hold(f"copied grader {cases}")
        await until("the batch is under way", lambda: stand.provider.requests["copied"] > cases // 4)
        live = stand.folder / "live.db"
        code, _ = await stand.command("store", "backup", str(live))
        whole, _ = await stand.command("store", "check", GRADELOOP_STORE=f"sqlite:///{live}")
        gate.open.set()
        ended = await work
        figure = f"backup {code}, check of the copy {whole}, the batch's exit code {ended}"
        self._say("backup under a running batch", "the copy is whole", figure, held=(code, whole, ended) == (0, 0, 0))

        ours = os.environ["GRADELOOP_STORE"]
        other, second = f"sqlite:///{stand.folder / 'other.db'}", stand.create("second")
        began, codes = time.monotonic(), list[int]()
        for source, target in ((ours, other), (other, second)):
            file = stand.folder / f"backup-{len(codes)}.db"
            for word, store in (("backup", source), ("restore", target)):
                code, _ = await stand.command("store", word, str(file), GRADELOOP_STORE=store)
                codes.append(code)
        seconds, exported = time.monotonic() - began, list[str]()
        (copied,) = await stand.summaries("copied")
        for store in (ours, other, second):
            code, said = await stand.command("export", copied.batch_id, GRADELOOP_STORE=store)
            exported.append(said)
            codes.append(code)
        equal = len(set(exported)) == 1 and f"draft {cases} of copied" in exported[0]
        figure = f"{seconds:.0f} s; the batch's {cases} cases exported: {'equal' if equal else 'differ'}; exit codes {sorted(set(codes))}"
        promise = "all three stores say the same"
        self._say("backup and restore: PostgreSQL, SQLite, PostgreSQL", promise, figure, held=equal and set(codes) == {0})

        before = stand.provider.requests["copied"]
        worker = await stand.start("restored", exposed=False, queue="restored", GRADELOOP_STORE=second)
        code = await stand.evaluate("copied", cases, GRADELOOP_STORE=second, GRADELOOP_TASK_QUEUE="restored")
        await worker.drain()
        figure = f"exit code {code}, {stand.provider.requests['copied'] - before} requests"
        held = code == 0 and stand.provider.requests["copied"] == before
        self._say("the same suite by a worker on the restored store", "its verdicts are known there", figure, held=held)

    async def _stop(self) -> None:
        """Stop a third worker with calls in flight, which then end within its drain time, and beyond it."""
        stand = self._stand
        for kind in ("within", "beyond"):
            worker = await stand.start("three", exposed=False)
            await stand.turns([f"{kind}-before-{at}" for at in range(self._plan.threads // 3)])
            await until("the collector has what it counts", self._collected)  # what a worker counts last it does not send
            await self._stop_with_calls(worker, kind)

    async def _collected(self) -> bool:
        return "gradeloop_model_calls" in await self._stand.collector.seen("metrics")

    async def _stop_with_calls(self, worker: WorkerProcess, kind: str) -> None:
        provider, names, turns = self._stand.provider, list[str](), list[asyncio.Task[Counter[str]]]()
        gate = provider.hold(rf"{kind}-\d+ generator 0")

        def held_by_three() -> int:
            return sum(call.worker == "three" and call.thread in names and call.ended is None for call in provider.calls)

        while held_by_three() < 3 and len(names) < 200:
            more = [f"{kind}-{len(names) + at}" for at in range(6)]
            names += more
            turns.append(asyncio.create_task(self._stand.turns(more)))
            await until("every thread calls", lambda: self._calls_for(names) >= len(names))  # noqa: B023 - awaited here
        held, began = held_by_three(), time.monotonic()
        worker.signal(signal.SIGTERM)
        if kind == "within":
            await asyncio.sleep(1)
            gate.open.set()
        code = await worker.ended()
        seconds = time.monotonic() - began
        if kind == "beyond":
            await until("its calls are made again", lambda: self._calls_for(names) >= len(names) + held)
            gate.open.set()
        statuses = sum([await turn for turn in turns], Counter[str]())
        made = f"SIGTERM with {held} calls in flight that end {kind} {DRAIN_SECONDS:.0f} s"
        await self._say_bill(made, statuses, names)
        asked, _, _ = self._stand.billed(names)
        again = asked - len({(call.thread, call.name) for call in provider.calls if call.thread in names})
        promise = "no call is made again" if kind == "within" else "each of its calls is made once more by another worker"
        figure = f"ended after {seconds:.1f} s with exit code {code}; {again} made again"
        self._say("the same", promise, figure, held=code == 0 and again == (0 if kind == "within" else held))

    async def _watch_all(self) -> None:
        """Have every metric that rules and dashboards name happen, look at the alerts, and stop a worker."""
        stand = self._stand
        await self._make_every_metric_happen()
        texts = [RULES.read_text(), *(path.read_text() for path in sorted(DASHBOARDS.glob("*.json")))]
        named = {name for text in texts for name in re.findall(METRIC, text)} - OF_FILES

        with suppress(TimeoutError):
            await until("every metric has series", lambda: named <= set(self._watch.ask("label/__name__/values")), 60)
        without = sorted(named - set(self._watch.ask("label/__name__/values")))
        figure = f"{len(named) - len(without)} of {len(named)} have series; not: {', '.join(without) or 'none'}"
        made = f"all that rules and dashboards name, but {', '.join(OF_FILES)}"
        self._say(made, "each metric has series", figure, held=not without)
        spans, metrics = await stand.collector.seen(), await stand.collector.seen("metrics")
        kinds = sorted({re.split(r"[ :]", name)[0] for name in spans})
        ours = sum(name.startswith("gradeloop") for name in metrics)
        figure = f"{spans.total()} spans ({', '.join(kinds)}); {ours} metrics of gradeloop, {len(metrics) - ours} of the SDK"
        held = any(name.startswith("chat ") for name in spans) and await self._collected()
        self._say(
            "OTLP, a tenth of the traces",
            "the collector has traces, and the metrics of a worker without a metrics address",
            figure,
            held=held,
        )

    async def _make_every_metric_happen(self) -> None:
        stand, folder = self._stand, self._stand.folder
        (folder / "run.txt").write_text("draft 7 of judged")
        for name in ("judged", "watched"):
            judge = {"rubric": "- it is good", "grader": {"model": stand.provider.model("grader", name)}}
            (folder / f"{name}.yaml").write_text(json.dumps(judge))
        await stand.turns(["refused-0"], max_iterations=1)
        stand.provider.failures = [429] * 4
        await stand.evaluate("limited", 60)
        grader = {"model": stand.provider.model("grader", "tool-0"), "tools": ["run_python"]}
        await stand.turns(["tool-0"], grader=grader)
        await stand.evaluate("batch", self._plan.cases)
        watching = ("--sample", "100%", "--every", "1h", "--quiet", "1s", "--alert", "pass_rate < 0.9")
        create = ("monitor", "create", "fleet", "--source", "threads", "--judge", "watched.yaml", *watching)
        for command in (("judge", "--no-store", "judged.yaml", "run.txt"), create, ("monitor", "run-now", "fleet")):
            code, said = await stand.command(*command)
            if code:
                self._say(f"`gradeloop {' '.join(command)}`", "it ends", f"exit code {code}: {said}", held=False)
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
            await http.post(f"http://127.0.0.1:{stand.ports['otlp']}/v1/traces", content=request_of(chat("received")), headers=PROTOBUF)

    async def _grow(self) -> None:
        """Stop the second worker, and have the first make all calls, while the alert comes up."""
        stand, watch = self._stand, self._watch
        fired = self._ever_fired()
        self._say("everything so far", "no alert has fired", f"fired: {', '.join(sorted(fired)) or 'none'}", held=not fired)
        await stand.workers["two"].drain()
        began = time.monotonic()
        told: dict[str, float] = {}

        async def look() -> None:
            for state in ("pending", "firing"):
                await until(f"the alert is {state}", lambda: ALERT in watch.firing(state), 600)  # noqa: B023 - awaited here
                told[state] = time.monotonic() - began

        looking = asyncio.create_task(look())
        first = self._calls_of_one()
        resident = [await self._quarter(number, first) for number in range(1, QUARTERS + 1)]
        await looking
        growth = resident[-1][1] / resident[1][1]
        figure = ", ".join(f"{mib:.0f} MiB after {calls:,}" for calls, mib in resident)
        promise = f"from the second to the last at most {GROWTH - 1:.0%} more"
        self._say("calls of the worker that has run all the time", promise, f"{figure}: {growth - 1:+.1%}", held=growth <= GROWTH)
        await stand.start("two")
        ended = await until("the alert is over", lambda: ALERT not in watch.firing(), 120)
        others = self._ever_fired() - {ALERT}
        figure = f"pending after {told['pending']:.0f} s, firing after {told['firing']:.0f} s, over {ended:.0f} s after it was back"
        figure += f"; others: {', '.join(sorted(others)) or 'none'}"
        self._say("the second worker stopped", f"{ALERT} fires, and nothing else", figure, held=not others)

    async def _quarter(self, number: int, first: int) -> tuple[int, float]:
        """Have the worker come to its next quarter of calls after the first so many, and return all of its calls and its memory in MiB."""
        stand = self._stand
        names = [f"long-{number}-{at}" for at in range(self._plan.calls // 200)]
        stand.provider.delay = 0.05
        statuses = await stand.turns(names, **stand.provider.request("long"))  # two models, as few as a team has
        missing = first + self._plan.calls * number // QUARTERS - self._calls_of_one()
        code = await stand.evaluate(f"long-{number}", missing)
        if code or set(statuses) != {"satisfied"}:
            self._say(f"quarter {number}", "all of it passes", f"{_shown(statuses)}, exit code {code}", held=False)
        process = stand.workers["one"].process
        return self._calls_of_one(), psutil.Process(process.pid if process else 0).memory_info().rss / 2**20

    def _calls_for(self, names: Sequence[str]) -> int:
        return sum(call.thread in names for call in self._stand.provider.calls)

    def _calls_of_one(self) -> int:
        return sum(call.worker.startswith("one") for call in self._stand.provider.calls)

    def _ever_fired(self) -> set[str]:
        found = self._watch.ask("query", query='count_over_time(ALERTS{alertstate="firing"}[1h])')["result"]
        return {row["metric"]["alertname"] for row in found}


def _shown(statuses: Counter[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))


def _versions() -> str:
    """Return the versions of the programs beside Temporal's."""
    found = []
    for program in (PROXY, POOLER, "prometheus"):
        said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"(\w+),? (?:version )?(\d[\d.]*)", said.stdout + said.stderr)
        found.append(f"{version[1]} {version[2]}" if version else str(program))
    return ", ".join(found)
