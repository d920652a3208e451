"""The command line from a user's chair: a run watched, stopped, resumed, left alone, met again."""

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest
from ruamel.yaml import YAML

from gradeloop.cli.threads import RunEnding, code_of
from gradeloop.contract.evaluation import RunStatus
from gradeloop.contract.thread import RunResult
from gradeloop.temporal.connect import application_folder
from tests.rig.cli import CommandLine, draft, ended, line_of, verdict


def test_the_demo_is_satisfied_after_two_iterations_and_names_the_test_that_failed_first(gradeloop: CommandLine) -> None:
    done = gradeloop("demo")

    assert done.code == 0, done.err
    assert "test_unhashable" in done.out
    assert "satisfied after 2 iterations" in done.out
    assert done.out.startswith("No provider key is set")
    assert "\x1b" not in done.out
    assert done.err == ""


@pytest.mark.slow
def test_the_demo_on_a_terminal_shows_criteria_turning_green_and_red_and_leaves_the_cursor_visible(gradeloop: CommandLine) -> None:
    screen = gradeloop.terminal("demo")

    assert screen.code() == 0
    assert "\x1b[31m✗ tests" in screen.raw
    assert "\x1b[32m✓ tests" in screen.raw
    assert "\x1b[?25l" in screen.raw
    assert screen.raw.rindex("\x1b[?25h") > screen.raw.rindex("\x1b[?25l")
    assert "satisfied after 2 iterations" in screen.text


def test_json_prints_a_json_object_a_line_and_nothing_else(gradeloop: CommandLine) -> None:
    task = str(application_folder() / "examples" / "find_duplicates" / "task.yaml")

    done = gradeloop("run", task, "--model", "scripted:demo", "--grader", "scripted:demo", "--json")

    assert done.code == 0
    assert done.err == ""
    assert done.lines[0]["type"] == "thread"
    ends = [line["evaluation"]["result"] for line in done.lines if line["type"] == "rubric_evaluation_end"]
    assert ends == ["needs_revision", "satisfied"]
    assert done.result["type"] == "result"
    assert "test_unhashable" in done.result["evaluations"][0]["criteria"][0]["gap"]


@pytest.mark.slow
def test_text_that_the_terminals_encoding_lacks_does_not_break_the_run(gradeloop: CommandLine) -> None:
    task = gradeloop.task("japanese", [draft("春の海 — ひねもす"), verdict()])

    plain = gradeloop("run", task, PYTHONIOENCODING="ascii")
    as_json = gradeloop("run", task, "--json", PYTHONIOENCODING="latin-1")

    assert plain.code == as_json.code == 0
    assert as_json.result["output"] == "春の海 — ひねもす"


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_the_command_without_a_traceback(gradeloop: CommandLine) -> None:
    task = gradeloop.task("unread", [draft("a", delay=0.5), verdict()])
    gradeloop("run", task)  # or a slow start of the worker says how long it takes
    with gradeloop.start("run", task, "--json") as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        err = process.stderr.read()

    assert process.returncode == 141
    assert err == ""


@pytest.mark.slow
def test_a_reader_that_goes_away_ends_every_other_command_so_too(gradeloop: CommandLine) -> None:
    with gradeloop.start("schema") as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        err = process.stderr.read()

    assert process.returncode == 141
    assert err == ""


PATIENCE = """
import asyncio
from pathlib import Path
from typing import Any

async def patience(text: str) -> bool:
    '''Take a minute the first time, and none later.'''
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        await asyncio.sleep(60)
    return True
"""


def patient(gradeloop: CommandLine, name: str) -> str:
    """Write a task with one criterion for a slow check and one for the grader: whoever resumes it need not wait."""
    (gradeloop.folder / f"{name}.py").write_text(PATIENCE)
    replies = [draft("the draft", usage={"input": 7}), verdict()]
    rubric = {"criteria": [{"description": "it lasts", "check": "patience"}, "it is good"]}
    return gradeloop.task(name, replies, rubric=rubric, tools=f"{name}.py")


STATUSES: dict[RunStatus | None, int] = {
    None: 0,
    "satisfied": 0,
    "max_iterations_reached": 1,
    "failed": 3,
    "grader_error": 3,
    "interrupted": 3,
    "waiting": 3,
    "superseded": 3,
}


