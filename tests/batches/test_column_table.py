"""The columns of a batch, its prompts and models: rates, cost, latency and named metrics of each, in every file of results."""

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from ruamel.yaml import YAML

from gradeloop.batches.answer import answer_of, words_by_column
from gradeloop.batches.cli.results_table import column_lines
from gradeloop.batches.column_table import ColumnTable, column_rows, metric_lines
from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.exports import read_export
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.pages.read_batch import report_of_file
from gradeloop.contract.evaluation import CriterionRow, Override
from gradeloop.contract.messages import Usage
from gradeloop.contract.named_metrics import DerivedMetric, MetricShare
from gradeloop.errors import InvalidRequest
from tests.rig.batch_results import case, summary_of


def row(name: str, score: float | None, *, passed: bool = True, unverified: bool = False, override: Override | None = None) -> CriterionRow:
    """Return a row of a criterion."""
    return CriterionRow(id=name, name=name, passed=passed, reason="", score=score, unverified=unverified, override=override)


def result(at: int, *rows: CriterionRow, label: str | None = "m", **weights: float) -> CaseResult:
    """Return a case whose criteria count in metrics that have their names."""
    shares = tuple(MetricShare(name=name.title(), criterion=name, weight=weight) for name, weight in weights.items())
    return CaseResult(index=at, id=f"case-{at}", status="passed", label=label, criteria=rows, metrics=shares)


DERIVED = (DerivedMetric(name="Sum", value="Tone + Facts"), DerivedMetric(name="Each", value="Sum / __count"))
SUMMARY = BatchSummary(batch_id="b", created="2026-11-24T00:00:00Z", status="finished", total=2, passed=2, derived_metrics=DERIVED)
RESULTS = (
    result(0, row("tone", 0.5), row("facts", None), tone=1, facts=1),
    result(1, row("tone", 1.0), row("facts", None, passed=False), tone=3, facts=1),
)


def test_a_metric_is_the_weighted_mean_of_its_scores_and_a_formula_reads_their_sum() -> None:
    table = ColumnTable(SUMMARY)
    for each in RESULTS:
        table.add(each)

    assert {figure.name: figure.value for figure in table.figures()} == {"Tone": 0.875, "Facts": 0.5, "Sum": 4.5, "Each": 2.25}
    assert metric_lines(table.figures()) == ["m: Tone 0.875, Facts 0.5, Sum 4.5, Each 2.25"]


def test_a_criterion_without_a_verdict_counts_nowhere_and_a_persons_word_counts() -> None:
    overridden = row("tone", 0.9, passed=False, override=Override(passed=False, by="ada", why="no", time="2026-11-24T00:00:00Z"))
    error = result(2, row("tone", None, passed=False, unverified=True), tone=1).model_copy(update={"status": "error"})
    table = ColumnTable(SUMMARY)
    for each in (result(0, overridden, tone=1), result(1, tone=1), error):
        table.add(each)

    tone, *derived = table.figures()

    assert (tone.value, tone.criteria) == (0.0, 1)
    assert [figure.text for figure in derived] == ["no value", "no value"]


def test_each_prompt_and_generator_is_a_column_and_a_metric_that_only_others_have_is_0() -> None:
    table = ColumnTable(SUMMARY)
    for each in (*RESULTS, result(3, row("tone", 1.0), label="other", tone=1)):
        table.add(each)

    assert metric_lines(table.figures())[1:] == ["other: Tone 1, Sum 1, Each 1"]


def test_a_batch_without_metrics_has_no_figures() -> None:
    table = ColumnTable(SUMMARY.model_copy(update={"derived_metrics": ()}))
    table.add(result(0, row("tone", 1.0)))

    assert table.figures() == []


def test_files_of_results_have_the_figures_and_are_read_again(tmp_path: Path) -> None:
    paths = [tmp_path / f"r.{suffix}" for suffix in ("json", "yaml", "md", "txt")]
    Outputs(paths).close(SUMMARY, lambda: RESULTS)

    whole = json.loads(paths[0].read_text())
    assert whole["metrics"][0] == {"prompt": None, "label": "m", "name": "Tone", "value": 0.875, "criteria": 2}
    assert YAML(typ="safe").load(paths[1])["metrics"] == whole["metrics"]
    assert "| Each | m | 2.25 |" in paths[2].read_text()
    assert paths[3].read_text().endswith("\nm: Tone 0.875, Facts 0.5, Sum 4.5, Each 2.25\n")
    export = read_export(paths[0], lambda case: case)
    assert [case.metrics for case in export.cases] == [case.metrics for case in RESULTS]
    assert export.summary == SUMMARY


