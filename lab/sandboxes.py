"""200 `run_python` calls at once, in each sandbox of this machine and in a bare subprocess beside them: `make bench-sandboxes`."""

import argparse
import asyncio
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]  # it has no types
from rich.console import Console
from rich.table import Table

from activities.tools.base import Tool, ToolContext, tool_of
from gradeloop.exit_codes import leave
from gradeloop.sandbox import Execution, Sandbox
from gradeloop.sandbox.choice import SandboxChoice, choose_sandboxes
from gradeloop.sandbox.monty import Monty
from gradeloop.sandbox.programs import Bubblewrap, Landlock
from gradeloop.settings.worker import WorkerSettings

CALLS = 200
CODE = "total = 0\nfor number in range(1000):\n    total += number * number\nprint(total)\ntotal"
PRINTED = "332833500\n"


class Bare:
    """What tutorials show: no sandbox at all."""

    name = "bare subprocess"

    def run(self, program: object, files: object = None, limits: object = None) -> Execution:  # noqa: ARG002 - the seam's own
        """Run Python source by the interpreter."""
        ended = subprocess.run([sys.executable, "-I", "-S", "-c", str(program)], capture_output=True, text=True, timeout=60, check=False)
        return Execution("ok" if ended.returncode == 0 else "raised", ended.stdout, ended.stderr)


@dataclass
class Measured:
    """What 200 calls took."""

    seconds: float
    worker_mib: float
    """By which the worker's own memory grew, at its peak."""
    children_mib: float
    """Of all processes beside it together, at their peak."""
    stall_ms: float
    """The longest time for which the event loop stood still."""


def tool(box: object) -> Tool:
    """Return `run_python` in a sandbox."""
    from activities.tools.code import build_run_python

    choice = SandboxChoice(box, None, None, ())  # type: ignore[arg-type]  # the bare one has another name
    return tool_of(build_run_python(ToolContext(WorkerSettings(), choice)))


async def measured(box: object) -> Measured:
    """Make 200 calls at once."""
    run = tool(box)
    await run.run({"code": CODE}, "")
    process, peak, over = psutil.Process(), [0.0, 0.0], threading.Event()
    base = process.memory_info().rss

    def watch() -> None:
        while not over.wait(0.05):
            peak[0] = max(peak[0], process.memory_info().rss - base)
            peak[1] = max(peak[1], sum(_pss(child) for child in process.children(recursive=True)))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    stalls, began = asyncio.create_task(_stalls()), time.perf_counter()
    told = await asyncio.gather(*(run.run({"code": CODE}, "") for _ in range(CALLS)))
    seconds = time.perf_counter() - began
    over.set()
    stalls.cancel()
    await asyncio.wait([stalls])
    if any(each["stdout"] != PRINTED for each in told):
        raise RuntimeError(f"a call went wrong: {next(each for each in told if each['stdout'] != PRINTED)}")
    return Measured(seconds, peak[0] / 2**20, peak[1] / 2**20, STALLS.pop())


STALLS: list[float] = []


async def _stalls() -> None:
    longest, last = 0.0, time.perf_counter()
    try:
        while True:
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
    finally:
        STALLS.append(longest * 1000)


def _pss(process: psutil.Process) -> float:
    """Return the memory of a process, what it shares with others counted in parts."""
    try:
        return float(process.memory_full_info().pss)
    except psutil.Error:
        return 0.0


def subjects() -> list[object]:
    """Return what is measured: the sandboxes that hold here, and no sandbox."""
    held = {each.name for each in choose_sandboxes(all_of_them=True).tried if each.passed}
    boxes: list[Sandbox] = [Monty(), Bubblewrap(), Landlock()]
    return [*(box for box in boxes if box.name in held), Bare()]


async def bench() -> Table:
    """Measure all of them."""
    columns = ("calls a second", "worker, MiB", "processes, MiB", "longest stall, ms")
    shown = Table(f"{CALLS} calls at once", *columns, box=None, padding=(0, 3, 0, 0))
    for box in subjects():
        found = await measured(box)
        figures = (f"{CALLS / found.seconds:.0f}", f"+{found.worker_mib:.0f}", f"{found.children_mib:.0f}", f"{found.stall_ms:.0f}")
        shown.add_row(str(getattr(box, "name", "")), *figures)
    return shown


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    Console(width=120).print(asyncio.run(bench()))
    leave(0)


if __name__ == "__main__":
    main()
