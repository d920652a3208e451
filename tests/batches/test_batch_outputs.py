"""The files that results are written to: what is in them, who can read them, and what is left where writing fails."""

import csv
import io
import itertools
import json
import os
import re
import stat
import tempfile
import tracemalloc
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml  # type: ignore[import-untyped]  # its types are a package of their own
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types
from ruamel.yaml import YAML

from gradeloop.batches.answer import failure_reason
from gradeloop.batches.cli.batch_view import case_lines
from gradeloop.batches.contract import SCHEMA, BatchSummary, CaseResult
from gradeloop.batches.outputs import CELL_CHARACTERS, COLUMNS, CsvFile, Outputs, escape_formula
from gradeloop.batches.pages.read_batch import BatchReport, batch_page, head_of
from gradeloop.cli.schemas import json_schemas
from gradeloop.errors import InvalidRequest
from gradeloop.text import encodable
from tests.rig.batch_results import HOSTILE, TEXTS, case, cases, row, summary_of

MIXED = [case(index, status) for index, status in enumerate(["passed", "failed", "error", "waiting", "queued"])]


EARLIER = f'{{"schema":"{SCHEMA}","id":"earlier"}}\n'
"""A file that gradeloop wrote before."""


def written(results: Sequence[CaseResult], suffix: str, summary: BatchSummary | None = None) -> bytes:
    """Return the file of a batch in one format."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"out{suffix}"
        outputs = Outputs([path])
        for result in results:
            outputs.finished(result)
        outputs.close(summary or summary_of(results), lambda: iter(results))
        return path.read_bytes()


def unescape_cell(cell: str) -> str:
    """Return the text from which `escape_formula` made a cell."""
    return cell[1:] if cell.startswith("'") and escape_formula(cell) != cell else cell


def rows_of(results: Sequence[CaseResult]) -> list[dict[str, str]]:
    """Return the rows of the batch's CSV."""
    text = written(results, ".csv").decode()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def suite_of(results: Sequence[CaseResult], **facts: object) -> ET.Element:
    """Return the `testsuite` of the batch's JUnit file."""
    found = ET.fromstring(written(results, ".xml", summary_of(results, **facts))).find("testsuite")
    assert found is not None
    return found


@given(cases())
def test_whatever_was_said_the_json_is_read_back_as_it_was(results: list[CaseResult]) -> None:
    document = json.loads(written(results, ".json").decode())

    assert document["schema"] == SCHEMA
    assert BatchSummary.model_validate(document["summary"]) == summary_of(results)
    assert [case["output"] for case in document["cases"]] == [result.output and encodable(result.output) for result in results]
    assert [CaseResult.model_validate(case).status for case in document["cases"]] == [result.status for result in results]


@given(cases())
def test_every_line_is_json_names_its_schema_and_is_one_line(results: list[CaseResult]) -> None:
    lines = written(results, ".jsonl").decode().split("\n")[:-1]
    read = [json.loads(line) for line in lines]

    assert [item.pop("schema") for item in read] == [SCHEMA] * len(results)
    assert [CaseResult.model_validate(value).id for value in read] == [encodable(result.id) for result in results]


def test_results_without_half_characters_are_read_back_whole() -> None:
    results = [case.model_copy(update={"vars": {"a": [1, None]}, "output": HOSTILE.replace("\ud800", "")}) for case in MIXED]
    document = json.loads(written(results, ".json").decode())

    assert [CaseResult.model_validate(case) for case in document["cases"]] == results


@pytest.mark.slow
def test_the_published_schemas_describe_what_is_written() -> None:
    document = json.loads(written(MIXED, ".json").decode())
    Draft202012Validator(json_schemas("BatchSummary")).validate(document["summary"])
    for result in document["cases"]:
        Draft202012Validator(json_schemas("CaseResult")).validate(result)

    assert document["rate"] == 0.5


