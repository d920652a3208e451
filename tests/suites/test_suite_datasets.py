"""Tests in files: every cell and every output is what stands there, and what is not a table is refused with its line."""

import csv
import io
import itertools
import json
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeloop.suites.datasets import read_csv, read_json, read_jsonl
from gradeloop.suites.load import read_suite
from tests.rig.suites import cases, refusal, written

GIVEN = "grader: scripted:j\nscripted: replies.yaml\nrubric: '- it is kind'\n"

CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | CELLS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CELLS, inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_every_cell_of_csv_is_the_text_that_was_written(rows: list[tuple[str, str]], end: str, mark: bool) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_bytes(text.getvalue().encode("utf-8-sig" if mark else "utf-8"))

        assert [tuple(cells.values()) for _, cells in read_csv(path, "it")] == rows


@given(st.lists(st.dictionaries(CELLS.filter(lambda key: key != "output"), JSON, max_size=3), min_size=1, max_size=4), st.booleans())
def test_json_and_jsonl_are_read_as_any_reader_would(rows: list[dict[str, Any]], indented: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lines, whole = Path(folder) / "rows.jsonl", Path(folder) / "rows.json"
        lines.write_text("\n".join(json.dumps(row, ensure_ascii=indented) for row in rows), encoding="utf-8")
        whole.write_text(json.dumps(rows, indent=2 if indented else None), encoding="utf-8")

        assert [row for _, row in read_jsonl(lines, "it")] == [row for _, row in read_json(whole, "it")] == rows


def test_an_output_that_is_no_text_is_the_json_as_it_was_written(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for written_as, name in itertools.product(("1.10", '{"price": 1.10, "e": 1e2}', "[1.0]", "true", "7.5"), ("rows.jsonl", "rows.json")):
        with subtests.test(written_as=written_as, name=name):
            row = f'{{"id": "a", "x": {{"output": 2}}, "output":  {written_as} , "q": "output"}}'
            (tmp_path / name).write_text(f"[\n{row}]" if name.endswith("n") else row)

            (case,) = cases(tmp_path, GIVEN + f"tests: {name}")

            assert case.output == written_as
            assert case.vars == {"x": {"output": 2}, "q": "output"}


def test_special_columns_are_the_tests_and_all_others_variables(tmp_path: Path) -> None:
    table = 'id, description ,question,output,rubric,threshold,loop\na,,"two\nlines", 1.10 ,"- x {{ question }}\n- y",0.5,true\n,d,q,,,,\n'

    first, second = cases(tmp_path, GIVEN + "prompts: ['{{ question }}']\ntests: rows.csv", rows_csv=table)

    assert (first.id, first.output, first.vars) == ("a", " 1.10 ", {"question": "two\nlines", "loop": "true"})
    assert ([criterion.text for criterion in first.rubric.criteria], first.rubric.threshold) == (["x two\nlines", "y"], 0.5)
    assert (second.description, second.output, [criterion.text for criterion in second.rubric.criteria]) == ("d", "", ["it is kind"])


def test_a_row_with_vars_is_a_test_and_any_other_one_variables(tmp_path: Path) -> None:
    said = '"messages": [{"role": "user", "content": "{{ literally }}"}]'
    rows = f'{{"vars": {{"id": "v"}}, "id": "a", "loop": null, "output": "x", {said}}}\n\n{{"id": "b", "q": "v", "output": "x", {said}}}\n'

    first, second = cases(tmp_path, GIVEN + "tests: rows.jsonl", rows_jsonl=rows)

    assert (first.id, first.vars, second.id, second.vars) == ("a", {"id": "v"}, "b", {"q": "v"})
    assert first.messages[0].content == second.messages[0].content == "{{ literally }}"


def test_several_files_and_tests_stand_one_after_the_other_and_a_pattern_means_many_files(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "b_csv": "id,output\nb,x\n",
        "a_csv": "id,output\na,x\n",
        "c_yaml": "- {id: c, output: x}\n- {vars: {q: 1}, output: '2.50'}",
    }

    found = cases(tmp_path, GIVEN + "tests: ['*.csv', {id: t, output: x}, 'file://c.yaml']", **files)

    assert [case.id for case in found][:4] == ["a", "b", "t", "c"]
    assert found[4].output == "2.50"


def test_what_is_no_dataset_is_refused_with_its_line(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str | bytes, str]] = [
        ("rows.csv", "", "the dataset 'rows.csv', line 1: the file is empty; write the names of the columns"),
        ("rows.csv", "id,output\n", "the dataset 'rows.csv' has no rows; write the tests first"),
        ("rows.csv", "id,output\na,b\n\nc\n", "line 4: the row has 1 cells, the header 2; put a cell that has a comma"),
        ("rows.csv", "id,output\na,b,c\n", "line 2: the row has 3 cells, the header 2"),
        ("rows.csv", "id,output,\na,b,\n", "line 1: column 3 has no name; name it, or remove it"),
        ("rows.csv", "id,output, id\na,b,c\n", "line 1: the column 'id' is there twice; keep one, or rename it"),
        ("rows.csv", "id;output\na;b\n", "line 1: the columns are separated by ';'; save the file with commas"),
        ("rows.csv", 'id,output\na,"b\nc,d\ne', "line 2: unexpected end of data; close the quote that opens there"),
        ("rows.csv", 'id,output\na,"b\nc"\nd,"e"f\n', "line 4: ',' expected after '\"'; close the quote"),
        ("rows.csv", "id,output\na,é\n".encode("latin-1"), "line 2: byte 0xe9 at position 3 is not UTF-8 (Latin-1 or Windows-1252?); save"),
        ("rows.csv", b"q,output\n" + b"a,b\n" * 5000 + b"a,\xff\n", "line 5002: byte 0xff at position 3"),
        ("rows.csv", "id,output\na,é\n".encode("utf-16"), "line 1: it begins with the bytes 0xfffe: UTF-16; save the file as UTF-8"),
        ("rows.csv", "id,output\na,b\n".encode("utf-16-le"), "line 1: there is a NUL byte, as in UTF-16; save the file as UTF-8 text"),
        ("rows.csv", "id,output,threshold\na,b,high\n", "line 2: threshold: 'high' is not a number; write one from 0 to 1"),
        ("rows.csv", "id,output,threshold\na,b,80\n", "line 2: threshold: 80 is outside of 0 to 1"),
        ("rows.csv", "id,output\na,b\na,c\n", "line 3: the id 'a' is that of the dataset 'rows.csv', line 2, too"),
        ("rows.csv", "id,output\n a,b\n", "line 2: id: ' a' is not a name; write one line"),
        ("rows.csv", "q,__expected\na,b\n", "line 2: the column '__expected' is promptfoo's and read only in a promptfooconfig.yaml"),
        ("rows.csv", "output,rubric\na,file://x.md\n", "line 2: rubric: 'file://x.md' is read where the suite itself names it"),
        ("rows.jsonl", "", "the dataset 'rows.jsonl' has no rows"),
        ("rows.jsonl", '{"output": "x"}\n{"output": }\n', "line 2: no JSON: Expecting value at character 12; correct it"),
        ("rows.jsonl", '{"output": "x", "output": "y"}\n', "line 1: no JSON: the key 'output' appears twice; correct it"),
        ("rows.jsonl", '{"output": "x"} {"output": "y"}\n', 'line 1: \' {"output": "y"}\\n\' follows the JSON; write one row a line'),
        ("rows.jsonl", '["x"]\n', "line 1: '[\"x\"]' is not a JSON object"),
        ("rows.jsonl", b'{"output": "x"}\n{"output": "\xe9"}', "line 2: byte 0xe9 at position 13 is not UTF-8"),
        ("rows.jsonl", '{"vars": {"q": 1}, "ouput": "x"}', "line 1: unknown key 'ouput'. Did you mean 'output'?"),
        ("rows.jsonl", '{"output": "x", "y": NaN}', "line 1: no JSON: "),
        ("rows.json", '{"output": "x"}', 'begins with \'{"output": "x"}\'; write a list of rows, or save it as JSONL'),
        ("rows.json", "[]", "the dataset 'rows.json' has no rows"),
        ("rows.json", '[\n{"output": "x"},\n]', "line 3: no JSON: Expecting value"),
        ("rows.json", '[\n{"output": "x"}\n{"output": "y"}]', 'line 2: after this row there is \'{"output"'),
        ("rows.json", '[{"output": "x"}', "line 1: after this row there is ''; write ',' or end the list"),
        ("rows.yaml", "output: x", "the dataset 'rows.yaml' is not a list; write each test after '- '"),
        ("rows.yaml", "- x", "line 1, column 3: [0] is 'x'; write a mapping of its variables"),
        ("rows.yaml", "- {output: 1.10}", "line 1, column 12: [0].output: YAML reads '1.1' as no text; quote it"),
    ]
    for name, raw, words in rows:
        with subtests.test(name=name):
            (tmp_path / name).write_bytes(raw.encode() if isinstance(raw, str) else raw)

            assert words in refusal(tmp_path, GIVEN + f"tests: {name}")


@pytest.mark.slow
def test_many_rows_are_read_one_after_the_other(tmp_path: Path) -> None:
    with (tmp_path / "rows.csv").open("w") as file:
        file.write("question,output\n")
        file.writelines(f"question {at},{'answer ' * 50}\n" for at in range(5_000))
    suite = read_suite(written(tmp_path, GIVEN + "tests: rows.csv"))

    tracemalloc.start()
    count = sum(1 for _ in suite.cases())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count == 5_000
    assert peak < 5_000 * 1_000 + 5_000_000  # what is kept of a row is its id and its place
