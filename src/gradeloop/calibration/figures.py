"""The figures of one key: how a judge agrees with people, each with its 95 % interval, over runs."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import sqrt
from operator import mul

from gradeloop.judges.judgements import ComparedKey
from gradeloop.stats import reliability
from gradeloop.stats.bootstrap import REPLICATES, Statistic, bootstrap, over_clusters
from gradeloop.stats.intervals import ROUNDING, Estimate, Interval, mean, wilson
from gradeloop.text import canonical_json


class Kinds:
    """Runs by what judge and people say of them, drawn together: what counts is how often each kind of run occurs."""

    def __init__(self, rated: Iterable[reliability.Rated]) -> None:
        self.rated = tuple(rated)
        kinds = Counter(row._replace(cluster="") for row in self.rated)
        self.kinds, self.counts = list(kinds), list(kinds.values())
        clusters: dict[str | int, Counter[reliability.Rated]] = {}
        for at, row in enumerate(self.rated):
            clusters.setdefault(row.cluster or at, Counter())[row._replace(cluster="")] += 1
        alike = 1 < len(clusters) < len(self.rated)
        self.parts = [tuple(found[kind] for kind in self.kinds) for found in clusters.values()] if alike else []
        """The number of runs of each kind in every cluster; empty where each run is one of its own, or all are one."""

    def cells(self, counts: Sequence[int]) -> dict[tuple[object, object], float]:
        """Return how often label and judge's value occur together, where kinds of runs occur so often."""
        cells: dict[tuple[object, object], float] = {}
        for kind, count in zip(self.kinds, counts, strict=True):
            if count and kind.judged is not None:
                for label in kind.labels:
                    cells[label, kind.judged] = cells.get((label, kind.judged), 0) + count
        return cells

    def intervals(self, statistic: Statistic, replicates: int = REPLICATES) -> list[Interval | None]:
        """Return the bootstrap's interval of each figure, by drawing runs, or clusters with all of their runs."""
        if not self.parts:
            return bootstrap(self.counts, statistic, replicates=replicates)
        alike = Counter(self.parts)
        return bootstrap(list(alike.values()), over_clusters(list(alike), statistic), replicates=replicates, few=True)


def measure(key: ComparedKey, rated: Iterable[reliability.Rated] | Kinds, *, replicates: int = REPLICATES) -> dict[str, Estimate]:
    """Return the figures of a key, by name.

    `replicates`: how often runs, or clusters, are drawn for the bootstrap.
    """
    runs = rated if isinstance(rated, Kinds) else Kinds(rated)
    sums, counts = _Sums(key, runs), runs.counts
    figures = _shares(key, runs)
    others = sums.others(counts)
    intervals = runs.intervals(lambda draw: list(sums.others(draw).values()), replicates) if others else []
    answered = sum(count for kind, count in zip(runs.kinds, counts, strict=True) if kind.judged is not None)
    for (name, value), interval in zip(others.items(), intervals, strict=True):
        within = _widened(name, value, interval, len(runs.parts) or answered, sums.chance(name, counts))
        figures[name] = Estimate.within(value, within, answered)
    return figures


FEW_CLUSTERS = 10
"""The least clusters for a useful interval: fewer hardly show how far they differ."""


def cluster_line(clusters: int) -> str:
    """Return what a terminal says of clusters; nothing without any."""
    few = "; so few say little, and an interval may be too narrow" if clusters < FEW_CLUSTERS else ""
    return f"runs of one cluster resemble each other: intervals are over {clusters} clusters{few}" if clusters else ""


def share_of(rows: Iterable[tuple[Hashable, float, float]], *, several: bool = False) -> Estimate:
    """Return a share with its interval over clusters, of rows of a cluster, a part and a whole; `several` as `Estimate.of_clusters`."""
    clusters: dict[Hashable, list[tuple[float, float]]] = {}
    for cluster, part, whole in rows:
        clusters.setdefault(cluster, []).append((part, whole))
    return Estimate.of_clusters(clusters.values(), several=several)


def _shares(key: ComparedKey, runs: Kinds) -> dict[str, Estimate]:
    """Return those figures that are shares."""
    rows = [(row.cluster or at, row.judged, row.labels) for at, row in enumerate(runs.rated)]
    same: list[tuple[Hashable, float, float]] = [(cluster, labels.count(judged), len(labels)) for cluster, judged, labels in rows]
    found: dict[str, list[tuple[Hashable, float, float]]] = {
        "coverage": [(cluster, judged is not None, 1) for cluster, judged, _ in rows],
        "accuracy": [share for share, (_, judged, _) in zip(same, rows, strict=True) if judged is not None],
        "accuracy_all": same,
    }
    if key.positive is not None:
        positive = canonical_json(key.positive)
        known = [(cluster, judged == positive, labels) for cluster, judged, labels in rows if judged is not None]
        said = [(cluster, passes, [label == positive for label in labels]) for cluster, passes, labels in known]
        for name, side in (("tpr", True), ("tnr", False)):
            inside = [(cluster, passes == side, labels.count(side)) for cluster, passes, labels in said]
            found[name] = [(cluster, count if agrees else 0, count) for cluster, agrees, count in inside if count]
        found["precision"] = [(cluster, labels.count(True), len(labels)) for cluster, passes, labels in said if passes]
        found["recall"] = found["tpr"]
    return {name: share_of(share, several=bool(runs.parts)) for name, share in found.items()}


