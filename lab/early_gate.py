"""How often a gate that ends early answers otherwise than one that asks all cases, and what share it asks: `python -m lab.early_gate`.

Each simulation draws a suite in which so many cases of all pass, half of them in clusters that pass or fail together, puts its cases in
random order, and has them end out of order, 160 at a time. Cells: the wanted rate itself, one case less, and rates that are clearly
above and below it, in suites of three sizes.
"""

import argparse
import math
import random
from multiprocessing import Pool

from rich.console import Console
from rich.table import Table

from gradeloop.exit_codes import leave
from gradeloop.stats.decided import EarlyAnswer, EarlyGate

SIZES, WANTED, RISK = (100, 500, 2_000), 0.9, 0.05
IN_FLIGHT, CLUSTER = 160, 10
RATES = {"just failing": None, "just passing": 0.9, "clearly passing": 0.97, "clearly failing": 0.8}
"""The share of all cases that pass, by the name of the cell; None for one case less than are wanted."""


def passing_of(total: int, rate: float | None) -> int:
    """Return how many of all cases pass."""
    least = math.ceil(WANTED * total - 1e-9)
    return least - 1 if rate is None else least if rate == WANTED else round(rate * total)


def suite_of(total: int, passing: int, generator: random.Random) -> list[bool]:
    """Return what each case says: clusters of equal cases, then single ones."""
    failing = total - passing
    blocks = [False] * (failing // (2 * CLUSTER)) + [True] * (passing // (2 * CLUSTER))
    said = [block for block in blocks for _ in range(CLUSTER)]
    said += [False] * (failing - said.count(False)) + [True] * (passing - said.count(True))
    generator.shuffle(said)
    return said


class SharedGate(EarlyGate):
    """The gate of a size, which begins anew for each simulation."""

    def __init__(self, total: int) -> None:
        super().__init__(total, WANTED, RISK)

    def begin(self) -> None:
        """Forget the cases of the simulation before."""
        self.decision, self.seen = None, 0
        for side in self.sides:
            side.of_kind = side.others = 0


def decided(gate: SharedGate, said: list[bool], generator: random.Random) -> EarlyAnswer | None:
    """Return the decision where cases end out of order, so many in flight, and enter the gate in their own order."""
    gate.begin()
    ended, flying, next_case, taken = set[int](), list[int](), 0, 0
    while gate.decision is None and taken < len(said):
        while next_case < len(said) and len(flying) < IN_FLIGHT:
            flying.append(next_case)
            next_case += 1
        at = generator.randrange(len(flying))
        flying[at], flying[-1] = flying[-1], flying[at]
        ended.add(flying.pop())
        while taken in ended and gate.decision is None:
            gate.take("passed" if said[taken] else "failed")
            taken += 1
    return gate.decision


def _cell(cell: tuple[int, str, int, int]) -> tuple[float, float]:
    total, name, simulations, seed = cell
    generator, gate, passing = random.Random(f"{total} {name} {seed}"), SharedGate(total), passing_of(total, RATES[name])
    answer = "passed" if passing >= passing_of(total, WANTED) else "failed"
    wrong = asked = 0
    for _ in range(simulations):
        found = decided(gate, suite_of(total, passing, generator), generator)
        wrong += found is not None and found.answer != answer
        asked += total if found is None else found.asked
    return wrong / simulations, asked / simulations / total


def main() -> None:
    """Print a table: a row for each cell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    table = Table("cases", "rate", "answers otherwise", "asked on average")
    cells = [(total, name, given.simulations, given.seed) for total in SIZES for name in RATES]
    with Pool() as pool:
        for (total, name, *_), (wrong, asked) in zip(cells, pool.imap(_cell, cells), strict=True):
            table.add_row(f"{total:,}", name, f"{wrong:.2%}", f"{asked:.0%}")
    Console().print(table)
    leave(0)


if __name__ == "__main__":
    main()
