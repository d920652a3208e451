"""What a worker has loaded is not part of Python's search for cyclic garbage; what it makes afterwards is."""

import asyncio
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gradeloop.temporal.worker_process import TIMES
from rig.processes import WorkerProcess, engine_in

SET_ASIDE = """
import gc, json, weakref
from gradeloop.temporal.worker_process import TIMES, LoadedObjects

class Knot:
    def __init__(self):
        self.me = self

gc.disable()  # else a search that nobody asked for would be counted
kept = []
with LoadedObjects(long={long}).gc_freeze():
    counts = [gc.get_freeze_count()]
    for _ in range(TIMES + 2):
        kept.append([Knot() for _ in range(100)])
        gc.collect()
        counts.append(gc.get_freeze_count())
    lost = weakref.ref(Knot())
    gc.collect()
    callbacks = len(gc.callbacks)
after = {{"counts": gc.get_freeze_count(), "callbacks": len(gc.callbacks)}}
print(json.dumps({{"counts": counts, "found": lost() is None, "callbacks": callbacks, "after": after}}))
"""

WATCHES = """
import gc, threading, time


def watch():
    while gc.get_freeze_count() < 10_000:
        time.sleep(0.05)
    with open({path!r}, "w") as file:
        file.write("set aside")


threading.Thread(target=watch, daemon=True).start()


def look(where: str) -> str:
    \"\"\"Look somewhere.\"\"\"
    return where
"""


def gc_freeze(long: float) -> dict[str, Any]:
    """Return what a process of its own says, in which a full search is long from so many seconds on."""
    done = subprocess.run([sys.executable, "-c", SET_ASIDE.format(long=long)], capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.slow
def test_what_is_loaded_is_set_aside_after_each_long_search_a_few_times_and_given_back_at_the_end() -> None:
    told = gc_freeze(0)

    assert told["counts"][0] > 1_000
    assert [after > before for before, after in pairwise(told["counts"])] == [True] * TIMES + [False] * 2
    assert (told["found"], told["callbacks"]) == (True, 0)
    assert told["after"] == {"counts": 0, "callbacks": 0}


@pytest.mark.slow
def test_what_a_short_search_leaves_stays_where_it_is() -> None:
    told = gc_freeze(60)

    assert len(set(told["counts"])) == 1
    assert (told["found"], told["callbacks"]) == (True, 1)
    assert told["after"] == {"counts": 0, "callbacks": 0}


@pytest.mark.slow
async def test_a_worker_sets_aside_what_it_has_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "said"
    monkeypatch.setattr("rig.processes.TOOLS", WATCHES.format(path=str(said)))
    async with engine_in(tmp_path) as engine:
        worker = WorkerProcess(engine, "set-aside", "http://127.0.0.1:9")
        await worker.start()
        try:
            async with asyncio.timeout(240):
                while not said.exists():
                    await asyncio.sleep(0.05)
        finally:
            worker.kill()
