"""What was paid for more than once, and what was paid and not counted."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gradeloop.contract.messages import Usage
from lab.storm.diary import Diary
from lab.storm.plan import Kill
from lab.storm.provider import ModelCall

RECORDED_SECONDS = 2.0
"""An answer that came so shortly before a kill may not have been recorded yet."""

STOPPED_SECONDS = 2.0
"""A stop that was sent so shortly before a call began may have met it: workers hear of stops with their heartbeats."""

TOKENS = (10, 5)
"""The prompt and completion tokens of every answer."""


@dataclass
class Payments:
    """The calls of a storm."""

    made: int
    answered: int
    sold: int
    """How many replies were paid for, answers or not."""
    faults: Counter[str]
    counted: int = 0
    """How many replies the threads count."""
    repeated: Counter[str] = field(default_factory=Counter)
    """Answered calls that were made again, by what had happened to them."""
    unrecorded: float = 0.0
    """The longest time, in seconds, between such an answer and the kill that came before it was recorded; 0 where the kill came first."""
    recovery: float = 0.0
    """The longest time, in seconds, from a kill until a call that was lost in it had its answer, where nobody stopped its thread."""
    unexplained: list[str] = field(default_factory=list)
    """Answered calls that were made again though nothing had happened to them."""


def look_at(calls: list[ModelCall], kills: list[Kill], diaries: Iterable[Diary]) -> Payments:
    """Count the calls, and find out why some were made again."""
    stops = {diary.thread: [when for when, _ in diary.stops] for diary in diaries}
    outcomes = Counter(call.outcome for call in calls)
    payments = Payments(len(calls), outcomes["answered"], sum(call.sold for call in calls), outcomes)
    same = defaultdict[tuple[str, str], list[ModelCall]](list)
    for call in calls:
        same[call.thread, call.sha256].append(call)
    for attempts in same.values():
        for at, call in enumerate(attempts[:-1]):
            if call.answered:
                _explain(call, attempts[at + 1], kills, stops[call.thread], payments)
            elif (kill := _kill_of(call, kills)) is not None and call.outcome == "hung up":
                payments.recovery = max(payments.recovery, _recovery(kill, attempts[at + 1 :], stops[call.thread]))
    return payments


def _recovery(kill: Kill, later: list[ModelCall], stops: list[float]) -> float:
    """Return the seconds from a kill until a lost call had its answer; 0 where it had none, or its thread was stopped meanwhile."""
    answered = next((call.ended for call in later if call.answered and call.ended is not None), None)
    if answered is None or any(kill.began <= when <= answered for when in stops):
        return 0.0
    return answered - kill.began


def _explain(call: ModelCall, again: ModelCall, kills: list[Kill], stops: list[float], payments: Payments) -> None:
    """Note why an answered call was made again."""
    if (kill := _kill_of(call, kills)) is not None:
        payments.repeated[kill.kind] += 1
        payments.unrecorded = max(payments.unrecorded, kill.began - (call.ended or call.began))
    elif _was_stopped(call, stops):
        payments.repeated["as its thread was stopped"] += 1
    else:
        payments.repeated["without a reason"] += 1
        took, later = (call.ended or call.began) - call.began, again.began - call.began
        near = [f"{kill.kind} {kill.began - call.began:+.1f} s" for kill in kills if abs(kill.began - call.began) < 30]
        near += [f"stop {when - call.began:+.1f} s" for when in stops]
        payments.unexplained.append(
            f"{call.thread}: a call of its {call.role} was answered to {call.worker} within {took:.1f} s, and made again by {again.worker} "
            f"after {later:.1f} s; {', '.join(near)}"
        )


def _kill_of(call: ModelCall, kills: list[Kill]) -> Kill | None:
    """Return the kill of the call's worker, or of the server, during which it was in flight or its answer on its way."""
    ended = (call.ended or call.began) + RECORDED_SECONDS
    met = [kill for kill in kills if kill.began <= ended and call.began <= kill.ended]
    return next((kill for kill in met if kill.kind == "server killed" or kill.worker == call.worker), None)


def _was_stopped(call: ModelCall, stops: list[float]) -> bool:
    return any(call.began - STOPPED_SECONDS <= when <= (call.ended or call.began) for when in stops)


def wrong_usage(diary: Diary, usage: Usage, calls: list[ModelCall], kills: list[Kill], recorded: int) -> list[str]:
    """Return what is wrong with the usage that a thread counts.

    Args:
        diary: What its callers know.
        usage: Its own count.
        calls: Those of its calls that were paid for.
        kills: All kills.
        recorded: How many answers the thread holds: drafts and verdicts.
    """
    stops = [when for when, _ in diary.stops]
    safe = sum(_kill_of(call, kills) is None and not _was_stopped(call, stops) for call in calls)
    found = []
    if not max(safe, recorded) <= usage.calls <= len(calls):
        found.append(f"it counts {usage.calls} calls, holds {recorded} answers, and of {len(calls)} paid replies {safe} came in calm")
    if (usage.input, usage.output) != (TOKENS[0] * usage.calls, TOKENS[1] * usage.calls):
        found.append(f"its tokens are not those of its calls: {usage}")
    if usage.attempts < usage.calls:
        found.append(f"it counts more calls than attempts: {usage}")
    return [f"{diary.thread}: {fault}" for fault in found]