def _widened(name: str, value: float | None, interval: Interval | None, runs: int, expected: float) -> Interval | None:
    """Return the interval of a figure; of one that no draw can change, the one that Wilson's bound of the accuracy implies.

    Where judge and people never differ, every draw says 1, which does not show that they never will: the least accuracy that is
    compatible with that is put into the figure's own formula.
    """
    # A bootstrap over runs that all agree draws only agreement and gives an interval without width, which
    # would claim certainty from a handful of labels. Wilson's bound says how many disagreements so many runs
    # may have hidden, and that is put into the formula of the coefficient.
    if value is None or interval is None or interval.low < interval.high:
        return interval
    if value < 1 or name in {"mean_error", "spearman"}:
        return None
    missed = 1 - wilson(runs, runs).low
    least = 0.0 if name in PERCENT else -1.0
    return Interval(low=max(1 - missed / (1 - expected), least) if expected < 1 else least, high=1.0)


@dataclass(frozen=True)
class _Sums:
    """The figures of a key as functions of how often each kind of run occurs."""

    key: ComparedKey
    runs: Kinds

    def chance(self, name: str, counts: Sequence[int]) -> float:
        """Return how often judge and people would agree by chance, as a figure has it."""
        cells = self.runs.cells(counts)
        return reliability.chance_agreement(cells) if name != "ac1" else reliability.gwet_chance(cells, len(self.key.values))

    def others(self, counts: Sequence[int]) -> dict[str, float | None]:
        """Return the figures that are not shares."""
        if self.key.kind == "number":
            return self._numbers(counts)
        cells = self.runs.cells(counts)
        if self.key.kind == "set":
            total = sum(cells.values())
            found = sum(reliability.set_f1(*pair) * count for pair, count in cells.items())  # type: ignore[arg-type,misc]  # sets, by the key's kind
            return {"set_f1": found / total if total else None}
        figures: dict[str, float | None] = {"kappa": reliability.cohen_kappa(cells)}
        if self.key.kind == "ordered":
            figures["weighted_kappa"] = self._numbers.weighted_kappa(counts)
        level: reliability.Level = "ordinal" if self.key.kind == "ordered" else "nominal"
        figures["alpha"] = reliability.weighted_alpha(zip(self._units, counts, strict=True), level)
        figures["ac1"] = reliability.gwet_ac1(cells, len(self.key.values))
        if self.key.positive is not None:
            figures["f1"] = reliability.f1(cells, canonical_json(self.key.positive))
            sides = [reliability.f1(cells, canonical_json(value)) for value in self.key.values]
            figures["macro_f1"] = mean(side for side in sides if side is not None)
        return figures

    @cached_property
    def _numbers(self) -> "NumberFigures":
        """The figures of numbers, whose many values would be slow to count one by one; of ordered values, of their places."""
        places: Mapping[object, float] = {} if self.key.kind == "number" else self._places
        numbers = [[places.get(value, value) for value in (kind.judged, *kind.labels)] for kind in self.runs.kinds]
        return NumberFigures([(judged, labels) for judged, *labels in numbers])  # type: ignore[misc]  # numbers, by the key's kind

    @cached_property
    def _places(self) -> Mapping[object, float]:
        """The place of every value on a line: numbers their own, other values their position in the schema."""
        known = [canonical_json(value) for value in self.key.values]
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.key.values):
            places: dict[object, float] = {canonical_json(value): float(str(value)) for value in self.key.values}
        else:
            places = {value: float(at) for at, value in enumerate(known)}
        seen = {str(value) for kind in self.runs.kinds for value in (kind.judged, *kind.labels) if value is not None}
        after = max(places.values(), default=0.0) + 1
        return places | {value: after + at for at, value in enumerate(sorted(seen - set(known)))}

    @cached_property
    def _units(self) -> Sequence[Sequence[float]]:
        """The values of every kind of run as numbers, judge and people alike."""
        values = ([*kind.labels, *(() if kind.judged is None else (kind.judged,))] for kind in self.runs.kinds)
        return [[self._places[value] for value in unit] for unit in values]


NAMES = {
    "coverage": "answered",
    "accuracy": "accuracy, of what is answered",
    "accuracy_all": "accuracy, of all",
    "tpr": "true positive rate",
    "tnr": "true negative rate",
    "precision": "precision",
    "recall": "recall",
    "f1": "F1",
    "macro_f1": "F1, mean over the values",
    "kappa": "Cohen's kappa",
    "weighted_kappa": "quadratic weighted kappa",
    "alpha": "Krippendorff's alpha",
    "ac1": "Gwet's AC1",
    "spearman": "Spearman's correlation",
    "mean_error": "mean absolute error",
    "set_f1": "F1 of the sets",
    "consistency": "same in both orders",
    "first_position": "first one preferred, where not",
    "best_of_group": "best of all found",
    "ties": "Ties, by ratings",
    "section_mean": "mean of the sections",
    "net_accuracy": "right in more orders than wrong",
    "order_accuracy": "accuracy, mean of both orders",
}
"""The figures as a terminal and a page call them."""

