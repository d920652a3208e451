"""How the attempts of one call have failed so far, and what that makes of the next failure: another attempt, an error, or an outage."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

from pydantic import Field
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.errors import RETRYABLE, FailureDetails, failure
from gradeloop.contract.base import Recorded
from gradeloop.contract.messages import Usage
from gradeloop.contract.provider import ModelFault
from gradeloop.contract.thread import OUTAGE_SECONDS
from gradeloop.text import duration

OUTAGE = "outage"
"""The error type of a call whose provider was away for as long as may be waited for it."""

TENANT_BUDGET = "tenant_budget"
"""The error type of a call that was not sent, since its tenant has used up its budget of the day."""

WAITING = "waiting"
"""The error type of an attempt that sent nothing, since its model's rate limit is waited for."""

ATTEMPTS = 8
"""Attempts of one kind of failure after which it is final: with their pauses two minutes, within which a server restarts."""

MALFORMED_ATTEMPTS = 3
"""Malformed replies after which another one is final: each one was paid for, and a model that fails thrice fails again."""

_AWAY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
"""Statuses by which a gateway says that the provider behind it is away."""

_PAID, _UNEXPECTED = "malformed_reply", "unexpected"


@dataclass(frozen=True)
class CallLimits:
    """How often and how long the attempts of one call may fail."""

    attempts: int = ATTEMPTS
    """Attempts of one kind of failure; a malformed reply that was paid for has `MALFORMED_ATTEMPTS` at most."""
    outage_seconds: float = OUTAGE_SECONDS
    """Seconds that an outage or a rate limit is waited for, from the first failure on."""


class FailedAttempts(Recorded):
    """The failures of one call, which each attempt hands to the next; an attempt whose worker was lost is none of them."""

    counts: dict[str, int] = Field(default_factory=dict)
    """How many attempts failed, by the kind of failure."""
    first: dict[str, float] = Field(default_factory=dict)
    """When an attempt first failed so, in seconds since 1970, by the kind of failure."""
    away_since: float | None = None
    """When the first attempt failed after which no reply came, in seconds since 1970."""
    waiting_since: float | None = None
    """When the call first had to wait for its turn, which is its place in the queue, in seconds since 1970."""

    def after_wait(self, now: float) -> "FailedAttempts":
        """Return the record of a call that waits for its turn, which is no failure."""
        return self if self.waiting_since is not None else self.model_copy(update={"waiting_since": now})

    def after(self, fault: ModelFault, now: float) -> "FailedAttempts":
        """Return the record with one more failure; a reply that was paid for shows that the provider is there."""
        kind = _kind(fault)
        return self._counted(kind, now, None if kind == _PAID else now if self.away_since is None else self.away_since)

    def after_unexpected(self, now: float) -> "FailedAttempts":
        """Return the record with one more failure of our own, in which no provider had a part."""
        return self._counted(_UNEXPECTED, now, self.away_since)

    def _counted(self, kind: str, now: float, away_since: float | None) -> "FailedAttempts":
        counts = self.counts | {kind: self.counts.get(kind, 0) + 1}
        first = {kind: now} | self.first
        return FailedAttempts(counts=counts, first=first, away_since=away_since, waiting_since=self.waiting_since)

    @property
    def unexpected(self) -> int:
        """How many attempts failed by an error of our own."""
        return self.counts.get(_UNEXPECTED, 0)

    def judge(self, fault: ModelFault, limits: CallLimits, now: float, answered_since: Callable[[float], bool]) -> "Ruling":
        """Return what the newest failure, which is counted already, means for the call.

        Args:
            fault: The newest failure.
            limits: The limits of the call.
            now: Seconds since 1970.
            answered_since: Whether the endpoint has answered another call since that time.
        """
        kind = _kind(fault)
        if fault.kind not in RETRYABLE:
            return Ruling(final=True)
        if kind not in {OUTAGE, "rate_limited"}:
            if self.counts[kind] < (min(MALFORMED_ATTEMPTS, limits.attempts) if kind == _PAID else limits.attempts):
                return Ruling()
            if limits.attempts < ATTEMPTS or not _may_be_outage(kind, fault) or answered_since(self.first[kind]):
                return Ruling(final=True)
        away = max(0.0, now - (now if self.away_since is None else self.away_since))
        return Ruling(final=away >= limits.outage_seconds, away=away, left=max(0.0, limits.outage_seconds - away))


