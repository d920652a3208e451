"""A worker, a model's server or a command that ends in the middle of a real call: every case is judged, and few calls are made again."""

import json
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from rig.real_model import RealModel, Tap
from tests.rig.cli import CommandLine, ended
from tests.rig.real_suites import grader, gradings, judged, outputs, suite

CASES = 5
CONCURRENCY = 2


@pytest.fixture
def alone(gradeloop: CommandLine) -> Iterator[CommandLine]:
    """Return the command without a worker of an earlier test."""
    gradeloop.kill_workers()
    yield gradeloop
    gradeloop.kill_workers()


def in_the_third_call(tap: Tap) -> bool:
    """Return whether the third grading is being written."""
    return len(gradings(tap.calls)) > CONCURRENCY and tap.in_flight > 0


def cases_that_ended(gradeloop: CommandLine) -> int:
    """Return how many cases have a result in the store."""
    with closing(sqlite3.connect(gradeloop.state / "results.db")) as store:
        return int(store.execute("SELECT count(*) FROM cases WHERE status <> 'queued'").fetchone()[0])


def test_a_worker_that_is_killed_in_a_call_loses_no_case(alone: CommandLine, tap: Tap) -> None:
    process = alone.start("eval", suite(alone, "worker-killed", tap, outputs(CASES)), "--json")
    tap.until(in_the_third_call)
    alone.kill_workers()
    begun, kept = len(gradings(tap.calls)), cases_that_ended(alone)
    done = ended(process)
    asked = Counter(json.dumps(call.body, sort_keys=True) for call in gradings(tap.calls))

    assert done.code in {0, 1}, done.err
    assert Counter(status in {"passed", "failed"} for status in judged(done).values()) == {True: CASES}
    assert max(asked.values()) <= 2
    assert asked.total() - len(asked) <= begun - kept


def test_a_models_server_that_is_killed_in_a_call_is_waited_for(alone: CommandLine, tap: Tap, one_model: tuple[RealModel, Tap]) -> None:
    process = alone.start("eval", suite(alone, "server-killed", tap, outputs(CASES)), "--json")
    tap.until(in_the_third_call)
    one_model[0].kill()
    tap.until(lambda seen: any(call.ended and call.status is None for call in seen.calls))
    one_model[0].start()
    done = ended(process)

    assert done.code in {0, 1}, done.err
    assert Counter(status in {"passed", "failed"} for status in judged(done).values()) == {True: CASES}


def test_a_run_that_ctrl_c_ends_in_a_call_is_resumed(alone: CommandLine, tap: Tap) -> None:
    task = {
        "prompt": "Say in one sentence that dogs are welcome in your hotel, and which room is free.",
        "generator": {"model": grader(tap)["model"] | {"config": {"base_url": tap.url, "temperature": 0, "max_tokens": 100}}},
        "grader": grader(tap),
        "rubric": "- it says that dogs are welcome",
        "max_iterations": 1,
        "thread": "real-1",
    }
    (alone.folder / "real.yaml").write_text(json.dumps(task))
    process = alone.start("run", "real.yaml", "--json")
    tap.until(lambda seen: seen.in_flight == 1)
    process.send_signal(signal.SIGINT)
    interrupted = ended(process)
    resumed = alone("resume", "real-1", "--json")

    assert interrupted.code == 130, interrupted.err
    assert resumed.code in {0, 1}, resumed.err
    assert resumed.result["status"] in {"satisfied", "max_iterations_reached"}
    assert resumed.result["output"]
