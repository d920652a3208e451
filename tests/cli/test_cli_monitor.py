"""The commands about monitors, as their users run them: created, looked at, paused, run now, exported, deleted."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.rig.cli import CommandLine, ended, line_of
from tests.rig.threads import row, verdict

JUDGE = {"rubric": "- it is good", "grader": {"model": "scripted:judge"}}


def write_files(folder: Path) -> None:
    """Write a judge, its replies and a folder of runs."""
    (folder / "judge.yaml").write_text(json.dumps(JUDGE))
    replies = [{"role": "grader", "verdict": verdict(row("c1"))}]
    (folder / "replies.yaml").write_text(json.dumps({"replies": replies}))
    (folder / "runs").mkdir()
    lines = [{"id": name, "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": name}]} for name in "abc"]
    (folder / "runs" / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command with a judge, replies and a folder of runs."""
    write_files(commands.folder)
    return commands


CREATE = ("monitor", "create", "support", "--judge", "judge.yaml", "--scripted", "replies.yaml", "--every", "1h", "--quiet", "0s")
FOLDER = ("--source", "folder:runs", "--alert", "pass_rate < 0.9", "--always", "error", "--sample", "100%")


def shown(gradeloop: CommandLine, ticks: int) -> dict[str, Any]:
    """Return the monitor once so many ticks are settled."""
    deadline = time.monotonic() + 200
    while True:
        found: dict[str, Any] = json.loads(gradeloop("monitor", "show", "support", "--json").out)
        if sum(tick["settled"] for tick in found["ticks"]) >= ticks or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def test_a_monitor_is_created_run_looked_at_and_deleted(gradeloop: CommandLine) -> None:
    created = gradeloop(*CREATE, *FOLDER)
    again = gradeloop(*CREATE, *FOLDER)
    other = gradeloop(*CREATE, *FOLDER, "--budget", "3")
    gradeloop("monitor", "run-now", "support")
    found = shown(gradeloop, 1)
    text = gradeloop("monitor", "show", "support").out
    paused = gradeloop("monitor", "pause", "support")
    is_paused = shown(gradeloop, 1)["schedule"]["paused"]
    gradeloop("monitor", "resume", "support")
    exported = gradeloop("monitor", "export", "support").out.splitlines()
    listed = json.loads(gradeloop("monitor", "list", "--json").out)
    preview = gradeloop("monitor", "backfill", "support", "--since", "2020-01-01", "--preview")
    bad_share = gradeloop("monitor", "backfill", "support", "--since", "2020-01-01", "--sample", "paid=5%")
    bad_date = gradeloop("monitor", "backfill", "support", "--since", "lately")
    failed = gradeloop("monitor", "export", "support", "--failed")
    no_failure = gradeloop("monitor", "export", "support", "--to-suite", "failures.yaml")
    no_suite = gradeloop("monitor", "export", "support", "--generator", "scripted:writer")
    both = gradeloop("monitor", "export", "support", "--to-suite", "failures.yaml", "-o", "runs.jsonl")
    deleted = gradeloop("monitor", "delete", "support")
    gone = gradeloop("monitor", "show", "support")

    assert created.code == 0, created.err
    assert "monitor support reads every 1h" in created.out
    assert "was there already" in again.out
    assert (other.code, "there is another monitor 'support'; delete it with" in other.err) == (2, True)
    assert (found["rate"]["passed"], found["rate"]["judged"], found["ticks"][0]["read"]) == (3, 3, 3)
    assert "pass rate 100% (44% to 100%, 3 of 3)" in text
    assert "resume it with: gradeloop monitor resume support" in paused.out
    assert is_paused
    assert sorted(json.loads(line)["run_id"] for line in exported) == ["a", "b", "c"]
    assert [one["name"] for one in listed] == ["support"]
    assert preview.out == "3 runs since then; 3 have a verdict\n0 runs would be judged: 0 calls; about $0\n", preview.err
    assert (bad_share.code, "is not a share" in bad_share.err) == (2, True)
    assert (bad_date.code, "--since is 'lately'; write a date" in bad_date.err) == (2, True), bad_date.err
    assert (failed.code, failed.out) == (0, "")
    assert (no_failure.code, "no failed run of the monitor 'support' is left in the store" in no_failure.err) == (2, True)
    assert (no_suite.code, "name its file with --to-suite" in no_suite.err) == (2, True)
    assert (both.code, "give one of them" in both.err) == (2, True)
    assert deleted.out == "deleted support\n"
    assert (gone.code, "there is no monitor 'support' in the store" in gone.err) == (2, True)


