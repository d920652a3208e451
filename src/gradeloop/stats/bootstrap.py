"""The bootstrap: intervals of any statistic, by drawing runs again and again from those that there are."""

import math
import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist

from gradeloop.stats.intervals import ROUNDING, Interval, Z, t_quantile

REPLICATES = 10_000
"""The number of draws: the ends of an interval are then stable to about a hundredth of its width."""

SEED = 20_090_101
"""The seed of the draws: the same labels give the same interval on every machine."""

Statistic = Callable[[Sequence[int]], Sequence[float | None]]
"""A function of how often each kind of run occurs, which returns one or more figures."""


def bootstrap(
    counts: Sequence[int], statistic: Statistic, *, replicates: int = REPLICATES, seed: int = SEED, few: bool = False
) -> list[Interval | None]:
    """Return the 95 % interval of each figure of a statistic, over runs drawn with replacement: bias-corrected and accelerated.

    Runs that say the same are drawn together: what counts is how often each kind of run occurs.

    `few`: whether the tails are those of Student's t, since what is drawn is few: clusters of runs.

    Returns:
        An interval per figure; None where the figure is undefined, or is so in more than half of the draws.

    Source: Efron 1987, "Better Bootstrap Confidence Intervals", https://doi.org/10.1080/01621459.1987.10478410; for few, tails of
    Student's t as Hesterberg has them, 2015, https://doi.org/10.1080/00031305.2015.1089789.
    """
    total = sum(counts)
    end = t_quantile(total - 1) if few and total > 1 else Z
    measured = statistic(counts)
    drawn = [statistic(draw) for draw in _draws(counts, replicates, seed)]
    without = [
        (count, statistic([of - (kind == at) for kind, of in enumerate(counts)])) for at, count in enumerate(counts) if count and total > 1
    ]
    return [
        accelerated_interval(value, [figures[at] for figures in drawn], [(count, figures[at]) for count, figures in without], end)
        for at, value in enumerate(measured)
    ]


# Runs of one cluster resemble each other, as the repetitions of one case do. If single runs were drawn, ten of
# them would count as ten independent ones, and the interval would be too narrow. So a cluster is drawn with all
# of its runs, or not at all.
def over_clusters(clusters: Sequence[Sequence[int]], statistic: Statistic) -> Statistic:
    """Return a statistic of how often each cluster occurs, of one that asks how often each kind of run does.

    `clusters`: how many runs of each kind a cluster has; a draw of clusters draws all of their runs.
    """
    members = [[(kind, count) for kind, count in enumerate(counts) if count] for counts in clusters]

    def figures(draw: Sequence[int]) -> Sequence[float | None]:
        counts = [0] * len(clusters[0])
        for times, rows in zip(draw, members, strict=True):
            for kind, count in rows if times else ():
                counts[kind] += times * count
        return statistic(counts)

    return figures


def accelerated_interval(
    measured: float | None, drawn: Sequence[float | None], without: Sequence[tuple[int, float | None]], end: float
) -> Interval | None:
    """Return the bias-corrected and accelerated interval of a figure.

    `without`: the figure without one run, with the number of runs of that kind.
    `end`: the quantile of the upper end, in standard deviations.
    """
    # Plain quantiles of the draws have two faults, which the shares below correct. `bias`: the draws may lie to
    # one side of the measured figure. `speed`: their spread may change with the figure, as that of a rate near
    # 1 does. Where most draws are undefined there is no interval, since the others are a selection.
    known = sorted(value for value in drawn if value is not None)
    if measured is None or not known or 2 * len(known) <= len(drawn):
        return None
    normal, count = NormalDist(), len(known)
    below = (bisect_left(known, measured - ROUNDING) + bisect_right(known, measured + ROUNDING)) / 2
    bias = normal.inv_cdf(min(max(below / count, 0.5 / count), 1 - 0.5 / count))
    speed = _acceleration(without)

    def share(deviations: float) -> float:
        moved = bias + deviations
        return normal.cdf(bias + moved / max(1 - speed * moved, ROUNDING))

    return Interval(low=_quantile(known, share(-end)), high=_quantile(known, share(end)))


def _acceleration(without: Sequence[tuple[int, float | None]]) -> float:
    """Return how the figure's spread changes with the figure, from the figures without one run."""
    known = [(count, value) for count, value in without if value is not None]
    total = sum(count for count, _ in known)
    if not total:
        return 0.0
    mean = math.fsum(count * value for count, value in known) / total
    squares = math.fsum(count * (mean - value) ** 2 for count, value in known)
    return math.fsum(count * (mean - value) ** 3 for count, value in known) / (6 * squares**1.5) if squares > ROUNDING**2 else 0.0


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile, linearly between the two values beside it."""
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


_FEW_KINDS = 8
"""Mean runs of a kind above which drawing counts of kinds is faster than drawing each run."""


def _draws(counts: Sequence[int], replicates: int, seed: int) -> Iterator[Sequence[int]]:
    """Yield as many draws: how often each kind of run is in a draw of as many runs as there are."""
    generator, total, kinds = random.Random(seed), sum(counts), len(counts)  # noqa: S311 - a simulation, no secret
    if total >= _FEW_KINDS * kinds:
        for _ in range(replicates):
            yield _multinomial(generator, counts, total)
        return
    runs = [kind for kind, count in enumerate(counts) for _ in range(count)]
    for _ in range(replicates):
        drawn = Counter(generator.choices(runs, k=total))
        yield [drawn[kind] for kind in range(kinds)]


def _multinomial(generator: random.Random, counts: Sequence[int], total: int) -> list[int]:
    """Draw how many of `total` runs are of each kind, where a kind's probability is its share of the counts."""
    draw: list[int] = []
    left, weight = total, total
    # A multinomial draw is a chain of binomial ones: the runs of the first kind, then those of the second
    # among the rest, with its share of the weight that is left. It costs one draw a kind instead of one a
    # run, which is what makes ten thousand draws of many runs affordable.
    for count in counts:
        taken = binomial(generator, left, count / weight) if weight and left else 0
        draw.append(taken)
        left, weight = left - taken, weight - count
    return draw


# A trial is a number of endless random bits, and succeeds where it lies below the share. All trials are compared with the share
# bit by bit: at each bit the random ones and zeros are counted at once. Where the share has a one, the zeros lie below it; where it
# has a zero, the ones lie above. Only trials that agree so far go on, half of them at each bit.
def binomial(generator: random.Random, trials: int, share: float) -> int:
    """Draw the number of successes in so many trials, exactly.

    Source: the comparison by bits is that of Knuth and Yao 1976, "The complexity of nonuniform random number generation".
    """
    successes = 0
    while trials and share:
        ones, share = generator.getrandbits(trials).bit_count(), 2 * share
        if share >= 1:
            successes, trials, share = successes + trials - ones, ones, share - 1
        else:
            trials -= ones
    return successes
