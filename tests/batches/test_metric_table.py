"""Named metrics of a batch: means of scores by name and column, formulas over their sums, in every file of results."""

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.batches.exports import read_export
from gradeloop.batches.metric_table import MetricTable, metric_lines
from gradeloop.batches.outputs import Outputs
from gradeloop.batches.pages.read_batch import report_of_file
from gradeloop.contract.evaluation import CriterionRow, Override
from gradeloop.contract.named_metrics import DerivedMetric, MetricShare
from gradeloop.errors import InvalidRequest


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
    table = MetricTable(SUMMARY)
    for case in RESULTS:
        table.add(case)

    assert {figure.name: figure.value for figure in table.figures()} == {"Tone": 0.875, "Facts": 0.5, "Sum": 4.5, "Each": 2.25}
    assert metric_lines(table.figures()) == ["m: Tone 0.875, Facts 0.5, Sum 4.5, Each 2.25"]


def test_a_criterion_without_a_verdict_counts_nowhere_and_a_persons_word_counts() -> None:
    overridden = row("tone", 0.9, passed=False, override=Override(passed=False, by="ada", why="no", time="2026-11-24T00:00:00Z"))
    error = result(2, row("tone", None, passed=False, unverified=True), tone=1).model_copy(update={"status": "error"})
    table = MetricTable(SUMMARY)
    for case in (result(0, overridden, tone=1), result(1, tone=1), error):
        table.add(case)

    tone, *derived = table.figures()

    assert (tone.value, tone.criteria) == (0.0, 1)
    assert [figure.text for figure in derived] == ["no value", "no value"]


def test_each_prompt_and_generator_is_a_column_and_a_metric_that_only_others_have_is_0() -> None:
    table = MetricTable(SUMMARY)
    for case in (*RESULTS, result(3, row("tone", 1.0), label="other", tone=1)):
        table.add(case)

    assert metric_lines(table.figures())[1:] == ["other: Tone 1, Sum 1, Each 1"]


def test_a_batch_without_metrics_has_no_figures() -> None:
    table = MetricTable(SUMMARY.model_copy(update={"derived_metrics": ()}))
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
    assert {"Tone, m": "0.875", "Tone, other": "1"}.items() <= {tile.label: tile.value for tile in report_of_file(two).head.tiles}.items()
