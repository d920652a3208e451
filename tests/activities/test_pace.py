"""The pace of a model's calls: what a long `Retry-After` means to those who wait."""

import random

import pytest

from activities.calls.pace import MANY_WAIT, Pace

NOW = 1_800_000_000.0


def refused(retry_after: float | None) -> Pace:
    """Return the pace after five calls were accepted and one was refused."""
    pace = Pace()
    for _ in range(5):
        pace = pace.take(NOW - 1, 1, None)[0].accept(NOW - 0.5, NOW - 1)
    return pace.take(NOW - 1, 1, None)[0].refuse(NOW, NOW - 0.1, retry_after)


def test_whoever_waits_comes_back_when_one_call_looks_whether_a_long_pause_is_meant() -> None:
    pace = refused(20)
    assert pace.wait(NOW, 0, MANY_WAIT, None) == pytest.approx(2)
    assert pace.wait(NOW, 3, MANY_WAIT, None) == pytest.approx(2 + 3 / 10)
    assert pace.wait(NOW, 0, MANY_WAIT - 1, None) == pytest.approx(20)


def test_those_behind_the_call_that_looks_come_again_soon() -> None:
    pace, waited = refused(20).take(NOW + 2, MANY_WAIT, None)
    assert waited == 0.0
    assert pace.take(NOW + 2, MANY_WAIT, None)[1] == pytest.approx(18)
    assert pace.wait(NOW + 2, 0, MANY_WAIT, None) == pytest.approx(2)


def test_a_pause_that_is_meant_is_waited_for_to_the_end() -> None:
    pace = refused(20).take(NOW + 2, MANY_WAIT, None)[0].refuse(NOW + 2.1, NOW + 2, 17.9)
    assert pace.wait(NOW + 3, 0, MANY_WAIT, None) == pytest.approx(17)
    again = pace.take(NOW + 20, MANY_WAIT, None)[0].refuse(NOW + 21, NOW + 20, 20)
    assert again.wait(NOW + 21, 0, MANY_WAIT, None) == pytest.approx(20)


def test_a_pause_that_is_not_meant_is_over_for_everybody() -> None:
    pace = refused(20).take(NOW + 2, MANY_WAIT, None)[0].accept(NOW + 2.1, NOW + 2)
    assert pace.wait(NOW + 2.2, 0, MANY_WAIT, None) < 0.5


def test_a_late_refusal_of_an_earlier_call_does_not_answer_for_the_one_that_looks() -> None:
    late = refused(20).take(NOW + 2, MANY_WAIT, None)[0].refuse(NOW + 2.1, NOW - 0.2, 17.9)
    assert (late.probing, late.believes) == (True, None)
    assert late.accept(NOW + 2.2, NOW + 2).wait(NOW + 2.3, 0, MANY_WAIT, None) < 0.5


def test_a_call_that_looked_and_was_refused_does_not_count_as_accepted() -> None:
    pace = refused(20)
    assert pace.take(NOW + 2, MANY_WAIT, None)[0].refuse(NOW + 2.1, NOW + 2, 17.9).accepted == pace.accepted == 5


class Provider:
    """Calls of a queue that never empties, by a simulated clock, to a provider with a bucket that refills, which is away at times."""

    def __init__(self, latency: float, *, rate: float = 1e9, bucket: float = 1e9, retry_after: float | None = None) -> None:
        self.now, self.pace, self.accepted, self.refused = NOW, Pace(), 0, 0
        self._latency, self._rate, self._bucket, self._retry_after = latency, rate, bucket, retry_after
        self._tokens = bucket
        self._flying: list[tuple[float, float, bool]] = []
        """When calls are answered, when they started, and whether they are refused."""

    def run(self, seconds: float, *, away: bool = False, workers: bool = True) -> None:
        """Let time pass: the provider refuses whatever comes if it is away, and nothing is called without workers."""
        end = self.now + seconds
        while self.now < end:
            self._tokens = min(self._bucket, self._tokens + self._rate * TICK)
            self._answer()
            while workers and len(self._flying) < 80:
                self.pace, waited = self.pace.take(self.now, 100, None)
                if waited:
                    break
                refused = away or self._tokens < 1
                self._tokens -= not refused
                self._flying.append((self.now + (0.01 if refused else self._latency), self.now, refused))
                if len(self._flying) % 8 == 0:
                    break
            self.now += TICK

    def _answer(self) -> None:
        for answered, started, refused in [call for call in self._flying if call[0] <= self.now]:
            self._flying.remove((answered, started, refused))
            self.pace = self.pace.refuse(answered, started, self._retry_after) if refused else self.pace.accept(answered, started)
            self.accepted += not refused
            self.refused += refused


TICK = 0.05


@pytest.mark.parametrize("latency", [1.0, 4.0])
@pytest.mark.parametrize("seed", range(2))
def test_outages_do_not_wear_a_pace_down(latency: float, seed: int) -> None:
    """What was accepted between two outages says how many calls there were, not how many may be; a call in flight says nothing yet."""
    generator, provider, soon = random.Random(seed), Provider(latency), []
    provider.run(20)
    for _ in range(12):
        provider.run(10, away=True)
        accepted = provider.accepted
        provider.run(20)
        soon.append(provider.accepted - accepted)
        for _ in range(6):
            provider.run(generator.choice((5, 10, 40)), workers=generator.random() < 0.6)

    assert sum(soon) >= 0.5 * 12 * 20 * min(80 / latency, 20)
    assert min(soon) >= 20


@pytest.mark.parametrize("latency", [0.2, 4.0])
@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize(("rate", "bucket"), [(0.1, 3), (1, 10), (2, 5), (10, 10)])
def test_a_pace_finds_the_rate_of_a_bucket_and_is_seldom_refused(
    rate: float, bucket: float, retry_after: float | None, latency: float
) -> None:
    provider = Provider(latency, rate=rate, bucket=bucket, retry_after=retry_after)
    provider.run(300)
    accepted, refused = provider.accepted, provider.refused
    provider.run(300)
    accepted, refused = provider.accepted - accepted, provider.refused - refused

    assert accepted >= 0.9 * 300 * rate
    assert refused <= max(0.03 * accepted, 3)


def test_a_pace_that_is_far_too_slow_becomes_fast_without_a_refusal() -> None:
    provider = Provider(latency=0.5)
    provider.pace = Pace(rate=0.5, behind=20, refusals=())
    provider.run(900)

    assert (provider.pace.current or 0) > 50
