"""Rankings by comparisons of pairs: win rates and the Bradley-Terry model."""

import math
from collections.abc import Mapping, Sequence

from gradeloop.stats.intervals import Figures, wilson

Wins = Mapping[tuple[str, str], float]
"""The wins of the first of two over the second; a tie counts half for both."""


class RankedCandidate(Figures):
    """One candidate in a ranking."""

    name: str
    win_rate: float
    low: float
    high: float
    """Wilson's 95 % interval of the win rate; ties count half."""
    games: float
    strength: float | None
    """The Bradley-Terry strength as a natural logarithm, with a mean of 0; None where the comparisons do not decide it."""


def rank(wins: Wins) -> list[RankedCandidate]:
    """Return the candidates by strength, the best first; by win rate where no strength can be computed."""
    names = sorted({name for pair in wins for name in pair})
    strengths = bradley_terry(wins)
    ranked = []
    for name in names:
        won = sum(count for (winner, _), count in wins.items() if winner == name)
        games = won + sum(count for (_, loser), count in wins.items() if loser == name)
        if not games:
            continue
        interval = wilson(won, math.ceil(games))
        about = {"win_rate": won / games, "low": interval.low, "high": interval.high, "games": games}
        ranked.append(RankedCandidate(name=name, strength=strengths.get(name) if strengths else None, **about))
    return sorted(ranked, key=lambda row: (-(row.strength if row.strength is not None else row.win_rate), row.name))


ROUNDS = 10_000
PRECISION = 1e-9


def bradley_terry(wins: Wins) -> dict[str, float] | None:
    """Return the log strengths of the Bradley-Terry model by maximum likelihood, with a mean of 0.

    Returns:
        None where there is no maximum: the candidates fall into two groups of which one never beats the other.

    Source: Bradley and Terry 1952, https://doi.org/10.2307/2334029; the iteration is that of Hunter 2004,
        https://doi.org/10.1214/aos/1079120141.
    """
    counted = {pair: count for pair, count in wins.items() if count > 0}
    names = sorted({name for pair in counted for name in pair})
    if len(names) < 2 or not _connected(names, counted):  # noqa: PLR2004 - a ranking wants two
        return None
    won = {name: sum(count for (winner, _), count in counted.items() if winner == name) for name in names}
    games: dict[str, dict[str, float]] = {name: {} for name in names}
    for (one, other), count in counted.items():
        games[one][other] = games[one].get(other, 0.0) + count
        games[other][one] = games[other].get(one, 0.0) + count
    strength = dict.fromkeys(names, 1.0)
    for _ in range(ROUNDS):
        before = strength
        raw = {name: won[name] / sum(count / (before[name] + before[other]) for other, count in games[name].items()) for name in names}
        mean = math.exp(math.fsum(map(math.log, raw.values())) / len(names))
        strength = {name: value / mean for name, value in raw.items()}
        if max(abs(math.log(strength[name] / before[name])) for name in names) < PRECISION:
            break
    return {name: math.log(value) for name, value in strength.items()}


def _connected(names: Sequence[str], wins: Wins) -> bool:
    """Return whether everybody beats everybody, perhaps over others: then, and only then, there is a maximum."""
    for pairs in (list(wins), [(loser, winner) for winner, loser in wins]):
        found = {names[0]}
        while new := {other for one, other in pairs if one in found} - found:
            found |= new
        if len(found) < len(names):
            return False
    return True
