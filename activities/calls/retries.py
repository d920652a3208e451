"""The retry decision: what a failure means for its call, by how the attempts before it failed and which models may still be asked."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import timedelta
from http import HTTPStatus

from pydantic import Field, JsonValue
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from activities.errors import RETRYABLE, FailureDetails, failure, priced_failure
from gradeloop.contract.base import OmitEmpty, Tolerant
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import FALLBACK_SECONDS, ModelSpec
from gradeloop.contract.provider import FailureKind, ModelFault, ModelRequest
from gradeloop.contract.thread import OUTAGE_SECONDS
from gradeloop.text import duration

OUTAGE = "outage"
"""The error type of a call whose provider was away for as long as may be waited for it."""

TENANT_BUDGET = "tenant_budget"
"""The error type of a call that was not sent, since its tenant has used up its budget of the day."""

WAITING = "waiting"
"""The error type of an attempt that sent nothing, since its model's rate limit is waited for."""

FALLBACK = "fallback"
"""The error type of an attempt after which the next model is asked."""

_NOT_SERVED: frozenset[FailureKind] = frozenset({"not_found", "quota_exhausted", "auth"})
"""Failures by which a provider refuses to serve a model, whatever it is asked."""

UNSIGNED = "skip_thought_signature_validator"
"""The signature by which Gemini takes a function call that another model made (ai.google.dev, "Thought signatures")."""

ATTEMPTS = 8
"""Attempts of one kind of failure after which it is final: with their pauses two minutes, within which a server restarts."""

MALFORMED_ATTEMPTS = 3
"""Malformed and degenerate replies after which another is final: each was paid for, and a model that fails thrice fails again."""

_AWAY = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})
"""Statuses by which a gateway says that the provider behind it is away."""

_PAID, _UNEXPECTED = "malformed_reply", "unexpected"


@dataclass(frozen=True)
class CallLimits:
    """The limits up to which the attempts of one call may fail."""

    attempts: int = ATTEMPTS
    """Attempts of one kind of failure; a malformed reply that was paid for has `MALFORMED_ATTEMPTS` at most."""
    outage_seconds: float = OUTAGE_SECONDS
    """Seconds that an outage or a rate limit is waited for, from the first failure on."""


class ChainPosition(Tolerant):
    """The model that a call asks now, and why the others were left; each attempt hands it to the next."""

    place: int = 0
    """The place of the model in its list, 0 for the first."""
    refused: OmitEmpty[tuple[int, ...]] = ()
    """Places of the models that cannot answer this call at all."""
    since: OmitEmpty[float | None] = None
    """Time of the first failed attempt without a reply from any model since, in seconds since 1970."""
    left: OmitEmpty[tuple[str, ...]] = ()
    """The models that were left, in order, each with the kind of its failure."""


@dataclass(frozen=True)
class RetryDecision:
    """The decision after a failed attempt: the call has failed, is made again, or asks another model."""

    final: bool = False
    """Whether there is no further attempt."""
    away: float | None = None
    """Seconds for which the provider has been away; None where the failure is neither an outage nor a rate limit."""
    left: float | None = None
    """Seconds that it is still waited for; None where only the number of attempts is limited."""
    position: ChainPosition = ChainPosition()  # noqa: RUF009 - frozen
    """The place in the list of models at which the next attempt is made."""
    model: ModelSpec | None = None
    """The model that is asked next instead; None where no other one is."""


class FailedAttempts(Tolerant):
    """The failures of one call, which each attempt hands to the next; an attempt whose worker was lost is none of them."""

    counts: dict[str, int] = Field(default_factory=dict)
    """The number of failed attempts, by the kind of failure."""
    first: dict[str, float] = Field(default_factory=dict)
    """Time of the first failure by its kind, in seconds since 1970."""
    away_since: float | None = None
    """Time of the first failed attempt without a reply since, in seconds since 1970."""
    waiting_since: float | None = None
    """Time at which the call first had to wait, which is its place in the queue, in seconds since 1970."""

    def after_wait(self, now: float) -> "FailedAttempts":
        """Return the record of a call that waits for its turn, which is not a failure."""
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
        """The number of attempts that failed by an error of our own."""
        return self.counts.get(_UNEXPECTED, 0)

    # An error of the call itself must end soon, an outage of the provider must not end a run of hours, and the two often look alike.
    # So each kind of failure has its own count, and only what an outage may look like has a time instead: from the first failure after
    # which no reply came, over all kinds, until the outage timeout. A reply that was paid for proves that the provider is there and
    # ends that time. What looks like an error of the server is taken for an outage only where no other call was answered meanwhile.
    # With one count for all kinds two rate limits and a malformed reply would end a run; with only a time a broken prompt would be
    # paid for during two hours.

    def judge(self, fault: ModelFault, limits: CallLimits, now: float, answered_since: Callable[[float], bool]) -> RetryDecision:
        """Return what the newest failure, which is counted already, means for the call.

        `now`: seconds since 1970.
        `answered_since`: whether the endpoint has answered another call since that time.
        """
        kind = _kind(fault)
        if fault.kind not in RETRYABLE:
            return RetryDecision(final=True)
        if kind not in {OUTAGE, "rate_limited"}:
            if self.counts[kind] < (min(MALFORMED_ATTEMPTS, limits.attempts) if kind == _PAID else limits.attempts):
                return RetryDecision()
            may_be_outage = kind in {"server", "malformed_response"} and fault.status != HTTPStatus.CONFLICT
            if limits.attempts < ATTEMPTS or not may_be_outage or answered_since(self.first[kind]):
                return RetryDecision(final=True)
        away = max(0.0, now - (now if self.away_since is None else self.away_since))
        return RetryDecision(final=away >= limits.outage_seconds, away=away, left=max(0.0, limits.outage_seconds - away))


