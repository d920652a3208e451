"""Ctrl-C while `run` starts a thread, and while `resume` has one go on; what a run that cannot be resumed as it is says."""

import asyncio
import io
import json
import re
import signal
import socket
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from rich.console import Console
from temporalio.client import Client

from gradeloop.cli.task_file import TaskFlags, read_task
from gradeloop.cli.threads import resume_thread, run_task
from gradeloop.client.client import GradingClient
from gradeloop.store.engine import STORE_FILE
from gradeloop.temporal.server import ServerInfo
from tests.rig.cli import CommandLine, Done
from tests.rig.failing_models import listening
from tests.rig.threads import JUDGE, WRITER, answering, draft, grade, row, serving, verdict_text

QUIET = Console(file=io.StringIO())


def decisive(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a client's method in the middle of which Ctrl-C is pressed."""

    async def press(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return await method(*arguments, **options)

    return press


async def test_ctrl_c_while_a_run_is_started_or_resumed_interrupts_it(
    client: Client, temporal_server: ServerInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = answering()
    models.hold("grader")
    task = tmp_path / "task.yaml"
    task.write_text(f"prompt: hello\ngenerator: {{model: {WRITER}}}\ngrader: {{model: {JUDGE}}}\nrubric: '- it is good'\nthread: pressed\n")
    async with serving(client, models=models) as served:
        monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
        monkeypatch.setenv("GRADELOOP_TASK_QUEUE", served.task_queue)
        with monkeypatch.context() as patched:
            patched.setattr(GradingClient, "start", decisive(GradingClient.start))
            started = await run_task(read_task(task, TaskFlags()), QUIET, as_json=True, detach=False)
        with monkeypatch.context() as patched:
            patched.setattr(GradingClient, "resume", decisive(GradingClient.resume))
            resumed = await resume_thread("pressed", QUIET, budget=None, as_json=True)
        models.release()
        ended = await resume_thread("pressed", QUIET, budget=None, as_json=True)

    assert (started.how, resumed.how, ended.how) == ("stopped", "stopped", "ended")
    assert ended.result
    assert ended.result.status == "satisfied"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("run", "soon.yaml"), "stopped before the thread started: no model was called; run the same command again to start it"),
        (("resume", "soon-1"), "stopped before the run went on; resume it with: gradeloop resume soon-1"),
        (("fork", "soon-1"), "stopped; if the fork has started, it is in: gradeloop list"),
        (("list",), "stopped"),
    ],
)
def test_ctrl_c_before_there_is_a_thread_to_follow_says_what_happened(commands: CommandLine, command: tuple[str, ...], words: str) -> None:
    commands.task("soon", [draft()])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        screen = commands.terminal(*command, size=(200, 40), TEMPORAL_ADDRESS=f"127.0.0.1:{silent.getsockname()[1]}")
        with silent.accept()[0]:  # by now the command waits for the server's answer
            screen.press_ctrl_c()
            assert screen.code() == 130, screen.text
    assert screen.text.splitlines()[-1] == f"^Cgradeloop: {words}"


@pytest.mark.slow
def test_a_fork_shows_its_own_events_in_its_own_time_also_when_it_is_watched_later(commands: CommandLine) -> None:
    failed, passed = (
        json.dumps({"k1": {"reason": "read", "passed": gap == "", "gap": gap}, "unjudgeable": "", "summary": "read"})
        for gap in ("more", "")
    )
    texts = {(0, 0): ("a", failed), (0, 1): ("b", failed), (1, 0): ("", failed), (1, 1): ("c", passed)}
    replies = [
        {"role": role, "run": run, "iteration": at, "text": text}
        for (run, at), pair in texts.items()
        for role, text in zip(("generator", "grader"), pair, strict=True)
        if text
    ]
    task = commands.task("twig", replies, max_iterations=2)
    assert commands("run", task, "--thread", "twig-1").code == 1
    time.sleep(1.5)  # of which no line of a fork says anything

    same = commands("fork", "twig-1@1", "--thread", "twig-2")
    other = commands("fork", "twig-1@1", "--rubric", "- it is better", "--thread", "twig-3")
    watched = [commands("watch", "twig-2"), commands("watch", "twig-3")]

    def told(done: Done) -> list[str]:
        return re.findall(r"^ +\d+\.\d s  (iteration \d: \w+)", done.out, re.MULTILINE)

    assert told(same) == told(watched[0]) == ["iteration 2: draft", "iteration 2: needs_revision"]
    assert told(other) == told(watched[1]) == ["iteration 1: needs_revision", "iteration 2: draft", "iteration 2: satisfied"]
    assert all(re.search(r"^   0\.\d s  ", done.out, re.MULTILINE) for done in (same, other, *watched))
    assert "max_iterations_reached after 2 iterations" in same.out


