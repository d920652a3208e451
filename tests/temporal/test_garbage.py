"""What a worker has loaded is no part of Python's search for cyclic garbage; what it makes afterwards is."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rig.crash_worker import WorkerProcess, engine_in

SET_ASIDE = """
import gc, json, weakref
from gradeloop.temporal.garbage import LoadedObjects

class Knot:
    def __init__(self):
        self.me = self

gc.disable()  # else a search that nobody asked for would be counted
LoadedObjects().set_aside()
counts = [gc.get_freeze_count()]
for _ in range(5):
    later = [Knot() for _ in range(100)]
    gc.collect()
    counts.append(gc.get_freeze_count())
young = weakref.ref(Knot())
gc.collect()
print(json.dumps({"counts": counts, "found": young() is None, "callbacks": len(gc.callbacks)}))
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


def test_what_is_loaded_is_set_aside_a_few_times_and_later_cycles_are_found() -> None:
    done = subprocess.run([sys.executable, "-c", SET_ASIDE], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)

    first, *later = told["counts"]
    assert first > 1_000
    assert [at > before for before, at in zip([first, *later], later, strict=False)] == [True, True, True, False, False]
    assert (told["found"], told["callbacks"]) == (True, 0)


async def test_a_worker_sets_aside_what_it_has_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "said"
    monkeypatch.setattr("tests.rig.crash_worker.TOOLS", WATCHES.format(path=str(said)))
    async with engine_in(tmp_path) as engine:
        worker = WorkerProcess(engine, "set-aside", "http://127.0.0.1:9")
        await worker.start()
        try:
            async with asyncio.timeout(60):
                while not said.exists():
                    await asyncio.sleep(0.05)
        finally:
            worker.kill()