@dataclass(frozen=True)
class Ruling:
    """What a failure means for its call."""

    final: bool = False
    """Whether there is no further attempt."""
    away: float | None = None
    """Seconds for which the provider has been away; None where the failure is no outage and no rate limit."""
    left: float | None = None
    """Seconds that it is still waited for; None where only the number of attempts is limited."""


def _kind(fault: ModelFault) -> str:
    """Return the kind of failure whose attempts are counted together."""
    if fault.kind in {"connection", "overloaded"} or fault.status in _AWAY:
        return OUTAGE if fault.kind in RETRYABLE else fault.kind
    paid = fault.kind == "malformed_response" and fault.usage is not None and fault.usage.calls > 0
    return _PAID if paid else fault.kind


def _may_be_outage(kind: str, fault: ModelFault) -> bool:
    """Return whether a failure that comes again and again may mean that the provider is away: one that says so itself does not."""
    return kind in {"server", "malformed_response"} and fault.status != HTTPStatus.CONFLICT


def waiting_call(model: str, spent: Usage, seconds: float) -> ApplicationError:
    """Return what ends an attempt that has to wait for its turn: the next one comes in so many seconds, and no slot is taken meanwhile."""
    details = FailureDetails(usage=spent, waits_for=model).model_dump(mode="json")
    text, delay = f"waiting for {model}'s rate limit", timedelta(seconds=seconds)
    return ApplicationError(text, details, type=WAITING, next_retry_delay=delay, category=ApplicationErrorCategory.BENIGN)


def failed_call(
    fault: ModelFault, ruling: Ruling, spent: Usage, *, endpoint: str, pause: float | None, waits_for: str | None = None
) -> ApplicationError:
    """Return the failure of a call for Temporal.

    Args:
        fault: Why the call gave no answer.
        ruling: What that means for the call.
        spent: What all attempts have cost.
        endpoint: The base URL that was called; empty where there is none.
        pause: Seconds after which Temporal makes the next attempt; None where that is not known.
        waits_for: The model whose rate limit is waited for.
    """
    if ruling.final and ruling.away is not None:
        return _outage(fault, ruling.away, endpoint, spent)
    until = None if ruling.left is None else round(time.time() + ruling.left, 1)
    error = failure(fault, model=fault.model, spent=spent, final=ruling.final, waits_for=waits_for, until=until)
    wait = fault.retry_after or pause
    if error.non_retryable or ruling.left is None or wait is None or wait <= ruling.left:
        return error
    return ApplicationError(error.message, *error.details, type=error.type, next_retry_delay=timedelta(seconds=ruling.left))


def _outage(fault: ModelFault, away: float, endpoint: str, spent: Usage) -> ApplicationError:
    who = f"{fault.model} at {endpoint}" if endpoint else fault.model
    did = "has refused every call by its rate limit" if fault.kind == "rate_limited" else "has answered no call"
    text = f"{who} {did} for {duration(away)}; the last failure: {fault}; resume, or try again, once it answers"
    return ApplicationError(text, FailureDetails(usage=spent).model_dump(mode="json"), type=OUTAGE, non_retryable=True)


def next_pause(policy: RetryPolicy | None, attempt: int) -> float | None:
    """Return the seconds after which Temporal makes the attempt behind this one; None where the policy is not known."""
    if policy is None:
        return None
    longest = (policy.maximum_interval or policy.initial_interval * 100).total_seconds()
    steps = min(attempt - 1, 64)
    return float(min(longest, policy.initial_interval.total_seconds() * policy.backoff_coefficient**steps))
