"""Which model of a list a call asks: the first, until that one is away or refuses to serve; then the next."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from pydantic import JsonValue

from activities.calls.attempts import CallLimits, FailedAttempts, Ruling
from activities.errors import RETRYABLE
from gradeloop.contract.base import Recorded, Sparse
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import FALLBACK_SECONDS, ModelSpec
from gradeloop.contract.provider import FailureKind, ModelFault, ModelRequest

FALLBACK = "fallback"
"""The error type of an attempt after which the next model is asked."""

_NOT_SERVED: frozenset[FailureKind] = frozenset({"not_found", "quota_exhausted", "auth"})
"""Failures by which a provider refuses to serve a model, whatever it is asked."""

UNSIGNED = "skip_thought_signature_validator"
"""The signature by which Gemini takes a function call that another model made (ai.google.dev, "Thought signatures")."""


class ModelTurn(Recorded):
    """Which model a call asks now, and why the others were left; each attempt hands it to the next."""

    place: int = 0
    """The place of the model in its list, 0 for the first."""
    refused: Sparse[tuple[int, ...]] = ()
    """Places of the models that cannot answer this call at all."""
    since: Sparse[float | None] = None
    """When the first attempt failed after which no reply came from any model, in seconds since 1970."""
    left: Sparse[tuple[str, ...]] = ()
    """The models that were left, in order, each with the kind of its failure."""

    def as_beat(self) -> dict[str, JsonValue]:
        """Return what a heartbeat carries beside the failed attempts; nothing where no model failed."""
        return {} if self == ModelTurn() else {"turn": self.model_dump(mode="json")}


class CarriedTurn(Recorded):
    """The turn in a heartbeat's record of failed attempts, which has none where no model failed."""

    turn: ModelTurn = ModelTurn()


@dataclass(frozen=True)
class ModelChoice:
    """The model that an attempt asks, of those that its call may ask."""

    chain: tuple[ModelSpec, ...]
    """The first model and its fallbacks."""
    turn: ModelTurn
    after: float
    """Seconds of an outage after which the next model is asked."""
    on_refusal: bool
    taken: frozenset[str]
    """Ids of the models to which this call may not fall back."""

    @property
    def model(self) -> ModelSpec:
        """The model that is asked now."""
        return self.chain[self.turn.place]

    @property
    def fallback(self) -> ModelSpec | None:
        """The model that is asked now, where that is a fallback."""
        return self.model if self.turn.place else None

    def blame(self, turn: ModelTurn) -> str:
        """Return what the final failure says of the other models that were asked; empty where none was."""
        others = [model for model in turn.left if not model.startswith(f"{self.model.id} ")]
        return f"; the other models failed too: {', '.join(others)}" if others else ""

    def following(self, turn: ModelTurn) -> int | None:
        """Return the place of the model behind the one that is asked, the first again after the last; None where there is no other."""
        places = [*range(turn.place + 1, len(self.chain)), *range(turn.place)]
        return next((at for at in places if at not in turn.refused and (not at or self.chain[at].id not in self.taken)), None)

    def seconds_left(self, failed: FailedAttempts, limits: CallLimits, now: float) -> float | None:
        """Return for how many seconds the model is still asked while it is away; None where no other can be asked."""
        if failed.away_since is None or self.following(self.turn) is None:
            return None
        return max(0.0, failed.away_since + min(self.after, limits.outage_seconds) - now)

    def after_failure(self, fault: ModelFault, failed: FailedAttempts, ruling: Ruling, limits: CallLimits, now: float) -> "NextAttempt":
        """Return what a failure of the model means, which is counted in `failed` already.

        Args:
            fault: The failure.
            failed: The failures of this model in this call.
            ruling: What the failure means where no other model is asked.
            limits: The limits of the call.
            now: Seconds since 1970.
        """
        since = None if failed.away_since is None else failed.away_since if self.turn.since is None else self.turn.since
        turn = self.turn.model_copy(update={"since": since})
        refuses = fault.kind in _NOT_SERVED or (fault.kind == "refused" and self.on_refusal)
        left = self.seconds_left(failed, limits, now)
        gone = fault.kind in RETRYABLE and left is not None
        exhausted = gone and ruling.final and ruling.away is None
        if not refuses and not exhausted and (not gone or left):
            return NextAttempt(turn, replace(ruling, left=min(ruling.left or left, left)) if left and not ruling.final else ruling)
        if refuses or exhausted:
            turn = turn.model_copy(update={"refused": (*turn.refused, turn.place)})
        place = self.following(turn)
        away = now - (now if since is None else since)
        if place is None or (place < turn.place and not refuses and not exhausted and away >= limits.outage_seconds):
            return NextAttempt(turn, Ruling(final=True, away=None if refuses or exhausted else away))
        turn = turn.model_copy(update={"place": place, "left": _left(turn, self.model, fault.kind)})
        return NextAttempt(turn, model=self.chain[place])

    def after_wait(self, away_since: float, limits: CallLimits, now: float) -> "NextAttempt":
        """Return what comes after an attempt that could not be sent: the next model, or the seconds in which this one may still be asked.

        Args:
            away_since: Since when the model has answered nobody, in seconds since 1970.
            limits: The limits of the call.
            now: Seconds since 1970.
        """
        fault = ModelFault("rate_limited", "its rate limit leaves no room for the call", model=self.model.id)
        return self.after_failure(fault, FailedAttempts(away_since=away_since), Ruling(left=limits.outage_seconds), limits, now)


@dataclass(frozen=True)
class NextAttempt:
    """What comes after a failed attempt: another model, or what the ruling says of the same one."""

    turn: ModelTurn
    ruling: Ruling = Ruling()  # noqa: RUF009 - frozen
    model: ModelSpec | None = None
    """The model that is asked next; None where no other one is."""


def choose_model(spec: ModelSpec, turn: ModelTurn, failed: FailedAttempts, now: float, taken: Collection[str] = ()) -> ModelChoice:
    """Return the model that an attempt asks: one that has been away for long enough is not asked once more.

    Args:
        spec: The model that is to answer, with its fallbacks.
        turn: The record of the attempts before this one.
        failed: The failures of the model that was asked last.
        now: Seconds since 1970.
        taken: Ids of the models to which this call may not fall back, such as those that vote already.
    """
    after = FALLBACK_SECONDS if spec.fallback_after is None else spec.fallback_after
    choice = ModelChoice(spec.chain, turn, after, spec.on_refusal, frozenset(taken))
    if turn.place >= len(choice.chain) or (turn.place and choice.model.id in choice.taken):
        return replace(choice, turn=turn.model_copy(update={"place": 0}))
    place = choice.following(turn)
    if failed.away_since is None or place is None or place < turn.place or now < failed.away_since + after:
        return choice
    since = failed.away_since if turn.since is None else turn.since
    return replace(choice, turn=ModelTurn(place=place, refused=turn.refused, since=since, left=_left(turn, choice.model, "away")))


def _left(turn: ModelTurn, model: ModelSpec, why: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*turn.left, f"{model.id} ({why})")))


def fit_for(request: ModelRequest, first: ModelSpec) -> ModelRequest:
    """Return the request without what other models' providers wrote for themselves alone.

    Signed and encrypted thinking is of use to the model that thought it, and an error to another.

    Args:
        request: The request, with the model that is asked.
        first: The model that wrote the messages that name none.
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
