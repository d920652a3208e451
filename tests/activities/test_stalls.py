"""Whatever a tool is given, the worker's event loop goes on: each built-in tool with the inputs that take it longest."""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types
import pytest

from activities.tools.base import Tool, ToolContext, tool_of
from activities.tools.registry import TOOLS, build_rows
from gradeloop.batches.case_checks import find
from gradeloop.batches.contract import Case
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.checks import CheckedDraft
from gradeloop.sandbox import processes
from gradeloop.sandbox.code_calls import local_code_sandbox
from gradeloop.settings.worker import WorkerSettings

MIB = 1024 * 1024
STALL_MS = 250.0
PATIENCE_SECONDS = 8.0


@dataclass
class Watch:
    """The longest time for which the event loop did not go on since its process was at work; what others use does not count."""

    longest_ms: float = 0.0


@asynccontextmanager
async def watching() -> AsyncIterator[Watch]:
    """Watch the event loop."""
    watch = Watch()

    async def look() -> None:
        last, used = time.monotonic(), time.process_time()
        while True:
            await asyncio.sleep(0.005)
            now, spent = time.monotonic(), time.process_time()
            watch.longest_ms = max(watch.longest_ms, min(now - last, spent - used) * 1000)
            last, used = now, spent

    task = asyncio.create_task(look())
    await asyncio.sleep(0.02)
    try:
        yield watch
        await asyncio.sleep(0.02)
    finally:
        task.cancel()


