"""How often and for how long a call is made again: each kind of failure has its own limit, and an outage has a time."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from temporalio.common import RetryPolicy

from activities.calls.retries import ATTEMPTS, MALFORMED_ATTEMPTS, CallLimits, FailedAttempts, RetryDecision, failed_call, next_pause
from activities.errors import FailureDetails
from gradeloop.contract.messages import Usage
from gradeloop.contract.provider import FailureKind, ModelFault
from tests.rig.tables import over

NOW = 1_700_000_000.0

MODEL, ADDRESS = "openai:m", "http://127.0.0.1:9/v1"

PAID = Usage(input=9, output=5, calls=1, attempts=1)

SENT = Usage(attempts=1)


def fault(kind: FailureKind, status: int | None = None, *, paid: bool = False, wait: float | None = None) -> ModelFault:
    """Return a failure as the providers raise it."""
    return ModelFault(kind, "busy", model=MODEL, status=status, usage=PAID if paid else SENT, retry_after=wait)


RATE, MALFORMED, PAGE = fault("rate_limited", 429), fault("malformed_response", paid=True), fault("malformed_response")
SERVER, GATEWAY, TIMEOUT = fault("server", 500), fault("server", 503), fault("timeout", 408)


def never(_: float) -> bool:
    """Tell that no other call was answered."""
    return False


def rulings(
    *faults: ModelFault, limits: CallLimits | None = None, every: float = 1.0, answered: Callable[[float], bool] = never
) -> list[RetryDecision]:
    """Return what a call's failures mean, one after the other, with so many seconds between two of them."""
    record, found, now = FailedAttempts(), list[RetryDecision](), NOW
    for failed in faults:
        record = FailedAttempts.model_validate_json(record.after(failed, now).model_dump_json())
        found.append(record.judge(failed, limits or CallLimits(), now, answered))
        now += every
    return found


def finals(*faults: ModelFault, **how: object) -> list[bool]:
    """Return which failures are final."""
    return [ruling.final for ruling in rulings(*faults, **how)]  # type: ignore[arg-type]  # as `rulings` takes it


def test_one_malformed_reply_after_two_rate_limits_is_not_final() -> None:
    assert finals(RATE, RATE, MALFORMED) == [False, False, False]


def test_the_third_malformed_reply_that_was_paid_for_is_final_whatever_came_between() -> None:
    assert MALFORMED_ATTEMPTS == 3
    assert finals(MALFORMED, RATE, MALFORMED, SERVER, MALFORMED) == [False] * 4 + [True]


def test_a_reply_in_a_loop_counts_as_a_malformed_one_also_where_its_server_did_not_report_its_cost() -> None:
    loop, unreported = fault("degenerate", paid=True), fault("degenerate")

    assert finals(loop, MALFORMED, unreported) == [False, False, True]


@over("failed", [TIMEOUT, fault("server", 409), fault("timeout")])
def test_the_eighth_failure_of_its_kind_is_final(failed: ModelFault) -> None:
    assert ATTEMPTS == 8
    assert finals(*[failed] * 8) == [False] * 7 + [True]
    assert finals(*[RATE, failed] * 8) == [False] * 15 + [True]


@pytest.mark.parametrize("failed", [SERVER, PAGE])
def test_a_server_that_answers_others_meanwhile_is_at_fault_after_eight_attempts(failed: ModelFault) -> None:
    asked = list[float]()

    def answered(moment: float) -> bool:
        asked.append(moment)
        return True

    assert finals(*[failed] * 8, answered=answered) == [False] * 7 + [True]
    assert asked == [NOW]


@pytest.mark.parametrize("failed", [SERVER, PAGE])
def test_a_server_that_answers_nobody_is_away_and_each_further_failure_looks_again(failed: ModelFault) -> None:
    rest = rulings(*[failed] * 12, limits=CallLimits(outage_seconds=10.0))[7:]

    assert [ruling.final for ruling in rest] == [False, False, False, True, True]
    assert [ruling.away for ruling in rest] == [7, 8, 9, 10, 11]
    assert finals(*[failed] * 10, answered=lambda _: False) == [False] * 10