@pytest.mark.parametrize(
    ("status", "kind", "cure", "step"),
    [
        (404, "not_found", "correct the model's name or its address, or name another model", "--model PROVIDER:MODEL"),
        *(
            pytest.param(status, kind, "correct OPENAI_API_KEY, or name another model", "", marks=pytest.mark.slow)
            for status, kind in ((401, "auth"), (402, "quota_exhausted"))
        ),
    ],
)
async def test_a_run_whose_model_is_not_served_says_what_to_change_and_is_resumed_with_another(
    commands: CommandLine, status: int, kind: str, cure: str, step: str
) -> None:
    name = f"gone-{status}"
    task = {"prompt": "Write.", "rubric": "- it is good", "generator": {"model": "openai_compatible:gone"}, "thread": name}
    (commands.folder / f"{name}.yaml").write_text(json.dumps(task | {"grader": {"model": "openai_compatible:judge"}}))
    advice = f"gradeloop resume {name} {step}".strip()
    async with listening() as models:
        models.plan("gone", status)
        models.plan("other", "a draft of the other")
        models.plan("judge", verdict_text())

        async def command(*arguments: str) -> Done:
            reached = {"OPENAI_BASE_URL": models.url, "OPENAI_API_KEY": "a-key-of-the-test"}
            return await asyncio.to_thread(commands, *arguments, **reached)

        run = await command("run", f"{name}.yaml")
        state, shown, again = await command("state", name), await command("show", name, "--json"), await command("resume", name)
        resumed = await command("resume", name, "--model", "openai_compatible:other", "--json")

    assert (run.code, again.code, resumed.code) == (3, 3, 0)
    for said in (run.out, " ".join(state.out.split()), shown.result["error"]):
        assert kind in said
        assert cure in " ".join(said.split())
    assert run.err.strip().startswith("interrupted; resume it ")
    assert run.err.strip().endswith(f": {advice}")
    assert f"with another model: {advice}" in " ".join(state.out.split())
    assert resumed.result["output"] == "a draft of the other"
    assert models.times("other") == 1


@pytest.mark.slow
async def test_a_key_that_was_refused_is_corrected_and_the_next_command_uses_it(commands: CommandLine) -> None:
    (commands.folder / "refused.yaml").write_text(json.dumps({"prompt": "Write.", "generator": {"model": "openai_compatible:guarded"}}))
    async with listening() as models:
        models.plan("guarded", 401, 401, "a draft")

        async def command(key: str, *arguments: str) -> tuple[int, set[int]]:
            reached = {"OPENAI_BASE_URL": models.url, "OPENAI_API_KEY": key}
            done = await asyncio.to_thread(commands.alone, *arguments, **reached)
            return done.code, set(commands.workers().values())

        code, first = await command("a-key-that-is-refused", "run", "refused.yaml", "--thread", "refused")
        same_code, same = await command("a-key-that-is-refused", "resume", "refused")
        other_code, other = await command("a-key-that-is-accepted", "resume", "refused")

    assert (code, same_code, other_code) == (3, 3, 0)
    assert first == same
    assert len(other - same) == len(same - other) == 1


@pytest.mark.slow
def test_replies_that_are_corrected_are_what_the_next_command_of_the_thread_is_answered_from(commands: CommandLine) -> None:
    replies = [draft(0), grade(0, row("c1", "it is not good"))]
    first = commands("run", commands.task("mended", replies, thread="mended-1"))
    commands.task("mended", [*replies, draft(1), grade(1)], thread="mended-1")
    resumed = commands("resume", "mended-1")

    assert (first.code, "has no reply for role generator" in first.out) == (3, True), first.out
    assert (resumed.code, "satisfied after 2 iterations" in resumed.out) == (0, True), resumed.out + resumed.err


def test_a_draft_of_a_thread_is_forked_and_both_say_so(commands: CommandLine) -> None:
    task = commands.task("forked", [draft(0), grade(0), {**grade(0), "run": 1}], thread="forked-1")
    first = commands("run", task)
    done = commands("fork", "forked-1@1", "--rubric", "- it is better", "--thread", "forked-1-b")
    shown = [commands("show", name) for name in ("forked-1", "forked-1-b")]
    listed, refused = commands("list"), commands("fork", "forked-1@7")

    assert (first.code, done.code) == (0, 0), done.err
    assert "it is better" in done.out
    assert "  forks: forked-1-b" in shown[0].out
    assert "  forked from forked-1, draft 1" in shown[1].out
    assert "fork of" in listed.out
    assert (refused.code, refused.err.strip()) == (2, "gradeloop: forked-1: the run has no draft 7; it has 1 to 1")


