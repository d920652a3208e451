"""A worker in small, for attacks: a process with secrets and an event loop, whose sandbox is asked to run them.

Run as a script: the sandbox's name, a folder, and perhaps `container`, for the filter of system calls that containers have.
Prints what came of each attack as JSON.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gradeloop.sandbox import Limits, Sandbox, SandboxError
from gradeloop.sandbox.choice import SandboxMode, choose_sandboxes
from gradeloop.sandbox.execution import MIB
from tests.rig.attacks import HOSTILE, INTERPRETER
from tests.rig.container_filter import like_a_container

SECONDS = 0.5


async def main(use: SandboxMode, folder: Path) -> dict[str, object]:
    """Attack the sandbox and return what came of it."""
    canary, precious = (folder / "secret").read_text(), (folder / "canaries" / "precious").read_text()
    reached: list[str] = []

    async def touched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append("a socket")
        writer.close()

    server = await asyncio.start_server(touched, "127.0.0.1", 0)
    local = await asyncio.start_unix_server(touched, folder / "socket")
    datagrams = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)]
    port = server.sockets[0].getsockname()[1]
    datagrams[0].bind(("127.0.0.1", port))
    datagrams[1].bind(str(folder / "socket.datagram"))
    for datagram in datagrams:
        datagram.setblocking(False)
    values = {"SECRET": str(folder / "secret"), "FOLDER": str(folder / "canaries"), "PORT": port, "SOCKET": str(folder / "socket")}
    front = "".join(f"{name} = {value!r}\n" for name, value in (values | {"WORKER": os.getpid()}).items())
    choice = await asyncio.to_thread(choose_sandboxes, use)
    box = choice.programs or choice.snippets
    if box is None:
        return {"chosen": None, "why": choice.why_not()}
    stalls = asyncio.create_task(_stalls())
    ends = {}
    for name, code in (HOSTILE | INTERPRETER).items():
        ends[name] = await asyncio.to_thread(_attacked, box, front + code, canary)
        await asyncio.sleep(0)
        if _heard(datagrams):
            reached.append(name)
    await asyncio.sleep(0.2)
    stalls.cancel()
    server.close()
    local.close()
    return {
        "chosen": box.name,
        "ends": ends,
        "longest_stall_ms": STALLS[0],
        "reached": reached,
        "precious": (folder / "canaries" / "precious").read_text() == precious,
        "mode": (folder / "canaries" / "precious").stat().st_mode & 0o777,
        "left": sorted(path.name for path in (folder / "canaries").iterdir()),
        "folders": sorted(path.name for path in Path(os.environ["TMPDIR"]).iterdir()),
    }


STALLS: list[float] = [0.0]


async def _stalls() -> None:
    last = time.monotonic()
    while True:
        await asyncio.sleep(0.005)
        now = time.monotonic()
        STALLS[0] = max(STALLS[0], (now - last) * 1000)
        last = now


def _heard(sockets: list[socket.socket]) -> bool:
    for socket_ in sockets:
        try:
            socket_.recv(100)
        except BlockingIOError:
            continue
        return True
    return False


def _attacked(box: Sandbox, code: str, canary: str) -> dict[str, object]:
    limits = Limits(seconds=SECONDS, memory_bytes=256 * MIB, disk_bytes=16 * MIB)
    try:
        ended = box.run(code, limits=limits)
    except SandboxError as error:
        return {"status": "error", "error": str(error), "leaked": False, "wall_ms": 0, "sandbox": box.name}
    report = asdict(ended)
    size = len(ended.stdout) + len(ended.stderr)
    short = {name: report[name] for name in ("status", "wall_ms", "error", "truncated", "sandbox")}
    return short | {"leaked": canary in json.dumps(report), "size": size, "stdout": ended.stdout[:500]}


if __name__ == "__main__":
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    if "container" in sys.argv:
        like_a_container()
    use: SandboxMode = sys.argv[1]  # type: ignore[assignment]  # the tests' own word
    print(json.dumps(asyncio.run(main(use, Path(sys.argv[2])))))
