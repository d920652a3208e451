"""`gradeloop diff` as its users run it: batches of the store and files of CI, the gate's exit codes, and every mistake in a sentence."""

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gradeloop.batches.cases import build_result
from gradeloop.batches.charges import CallCost
from gradeloop.batches.compare.comparison import BatchSource, Comparison, compare_batches, compared_case, load_batch, total_cost
from gradeloop.batches.contract import BatchRequest, Case, CaseResult, Upload
from gradeloop.batches.exports import read_export
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.reader import BatchReader
from gradeloop.batches.store import BatchStore
from gradeloop.contract.messages import Usage
from gradeloop.errors import InvalidRequest
from gradeloop.store.engine import Store
from tests.rig.batch_results import HOSTILE, case, row, summary_of
from tests.rig.batches import case as asked
from tests.rig.batches import fails, passes
from tests.rig.cli import CommandLine

BEFORE = [case(0), case(1), case(2), case(3, "failed"), case(4)]
AFTER = [case(0), case(1, "failed"), case(2, "error"), case(3), case(5)]
LINE = '{"schema":"gradeloop.batch/1","index":0,"id":"a","status":"passed"}'


def written(path: Path, results: Sequence[CaseResult], **facts: Any) -> Path:
    """Write a batch's results as `eval -o` does."""
    outputs = Outputs([path])
    for result in results:
        if result.status not in {"queued", "waiting"}:
            outputs.finished(result)
    outputs.close(summary_of(results, **facts), lambda: iter(results))
    return path


def no_store() -> BatchReader:
    raise AssertionError("no store is needed")