def test_a_line_is_on_the_disk_as_soon_as_its_case_has_ended(tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text(EARLIER)
    outputs = Outputs([tmp_path / "out.jsonl"])
    assert (tmp_path / "out.jsonl").read_text() == EARLIER
    for number, result in enumerate(MIXED, 1):
        outputs.finished(result)
        lines = (tmp_path / "out.jsonl").read_text().splitlines()

        assert len(lines) == number
        assert json.loads(lines[-1])["id"] == result.id
    outputs.close(summary_of(MIXED), lambda: iter(MIXED))


@given(cases())
def test_whatever_was_said_a_cell_is_read_back_as_it_was_and_none_is_a_formula(results: list[CaseResult]) -> None:
    rows = rows_of(results)

    assert [unescape_cell(row["id"]) for row in rows] == [encodable(result.id) for result in results]
    assert [unescape_cell(row["output"]) for row in rows] == [encodable(result.output or "") for result in results]
    assert [row["status"] for row in rows] == [result.status for result in results]
    for cells, result in zip(rows, results, strict=True):
        strings = {name: value for name, value in result.vars.items() if isinstance(value, str)}

        assert not [cell for name, cell in cells.items() if cell[:1] in {"=", "+", "@", "\t", "\r", "＝", "＋", "－", "＠"}]
        assert {name: unescape_cell(cells[encodable(f"vars.{name}")]) for name in strings} == {
            name: encodable(value) for name, value in strings.items()
        }


@given(TEXTS)
def test_a_quote_in_front_is_taken_away_by_its_own_rule_alone(text: str) -> None:
    assert unescape_cell(escape_formula(text)) == text


FORMULAS = ["=1", "+1", "-1", "@x", "\tx", "\rx", "\nx", "＝1", "＋1", "－1", "＠x", "  =1", "\ufeff=1", "\x00=1", "'=1", "''=1"]


def test_what_a_spreadsheet_may_take_for_a_formula_is_given_a_quote(subtests: pytest.Subtests) -> None:
    for text in FORMULAS:
        with subtests.test(text=text):
            assert escape_formula(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "text", "'quoted'", "a=1", "1-1", "{}"])
def test_what_is_no_formula_stays_as_it_is(text: str) -> None:
    assert escape_formula(text) == text


def test_a_row_has_the_worst_criterion_the_cost_and_a_column_a_variable() -> None:
    worse = row("c3", passed=False, score=0.0, gap=None, reason="nothing in it")
    rows = rows_of([case(0, "failed", vars={"n": -1, "deep": {"a": [1]}}), case(1, "error", vars={"text": "-1"}, attempt=2)])
    sorted_out = rows_of([case(0, "failed", criteria=(row("c2", passed=False, score=2.0), worse))])

    assert list(rows[0]) == [*COLUMNS, "vars.n", "vars.deep", "vars.text"]
    assert [rows[0][name] for name in ("score", "worst_criterion", "worst_gap", "cost_usd", "tokens", "cached")] == [
        "0.5", "c2", "it says nothing", "0.001", "120", "false",
    ]  # fmt: skip
    assert [rows[0][f"vars.{name}"] for name in ("n", "deep", "text")] == ["-1", '{"a": [1]}', ""]
    assert [rows[1][name] for name in ("score", "error", "attempt", "vars.text")] == ["", "the provider says 529", "2", "'-1"]
    assert (sorted_out[0]["worst_criterion"], sorted_out[0]["worst_gap"]) == ("c3", "nothing in it")


