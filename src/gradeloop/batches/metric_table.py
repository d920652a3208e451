"""The named metrics of a batch: by prompt and generator the mean score of each, and what formulas make of their sums."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from gradeloop.batches.contract import BatchSummary, CaseResult
from gradeloop.contract.named_metrics import COUNT, DerivedMetric, calculate
from gradeloop.text import one_line


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
    def text(self) -> str:
        """The figure in four significant digits."""
        return "no value" if self.value is None else f"{self.value:.4g}"

    @property
    def column(self) -> str:
        """The labels of prompt and generator in one text."""
        return " / ".join(part for part in (self.prompt, self.label) if part)


@dataclass
class _Column:
    """The sums for one prompt and generator."""

    judged: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)

    def add(self, result: CaseResult) -> None:
        """Add the scores of a case; a criterion without a verdict is left out."""
        self.judged += result.status in {"passed", "failed"}
        rows = {row.id: row for row in result.criteria}
        for share in result.metrics:
            row = rows.get(share.criterion)
            if row is None or row.unverified:
                continue
            score = float(row.passed) if row.score is None or row.override else row.score
            self.sums[share.name] = self.sums.get(share.name, 0.0) + score * share.weight
            self.weights[share.name] = self.weights.get(share.name, 0.0) + share.weight
            self.verdicts[share.name] = self.verdicts.get(share.name, 0) + 1

    def derived(self, metrics: Iterable[DerivedMetric], known: Iterable[str]) -> dict[str, float | None]:
        """Return what the formulas come to; a metric of the batch that this column lacks is 0, as promptfoo counts it."""
        names = dict.fromkeys(known, 0.0) | self.sums | {COUNT: float(self.judged)}
        values: dict[str, float | None] = {}
        for metric in metrics:
            values[metric.name] = value = calculate(metric.value, names)
            if value is not None:
                names[metric.name] = value
        return values


class MetricTable:
    """Adds up the named metrics of a batch: of the results that it is given, and of each that is added."""

    def __init__(self, summary: BatchSummary, results: Iterable[CaseResult] = ()) -> None:
        self._derived = summary.derived_metrics
        self._columns: dict[tuple[str | None, str | None], _Column] = {}
        for result in results:
            self.add(result)

    def add(self, result: CaseResult) -> None:
        """Add a case; one that asks for no metric adds to none, but is counted where it was judged."""
        if self._derived or result.metrics:
            self._columns.setdefault((result.prompt, result.label), _Column()).add(result)

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
