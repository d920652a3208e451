"""The columns of a batch, its prompts and generators: the pass rate, cost, latency and named metrics of each."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from gradeloop.batches.contract import BatchSummary, CaseResult, CaseStatus
from gradeloop.contract.messages import Usage
from gradeloop.contract.named_metrics import COUNT, DerivedMetric, calculate
from gradeloop.reports.html import seconds
from gradeloop.stats.intervals import Estimate, Figures, paired_difference
from gradeloop.text import money, one_line

ColumnKey = tuple[str | None, str | None]
"""The labels of a column's prompt and generator, as its cases record them; None where a suite has none."""


class ColumnFigures(Figures):
    """The figures of one column of a batch: `ColumnTable(summary, results).columns()[0].rate.value`."""

    prompt: str | None
    label: str | None
    name: str
    """The labels that tell it from other columns."""
    cases: int
    passed: int
    failed: int
    unsure: int
    errors: int
    rate: Estimate
    """The share of judged cases that passed, 0 to 1; the repetitions of a test are one cluster."""
    cost_usd: float | None
    """US dollars of drafting and judging; None where that is not known."""
    seconds: float | None
    """The median seconds that the model calls of a case took, those of its judge too; None where all came from the cache."""

    @property
    def key(self) -> ColumnKey:
        """The labels of its prompt and generator."""
        return self.prompt, self.label


class Lead(Figures):
    """The column with the highest pass rate, and how far it is ahead of the next: `ColumnTable(summary, results).lead()`."""

    best: ColumnFigures
    second: ColumnFigures
    ahead: Estimate
    """The difference of their mean pass rates, on the tests that both have a verdict on."""


def column_rows(columns: Sequence[ColumnFigures]) -> list[dict[str, str]]:
    """Return a row of texts for each column, by the headings that tables have everywhere; what no column has is left out."""
    first = " / ".join(word for word, at in (("prompt", 0), ("generator", 1)) if len({column.key[at] for column in columns}) > 1)
    rows = [
        {
            first: one_line(column.name),
            "pass rate": column.rate.texts()[0] if column.rate.of else "",
            "95% interval": column.rate.texts()[1],
            "passed": f"{column.passed:,} of {column.rate.of:,}",
            "failed": f"{column.failed:,}",
            "unsure": f"{column.unsure:,}" if any(other.unsure for other in columns) else "",
            "errors": f"{column.errors:,}",
            "cost": money(column.cost_usd),
            "latency": seconds(column.seconds),
        }
        for column in columns
    ]
    return [{name: text for name, text in row.items() if any(other[name] for other in rows)} for row in rows]


@dataclass(frozen=True)
class MetricFigure:
    """A metric of one column of a batch."""

    prompt: str | None
    label: str | None
    """The column: the labels of the prompt and of the generator; None where a suite has none."""
    name: str
    value: float | None
    """The mean score of the criteria that have a verdict; of a derived metric what its formula comes to, None where that is nothing."""
    criteria: int
    """The number of verdicts that the mean is of; 0 for a derived metric."""

    @property
    def key(self) -> ColumnKey:
        """The labels of its column."""
        return self.prompt, self.label

    @property
    def text(self) -> str:
        """The figure in four significant digits."""
        return "no value" if self.value is None else f"{self.value:.4g}"

    @property
    def column(self) -> str:
        """The labels of prompt and generator in one text."""
        return " / ".join(part for part in (self.prompt, self.label) if part)


def scores_by_metric(result: CaseResult) -> dict[str, list[tuple[float, float]]]:
    """Return a case's scores in each named metric with weights; a criterion without a verdict has none, and a hook's replaces them."""
    rows, found = {row.id: row for row in result.criteria if not row.unverified}, dict[str, list[tuple[float, float]]]()
    for share in result.metrics:
        if (row := rows.get(share.criterion)) is not None:
            score = float(row.passed) if row.score is None or row.override else row.score
            found.setdefault(share.name, []).append((score, share.weight))
    for name, score in result.after_each.named_scores.items() if result.after_each else ():
        found[name] = [(score, weight) for _, weight in found.get(name, [(score, 1.0)])]
    return found


def named_scores(result: CaseResult) -> dict[str, float]:
    """Return a case's mean score in each named metric."""
    found = scores_by_metric(result).items()
    return {name: sum(score * weight for score, weight in scores) / sum(weight for _, weight in scores) for name, scores in found}