def test_what_decided_is_named_in_every_output_and_in_the_terminal() -> None:
    rows = (row("free", passed=False, gap="too long"), row("c1"), row("c2", passed=False), row("c3", passed=False, gap="no name"))
    result = case(0, "failed", criteria=rows, decided_by=("c3", "c2"), worst_criterion="c3")
    below = case(1, "failed", criteria=rows, decided_by=("c2",), worst_criterion="c2", missed_threshold=0.8)
    impossible = case(2, "failed", criteria=rows, decided_by=(), worst_criterion="c2", explanation="It cannot be judged.")
    weightless = case(3, criteria=rows[:2], decided_by=())
    gapless = case(0, "failed", criteria=(row("c1"), row("c2", passed=False, reason="", gap=None)))

    assert failure_reason(gapless) == "c2: not met: the text of c2"
    assert [failure_reason(item) for item in (result, below, impossible, weightless)] == [
        "c3: no name (and c2)",
        "score 0.50, below the threshold 0.8: c2: it says nothing",
        "It cannot be judged.",
        "",
    ]
    cells = rows_of([result, below, weightless])
    assert [(cell["worst_criterion"], cell["worst_gap"], cell["decided_by"]) for cell in cells] == [
        ("c3", "no name", "c3, c2"),
        ("c2", "it says nothing", "c2"),
        ("", "", ""),
    ]
    failure = suite_of([result]).find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "c3: no name (and c2)"
    assert str(failure.text).splitlines() == [
        "score 0.50",
        "c3: the text of c3: no name",
        "c2: the text of c2: it says nothing",
        "free: the text of free: too long (it did not decide)",
    ]
    assert "  decided by: c3, c2" in [getattr(line, "plain", "") for line in case_lines(result)]
    page = batch_page(BatchReport(head_of(summary_of([result])), [(None, result)]))
    assert '<b class="id">c3, c2</b> no name' in page


def test_a_cell_holds_no_more_than_a_spreadsheet_does_and_says_what_was_cut() -> None:
    cell = rows_of([case(output="=" * 1024 * 1024)])[0]["output"]

    assert len(cell) < 32_767
    assert cell.startswith("'===")
    assert cell.endswith("=… (1048576 characters)")
    assert len(rows_of([case(output="a" * CELL_CHARACTERS)])[0]["output"]) == CELL_CHARACTERS


def test_too_many_variables_for_columns_share_one() -> None:
    results = [case(index, vars={f"v{index}": index}) for index in range(1_002)]
    rows = rows_of(results)

    assert list(rows[0]) == [*COLUMNS, "vars"]
    assert rows[1_001]["vars"] == '{"v1001": 1001}'


def test_junit_tells_a_failure_from_what_could_not_be_judged() -> None:
    suite = suite_of(MIXED, cached=2, usage={"input": 5, "calls": 1, "cost_usd": 0.25}, reason="a limit", status="paused")
    outcomes = {testcase.get("name"): [child.tag for child in testcase if child.tag != "system-out"] for testcase in suite.iter("testcase")}
    properties = {property_.get("name"): property_.get("value") for property_ in suite.iter("property")}

    assert {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped", "time")} == {
        "name": "suite", "tests": "5", "failures": "1", "errors": "3", "skipped": "0", "time": "6.250",
    }  # fmt: skip
    assert list(outcomes.values()) == [[], ["failure"], ["error"], ["error"], ["error"]]
    assert [error.get("type") for error in suite.iter("error")] == ["error", "waiting", "queued"]
    assert (properties["schema"], properties["reason"], properties["cost_usd"]) == (SCHEMA, "a limit", "0.250000")


def test_junit_says_what_is_held_against_a_case_and_where_it_belongs() -> None:
    suite = suite_of([case(7, "failed", prompt="short", label="gpt")])
    found = next(suite.iter("testcase"))
    failure = found.find("failure")

    assert (found.get("classname"), found.get("name"), found.get("time")) == ("suite.short.gpt", "case-7", "1.250")
    assert failure is not None
    assert failure.get("message") == "c2: it says nothing"
    assert failure.text == "score 0.50\nc2: the text of c2: it says nothing"
    assert found.findtext("system-out") == "the draft 7"


@given(cases())
def test_whatever_was_said_junit_is_xml_with_a_test_case_a_case(results: list[CaseResult]) -> None:
    suite = suite_of(results, name=HOSTILE)

    assert len(suite.findall("testcase")) == len(results) == int(suite.get("tests", ""))
    assert int(suite.get("failures", "")) == len(list(suite.iter("failure")))
    assert int(suite.get("errors", "")) == len(list(suite.iter("error")))


