"""A process that callers ask through, and that can be killed: it reads questions as lines of JSON and writes the answers."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from typing import Any

from pydantic import BaseModel

from gradeloop import errors
from gradeloop.client.client import GradingClient
from gradeloop.contract.thread import RunResult
from gradeloop.errors import GradeloopError
from gradeloop.temporal.connect import Connection, connect
from rig.processes import Engine


class ClientDied(Exception):
    """The process that was asked through is gone; nobody knows how far the question came."""


class Question(BaseModel):
    """A call of the client: `invoke` or `resume`."""

    number: int
    method: str
    thread: str
    fields: dict[str, Any]


class Answer(BaseModel):
    """The result of a call, or its error."""

    number: int
    result: RunResult | None = None
    error: str = ""
    message: str = ""


class ClientProcess:
    """The process, seen from the storm."""

    def __init__(self, engine: Engine, task_queue: str) -> None:
        self._engine = engine
        self._task_queue = task_queue
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process; questions may be sent from now on."""
        command = (sys.executable, "-m", "lab.storm.client_process", self._engine.address, self._task_queue)
        self._process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=os.environ | {"GRADELOOP_STATE_DIR": str(self._engine.folder)},
            limit=2**24,
        )
        self._listening = asyncio.create_task(self._listen(self._process))

    async def kill(self) -> None:
        """End the process at once; whoever waits for an answer gets none."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()
        if self._listening is not None:
            await self._listening

    async def ask(self, method: str, thread: str, **fields: object) -> RunResult:
        """Have the process call its client, and return the result.

        Raises:
            ClientDied: The process was killed meanwhile.
            GradeloopError: The call failed.
        """
        process, number = self._process, next(self._numbers)
        if process is None or process.stdin is None or self._listening is None or self._listening.done():
            raise ClientDied
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            process.stdin.write(Question(number=number, method=method, thread=thread, fields=fields).model_dump_json().encode() + b"\n")
            answer = await self._asked[number]
        finally:
            self._asked.pop(number, None)
        if answer.result is None:
            raise getattr(errors, answer.error, GradeloopError)(answer.message)
        return answer.result

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ValueError, ConnectionError):
            while process.stdout is not None and (line := await process.stdout.readline()):
                if line.endswith(b"\n"):
                    answer = Answer.model_validate_json(line)
                    if (asked := self._asked.get(answer.number)) is not None and not asked.done():
                        asked.set_result(answer)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ClientDied())


async def serve(address: str, task_queue: str) -> None:
    """Answer the questions that come on the standard input, all at once, until it ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    client = GradingClient(await connect(Connection(address, "default", embedded=True)), task_queue=task_queue)
    answering = set[asyncio.Task[None]]()
    while line := await reader.readline():
        task = asyncio.create_task(_answer(client, Question.model_validate(json.loads(line))))
        answering.add(task)
        task.add_done_callback(answering.discard)
    for task in answering:
        task.cancel()


async def _answer(client: GradingClient, question: Question) -> None:
    answer = Answer(number=question.number)
    try:
        answer.result = await getattr(client, question.method)(question.thread, **question.fields)
    except Exception as error:  # noqa: BLE001 - the caller gets it, whatever it is
        answer.error, answer.message = type(error).__name__, str(error)
    sys.stdout.write(answer.model_dump_json() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:3]))
