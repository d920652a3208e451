"""Which model a call asks next, decided on its record alone."""

from dataclasses import replace

from activities.calls.retries import CallLimits, ChainPosition, FailedAttempts, RetryDecision, choose_model
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import FailureKind, ModelFault
from tests.rig.tables import over

SPEC = ModelSpec.model_validate({"id": "scripted:a", "fallback": ["scripted:b", "scripted:c"], "fallback_after": 60})
LIMITS = CallLimits(outage_seconds=600)


def after(kind: FailureKind, turn: ChainPosition, seconds: float, taken: tuple[str, ...] = ()) -> str | float | None:
    """Return the model that is asked after a failure so many seconds after the first one, or for how long the same one still is."""
    choice = choose_model(SPEC, turn, FailedAttempts(), 0, taken)
    fault = ModelFault(kind, "no", model=choice.model.id)
    failed = FailedAttempts().after(fault, 1000.0).after(fault, 1000.0 + seconds)
    ruling = failed.judge(fault, LIMITS, 1000.0 + seconds, lambda _: False)
    following = choice.after_failure(fault, failed, ruling, LIMITS, 1000.0 + seconds)
    return following.model.id if following.model else "over" if following.final else following.left


@over(
    ("kind", "turn", "seconds", "taken", "expected"),
    [
        ("rate_limited", ChainPosition(), 20, (), 40.0),
        ("rate_limited", ChainPosition(), 60, (), "scripted:b"),
        ("server", ChainPosition(), 61, (), "scripted:b"),
        ("rate_limited", ChainPosition(), 60, ("scripted:b",), "scripted:c"),
        ("rate_limited", ChainPosition(), 60, ("scripted:b", "scripted:c"), 540.0),
        ("rate_limited", ChainPosition(), 600, ("scripted:b", "scripted:c"), "over"),
        ("not_found", ChainPosition(), 0, (), "scripted:b"),
        ("not_found", ChainPosition(), 0, ("scripted:b", "scripted:c"), "over"),
        ("rate_limited", ChainPosition(place=2, since=900.0), 60, (), "scripted:a"),
        ("rate_limited", ChainPosition(place=2, since=400.0), 60, (), "over"),
        ("rate_limited", ChainPosition(place=2, refused=(0,), since=900.0), 60, (), "scripted:b"),
        ("not_found", ChainPosition(place=2, refused=(0, 1)), 0, (), "over"),
        ("bad_request", ChainPosition(), 60, (), "over"),
        ("refused", ChainPosition(), 60, (), "over"),
    ],
)
def test_the_next_model_is_decided_by_kind_time_and_who_votes(
    kind: FailureKind, turn: ChainPosition, seconds: float, taken: tuple[str, ...], expected: str | float
) -> None:
    assert after(kind, turn, seconds, taken) == expected


def test_a_reply_that_was_paid_for_ends_the_outage() -> None:
    choice = choose_model(SPEC, ChainPosition(), FailedAttempts(), 0)
    paid = ModelFault("malformed_response", "empty", usage=Usage(calls=1))
    failed = FailedAttempts(away_since=1.0).after(paid, 1000.0)

    following = choice.after_failure(paid, failed, failed.judge(paid, LIMITS, 1000.0, lambda _: False), LIMITS, 1000.0)

    assert (following.model, following.final) == (None, False)


def test_a_model_that_has_been_away_for_long_enough_is_not_asked_once_more() -> None:
    chosen = choose_model(SPEC, ChainPosition(), FailedAttempts(away_since=1000.0), 1060.0)

    assert chosen.model.id == "scripted:b"
    assert chosen.position.left == ("scripted:a (away)",)
    assert choose_model(SPEC, ChainPosition(), FailedAttempts(away_since=1000.0), 1059.0).model.id == "scripted:a"


def test_a_call_that_is_never_sent_falls_back_too() -> None:
    choice = choose_model(SPEC, ChainPosition(), FailedAttempts(), 0)
    limited, away = ModelFault("rate_limited", "no room"), FailedAttempts(away_since=1000.0)
    early, late = (choice.after_failure(limited, away, RetryDecision(left=600.0), LIMITS, now) for now in (1050.0, 1060.0))

    assert (early.model, early.left) == (None, 10.0)
    assert late.model is not None
    assert late.model.id == "scripted:b"


def test_without_fallbacks_the_ruling_stays_as_it_is() -> None:
    choice = choose_model(ModelSpec(id="scripted:a"), ChainPosition(), FailedAttempts(), 0)
    ruling, failed = RetryDecision(away=5.0, left=595.0), FailedAttempts(away_since=1000.0)

    following = choice.after_failure(ModelFault("connection", "no"), failed, ruling, LIMITS, 1005.0)

    assert following == replace(ruling, position=ChainPosition(since=1000.0))