PERCENT = frozenset(NAMES) - {"kappa", "weighted_kappa", "alpha", "ac1", "spearman", "mean_error"}
"""Figures that are written in percent."""


def figure_texts(name: str, figure: Estimate) -> tuple[str, str]:
    """Return a figure and its interval as text."""
    return figure.texts("{:.1%}" if name in PERCENT else "{:.3f}")


# A bootstrap asks for the figures 10,000 times, each time for other counts of the same kinds of runs. All but the ranks
# are quotients of sums that are linear in the counts, so that the terms of each sum are computed once per kind and a
# draw is a dot product; values are taken from their mean, without which the squares of large scores would cancel. Ranks
# change with the counts, and only their order is kept.
class NumberFigures:
    """Quadratic weighted kappa, interval alpha, Spearman's correlation and mean absolute error of numbers.

    Source: Cohen 1968, https://doi.org/10.1037/h0026256; Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011).
    """

    def __init__(self, kinds: Sequence[tuple[float | None, Sequence[float]]]) -> None:
        """Prepare the sums.

        Args:
            kinds: What the judge says of a kind of run, None where it gave no answer, and what people say.
        """
        known = [value for judged, labels in kinds for value in (judged, *labels) if value is not None]
        middle = sum(known) / len(known) if known else 0.0
        pairs = [[] if judged is None else [(label - middle, judged - middle) for label in labels] for judged, labels in kinds]
        terms = [[(1.0, x, y, x * x, y * y, (x - y) ** 2, abs(x - y)) for x, y in rows] for rows in pairs]
        self._moments = [[sum(term[at] for term in rows) for rows in terms] for at in range(7)]
        units = [[value - middle for value in (*labels, *(() if judged is None else (judged,)))] for judged, labels in kinds]
        paired = [unit if len(unit) > 1 else [] for unit in units]
        spreads = [(float(len(unit)), sum(unit), sum(value * value for value in unit)) for unit in paired]
        self._spread = [[spread[at] for spread in spreads] for at in range(3)]
        self._observed = [2 * (size * square - total**2) / (size - 1) if size else 0.0 for size, total, square in spreads]
        self._firsts, self._seconds = _Ranks([x for rows in pairs for x, _ in rows]), _Ranks([y for rows in pairs for _, y in rows])
        self._kind_of_pair = [at for at, rows in enumerate(pairs) for _ in rows]

    def __call__(self, counts: Sequence[int]) -> dict[str, float | None]:
        """Return the figures where kinds of runs occur so often."""
        total, absolute = (sum(map(mul, counts, self._moments[at])) for at in (0, -1))
        size, of_all, square, observed = (sum(map(mul, counts, row)) for row in (*self._spread, self._observed))
        by_chance = 2 * (size * square - of_all**2)
        return {
            "weighted_kappa": self.weighted_kappa(counts),
            "alpha": 1 - (size - 1) * observed / by_chance if by_chance > ROUNDING * size * size else None,
            "spearman": self._spearman(counts),
            "mean_error": absolute / total if total else None,
        }

    def weighted_kappa(self, counts: Sequence[int]) -> float | None:
        """Return the kappa by which a disagreement counts by the square of its distance."""
        total, first, second, first_squares, second_squares, squares = (sum(map(mul, counts, row)) for row in self._moments[:-1])
        expected = first_squares + second_squares - 2 * first * second / total if total else 0.0
        return 1 - squares / expected if expected > ROUNDING else None

    def _spearman(self, counts: Sequence[int]) -> float | None:
        weights = [counts[kind] for kind in self._kind_of_pair]
        one, other = self._firsts.ranks(weights), self._seconds.ranks(weights)
        spread, other_spread = sum(map(mul, weights, map(mul, one, one))), sum(map(mul, weights, map(mul, other, other)))
        if spread <= ROUNDING or other_spread <= ROUNDING:
            return None
        together: float = sum(map(mul, weights, map(mul, one, other)))
        return max(-1.0, min(1.0, together / float(sqrt(spread * other_spread))))


class _Ranks:
    """The ranks of values under changing weights; their order is found once."""

    def __init__(self, values: Sequence[float]) -> None:
        distinct = {value: at for at, value in enumerate(sorted(set(values)))}
        self._places = [distinct[value] for value in values]
        self._count = len(distinct)

    def ranks(self, weights: Sequence[int]) -> list[float]:
        """Return the mean rank of every value minus the mean of all ranks."""
        totals = [0] * self._count
        for place, weight in zip(self._places, weights, strict=True):
            totals[place] += weight
        ends = list(accumulate(totals))
        middle = ends[-1] / 2 if ends else 0.0
        ranks = [end - total / 2 - middle for end, total in zip(ends, totals, strict=True)]
        return [ranks[place] for place in self._places]