def test_the_exit_code_tells_the_runs_status() -> None:
    empty: dict[str, Any] = dict.fromkeys(("grading_run_id", "output", "best_iteration", "last_output", "score", "messages", "error"))
    fields: dict[str, Any] = {
        "thread_id": "t",
        "iterations": 0,
        "evaluations": (),
        "messages_truncated": False,
        "usage": {},
    }

    ended = {status: RunResult.model_validate(empty | fields | {"status": status}) for status in STATUSES}
    assert {status: code_of(RunEnding("t", "ended", result)) for status, result in ended.items()} == STATUSES


@pytest.mark.slow
def test_a_run_that_reaches_its_last_iteration_ends_with_1(gradeloop: CommandLine) -> None:
    done = gradeloop("run", gradeloop.task("capped", [draft("a"), verdict(gap="there is more to it")], max_iterations=1))

    assert done.code == 1
    assert "max_iterations_reached after 1 iteration " in done.out
    assert "there is more to it" in done.out


@pytest.mark.slow
def test_a_run_whose_grader_fails_ends_with_3_and_the_reason_and_a_fork_grades_its_draft_again(gradeloop: CommandLine) -> None:
    fault = {"role": "grader", "error": {"kind": "auth", "message": "no such key", "status": 401}}
    task = gradeloop.task("unjudged", [draft("a"), fault, verdict(run=1)])

    done = gradeloop("run", task, "--thread", "unjudged-1")
    seen = [done, gradeloop("watch", "unjudged-1"), gradeloop("show", "unjudged-1")]
    *_, next_step = done.out.splitlines()
    again = gradeloop(*next_step.partition("gradeloop ")[2].split())

    assert done.code == 3
    for shown in seen:
        *_, status, error, step = shown.out.splitlines()
        assert status.startswith("grader_error after 1 iteration")
        assert error.startswith("auth: ")
        assert "no such key" in error
        assert step == "Next: correct that, then grade the draft again: gradeloop fork unjudged-1"
    assert (again.code, "satisfied" in again.out) == (0, True), again


def test_a_run_whose_provider_stays_away_ends_with_3_and_says_who_was_away_and_how_to_resume(gradeloop: CommandLine) -> None:
    away = {"role": "generator", "error": {"kind": "connection", "message": "no route to the model"}}
    task = gradeloop.task("away", [away])

    done = gradeloop("run", task, "--thread", "away-1", GRADELOOP_OUTAGE_TIMEOUT="0.3")
    listed = gradeloop("show", "away-1")

    assert done.code == 3
    assert "interrupted after 0 iterations" in done.out
    for out in (done.out, listed.out):
        assert re.search(r"outage: scripted:\S+ has answered no call for \d+ s; the last failure: .*no route to the model", out)
    assert done.err.strip().startswith("interrupted; resume it once that is mended, or add --model or --grader ")
    assert done.err.strip().endswith(": gradeloop resume away-1")


@pytest.mark.slow
def test_ctrl_c_interrupts_and_the_line_it_prints_goes_on_without_repeating_a_finished_call(gradeloop: CommandLine) -> None:
    screen = gradeloop.terminal("run", patient(gradeloop, "stopped"))
    screen.until("grading, with patience")
    screen.press_ctrl_c()
    code = screen.code()
    line = next(line for line in screen.text.splitlines() if "resume it with: gradeloop resume" in line)
    thread = line.split()[-1]
    before = json.loads(gradeloop("state", thread, "--json").out)

    resumed = gradeloop("resume", thread, "--json")

    assert code == 130
    assert before["status"] == "interrupted"
    assert resumed.code == 0
    assert resumed.result["grading_run_id"] == before["grading_run_id"]
    assert resumed.result["usage"]["calls"] == 2
    assert resumed.result["usage"]["input"] == 7
    assert [line["type"] for line in resumed.lines].count("message") == 0