def test_junit_keeps_the_elements_and_attributes_that_jenkins_knows() -> None:
    root = ET.fromstring(written(MIXED, ".xml"))
    known = {
        "testsuites": ({"testsuite"}, {"name", "tests", "failures", "errors", "time"}),
        "testsuite": ({"properties", "testcase"}, {"name", "tests", "failures", "errors", "time", "skipped", "timestamp", "id"}),
        "properties": ({"property"}, set()),
        "property": (set(), {"name", "value"}),
        "testcase": ({"failure", "error", "system-out"}, {"name", "classname", "time"}),
        "failure": (set(), {"message", "type"}),
        "error": (set(), {"message", "type"}),
        "system-out": (set(), set()),
    }
    for element in root.iter():
        children, attributes = known[element.tag]

        assert {child.tag for child in element} <= children
        assert set(element.attrib) <= attributes


def test_junit_shortens_outputs_and_replaces_what_xml_cannot_hold() -> None:
    suite = suite_of([case(0, "failed", output="x" * 1024 * 1024), case(1, output="y" * 1000), case(2, "error", error=HOSTILE)])
    outputs = [element.text or "" for element in suite.iter("system-out")]
    error = next(suite.iter("error"))

    assert outputs[0] == "x" * 4_000 + "… (1048576 characters)"
    assert outputs[1] == "y" * 500 + "… (1000 characters)"
    assert "�[2J" in (error.text or "")
    assert "]]>" in (error.text or "")
    assert "\u202e" not in error.get("message", "")


def test_what_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        (
            "out.yam",
            "its suffix names no format. Did you mean '.yaml'? Known: .csv, .html, .json, .jsonl, .md, .txt, .xml, .yaml, .yml, .promptfoo",
        ),
        ("out.jsonn", "Did you mean '.json"),
        ("out", "its suffix names no format"),
        ("folder.json", "is not a file; name one, such as results.json"),
        ("file.txt/out.json", "cannot be written"),
        ("/proc/out.json", "cannot be written"),
        (f"{'x' * 300}.json", "File name too long"),
        ("loop.json", "cannot be written"),
    ]
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file.txt").touch()
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "kept.jsonl").write_text(EARLIER)
    for name, sentence in rows:
        with subtests.test(name=name):
            with pytest.raises(InvalidRequest) as refused:
                Outputs([tmp_path / "kept.jsonl", tmp_path / name])

            assert sentence in str(refused.value)
            assert name[:20] in str(refused.value)
            assert (tmp_path / "kept.jsonl").read_text() == EARLIER


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out.json").touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    with pytest.raises(InvalidRequest, match="may not be written; change its permissions, or name another"):
        Outputs([tmp_path / "out.json"])


def test_a_file_that_is_named_twice_is_refused_however_it_is_spelled(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="named twice"):
        Outputs([tmp_path / "out.json", tmp_path / "x" / ".." / "out.json"])


def test_several_formats_are_written_at_once_and_nothing_else_is_left(tmp_path: Path) -> None:
    names = ["out.JSON", "out.csv", "out.jsonl", "out.md", "out.txt", "out.xml", "out.yaml", "out.yml"]
    outputs = Outputs([tmp_path / name for name in names])
    assert list(tmp_path.iterdir()) == []
    outputs.close(summary_of(MIXED), lambda: iter(MIXED))

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_an_older_file_stays_whole_where_the_results_cannot_be_read_to_their_end(tmp_path: Path) -> None:
    paths = [tmp_path / f"out{suffix}" for suffix in (".json", ".csv", ".xml")]
    for path in paths:
        path.write_text("older")

    def broken() -> Iterator[CaseResult]:
        yield MIXED[0]
        raise OSError("the store is gone")

    for files in ([paths[0]], paths):
        with pytest.raises(OSError, match="the store is gone"):
            Outputs(files, overwrite=True).close(summary_of(MIXED), broken)

    assert [path.read_text() for path in sorted(tmp_path.iterdir())] == ["older"] * 3


