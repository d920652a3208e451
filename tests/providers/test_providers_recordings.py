"""The adapters on recorded replies, through the unmodified SDKs, and what they send in return."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from google.genai.types import GenerateContentResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from activities.errors import RETRYABLE, failure
from activities.providers import Providers
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message, ToolCall, Usage
from gradeloop.contract.provider import ModelReply, ToolSpec
from tests.rig.provider_server import PROTOCOLS, ProviderServer, Recorded, recordings, timeless, turns

STATION: dict[str, Any] = {
    "type": "object",
    "properties": {"station": {"type": "string"}, "rising": {"type": "boolean"}},
    "required": ["station", "rising"],
    "additionalProperties": False,
}
READ = ToolSpec(
    name="read_gauge",
    description="Reads a gauge.",
    parameters={"type": "object", "properties": {"station": {"type": "string"}}, "required": ["station"]},
)


class Talk:
    """A conversation with a model whose replies are recorded."""

    def __init__(self, server: ProviderServer, recording: str, model: str, config: dict[str, Any] | None = None, **parts: Any) -> None:
        self._server = server
        self._call = (model, None, config)
        self._parts = parts
        self.messages: list[Message] = []
        server.answer = turns(model.partition(":")[0], recording)

    async def turn(self, *said: Message) -> ModelReply:
        """Add messages, make the next call and add its reply."""
        self.messages += said
        reply = await self._server.ask(*self._call, messages=self.messages, **self._parts)
        self.messages.append(Message.model_validate_json(reply.message.model_dump_json()))
        assert (reply.usage.attempts, reply.usage.seconds > 0) == (1, True)
        return timeless(reply)

    @property
    def sent(self) -> list[Any]:
        """The bodies that the server received."""
        return [received.body for received in self._server.received]


def user(text: str, **more: Any) -> Message:
    """Say something as the user."""
    return Message(role="user", content=text, **more)


def result(call: ToolCall, text: str) -> Message:
    """Answer a tool call."""
    return Message(role="tool", name=call.name, content=text, tool_call_id=call.id)


SHAPES: dict[str, tuple[Any, Any]] = {
    "anthropic": (AnthropicMessage, RawMessageStreamEvent),
    "openai": (Response, ResponseStreamEvent),
    "openai_compatible": (ChatCompletion, ChatCompletionChunk),
    "google_genai": (GenerateContentResponse, GenerateContentResponse),
}
"""The SDK's types of a reply and of an event."""

BEYOND_THE_SDK = {f"openai_compatible {name}" for name in ("provider", "native_finish_reason", "reasoning", "reasoning_details", "index")}
"""Fields that OpenRouter adds."""


def unknown_fields(value: object, provider: str) -> Iterator[str]:
    """Yield the fields of a parsed reply that the SDK has no type for."""
    if isinstance(value, BaseModel):
        yield from (name for name in value.model_extra or {} if f"{provider} {name}" not in BEYOND_THE_SDK)
        value = [getattr(value, name) for name in type(value).model_fields]
    for part in value if isinstance(value, list) else ():
        yield from unknown_fields(part, provider)


def recorded(provider: str) -> list[Recorded]:
    """Return the recordings of a protocol that are replies, good or bad, and no errors."""
    held = recordings(provider)
    return [
        *chain(*held.exchanges.values()),
        *(fault for fault in held.faults.values() if "error" not in (fault.body or {}) and "model_length" not in str(fault.body)),
    ]


@pytest.mark.parametrize("provider", PROTOCOLS)
def test_recordings_have_the_shapes_that_the_sdk_knows(provider: str) -> None:
    reply, event = (TypeAdapter(shape) for shape in SHAPES[provider])
    for held in recorded(provider):
        events = [each for each in held.events or () if isinstance(each, dict) and "error" not in each and each.get("type") != "ping"]
        for parsed in [*([reply.validate_python(held.body)] if held.body else []), *map(event.validate_python, events)]:
            assert list(unknown_fields(parsed, provider)) == []


async def test_anthropic_plain(provider: ProviderServer) -> None:
    talk = Talk(provider, "plain", "anthropic:claude-opus-5", system="Be brief.")

    reply = await talk.turn(user("Which gauge?", name="rubric_grader"))

    assert (reply.message.content, reply.message.vendor) == ('Gauge "North" stands highest, at 4,2 m (über Normal).', None)
    assert reply.usage == Usage(input=21, output=34, calls=1)
    assert talk.sent == [
        {
            "model": "claude-opus-5",
            "max_tokens": 16384,
            "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Which gauge?"}]}],
            "stream": True,
        }
    ]


