"""`gradeloop eval` as its users run it: the gate's exit codes, outputs, an outage, Ctrl-C, the store, and every mistake in a sentence."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from gradeloop.batches.contract import Upload
from gradeloop.batches.store import BatchStore
from gradeloop.store.engine import STORE_FILE, Store
from tests.rig.batches import breaks, fails, passes
from tests.rig.cli import SECONDS, CommandLine, Done, ended, line_of
from tests.rig.cut_wire import CutWire, cut_wire
from workflows import RUNNER
from workflows.batches.grading_batch import StoreCasesWorkflow

JUDGE = "scripted:judge"


def suite(gradeloop: CommandLine, name: str, replies: list[dict[str, Any]], outputs: list[str], **more: Any) -> str:
    """Write a suite of outputs that a scripted judge judges, and return the file's name."""
    (gradeloop.folder / f"{name}.replies.yaml").write_text(json.dumps({"replies": replies}))
    tests = [{"id": f"case-{at}", "output": output} for at, output in enumerate(outputs)]
    fields = {"name": name, "grader": JUDGE, "scripted": f"{name}.replies.yaml", "rubric": "- it is good", "tests": tests}
    (gradeloop.folder / f"{name}.yaml").write_text(json.dumps(fields | more))
    return f"{name}.yaml"


def batch_of(done: Done) -> str:
    """Return the batch's id, which the command tells first."""
    found = re.search(r"batch (\S+): \d", done.err)
    assert found, done.err
    return found[1]


def until_stored(gradeloop: CommandLine, batch: str) -> None:
    """Wait until a batch that was started and left has begun: `--detach` does not."""
    deadline = time.monotonic() + 20
    while batch not in gradeloop("batches", "list", "--json").out:
        assert time.monotonic() < deadline
        time.sleep(0.05)


MIXED = [passes(), fails("bad"), breaks("odd")]
"""Suites with the same replies share a worker, which reads the file of the first; a test that changes its file has one more reply."""


GATES = [
    (["good", "bad"], (), 1, "1 passed, 1 failed of 2"),
    (["good", "bad"], ("--pass-rate", "0.5"), 0, "1 passed, 1 failed of 2"),
    (["good", "odd"], (), 3, "1 passed, 1 error of 2"),
    (["bad", "odd"], ("--allow-errors", "0.5"), 1, "1 failed, 1 error of 2"),
]


