"""How many 95 % intervals of a judge's figures hold the truth, where several runs share an item: `python -m lab.coverage`.

A fifth of the items are hard for the judge, who is right on 30 % of their runs and on 98 % of the others'. Each figure is taken over items,
as `check-judge` and `agreement` do, and beside that as if every run were one of its own.
"""

import argparse
import random
from collections import Counter
from multiprocessing import Pool

from rich.console import Console
from rich.table import Table

from gradeloop.calibration.figures import measure
from gradeloop.exit_codes import leave
from gradeloop.judges.judgements import ComparedKey
from gradeloop.stats.reliability import Rated

LAYOUTS = [(20, 10), (50, 4), (200, 1)]
"""Items, and the times that each was judged."""

HARD = 0.2, 0.3, 0.98
"""The share of items that are hard for the judge, and how often it is right on those and on the others."""

ACCURACY = HARD[0] * HARD[1] + (1 - HARD[0]) * HARD[2]
TRUTH = {"accuracy": ACCURACY, "tpr": ACCURACY, "kappa": 2 * ACCURACY - 1, "f1": ACCURACY}
"""The figures of endlessly many items, half of them good."""

KEY = ComparedKey(("passed",), "category", (True, False), True)

REPLICATES = 300
"""Draws of one bootstrap; the commands make 10,000."""


def right_of_items(generator: random.Random, items: int, times: int) -> list[tuple[float, float]]:
    """Return how often the judge is right on each item, of how many times."""
    shares = [HARD[1] if generator.random() < HARD[0] else HARD[2] for _ in range(items)]
    return [(float(sum(generator.random() < share for _ in range(times))), float(times)) for share in shares]


def covered(items: int, times: int, simulations: int, seed: int = 3, *, clusters: bool = True) -> Counter[str]:
    """Return in how many simulations the interval of each figure holds the truth, over items or over runs."""
    generator, found = random.Random(seed), Counter[str]()
    for _ in range(simulations):
        rated = []
        for item, (right, _) in enumerate(right_of_items(generator, items, times)):
            good = generator.random() < 0.5
            cluster = f"item {item}" if clusters else ""
            rated += [Rated(str(good is (at < right)).lower(), (str(good).lower(),), cluster) for at in range(times)]
        for name, figure in measure(KEY, rated, replicates=REPLICATES).items():
            if name in TRUTH:
                found[name] += figure.low is not None and figure.high is not None and figure.low <= TRUTH[name] <= figure.high
    return found


def _cell(cell: tuple[int, int, int, bool]) -> Counter[str]:
    items, times, simulations, clusters = cell
    return covered(items, times, simulations, clusters=clusters)


def main() -> None:
    """Print a table: a row for each layout, over items and over runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=1000)
    simulations = parser.parse_args().simulations
    table = Table("items × times", "intervals over", *TRUTH)
    cells = [(items, times, simulations, clusters) for items, times in LAYOUTS for clusters in (True, False)]
    with Pool() as pool:
        for (items, times, _, clusters), found in zip(cells, pool.imap(_cell, cells), strict=True):
            shares = [f"{found[name] / simulations:.1%}" for name in TRUTH]
            table.add_row(f"{items} × {times}", "items" if clusters else "runs", *shares)
    Console().print(table)
    leave(0)


if __name__ == "__main__":
    main()