@pytest.mark.slow
def test_ctrl_c_in_a_pipe_says_so_on_stderr_alone(gradeloop: CommandLine) -> None:
    process = gradeloop.start("run", gradeloop.task("piped", [draft("a", delay=900)]), "--json")
    first = line_of(process)
    process.send_signal(signal.SIGINT)
    done = ended(process, first)

    assert done.code == 130
    assert done.result["type"] == "interrupted"
    assert f"gradeloop resume {done.lines[0]['thread_id']}" in done.err


@pytest.mark.slow
def test_an_interrupted_run_goes_on_after_its_worker_was_killed(gradeloop: CommandLine) -> None:
    process = gradeloop.start("run", patient(gradeloop, "orphan"), "--json")
    lines = [json.loads(line_of(process)) for _ in range(6)]
    process.send_signal(signal.SIGINT)
    ended(process)
    gradeloop.kill_workers()

    resumed = gradeloop("resume", lines[0]["thread_id"], "--json")

    assert lines[-1]["type"] == "tool_called"
    assert resumed.code == 0
    assert resumed.result["grading_run_id"] == lines[-1]["grading_run_id"]
    assert resumed.result["usage"]["calls"] == 2


@pytest.mark.slow
def test_an_interrupted_run_goes_on_although_its_worker_was_not_yet_seen_to_be_dead(gradeloop: CommandLine) -> None:
    process = gradeloop.start("run", patient(gradeloop, "dying"), "--json")
    lines = [json.loads(line_of(process)) for _ in range(6)]
    process.send_signal(signal.SIGINT)
    ended(process)
    gradeloop.kill_workers()
    with gradeloop.held_as_alive(seconds=4):
        resumed = gradeloop("resume", lines[0]["thread_id"], "--json")

    assert resumed.code == 0, resumed.err
    assert resumed.result["grading_run_id"] == lines[-1]["grading_run_id"]


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_of_a_run_is_started_again(gradeloop: CommandLine) -> None:
    process = gradeloop.start("run", patient(gradeloop, "killed"), "--json")
    started = [line_of(process) for _ in range(6)]
    gradeloop.kill_workers()
    done = ended(process, *started)

    assert done.code == 0, done.err
    assert done.result["usage"]["calls"] == 2
    assert [line["type"] for line in done.lines].count("run_started") == 1
    assert [line["type"] for line in done.lines].count("rubric_evaluation_end") == 1


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "sleeper.py").write_text(
        "import time\ndef sleeper(text: str) -> bool:\n    '''Sleep.'''\n    time.sleep(12)\n    return True\n"
    )
    task = gradeloop.task("stuck", [draft("a")], rubric={"criteria": [{"description": "d", "check": "sleeper"}]}, tools="sleeper.py")
    screen = gradeloop.terminal("run", task)
    screen.until("the check sleeper")
    screen.press_ctrl_c()
    screen.until("press Ctrl-C again")
    pressed = time.monotonic()
    screen.press_ctrl_c()

    assert screen.code() == 130
    assert time.monotonic() - pressed < 10
    assert "gradeloop watch run-" in screen.text
    gradeloop.kill_workers()


def test_a_detached_run_is_left_running_and_can_be_watched(gradeloop: CommandLine) -> None:
    task = gradeloop.task("detached", [draft("a", delay=1), verdict()], thread="detached-1")
    detached = gradeloop("run", task, "--detach")
    shown = gradeloop("watch", "detached-1")
    afterwards = gradeloop("watch", "detached-1", "--json")

    assert detached.code == shown.code == afterwards.code == 0
    assert "gradeloop watch detached-1" in detached.err
    assert "it is good" in shown.out
    assert "satisfied after 1 iteration " in shown.out
    assert afterwards.result["status"] == "satisfied"


@pytest.mark.slow
def test_ctrl_c_while_watching_leaves_the_run_alone(gradeloop: CommandLine) -> None:
    gradeloop("run", gradeloop.task("watched", [draft("a", delay=900)], thread="watched-1", rubric=None), "--detach")
    screen = gradeloop.terminal("watch", "watched-1")
    screen.until("drafting")
    screen.press_ctrl_c()

    assert screen.code() == 130
    assert "still running" in screen.text
    assert json.loads(gradeloop("state", "watched-1", "--json").out)["status"] == "running"