def test_a_fork_is_compared_with_its_thread_draft_by_draft(commands: CommandLine) -> None:
    bad = grade(1, row("c1", "it is not better"))
    task = commands.task(
        "beside",
        [
            draft(0) | {"usage": {"input": 9, "output": 1}},
            grade(0, row("c1", "it is not good")),
            draft(1),
            grade(1),
            {**bad, "run": 1},
            {**draft(2), "run": 1},
            {**grade(2), "run": 1},
        ],
        thread="beside-1",
    )
    assert commands("run", task).code == 0
    assert commands("fork", "beside-1@2", "--rubric", "- it is better", "--thread", "beside-1-b").code == 0

    page = commands.folder / "beside.html"
    shown, told = commands("diff", "beside-1", "beside-1-b", "-o", str(page)), commands("diff", "beside-1", "beside-1-b", "--json")
    unknown, batch = commands("diff", "beside-1", "nothing"), commands("diff", "beside-1", "latest~999")
    compared = json.loads(told.out)

    assert shown.code == 0, shown.err
    assert {case["id"]: case["outcome"] for case in compared["cases"]} == {"draft 1": "same", "draft 2": "regressed", "draft 3": "added"}
    assert compared["a"]["cost"]["tokens"] == 10
    assert "it is not better" in shown.out
    assert "next: read the drafts of thread B with gradeloop report beside-1-b" in shown.out
    assert all(text in page.read_text() for text in ("Both threads", "3 drafts", "draft 2"))
    assert (unknown.code, batch.code) == (2, 2)
    assert "there is no batch" in unknown.err
    assert "No thread has that name either." in unknown.err


@pytest.mark.slow
def test_what_cannot_be_compared_with_a_thread_says_so(commands: CommandLine) -> None:
    graded = commands.task("graded", [draft(0), grade(0)], thread="grp/graded")
    bare = commands.task("bare", [draft(0)], thread="bare-1", rubric=None)
    assert (commands("run", graded).code, commands("run", bare).code) == (0, 0)
    suite = {"prompts": ["hi"], "providers": ["echo"], "tests": [{"id": "a", "assert": [{"type": "contains", "value": "hi"}]}]}
    (commands.folder / "promptfooconfig.yaml").write_text(json.dumps(suite))
    assert commands("eval").code == 0

    same, ungraded, mixed = (commands("diff", "grp/graded", other) for other in ("grp/graded", "bare-1", "latest"))
    baseline, long = commands("eval", "--baseline", "grp/graded"), commands("diff", "x" * 300, "latest")

    assert (same.code, "1 same of 1 draft" in same.out) == (0, True), same.err
    assert (ungraded.code, "bare-1 has no graded draft in its last turn" in ungraded.err) == (2, True), ungraded.err
    assert (mixed.code, "one is a thread and the other a batch" in mixed.err) == (2, True), mixed.err
    assert (baseline.code, long.code, "No thread has that name" in long.err) == (2, 2, True), long.err
    assert "pass rate" not in same.out


def test_a_name_of_a_batch_and_of_a_thread_is_refused_until_one_is_meant(commands: CommandLine) -> None:
    suite = {"prompts": ["hi"], "providers": ["echo"], "tests": [{"id": "a", "assert": [{"type": "contains", "value": "hi"}]}]}
    (commands.folder / "promptfooconfig.yaml").write_text(json.dumps(suite))
    assert commands("eval", "-o", "twice.json").code == 0
    batch_id, name = json.loads((commands.folder / "twice.json").read_text())["summary"]["batch_id"], f"twice-{uuid4()}"
    alone, *others = commands("diff", "latest", batch_id), *(commands(command, batch_id) for command in ("resume", "fork", "interrupt"))
    assert commands("run", commands.task("twice", [draft(0), grade(0)], thread=name)).code == 0
    with closing(sqlite3.connect(commands.state / STORE_FILE)) as store:  # as if another server had run the batch
        newest = "(SELECT id FROM batches ORDER BY created DESC LIMIT 1)"
        store.execute(f"UPDATE cases SET batch_id = '{name}' WHERE batch_id = {newest}")
        store.execute(f"UPDATE batches SET id = '{name}' WHERE id = {newest}")
        store.commit()

    both, batch, thread = (commands("diff", f"{mark}{name}", f"{mark}{name}") for mark in ("", "batch:", "thread:"))
    nobody = commands("diff", "thread:nobody", f"thread:{name}")

    assert (alone.code, "1 same of 1 case" in alone.out) == (0, True), alone.err
    assert {(one.code, "is not a thread but a workflow of the type GradingBatch" in one.err) for one in others} == {(2, True)}, others
    assert (both.code, f"write batch:{name} or thread:{name}" in both.err) == (2, True), both.err
    assert (batch.code, "1 same of 1 case" in batch.out) == (0, True), batch.err
    assert (thread.code, "1 same of 1 draft" in thread.out) == (0, True), thread.err
    assert (nobody.code, "there is no thread 'nobody'" in nobody.err) == (2, True), nobody.err


def test_a_server_that_is_away_is_not_a_thread_that_is_not_there(commands: CommandLine) -> None:
    done = commands("diff", "one", "other", TEMPORAL_ADDRESS="127.0.0.1:9", GRADELOOP_STORE=f"sqlite:///{commands.folder / 'away.db'}")

    assert (done.code, "No Temporal server answers" in done.err) == (4, True), done.err