@pytest.mark.parametrize(("model", "key"), [("anthropic:m", "ant-secret"), ("openai_compatible:m", "oai-secret")])
async def test_nothing_of_the_environment_travels_but_the_key(
    provider: ProviderServer, monkeypatch: pytest.MonkeyPatch, model: str, key: str
) -> None:
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "ANTHROPIC_AUTH_TOKEN", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "ambient")
    ambient = {"ANTHROPIC_CUSTOM_HEADERS": "x-ambient: 1\nauthorization: ambient", "OPENAI_CUSTOM_HEADERS": "x-ambient: 1"}
    for name in ambient:
        monkeypatch.setenv(name, ambient["ANTHROPIC_CUSTOM_HEADERS"])
    own = Providers(Environment.read(provider.environ | ambient))
    monkeypatch.setattr(provider, "providers", own)

    await provider.ask(model, turns(model.partition(":")[0], "plain"))
    await own.aclose()

    headers = provider.received[0].headers
    assert headers["authorization"] == f"Bearer {key}"
    assert "ambient" not in json.dumps(headers)
    assert not {name for name in headers if name.startswith(("openai-", "x-ambient", "traceparent"))}


async def test_a_server_that_a_request_names_gets_no_key(provider: ProviderServer) -> None:
    answer = turns("openai_compatible", "plain")

    await provider.ask("openai_compatible:m", answer, {"base_url": f"{provider.url}/compatible/v1"})

    assert provider.received[0].path == "/compatible/v1/chat/completions"
    assert provider.received[0].headers["authorization"] == "Bearer EMPTY"


async def test_anthropic_parallel_tools_then_a_verdict_by_schema(provider: ProviderServer) -> None:
    talk = Talk(provider, "tools_then_schema", "anthropic:claude-opus-5", {"max_tokens": 4096}, tools=(READ,), schema=STATION)

    asked = await talk.turn(user("Compare."))
    calls = asked.message.tool_calls
    verdict = await talk.turn(*(result(call, f"at {call.arguments['station']}") for call in calls), user("Go on."))

    assert [(call.id, call.name, call.arguments["station"]) for call in calls] == [
        (f"toolu_a{at}", "read_gauge", name) for at, name in enumerate(("North", "Quay", "Lock"), 1)
    ]
    assert asked.message.content == "I read all three."
    assert json.loads(verdict.message.content) == {"station": "North", "rising": True}
    assert asked.usage == Usage(input=1510, cache_written=1200, output=88, calls=1)
    assert verdict.usage == Usage(input=1605, cached=1510, output=17, calls=1)
    first, assistant, results = talk.sent[1]["messages"]
    assert [block["type"] for block in assistant["content"]] == ["text", "tool_use", "tool_use", "tool_use"]
    assert (first["role"], assistant["role"], results["role"]) == ("user", "assistant", "user")
    assert results["content"] == [
        *({"type": "tool_result", "tool_use_id": call.id, "content": f"at {call.arguments['station']}"} for call in calls),
        {"type": "text", "text": "Go on."},
    ]
    for body in talk.sent:
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": STATION}}
        assert (body["max_tokens"], body["tool_choice"]) == (4096, {"type": "auto"})
        assert [declared["input_schema"] for declared in body["tools"]] == [READ.parameters]


async def test_anthropic_streamed_thinking_goes_back_verbatim(provider: ProviderServer) -> None:
    """The reply after it has a `retry-after`, which means nothing behind a good reply."""
    talk = Talk(provider, "thinking_with_a_tool", "anthropic:claude-opus-5", {"reasoning_effort": "xhigh"}, tools=(READ,))

    asked = await talk.turn(user("Read the quay."))
    answer = await talk.turn(result(asked.message.tool_calls[0], "1.1 m"))

    assert (asked.message.content, asked.message.tool_calls) == (
        "I look at the quay.",
        (ToolCall(id="toolu_b1", name="read_gauge", arguments={"station": "Quay"}),),
    )
    assert asked.usage == Usage(input=402, output=96, reasoning=41, calls=1)
    assert talk.sent[1]["messages"][1] == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "The user asks for one gauge.", "signature": "b3VyIG93biBzaWduYXR1cmU="},
            {"type": "redacted_thinking", "data": "c2VhbGVk"},
            {"type": "text", "text": "I look at the quay."},
            {"type": "tool_use", "id": "toolu_b1", "name": "read_gauge", "input": {"station": "Quay"}, "caller": {"type": "direct"}},
        ],
    }
    assert [body["output_config"] for body in talk.sent] == [{"effort": "xhigh"}] * 2
    assert (answer.message.content, answer.usage) == (
        "- Quay:\n- 1.1 m",
        Usage(input=522, cached=450, cache_written=12, output=12, calls=1),
    )


