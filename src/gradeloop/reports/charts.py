"""What all cases together look like: numbers that templates draw as inline SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradeloop.evaluation import CriterionRow
from gradeloop.reports.standing import stands

BINS = 10


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram, in the drawing's own units."""

    label: str
    count: int
    x: float
    y: float
    height: float


WIDTH, HEIGHT, GAP = 30.0, 96.0, 4.0
"""Of a bar at most, and the room between two."""


def histogram(scores: Sequence[float]) -> list[Bar]:
    """Return how many scores lie in each tenth; 1 has a bar of its own, since that is what most want."""
    counts = [0] * (BINS + 1)
    for score in scores:
        counts[min(int(score * BINS + 1e-9), BINS)] += 1
    most = max(counts, default=0) or 1
    labels = [*(f"{at / BINS:.1f}" for at in range(BINS)), "1"]
    return [_bar(at, label, count, most) for at, (label, count) in enumerate(zip(labels, counts, strict=True))]


def _bar(at: int, label: str, count: int, most: int) -> Bar:
    height = max(round(HEIGHT * count / most, 1), 1.5) if count else 0.0
    return Bar(label, count, at * (WIDTH + GAP), round(HEIGHT - height, 1), height)


@dataclass(frozen=True)
class CriterionCount:
    """How a criterion went over all cases."""

    id: str
    name: str
    failed: int
    judged: int

    @property
    def share(self) -> float:
        """The part that failed of what was judged."""
        return self.failed / self.judged if self.judged else 0.0


class Criteria:
    """Counts of criteria, taken case by case."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], list[int]] = {}

    def take(self, rows: Sequence[CriterionRow]) -> None:
        """Count a case's verdicts; what has no verdict is not counted."""
        for row in rows:
            standing = stands(row).standing
            if standing != "unverified":
                held = self._counts.setdefault((row.id, row.name), [0, 0])
                held[0] += standing == "failed"
                held[1] += 1

    def worst(self, most: int) -> list[CriterionCount]:
        """Return the criteria that failed most often, the most often first; none that never failed."""
        counts = [CriterionCount(name, told, failed, judged) for (name, told), (failed, judged) in self._counts.items() if failed]
        return sorted(counts, key=lambda each: (-each.failed, -each.share, each.id))[:most]