@pytest.mark.slow
def test_the_exit_code_is_the_gate(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for outputs, flags, code, results in GATES:
        with subtests.test(results):
            done = gradeloop("eval", suite(gradeloop, "gate", MIXED, outputs), *flags)

            assert done.code == code, done.err
            assert f"Results: {results}" in done.out


def test_a_gate_that_flags_name_is_kept_with_the_batch_and_every_answer_agrees(gradeloop: CommandLine) -> None:
    batch = batch_of(gradeloop("eval", suite(gradeloop, "kept", MIXED, ["good", "bad", "odd"])))
    before = gradeloop("batches", "show", batch)

    attached = gradeloop("eval", "--attach", batch, "--pass-rate", "0.5", "--allow-errors", "0.4")
    shown, again = gradeloop("batches", "show", batch), gradeloop("eval", "--attach", batch)
    summary = gradeloop("export", batch, "-o", "kept.md", "--baseline", batch)

    assert "INCONCLUSIVE: 1 error" in before.out
    assert (attached.code, again.code) == (0, 0)
    assert all("PASSED 50% of 50%" in one.out for one in (attached, shown, again))
    assert summary.code == 0, summary.err
    assert "PASSED 50% of 50%" in (gradeloop.folder / "kept.md").read_text()
    assert gradeloop("export", batch, "--baseline", batch).code == 2


@pytest.mark.slow
def test_a_batch_that_still_runs_is_followed_by_resume_unless_it_would_change(gradeloop: CommandLine) -> None:
    left = gradeloop("eval", suite(gradeloop, "left", [passes(delay=120)], ["good"]), "--detach", "--no-cache")
    batch = left.err.split("--attach ")[1].split()[0]
    until_stored(gradeloop, batch)

    changed = gradeloop("eval", "--resume", batch, "--pass-rate", "0.3")
    following = gradeloop.start("eval", "--resume", batch)
    assert following.stderr is not None
    said = next(line for line in following.stderr if "it is" in line or "gradeloop:" in line)
    following.kill()

    assert changed.code == 2
    assert f"is running already, as it was started; follow it with: gradeloop eval --attach {batch}" in changed.err
    assert said == "it is still running\n"


COLUMNS = """name: compared
prompts: [{label: short, text: "Answer in short: {{question}}"}, {label: long, text: "Answer at length: {{question}}"}]
generators: ["scripted:large", "scripted:mini"]
grader: scripted:judge
scripted: compared.replies.yaml
pass_rate: 0.8
rubric: "- it is good"
tests: [{id: hours, vars: {question: When?}}, {id: place, vars: {question: Where?}}]
"""


def test_an_answer_of_several_models_says_everywhere_which_of_them_failed(gradeloop: CommandLine) -> None:
    drafts = [{"role": "generator", "model": model, "text": text} for model, text in (("large", "fine"), ("mini", "bad"))]
    (gradeloop.folder / "compared.replies.yaml").write_text(json.dumps({"replies": [*drafts, fails("bad"), passes()]}))
    (gradeloop.folder / "compared.yaml").write_text(COLUMNS)

    done = gradeloop("eval", "compared.yaml", *(flag for end in ("md", "json", "html", "txt") for flag in ("-o", f"compared.{end}")))
    batch = batch_of(done)
    shown, exported, as_json = (
        gradeloop("batches", "show", batch),
        gradeloop("export", batch),
        gradeloop("batches", "show", batch, "--json"),
    )
    without = gradeloop("eval", "--attach", batch, "--no-table")
    document = json.loads((gradeloop.folder / "compared.json").read_text())
    markdown, page = ((gradeloop.folder / f"compared.{end}").read_text() for end in ("md", "html"))

    assert done.code == 1, done.err
    words = "Below 80%: short / scripted:mini 0% of 2, long / scripted:mini 0% of 2; "
    words += "reached by: long / scripted:large 100% of 2, short / scripted:large 100% of 2"
    for text in (done.out, shown.out, without.out, page, (gradeloop.folder / "compared.txt").read_text()):
        assert words in text
        assert "short / scripted:large and long / scripted:large are level, which may be chance, on the 2 tests" in text
    assert words.replace("_", "\\_") in markdown
    for text in (done.out, shown.out):
        assert re.search(r"short / scripted:mini +0.0% +0.0% to 65.8% +0 of 2", text), text
    assert "| short / scripted:mini | 0.0% | 0.0% to 65.8% | 0 of 2 | 2 | 0 |" in markdown
    figures = [(column["prompt"], column["label"], column["passed"], column["failed"]) for column in document["columns"]]
    assert figures == [(p, f"scripted:{m}", 2 * (m == "large"), 2 * (m == "mini")) for p in ("short", "long") for m in ("large", "mini")]
    assert json.loads(exported.out) == document
    assert json.loads(as_json.out)["columns"] == document["columns"]
    assert gradeloop("report", "compared.json", "-o", "again.html").code == 0
    assert (gradeloop.folder / "again.html").read_text().count('<div class="beside"') == page.count('<div class="beside"') == 8


@pytest.mark.slow
def test_results_go_to_files_of_every_kind_and_to_the_store(gradeloop: CommandLine) -> None:
    names = [f"out.{suffix}" for suffix in ("json", "jsonl", "csv", "xml")]
    given = [flag for name in names for flag in ("-o", name)]

    done = gradeloop("eval", suite(gradeloop, "files", MIXED, ["good", "bad", "odd"]), *given)
    batch, files = batch_of(done), [gradeloop.folder / name for name in names]
    exported = gradeloop("batches", "export", batch, "-o", "again.json", "-o", "again.xml")

    document = json.loads(files[0].read_text())
    assert [case["status"] for case in document["cases"]] == ["passed", "failed", "error"]
    assert {json.loads(line)["id"] for line in files[1].read_text().splitlines()} == {"case-0", "case-1", "case-2"}
    assert files[2].read_text().count("\n") == 4
    whole = ET.parse(files[3]).getroot()
    assert [whole.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    assert exported.code == 0, exported.err
    assert json.loads((gradeloop.folder / "again.json").read_text()) == document
    assert (gradeloop.folder / "again.xml").read_text() == files[3].read_text()
    with closing(sqlite3.connect(gradeloop.state / STORE_FILE)) as store:
        assert store.execute("SELECT count(*) FROM cases WHERE batch_id = ?", (batch,)).fetchone() == (3,)


def test_batches_are_listed_and_shown_down_to_a_case(gradeloop: CommandLine) -> None:
    batch = batch_of(gradeloop("eval", suite(gradeloop, "seen", MIXED, ["good", "bad"])))

    listed, whole = gradeloop("batches", "list", "--json"), gradeloop("batches", "show", batch)
    one, as_json = gradeloop("batches", "show", "latest", "case-1"), gradeloop("batches", "show", batch, "case-1", "--json")

    assert json.loads(listed.out)[0]["batch_id"] == batch
    assert "Results: 1 passed, 1 failed of 2" in whole.out
    assert "gap: it is not" in one.out
    assert as_json.result["criteria"][0]["gap"] == "it is not"


@pytest.mark.slow
def test_a_verdict_is_paid_for_once_and_asked_anew_where_that_is_wanted(gradeloop: CommandLine) -> None:
    name = suite(gradeloop, "paid", MIXED, ["a good thing", "a bad thing"])
    gradeloop("eval", name)
    suite(gradeloop, "paid", [breaks()], ["a good thing", "a bad thing"])

    again, anew = gradeloop("eval", name), gradeloop("eval", name, "--no-cache")

    assert "1 passed, 1 failed of 2 (50% of 2 judged, 100% wanted); 2 cached" in again.out
    assert "2 errors of 2" in anew.out


@pytest.mark.slow
def test_an_outage_pauses_the_batch_counts_nobody_as_failed_and_it_ends_once_it_is_over(gradeloop: CommandLine) -> None:
    name = suite(gradeloop, "outage", [passes(), breaks("number 1", kind="server")], [f"number {at}" for at in range(60)], retries=0)

    broken = gradeloop("eval", name, "--max-errors", "3", "--concurrency", "2", "-o", "outage.xml")
    batch, whole = batch_of(broken), ET.parse(gradeloop.folder / "outage.xml").getroot()
    seen = gradeloop("eval", "--attach", batch)
    suite(gradeloop, "outage", [passes()], [])  # the provider is well again: the same file, which its worker reads at its next start
    gradeloop.kill_workers()
    resumed = gradeloop("eval", "--resume", batch)

    assert broken.code == seen.code == 3, broken.err
    assert "0 failed" not in broken.out
    assert " failed" not in broken.out
    assert re.search(r"Results: \d+ passed, [34] errors, \d+ not run of 60 .*; paused: [34] cases ended in an error", broken.out)
    assert f"resume it with: gradeloop eval --resume {batch}" in broken.err
    assert whole.get("failures") == "0"
    assert int(whole.get("errors") or 0) == len(whole.findall(".//error")) > 3
    assert resumed.code == 0, resumed.err
    assert "Results: 60 passed of 60" in resumed.out


@pytest.mark.slow
def test_errors_and_failures_are_run_again(gradeloop: CommandLine) -> None:
    batch = batch_of(gradeloop("eval", suite(gradeloop, "again", [*MIXED, passes("only of again")], ["good", "bad", "odd"])))
    suite(gradeloop, "again", [passes(), fails("bad")], [])
    gradeloop.kill_workers()

    errors = gradeloop("eval", "--retry", "errors")
    suite(gradeloop, "again", [passes()], [])
    gradeloop.kill_workers()
    failures = gradeloop("eval", "--attach", batch, "--retry", "failures")

    assert (errors.code, failures.code) == (1, 0), errors.err + failures.err
    assert "Results: 2 passed, 1 failed of 3" in errors.out
    assert "Results: 3 passed of 3" in failures.out


def test_a_case_whose_calls_lost_their_workers_runs_again_only_by_its_name(gradeloop: CommandLine) -> None:
    batch = batch_of(
        gradeloop("eval", suite(gradeloop, "lost", [*MIXED, passes("only of lost")], ["lost good", "lost bad", "lost odd", "lost odd too"]))
    )
    lost = "worker_lost: 3 workers were lost with this call in flight"
    with closing(sqlite3.connect(gradeloop.state / STORE_FILE)) as store, store:
        store.execute("UPDATE cases SET result = json_set(result, '$.error', ?) WHERE case_id = 'case-2'", (lost,))
    listed = gradeloop("batches", "show", batch, "--quarantined")
    as_json = gradeloop("batches", "show", batch, "--quarantined", "--json")
    suite(gradeloop, "lost", [passes()], [])
    gradeloop.kill_workers()
    others = gradeloop("eval", "--retry", "errors")
    nobody = gradeloop("eval", "--retry", "errors", "--case", "case-9")
    alone = gradeloop("eval", "--attach", batch, "--case", "case-2")
    named = gradeloop("eval", "--attach", batch, "--retry", "errors", "--case", "case-2")
    after = gradeloop("batches", "show", batch, "--quarantined")

    assert re.search(r"1 case of .* in quarantine\ncase +lost workers\ncase-2 +3\n", listed.out)
    assert f"run one again, now, with: gradeloop eval --attach {batch} --retry errors --case ID" in listed.out.replace("\n", " ")
    assert json.loads(as_json.out) == {"case-2": 3}
    assert "Results: 2 passed, 1 failed, 1 error of 4" in others.out
    assert (nobody.code, alone.code) == (2, 2)
    assert "has no case 'case-9'" in nobody.err
    assert "add --retry errors" in alone.err
    assert "Results: 3 passed, 1 failed of 4" in named.out
    assert "0 cases" in after.out


@pytest.mark.slow
def test_ctrl_c_leaves_the_batch_running_and_it_can_be_attached(gradeloop: CommandLine) -> None:
    name = suite(gradeloop, "slow", [passes(delay=0.4)], [f"slow number {at}" for at in range(20)], concurrency=2)
    process = gradeloop.start("eval", name, "--json")
    first = json.loads(line_of(process))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)

    attached = gradeloop("eval", "--attach", "latest", "--json")

    assert first["status"] == "passed"
    assert process.returncode == 130
    assert "still running; follow it with: gradeloop eval --attach slow-" in err
    assert attached.code == 0, attached.err
    assert {line["id"] for line in attached.lines} == {f"case-{at}" for at in range(20)}


def test_a_batch_is_started_and_left_and_paused(gradeloop: CommandLine) -> None:
    name = suite(gradeloop, "left", [passes(delay=0.5)], [f"left number {at}" for at in range(20)], concurrency=1)

    left = gradeloop("eval", name, "--detach")
    until_stored(gradeloop, left.err.split()[-1])
    paused = gradeloop("batches", "pause", "latest")
    seen = gradeloop("eval", "--attach", "latest")
    resumed = gradeloop("eval", "--resume", "latest", "--concurrency", "20")

    assert (left.code, paused.code, seen.code, resumed.code) == (0, 0, 3, 0), left.err + paused.err + seen.err + resumed.err
    assert "paused: paused by a person" in seen.out
    assert "Results: 20 passed of 20" in resumed.out


def test_a_case_that_waits_for_a_person_ends_the_command_and_not_the_case(gradeloop: CommandLine) -> None:
    rubric = {"criteria": ["it is good", {"description": "it may go out", "human": True}]}
    replies = [{"role": "generator", "text": "a letter"}, passes()]
    fields = {
        "prompts": ["Write a letter."],
        "generators": ["scripted:writer"],
        "tests": [{"id": "letter"}],
        "loop": True,
        "rubric": rubric,
    }
    name = suite(gradeloop, "person", replies, [], **fields)

    waiting = gradeloop("eval", name)
    batch = batch_of(waiting)
    listed = gradeloop("list", "--status", "waiting", "--json")
    decided = gradeloop("decide", f"{batch}/letter", "c2", "--pass", "--by", "ann")
    ended = gradeloop("eval", "--attach", batch)

    assert waiting.code == 3, waiting.err
    assert "1 waiting of 1" in waiting.out
    assert f"{batch}/letter" in listed.out, listed.err
    assert decided.code == 0, decided.err
    assert ended.code == 0, ended.out + ended.err


@pytest.mark.slow
def test_on_a_terminal_the_batch_is_a_live_view(gradeloop: CommandLine) -> None:
    name = suite(
        gradeloop, "live", [passes(delay=0.3), fails("live number 3", delay=0.3)], [f"live number {at}" for at in range(8)], concurrency=2
    )

    terminal = gradeloop.terminal("eval", name)
    terminal.until("of 8 done")
    terminal.until("Results:")

    assert terminal.code() == 1
    assert "failed  case-3  c1: it is not" in terminal.text
    assert "Results: 7 passed, 1 failed of 8" in terminal.text


REFUSED: list[tuple[dict[str, Any], tuple[str, ...], str]] = [
    ({"tests": []}, (), "tests"),
    ({"tests": [{"id": "a", "output": "x"}, {"id": "a", "output": "y"}]}, (), "'a'"),
    ({"tests": [{"id": "a", "output": "x" * 1_100_000}]}, (), "'a'"),
    ({"tests": "none.csv"}, (), "none.csv"),
    ({"test": []}, (), "Did you mean 'tests'?"),
    ({}, ("--filter", "nothing-like-it"), "matches no case"),
    ({}, ("-o", "out.docx"), ".docx"),
    ({}, ("-o", "/proc/folder/out.json"), "cannot be written"),
    ({"grader": "openai:gpt-5", "scripted": None}, (), "OPENAI_API_KEY"),
]


def test_a_mistake_is_one_sentence_and_nothing_is_run(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for more, flags, words in REFUSED:
        with subtests.test(words):
            done = gradeloop("eval", suite(gradeloop, "wrong", [passes()], ["good"], **more), *flags)

            assert done.code == 2, done.out
            assert words in done.err
            assert "Traceback" not in done.err
            assert done.out == ""


def test_a_dataset_in_another_encoding_is_told_with_its_place(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "latin.csv").write_bytes("id,output\na,caf\xe9\n".encode("latin-1"))

    done = gradeloop("eval", suite(gradeloop, "latin", [passes()], [], tests="latin.csv"))

    assert done.code == 2
    assert "latin.csv" in done.err
    assert "line 2" in done.err
    assert "0xe9" in done.err


WRONG_FLAGS = [
    ((), "No suite is named, and this folder has none of gradeloop.yaml, suite.yaml, promptfooconfig.yaml"),
    (("gate.yaml", "-c", "gate.yaml"), "the suite is named twice, as 'gate.yaml' and with --config 'gate.yaml'; keep one"),
    (("--watch", "--attach", "a"), "--watch runs a suite again and again; leave --attach out"),
    (("gate.yaml", "--watch", "--detach"), "--watch runs a suite again and again; leave --detach out"),
    (("gate.yaml", "--filter-pattern", "("), "--filter-pattern: '(' is not a regular expression"),
    (("gate.yaml", "--filter-metadata", "kind"), "--filter-metadata: 'kind' is not a pair; write KEY=VALUE"),
    (("gate.yaml", "--var", "=x"), "--var: '=x' is not a pair; write NAME=VALUE"),
    (("gate.yaml", "-t", "none.csv"), "--tests: the file 'none.csv' does not exist"),
    (("gate.yaml", "-p", "none.txt"), "--prompts: the file 'none.txt' does not exist"),
    (("gate.yaml", "--env-file", "none.env"), "--env-file: 'none.env' cannot be read: No such file or directory"),
    (("gate.yaml", "--filter-failing", "none.json"), "there is no file 'none.json'"),
    (("--attach", "nosuch"), "there is no batch 'nosuch' in the store."),
    (("--attach", "a", "--resume", "b"), "--attach and --resume exclude each other; keep one"),
    (("--resume", "a", "--grader", "openai:x"), "need a suite; a batch keeps the ones it was started with"),
    (("none.yaml",), "does not exist"),
    ((".",), "is not a YAML file"),
    (("gate.yaml", "--budget-usd", "0"), "--budget-usd: Input should be greater than 0"),
    (("gate.yaml", "--pass-rate", "1.5"), "--pass-rate"),
]


def test_flags_that_do_not_go_together_are_refused(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for flags, words in WRONG_FLAGS:
        with subtests.test(words):
            suite(gradeloop, "gate", [passes()], ["good"])

            done = gradeloop("eval", *flags)

            assert done.code == 2
            assert words in done.err


def test_a_worker_with_another_store_is_found_out(gradeloop: CommandLine, tmp_path: Path) -> None:
    name = suite(gradeloop, "astray", [passes()], ["good"])
    batch = batch_of(gradeloop("eval", name))
    queue = gradeloop.living_worker()

    done = gradeloop("eval", name, GRADELOOP_STORE=f"sqlite:///{tmp_path}/other.db", GRADELOOP_TASK_QUEUE=queue)

    assert batch
    assert done.code == 2
    assert "its worker uses another store; set GRADELOOP_STORE here to the worker's value" in done.err


@pytest.mark.slow
def test_a_worker_of_ours_that_has_ended_is_started_again_to_take_the_cases(gradeloop: CommandLine) -> None:
    name = suite(gradeloop, "ended", [passes()], ["good"])
    assert gradeloop("eval", name).code == 0
    queue = gradeloop.living_worker()
    gradeloop.kill_workers()

    done = gradeloop("eval", name, GRADELOOP_TASK_QUEUE=queue)

    assert done.code == 0, done.err


@pytest.mark.slow
def test_where_no_worker_takes_the_cases_it_says_which_is_missing(gradeloop: CommandLine) -> None:
    waiting = gradeloop.start("eval", suite(gradeloop, "alone", [passes()], ["good"]), GRADELOOP_TASK_QUEUE="nobodys")
    assert waiting.stderr
    text = waiting.stderr.readline()
    waiting.kill()

    assert text == "no worker has taken the cases so far; start one: gradeloop worker --task-queue nobodys\n"


def test_without_a_server_it_says_so(gradeloop: CommandLine) -> None:
    store = f"sqlite:///{gradeloop.folder / 'away.db'}"
    done = gradeloop("eval", suite(gradeloop, "away", [passes()], ["good"]), TEMPORAL_ADDRESS="127.0.0.1:1", GRADELOOP_STORE=store)

    assert done.code == 4
    assert "No Temporal server answers" in done.err
    assert os.environ.get("GRADELOOP_STORE") is None


def test_what_only_the_worker_knows_is_told_as_a_mistake_too(gradeloop: CommandLine) -> None:
    model = {"id": "openai_compatible:x", "config": {"base_url": "http://127.0.0.2:9/v1"}}
    allowed = {"GRADELOOP_BASE_URLS": "http://127.0.0.2:9"}
    name = suite(gradeloop, "dear", [], ["good"], grader=model)

    unpriced = gradeloop("eval", name, "--budget-usd", "1", **allowed)
    elsewhere = gradeloop("eval", name)

    assert (unpriced.code, elsewhere.code) == (2, 2), unpriced.err + elsewhere.err
    assert "budget.max_cost_usd: the price of 'openai_compatible:x' is not known on this worker" in unpriced.err
    assert "is not allowed on this worker; add it to the worker's GRADELOOP_BASE_URLS" in elsewhere.err
    assert "Traceback" not in unpriced.err + elsewhere.err


@pytest.mark.slow
async def test_ctrl_c_while_a_batch_is_being_started_says_that_it_runs(gradeloop: CommandLine, client: Client, tmp_path: Path) -> None:
    queue, url = f"unbegun-{tmp_path.name}", f"sqlite:///{tmp_path / 'unbegun.db'}"
    name, store = suite(gradeloop, queue, [passes()], ["good"]), Store(url)

    @activity.defn(name="store_cases")
    async def store_cases(upload: Upload) -> int:
        return await BatchStore(store).add(upload)

    # It knows no batches, so that none begins.
    async with Worker(client, task_queue=queue, workflows=[StoreCasesWorkflow], activities=[store_cases], workflow_runner=RUNNER):
        process = gradeloop.start("eval", name, GRADELOOP_TASK_QUEUE=queue, GRADELOOP_STORE=url)
        query, started = f"TaskQueue = '{queue}' AND WorkflowType = 'GradingBatch'", list[str]()
        async with asyncio.timeout(SECONDS):
            while not started:
                started = [workflow.id async for workflow in client.list_workflows(query)]
        process.send_signal(signal.SIGINT)
        _, err = await asyncio.to_thread(process.communicate, timeout=SECONDS)
        await client.get_workflow_handle(started[0]).terminate()
    store.close()

    assert process.returncode == 130
    assert err == f"still running; follow it with: gradeloop eval --attach {started[0]}\n"


async def follow_while_away(
    gradeloop: CommandLine, wire: CutWire, through: str, name: str, until: str, *, back: bool, **variables: str
) -> Done:
    """Run a suite, take the store away once a case has ended, and bring it back once the command has written a text."""
    process = gradeloop.start("eval", name, "--json", GRADELOOP_STORE=through, **variables)
    assert process.stderr
    first = await asyncio.to_thread(line_of, process)
    wire.leave()
    lines: list[str] = []
    while until not in "".join(lines[-1:]):
        lines.append(await asyncio.to_thread(process.stderr.readline))
        assert lines[-1], lines
    wire.refuses = not back
    done = await asyncio.to_thread(ended, process, first)
    return Done(done.code, done.out, "".join(lines) + done.err)


@pytest.mark.slow
async def test_a_store_that_is_away_is_waited_for_with_a_line(gradeloop: CommandLine, server_url: str) -> None:
    name = suite(gradeloop, "store-away", [passes(delay=0.3)], [f"store number {at}" for at in range(8)], concurrency=1)
    async with cut_wire(server_url) as (wire, through):
        done = await follow_while_away(gradeloop, wire, through, name, "waiting for the store", back=True)
        gradeloop.kill_workers()

    assert done.code == 0, done.err
    assert len(done.lines) == 8
    assert done.err.count("waiting for the store") == 1
    assert "the store answers again" in done.err


@pytest.mark.slow
async def test_a_store_that_stays_away_is_given_up_with_the_code_of_no_verdict_and_the_batch_goes_on(
    gradeloop: CommandLine, server_url: str
) -> None:
    name = suite(gradeloop, "store-gone", [passes(delay=0.3)], [f"gone number {at}" for at in range(8)], concurrency=1)
    async with cut_wire(server_url) as (wire, through):
        done = await follow_while_away(gradeloop, wire, through, name, "waiting for the store", back=False, GRADELOOP_STORE_TIMEOUT="1")
        wire.refuses = False
        batch = batch_of(done)
        process = gradeloop.start("eval", "--attach", batch, GRADELOOP_STORE=through)
        attached = await asyncio.to_thread(ended, process)
        gradeloop.kill_workers()

    assert done.code == 3, done.err
    assert f"the batch goes on; follow it with: gradeloop eval --attach {batch}" in done.err
    assert attached.code == 0, attached.err
    assert "Results: 8 passed of 8" in attached.out
