"""The real model itself, and what stands before it: the facts on which the other tests of this folder stand."""

import json
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from rig.real_model import NAME, Call, Tap


def ask(tap: Tap, text: str, **more: Any) -> dict[str, Any]:
    """Ask the model, and return its reply."""
    body = {"model": NAME, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 12, **more}
    request = urllib.request.Request(f"{tap.url}/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as reply:
        payload = reply.read()
    return {} if payload.startswith(b"data:") else dict(json.loads(payload))


def test_the_server_says_how_much_of_a_prompt_it_had_read_before(tap: Tap) -> None:
    first, again = (ask(tap, "Name a colour, and say in which flag it is.")["usage"] for _ in range(2))

    assert again["prompt_tokens"] == first["prompt_tokens"]
    assert again["prompt_tokens_details"]["cached_tokens"] >= first["prompt_tokens"] - 1


def test_a_reply_is_noted_alike_whether_it_is_streamed_or_not(tap: Tap) -> None:
    ask(tap, "Name a colour.")
    ask(tap, "Name a colour.", stream=True, stream_options={"include_usage": True})
    whole, streamed = tap.calls

    assert whole.text == streamed.text != ""
    assert (whole.prompt, whole.written, whole.finish) == (streamed.prompt, streamed.written, streamed.finish)


def test_a_stream_is_noted_that_begins_with_a_comment_as_those_of_a_busy_server_do() -> None:
    call = Call({}, began=0)
    call.take(b':\n\ndata: {"choices": [{"delta": {"content": "blue"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')

    assert (call.text, call.finish) == ("blue", "stop")


def test_a_schema_binds_what_is_written(tap: Tap) -> None:
    schema = {"type": "object", "properties": {"k": {"const": "violet"}}, "required": ["k"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "one", "strict": True, "schema": schema}}

    ask(tap, "Name a colour.", response_format=form, max_tokens=40)

    assert json.loads(tap.calls[0].text) == {"k": "violet"}
    assert tap.calls[0].by_schema


def test_a_completion_is_held_to_what_the_tap_says(tap: Tap) -> None:
    tap.most = 3
    try:
        ask(tap, "Count to a hundred.")
    finally:
        tap.most = None

    assert tap.calls[0].written == 3


def test_what_no_slot_holds_is_refused(tap: Tap) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(tap, "word " * 9000)

    with refused.value as told:
        assert b"exceeds the available context size" in told.read()


def test_calls_in_flight_are_counted(tap: Tap) -> None:
    threads = [threading.Thread(target=ask, args=(tap, f"Count from {at} to a hundred.")) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tap.until(lambda seen: seen.in_flight == 0)  # a caller has its reply a moment before the tap is done with it

    assert (len(tap.calls), tap.in_flight, tap.at_once) == (3, 0, 3)