def _kind(fault: ModelFault) -> str:
    """Return the kind of failure whose attempts are counted together."""
    if fault.kind in {"connection", "overloaded"} or fault.status in _AWAY:
        return OUTAGE if fault.kind in RETRYABLE else fault.kind
    paid = fault.kind == "degenerate" or (fault.kind == "malformed_response" and fault.usage is not None and fault.usage.calls > 0)
    return _PAID if paid else fault.kind


def failed_call(
    fault: ModelFault, decision: RetryDecision, spent: Usage, *, endpoint: str, pause: float | None, waits_for: str | None = None
) -> ApplicationError:
    """Return the failure of a call for Temporal.

    `endpoint`: the base URL that was called; empty where there is none.
    `pause`: seconds after which Temporal makes the next attempt; None where that is not known.
    """
    if decision.final and decision.away is not None:
        who = f"{fault.model} at {endpoint}" if endpoint else fault.model
        did = "has refused every call by its rate limit" if fault.kind == "rate_limited" else "has answered no call"
        text = f"{who} {did} for {duration(decision.away)}; the last failure: {fault}; resume, or try again, once it answers"
        return priced_failure(text, OUTAGE, FailureDetails(usage=spent), final=True)
    # The pause before the next attempt ends with the time for which the provider is waited for. Otherwise the last
    # attempt would come up to a whole pause too late, and the call would report a longer outage than was asked for.
    until = None if decision.left is None else round(time.time() + decision.left, 1)
    error = failure(fault, model=fault.model, spent=spent, final=decision.final, waits_for=waits_for, until=until)
    wait = fault.retry_after or pause
    if error.non_retryable or decision.left is None or wait is None or wait <= decision.left:
        return error
    return ApplicationError(error.message, *error.details, type=error.type, next_retry_delay=timedelta(seconds=decision.left))


def next_pause(policy: RetryPolicy | None, attempt: int) -> float | None:
    """Return the seconds after which Temporal makes the attempt behind this one; None where the policy is not known."""
    if policy is None:
        return None
    # The exponent is bounded, since a call that waits for hours has thousands of attempts, and a coefficient of 2
    # overflows a float at the 1024th.
    longest = (policy.maximum_interval or policy.initial_interval * 100).total_seconds()
    steps = min(attempt - 1, 64)
    return float(min(longest, policy.initial_interval.total_seconds() * policy.backoff_coefficient**steps))