@pytest.mark.slow
def test_a_run_that_another_terminal_interrupts_ends_here_with_3(gradeloop: CommandLine) -> None:
    task = gradeloop.task("shared", [draft("a"), verdict(delay=900)], thread="shared-1")
    first = gradeloop.terminal("run", task)
    first.until("grading")
    second = gradeloop.start("watch", "shared-1", "--json")
    line_of(second)
    first.press_ctrl_c()
    done = ended(second)

    assert first.code() == 130
    assert done.code == 3
    assert "gradeloop resume shared-1" in done.err


@pytest.mark.slow
def test_two_runs_at_once_with_other_tools_of_the_same_name_do_not_meet(gradeloop: CommandLine) -> None:
    started = []
    for name, answer in (("yes", "True"), ("no", "{'ok': False, 'why': 'never'}")):
        (gradeloop.folder / f"{name}.py").write_text(f"def decide(text: str) -> object:\n    '''Decide.'''\n    return {answer}\n")
        rubric = {"criteria": [{"description": "d", "check": "decide"}]}
        task = gradeloop.task(name, [draft("a", delay=0.5)], rubric=rubric, tools=f"{name}.py", max_iterations=1)
        started.append(gradeloop.start("run", task, "--json"))
    done = [ended(process) for process in started]

    assert [command.code for command in done] == [0, 1]
    assert [command.result["score"] for command in done] == [1.0, 0.0]


@pytest.mark.slow
def test_a_later_run_finds_the_server_and_the_worker_of_an_earlier_one(gradeloop: CommandLine) -> None:
    task = gradeloop.task("again", [draft("a"), verdict()])
    first = gradeloop("run", task, "--json")
    server, workers = (gradeloop.state / "server.json").read_text(), gradeloop.workers()

    second = gradeloop("run", task, "--json")

    assert first.code == second.code == 0
    assert (gradeloop.state / "server.json").read_text() == server
    assert gradeloop.workers() == workers


COMMANDS = (
    "::error::owned",
    "  ::set-output name=a::b",
    "\t::add-mask::a",
    "\u200b::stop-commands::a",
    "fine\r::warning::owned",
    "##[error]owned",
    "say ##vso[task.setvariable variable=PATH]owned",
    "##teamcity[buildStatus status='SUCCESS']",
    "section_start:1:owned",
)
"""Lines that GitHub Actions, Azure Pipelines, TeamCity and GitLab take for commands."""


@pytest.mark.slow
def test_no_line_of_a_draft_is_a_command_of_a_ci_system_that_reads_the_pipe(gradeloop: CommandLine) -> None:
    told = "\n".join(COMMANDS)
    task = gradeloop.task("commands", [draft(told), verdict(gap=None)])
    shown, as_json = gradeloop("run", task), gradeloop("run", task, "--json")
    lines = [line.strip(" \t\u200b") for out in (shown.out, shown.err, as_json.out) for line in re.split("[\r\n]", out)]

    assert "owned" in shown.out
    assert not [line for line in lines if line.startswith("::") or re.search(r"##(vso|teamcity)?\[|section_start:", line)]
    assert as_json.result["output"] == told


def test_control_characters_of_a_model_do_not_reach_the_terminal(gradeloop: CommandLine) -> None:
    done = gradeloop("run", gradeloop.task("rude", [draft("red \x1b[31m bell \x07 title \x1b]0;owned\x07 end"), verdict(gap=None)]))

    assert done.code == 0
    assert "\x1b" not in done.out
    assert "\x07" not in done.out


@pytest.mark.slow
def test_a_narrow_terminal_shows_a_hundred_criteria_the_failing_ones_first(gradeloop: CommandLine) -> None:
    rows = {f"k{at}": {"reason": "r", "passed": at != 99, "gap": "it lacks care" if at == 99 else ""} for at in range(1, 101)}
    said = {**rows, "unjudgeable": "", "summary": "One lacks."}
    replies = [draft("a"), {"role": "grader", "verdict": said}, draft("b", 1, delay=1), {"role": "grader", "iteration": 1, "verdict": said}]
    rubric = "\n".join(f"- criterion number {at} about something that matters to whoever wrote it" for at in range(1, 101))
    screen = gradeloop.terminal("run", gradeloop.task("many", replies, rubric=rubric, max_iterations=2), size=(60, 24), NO_COLOR="1")

    assert screen.code() == 1
    assert max(len(line) for line in screen.text.splitlines() if line.startswith((" ✗", " ✓", "   "))) <= 60
    live = screen.text[screen.text.index("revising") :]
    assert " ✗ c99   criterion number 99" in live
    assert "… 86 more, all of them pass" in live
    assert "the other 99 criteria pass" in live
    assert "99 of 100" in live
    assert "\x1b[3" not in screen.raw


