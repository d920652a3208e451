"""The test kit: scripted models behind HTTP, a worker process that calls them, and `assert_rubric`.

    models = ScriptedModels(drafts=["Frogs.", "Frogs in May."], verdicts=[{"k1": "name the month"}, {}])
    async with worker(models) as served:
        result = await served.client.invoke("frogs-1", "Write.", start={"rubric": ..., "generator": {"model": MODEL}, ...})

Nothing here imports pytest, and the worker never runs in the test's process. The worker needs the extras `openai` and `embedded`.
"""

import asyncio
import contextlib
import json
import os
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Literal, Self, cast
from uuid import uuid4

from pydantic import JsonValue

from gradeloop.client.client import GradingClient
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.transcript import AgentRun, output_run
from gradeloop.errors import InvalidRequest, JudgeFailed, WorkerFailed
from gradeloop.files.rubric import require_files
from gradeloop.grading.prompts import read_prompt_text
from gradeloop.judges.client import served_judge
from gradeloop.judges.contract import JudgeConfig, JudgeResult, parse_judge
from gradeloop.judges.sources import with_model
from gradeloop.settings.paths import state_folder
from gradeloop.settings.trust import find_config_file
from gradeloop.temporal.codec import STORAGE_VARIABLE
from gradeloop.temporal.connect import PROVIDER_VARIABLES, Connection, WorkerSpec, launch, storage_url, until_ready
from gradeloop.temporal.process import DetachedProcess
from gradeloop.temporal.server import NAMESPACE, ensure_server, stop_server
from gradeloop.text import one_line, without_commands

MODEL = "openai_compatible:scripted"
"""A model that the scripted server answers for, as generator and as grader; any other name of that provider does too."""

GATE_SECONDS = 60.0
"""Seconds that a test waits for a call to reach a gate."""

IDLE_SECONDS = 3600.0
"""Seconds that a worker whose test process was killed lives on without an open workflow."""

CONCURRENCY = 16
"""Judgements that one call has in flight at once."""

STOP_SECONDS = 40.0
"""Seconds that a restart waits for the calls in flight: above the 30 seconds that the worker gives them."""

Role = Literal["generator", "grader"]


@dataclass(frozen=True)
class ToolUse:
    """A reply that calls a tool of the worker; the next call of the conversation holds its result."""

    name: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict)


Reply = str | Mapping[str, JsonValue] | ToolUse
"""A model's reply: a text, sent as it is; a tool call; or a verdict.

A verdict maps the key of every criterion that fails to its gap, `k1` for the first, so that `{}` passes all; with `unjudgeable` it is the
whole answer.
"""


@dataclass(frozen=True)
class ModelCall:
    """A call that a model received."""

    role: Role
    iteration: int
    """The number of the draft in its thread, from 0; a grader's call has the number of the draft that it judges."""
    step: int
    """The number of turns of tool calls or refused answers before this call in the same conversation."""
    messages: tuple[Mapping[str, Any], ...]
    """The messages as the Chat Completions protocol sends them, the system prompt first."""
    keys: tuple[str, ...] = ()
    """The keys of the criteria that a grader judges: `k1` is the first of its call group."""
    draft: str | None = None
    """The draft that a grader judges; None for a generator, and for a judge with an output schema."""
    tag: str | None = None
    """The name of the tags around a grader's answer; None where a schema binds it."""


Replies = Sequence[Reply] | Callable[[ModelCall], Reply]
"""A reply for every draft of a thread, of which the last one repeats, or a function of the call."""


