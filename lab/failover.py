"""What a failover to another region costs in calls that are paid for twice: a simulation, `python -m lab.failover`.

Nothing real runs. Calls of random length begin at a steady rate in region A; each result is recorded there at once and reaches region B
after a lag. At some moment A is gone: B goes on with what it has, and asks again whatever it does not have. In a split brain A goes on for
some time, too, and what it asks then is asked by B as well.
"""

import argparse
import random
from dataclasses import dataclass

from gradeloop.exit_codes import leave


@dataclass(frozen=True)
class Case:
    """A load, and how it fails over."""

    rate: float
    """Calls that begin a second."""
    call: float
    """Seconds that a call takes at the median."""
    lag: float
    """Seconds until the other region has a result, on average."""
    split: float = 0.0
    """Seconds for which the old region goes on beside the new one."""


CASES = (
    Case(rate=12, call=5, lag=1),
    Case(rate=12, call=5, lag=10),
    Case(rate=120, call=5, lag=1),
    Case(rate=120, call=5, lag=1, split=60),
    Case(rate=1200, call=5, lag=1),
    Case(rate=1200, call=60, lag=1),
)


def paid_twice(case: Case, dice: random.Random) -> int:
    """Return how many calls are paid for twice by one failover: those in flight, and those whose results had not arrived."""
    horizon = case.call * 30 + case.lag * 20
    again = 0
    for _ in range(int(case.rate * horizon)):
        ended = dice.uniform(-horizon, 0) + case.call * dice.lognormvariate(0, 0.6)
        again += ended > 0 or ended + dice.expovariate(1 / case.lag) > 0  # a provider bills a call whose caller is gone, too
    return again + int(case.rate * case.split)


def main() -> None:
    """Print the table of the operating page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    print("| calls a second | a call, median | replication lag | both regions go on for | paid twice |")
    print("|---|---|---|---|---|")
    for case in CASES:
        again = round(sum(paid_twice(case, dice) for _ in range(arguments.times)) / arguments.times)
        print(f"| {case.rate:,} | {case.call:g} s | {case.lag:g} s | {case.split:g} s | {again:,} |")
    leave(0)


if __name__ == "__main__":
    main()
