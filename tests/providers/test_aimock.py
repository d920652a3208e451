"""The same story against a mock that others wrote: npm's @copilotkit/aimock, where Node is."""

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.providers.test_protocols import PROTOCOLS, STORY, TOOLS, outcome_of, reached, task
from tests.rig.cli import CommandLine
from tests.rig.model_server import Reply

pytestmark = pytest.mark.slow

PACKAGE = "@copilotkit/aimock@1.43.0"

INSTALL_SECONDS = 100


@pytest.fixture(scope="module")
def aimock(pytestconfig: pytest.Config) -> Path:
    """Return the mock's program, installed once into pytest's cache, or skip where it cannot be had."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node and npm are not installed, and aimock is a Node program")
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("aimock")
    program = folder / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    if not program.exists():
        command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--no-save", "--fetch-retries=0", PACKAGE]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"npm cannot install {PACKAGE} here: {error}")
    return program


@pytest.fixture(scope="module")
def gradeloop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Return the command in a folder with a file of tools."""
    command = CommandLine(tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("files"))
    (command.folder / "tools.py").write_text(TOOLS)
    yield command
    command.end()


def fixtures() -> list[dict[str, Any]]:
    """Return the story in aimock's words: the turn counts assistant messages, a judge of the second draft is known by its record."""
    (first, second), judge = STORY["writer"], STORY["judge"]
    writer = [_fixture("writer", {"turnIndex": 0}, first), _fixture("writer", {"turnIndex": 1}, second)]
    told_apart = {"userMessage": "judged is record 3"}
    later = [_fixture("judge", {"turnIndex": turn} | told_apart, reply) for turn, reply in enumerate(judge[2:])]
    return writer + later + [_fixture("judge", {"turnIndex": turn}, reply) for turn, reply in enumerate(judge[:2])]


def _fixture(model: str, match: dict[str, Any], reply: Reply) -> dict[str, Any]:
    calls = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in reply.calls]
    response = ({"content": reply.text} if reply.text else {}) | ({"toolCalls": calls} if calls else {})
    usage = {"prompt_tokens": 120, "completion_tokens": 10, "total_tokens": 130, "input_tokens": 120, "output_tokens": 10}
    return {"match": {"model": model} | match, "response": response | {"usage": usage}}


@contextmanager
def serving(program: Path, folder: Path) -> Iterator[str]:
    """Serve the story on a free port."""
    (folder / "fixtures.json").write_text(json.dumps({"fixtures": fixtures()}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["node", str(program), "-p", str(port), "-f", str(folder / "fixtures.json"), "--validate-on-load", "--strict"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("aimock did not start within 15 s")


def test_aimock_gives_the_same_result_over_three_protocols(aimock: Path, gradeloop: CommandLine, tmp_path: Path) -> None:
    results = []
    for provider in PROTOCOLS:
        with serving(aimock, tmp_path) as url:
            config, variables = reached(provider, url)
            results.append(outcome_of(gradeloop("run", task(gradeloop, provider, config), "--json", **variables)))

    assert results[0] == results[1] == results[2]
    assert results[0]["results"] == ["needs_revision", "satisfied"]
    assert results[0]["output"] == "spring is\nhere"
    assert results[0]["rows"] == [[("c1", False, "it has one line"), ("c2", True, None)], [("c1", True, None), ("c2", True, None)]]
    assert results[0]["usage"]["calls"] == 6


CHAOS = {"malformedRate": 0.1, "rateLimitRate": 0.1, "disconnectRate": 0.05}
"""How often aimock's chaos mode spoils a reply."""


@pytest.mark.parametrize("provider", PROTOCOLS)
def test_chaos_is_ridden_out_and_never_becomes_a_verdict(aimock: Path, gradeloop: CommandLine, tmp_path: Path, provider: str) -> None:
    with serving(aimock, tmp_path) as url:
        config, variables = reached(provider, url)
        chaos = urllib.request.Request(
            f"{url}/__aimock/chaos", data=json.dumps(CHAOS).encode(), headers={"content-type": "application/json"}, method="POST"
        )
        urllib.request.urlopen(chaos, timeout=240).close()
        done = gradeloop("run", task(gradeloop, provider, config), "--json", **variables)

    result = done.result
    results = [evaluation["result"] for evaluation in result["evaluations"]]
    assert (result["status"], results) in (
        ("satisfied", ["needs_revision", "satisfied"]),
        ("grader_error", ["needs_revision", "grader_error"]),
        ("grader_error", ["grader_error"]),
        ("interrupted", ["needs_revision"]),
        ("interrupted", []),
    )
    assert result["usage"]["attempts"] >= result["usage"]["calls"]