class Gate:
    """A gate at which calls wait until the test opens it."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    async def reached(self) -> None:
        """Wait until a call waits here.

        Raises:
            TimeoutError: No call came within 60 seconds.
        """
        if not await asyncio.to_thread(self._reached.wait, GATE_SECONDS):
            raise TimeoutError(f"no call reached the gate within {GATE_SECONDS:.0f} s")

    def open(self) -> None:
        """Let every call pass, now and later."""
        self._opened.set()

    def wait(self) -> None:
        """Wait here, as a call does."""
        self._reached.set()
        self._opened.wait()


@dataclass(frozen=True)
class _Fault:
    role: Role | None
    status: int | None
    retry_after: float | None


class ScriptedModels:
    """Models behind a local HTTP server that speaks Chat Completions; the server runs inside `with models:` and inside `worker(models)`.

    A reply depends only on the call's place in its thread, so that a repeated call gets the same reply.
    """

    def __init__(self, drafts: Replies = ("A draft.",), verdicts: Replies = ({},)) -> None:
        self._lock = threading.Lock()
        self._users, self._server = 0, cast("_Server | None", None)
        self._gates: list[tuple[Role, int | None, Gate]] = []
        self.script(drafts, verdicts)

    def script(self, drafts: Replies = ("A draft.",), verdicts: Replies = ({},)) -> None:
        """Replace the replies; recorded calls are dropped, gates open, and faults are withdrawn.

        Args:
            drafts: The generator's replies.
            verdicts: The grader's replies.

        Raises:
            InvalidRequest: A list is empty.
        """
        for name, replies in (("drafts", drafts), ("verdicts", verdicts)):
            if not callable(replies) and not replies:
                raise InvalidRequest(f"{name} is empty; give at least one reply")
        self._open_gates()
        self._replies: dict[Role, Replies] = {"generator": drafts, "grader": verdicts}
        self._gates, self._faults = [], list[_Fault]()
        self._calls: list[ModelCall] = []

    @property
    def calls(self) -> tuple[ModelCall, ...]:
        """The calls so far, in their order, with those that waited at a gate or failed."""
        return tuple(self._calls)

    @property
    def url(self) -> str:
        """The base URL of the running server, `http://127.0.0.1:PORT/v1`."""
        if self._server is None:
            raise InvalidRequest("the scripted models do not run; use them inside `with models:` or `worker(models)`")
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def gate(self, role: Role, iteration: int | None = None) -> Gate:
        """Make the calls of a role, of one iteration or of all, wait until the gate is opened."""
        self._gates.append((role, iteration, gate := Gate()))
        return gate

    def fail(self, role: Role | None = None, *, times: int = 1, status: int | None = 500, retry_after: float | None = None) -> None:
        """Make the next calls fail.

        Args:
            role: The role whose calls fail; any by default.
            times: The number of calls.
            status: The HTTP status, for example 429 for a rate limit; None drops the connection without an answer.
            retry_after: Seconds that the header `Retry-After` names.
        """
        self._faults += [_Fault(role, status, retry_after)] * times

    def __enter__(self) -> Self:
        self._users += 1
        if self._server is None:
            self._server = _Server(self)
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._users -= 1
        if self._users == 0 and self._server is not None:
            self._open_gates()
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _open_gates(self) -> None:
        for *_, gate in self._gates:
            gate.open()

    def answer(self, body: Mapping[str, Any]) -> "Answer | None":
        """Return the server's answer to a request's body; None drops the connection."""
        call = _read_call(body)
        self._calls.append(call)
        for role, iteration, gate in tuple(self._gates):
            if role == call.role and iteration in {None, call.iteration}:
                gate.wait()
        with self._lock:
            fault = next((fault for fault in self._faults if fault.role in {None, call.role}), None)
            if fault is not None:
                self._faults.remove(fault)
        if fault is not None:
            return _failure(fault.status, f"status {fault.status}, as the test asked for", fault.retry_after) if fault.status else None
        try:
            replies = self._replies[call.role]
            reply = replies(call) if callable(replies) else replies[min(call.iteration, len(replies) - 1)]
            return Answer(200, _completion(reply, call, body["model"]))
        except Exception as error:  # noqa: BLE001 - whatever the test's function raises; a dropped connection would be retried
            return _failure(400, f"the test's reply failed: {error!r}")


@dataclass(frozen=True)
class Answer:
    """An HTTP answer of the scripted server."""

    status: int
    body: Mapping[str, Any]
    retry_after: float | None = None
    """The header `Retry-After`, in seconds."""


class _Server(ThreadingHTTPServer):
    """Serves every connection in a thread of its own, so that a test's event loop may be busy or waiting at a gate."""

    block_on_close = False

    def __init__(self, models: ScriptedModels) -> None:
        self.models = models
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base class has it
        """Ignore callers that hung up: a worker that was killed, or a call that was cancelled."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        """Answer a call."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = self.path == "/v1/chat/completions"
        text = f"{self.path} is not served; use a model of the provider 'openai_compatible', for example {MODEL!r}"
        answer = cast("_Server", self.server).models.answer(body) if known else _failure(404, text)
        if answer is None:
            self.close_connection = True
            return
        written = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        if answer.retry_after is not None:
            self.send_header("Retry-After", str(answer.retry_after))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Write no log."""


_QUESTIONS = [
    re.compile("^" + re.sub(r"\\{(\w+)\\}", r"(?P<\1>.*?)", re.escape(read_prompt_text(name))) + "$", re.MULTILINE)
    for name in ("question", "question_short")
]
"""The question at the end of a grader's prompt; no draft can forge it, because records are one line of JSON each."""