@dataclass(frozen=True)
class ModelChoice:
    """The model that an attempt asks, of those that its call may ask."""

    chain: tuple[ModelSpec, ...]
    """The first model and its fallbacks."""
    position: ChainPosition
    after: float
    """Seconds of an outage after which the next model is asked."""
    on_refusal: bool
    taken: frozenset[str]
    """Ids of the models to which this call may not fall back."""

    @property
    def model(self) -> ModelSpec:
        """The model that is asked now."""
        return self.chain[self.position.place]

    @property
    def fallback(self) -> ModelSpec | None:
        """The model that is asked now, where that is a fallback."""
        return self.model if self.position.place else None

    def blame(self, position: ChainPosition) -> str:
        """Return what the final failure says of the other models that were asked; empty where none was."""
        others = [model for model in position.left if not model.startswith(f"{self.model.id} ")]
        return f"; the other models failed too: {', '.join(others)}" if others else ""

    def following(self, position: ChainPosition) -> int | None:
        """Return the place of the model behind the one that is asked, the first again after the last; None where there is no other."""
        places = [*range(position.place + 1, len(self.chain)), *range(position.place)]
        return next((at for at in places if at not in position.refused and (not at or self.chain[at].id not in self.taken)), None)

    # A model that refuses to serve, or has used up its attempts, is never asked again by this call; one that is away is left after
    # `after` seconds and may be asked again once the others have been tried. The position carries since when no model has answered, so
    # that a call which goes round the list ends with the outage timeout; without it a call would go round for ever.

    def after_failure(
        self, fault: ModelFault, failed: FailedAttempts, decision: RetryDecision, limits: CallLimits, now: float
    ) -> RetryDecision:
        """Return what a failure of the model means, which is counted in `failed` already.

        `decision`: what the failure means where no other model is asked.
        `now`: seconds since 1970.
        """
        since, left = None, None
        if failed.away_since is not None:
            since = failed.away_since if self.position.since is None else self.position.since
            if self.following(self.position) is not None:  # so long the model is still asked
                left = max(0.0, failed.away_since + min(self.after, limits.outage_seconds) - now)
        position = self.position.model_copy(update={"since": since})
        refuses = fault.kind in _NOT_SERVED or (fault.kind == "refused" and self.on_refusal)
        gone = fault.kind in RETRYABLE and left is not None
        exhausted = gone and decision.final and decision.away is None
        if not refuses and not exhausted and (not gone or left):
            shorter = min(decision.left or left, left) if left and not decision.final else decision.left
            return replace(decision, left=shorter, position=position)
        if refuses or exhausted:
            position = position.model_copy(update={"refused": (*position.refused, position.place)})
        place = self.following(position)
        away = now - (now if since is None else since)
        if place is None or (place < position.place and not refuses and not exhausted and away >= limits.outage_seconds):
            return RetryDecision(final=True, away=None if refuses or exhausted else away, position=position)
        position = position.model_copy(update={"place": place, "left": _left(position, self.model, fault.kind)})
        return RetryDecision(position=position, model=self.chain[place])


def choose_model(spec: ModelSpec, position: ChainPosition, failed: FailedAttempts, now: float, taken: Collection[str] = ()) -> ModelChoice:
    """Return the model that an attempt asks: one that has been away for long enough is not asked once more.

    `now`: seconds since 1970.
    `taken`: ids of the models to which this call may not fall back, such as those that vote already.
    """
    # `after_failure` ends the pause at the moment at which a silent model is to be left. The attempt that begins
    # then moves on before it asks anybody: one more request to the silent model could take minutes to fail.
    after = FALLBACK_SECONDS if spec.fallback_after is None else spec.fallback_after
    choice = ModelChoice(spec.chain, position, after, spec.on_refusal, frozenset(taken))
    if position.place >= len(choice.chain) or (position.place and choice.model.id in choice.taken):
        return replace(choice, position=position.model_copy(update={"place": 0}))
    place = choice.following(position)
    if failed.away_since is None or place is None or place < position.place or now < failed.away_since + after:
        return choice
    since = failed.away_since if position.since is None else position.since
    return replace(
        choice, position=ChainPosition(place=place, refused=position.refused, since=since, left=_left(position, choice.model, "away"))
    )


def _left(position: ChainPosition, model: ModelSpec, why: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*position.left, f"{model.id} ({why})")))


def fit_for(request: ModelRequest, first: ModelSpec) -> ModelRequest:
    """Return the request without what other models' providers wrote only for themselves.

    Signed and encrypted thinking is of use to the model that thought it, and an error to another.
    """
    spec = request.spec
    messages = tuple(
        message.model_copy(update={"vendor": _unsigned(message, spec)})
        if message.role == "assistant" and (message.model or first.id) != spec.id
        else message
        for message in request.messages
    )
    foreign_calls = any(new.tool_calls and new is not old for new, old in zip(messages, request.messages, strict=True))
    if foreign_calls and spec.provider == "anthropic" and isinstance(spec.config.thinking, int):
        # With a budget for thinking, a turn that calls tools has to begin with thinking of this model's own.
        spec = spec.model_copy(update={"config": spec.config.model_copy(update={"thinking": None})})
    return replace(request, spec=spec, messages=messages)


def _unsigned(message: Message, spec: ModelSpec) -> dict[str, JsonValue] | None:
    """Return what stands for another model's own parts: nothing, but for Gemini, which wants a signature at a function call."""
    if spec.provider != "google_genai" or not message.tool_calls:
        return None
    parts: list[JsonValue] = [{"text": message.content}] if message.content.strip() else []
    for at, call in enumerate(message.tool_calls):
        wanted: dict[str, JsonValue] = {"id": call.id, "name": call.name, "args": call.arguments}
        parts.append({"functionCall": wanted, **({} if at else {"thoughtSignature": UNSIGNED})})
    return {"provider": "google_genai", "parts": parts}
