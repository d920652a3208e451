"""Runs a command in the test's own process, and the workers that it starts in threads of it: no interpreter has to start."""

import ast
import asyncio
import fcntl
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import IO, Any, Literal, NoReturn

import pytest
from pydantic import JsonValue

import worker
from gradeloop.admin import doctor
from gradeloop.cli.main import main
from gradeloop.errors import GradeloopError
from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.settings.worker import WorkerSettings, load_settings
from gradeloop.temporal import connect
from gradeloop.temporal.process import DetachedProcess
from gradeloop.temporal.worker_process import report_failure

NO_PID = itertools.count(2**22 + 1)
"""Numbers above every process id: what sends a signal to a worker of ours finds nobody."""

STOP_SECONDS = 10.0

_PARSING = threading.RLock()
_parse = ast.parse


def _parse_alone(*arguments: Any, **options: Any) -> Any:
    with _PARSING:
        return _parse(*arguments, **options)


ast.parse = _parse_alone
"""Python 3.11 counts the depth of all trees that are parsed in one number: two threads that parse at once can both fail (gh-106905)."""


class Left(BaseException):
    """The command ended its process."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class WorkerLoop(asyncio.SelectorEventLoop):
    """An event loop of another thread, which gets no signals: `stop_worker` is called in their place."""

    stop_worker: Callable[[], object] | None = None

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *arguments: Any) -> None:  # type: ignore[override]  # less exact
        """Keep what the signal would call."""
        self.stop_worker = lambda: callback(*arguments)


class WorkerThread:
    """A worker of `worker.py` in a thread, which holds the life mark as a worker's process does."""

    def __init__(self, arguments: Sequence[str], mark: IO[bytes]) -> None:
        self._arguments = arguments
        self._mark = mark
        self._loop = WorkerLoop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it serves."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the worker and the calls in flight at once."""
        if self.alive and self._loop.stop_worker is not None:
            self._loop.call_soon_threadsafe(self._loop.stop_worker)
        self._thread.join(STOP_SECONDS)
        assert not self.alive, "the worker does not end"

    def _run(self) -> None:
        with self._mark, asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(worker.serve(load_settings(self._arguments)))
            except GradeloopError as error:
                report_failure(Path(self._arguments[self._arguments.index("--ready-file") + 1]), error)
            except RuntimeError as error:  # its server went as it began, and so does it: a process would end as well
                if "Worker validation failed" not in str(error):
                    raise


def lend(server_folder: Path, state: Path) -> None:
    """Have the commands of a state folder find a server that another state folder started, and take it for their own.

    Each folder keeps a lock of its own: a lock file that is a link is taken by nobody.
    """
    for name in ("server.json", "server.alive"):
        (state / name).symlink_to(server_folder / name)


def run(arguments: Sequence[str], environment: Mapping[str, str], folder: Path, workers: dict[str, WorkerThread]) -> tuple[int, str, str]:
    """Run a command to its end; returns its exit code and what it wrote to its two streams.

    Args:
        arguments: The command and its flags.
        environment: All of its variables.
        folder: Where it runs.
        workers: The workers that threads run, by task queue; those that the command starts are added.
    """
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    written = BytesIO(), BytesIO()
    out, err = (TextIOWrapper(stream, encoding=encoding, write_through=True) for stream in written)
    with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open() as nothing:
        for name in set(os.environ) - set(environment):
            patch.delenv(name)
        for name, value in {**environment, "COLUMNS": "80", "LINES": "25"}.items():
            patch.setenv(name, value)
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["gradeloop", *arguments])
        patch.setattr(sys.modules["__main__"], "__package__", None, raising=False)  # or click takes the command for `python -m pytest`
        patch.setattr(sys, "stdin", nothing)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.setattr(os, "_exit", _left)
        patch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", lambda *_: None)
        patch.setattr(asyncio.SelectorEventLoop, "remove_signal_handler", lambda *_: None)
        patch.setenv("GRADELOOP_DRAIN_SECONDS", "0")
        patch.setattr(worker, "find_sandboxes", _chosen)
        patch.setattr(worker, "LoadedObjects", _NothingLoaded)
        patch.setattr(connect, "ask_worker", _answered)
        patch.setattr(doctor, "ask_worker", _answered)
        with _workers_in_threads(patch, workers):
            code = _exit_code()
    return code, written[0].getvalue().decode(encoding), written[1].getvalue().decode(encoding)


def _exit_code() -> int:
    """Run the command; where an event loop runs in this thread, in another thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _ended()
    with ThreadPoolExecutor(1) as alone:
        return alone.submit(_ended).result()


def _ended() -> int:
    try:
        main()
    except Left as left:
        return left.code
    return 0


@contextmanager
def _workers_in_threads(patch: pytest.MonkeyPatch, workers: dict[str, WorkerThread]) -> Iterator[None]:
    """Have workers start as threads for a while; servers are processes as ever."""
    in_a_process = DetachedProcess.start

    def start(
        process: DetachedProcess, command: Sequence[str], environment: Mapping[str, str], facts: Mapping[str, JsonValue], **how: bool
    ) -> None:
        if Path(command[1]).name != "worker.py":
            in_a_process(process, command, environment, facts, **how)
            return
        mark = process._mark.open("ab")
        fcntl.flock(mark, fcntl.LOCK_EX)
        process.note({"pid": next(NO_PID), **facts})
        workers[process.file.stem] = WorkerThread(command[2:], mark)

    with patch.context() as nested:
        nested.setattr(DetachedProcess, "start", start)
        yield


class _NothingLoaded:
    """Sets nothing aside: Hypothesis looks through this process's objects for those that refer to one of its own."""

    def gc_freeze(self) -> AbstractContextManager[None]:
        return nullcontext()


def _left(code: int) -> NoReturn:
    raise Left(code)


async def _answered(question: Literal["machine", "requests"], *flags: str, given: bytes = b"") -> Any:
    """Answer in this process, as a worker's own would."""
    settings = load_settings(flags)
    if question == "requests":
        return await worker.refusals(settings, given)
    with redirect_stdout(StringIO()) as printed:
        await worker._examine(settings.model_copy(update={"examine": question}))
    return json.loads(printed.getvalue())


_REALLY_CHOSEN = worker.find_sandboxes
_CHOICES: dict[str, SandboxChoice] = {}


def _chosen(settings: WorkerSettings, *, all_of_them: bool = False) -> SandboxChoice:
    """Try the machine's sandboxes once a test run."""
    wanted = f"{settings.sandbox.use} {settings.sandbox.read_only} {all_of_them}"
    if wanted not in _CHOICES:
        _CHOICES[wanted] = _REALLY_CHOSEN(settings, all_of_them=all_of_them)
    return _CHOICES[wanted]