_SCHEMA_JUDGE = read_prompt_text("judge_boundary")


def _read_call(body: Mapping[str, Any]) -> ModelCall:
    """Read the call's role and its place in its thread from the conversation."""
    messages = tuple(body["messages"])
    # The protocol says neither who is asked nor where in a thread. Both are read from the prompt: the newest
    # question is the one that is asked, and the records before it have the drafts so far.
    texts = [str(message.get("content") or "") for message in messages]
    own = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    found = [(at, question) for at, text in enumerate(texts) for form in _QUESTIONS for question in form.finditer(text)]
    if not found:
        drafts = [at for at in own if not messages[at].get("tool_calls")]
        if "response_format" in body or _SCHEMA_JUDGE in texts[0]:
            return ModelCall("grader", 0, len(own), messages)
        return ModelCall("generator", len(drafts), sum(at > max(drafts, default=-1) for at in own), messages)
    at, question = found[-1]
    lines = "\n".join(texts[: at + 1]).splitlines()
    records = [json.loads(line) for line in lines if line.startswith('{"record": ')]
    earlier = records[: int(question["draft"])]
    draft = next((str(record["text"]) for record in records if record["record"] == int(question["draft"])), None)
    tag = re.search(r"<(verdict-\w+)>", question["tag"])
    return ModelCall(
        role="grader",
        iteration=sum(record["role"] == "assistant" and record["type"] == "text" for record in earlier),
        step=sum(place > at for place in own),
        messages=messages,
        keys=tuple(question["keys"].split(", ")),
        draft=draft,
        tag=tag[1] if tag else None,
    )


