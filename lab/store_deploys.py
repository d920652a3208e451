"""Rolling deploys that upgrade the store under a batch and threads: `python -m lab.store_deploys --deploys 100`.

Two wheels are built from the checkout; the second has one migration more. Two workers of the first build serve. A worker of the second
joins and upgrades the store; then those of the first are stopped and started anew, as a node that is emptied does; another of the second
joins, and those of the first are stopped for good. No case may end as an error, and no call may be made twice. With `--too-old` the
migration renames a table, so that the store refuses what the first build still writes. `lab/tests/test_store_deploys.py` runs a small one.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from temporalio.client import Client

from gradeloop.batches.contract import BatchRequest, Case, GradingBatch, StoreCases, Upload
from gradeloop.batches.reader import BatchReader
from gradeloop.client.client import GradingClient
from gradeloop.exit_codes import leave
from gradeloop.store.engine import Store
from gradeloop.store.upgrade import VERSION
from lab.fleet_storm import Judge, is_good
from rig.builds import NEXT, RENAMED, Build, build_next, build_today
from rig.counting_server import CountingServer
from rig.postgresql import Postgresql, postgresql
from rig.processes import Engine, WorkerProcess, engine_in

LANES = 3
"""Batches at once."""


@dataclass(frozen=True)
class Plan:
    """How many, and how fast."""

    deploys: int = 100
    cases: int = 12
    """Of each batch; three run at once, and new ones begin until the deploy is done."""
    threads: int = 12
    at_once: int = 5
    delay: float = 0.5
    """Seconds that each model call takes."""
    too_old: bool = False
    """Whether the first build may not use the store after the second build's migration."""
    longest: float = 300.0
    """Seconds after which a deploy is given up."""


