"""What goes wrong at the command line: one sentence on stderr, nothing on stdout, the right exit code."""

import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import typer

import worker
from gradeloop.cli.main import app
from gradeloop.errors import WorkerFailed
from gradeloop.temporal import connect, process
from tests.rig.cli import CommandLine, Done, draft, verdict

RUN = ("run", "task.yaml", "--json")

TOOLS = {
    "missing_import": (
        "import no_such_module",
        "missing_import.py' does not import: ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "no_python": ("def look(:", "no_python.py' does not import: SyntaxError"),
    "quits": ("raise SystemExit(3)", "SystemExit: 3"),
    "offers_nothing": ("_hidden = 1", "offers_nothing.py' has no public function"),
    "untyped": ("def look(text): return True", "the tool 'look': parameter 'text' needs a type annotation"),
}


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command in a folder with one good task."""
    commands.task("task", [draft("a"), verdict()])
    return commands


def refused(done: Done, code: int, *words: str) -> None:
    """Check that a command ended with one sentence that holds the words."""
    assert done.code == code, done
    assert done.out == ""
    assert done.err.startswith("gradeloop: ")
    assert done.err.count("\n") == 1
    assert not [word for word in words if word not in done.err], done.err


@pytest.mark.slow
def test_tools_that_do_not_load_are_refused_before_a_thread_starts(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for name, (source, words) in TOOLS.items():
        with subtests.test(name):
            (gradeloop.folder / f"{name}.py").write_text(source)

            refused(gradeloop(*RUN, "--tools", f"{name}.py"), 2, words)


@pytest.mark.slow
def test_a_worker_that_dies_while_it_starts_ends_the_command_with_what_it_printed_and_the_code_for_unavailable(
    gradeloop: CommandLine,
) -> None:
    (gradeloop.folder / "dies.py").write_text("import os\nprint('no marbles left', flush=True)\nos._exit(7)")

    done = gradeloop.alone("run", "task.yaml", "--tools", "dies.py")

    assert done.code == 4, done
    assert "ended before it was ready: no marbles left" in done.err
    assert done.err.splitlines()[-1].startswith("gradeloop: ")


STARTS = {
    "eval": ("suite.yaml",),
    "judge": ("judge.yaml", "judged.jsonl", "--scripted", "task.replies.yaml"),
    "check-judge": ("judge.yaml", "labelled.jsonl", "--scripted", "task.replies.yaml"),
}
"""Commands other than `run` that start a worker, each with its arguments."""


def test_every_command_that_starts_a_worker_ends_so(
    gradeloop: CommandLine, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    async def dies(*_: object) -> None:
        raise WorkerFailed("the worker ended before it was ready: no marbles left")

    monkeypatch.setattr(connect, "until_ready", dies)
    monkeypatch.setattr(connect, "launch", lambda *_: None)
    monkeypatch.setattr(connect, "REPLACED_SECONDS", 0)
    folder = gradeloop.folder
    suite = {"rubric": "- it is good", "grader": "scripted:x", "scripted": "task.replies.yaml", "tests": [{"id": "a", "output": "o"}]}
    (folder / "suite.yaml").write_text(json.dumps(suite))
    schema = {"type": "object", "properties": {"label": {"type": "string", "enum": ["match", "miss"]}}}
    judge = {"rubric_text": "Is it?", "output_schema": schema, "judge_model": "scripted:x", "pass_if": {"label": "match"}}
    (folder / "judge.yaml").write_text(json.dumps(judge))
    (folder / "judged.jsonl").write_text(json.dumps({"id": "r", "messages": [{"role": "assistant", "content": "ho"}]}))
    (folder / "labelled.jsonl").write_text(json.dumps({"prompt": "q", "response": "ho", "label": True}))
    (folder / "other.py").write_text("def look(draft: str) -> bool:\n    return True\n")
    for command, arguments in STARTS.items():
        with subtests.test(command):
            done = gradeloop(command, *arguments, "--tools", "other.py")

            assert done.code == 4, done
            assert done.err.splitlines()[-1] == "gradeloop: the worker ended before it was ready: no marbles left"


@pytest.mark.slow
def test_a_command_says_on_stderr_how_long_it_has_waited_for_its_worker_and_goes_on(
    gradeloop: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "NOTICE_SECONDS", 0.2)
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's own, in whose place Python's last resort writes to stderr
    (gradeloop.folder / "slow.py").write_text("import time\ntime.sleep(1.5)\ndef look(text: str) -> bool:\n    return True\n")

    done = gradeloop(*RUN, "--tools", "slow.py")

    assert done.code == 0, done
    words = r"^the worker of gradeloop-\w+ is not ready yet, \d+ s; its log: .*\. Ctrl-C ends only the wait: `gradeloop watch`"
    assert re.search(words, done.err, re.MULTILINE)
    assert re.search(r"is not ready yet, \d+ s$", done.err, re.MULTILINE)
    assert done.result["status"] == "satisfied"


@pytest.mark.parametrize("command", [RUN, ("state", "t"), ("watch", "t"), ("resume", "t")])
def test_a_server_that_does_not_answer_is_exit_code_4(gradeloop: CommandLine, command: tuple[str, ...]) -> None:
    done = gradeloop(*command, TEMPORAL_ADDRESS="127.0.0.1:1")

    refused(done, 4, "127.0.0.1:1", "connection refused", "TEMPORAL_ADDRESS")


def test_an_address_that_is_none_is_refused(gradeloop: CommandLine) -> None:
    refused(gradeloop(*RUN, TEMPORAL_ADDRESS="nowhere"), 2, "'nowhere'", "host:port")


@pytest.mark.parametrize("command", ["state", "watch", "resume"])
def test_a_thread_that_is_not_there_is_named(gradeloop: CommandLine, command: str) -> None:
    refused(gradeloop(command, "no-such-thread"), 2, "there is no thread 'no-such-thread'")


def test_a_thread_in_which_nothing_is_interrupted_cannot_be_resumed(gradeloop: CommandLine) -> None:
    ended = gradeloop(*RUN, "--thread", "ended-1")
    gradeloop("run", gradeloop.task("going", [draft("a", delay=900)]), "--thread", "going-1", "--detach")

    assert ended.code == 0
    refused(gradeloop("resume", "ended-1"), 2, "ended-1", "nothing is interrupted in this thread; it has ended")
    refused(gradeloop("resume", "going-1"), 2, "going-1", "nothing is interrupted in this thread")
    refused(gradeloop(*RUN, "--thread", "ended-1"), 2, "'ended-1' exists already", "choose another id")


def test_a_state_folder_that_cannot_be_made_or_written_is_refused(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "file").touch()
    refused(gradeloop(*RUN, GRADELOOP_STATE_DIR="file"), 2, "file' cannot be made", "GRADELOOP_STATE_DIR")

    locked = gradeloop.folder / "locked"
    locked.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root writes everywhere, and setpriv is not here to take that away")
        powerless = "--bounding-set=-dac_override,-dac_read_search"
        refused(gradeloop.under("setpriv", powerless)(*RUN, GRADELOOP_STATE_DIR=str(locked)), 2, "locked' is not writable")
    else:
        refused(gradeloop(*RUN, GRADELOOP_STATE_DIR=str(locked)), 2, "locked' is not writable")


def test_mistakes_of_the_smaller_commands_are_one_sentence_each(gradeloop: CommandLine) -> None:
    refused(gradeloop("init", "task.yaml"), 2, "'task.yaml' exists already", "name another file")
    refused(gradeloop("schema", "RunResults"), 2, "'RunResults'", "Did you mean 'RunResult'?")
    refused(gradeloop("run", "absent.yaml"), 2, "'absent.yaml' does not exist")
    refused(gradeloop(*RUN, "--rubric", ""), 2, "rubric", "empty")


def test_an_unknown_command_or_flag_is_answered_with_a_suggestion(gradeloop: CommandLine) -> None:
    command, flag = gradeloop("runn"), gradeloop("run", "--max-iteration", "3")

    assert command.code == flag.code == 2
    assert command.out == flag.out == ""
    assert "Did you mean 'run', 'runs'?" in command.err
    assert "--max-iterations" in flag.err


@pytest.mark.slow
def test_a_worker_that_cannot_start_says_why(gradeloop: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    absent, flag = gradeloop("worker", "--tools", "absent.py"), worker.main(["--max-concurrent-activities", "many"])

    assert absent.code == flag == 2
    assert absent.err.splitlines()[-1] == "the tools file 'absent.py' does not exist"
    assert "'many'" in (said := capsys.readouterr().err)
    assert "Traceback" not in said


@pytest.mark.slow
def test_without_a_key_the_models_of_this_machine_and_the_scripted_one_are_named(gradeloop: CommandLine) -> None:
    gradeloop("init", "keyless.yaml")

    refused(gradeloop("run", "keyless.yaml"), 2, "--model ollama:qwen3 once Ollama serves it", "scripted:any", "gradeloop demo")


@pytest.mark.slow
def test_a_server_of_this_machine_that_does_not_listen_is_said_at_once(gradeloop: CommandLine) -> None:
    gradeloop("init", "local.yaml")

    done = gradeloop("run", "local.yaml", "--model", "ollama:qwen3", "--grader", "ollama:qwen3", OLLAMA_BASE_URL="http://127.0.0.1:9/v1")

    refused(done, 2, "nothing listens at http://127.0.0.1:9/v1", "ollama serve; ollama pull qwen3")


SHARES = {
    ("eval", "--pass-rate"): (),
    ("eval", "--allow-errors"): (),
    ("eval", "--max-error-rate"): (),
    ("eval", "--risk"): (),
    ("judge", "--pass-rate"): ("judge.yaml", "runs.jsonl"),
    ("judge", "--allow-errors"): ("judge.yaml", "runs.jsonl"),
    ("judge", "--max-bad"): ("judge.yaml", "runs.jsonl"),
    ("judge", "--risk"): ("judge.yaml", "runs.jsonl"),
    ("report", "--pass-rate"): (),
    ("agreement", "--risk"): ("judge", "labels.jsonl"),
    ("monitor create", "--sample"): ("m", "--judge", "judge.yaml", "--source", "folder:."),
    ("monitor backfill", "--sample"): ("m", "--since", "2026-01-01"),
    ("monitor backfill", "--pass-rate"): ("m", "--since", "2026-01-01"),
    ("monitor backfill", "--risk"): ("m", "--since", "2026-01-01"),
}
"""Every flag that takes a share, and the arguments that its command needs."""


def shares(command: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the flags of a command, and of those below it, that take a share."""
    yield from ((path, option.opts[0]) for option in command.params if option.metavar == "SHARE")
    for name, inner in getattr(command, "commands", {}).items():
        yield from () if inner.hidden else shares(inner, f"{path} {name}".strip())


def test_the_table_has_every_flag_that_takes_a_share() -> None:
    top: Any = typer.main.get_command(app)
    top.load_all()

    assert sorted(shares(top)) == sorted(SHARES)


def test_a_percentage_without_its_sign_is_refused_with_what_to_write(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for ((command, flag), arguments), given in product(SHARES.items(), ("90", "most")):
        with subtests.test(command, flag=flag, given=given):
            done = gradeloop(*command.split(), *arguments, flag, given)

            assert done.code == 2
            assert flag in done.err
            assert f"'{given}' is not a share from 0 to 1; write 90% or 0.9" in done.err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("suite.yaml", "pass_rate: SHARE"),
        ("suite.yaml", "max_error_rate: SHARE"),
        ("suite.yaml", "defaults: {abstain: {c1: SHARE}}"),
        ("judge.yaml", "abstain: {criteria.c1: SHARE}"),
        ("gradeloop.toml", "tuner = {memory = SHARE}"),
    ],
)
def test_a_share_in_a_file_is_read_as_it_is_on_the_command_line(gradeloop: CommandLine, name: str, text: str) -> None:
    around = {
        "suite.yaml": (
            "scripted: replies.yaml\ngrader: 'scripted:j'\nrubric: {criteria: [{description: good, votes: 3}]}\ntests: [{output: a}]\n"
        ),
        "judge.yaml": "rubric: {criteria: [{description: good, votes: 3}]}\ngrader: {model: 'scripted:j'}\n",
    }.get(name, "")
    (gradeloop.folder / "replies.yaml").write_text("replies: [{role: grader, text: a}]\n")
    given = {share: text.replace("SHARE", share) for share in ("90", "'90%'", "0.9")}
    done = {}
    for share, line in given.items():
        (gradeloop.folder / name).write_text(f"{around}{line}\n")
        done[share] = gradeloop("validate", name)
    (gradeloop.folder / name).unlink()

    assert done["90"].code == 2
    assert "'90' is not a share from 0 to 1; write 90% or 0.9" in done["90"].err
    assert (done["'90%'"].code, done["0.9"].code) == (0, 0), done
