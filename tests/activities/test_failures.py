"""One function says of every exception what kind of failure it is, whether a retry can help, and how long to wait."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import httpx2
import pytest
from temporalio.exceptions import ApplicationError
from temporalio.exceptions import CancelledError as TemporalCancelledError

from activities.errors import PERMANENT, RETRYABLE, conceal, failure, model_fault, retry_after
from gradeloop.contract.provider import FailureKind, ModelFault
from gradeloop.errors import InvalidRequest
from tests.rig.tables import over

MODEL = "openai:m"
ADDRESS = "http://127.0.0.1:9"
Respond = Callable[[httpx2.Request], httpx2.Response]
SDKS = ("anthropic", "openai")


async def sdk_error(sdk: str, respond: Respond) -> Exception:
    """Return what the SDK raises where its server responds so."""
    import anthropic
    import openai

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(respond))
    message: Any = [{"role": "user", "content": "x"}]
    try:
        if sdk == "anthropic":
            claude = anthropic.AsyncAnthropic(api_key="KEY", base_url=ADDRESS, http_client=http, max_retries=0, timeout=240)
            await claude.messages.create(model="m", messages=message, max_tokens=9)
        else:
            gpt = openai.AsyncOpenAI(api_key="KEY", base_url=ADDRESS, http_client=http, max_retries=0, timeout=240)
            await gpt.chat.completions.create(model="m", messages=message)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the test is about
        return error
    finally:
        await http.aclose()
    raise AssertionError("the call succeeded")


def body(sdk: str, message: str, code: str = "x", *, exact: str | None = None) -> dict[str, Any]:
    """Return an error's body as the provider writes it."""
    if sdk == "anthropic":
        return {"type": "error", "error": {"type": code, "message": message, "details": {"error_code": exact} if exact else None}}
    return {"error": {"message": message, "type": code, "param": None, "code": exact}}


