"""What it costs to start: `python -m lab.starting`.

CPU seconds of the worker's imports, and of `gradeloop run` until its first call to a model, with server and worker up; seconds of a
`gradeloop demo` that finds neither. Medians of some rounds.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil  # type: ignore[import-untyped]  # it ships no types
from aiohttp import web

from gradeloop.exit_codes import leave
from gradeloop.temporal.connect import application_folder
from lab.provider_layer import REPLIES

GRADELOOP = str(Path(sys.executable).parent / "gradeloop")
IMPORTS = "import sys, time; sys.path.insert(0, sys.argv[1]); import worker; print(time.process_time())"


def imports() -> float:
    """Return the CPU seconds of a Python that imports the worker."""
    command = [sys.executable, "-c", IMPORTS, str(application_folder())]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def first_call(folder: Path, rounds: int) -> list[float]:
    """Return the CPU seconds of each of some commands until its first call comes in; the first one, which starts the rest, is left out."""
    running: list[psutil.Process] = []
    took: list[float] = []

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        if running:
            times = running.pop().cpu_times()
            took.append(times.user + times.system)
        return web.json_response(REPLIES["/v1/chat/completions"])

    application = web.Application()
    application.router.add_post("/{tail:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    model = {"id": "openai_compatible:m", "config": {"base_url": f"http://127.0.0.1:{runner.addresses[0][1]}/v1"}}
    task = {"prompt": "Say how long.", "rubric": "- It says how long.", "generator": {"model": model}, "grader": {"model": model}}
    (folder / "task.yaml").write_text(json.dumps(task | {"max_iterations": 1}))
    environment = os.environ | {"GRADELOOP_STATE_DIR": str(folder / "state"), "GRADELOOP_PROBE": "off"}
    for _ in range(rounds + 1):
        command = [GRADELOOP, "run", str(folder / "task.yaml")]
        process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        running[:] = [psutil.Process(process.pid)]
        await process.wait()
    await runner.cleanup()
    return took[1:]


@contextmanager
def stopped(environment: Mapping[str, str]) -> Iterator[None]:
    """Stop server and workers at the end."""
    try:
        yield
    finally:
        subprocess.run([GRADELOOP, "dev", "stop"], env=environment, capture_output=True, check=False)


def demo(folder: Path) -> float:
    """Return the seconds of a demo without a server."""
    environment = os.environ | {"GRADELOOP_STATE_DIR": str(folder)}
    with stopped(environment):
        began = time.perf_counter()
        subprocess.run([GRADELOOP, "demo"], env=environment, check=True, capture_output=True)
        return time.perf_counter() - began


def main() -> None:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m lab.starting", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(f"the worker's imports: {median(imports() for _ in range(rounds)):.2f} s of CPU")
    with tempfile.TemporaryDirectory(prefix="gradeloop-starting-") as name:
        folder = Path(name)
        with stopped(os.environ | {"GRADELOOP_STATE_DIR": str(folder / "state")}):
            found = asyncio.run(first_call(folder, rounds))
        print(f"`gradeloop run` until its first call: {median(found):.2f} s of CPU")
        print(f"`gradeloop demo`, cold: {median(demo(folder / f'demo-{at}') for at in range(rounds)):.2f} s")


if __name__ == "__main__":
    main()
    leave(0)
