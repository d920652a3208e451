"""A fork whose worker is killed in one of its calls makes that call again, and no other."""

from collections import Counter
from pathlib import Path

import pytest

from gradeloop.client.client import GradingClient
from rig.counting_server import CountingServer
from rig.processes import WorkerProcess, engine_in

CALLS = ("grader 0", "generator 1", "grader 1")


@pytest.mark.slow
async def test_a_fork_survives_a_kill_in_each_of_its_calls(tmp_path: Path) -> None:
    async with engine_in(tmp_path) as engine:
        models, client = CountingServer(), await engine.client()
        await models.start()
        grading = GradingClient(client, task_queue="forks")
        workers = [WorkerProcess(engine, "forks", models.url, name=name) for name in ("one", "heir")]
        try:
            await workers[0].start()
            await grading.invoke("old", "write", start=models.request("old"))
            gates = [models.hold(f"killed-{at} {call}") for at, call in enumerate(CALLS)]
            for at, call in enumerate(CALLS):
                model, grader = (models.model(role, f"killed-{at}") for role in ("generator", "grader"))
                await grading.fork("old", 0, fork_id=f"killed-{at}", rubric="- it is better", model=model, grader=grader)
                await models.called(f"killed-{at}", call)
            await workers[1].start()
            workers[0].kill()
            for gate in gates:
                gate.open.set()
            results = [await grading.result(f"killed-{at}") for at in range(len(CALLS))]
        finally:
            for worker in workers:
                worker.kill()
            await models.close()

    assert [(result.status, [one.iteration for one in result.evaluations]) for result in results] == [("satisfied", [0, 1])] * len(CALLS)
    for at, call in enumerate(CALLS):
        assert models.counts(f"killed-{at}") == Counter(CALLS) + Counter([call])
        assert len({(one.name, one.sha256) for one in models.of(f"killed-{at}")}) == len(CALLS)  # the same bytes again