async def answered(sdk: str, status: int, content: Any, headers: dict[str, str] | None = None) -> ApplicationError:
    """Return the failure that a response of the provider becomes."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    error = await sdk_error(
        sdk, lambda _: httpx2.Response(status, content=raw, headers={"content-type": "application/json", **(headers or {})})
    )
    return failure(error, model=MODEL)


@over("sdk", SDKS)
@over(
    ("status", "words", "kind"),
    [
        (302, "", "bad_request"),
        (400, "bad", "bad_request"),
        (400, "prompt is too long: 250000 tokens > 200000 maximum", "context_overflow"),
        (400, "Your credit balance is too low", "quota_exhausted"),
        (401, "no", "auth"),
        (402, "pay", "quota_exhausted"),
        (403, "no", "auth"),
        (404, "model: m", "not_found"),
        (408, "late", "timeout"),
        (409, "conflict", "server"),
        (413, "big", "context_overflow"),
        (418, "teapot", "bad_request"),
        (422, "bad", "bad_request"),
        (429, "slow down, too many tokens", "rate_limited"),
        (429, "Insufficient credits", "quota_exhausted"),
        (500, "oops", "server"),
        (502, "<html>", "server"),
        (503, "busy", "server"),
        (529, "Overloaded", "overloaded"),
    ],
)
async def test_a_status_becomes_a_kind_and_only_the_transient_ones_are_retried(
    sdk: str, status: int, words: str, kind: FailureKind
) -> None:
    error = await answered(sdk, status, body(sdk, words))

    assert error.type == kind
    assert error.non_retryable == (kind in PERMANENT)


def test_a_kind_is_either_retried_or_permanent() -> None:
    assert RETRYABLE | set(PERMANENT) == set(get_args(FailureKind))
    assert not RETRYABLE & set(PERMANENT)


@over(
    ("sdk", "status", "code", "exact", "kind"),
    [
        ("openai", 429, "insufficient_quota", "insufficient_quota", "quota_exhausted"),
        ("openai", 429, "requests", "rate_limit_exceeded", "rate_limited"),
        ("openai", 400, "invalid_request_error", "context_length_exceeded", "context_overflow"),
        ("anthropic", 429, "rate_limit_error", "enforced_spend_limit_reached", "quota_exhausted"),
        ("anthropic", 429, "rate_limit_error", None, "rate_limited"),
        ("anthropic", 500, "overloaded_error", None, "overloaded"),
    ],
)
async def test_a_code_tells_an_exhausted_quota_from_a_rate_limit(
    sdk: str, status: int, code: str, exact: str | None, kind: FailureKind
) -> None:
    error = await answered(sdk, status, body(sdk, "no", code, exact=exact))

    assert error.type == kind


async def test_an_error_event_in_a_stream_of_status_200_is_known_by_its_type() -> None:
    import anthropic

    event = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n'
    http = httpx2.AsyncClient(
        transport=httpx2.MockTransport(lambda _: httpx2.Response(200, content=event, headers={"content-type": "text/event-stream"}))
    )
    client = anthropic.AsyncAnthropic(api_key="KEY", base_url="http://127.0.0.1:9", http_client=http, max_retries=0, timeout=240)
    with pytest.raises(anthropic.APIStatusError) as caught:
        async for _ in await client.messages.create(model="m", messages=[{"role": "user", "content": "x"}], max_tokens=9, stream=True):
            pass
    await http.aclose()

    error = failure(caught.value, model=MODEL)

    assert (caught.value.status_code, error.type, error.non_retryable) == (200, "overloaded", False)


@pytest.mark.parametrize("sdk", SDKS)
async def test_the_message_names_exception_status_model_and_the_providers_words(sdk: str) -> None:
    error = await answered(sdk, 404, body(sdk, "no such model"))

    assert error.message == "NotFoundError, HTTP 404, openai:m: no such model"


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_redirect_is_refused_and_says_where_it_led(sdk: str) -> None:
    error = await answered(sdk, 307, b"", {"location": "https://evil.example/v1?k=1"})

    assert error.non_retryable
    assert "HTTP 307, openai:m: the endpoint redirects to 'https://evil.example/v1', which is refused" in error.message


@pytest.mark.parametrize("sdk", SDKS)
async def test_a_page_of_html_is_cut_and_stands_on_one_line(sdk: str) -> None:
    error = await answered(sdk, 502, b"<html>\n" + b"<p>gateway</p>\n" * 200)

    assert error.type == "server"
    assert len(error.message) < 600
    assert "\n" not in error.message
    assert error.message.endswith("…")


@over("sdk", SDKS)
@over(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "7", "retry-after-ms": "6500"}, 6.5),
        ({"retry-after": "86400"}, 300.0),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
async def test_the_wait_that_a_provider_asks_for_is_kept_up_to_five_minutes(
    sdk: str, headers: dict[str, str], seconds: float | None
) -> None:
    error = await answered(sdk, 429, body(sdk, "slow down"), headers)

    assert error.next_retry_delay == (timedelta(seconds=seconds) if seconds else None)


async def test_a_permanent_failure_waits_for_nothing() -> None:
    error = await answered("openai", 400, body("openai", "bad"), {"retry-after": "7"})

    assert error.next_retry_delay is None


def test_a_wait_may_be_given_as_a_date() -> None:
    now = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)

    assert retry_after({"retry-after": "Fri, 20 Nov 2026 12:01:30 GMT"}, now) == 90
    assert retry_after({"retry-after": "Fri, 20 Nov 2026 11:00:00 GMT"}, now) is None
    assert retry_after({"retry-after": "Fri, 20 Nov 2026 12:01:30 -0000"}, now) is None


def raising(error: Exception) -> Respond:
    """Return a transport that fails so."""

    def respond(_: httpx2.Request) -> httpx2.Response:
        raise error

    return respond


@over("sdk", SDKS)
@over(
    ("cause", "kind"),
    [
        (httpx2.ConnectError("refused"), "connection"),
        (httpx2.RemoteProtocolError("dropped"), "connection"),
        (httpx2.ReadTimeout("late"), "timeout"),
        (httpx2.ConnectTimeout("late"), "connection"),
        (httpx2.ConnectError("[Errno -2] Name or service not known"), "connection"),
        (httpx2.LocalProtocolError("Illegal header value"), "config"),
        (httpx2.UnsupportedProtocol("no http"), "config"),
        (UnicodeEncodeError("ascii", "é", 0, 1, "ordinal not in range"), "config"),
    ],
)
async def test_a_failure_to_send_is_known_by_its_cause(sdk: str, cause: Exception, kind: FailureKind) -> None:
    error = failure(await sdk_error(sdk, raising(cause)), model=MODEL)

    assert (error.type, error.non_retryable) == (kind, kind == "config")


async def test_a_connection_failure_names_the_host() -> None:
    error = failure(await sdk_error("openai", raising(httpx2.ConnectError("All attempts failed"))), model=MODEL)

    words = "Connection error. (ConnectError: All attempts failed at http://127.0.0.1:9)"
    assert error.message == f"APIConnectionError, openai:m: {words}"


@over("sdk", SDKS)
@over(("key", "scheme"), [("a\nb", "http"), ("KEY", "ftp")])
async def test_a_key_or_an_address_that_http_cannot_send_is_a_matter_of_configuration(sdk: str, key: str, scheme: str) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    import anthropic
    import openai

    make: Any = anthropic.AsyncAnthropic if sdk == "anthropic" else openai.AsyncOpenAI
    address = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, httpx2.AsyncClient() as http:
        client = make(api_key=key, base_url=address, http_client=http, max_retries=0, timeout=240)
        with pytest.raises(Exception, match="Connection error") as caught:
            await client.post("/x", cast_to=httpx2.Response, body={})

    error = failure(caught.value, model=MODEL)

    assert (error.type, error.non_retryable) == ("config", True)
    assert key not in error.message or key == "KEY"


@over(
    ("error", "kind"),
    [
        (json.JSONDecodeError("Expecting value", "", 0), "malformed_response"),
        (httpx2.DecodingError("bad gzip"), "malformed_response"),
        (httpx2.ReadError("gone"), "connection"),
        (httpx2.PoolTimeout("full"), "timeout"),
        (ConnectionResetError("gone"), "connection"),
        (TimeoutError(), "timeout"),
    ],
)
def test_raw_errors_of_the_libraries_below_the_sdks_are_known(error: Exception, kind: FailureKind) -> None:
    assert failure(error, model=MODEL).type == kind


def test_a_raw_error_without_a_request_still_tells_its_cause() -> None:
    error = httpx2.ReadError("gone")
    error.__cause__ = OSError("reset by peer")

    assert failure(error, model=MODEL).message == "ReadError, openai:m: gone (OSError: reset by peer)"


def test_a_fault_of_our_own_finding_keeps_its_facts() -> None:
    error = failure(ModelFault("refused", "the model refused to answer (cyber)", model="x:y", status=200), model=MODEL)

    assert (error.type, error.non_retryable) == ("refused", True)
    assert error.message == "HTTP 200, openai:m: the model refused to answer (cyber)"


def test_a_fault_of_configuration_is_the_sentence_alone() -> None:
    assert failure(ModelFault("config", "OPENAI_API_KEY is not set."), model=MODEL).message == "OPENAI_API_KEY is not set."


@over("error", [KeyError("x"), ValueError("x"), RuntimeError("x"), InvalidRequest("x")])
def test_anything_else_is_a_bug_under_its_own_name_and_not_retried(error: Exception) -> None:
    seen = failure(error, model=MODEL)

    assert (seen.type, seen.non_retryable) == (type(error).__name__, True)
    assert model_fault(error, model=MODEL) is None


def test_what_temporal_already_understands_is_left_as_it_is() -> None:
    error = ApplicationError("x", type="InvalidRequest")

    assert failure(error, model=MODEL) is error


@over("error", [asyncio.CancelledError(), TemporalCancelledError("stop"), KeyboardInterrupt(), SystemExit()])
def test_a_cancellation_is_never_turned_into_a_failure(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        failure(error, model=MODEL)

    assert caught.value is error


@over(
    ("text", "shown"),
    [
        ("Incorrect API key provided: sk-proj-abc***xyz.", "Incorrect API key provided: [key]."),
        ("header 'Bearer abcdefgh1234' is bad", "header '[key] is bad"),
        ("AIzaSyA1234567890123456789012345678901", "[key]"),
        ("mine is hunter2secret", "mine is [key]"),
        ("Bearer token is missing", "Bearer token is missing"),
        ("x" * 501, "x" * 499 + "…"),
        ("cut by the server: hunter2se", "cut by the server: [key]"),
        ("cut, and more: hunter2secre is bad", "cut, and more: [key] is bad"),
        ("one is hunter2secret, another hunter2something", "one is [key], another [key]"),
        ("x" * 490 + "hunter2secret", "x" * 490 + "[key]"),
        ("a risk-assessment of flask-sqlalchemy", "a risk-assessment of flask-sqlalchemy"),
    ],
)
def test_no_message_shows_a_key(text: str, shown: str) -> None:
    assert conceal(text, {"hunter2secret", "hunter2something"}) == shown


def test_a_webhooks_address_is_hidden_whole_or_cut_and_no_other_address_is() -> None:
    hook = "https://hooks.example.com/services/T0001/B0002/abcdefgh"

    assert conceal(f"POST {hook}?x=1 failed", {hook}) == "POST [key]?x=1 failed"
    assert conceal("POST https://hooks.example.com/services/T0001/B00", {hook}) == "POST [key]"
    assert (
        conceal("see https://hooks.example.com/ and https://evil.example/v1", {hook})
        == "see https://hooks.example.com/ and https://evil.example/v1"
    )