def test_a_file_that_was_cut_after_its_cases_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    Outputs([path]).close(SUMMARY, lambda: RESULTS)
    path.write_text(path.read_text()[:-20])

    with pytest.raises(InvalidRequest, match="the end of the file is missing"):
        read_export(path, lambda case: case)


def test_the_page_of_a_file_of_results_shows_the_figures_and_their_columns_where_there_are_several(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    Outputs([one]).close(SUMMARY, lambda: RESULTS)
    Outputs([two]).close(SUMMARY, lambda: (*RESULTS, result(3, row("tone", 1.0), label="other", tone=1)))

    assert {"Tone": "0.875", "Each": "2.25"}.items() <= {tile.label: tile.value for tile in report_of_file(one).head.tiles}.items()
    head = report_of_file(two).head
    assert "Tone" not in {tile.label for tile in head.tiles}
    assert [head.metrics[column.key]["Tone"] for column in head.columns] == ["0.875", "1"]


PLAIN = SUMMARY.model_copy(update={"derived_metrics": ()})


def suite_of(*statuses: str, label: str, prompt: str | None = None, **facts: object) -> list[CaseResult]:
    """Return the cases of one column, a test each."""
    name = "/".join(part for part in (prompt, label) if part)
    return [case(at, status, id=f"t{at}/{name}", label=label, prompt=prompt, **facts) for at, status in enumerate(statuses)]


def test_each_prompt_and_model_has_a_rate_with_its_interval_cost_and_latency() -> None:
    good, bad = suite_of("passed", "passed", "error", label="large"), suite_of("failed", "passed", "failed", label="mini")
    table = ColumnTable(PLAIN, [*good, *bad])

    large, mini = table.columns()

    assert [(one.name, one.passed, one.failed, one.errors, one.cases) for one in (large, mini)] == [
        ("large", 2, 0, 1, 3),
        ("mini", 1, 2, 0, 3),
    ]
    assert [one.rate.value for one in (large, mini)] == pytest.approx([1.0, 1 / 3])
    assert 0 < (mini.rate.low or 0) < 1 / 3 < (mini.rate.high or 0) < 1
    assert [mini.cost_usd, mini.seconds] == pytest.approx([0.003, 1.25])
    assert column_rows(table.columns())[1] == {
        "generator": "mini",
        "pass rate": "33.3%",
        "95% interval": "6.1% to 79.2%",
        "passed": "1 of 3",
        "failed": "2",
        "errors": "0",
        "cost": "$0.0030",
        "latency": "1.2 s",
    }


def test_a_batch_of_one_model_has_no_columns_to_compare() -> None:
    assert ColumnTable(PLAIN, suite_of("passed", "failed", label="mini")).columns() == ()
    assert ColumnTable(PLAIN, [case(0), case(1, "failed")]).columns() == ()


def test_a_name_says_what_differs_and_prompts_times_models_are_columns() -> None:
    several = [one for prompt in ("short", "long") for label in ("a", "b") for one in suite_of("passed", label=label, prompt=prompt)]

    assert [column.name for column in ColumnTable(PLAIN, several).columns()] == ["short / a", "short / b", "long / a", "long / b"]
    assert [column.name for column in ColumnTable(PLAIN, several[::2]).columns()] == ["short", "long"]
    given = [*suite_of("passed", label="a"), case(7)]
    assert [column.name for column in ColumnTable(PLAIN, given).columns()] == ["a", "given outputs"]


def test_repetitions_of_a_test_are_one_cluster_and_make_no_interval_narrower() -> None:
    repeated = [case(at, "passed" if at < 15 else "failed", id=f"t{at // 5}/a/{at % 5 + 1}", label="a", repeat=at % 5) for at in range(30)]
    alone = [case(at, "passed" if at < 15 else "failed", id=f"t{at}/b", label="b") for at in range(30)]

    one, other = ColumnTable(PLAIN, [*repeated, *alone]).columns()

    assert one.rate.value == other.rate.value == 0.5
    assert 0 < (one.rate.low or 0) < (other.rate.low or 0)


def test_what_a_cached_case_did_not_wait_for_is_no_latency() -> None:
    cached = suite_of("passed", label="b", usage=Usage())
    a, b = ColumnTable(PLAIN, [*suite_of("passed", label="a"), *cached]).columns()

    assert (a.seconds, b.seconds) == (1.25, None)
    assert [row["latency"] for row in column_rows([a, b])] == ["1.2 s", ""]


def test_a_failed_answer_names_the_columns_below_the_gate_and_those_that_pass() -> None:
    results = [*suite_of("passed", "passed", label="large"), *suite_of("failed", "passed", label="mini"), *suite_of("error", label="none")]
    summary = summary_of(results, pass_rate=0.9, allow_errors=0.5)
    table = ColumnTable(summary, results)

    assert answer_of(summary).text == "FAILED 75% of 90%"
    assert words_by_column(table, summary)[1:] == ["Below 90%: mini 50% of 2; reached by: large 100% of 2; without a verdict: none"]
    assert words_by_column(table, summary.model_copy(update={"pass_rate": 0.2}))[1:] == []
    assert words_by_column(ColumnTable(summary), summary) == []


def test_the_best_column_is_named_where_more_than_chance_sets_it_apart_from_the_next() -> None:
    def words(large: int, mini: int, *, shared: int = 30) -> list[str]:
        """Return what is said of two models by how many of 30 tests each passes; the tests are the same, but for those not shared."""
        statuses = [["passed"] * passed + ["failed"] * (30 - passed) for passed in (large, mini)]
        results = [case(at, status, id=f"t{at}/large", label="large") for at, status in enumerate(statuses[0])]
        results += [case(at, status, id=f"t{at + 30 - shared}/mini", label="mini") for at, status in enumerate(statuses[1])]
        return words_by_column(ColumnTable(PLAIN, results), PLAIN)

    assert words(28, 14) == ["Best: large, 46.7 points above mini on the 30 tests that both have (95% interval 25.4 to 63.2)"]
    (close,) = words(16, 14)
    assert close.startswith("large is 6.7 points ahead of mini, which may be chance, on the 30 tests that both have (95% interval -")
    assert words(14, 14)[0].startswith("large and mini are level, which may be chance, on the 30 tests")
    assert words(28, 14, shared=0) == []


def test_a_test_is_found_by_what_its_cases_record_and_not_by_guessing() -> None:
    ids = {"a/p/x": ("p", "x"), "a/q/y": ("q", "y"), "b/p": (None, None), "c/x/x": (None, "x")}
    table = ColumnTable(PLAIN, [case(at, id=name, prompt=key[0], label=key[1]) for at, (name, key) in enumerate(ids.items())])

    found = [table.test_of(case(id=name, prompt=key[0], label=key[1])) for name, key in ids.items()]

    assert found == ["a", "a", "b/p", "c/x"]


def test_files_of_results_have_the_columns_and_are_read_again(tmp_path: Path) -> None:
    results = [*suite_of("passed", "failed", label="large|"), *suite_of("failed", "failed", label="mini")]
    summary = summary_of(results, pass_rate=0.5)
    paths = [tmp_path / f"r.{suffix}" for suffix in ("json", "yaml", "md", "txt")]
    Outputs(paths).close(summary, lambda: results)

    whole = json.loads(paths[0].read_text())
    first = whole["columns"][0]
    assert (first["label"], first["passed"], first["rate"]["value"], first["cost_usd"]) == ("large|", 1, 0.5, 0.002)
    assert YAML(typ="safe").load(paths[1])["columns"] == whole["columns"]
    markdown = paths[2].read_text()
    assert "Below 50%: mini 0% of 2; reached by: large\\| 50% of 2" in markdown
    assert "| large\\| | 50.0% | 9.5% to 90.5% | 1 of 2 | 1 | 0 | $0.0020 | 1.2 s |" in markdown
    assert "large|, pass rate 50.0%" in paths[3].read_text()
    assert [case.id for case in read_export(paths[0], lambda case: case).cases] == [result.id for result in results]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_shows_names_whole_and_what_fits(width: int) -> None:
    names = [f"openai:gpt-5-mini-with-a-long-name-{end}" for end in ("one", "two")]
    columns = ColumnTable(PLAIN, [result for name in names for result in suite_of("passed", "failed", label=name)]).columns()
    console = Console(file=StringIO(), width=width, markup=False)
    for line in column_lines(columns, width):
        console.print(line)

    said = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO

    assert all(name in "".join(line[: said.index(" pass rate")].strip() for line in said.splitlines()) for name in names)
    assert re.search(r"50\.0% +9\.5% to 90\.5% +1 of 2", said)
    assert ("latency" in said) == (width > 60)