MISTAKES = [
    (("--source", "kafka:runs"), "write folder:/PATH, s3://BUCKET/PREFIX, sql:VARIABLE, otlp, otlp:SERVICE or threads"),
    (("--source", "s3:runs"), "is not a source; write folder:/PATH, s3://BUCKET/PREFIX"),
    (("--source", "s3://x"), "source.bucket"),
    (("--source", "s3://runs", "--quiet", "0s"), "--quiet '0s' is too short: S3 tells times to the second"),
    (("--source", "s3://runs", "--quiet", "1s"), "write 2s or more, or leave it out"),
    (("--source", "threads", "--quiet", "0s"), "the server lists a thread a little after its end"),
    (("--source", "threads", "--quiet", "0.5s"), "write 1s or more, or leave it out"),
    (("--source", "folder:runs", "--quiet", "0"), "--quiet '0' is not a time; write a number with s, m, h or d behind it"),
    (("--source", "s3://runs", "--where", "a=b"), "--where is for the sources otlp and threads; leave it out"),
    (("--source", "otlp", "--quiet", "5s"), "--quiet is for folders, buckets and threads; leave it out"),
    (
        ("--source", "otlp", "--where", "shop"),
        "--where 'shop' is not a pair; write KEY=VALUE, such as deployment.",
    ),
    (("--source", "threads", "--where", "status=running"), "status=running is not a status of a finished thread; known: satisfied"),
    (("--source", "threads", "--where", "tenant=a"), "source.where.tenant"),
    (("--source", "sql:DB"), "needs --query and --watermark"),
    (("--source", "folder:runs", "--alert", "rate < 1"), "such as 'pass_rate < 0.9'"),
    (("--source", "folder:runs", "--sample", "7"), "write 7% or 0.07"),
    (("--source", "folder:runs", "--every", "soon"), "such as 10m"),
    (("--source", "folder:runs", "--sample", "paid=100%"), "name it with --stratum"),
]


def test_a_mistake_is_refused_in_a_sentence(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for flags, said in MISTAKES:
        with subtests.test(str(flags)):
            done = gradeloop("monitor", "create", "wrong", "--judge", "judge.yaml", "--scripted", "replies.yaml", *flags)

            assert (done.code, said in done.err, "Traceback" in done.err) == (2, True, False), done.err


def test_a_judge_that_is_not_there_is_refused_with_the_command_that_writes_one(gradeloop: CommandLine) -> None:
    done = gradeloop("monitor", "create", "wrong", "--judge", "absent.yaml", "--source", "folder:runs")

    assert done.code == 2
    assert "`gradeloop init --kind judge` writes one" in done.err


@pytest.mark.slow
def test_a_monitor_takes_the_worker_of_dev_and_its_replies(tmp_path: Path) -> None:
    gradeloop = CommandLine(tmp_path / "state", tmp_path)
    write_files(tmp_path)
    alone = gradeloop(*CREATE, *FOLDER)
    dev = gradeloop.start("dev", "--scripted", "replies.yaml", GRADELOOP_PAGE_PORT="0")
    printed = [line_of(dev) for _ in range(5)]
    try:
        gradeloop("run", gradeloop.task("first", []), "--json", GRADELOOP_TASK_QUEUE="gradeloop")  # once its worker answers
        unscripted = tuple(flag for flag in CREATE if flag not in {"--scripted", "replies.yaml"})
        moved = gradeloop(*unscripted, *FOLDER)
        gradeloop.kill_workers()
        gradeloop("monitor", "run-now", "support")
        found = shown(gradeloop, 1)
    finally:
        dev.send_signal(signal.SIGINT)
        ended(dev, *printed)
        gradeloop.end()

    assert "its worker ends once it is idle" in alone.out
    assert "was there already" in moved.out, moved.err
    assert "its worker ends" not in moved.out
    assert (found["rate"]["passed"], found["rate"]["judged"]) == (3, 3)


@pytest.mark.slow
def test_a_tick_that_is_begun_now_has_a_worker(gradeloop: CommandLine) -> None:
    gradeloop(*CREATE, *FOLDER)
    gradeloop.kill_workers()
    began = time.monotonic()
    while "no worker is there" not in (unserved := gradeloop("monitor", "show", "support").out) and time.monotonic() - began < 120:
        time.sleep(5)  # the server keeps a worker that was killed on its list for a while
    listed = [gradeloop("monitor", "list").out]
    gradeloop("monitor", "run-now", "support")
    found = shown(gradeloop, 1)
    served = gradeloop("monitor", "show", "support").out
    listed += [gradeloop("monitor", "list").out, gradeloop("monitor", "list", "--json").out]
    gradeloop("monitor", "delete", "support")

    assert "no worker is there for its ticks: run `gradeloop dev`" in unserved
    assert "no worker is there" not in served
    assert ["no worker is there for its ticks" in text for text in listed] == [True, False, False]
    assert [one["is_served"] for one in json.loads(listed[2])] == [True]

    assert found["rate"]["judged"] == 3