@dataclass
class Report:
    """What came of it."""

    deploys: int = 0
    cases: int = 0
    threads: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    """Calls for cases by the worker that made them; one that was started anew has a name of its own."""
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Deploy:
    """One deploy, on a store and a queue of its own."""

    def __init__(self, plan: Plan, engine: Engine, server: Postgresql, builds: tuple[Build, Build], number: int) -> None:
        self._plan, self._engine, self._builds = plan, engine, builds
        self._name, self._url = f"deploy-{number}", server.create(f"deploy_{number}")
        self._judge, self._models = Judge(plan.delay, -1), CountingServer(delay=plan.delay)
        self._workers: dict[str, WorkerProcess] = {}
        self._batches: list[str] = []
        self._rolled = asyncio.Event()

    async def run(self, report: Report) -> None:
        """Roll the second build out under the work, and look at what it came to."""
        judge = await self._judge.start()
        await self._models.start()
        client = await self._engine.client()
        try:
            async with asyncio.timeout(self._plan.longest):
                await self._start(judge, "old0", "old1", build=self._builds[0])
                async with asyncio.TaskGroup() as group:
                    for lane in range(LANES):
                        group.create_task(self._run_batches(client, judge, lane))
                    threads = [group.create_task(self._thread(client, f"{self._name}-{at}")) for at in range(self._plan.threads)]
                    group.create_task(self._roll(judge))
        finally:
            for worker in self._workers.values():
                worker.kill()
            await self._judge.close()
            await self._models.close()
        await asyncio.to_thread(self._look, report, [thread.result() for thread in threads])

    async def _start(self, judge: str, *names: str, build: Build) -> None:
        """Start workers of a build, all at once; trying the sandboxes, which nothing here uses, would be a third of that."""
        own = {"GRADELOOP_STORE": self._url, "PYTHONPATH": str(build.site), "GRADELOOP_BASE_URLS": f"{judge},{self._models.url}"}
        own["GRADELOOP_SANDBOX__USE"] = "monty"
        for name in names:
            self._workers[name] = WorkerProcess(self._engine, self._name, judge, name=name, variables=own, application=build.application)
        await asyncio.gather(*(self._workers[name].start() for name in names))

    async def _roll(self, judge: str) -> None:
        old, new = self._builds
        await self._until_asked("old")
        await self._start(judge, "new0", build=new)
        while await asyncio.to_thread(self._version) != NEXT:  # noqa: ASYNC110 - the store tells nobody
            await asyncio.sleep(0.05)
        await self._until_asked("new0")
        for name in ("old0", "old1"):
            await asyncio.gather(self._workers[name].drain(), self._start(judge, f"{name}-again", build=old))
        await self._until_asked("new0" if self._plan.too_old else "again")
        await self._start(judge, "new1", build=new)
        await asyncio.gather(*(self._workers[f"{name}-again"].drain() for name in ("old0", "old1")))
        await self._until_asked("new")
        self._rolled.set()

    async def _until_asked(self, name: str) -> None:
        """Wait until some more cases have been asked for by workers whose name has this in it."""
        before = len(self._judge.requests)
        while sum(name in request.worker for request in self._judge.requests[before:]) < self._plan.at_once:  # noqa: ASYNC110 - nor does it
            await asyncio.sleep(0.02)

    def _version(self) -> int:
        with psycopg.connect(self._url) as connection:
            row = connection.execute("SELECT version_num FROM store_version").fetchone()
            return int(row[0]) if row else 0

    async def _run_batches(self, client: Client, judge: str, lane: int) -> None:
        while not self._rolled.is_set():
            self._batches.append(f"{self._name}-{lane}-{len(self._batches)}")
            await self._run_batch(client, judge, self._batches[-1])

    async def _run_batch(self, client: Client, judge: str, batch_id: str) -> None:
        model = {"id": "openai_compatible:judge", "config": {"base_url": f"{judge}/v1", "structured_output": True}}
        said = {"rubric": "- it is good", "grader": {"model": model}}
        outputs = [f"I am case number {at} of {batch_id}." for at in range(self._plan.cases)]
        cases = [Case.model_validate({"id": f"c{at}", "output": output, **said}) for at, output in enumerate(outputs)]
        upload = Upload(batch_id=batch_id, first=0, cases=tuple(cases))
        await client.execute_workflow(StoreCases.run, upload, id=f"store/{batch_id}", task_queue=self._name)
        request = BatchRequest.model_validate({"batch_id": batch_id, "total": len(cases), "at_once": self._plan.at_once, "cache": False})
        await client.execute_workflow(GradingBatch.run, request, id=batch_id, task_queue=self._name)

    async def _thread(self, client: Client, name: str) -> str:
        asked = {**self._models.request(name), "messages": [{"role": "user", "content": "write"}]}
        return str(
            (
                await GradingClient(client, task_queue=self._name).result(
                    await GradingClient(client, task_queue=self._name).start(asked, thread_id=name)
                )
            ).status
        )

    def _look(self, report: Report, statuses: list[str]) -> None:
        """Compare what was asked with what was counted."""
        if self._plan.too_old:  # the reader below is of the first build
            with psycopg.connect(self._url) as connection:
                connection.execute("ALTER TABLE {1} RENAME TO {0}".format(*RENAMED).encode())
        store = Store(self._url, upgrade=False)
        reader, counted, problems = BatchReader(store), 0, list[str]()
        wanted = {f"c{at}": "passed" if is_good(at) else "failed" for at in range(self._plan.cases)}
        for batch_id in self._batches:
            found = {result.id: result.status for result in reader.results(batch_id)}
            counted += asyncio.run(reader.summary(batch_id)).usage.attempts
            problems += [f"{name} of {batch_id} is {found.get(name)}" for name in wanted if found.get(name) != wanted[name]]
            report.cases += len(found)
        store.close()
        asked = Counter((request.batch, request.case) for request in self._judge.requests)
        problems += [f"{case} was asked for {times} times" for case, times in asked.items() if times != 1]
        if counted != len(self._judge.requests):
            problems.append(f"{counted} attempts are counted, {len(self._judge.requests)} were made")
        problems += [f"a thread is {status}" for status in statuses if status != "satisfied"]
        problems += [f"{self._models.extra()} calls of threads were made twice"] * bool(self._models.extra())
        report.problems += [f"{self._name}: {problem}" for problem in problems]
        report.deploys += 1
        report.threads += len(statuses)
        report.calls.update(request.worker for request in self._judge.requests)


async def deploy(plan: Plan, folder: Path, *, tell: bool = False) -> Report:
    """Deploy again and again, and return what it came to."""
    report, began = Report(), time.monotonic()
    for name in ("today", "next", "engine"):
        (folder / name).mkdir()
    oldest = NEXT if plan.too_old else VERSION
    builds = await asyncio.to_thread(lambda: (build_today(folder / "today"), build_next(folder / "next", oldest)))
    with postgresql() as server:
        async with engine_in(folder / "engine") as engine:
            for number in range(plan.deploys):
                await Deploy(plan, engine, server, builds, number).run(report)
                if tell:
                    seconds = time.monotonic() - began
                    print(f"{report.deploys} deploys, {report.cases} cases, {seconds:.0f} s, {report.problems}", flush=True)
    report.seconds = time.monotonic() - began
    return report


def main() -> None:
    """Run all deploys and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deploys", type=int, default=Plan.deploys)
    parser.add_argument("--too-old", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(deploy(Plan(given.deploys, too_old=given.too_old), Path(folder), tell=True))
    print(report)
    leave(1 if report.problems else 0)


if __name__ == "__main__":
    main()