@over(
    "failed",
    [
        *(fault("server", status) for status in (502, 503, 504)),
        fault("overloaded", 529),
        fault("overloaded"),
        fault("connection"),
        RATE,
    ],
)
def test_an_outage_and_a_rate_limit_are_bounded_by_time_alone(failed: ModelFault) -> None:
    assert finals(*[failed] * 121, every=60.0) == [False] * 120 + [True]


def test_the_time_of_an_outage_goes_on_over_other_failures_and_begins_anew_after_a_reply() -> None:
    limits = CallLimits(outage_seconds=3.0)

    assert finals(GATEWAY, RATE, SERVER, GATEWAY, limits=limits) == [False, False, False, True]
    assert finals(GATEWAY, RATE, MALFORMED, GATEWAY, RATE, limits=limits) == [False] * 5


def test_a_batch_that_wants_no_retries_has_none_but_waits_for_a_provider_that_is_away() -> None:
    limits = CallLimits(attempts=1, outage_seconds=60.0)

    assert finals(SERVER, limits=limits) == finals(MALFORMED, limits=limits) == finals(PAGE, limits=limits) == [True]
    assert finals(GATEWAY, RATE, limits=limits) == [False, False]


def test_a_failure_that_no_retry_cures_is_final() -> None:
    assert finals(fault("auth", 401)) == finals(fault("quota_exhausted", 503)) == [True]


def failed(failing: ModelFault, ruling: RetryDecision, pause: float | None = 60.0) -> tuple[str | None, bool, timedelta | None]:
    """Return type, finality and pause of the failure that Temporal sees."""
    error = failed_call(failing, ruling, SENT, endpoint=ADDRESS, pause=pause)
    return error.type, error.non_retryable, error.next_retry_delay


def test_the_next_attempt_comes_no_later_than_the_end_of_the_wait() -> None:
    assert failed(GATEWAY, RetryDecision(away=90, left=30)) == ("server", False, timedelta(seconds=30))
    assert failed(GATEWAY, RetryDecision(away=30, left=90)) == ("server", False, None)
    assert failed(GATEWAY, RetryDecision(away=30, left=90), None) == ("server", False, None)
    assert failed(fault("rate_limited", 429, wait=300), RetryDecision(away=30, left=90)) == ("rate_limited", False, timedelta(seconds=90))
    assert failed(fault("rate_limited", 429, wait=7), RetryDecision(away=30, left=90)) == ("rate_limited", False, timedelta(seconds=7))
    assert failed(SERVER, RetryDecision()) == ("server", False, None)
    assert failed(SERVER, RetryDecision(final=True)) == ("server", True, None)


def test_the_end_of_a_wait_says_who_was_away_for_how_long_and_what_to_do() -> None:
    error = failed_call(GATEWAY, RetryDecision(final=True, away=7260, left=0), SENT, endpoint=ADDRESS, pause=60)
    limited = failed_call(RATE, RetryDecision(final=True, away=60, left=0), SENT, endpoint="", pause=60)

    why = "has answered no call for 2 h 1 min; the last failure: HTTP 503, openai:m: busy; resume, or try again, once it answers"
    assert error.message == f"openai:m at {ADDRESS} {why}"
    assert (error.type, error.non_retryable) == (limited.type, limited.non_retryable) == ("outage", True)
    assert limited.message.startswith("openai:m has refused every call by its rate limit for 1 min; the last failure: HTTP 429")
    assert FailureDetails.model_validate(error.details[0]).usage == SENT


def test_the_pause_is_the_retry_policys_own() -> None:
    policy = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=60))

    assert [next_pause(policy, attempt) for attempt in (1, 2, 6, 7, 5000)] == [1, 2, 32, 60, 60]
    assert next_pause(RetryPolicy(), 5000) == 100
    assert next_pause(None, 1) is None