async def test_chat_plain(provider: ProviderServer) -> None:
    config = {"max_tokens": 99, "reasoning_effort": "low"}
    talk = Talk(provider, "plain", "openai_compatible:gpt-5", config, system="Be brief.")

    reply = await talk.turn(user("Which gauge?", name="rubric_grader"), user("The highest.", name="no name"))

    assert (reply.message.content, reply.usage) == ("Gauge North is.", Usage(input=19, cached=16, output=25, reasoning=18, calls=1))
    assert provider.received[0].path == "/v1/chat/completions"
    assert talk.sent == [
        {
            "model": "gpt-5",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Which gauge?", "name": "rubric_grader"},
                {"role": "user", "content": "The highest."},
            ],
            "max_completion_tokens": 99,
            "reasoning_effort": "low",
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


async def test_chat_parallel_tools_then_a_verdict_by_schema(provider: ProviderServer) -> None:
    talk = Talk(provider, "tools_then_schema", "openai_compatible:gpt-4o", tools=(READ,), schema=STATION)

    asked = await talk.turn(user("Compare."))
    calls = asked.message.tool_calls
    verdict = await talk.turn(*(result(call, "done") for call in calls))

    assert calls == tuple(
        ToolCall(id=f"call_a{at}", name="read_gauge", arguments={"station": name}) for at, name in enumerate(("North", "Quay"), 1)
    )
    assert json.loads(verdict.message.content) == {"station": "North", "rising": True}
    assert (asked.usage, verdict.usage) == (Usage(input=80, output=41, calls=1), Usage(input=142, output=14, calls=1))
    _, assistant, *results = talk.sent[1]["messages"]
    assert [(call["id"], json.loads(call["function"]["arguments"])) for call in assistant["tool_calls"]] == [
        (call.id, call.arguments) for call in calls
    ]
    assert results == [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in calls]
    schema = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": STATION}}
    assert [(body["response_format"], body["tool_choice"]) for body in talk.sent] == [(schema, "auto")] * 2


async def test_chat_streamed_with_tools(provider: ProviderServer) -> None:
    talk = Talk(provider, "streamed_tools", "openai_compatible:gpt-4o-mini", tools=(READ,))

    asked = await talk.turn(user("The quay?"))
    answer = await talk.turn(result(asked.message.tool_calls[0], "1.1 m"))

    assert asked.message.tool_calls == (ToolCall(id="call_b1", name="read_gauge", arguments={"station": "Quay"}),)
    assert answer.message.content == "The quay is at 1.1 m."
    assert (asked.usage, answer.usage) == (Usage(input=61, output=16, calls=1), Usage(input=90, output=9, calls=1))


async def test_openrouter_tool_calling_through_a_compatible_server(provider: ProviderServer) -> None:
    config = {"base_url": f"{provider.url}/compatible", "max_tokens": 64}
    talk = Talk(provider, "openrouter_tools", "openai_compatible:mistralai/mistral-small", config, tools=(READ,))

    reply = await talk.turn(user("How deep?"))

    assert reply.message.tool_calls == (ToolCall(id="oR9xQ2w", name="read_gauge", arguments={"station": "Lock", "depth": 3}),)
    assert (reply.message.content, reply.message.vendor) == ("", None)
    assert reply.usage == Usage(input=101, output=27, calls=1)
    assert (talk.sent[0]["model"], talk.sent[0]["max_tokens"]) == ("mistralai/mistral-small", 64)


async def test_responses_tools_then_a_verdict_by_schema(provider: ProviderServer) -> None:
    talk = Talk(provider, "tools_then_schema", "openai:gpt-5.4", tools=(READ,), schema=STATION, system="Be brief.")

    asked = await talk.turn(user("Rising?"))
    (call,) = asked.message.tool_calls
    verdict = await talk.turn(result(call, "1.1 m"))

    assert call == ToolCall(id="call_1", name="read_gauge", arguments={"station": "Quay"})
    assert json.loads(verdict.message.content) == {"station": "Quay", "rising": False}
    assert asked.usage == Usage(input=52, output=38, reasoning=20, calls=1)
    assert verdict.usage == Usage(input=110, cached=64, cache_written=30, output=13, calls=1)
    assert provider.received[0].path == "/v1/responses"
    form = {"type": "json_schema", "name": "verdict", "strict": True, "schema": STATION}
    for body in talk.sent:
        assert (body["store"], body["include"], body["instructions"]) == (False, ["reasoning.encrypted_content"], "Be brief.")
        assert body["text"]["format"] == form
    assert talk.sent[1]["input"] == [
        {"role": "user", "content": "Rising?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VhbGVkIHRob3VnaHQ="},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "read_gauge", "arguments": '{"station":"Quay"}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "1.1 m"},
    ]


async def test_responses_streamed(provider: ProviderServer) -> None:
    talk = Talk(provider, "streamed", "openai:gpt-4o-mini")

    reply = await talk.turn(user("Which gauge?"))

    assert (reply.message.content, reply.usage) == ("Gauge North is.", Usage(input=18, output=6, calls=1))
    assert talk.sent[0]["stream"]


async def test_responses_find_their_cache_by_a_key_that_equal_prompts_share(provider: ProviderServer) -> None:
    keys = []
    for said, system in (("one", "the policy"), ("another", "the policy"), ("one", "another policy")):
        talk = Talk(provider, "streamed", "openai:gpt-5.4", system=system)
        await talk.turn(user(said))
        keys.append(talk.sent[-1]["prompt_cache_key"])

    assert keys[0] == keys[1] != keys[2]
    assert len(keys[0]) == 32


async def test_google_plain(provider: ProviderServer) -> None:
    settings = {"temperature": 0, "thinking": "disabled", "extra": {"topK": 40, "labels": {"team": "a"}}}
    talk = Talk(provider, "plain", "google_genai:gemini-2.5-flash", settings, system="Be brief.")

    reply = await talk.turn(user("Which gauge?"))

    assert (reply.message.content, reply.usage) == ("Gauge North is.", Usage(input=12, cached=8, output=25, reasoning=21, calls=1))
    assert provider.received[0].path == "/v1/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
    assert provider.received[0].headers["x-goog-api-key"] == "goo-secret"
    assert talk.sent == [
        {
            "contents": [{"role": "user", "parts": [{"text": "Which gauge?"}]}],
            "generationConfig": {"maxOutputTokens": 16384, "temperature": 0.0, "thinkingConfig": {"thinkingBudget": 0}, "topK": 40},
            "labels": {"team": "a"},
            "systemInstruction": {"parts": [{"text": "Be brief."}]},
        }
    ]


async def test_google_tools_with_signatures_that_go_back_letter_by_letter_then_a_verdict_by_schema(provider: ProviderServer) -> None:
    talk = Talk(provider, "tools_then_schema", "google_genai:gemini-3-flash-preview", tools=(READ,), schema=STATION)

    asked = await talk.turn(user("Rising?"))
    (call,) = asked.message.tool_calls
    verdict = await talk.turn(result(call, "1.1 m"))

    assert (call.id, call.name, call.arguments) == ("fc-1", "read_gauge", {"station": "Quay"})
    assert json.loads(verdict.message.content) == {"station": "Quay", "rising": False}
    assert asked.usage == Usage(input=33, output=81, reasoning=70, calls=1)
    assert verdict.usage == Usage(input=159, output=44, reasoning=30, calls=1)
    settings = talk.sent[0]["generationConfig"]
    assert (settings["responseMimeType"], settings["responseJsonSchema"]) == ("application/json", STATION)
    _, echoed, answered = talk.sent[1]["contents"]
    assert echoed["parts"] == [
        {"text": "I think of the quay.", "thought": True},
        {
            "functionCall": {"id": "fc-1", "name": "read_gauge", "args": {"station": "Quay"}},
            "thoughtSignature": "b3VyIG93biBzaWduYXR1cmUgb25l",
        },
    ]
    assert answered["parts"][0]["functionResponse"]["response"] == {"output": "1.1 m"}


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name in PROTOCOLS for fault in recordings(name).faults])
async def test_a_recorded_fault_has_its_kind_says_what_it_cost_and_is_asked_once(provider: ProviderServer, name: str, fault: str) -> None:
    recording = recordings(name).faults[fault]

    caught = await provider.fault(f"{name}:{fault}", recording)

    error = failure(caught, model=f"{name}:{fault}")
    assert (error.type, error.non_retryable, len(provider.received)) == (recording.kind, recording.kind not in RETRYABLE, 1)
    assert recording.says in error.message
    assert caught.raisable == recording.raisable
    assert (error.next_retry_delay.total_seconds() if error.next_retry_delay else None) == recording.wait
    usage = caught.usage
    assert usage is not None
    assert (usage.calls, usage.attempts) == (1 if recording.paid else usage.calls, 1)
    assert recording.paid in (None, (usage.input, usage.output))
