"""A worker's settings: flags before variables before the file, paths counted from the file, mistakes told by their place."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from gradeloop.client.client import GradingClient
from gradeloop.errors import InvalidRequest
from gradeloop.settings.trust import ConfigFile, find_config_file
from gradeloop.settings.worker import TunerSettings, load_settings
from gradeloop.temporal.server import ServerInfo
from tests.rig.threads import draft, request, serving, story
from tests.temporal.test_worker import WORKER, started, until_ready


def written(folder: Path, text: str) -> list[str]:
    """Return the flags that name a file of these settings."""
    (folder / "gradeloop.toml").write_text(text)
    return ["--config", str(folder / "gradeloop.toml")]


def test_flags_come_before_variables_before_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = written(tmp_path, 'task_queue = "file"\nmax_cached_workflows = 5\n[sandbox]\nseconds = 3\nmemory_mib = 128\n')
    monkeypatch.setenv("GRADELOOP_SANDBOX__SECONDS", "4")
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", "variable")

    settings = load_settings([*flags, "--task-queue", "flag"])

    assert (settings.task_queue, settings.max_cached_workflows) == ("flag", 5)
    assert (settings.sandbox.seconds, settings.sandbox.memory_mib) == (4, 128)
    assert settings.config == tmp_path / "gradeloop.toml"


def test_the_wait_for_a_provider_that_is_away_is_a_setting_of_two_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = written(tmp_path, "outage_timeout = 60\n")

    assert load_settings([]).outage_timeout == 7200
    assert load_settings(flags).outage_timeout == 60

    monkeypatch.setenv("GRADELOOP_OUTAGE_TIMEOUT", "70")

    assert load_settings(flags).outage_timeout == 70
    assert load_settings([*flags, "--outage-timeout", "80"]).outage_timeout == 80
    for wrong in ("0", "604801", "nan"):
        with pytest.raises(InvalidRequest, match="outage_timeout: "):
            load_settings(["--outage-timeout", wrong])


def test_relative_paths_are_counted_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    flags = written(tmp_path, 'tools = ["tools.py", "/abs/tools.py"]\n[files.roots]\ndocs = "docs"\n[pytest.suites]\ns = "."\n')

    settings = load_settings(flags)

    assert settings.tools == [tmp_path / "tools.py", Path("/abs/tools.py")]
    assert settings.files.roots == {"docs": tmp_path / "docs"}
    assert settings.pytest.suites == {"s": tmp_path}


def test_the_files_of_tools_come_together(tmp_path: Path) -> None:
    flags = written(tmp_path, 'tools = ["shared.py", "both.py"]\n')

    settings = load_settings([*flags, "--tools", "own.py", "--tools", str(tmp_path / "both.py")])

    assert settings.tools == [tmp_path / "shared.py", tmp_path / "both.py", Path("own.py")]


def test_the_file_is_the_one_in_the_current_folder_unless_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert find_config_file((), {}) is None
    (tmp_path / "gradeloop.toml").write_text("")
    (tmp_path / "other.toml").write_text("")
    assert find_config_file((), {}) == ConfigFile(tmp_path / "gradeloop.toml", named=False)
    assert find_config_file(("--config=other.toml",), {}) == ConfigFile(tmp_path / "other.toml", named=True)
    assert find_config_file((), {"GRADELOOP_CONFIG": "other.toml"}) == ConfigFile(tmp_path / "other.toml", named=True)
    with pytest.raises(InvalidRequest, match=r"the settings file 'absent\.toml' does not exist; correct --config or GRADELOOP_CONFIG"):
        find_config_file(("--config", "absent.toml"), {})


def test_a_setting_that_does_not_fit_is_told_by_its_place(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("sandbx = 1", "unknown key 'sandbx'. Did you mean 'sandbox'?"),
        ("[sandbox]\nsecond = 3", "sandbox: unknown key 'second'. Did you mean 'seconds'?"),
        ("[sandbox]\nseconds = 300", "sandbox.seconds: Input should be less than or equal to 100, got '300'"),
        ("[sandbox]\nuse = 'docker'", "sandbox.use: Input should be 'auto', 'monty', 'bubblewrap' or 'landlock', got 'docker'"),
        ("[files.roots]\na = 'nope'", "is not a folder; correct the path"),
        ("[files.roots]\n'a/b' = '.'", "'a/b' is not a name of a root"),
        ("[commands.x]\nargv = ['nope']", "commands.x: argv: there is no program 'nope' on this machine"),
        ("[commands.x]\nargv = []", "commands.x.argv: Tuple should have at least 1 item"),
        ("[fetch]\nnetworks = ['10.0.0.0/99']", "fetch.networks[0]"),
        ("[pytest.suites]\na = 'nope'", "is not a folder; correct the path"),
        ("[mcp.x]\ntools = ['a']", "mcp.x: give either command or url"),
        ("[mcp.x]\nurl = 'http://x'\ntools = []", "mcp.x.tools: Tuple should have at least 1 item"),
        ("[mcp.x]\nurl = 'http://x'\ntools = ['a']\nwrites = ['b']", "mcp.x: writes: 'b' is not among tools"),
        ("[mcp.'a b']\nurl = 'http://x'\ntools = ['a']", "mcp.a b"),
        ("needs_approval = ['a b']", "needs_approval[0]: String should match pattern"),
        ("role = 'judge'", "role: Input should be 'all', 'loop', 'models', 'evidence' or 'receiver', got 'judge'"),
        ("x = [", "Invalid value"),
    ]
    for text, expected in rows:
        with subtests.test(text=text):
            with pytest.raises(InvalidRequest) as caught:
                load_settings(written(tmp_path, text))
            assert expected in str(caught.value)


TOOLS = '''
import os
import signal


def keys() -> str:
    """Tell which keys are there."""
    return " ".join(sorted(name for name in os.environ if name.endswith("_API_KEY"))) or "none"


def fatal() -> str:
    """Kill the process that it runs in."""
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


fatal.repeatable = False
'''


def replies(tool: str) -> str:
    """Return a script in which the grader calls a tool and then is content."""
    verdict = {"k1": {"reason": "r", "passed": True, "gap": ""}, "unjudgeable": ""}
    script: list[dict[str, Any]] = [
        {"role": "generator", "text": "a draft"},
        {"role": "grader", "tool_calls": [{"name": tool}]},
        {"role": "grader", "step": 1, "verdict": verdict},
    ]
    return json.dumps({"replies": script})


async def worker(server: ServerInfo, folder: Path, queue: str, role: str, tool: str, **variables: str) -> asyncio.subprocess.Process:
    """Start a worker of a role, and wait until it serves."""
    (folder / "tools.py").write_text(TOOLS)
    (folder / "replies.yaml").write_text(replies(tool))
    ready = folder / f"{role}-{uuid4().hex[:6]}.ready"
    flags = ["--task-queue", queue, "--role", role, "--tools", str(folder / "tools.py"), "--ready-file", str(ready)]
    process = await started(server, *flags, "--scripted", str(folder / "replies.yaml"), **variables)
    assert (await asyncio.wait_for(until_ready(ready), 240))["ok"] is True
    return process


async def told_of(client: Client, thread: Any) -> tuple[str, list[str]]:
    """Return what the grader was told of its tool, and the activities that were made."""
    made = await story(thread)
    grades = [result for result in made if result.type == "grade"]
    return grades[-1].payload["scratch"]["tail"][-1]["content"], [result.type for result in made]


def asking(tool: str) -> dict[str, Any]:
    """Return a request whose grader has a tool."""
    argument = request("- x")
    argument["grader"]["tools"] = [tool]
    return argument


@pytest.mark.slow
async def test_three_roles_in_three_processes_serve_a_thread_and_the_evidence_worker_has_no_keys(
    client: Client, temporal_server: ServerInfo, tmp_path: Path
) -> None:
    queue, key = f"roles-{uuid4()}", {"OPENAI_API_KEY": "sk-canary"}
    processes = [await worker(temporal_server, tmp_path, queue, role, "keys", **key) for role in ("loop", "models", "evidence")]
    thread = await client.start_workflow("GradingThread", asking("keys"), id=f"thread-{uuid4()}", task_queue=queue)
    result = await asyncio.wait_for(thread.result(), 240)
    answer, made = await told_of(client, thread)
    history = await thread.fetch_history()
    for process in processes:
        process.send_signal(signal.SIGTERM)
    logs = [(await asyncio.wait_for(process.communicate(), 240))[1].decode() for process in processes]

    queues = {
        event.activity_task_scheduled_event_attributes.activity_type.name: event.activity_task_scheduled_event_attributes.task_queue.name
        for event in history.events
        if event.activity_task_scheduled_event_attributes.activity_type.name
    }
    assert result["status"] == "satisfied"
    assert (answer, made) == ("none", ["generate", "grade", "tool.keys", "grade"])
    assert queues == {"generate": queue, "grade": queue, "tool.keys": f"{queue}-evidence"}
    assert "OPENAI_API_KEY is set; a worker of role evidence does without it" in logs[2]
    assert "sk-canary" not in "".join(logs)


@pytest.mark.slow
async def test_a_tool_that_kills_its_own_process_has_an_end_once_a_worker_is_there_again(
    client: Client, temporal_server: ServerInfo, tmp_path: Path
) -> None:
    queue = f"fatal-{uuid4()}"
    first = await worker(temporal_server, tmp_path, queue, "all", "fatal")
    thread = await client.start_workflow("GradingThread", asking("fatal"), id=f"thread-{uuid4()}", task_queue=queue)
    await asyncio.wait_for(first.communicate(), 240)
    second = await worker(temporal_server, tmp_path, queue, "all", "fatal")
    result = await asyncio.wait_for(thread.result(), 240)
    answer, made = await told_of(client, thread)
    second.send_signal(signal.SIGTERM)
    await asyncio.wait_for(second.communicate(), 240)

    assert first.returncode == -signal.SIGKILL
    assert (result["status"], made) == ("satisfied", ["generate", "grade", "tool.fatal", "grade"])
    assert answer.startswith("uncertain: fatal was begun and its end is not known; it may have had its effect")


@pytest.mark.slow
async def test_a_worker_says_what_is_in_force(tmp_path: Path) -> None:
    flags = written(tmp_path, "[sandbox]\nseconds = 3\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), *flags, "--examine", "machine", env={**os.environ}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 240)

    document = json.loads(out)["evidence"]
    assert (document["config"], document["limits"]["seconds"]) == (str(tmp_path / "gradeloop.toml"), 3)
    assert {sandbox["name"] for sandbox in document["sandboxes"]} == {"monty", "bubblewrap", "landlock"}


@pytest.mark.slow
async def test_a_worker_says_in_its_log_that_a_sandbox_fails_and_is_replaced(temporal_server: ServerInfo, tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: no namespaces here' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    process = await worker(temporal_server, tmp_path, f"fails-{uuid4()}", "all", "keys", PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    process.send_signal(signal.SIGTERM)
    out, err = await asyncio.wait_for(process.communicate(), 240)

    said = ((out or b"") + (err or b"")).decode()
    assert "the sandbox bubblewrap is there, but fails its self-test: " in said
    assert "no namespaces here" in said


@pytest.mark.parametrize("flag", [("--deployment", "grader"), ("--build-id", "1")])
def test_half_of_a_version_is_refused_with_both_names(flag: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="give both \\(GRADELOOP_DEPLOYMENT and GRADELOOP_BUILD_ID\\), or neither"):
        load_settings(flag)


def test_a_version_is_read_from_the_environment_and_may_be_an_images_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADELOOP_DEPLOYMENT", "grader")
    monkeypatch.setenv("GRADELOOP_BUILD_ID", "sha256:" + "0a" * 32)

    settings = load_settings([])

    assert (settings.deployment, settings.build_id) == ("grader", "sha256:" + "0a" * 32)


@pytest.mark.parametrize("name", ["a.b", "a:b", "", "a b"])
def test_a_deployment_that_temporal_refuses_is_refused_before(name: str) -> None:
    with pytest.raises(InvalidRequest, match="deployment: "):
        load_settings(["--deployment", name, "--build-id", "1"])


def test_a_tuner_is_off_by_default_and_takes_shares_of_the_machine(tmp_path: Path) -> None:
    flags = written(tmp_path, "[tuner]\nmemory = 0.7\n")
    tuner = load_settings(flags).tuner

    assert load_settings([]).tuner is None
    assert tuner is not None
    assert (tuner.memory, tuner.cpu) == (0.7, 0.9)
    with pytest.raises(InvalidRequest, match=r"tuner\.cpu: "):
        load_settings([*flags, "--tuner.cpu", "90"])


async def test_a_worker_with_a_tuner_serves(client: Client) -> None:
    async with serving(client, draft(0), tuner=TunerSettings()) as served:
        result = await GradingClient(client, task_queue=served.task_queue).result(
            await GradingClient(client, task_queue=served.task_queue).start(request())
        )

    assert result.output == "draft 0"