@pytest.mark.slow
def test_init_writes_a_task_that_runs(gradeloop: CommandLine) -> None:
    wrote = gradeloop("init", "mine.yaml")
    checked = gradeloop("validate", "mine.yaml")

    done = gradeloop("run", "mine.yaml", "--json")

    assert wrote.code == 0
    assert "gradeloop run mine.yaml" in wrote.out
    assert checked.out.startswith("mine.yaml: a task, 1 message")
    assert done.code == 2
    assert "ANTHROPIC_API_KEY" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "reads", "command", "refusal"),
    [
        ("suite", "suite.yaml: 3 cases; it can run", ["eval", "suite.yaml"], "'scripted: FILE' in a task or suite"),
        ("judge", "judge.yaml: a judge by criteria", ["judge", "judge.yaml", "text.txt"], "--scripted FILE for a judge"),
    ],
)
def test_init_writes_a_suite_and_a_judge_that_run(gradeloop: CommandLine, kind: str, reads: str, command: list[str], refusal: str) -> None:
    (gradeloop.folder / "text.txt").write_text("We open at nine.")
    absent = gradeloop("eval", "absent.yaml")
    wrote = gradeloop("init", "--kind", kind)
    checked = gradeloop("validate", f"{kind}.yaml", OPENAI_API_KEY="sk-0")
    schema = json.loads((gradeloop.folder / f"{kind}.schema.json").read_text())
    written = YAML(typ="safe").load(gradeloop.folder / f"{kind}.yaml")

    keyless = gradeloop(*command)
    row = {"reason": "As read.", "passed": True, "gap": ""}
    passed = {"role": "grader", "verdict": {"k1": row, "k2": row, "unjudgeable": ""}}
    (gradeloop.folder / "replies.yaml").write_text(json.dumps({"replies": [draft("Come in on Monday."), passed]}))
    models = ["--grader", "scripted:judge", "--scripted", "replies.yaml", *(["--providers", "scripted:writer"] if kind == "suite" else [])]
    judged = gradeloop(*command, *models)

    assert "gradeloop init --kind suite" in absent.err
    assert " ".join(command[:2]) in wrote.out
    assert reads in checked.out
    jsonschema.validate(written, schema)
    assert keyless.code == 2
    assert refusal in keyless.err
    assert judged.code == 0, judged.err


@pytest.mark.slow
def test_dev_serves_the_queue_gradeloop_until_ctrl_c_and_dev_stop_ends_what_is_left(tmp_path: Path) -> None:
    gradeloop = CommandLine(tmp_path / "state", tmp_path)
    task = gradeloop.task("served", [draft("a"), verdict()])
    dev = gradeloop.start("dev", "--scripted", "served.replies.yaml")
    first = "".join(line_of(dev) for _ in range(4))
    address = first.splitlines()[3].split()[1]
    try:
        done = gradeloop("run", task, "--json", TEMPORAL_ADDRESS=address, GRADELOOP_TASK_QUEUE="gradeloop")
    finally:
        dev.send_signal(signal.SIGINT)
        served = ended(dev, first)
    stopped = gradeloop("dev", "stop")
    gradeloop.end()

    assert done.code == 0, done.err
    assert served.code == 0, served.err
    assert "\nUI " in served.out
    assert "Traceback" not in served.err
    assert stopped.code == 0
    assert "no embedded server was running" in stopped.out


@pytest.mark.slow
def test_schema_prints_the_contract_whole_or_by_name(gradeloop: CommandLine) -> None:
    every, one = gradeloop("schema"), gradeloop("schema", "RunResult")

    assert json.loads(every.out)["RunResult"] == json.loads(one.out)
