"""Detached processes with a record in a folder: started once, found again by name, stopped."""

import asyncio
import fcntl
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import AsyncFileLock
from pydantic import JsonValue

from gradeloop.errors import GradeloopError

LOG_BYTES = 10 * 1024 * 1024
"""A log larger than this is emptied at the next start."""

NOTICE_SECONDS = 10.0
"""The pause between two notices of how long a process has been waited for."""

MEANWHILE = (
    ". Ctrl-C ends only the wait: `gradeloop watch` and `eval --attach` follow what has begun. With `gradeloop dev` in another terminal, "
    "and GRADELOOP_TASK_QUEUE=gradeloop here, no worker has to start; `gradeloop dev stop` ends a process that hangs"
)
"""Advice for the time of the wait, added to the first notice."""

WITH_PID = """
printf '{"pid": %d, %s' $$ "$1" > "$0.$$" && command -p mv "$0.$$" "$0" && shift && exec "$@"
"""
"""The first commands of a process: it adds its pid to its record, since whoever starts it can be killed before that."""

LAST_LINE_CHARACTERS = 300
"""The most characters of a log's last line in a message; a longer one loses its beginning, since a chain of causes ends with the first."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


@asynccontextmanager
async def noticed(what: str, once: str = MEANWHILE) -> AsyncIterator[None]:
    """Say every few seconds how long the body has been waiting, and for what: a slow process is waited for as long as it lives."""

    async def notice() -> None:
        began, more = time.monotonic(), once
        while True:
            await asyncio.sleep(NOTICE_SECONDS)
            logger.warning("%s, %.0f s%s", what, time.monotonic() - began, more)
            more = ""

    async with beside(notice()):
        yield


@asynccontextmanager
async def beside(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[tuple["asyncio.Task[Any]", ...]]:
    """Run work while the body runs; what is not done at its end is cancelled, and what it raises then is dropped."""
    tasks = tuple(map(asyncio.create_task, work))
    try:
        yield tasks
    finally:
        await end_all(tasks)


async def end_all(tasks: Iterable["asyncio.Future[Any]"]) -> None:
    """Cancel tasks, and wait until they have ended."""
    ending = tuple(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def done_beside(work: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, object]) -> T:
    """Return what the work returns, and run the others until then; raise what one of them raises meanwhile."""
    async with beside(work, *others) as (working, *running):
        while not working.done():
            await asyncio.wait([working, *running], return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done() and not working.done()]:
                running.remove(task)
                task.result()
        result: T = working.result()
        return result


class DetachedProcess:
    """A detached process with a name: its record, log, lock and life mark in the state folder.

    The life mark is a file that the process keeps locked through a descriptor that it inherits: the lock is free the moment the process
    is gone, so that no other program with the same pid is mistaken for it.
    """

    def __init__(self, folder: Path, name: str, failure: type[GradeloopError], title: str | None = None) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._title = title or repr(name)
        self.log = folder / f"{name}.log"
        self.file = folder / f"{name}.json"
        self._failure = failure
        self._mark = folder / f"{name}.alive"
        self._lock = folder / f"{name}.lock"

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Lock out every other command that starts or stops this process."""
        lock = AsyncFileLock(self._lock)
        try:
            async with noticed(f"another command starts or stops {self._title}"):
                await lock.acquire()
        except OSError as error:
            raise self._failure(
                f"{self._title} cannot be started or stopped here: its lock {self._lock} cannot be taken: {error.strerror}"
            ) from error
        try:
            yield
        finally:
            await lock.release()

    def alive(self) -> bool:
        """Return whether the process runs: whether its life mark is locked."""
        # A pid says little: after a crash it may be another program's. The lock belongs to the open file that
        # the process inherited, and the kernel releases it at the end of the last process that has it, however
        # that ends.
        with self._mark.open("ab") as mark:
            try:
                fcntl.flock(mark, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def record(self) -> dict[str, JsonValue]:
        """Return the facts of the process's record, with its `pid`; empty if there is no readable record."""
        try:
            found = json.loads(self.file.read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def note(self, facts: Mapping[str, JsonValue]) -> None:
        """Replace the record, at once and whole."""
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps(dict(facts)))
        draft.replace(self.file)

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], facts: Mapping[str, JsonValue], *, is_private: bool = False
    ) -> None:
        """Start the process, detached, in a group of its own; its record has the facts from now on, and its pid once it has written it.

        `is_private`: close the files that it makes to other users.
        """
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.unlink()
        # The lock of the mark is taken here and inherited, so the process counts as alive from before it exists
        # until it is gone. A second one cannot start in between. The shell writes the pid into the record,
        # because this command may be killed right after the start.
        with self._mark.open("ab") as mark, self.log.open("ab") as log:
            self.note(noted := {**facts, "log_start": log.tell()})
            fcntl.flock(mark, fcntl.LOCK_EX)
            process = subprocess.Popen(  # noqa: S603 - our own command
                ["/bin/sh", "-c", WITH_PID, str(self.file), json.dumps(noted)[1:], *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                pass_fds=[mark.fileno()],
                umask=0o077 if is_private else -1,
            )
        self.note({"pid": process.pid, **noted})
        threading.Thread(target=process.wait, daemon=True).start()

    async def until(self, probe: Callable[[], Awaitable[T | None]]) -> T:
        """Call `probe` as long as the process lives, and return its first answer; a process that ends before that has failed."""
        pid = await self.pid()
        async with noticed(f"{self._title} is not ready yet", f"; its log: {self.log}{MEANWHILE}"):
            while True:
                alive = self.alive() and self.record().get("pid") == pid
                if (answer := await probe()) is not None:
                    return answer
                if not alive:
                    raise self._failure(f"{self._title} ended before it was ready: {self.last_log_line()}")
                await asyncio.sleep(0.02)

    def last_log_line(self) -> str:
        """Return the last line that the process wrote since its start, before any stack of a Go panic; of an empty log its path."""
        with suppress(OSError), self.log.open("rb") as log:
            start = self.record().get("log_start")
            log.seek(start if isinstance(start, int) else 0)
            if lines := log.read().decode(errors="replace").strip().splitlines():
                crash = next((number for number, line in enumerate(lines) if number and line.startswith("panic:")), len(lines))
                del lines[crash:]
                return lines[-1] if len(lines[-1]) <= LAST_LINE_CHARACTERS else f"…{lines[-1][-LAST_LINE_CHARACTERS:]}"
        return f"it wrote nothing to {self.log}"

    async def pid(self) -> int | None:
        """Return the pid, which a process writes in its first moments; None of one that ended before, or whose record was removed."""
        # The facts are in the record before the process exists, and its pid only once it runs. Whoever looks in
        # between waits for it, as long as there is a record and a life: a process that died before, or a record
        # that was removed by hand, would never bring one.
        while (pid := self.record().get("pid")) is None and self.record() and self.alive():  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.02)
        return pid if isinstance(pid, int) else None

    async def stop(self, grace: float) -> bool:
        """Terminate the process and its group, and kill them after `grace` seconds; return False if none ran."""
        if not self.alive():
            return False
        if (pid := await self.pid()) is None:
            if not self.alive():
                return False
            raise self._failure(f"{self._title} runs, but {self.file} does not have its pid; end it by hand")
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                os.killpg(pid, number)
            with suppress(TimeoutError):
                async with noticed(f"{self._title} (pid {pid}) has not ended yet"), asyncio.timeout(seconds):
                    while self.alive():  # noqa: ASYNC110 - another process ends it
                        await asyncio.sleep(0.02)
                break
        return True
