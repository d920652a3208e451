"""Runs the command line with files of its own: in the test's process, or in one of its own, in a pipe or on a terminal."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.rig.in_process import WorkerThread

SECONDS = 240.0
"""Above every command here, with a server and a worker to start on a busy machine."""

PROCESSES = {("worker",), ("dev",)}
"""Commands that replace their process or wait for Ctrl-C."""

ANSI = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")

SCRIPTED = {"model": "scripted:story"}


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What `--json` printed; every line must be JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def result(self) -> dict[str, Any]:
        """The last line of `--json`."""
        return self.lines[-1]


class Terminal:
    """A command on a terminal of a given size."""

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path, size: tuple[int, int]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - one system call, so that Ctrl-C becomes a signal
        )
        os.close(slave)
        self.raw = ""

    @property
    def text(self) -> str:
        """What was written so far, without colours and movements."""
        return ANSI.sub("", self.raw).replace("\r\n", "\n")

    def until(self, shown: str) -> None:
        """Wait until the text is there."""
        self._read(lambda: shown in self.text)
        assert shown in self.text

    def press_ctrl_c(self) -> None:
        """Press Ctrl-C, as a terminal turns it into a signal."""
        os.write(self._master, b"\x03")

    def code(self) -> int:
        """Wait for the end and return the exit code."""
        self._read(lambda: False)
        os.close(self._master)
        return self.process.wait(SECONDS)

    def _read(self, enough: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not enough() and time.monotonic() < deadline:
            if select.select([self._master], [], [], 0.5)[0]:
                try:
                    chunk = os.read(self._master, 65536)
                except OSError:  # the other end is closed
                    return
                self.raw += chunk.decode()


def _own_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _let_go(process: "subprocess.Popen[Any]") -> None:
    """Read what a command that has ended still had to say; what it started may hold its streams open for ever."""
    with suppress(subprocess.TimeoutExpired, ValueError):
        process.communicate(timeout=5)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


@dataclass(frozen=True)
class CommandLine:
    """The command `gradeloop`, with one state folder."""

    state: Path
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    """A command that runs this one, with its flags."""
    lent: bool = False
    """Whether the server is the test run's, which outlives these commands."""
    _started: "list[subprocess.Popen[Any]]" = field(default_factory=list)
    _threads: "dict[str, WorkerThread]" = field(default_factory=dict)
    """Workers in threads of this process, by task queue."""

    def __call__(self, *arguments: str, **variables: str) -> Done:
        """Run a command to its end in this process, where that can be."""
        if self.prefix or arguments[:1] in PROCESSES:
            return self.alone(*arguments, **variables)
        from tests.rig.in_process import run

        return Done(*run(arguments, self._environment(variables), self.folder, self._threads))

    def alone(self, *arguments: str, **variables: str) -> Done:
        """Run a command to its end in a process of its own."""
        return ended(self.start(*arguments, **variables))

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command whose streams are pipes."""
        process = subprocess.Popen(
            self._command(arguments),
            env=self._environment(variables),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def terminal(self, *arguments: str, size: tuple[int, int] = (100, 40), **variables: str) -> Terminal:
        """Start a command on a terminal."""
        environment = self._environment({"TERM": "xterm-256color", **variables})
        terminal = Terminal(self._command(arguments), environment, self.folder, size)
        self._started.append(terminal.process)
        return terminal

    def end(self) -> None:
        """End whatever still runs: commands, workers, the server."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
        self.kill_workers()
        for process in self._started:
            _let_go(process)
        if not self.lent:
            self.alone("dev", "stop")

    def under(self, *prefix: str) -> "CommandLine":
        """Return the same command, run by another."""
        return replace(self, prefix=prefix)

    def task(self, name: str, replies: list[dict[str, Any]], **task: Any) -> str:
        """Write a task whose models are scripted, and return the file's name."""
        (self.folder / f"{name}.replies.yaml").write_text(json.dumps({"replies": replies}))
        fields = {
            "prompt": "Write it.",
            "rubric": "- it is good",
            "generator": SCRIPTED,
            "grader": SCRIPTED,
            "scripted": f"{name}.replies.yaml",
        }
        (self.folder / f"{name}.yaml").write_text(json.dumps(fields | task))
        return f"{name}.yaml"

    def workers(self) -> dict[str, int]:
        """Return the pids of the workers that were started, by task queue."""
        return {file.stem: json.loads(file.read_text())["pid"] for file in (self.state / "workers").glob("*.json")}

    def living_worker(self) -> str:
        """Return the task queue of a worker that runs; records of those that were killed stay."""
        threads = [queue for queue, worker in self._threads.items() if worker.alive]
        return next(iter(threads), None) or next(queue for queue, pid in self.workers().items() if Path(f"/proc/{pid}").exists())

    def kill_workers(self) -> None:
        """Kill every worker, as a crash would; those in threads end with the calls in flight."""
        for worker in self._threads.values():
            worker.stop()
        for pid in self.workers().values():
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    @contextmanager
    def held_as_alive(self, seconds: float) -> Iterator[None]:
        """Hold the life marks of workers that were killed, for so long: a process that dies lets go of its files a moment later."""
        with ExitStack() as held:
            for mark in (self.state / "workers").glob("*.alive"):
                fcntl.flock(held.enter_context(mark.open("ab")), fcntl.LOCK_EX)
            released = threading.Timer(seconds, held.pop_all().close)
            released.start()
            yield
            released.join()

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [*self.prefix, str(Path(sys.executable).parent / "gradeloop"), *arguments]

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        unset = {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        return {**kept, "GRADELOOP_STATE_DIR": str(self.state), **self.variables, **variables}


def ended(process: subprocess.Popen[str], *before: str) -> Done:
    """Wait for a command's end; `before` are the lines that were read of it already. One that does not end is killed."""
    assert process.stdout
    assert process.stderr
    overdue = threading.Timer(SECONDS, process.kill)
    overdue.start()
    try:
        out, err = process.stdout.read(), process.stderr.read()
        return Done(process.wait(SECONDS), "".join(before) + out, err)
    finally:
        overdue.cancel()
        if process.poll() is None:
            process.kill()
        _let_go(process)


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line of a running command."""
    assert process.stdout
    return process.stdout.readline()


def draft(text: str, iteration: int = 0, **more: Any) -> dict[str, Any]:
    """Return a scripted draft."""
    return {"role": "generator", "iteration": iteration, "text": text, **more}


def verdict(iteration: int = 0, *, gap: str | None = None, **more: Any) -> dict[str, Any]:
    """Return a scripted verdict on the one criterion that it is asked for: it passes unless there is a gap."""
    said = {"k1": {"reason": "As read.", "passed": gap is None, "gap": gap or ""}, "unjudgeable": "", "summary": "Read it."}
    return {"role": "grader", "iteration": iteration, "verdict": said, **more}