def _completion(reply: Reply, call: ModelCall, model: str) -> dict[str, Any]:
    """Return a reply as the protocol's completion."""
    message: dict[str, Any] = {"role": "assistant", "content": reply}
    if isinstance(reply, ToolUse):
        function = {"name": reply.name, "arguments": json.dumps(dict(reply.arguments))}
        tool_call = {"id": f"call_{call.iteration}_{call.step}", "type": "function", "function": function}
        message |= {"content": None, "tool_calls": [tool_call]}
    elif not isinstance(reply, str):
        text = json.dumps(dict(reply) if "unjudgeable" in reply else _verdict(reply, call))
        message["content"] = f"<{call.tag}>\n{text}\n</{call.tag}>" if call.tag else text
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return {"id": "scripted", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": usage}


def _verdict(gaps: Mapping[str, JsonValue], call: ModelCall) -> dict[str, Any]:
    if unknown := [key for key in gaps if key not in call.keys]:
        raise InvalidRequest(f"the grader is not asked for {unknown[0]!r}; it is asked for {', '.join(call.keys)}")
    rows = {key: {"reason": "as scripted", "passed": key not in gaps, "gap": gaps.get(key, "")} for key in call.keys}
    return rows | {"unjudgeable": "", "summary": "as scripted"}


def _failure(status: int, text: str, retry_after: float | None = None) -> Answer:
    return Answer(status, {"error": {"message": text, "type": "scripted", "code": None}}, retry_after)


@asynccontextmanager
async def temporal_server() -> AsyncIterator[Connection]:
    """Run an embedded Temporal server with time skipping on an empty database, for as many workers as use it.

    Meanwhile TEMPORAL_ADDRESS and GRADELOOP_STATE_DIR name it in this process: `GradingClient.connect()` and `assert_rubric` find it.

    Raises:
        ServerUnreachable: The server is not installed, or does not start.
    """
    with TemporaryDirectory(prefix="gradeloop-", ignore_cleanup_errors=True) as folder, _variables(GRADELOOP_STATE_DIR=folder):
        server = await ensure_server(time_skipping=True)
        try:
            with _variables(TEMPORAL_ADDRESS=server.address):
                yield Connection(server.address, NAMESPACE, embedded=True)
        finally:
            with _variables(GRADELOOP_STATE_DIR=folder):  # a fixture may have changed it since
                await stop_server()


@contextlib.contextmanager
def _variables(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class WorkerProcess:
    """A worker in a process of its own, on its own task queue."""

    def __init__(self, client: GradingClient, queue: str, spec: WorkerSpec, environment: Mapping[str, str], folder: Path) -> None:
        self.client = client
        """A client of the worker's server and queue; `worker()` closes it."""
        self.queue = queue
        self._spec = spec
        self._environment = environment
        self._process = DetachedProcess(folder, queue, WorkerFailed, "the worker")

    async def kill(self) -> None:
        """End the process at once, as a crash would; the next one repeats its calls in flight, after some 15 seconds."""
        await self._process.stop(0)

    async def restart(self) -> None:
        """Stop the process after its calls in flight, and start it again.

        Raises:
            WorkerFailed: The process does not start.
        """
        await self._process.stop(STOP_SECONDS)
        launch(self._process, self.queue, self._spec, self._environment, {}, IDLE_SECONDS)
        await until_ready(self._process)


@asynccontextmanager
async def worker(
    models: ScriptedModels,
    *,
    tools: Sequence[Path | str] = (),
    server: Connection | None = None,
    queue: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[WorkerProcess]:
    """Run a worker whose `openai_compatible` models are scripted, in a process of its own.

    No provider key and no `GRADELOOP_` variable of this process reaches it.

    Args:
        models: The scripts of its models.
        tools: Python files of tools, evidence tools and checks.
        server: The Temporal server, for example from `temporal_server()`; by default the worker gets one of its own.
        queue: The task queue, for a service that names one; a new one by default.
        environment: More variables for the process.

    Raises:
        InvalidRequest: A file is missing, or the worker refuses it.
        WorkerFailed: The process does not start.
    """
    spec = WorkerSpec(tools=require_files([Path(file) for file in tools], "tools"))
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(temporal_server()) if server is None else server
        folder, queue = stack.enter_context(TemporaryDirectory(prefix="gradeloop-")), queue or f"test-{uuid4()}"
        stack.enter_context(models)
        client = await stack.enter_async_context(GradingClient.connect(connection, task_queue=queue))
        process = WorkerProcess(client, queue, spec, _worker_environment(models, connection) | dict(environment or {}), Path(folder))
        stack.push_async_callback(process.kill)
        await process.restart()
        yield process


def _worker_environment(models: ScriptedModels, connection: Connection) -> dict[str, str]:
    private = (*PROVIDER_VARIABLES, "GRADELOOP_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(private)}
    storage = storage_url(connection)
    return plain | {
        "GRADELOOP_STATE_DIR": str(state_folder()),
        "TEMPORAL_ADDRESS": connection.address,
        "TEMPORAL_NAMESPACE": connection.namespace,
        "OPENAI_BASE_URL": models.url,
        **({STORAGE_VARIABLE: storage} if storage else {}),
    }


def assert_rubric(
    output: str,
    rubric: Rubric | Mapping[str, Any] | str,
    *,
    request: str | None = None,
    grader: str | None = None,
    tools: Sequence[Path | str] = (),
    scripted: Path | str | None = None,
) -> JudgeResult:
    """Judge an output, and return the judgement if it meets the rubric.

    The same output is judged by the same rubric once: a test that runs again reads the first judgement, as long as its history is kept. A
    server and a worker are found or started, as `gradeloop judge` does.

    Args:
        output: The text to judge.
        rubric: The criteria, as text or object.
        request: The request that the output answers, if the judge should know it.
        grader: The model that judges, written `provider:model`; by default the first of a table for which a key is set.
        tools: Python files of evidence tools and checks.
        scripted: A file of replies for the provider `scripted`.

    Raises:
        AssertionError: The output does not meet the rubric; the message has every criterion that fails, with its gap.
        JudgeFailed: There is no verdict: the judge failed, its answer was invalid, or the rubric cannot be judged.
        InvalidRequest: Rubric, model or files are refused.
    """
    __tracebackhide__ = True
    (result,) = judge_outputs([output], rubric, request=request, grader=grader, tools=tools, scripted=scripted)
    require_satisfied(result)
    return result


def judge_outputs(
    outputs: Sequence[str],
    rubric: Rubric | Mapping[str, Any] | str,
    *,
    request: str | None = None,
    grader: str | None = None,
    tools: Sequence[Path | str] = (),
    scripted: Path | str | None = None,
) -> list[JudgeResult]:
    """Judge outputs at once, through one worker, and return the judgements in their order, whatever they say.

    Args:
        outputs: The texts to judge.
        rubric: The criteria, as text or object.
        request: The request that the outputs answer, if the judge should know it.
        grader: The model that judges, as for `assert_rubric`.
        tools: Python files of evidence tools and checks.
        scripted: A file of replies for the provider `scripted`.

    Raises:
        InvalidRequest: Rubric, model or files are refused.
    """
    spec = WorkerSpec(
        tools=require_files([Path(file) for file in tools], "tools"),
        scripted=Path(scripted) if scripted else None,
        config=find_config_file((), os.environ),
    )
    given = dict(rubric) if isinstance(rubric, Mapping) else rubric
    config, _ = with_model(parse_judge({"rubric": given}), grader, scripted=scripted is not None)
    runs = [output_run(output, request) for output in outputs]
    with ThreadPoolExecutor(1) as alone:  # a test may have an event loop of its own
        return alone.submit(asyncio.run, _judge(config, runs, spec)).result()


def require_satisfied(result: JudgeResult) -> None:
    """Raise unless a judgement says that the output meets its rubric.

    Raises:
        AssertionError: It does not; the message has every criterion that fails, with its gap.
        JudgeFailed: There is no verdict.
    """
    __tracebackhide__ = True
    if result.failed:
        raise JudgeFailed(f"there is no verdict: {result.result_metadata.get('reason')}")
    if result.output["result"] == "failed":
        raise JudgeFailed(f"the rubric cannot be judged: {result.output['explanation']}")
    if result.output["result"] != "satisfied":
        raise AssertionError(_describe_failure(result))


async def _judge(config: JudgeConfig, runs: Sequence[AgentRun], spec: WorkerSpec) -> list[JudgeResult]:
    judge, places = (await served_judge(config, spec))[0], asyncio.Semaphore(CONCURRENCY)

    async def judged(run: AgentRun) -> JudgeResult:
        async with places:
            return await judge(run)

    return await asyncio.gather(*map(judged, runs))


def _describe_failure(result: JudgeResult) -> str:
    """Return a message with a line for every criterion that fails, and the ids of those that pass."""
    rows: Any = result.output["criteria"]
    failing = [row for row in rows if not row["passed"]]
    lines = [f"  ✗ {row['id']}: {one_line(row['name'])}\n    {one_line(row.get('gap') or row['reason'])}" for row in failing]
    passing = [row["id"] for row in rows if row["passed"]]
    score = result.output.get("score")
    head = f"the output does not meet its rubric{f' (score {score:.2f})' if isinstance(score, float) else ''}:"
    return without_commands("\n".join([head, *lines, *([f"  ✓ {', '.join(passing)}"] if passing else [])]))