def test_a_file_of_results_is_replaced_and_a_file_of_others_is_not(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[list[CaseResult]] = [MIXED, [case(output=HOSTILE, description=HOSTILE)], []]
    for suffix, results in itertools.product((".json", ".jsonl", ".csv", ".xml", ".yaml", ".yml", ".txt", ".md"), rows):
        with subtests.test(suffix=suffix, results=results):
            path = tmp_path / f"out{suffix}"
            path.write_bytes(written(results, suffix, summary_of(results, name="a <suite> & its" * 10)))
            Outputs([path]).close(summary_of(results), partial(iter, results))
            path.write_text('{"schema": "mine", "question": "precious"}')

            with pytest.raises(
                InvalidRequest, match=r"is a file that gradeloop did not write; name another, or replace it with --overwrite"
            ):
                Outputs([path])

            assert "precious" in path.read_text()
            Outputs([path], overwrite=True).close(summary_of(results), partial(iter, results))
            assert "precious" not in path.read_text()


def test_a_file_is_replaced_where_a_link_leads_and_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text(EARLIER)
    (tmp_path / "real.json").chmod(0o640)
    (tmp_path / "out.json").symlink_to(tmp_path / "real.json")
    Outputs([tmp_path / "out.json"]).close(summary_of(MIXED), lambda: iter(MIXED))

    assert (tmp_path / "out.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["schema"] == SCHEMA
    assert stat.S_IMODE((tmp_path / "real.json").stat().st_mode) == 0o640


def test_a_batch_without_cases_has_files_all_the_same() -> None:
    assert json.loads(written([], ".json"))["cases"] == []
    assert written([], ".jsonl") == b""
    assert rows_of([]) == []
    assert suite_of([]).get("tests") == "0"


@pytest.mark.slow
def test_many_results_are_written_without_being_held(tmp_path: Path) -> None:
    one = case(0, "failed")

    def many() -> Iterator[CaseResult]:
        return (one.model_copy(update={"id": f"case-{index}", "output": f"{index}" * 400, "vars": {"n": index}}) for index in range(6_000))

    outputs = Outputs([tmp_path / f"out{suffix}" for suffix in (".json", ".csv", ".xml")])
    tracemalloc.start()
    try:
        outputs.close(summary_of(MIXED), many)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (tmp_path / "out.json").stat().st_size > 6_000_000
    assert peak < 4_000_000, "the file has more than 6 MB"


@given(st.lists(TEXTS, max_size=3))
def test_headings_are_no_formulas_either(names: list[str]) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    CsvFile(file, names)
    file.flush()
    file.seek(0)

    assert not [cell for cell in next(csv.reader(file)) if cell.startswith(("=", "+", "-", "@"))]
    file.close()


@pytest.mark.slow
@given(cases())
def test_whatever_was_said_the_yaml_is_the_json_for_every_reader(results: list[CaseResult]) -> None:
    text, document = written(results, ".yaml").decode(), json.loads(written(results, ".json"))

    assert YAML(typ="safe", pure=True).load(text) == document
    assert yaml.safe_load(text) == document


@given(cases())
def test_whatever_was_said_a_case_is_one_row_of_markdown_without_links_or_html(results: list[CaseResult]) -> None:
    text = written(results, ".md").decode()
    table = text[text.index("| case | generator |") :]
    bare = [re.sub(r"\\.", "", line) for line in table.split("\n") if line.startswith("|")]

    assert len(bare) == len(results) + 2
    assert {row.count("|") for row in bare} == {7}
    assert not re.search(r"[<\[`@]|://", "".join(bare))


def test_results_as_text_and_markdown_say_what_each_case_came_to() -> None:
    text, table = written(MIXED, ".txt").decode(), written(MIXED, ".md").decode()

    assert text.startswith("gradeloop results of suite\nResults: 1 passed, 1 failed, 1 error, 1 waiting, 1 not run of 5")
    assert "failed 0.50  case-1\n  why: c2: it says nothing\n  | the draft 1\n" in text
    assert "| case-1 |  | failed | 0.50 | c2: it says nothing | the draft 1 |\n" in table
