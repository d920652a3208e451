"""Every statistic beside scikit-learn, statsmodels, scipy and krippendorff on 200 random sets, or beside a published example."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import krippendorff
import numpy as np
import pytest
from scipy.stats import binomtest  # type: ignore[import-untyped]  # none of these has types
from sklearn import metrics  # type: ignore[import-untyped]
from sklearn.preprocessing import MultiLabelBinarizer  # type: ignore[import-untyped]
from statsmodels.stats.contingency_tables import mcnemar as statsmodels_mcnemar  # type: ignore[import-untyped]
from statsmodels.stats.inter_rater import cohens_kappa  # type: ignore[import-untyped]
from statsmodels.stats.proportion import proportion_confint  # type: ignore[import-untyped]

from gradeloop.stats.bootstrap import bootstrap
from gradeloop.stats.intervals import mcnemar, upper_bound, wilson
from gradeloop.stats.reliability import Level, cohen_kappa, f1, gwet_ac1, set_f1, weighted_alpha

SETS = 200


def drawn(seed: int, *, values: int = 4) -> tuple[list[int], list[int]]:
    """Return the ratings of two raters who agree more often than by chance."""
    generator = random.Random(seed)
    first = [generator.randrange(values) for _ in range(generator.randint(5, 60))]
    second = [value if generator.random() < 0.6 else generator.randrange(values) for value in first]
    return first, second


def table(seed: int, *, values: int = 4) -> tuple[list[int], list[int], Counter[Any]]:
    first, second = drawn(seed, values=values)
    return first, second, Counter(zip(first, second, strict=True))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # statsmodels' standard error of a kappa of 1
@pytest.mark.parametrize("values", [2, 3, 5])
def test_kappas_are_scikit_learns_and_statsmodels(values: int) -> None:
    for seed in range(SETS):
        first, second, counts = table(seed, values=values)
        if len({*first, *second}) < values:
            continue
        matrix = [[counts[one, other] for other in range(values)] for one in range(values)]

        assert cohen_kappa(counts) == pytest.approx(metrics.cohen_kappa_score(first, second))
        assert cohen_kappa(counts) == pytest.approx(cohens_kappa(matrix).kappa)


@pytest.mark.slow
def test_the_f1_of_sets_is_scikit_learns() -> None:
    generator = random.Random(1)
    for _ in range(SETS):
        first, second = ([name for name in "abcdef" if generator.random() < 0.4] for _ in range(2))
        one, other = MultiLabelBinarizer(classes=list("abcdef")).fit_transform([first, second])

        assert set_f1(first, second) == pytest.approx(metrics.f1_score([one], [other], average="samples", zero_division=1.0))


@pytest.mark.parametrize("level", get_args(Level))
def test_alphas_are_those_of_krippendorff(level: Level) -> None:
    for seed in range(SETS):
        generator = random.Random(seed)
        raters, units = generator.randint(2, 5), generator.randint(4, 25)
        truth = [generator.randint(1, 5) for _ in range(units)]
        ratings = [
            [np.nan if (chance := generator.random()) < 0.2 else value if chance < 0.7 else generator.randint(1, 5) for value in truth]
            for _ in range(raters)
        ]
        known = [([float(row[at]) for row in ratings if not np.isnan(row[at])], 1) for at in range(units)]
        if len({value for unit, _ in known if len(unit) > 1 for value in unit}) < 2:
            continue

        assert weighted_alpha(known, level) == pytest.approx(krippendorff.alpha(reliability_data=ratings, level_of_measurement=level))


def test_ac1_is_that_of_the_published_example() -> None:
    """125 subjects, 118 both positive, 5 and 2 split, none both negative: AC1 0.941 where kappa is -0.023 (Gwet 2002)."""
    counts = {(1, 1): 118, (1, 0): 5, (0, 1): 2}

    assert gwet_ac1(counts, 2) == pytest.approx(0.941, abs=0.0005)
    assert cohen_kappa(counts) == pytest.approx(-0.023, abs=0.0005)


def test_ac1_is_its_definition_on_random_sets() -> None:
    for seed in range(SETS):
        first, second, counts = table(seed, values=3)
        total = len(first)
        agreed = metrics.accuracy_score(first, second)
        shares = [(first.count(value) + second.count(value)) / (2 * total) for value in range(3)]
        chance = sum(share * (1 - share) for share in shares) / 2

        assert gwet_ac1(counts, 3) == pytest.approx((agreed - chance) / (1 - chance))


@pytest.mark.slow
def test_shares_and_changes_are_statsmodels_and_scipys() -> None:
    generator = random.Random(2)
    for _ in range(SETS):
        total = generator.randint(1, 300)
        count = generator.randint(0, total)
        low, high = proportion_confint(count, total, method="wilson")
        exact = binomtest(count, total).proportion_ci(confidence_level=0.9, method="exact").high
        interval, fell, rose = wilson(count, total), generator.randint(0, 40), generator.randint(0, 40)

        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-9)
        assert upper_bound(count, total, 0.05) == pytest.approx(exact, abs=1e-6)
        assert mcnemar(fell, rose) == pytest.approx(statsmodels_mcnemar([[5, fell], [rose, 5]], exact=True).pvalue)


def test_what_is_undefined_is_none() -> None:
    same = {("a", "a"): 5}

    assert cohen_kappa(same) is None
    assert cohen_kappa({}) is None
    assert gwet_ac1(same, 1) is None
    assert gwet_ac1(same, 2) == 1.0
    assert weighted_alpha([([1.0], 1), ([2.0], 1)], "ordinal") is None
    assert f1({(False, False): 3}, True) is None


@pytest.mark.parametrize("clusters", [2, 3])
def test_the_fewest_clusters_have_an_interval_and_no_error(clusters: int) -> None:
    def rate(draw: Sequence[int]) -> list[float | None]:
        return [draw[0] / sum(draw)]

    (interval,) = bootstrap([1, clusters - 1], rate, replicates=500, few=True)

    assert interval is not None
    assert interval.low == 0.0
    assert interval.low <= 1 / clusters <= interval.high