WORST: list[tuple[str, str, dict[str, Any], str]] = [
    ("words", "word_count", {}, "a " * (MIB // 2)),
    ("one long word", "count_tokens", {}, "a" * MIB),
    ("blanks", "count_tokens", {}, " " * MIB),
    ("many words", "count_tokens", {}, "hello world " * (MIB // 12)),
    ("a large automaton", "regex_check", {"pattern": "(?:(?:a?){30}){30}$|(a{1000}|b{1000}){1,1}c"}, "a" * MIB),
    ("a long pattern", "regex_check", {"pattern": ("(?:[a-z0-9]{0,100}[^q]{0,9}){0,1}" * 297) + "z$"}, "ab9" * (MIB // 3)),
    ("a pattern that is too large", "regex_check", {"pattern": "(?i)[\\p{L}\\p{N}]{200}" * 300 + "z"}, "ab9" * (MIB // 3)),
    ("fences", "regex_check", {"pattern": "z", "extract": "code"}, "```\n" * (MIB // 4)),
    ("equal items", "json_schema_check", {"schema": {"uniqueItems": True}}, json.dumps([[]] * 250_000)),
    ("many patterns", "json_schema_check",
     {"schema": {"patternProperties": {f"a{k}": {} for k in range(300)}, "additionalProperties": False}},
     json.dumps({str(k): 1 for k in range(60_000)})),
    ("a large schema", "json_schema_check", {"schema": {"properties": {str(k): {"type": "integer"} for k in range(20_000)}}}, "{}"),
    ("unevaluated", "json_schema_check", {"schema": {"unevaluatedItems": False, "prefixItems": [{}] * 100}}, json.dumps([1] * 300_000)),
    ("lists in lists", "text_check", {"kind": "contains-json"}, "[1," * 900 + "1," * (MIB // 2)),
    ("objects in objects", "text_check", {"kind": "contains-json"}, '{"a":' * 900 + "[" + "1," * (MIB // 2)),
    ("many texts", "text_check", {"kind": "contains-all", "value": ",".join(["a" * 50 + "b"] * 1000)}, "a" * MIB),
    ("lists that are equal", "text_check", {"kind": "equals", "value": [1] * 1000}, "[" + "1," * (MIB // 2 - 2) + "1]"),
    ("a value of 1 GB", "run_python", {"code": "['a' * 1_000_000] * 1000"}, ""),
    ("a value of 50 MB", "run_python", {"code": "['a' * 1000] * 50_000"}, ""),
    ("a value without end", "run_python", {"code": "a = [1] * 1000\nb = [a] * 1000\nc = [b] * 1000\nc"}, ""),
    ("a deep value", "run_python", {"code": "x = []\nfor _ in range(3000):\n    x = [x]\nx"}, ""),
    ("a long error", "run_python", {"code": "raise ValueError('x' * 10_000_000)"}, ""),
    ("endless output", "run_python", {"code": "while True:\n    print('x' * 1000)"}, ""),
    ("a long snippet", "run_python", {"code": "x = 1\n" * 200_000}, ""),
    ("a suite that prints", "run_pytest", {"files": {"test_a.py": "def test_a():\n    while True:\n        print('x' * 9999)\n"}}, "x"),
    ("a suite that fails often", "run_pytest", {"files": {"test_a.py": (
        "import pytest\n@pytest.mark.parametrize('n', range(1500))\ndef test_a(n):\n    assert 'x' * 100_000 == 1\n"
    )}}, "x = 1"),
    ("an assertion that prints", "code_check", {"language": "python", "code": "while True:\n    print('x' * 9999)"}, "x" * MIB),
    ("a call that nobody knows", "call_check", {"kind": "latency", "value": 1}, "x" * MIB),
    ("a command that prints", "run_command", {"command": "endless"}, "x" * MIB),
    ("a pattern over files", "search_files", {"pattern": "(a|b)*c(x|y)*" + "(a|aa)?" * 1000 + "$"}, ""),
    ("a large file that is binary", "read_file", {"path": "root/binary"}, ""),
    ("a great many files", "list_files", {}, ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    (folder / "long.txt").write_text("a" * (2 * MIB - 1))
    (folder / "lines.txt").write_text("\n" * (2 * MIB - 1))
    with (folder / "binary").open("wb") as file:
        file.truncate(300 * MIB)
    for number in range(5_000):
        (folder / f"{number}").touch()
    return folder


def offered(**settings: Any) -> dict[str, Tool]:
    built, _ = build_rows(ToolContext(WorkerSettings(**settings), local_code_sandbox().choice()))
    return {tool.spec.name: tool for tool in map(tool_of, built)}


async def ended(call: Coroutine[Any, Any, Any]) -> Any:
    """Return what a call returns or raises; one that takes long is given up."""
    try:
        return await asyncio.wait_for(call, PATIENCE_SECONDS)
    except (ValueError, TimeoutError) as error:
        return error


async def longest_stall(call: Callable[[], Coroutine[Any, Any, Any]]) -> float:
    """Return the longest stall of a call in milliseconds: the shortest of three tries, as the tests share their machine."""
    longest = []
    for _ in range(3):
        async with watching() as watch:
            await call()
        longest.append(watch.longest_ms)
        if watch.longest_ms <= STALL_MS:
            break
    return min(longest)


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "arguments", "draft"), [case[1:] for case in WORST], ids=[case[0] for case in WORST])
async def test_no_input_of_a_built_in_tool_holds_the_worker(tool: str, arguments: dict[str, Any], draft: str, root: Path) -> None:
    endless = {"argv": ["/bin/sh", "-c", "while true; do cat draft.txt draft.txt; done"]}
    tools = offered(files={"roots": {"root": root}}, commands={"endless": endless}, sandbox={"program_seconds": 5})
    if tool not in tools:
        pytest.skip(f"{tool} is not offered here")

    assert await longest_stall(lambda: ended(tools[tool].run(arguments, draft))) <= STALL_MS


def test_every_built_in_tool_is_among_them() -> None:
    assert {case[1] for case in WORST} | {"fetch_page", "comparison_check"} == set(TOOLS.rows)  # what is compared is no input of a tool


CHUNKS = b"".join(b"1\r\nx\r\n" for _ in range(MIB))


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """A site of slow pages, in a process of its own."""
    script = Path(__file__).parents[1] / "rig" / "slow_site.py"
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://(\S+:\d+)", process.stdout.readline())
        assert found
        yield found[1]
        process.terminate()


def fetcher(site: str, seconds: float) -> Callable[[str], Coroutine[Any, Any, Any]]:
    tools = offered(fetch={"hosts": [site], "networks": ["127.0.0.0/8"], "seconds": seconds})

    async def fetch(path: str) -> Any:
        return await tools["fetch_page"].run({"url": f"http://{site}{path}"}, "")

    return fetch


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_hundred_slow_pages_hold_nobody_up(site: str) -> None:
    fetch, outcomes = fetcher(site, 1), []

    async def all_pages() -> None:
        outcomes.extend(await asyncio.gather(*(fetch(f"/html/{number}") for number in range(100)), return_exceptions=True))

    assert await longest_stall(all_pages) <= STALL_MS
    assert {type(outcome) for outcome in outcomes} <= {dict, ValueError}
    for outcome in outcomes:
        assert isinstance(outcome, dict) or re.search("cannot be read as text: it |be fetched: (Read|Connect)Timeout", str(outcome))


@pytest.mark.slow
async def test_a_page_that_is_made_to_be_slow_is_given_up(site: str) -> None:
    with pytest.raises(ValueError, match=r"/small cannot be read as text: it took more than 1 seconds"):
        await fetcher(site, 1)("/small")


async def test_a_codec_that_is_slow_is_given_up_too(site: str) -> None:
    with pytest.raises(ValueError, match="cannot be read as text: it took more than 1 seconds"):
        await fetcher(site, 1)("/text?charset=punycode")


@pytest.mark.slow
async def test_a_page_in_a_million_parts_holds_nobody_up() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(CHUNKS)
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await longest_stall(lambda: ended(fetcher(f"127.0.0.1:{port}", 5)("/"))) <= STALL_MS


async def test_a_call_that_is_given_up_ends_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    monkeypatch.setattr(processes, "_idle", [])
    make = processes._Process.__init__

    def counted(process: Any) -> None:
        make(process)
        started.append(process._popen.pid)

    monkeypatch.setattr(processes._Process, "__init__", counted)
    call = asyncio.create_task(offered()["text_check"].run({"kind": "contains-json"}, "[1," * 900 + "1," * (MIB // 2)))
    while not started:
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async with asyncio.timeout(240):
        while psutil.pid_exists(started[0]):
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_call_after_one_that_was_stopped_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"kind": "contains-json"}
    with pytest.raises(processes.FunctionStopped, match="run_text_checks took more than 1 seconds"):
        await processes.await_in_process(
            text_checks(), {"output": "[1," * 900 + "1," * (MIB // 2), "checks": [{"id": "c1", "extract": "text", "arguments": slow}]}, 1
        )

    assert await offered()["word_count"].run({}, "one two") == {"ok": True, "words": 2}


def text_checks() -> Callable[..., Any]:
    from gradeloop.grading.checks import run_text_checks

    return run_text_checks


@pytest.mark.slow
async def test_a_snippet_whose_value_is_larger_than_any_memory_is_a_limit() -> None:
    found = await offered()["run_python"].run({"code": "['a' * 1_000_000] * 100_000"}, "")

    assert (found["status"], found["error"]) in {
        ("limit", "the sandbox was stopped: the snippet's value takes too much time or memory"),
        ("limit", "MemoryError: its value is too large or too deep"),
    }


@pytest.mark.slow
async def test_a_number_of_more_digits_than_python_writes_is_a_value() -> None:
    found = await offered()["run_python"].run({"code": "10 ** 5000"}, "")

    assert found["status"] == "ok"
    assert found["value"].startswith("a int that cannot be shown")


@pytest.mark.slow
async def test_a_batchs_text_checks_hold_nobody_up() -> None:
    check = {"tool": "text_check", "arguments": {"kind": "contains-json"}}
    rubric = Rubric.model_validate({"criteria": [{"id": "c1", "description": "it has JSON", "check": check}]})
    case = Case.model_construct(id="a", rubric=rubric)

    assert (
        await longest_stall(lambda: ended(find(case, CheckedDraft("[1," * 900 + "1," * (MIB // 2)), ToolContext(WorkerSettings()).code)))
        <= STALL_MS
    )