@dataclass
class _Column:
    """The sums for one prompt and generator."""

    statuses: Counter[CaseStatus] = field(default_factory=Counter)
    tests: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """The verdicts of a test's repetitions: 1 or 0 that passed, of 1."""
    usage: Usage = field(default_factory=Usage)
    seconds: list[float] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        """Add a case and its scores."""
        self.statuses[result.status] += 1
        if result.status in {"passed", "failed"}:
            self.tests.setdefault(result.base_id, []).append((float(result.status == "passed"), 1.0))
        self.usage += result.usage
        self.seconds += [result.usage.seconds] if result.usage.calls else []
        for name, scores in scores_by_metric(result).items():
            self.sums[name] = self.sums.get(name, 0.0) + sum(score * weight for score, weight in scores)
            self.weights[name] = self.weights.get(name, 0.0) + sum(weight for _, weight in scores)
            self.verdicts[name] = self.verdicts.get(name, 0) + len(scores)

    def derived(self, metrics: Iterable[DerivedMetric], known: Iterable[str]) -> dict[str, float | None]:
        """Return what the formulas come to; a metric of the batch that this column lacks is 0, as promptfoo counts it."""
        names = dict.fromkeys(known, 0.0) | self.sums | {COUNT: float(self.statuses["passed"] + self.statuses["failed"])}
        values: dict[str, float | None] = {}
        for metric in metrics:
            values[metric.name] = value = calculate(metric.value, names)
            if value is not None:
                names[metric.name] = value
        return values


class ColumnTable:
    """Adds up the columns of a batch: of the results that it is given, and of each that is added."""

    def __init__(self, summary: BatchSummary, results: Iterable[CaseResult] = ()) -> None:
        self._derived = summary.derived_metrics
        self._columns: dict[ColumnKey, _Column] = {}
        self._repeated = False
        for result in results:
            self.add(result)

    def add(self, result: CaseResult) -> None:
        """Add a case to its column."""
        self._repeated = self._repeated or bool(result.repeat)
        self._columns.setdefault((result.prompt, result.label), _Column()).add(result)

    def columns(self) -> tuple[ColumnFigures, ...]:
        """Return the columns in the order in which they came; none where there is only one."""
        if len(self._columns) < 2:  # noqa: PLR2004 - one is compared with nothing
            return ()
        return tuple(
            ColumnFigures(
                prompt=key[0],
                label=key[1],
                name=self._name(key),
                cases=column.statuses.total(),
                **{status: column.statuses[status] for status in ("passed", "failed", "unsure")},
                errors=column.statuses["error"],
                rate=Estimate.of_clusters(column.tests.values()),
                cost_usd=column.usage.cost_usd,
                seconds=median(column.seconds) if column.seconds else None,
            )
            for key, column in self._columns.items()
        )

    def _name(self, key: ColumnKey) -> str:
        """Return the labels in which a column differs from others."""
        differing = [len({other[at] for other in self._columns}) > 1 for at in (0, 1)]
        return " / ".join(label for label, differs in zip(key, differing, strict=True) if label and differs) or "given outputs"

    def test_of(self, result: CaseResult) -> str:
        """Return the id of a case's test, which it has in common with the cases of other columns.

        A suite ends a case's id with the labels of its column, where there are several, and with its repetition; so a case that records
        none of them, or whose id ends otherwise, is a test of its own.
        """
        return self._test(result.base_id if self._repeated else result.id, (result.prompt, result.label))

    def _test(self, name: str, key: ColumnKey) -> str:
        labels = [f"/{one}" for one in (key[0] if len({other[0] for other in self._columns}) > 1 else None, key[1]) if one]
        return next((name.removesuffix(end) for end in ("".join(labels), *reversed(labels)) if end and name.endswith(end)), name)

    def lead(self) -> Lead | None:
        """Return how far the column with the highest pass rate is ahead of the next; None where they share no test with a verdict."""
        # Two columns are compared on the tests that both have a verdict on, pair by pair. Compared by their
        # rates over all tests, a column whose hard tests ended in errors would be ahead for that. Repetitions
        # of a test are averaged first, so that a test counts once.
        ranked = sorted((column for column in self.columns() if column.rate.of), key=lambda column: -(column.rate.value or 0.0))[:2]
        shares = [
            {self._test(name, column.key): fmean(part for part, _ in runs) for name, runs in self._columns[column.key].tests.items()}
            for column in ranked
        ]
        shared = [test for test in shares[0] if test in shares[1]] if len(shares) > 1 else []
        if not shared:
            return None
        best, second = ([share[test] for test in shared] for share in shares)
        ahead = Estimate.within(fmean(best) - fmean(second), paired_difference(best, second), len(shared))
        return Lead(best=ranked[0], second=ranked[1], ahead=ahead)

    def figures(self) -> list[MetricFigure]:
        """Return the figures, column by column, the named metrics first; those of a batch that names none are empty."""
        known = dict.fromkeys(name for column in self._columns.values() for name in column.sums)
        found = []
        for (prompt, label), column in self._columns.items():
            means = {name: total / column.weights[name] for name, total in column.sums.items()}
            found += [MetricFigure(prompt, label, name, mean, column.verdicts[name]) for name, mean in means.items()]
            found += [MetricFigure(prompt, label, name, value, 0) for name, value in column.derived(self._derived, known).items()]
        return found


def metric_lines(figures: Iterable[MetricFigure]) -> list[str]:
    """Return the figures for people, a line a column: `gpt-5-mini: Tone 0.75, Doubled 1.5`."""
    lines: dict[str, list[str]] = {}
    for figure in figures:
        lines.setdefault(one_line(figure.column or "metrics"), []).append(f"{one_line(figure.name)} {figure.text}")
    return [f"{column}: {', '.join(texts)}" for column, texts in lines.items()]