async def stored(store: Store, batch_id: str, statuses: Sequence[str], **facts: Any) -> None:
    """Keep a batch whose cases came to these, each repeated as its id says."""
    ledger, cases = BatchStore(store), [Case.model_validate(asked(f"c{at}")) for at in range(len(statuses))]
    await ledger.add(Upload(batch_id=batch_id, first=0, cases=tuple(cases)))
    await ledger.open(BatchRequest(batch_id=batch_id, total=len(cases), name="refunds"))
    for at, status in enumerate(statuses):
        rows = (row("c1", passed=status == "passed"),)
        if status != "queued":
            result = build_result(cases[at], status, output="x", score=float(status == "passed"), criteria=rows, attempt=0, **facts)  # type: ignore[arg-type]  # a status
            await ledger.end_case(batch_id, at, result, CallCost(Usage(input=90, output=10, calls=1, cost_usd=0.5)))


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command with a folder of its own, in which two batches lie as files."""
    for name, results in (("before", BEFORE), ("after", AFTER)):
        for suffix in (".json", ".jsonl"):
            written(commands.folder / f"{name}{suffix}", results, batch_id=name)
    return commands


GATES = [
    ((), 0, ""),
    (("--fail-on", "regressions"), 1, "--fail-on regressions: 1 case regressed"),
    (("--fail-on", "errors"), 1, "--fail-on errors: 1 case went from a verdict to an error"),
    (("--fail-on", "criteria"), 1, "--fail-on criteria: 1 criterion regressed in at least one case"),
    (("--fail-on", "any"), 1, "--fail-on any: 4 findings (regressed cases and criteria"),
    (("--fail-on", "errors", "--fail-on", "regressions"), 1, "1 case went from a verdict to an error\n--fail-on regressions"),
    (("--fail-on", "typo"), 2, "'typo' is not one of"),
]


def test_the_exit_code_is_the_gate(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for flags, code, said in GATES:
        with subtests.test(str(said)):
            done = gradeloop("diff", "before.json", "after.jsonl", *flags)

            assert done.code == code, done.err
            assert said in done.err


def test_the_gate_is_the_first_word_on_terminal_and_page(gradeloop: CommandLine) -> None:
    files = ("before.json", "after.jsonl", "-o", "gated.html", "--overwrite")
    failed = gradeloop("diff", *files, "--fail-on", "errors", "--fail-on", "regressions")
    page = (gradeloop.folder / "gated.html").read_text()
    passed = gradeloop("diff", "after.jsonl", "after.json", "--fail-on", "regressions")
    ungated = gradeloop("diff", "before.json", "after.jsonl")

    assert failed.out.startswith("FAILED by --fail-on errors, regressions: 1 REGRESSED")
    assert '<p class="answer failed">FAILED by --fail-on errors, regressions: 1 REGRESSED' in page
    assert passed.out.startswith("PASSED by --fail-on regressions: NO REGRESSIONS")
    assert ungated.out.startswith("1 REGRESSED")


def test_a_gate_holds_nothing_against_what_got_better(gradeloop: CommandLine) -> None:
    written(gradeloop.folder / "worse.json", [case(0, "failed"), case(1, "error")])
    written(gradeloop.folder / "better.json", [case(0), case(1)])

    done = gradeloop("diff", "worse.json", "better.json", "--fail-on", "any")

    assert (done.code, done.err) == (0, "")
    assert "1 improved, 1 error -> verdict of 2 cases" in done.out


def test_a_gate_does_not_open_for_a_batch_that_has_not_run_all(gradeloop: CommandLine) -> None:
    written(gradeloop.folder / "whole.json", [case(0), case(1)])
    written(gradeloop.folder / "half.json", [case(0), case(1, "queued")])

    done = gradeloop("diff", "whole.json", "half.json", "--fail-on", "regressions")

    assert (done.code, done.err) == (3, "B has not run 1 case\n")
    assert done.out.startswith("INCONCLUSIVE by --fail-on regressions: ")


def test_a_gate_does_not_open_where_nothing_could_be_compared(gradeloop: CommandLine) -> None:
    written(gradeloop.folder / "outage.json", [case(at, "error") for at in range(5)])

    gate, look = (gradeloop("diff", "before.json", "outage.json", *flags) for flags in (("--fail-on", "regressions"), ()))

    assert (gate.code, look.code) == (3, 0)
    assert "no case has a verdict in both batches, so nothing was compared" in gate.err
    assert gate.out.startswith("INCONCLUSIVE by --fail-on regressions: NOTHING COMPARED, 5 NOW WITHOUT A VERDICT\n")
    assert look.out.startswith("NOTHING COMPARED, 5 NOW WITHOUT A VERDICT\n")
    assert "5 verdict -> error of 5 cases" in look.out


def test_the_first_line_sums_up_and_each_kind_is_told(gradeloop: CommandLine) -> None:
    done = gradeloop("diff", "before.json", "after.json")

    assert done.out.splitlines()[0] == "1 REGRESSED, 1 NOW WITHOUT A VERDICT, 1 IMPROVED: too few to tell from chance"
    assert done.out.splitlines()[1] == "1 regressed, 1 verdict -> error, 1 improved, 1 only in B, 1 only in A, 1 same of 6 cases"
    assert "case-1  passed  failed  1.00 -> 0.50  c2 regressed: it says nothing" in done.out
    assert "the provider says 529" in done.out
    assert "1 only in A: case-4" in done.out
    assert "\x1b" not in done.out


@pytest.mark.slow
def test_on_a_terminal_it_has_colours_and_fits_a_narrow_one(gradeloop: CommandLine) -> None:
    terminal = gradeloop.terminal("diff", "before.json", "after.json", size=(50, 40))

    assert terminal.code() == 0
    assert "\x1b[1;31m" in terminal.raw
    assert "c2 regressed: it says" in terminal.text


def test_json_is_the_whole_comparison_and_the_page_is_written_beside(gradeloop: CommandLine) -> None:
    done = gradeloop("diff", "before.json", "after.jsonl", "--json", "-o", "diff.html", "--fail-on", "regressions")

    found = Comparison.model_validate(done.result)
    assert done.code == 1
    assert len(done.lines) == 1
    assert {case.id: case.outcome for case in found.cases}["case-1"] == "regressed"
    assert (found.a.batch_id, found.b.batch_id) == ("before", None)
    assert found.b.cost.cost_usd == pytest.approx(0.005)
    page = (gradeloop.folder / "diff.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "case-1" in page


MISTAKES = [
    (("before.json", "missing.json"), "there is no file 'missing.json'"),
    (("before.json", "x.csv"), "a .csv file has no results by criterion"),
    (("before.json", "."), "there is no batch '.' in the store. The store has none yet."),
    (("before.json", "./"), "cannot be read: Is a directory"),
    (("before.json", "after.json", "-o", "x.json"), "its suffix names no format. Known: .html."),
    (("before.json", "after.json", "-o", "before.json/x.html"), "cannot be written"),
    (("before.json", "latest"), "there is no batch 'latest': the store has none."),
    (("before.json",), "there is no batch 'latest': the store has none."),
    ((), "Missing argument"),
]


def test_a_mistake_is_a_sentence_and_the_code_2(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for arguments, said in MISTAKES:
        with subtests.test(said):
            done = gradeloop("diff", *arguments)

            assert done.code == 2
            assert said in done.err
            assert "Traceback" not in done.err


def test_two_runs_of_a_suite_are_compared_by_how_long_ago_they_were(gradeloop: CommandLine) -> None:
    tests = [{"id": name, "output": f"the {name} one"} for name in ("good", "bad")]
    fields = {"name": "refunds", "grader": "scripted:judge", "scripted": "r.yaml", "rubric": "- it is good", "tests": tests, "repeat": 2}
    (gradeloop.folder / "suite.yaml").write_text(json.dumps(fields))
    for replies in ([passes()], [passes(), fails("bad")]):
        (gradeloop.folder / "r.yaml").write_text(json.dumps({"replies": replies}))
        gradeloop("eval", "suite.yaml", "--no-cache", "-o", "last.json")
        gradeloop.kill_workers()

    done, file = (gradeloop("diff", "latest~1", value, "--json", "--fail-on", "regressions") for value in ("latest", "last.json"))
    beyond = gradeloop("diff", "latest~2", "latest")

    rows = {case["id"]: (case["outcome"], case["b"]["passed"], case["b"]["runs"]) for case in done.result["cases"]}
    assert rows == {"bad": ("regressed", 0, 2), "good": ("same", 2, 2)}
    assert done.code == 1
    assert done.result["cases"] == file.result["cases"]
    assert (done.result["a"]["suite"], done.result["a"]["status"]) == ("refunds", "finished")
    assert "there is no batch 'latest~2': the store has 2. Known: refunds-" in beyond.err


async def test_batches_are_read_from_either_database(url: str) -> None:
    store = Store(url)
    await stored(store, "b-1", ["passed", "passed", "failed", "passed"])
    await stored(store, "b-2", ["passed", "failed", "error", "queued"], error="a \x00 zero")

    found = await _compared(store, "b-1", "b-2")
    latest = await _compared(store, "latest~1", "latest")
    with pytest.raises(InvalidRequest, match=r"there is no batch 'b-3' in the store. Did you mean 'b-"):
        await _compared(store, "b-1", "b-3")
    store.close()

    assert {case.id: case.outcome for case in found.cases} == {"c1": "regressed", "c2": "lost", "c3": "lost", "c0": "same"}
    assert latest.counts == found.counts
    assert (found.a.cost.tokens, found.a.cost.cost_usd, found.a.suite) == (400, 2.0, "refunds")
    assert found.notes == ("b-2 is running: 1 of 4 cases have no verdict yet",)


async def _compared(store: Store, a: str, b: str) -> Comparison:
    import asyncio

    return await asyncio.to_thread(lambda: compare_batches(*(load_batch(value, lambda: BatchReader(store)) for value in (a, b))))


def read_batch_file(path: Path) -> BatchSource:
    """Return the batch in a file, as a comparison has it."""
    return read_export(path, compared_case)


def test_a_file_is_read_as_its_cases_are_whatever_lays_it_out(tmp_path: Path) -> None:
    results = [case(0, "failed", criteria=(row("c1", passed=False, gap=HOSTILE.replace("\ud800", "")),)), case(1), case(2, "error")]
    whole, lines = written(tmp_path / "a.json", results), written(tmp_path / "a.jsonl", results)
    document = json.loads(whole.read_text())
    (tmp_path / "pretty.json").write_text(json.dumps(document, indent=2))
    (tmp_path / "flat.json").write_text(json.dumps(document))
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + whole.read_bytes().replace(b"\n", b"\r\n"))
    other = {"schema": document["schema"], "a key of a later version": 1, "summary": document["summary"] | {"later": 2}}
    (tmp_path / "later.json").write_text(
        json.dumps(other | {"cases": [case | {"later": [3], "usage": case["usage"] | {"later": 4}} for case in document["cases"]]})
    )

    found = [
        read_batch_file(path).cases for path in (whole, lines, *(tmp_path / f"{name}.json" for name in ("pretty", "flat", "bom", "later")))
    ]

    assert [item.status for item in found[0]] == ["failed", "passed", "error"]
    assert all(value == found[0] for value in found)
    assert load_batch(str(lines), no_store).cases == found[0]


def test_an_empty_batch_and_one_with_odd_ids_are_read(tmp_path: Path) -> None:
    odd = ["a/b", '"cases":[', "]}", "😀 …"]

    assert read_batch_file(written(tmp_path / "none.json", [])).cases == []
    assert [
        item.id for item in read_batch_file(written(tmp_path / "odd.json", [case(at, id=name) for at, name in enumerate(odd)])).cases
    ] == odd


def test_lines_of_one_case_that_come_again_are_noted_and_the_last_one_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", [case(0, "error"), case(1)])
    path.write_text(path.read_text() + written(tmp_path / "b.jsonl", [case(0)]).read_text())

    found = read_batch_file(path)

    assert {case.id: case.status for case in found.cases} == {"case-0": "passed", "case-1": "passed"}
    assert found.notes == (f"{path}: 1 line of cases that come again; the last one of each counts",)
    assert total_cost(found.cases).tokens == 240


NO_EXPORTS = [
    ("", "line 1: it is empty; write it with: gradeloop batches export BATCH -o results.json"),
    ("hello\nworld", "line 1: it holds no results of a batch; write it with"),
    ('{"a": 1,\n"b": oops}', "line 2: it holds no results of a batch"),
    ('{"prompts": []}', "line 1: it holds no results of a batch"),
    ("[1, 2]", "line 1: it holds no results of a batch"),
    ("\x80\xff", "line 1: it holds no results"),
    (f'{LINE}\n{{"index":1,"id":"b"}}', "line 2: it is not a case of a batch: status: Field required"),
    ('{"schema":"gradeloop.batch/1","index":0,"id":"a","status":"good"}', "line 1: it is not a case of a batch: status: "),
    (f'{LINE}\n{{"id":"b', "line 2: it is not a case of a batch"),
    ('{"schema":"gradeloop.batch/2","id":"a","state":"passed"}', "'gradeloop.batch/2', this gradeloop reads gradeloop.batch/1"),
    (f'{LINE}\n{{"schema":"gradeloop.batch/12","id":"b"}}', "line 2: its schema is 'gradeloop.batch/12'"),
    ('{"schema":"gradeloop.batch/3",\n"summary":{},\n"rate":1,\n"cases":[\n]}', "line 1: its schema is 'gradeloop.batch/3'"),
    ('{"schema": "gradeloop.diff/1", "cases": []}', "its schema is 'gradeloop.diff/1', this gradeloop reads gradeloop.batch/1"),
    ('{"schema":"gradeloop.batch/1",\n"summary":{},\n"rate":1,\n"cases":[\n]}', "it holds no results of a batch: summary.batch_id"),
]


def test_a_file_that_is_no_export_is_refused_with_line_and_cure(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for text, said in NO_EXPORTS:
        with subtests.test(said):
            (tmp_path / "a.json").write_bytes(text.encode("latin-1"))

            with pytest.raises(InvalidRequest) as refused:
                read_batch_file(tmp_path / "a.json")

            assert str(refused.value).startswith(str(tmp_path / "a.json"))
            assert said in str(refused.value)


def test_a_file_that_was_cut_off_is_refused_rather_than_read_in_part(tmp_path: Path) -> None:
    path = written(tmp_path / "a.json", [case(0), case(1)])
    path.write_text(path.read_text().removesuffix("\n]}\n"))

    with pytest.raises(InvalidRequest, match="line 6: the end of the file is missing, and perhaps cases"):
        read_batch_file(path)


@pytest.mark.slow
def test_large_files_are_compared_without_holding_their_outputs(tmp_path: Path) -> None:
    one = case(0, output="x" * 10_000)
    paths = [written(tmp_path / f"{name}.json", [one.model_copy(update={"id": f"c{at}"}) for at in range(3_000)]) for name in "ab"]
    tracemalloc.start()
    try:
        found = compare_batches(*map(read_batch_file, paths))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert found.counts == {"same": 3_000}
    assert sum(path.stat().st_size for path in paths) > 60_000_000
    assert peak < 25_000_000
