"""The adapters on recorded provider traffic, byte for byte through the unmodified SDKs, and what they send in return."""

import importlib.util
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from activities.errors import ModelFault, failure
from activities.providers import Providers
from activities.providers.base import ModelReply, ModelRequest, Step, ToolSpec
from activities.providers.environment import Environment
from gradeloop.contract.messages import Message, ToolCall, Usage
from gradeloop.contract.model_spec import ModelSpec

pytestmark = [
    pytest.mark.filterwarnings("ignore::aiohttp.web_exceptions.NotAppKeyWarning"),  # two habits of the replay server
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]

CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "country": {"type": "string"}},
    "required": ["city", "country"],
    "additionalProperties": False,
}


@dataclass
class Replay:
    """A recording behind a port, and a model that is called there."""

    providers: Providers
    request: ModelRequest
    app: web.Application
    messages: list[Message] = field(default_factory=list)

    async def turn(self, *said: Message) -> ModelReply:
        """Add messages, make the next call and add its reply."""
        self.messages += said
        reply = await self.providers.complete(replace(self.request, messages=tuple(self.messages)))
        self.messages.append(reply.message)
        assert (reply.usage.attempts, reply.usage.seconds > 0) == (1, True)
        return replace(reply, usage=tokens(reply.usage))

    def sent(self, ordinal: int = -1) -> dict[str, Any]:
        """Return the body of a request that the server received."""
        body: dict[str, Any] = json.loads(self.app["seen"][ordinal][3])
        return body

    def headers(self) -> dict[str, str]:
        """Return the headers of the last request, in lower case."""
        return {name.lower(): value for name, value in self.app["seen"][-1][2].items()}


def tokens(usage: Usage) -> Usage:
    """Return what a recording tells of the usage, and no clock."""
    return usage.model_copy(update={"attempts": 0, "seconds": 0, "cost_usd": None})


Start = Callable[..., Awaitable[Replay]]


@pytest.fixture
async def replay(shared: Path, cassettes: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    """Serve a recording to a model; the environment holds what the SDKs would pick up by themselves."""
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "ANTHROPIC_AUTH_TOKEN", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "ambient")
    for name in ("ANTHROPIC_CUSTOM_HEADERS", "OPENAI_CUSTOM_HEADERS"):
        monkeypatch.setenv(name, "x-ambient: 1\nauthorization: ambient")
    spec = importlib.util.spec_from_file_location("replay_server", shared / "tools" / "replay_server.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    opened: list[tuple[TestServer, Providers]] = []

    async def start(cassette: str, model: str, config: dict[str, Any] | None = None, **parts: Any) -> Replay:
        app = module.make_app(cassettes / f"{cassette}.yaml")
        server = TestServer(app)
        await server.start_server()
        url = str(server.make_url("")).rstrip("/")
        ambient = {"ANTHROPIC_CUSTOM_HEADERS": "x-ambient: 1\nauthorization: ambient", "OPENAI_CUSTOM_HEADERS": "x-ambient: 1"}
        keys = {"ANTHROPIC_API_KEY": "ant-key", "OPENAI_API_KEY": "oai-key", "GOOGLE_API_KEY": "goo-key"}
        places = {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1", "GOOGLE_GEMINI_BASE_URL": url}
        providers = Providers(Environment.read({**keys, **places, **ambient, "GRADELOOP_BASE_URLS": f"{url}/compatible"}))
        opened.append((server, providers))
        settings = {name: value.replace("URL", url) if isinstance(value, str) else value for name, value in (config or {}).items()}
        request = ModelRequest(ModelSpec.model_validate({"id": model, "config": settings}), Step(role="grader", iteration=1), (), **parts)
        return Replay(providers, request, app)

    yield start
    for server, providers in opened:
        await providers.aclose()
        await server.close()


def tool(name: str, *required: str) -> ToolSpec:
    """Declare a tool whose arguments are texts."""
    parameters: dict[str, Any] = {"type": "object", "properties": {n: {"type": "string"} for n in required}, "required": list(required)}
    return ToolSpec(name=name, description=f"What {name} does.", parameters=parameters)


def user(text: str, **more: Any) -> Message:
    """Say something as the user."""
    return Message(role="user", content=text, **more)


def result(call: ToolCall, text: str) -> Message:
    """Answer a tool call."""
    return Message(role="tool", content=text, tool_call_id=call.id)


async def test_anthropic_plain(replay: Start) -> None:
    model = await replay("anthropic_plain", "anthropic:claude-opus-5", system="Be brief.")

    reply = await model.turn(user("Which city is the City of Light?", name="rubric_grader"))

    assert reply.message.content.startswith('Paris is known as the "City of Light" (La Ville Lumière)')
    assert reply.message.vendor is None
    assert reply.usage == Usage(input=14, output=65, calls=1)
    assert model.sent() == {
        "model": "claude-opus-5",
        "max_tokens": 16384,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Which city is the City of Light?"}]}],
        "stream": True,
    }


@pytest.mark.parametrize(
    ("cassette", "model", "key"),
    [("anthropic_plain", "anthropic:m", "ant-key"), ("openai_chat_gpt5_plain", "openai_compatible:m", "oai-key")],
)
async def test_nothing_of_the_environment_travels_but_the_key(replay: Start, cassette: str, model: str, key: str) -> None:
    call = await replay(cassette, model)

    await call.turn(user("hi"))

    headers = call.headers()
    assert headers["authorization"] == f"Bearer {key}"
    assert "ambient" not in json.dumps(headers)
    assert not {name for name in headers if name.startswith(("openai-", "x-ambient", "traceparent"))}


async def test_a_server_that_a_request_names_gets_no_key(replay: Start) -> None:
    call = await replay("openai_chat_gpt5_plain", "openai_compatible:m", {"base_url": "URL/compatible/v1"})

    await call.turn(user("hi"))

    assert call.app["seen"][0][1] == "/compatible/v1/chat/completions"
    assert call.headers()["authorization"] == "Bearer EMPTY"


async def test_anthropic_parallel_tools(replay: Start) -> None:
    model = await replay("anthropic_parallel_tools", "anthropic:claude-haiku-4-5", tools=(tool("retrieve_entity_info", "name"),))

    asked = await model.turn(user("Who is the youngest?"))
    calls = asked.message.tool_calls
    answer = await model.turn(*(result(call, f"about {call.arguments['name']}") for call in calls), user("Go on."))

    assert [call.arguments for call in calls] == [{"name": name} for name in ("Alice", "Bob", "Charlie", "Daisy")]
    assert asked.message.content.startswith("I'll help you find out who is the youngest")
    assert (asked.usage, answer.usage) == (Usage(input=423, output=202, calls=1), Usage(input=771, output=77, calls=1))
    assert "Daisy is the youngest" in answer.message.content
    first, assistant, results = model.sent()["messages"]
    assert [block["type"] for block in assistant["content"]] == ["text", "tool_use", "tool_use", "tool_use", "tool_use"]
    assert (first["role"], assistant["role"], results["role"]) == ("user", "assistant", "user")
    assert results["content"] == [
        *({"type": "tool_result", "tool_use_id": call.id, "content": f"about {call.arguments['name']}"} for call in calls),
        {"type": "text", "text": "Go on."},
    ]


async def test_anthropic_tools_then_a_verdict_by_schema(replay: Start) -> None:
    tools = (tool("lookup_country", "city"), tool("get_founded_year", "city"))
    model = await replay("anthropic_tools_then_json_schema", "anthropic:claude-opus-5", {"max_tokens": 4096}, tools=tools, schema=CITY)

    asked = await model.turn(user("Tokyo?"))
    country, year = asked.message.tool_calls
    verdict = await model.turn(result(country, "Japan"), result(year, "1457"))

    assert [(call.name, call.arguments) for call in (country, year)] == [
        ("lookup_country", {"city": "Tokyo"}),
        ("get_founded_year", {"city": "Tokyo"}),
    ]
    assert json.loads(verdict.message.content) == {"city": "Tokyo", "country": "Japan", "population": 14000000}
    assert (asked.usage, verdict.usage) == (Usage(input=797, output=91, calls=1), Usage(input=957, output=23, calls=1))
    for body in (model.sent(0), model.sent(1)):
        assert body["output_config"] == {"format": {"type": "json_schema", "schema": CITY}}
        assert (body["max_tokens"], body["tool_choice"]) == (4096, {"type": "auto"})
        assert [declared["input_schema"] for declared in body["tools"]] == [declared.parameters for declared in tools]


async def test_anthropic_thinking_goes_back_verbatim(replay: Start) -> None:
    model = await replay("anthropic_tool_thinking", "anthropic:claude-opus-5", tools=(tool("get_user_country"),))

    asked = await model.turn(user("What is the largest city?"))
    model.messages = [Message.model_validate_json(message.model_dump_json()) for message in model.messages]
    answer = await model.turn(result(asked.message.tool_calls[0], "Mexico"))

    recorded = json.loads(model.app["q"][0][2])["content"]
    assert [block["type"] for block in recorded] == ["thinking", "text", "tool_use"]
    assert model.sent()["messages"][1] == {"role": "assistant", "content": recorded}
    assert asked.message.content.startswith("I'll help you find")
    assert "thinking" not in asked.message.content
    assert answer.message.content.startswith("Based on the information")


async def test_anthropic_effort_and_reasoning_tokens(replay: Start) -> None:
    model = await replay("anthropic_opus5_adaptive_thinking", "anthropic:claude-opus-5", {"reasoning_effort": "xhigh"})

    reply = await model.turn(user("What is 2+2?"))

    assert (reply.message.content, reply.usage) == ("2 + 2 = 4", Usage(input=13, output=44, reasoning=33, calls=1))
    assert model.sent()["output_config"] == {"effort": "xhigh"}


async def test_chat_plain(replay: Start) -> None:
    model = await replay(
        "openai_chat_gpt5_plain", "openai_compatible:gpt-5", {"max_tokens": 99, "reasoning_effort": "low"}, system="Be brief."
    )

    reply = await model.turn(user("Capital?", name="rubric_grader"), user("Of France.", name="no name"))

    assert (reply.message.content, reply.usage) == ("Paris.", Usage(input=13, output=11, calls=1))
    assert model.app["seen"][0][1] == "/v1/chat/completions"
    assert model.sent() == {
        "model": "gpt-5",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Capital?", "name": "rubric_grader"},
            {"role": "user", "content": "Of France."},
        ],
        "max_completion_tokens": 99,
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_chat_parallel_tools(replay: Start) -> None:
    model = await replay(
        "openai_chat_parallel_tools", "openai_compatible:gpt-4o", tools=(tool("create_file", "path"), tool("delete_file", "path"))
    )

    asked = await model.turn(user("Delete `.env` and create `test.txt`"))
    calls = asked.message.tool_calls
    answer = await model.turn(*(result(call, "done") for call in calls))

    assert [(call.name, call.arguments) for call in calls] == [("delete_file", {"path": ".env"}), ("create_file", {"path": "test.txt"})]
    assert (asked.usage, answer.usage) == (Usage(input=71, output=46, calls=1), Usage(input=133, output=19, calls=1))
    assert answer.message.content == "The file `.env` has been deleted and `test.txt` has been created successfully."
    _, assistant, *results = model.sent()["messages"]
    assert [(call["id"], json.loads(call["function"]["arguments"])) for call in assistant["tool_calls"]] == [
        (call.id, call.arguments) for call in calls
    ]
    assert results == [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in calls]


async def test_chat_tools_then_a_verdict_by_schema(replay: Start) -> None:
    model = await replay("openai_chat_tools_then_json_schema", "openai_compatible:gpt-4o", tools=(tool("get_user_country"),), schema=CITY)

    asked = await model.turn(user("Largest city?"))
    verdict = await model.turn(result(asked.message.tool_calls[0], "Mexico"))

    assert asked.message.tool_calls == (ToolCall(id="call_PkRGedQNRFUzJp2R7dO7avWR", name="get_user_country"),)
    assert json.loads(verdict.message.content) == {"city": "Mexico City", "country": "Mexico"}
    assert (asked.usage, verdict.usage) == (Usage(input=71, output=12, calls=1), Usage(input=92, output=15, calls=1))
    schema = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": CITY}}
    assert [model.sent(n)["response_format"] for n in (0, 1)] == [schema, schema]
    assert [model.sent(n)["tool_choice"] for n in (0, 1)] == ["auto", "auto"]


async def test_chat_with_the_headers_of_a_rate_limit(replay: Start) -> None:
    model = await replay("openai_chat_plain_ratelimit_headers", "openai_compatible:gpt-4o-mini")

    reply = await model.turn(user("Say this is a test"))

    assert (reply.message.content, reply.usage) == ("This is a test.", Usage(input=12, output=5, calls=1))


async def test_chat_streamed_with_tools(replay: Start) -> None:
    model = await replay("openai_chat_stream_tools", "openai_compatible:gpt-4o-mini", tools=(tool("get_capital", "country"),))

    asked = await model.turn(user("Capital of the UK?"))
    answer = await model.turn(result(asked.message.tool_calls[0], "London"))

    assert [(call.name, call.arguments) for call in asked.message.tool_calls] == [("get_capital", {"country": "UK"})]
    assert answer.message.content == "The capital of the UK is London."
    assert (asked.usage, answer.usage) == (Usage(input=53, output=15, calls=1), Usage(input=78, output=9, calls=1))


async def test_responses_tool_call(replay: Start) -> None:
    model = await replay("openai_responses_tool_call", "openai:gpt-4o", tools=(tool("get_capital", "country"),), system="Be brief.")

    asked = await model.turn(user("What is the capital of PotatoLand?"))
    (call,) = asked.message.tool_calls
    answer = await model.turn(result(call, "Potato City"))

    assert (call.name, call.arguments) == ("get_capital", {"country": "PotatoLand"})
    assert "Potato City" in answer.message.content
    assert (asked.usage, answer.usage) == (Usage(input=40, output=18, calls=1), Usage(input=67, output=11, calls=1))
    assert model.app["seen"][0][1] == "/v1/responses"
    sent = model.sent()
    assert (sent["store"], sent["include"], sent["instructions"]) == (False, ["reasoning.encrypted_content"], "Be brief.")
    assert [item.get("type", item.get("role")) for item in sent["input"]] == ["user", "function_call", "function_call_output"]
    assert sent["input"][2] == {"type": "function_call_output", "call_id": call.id, "output": "Potato City"}


async def test_responses_tools_then_a_verdict_by_schema(replay: Start) -> None:
    model = await replay("openai_responses_tools_then_json_schema", "openai:gpt-4o", tools=(tool("get_user_country"),), schema=CITY)

    asked = await model.turn(user("Largest city?"))
    verdict = await model.turn(result(asked.message.tool_calls[0], "Mexico"))

    assert json.loads(verdict.message.content) == {"city": "Mexico City", "country": "Mexico"}
    assert (asked.usage, verdict.usage) == (Usage(input=66, output=12, calls=1), Usage(input=89, output=16, calls=1))
    form = {"type": "json_schema", "name": "verdict", "strict": True, "schema": CITY}
    assert [model.sent(n)["text"]["format"] for n in (0, 1)] == [form, form]


async def test_responses_streamed(replay: Start) -> None:
    model = await replay("openai_responses_stream", "openai:gpt-4o-mini")

    reply = await model.turn(user("Capital of Minas Gerais?"))

    assert reply.message.content == "The capital of Minas Gerais is Belo Horizonte."
    assert (reply.usage, model.sent()["stream"]) == (Usage(input=25, output=10, calls=1), True)


async def test_responses_find_their_cache_by_a_key_that_equal_prompts_share(replay: Start) -> None:
    model = await replay("openai_responses_cache_hit", "openai:gpt-5.6-sol", system="the policy and the rubric")

    first = await model.turn(user("one"))
    second = await model.turn(user("another"))

    assert first.usage == Usage(input=4020, cache_written=4012, output=5, calls=1)
    assert second.usage == Usage(input=4020, cached=4012, output=5, calls=1)
    keys = [model.sent(n)["prompt_cache_key"] for n in (0, 1)]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 32


async def test_google_plain(replay: Start) -> None:
    model = await replay("google_plain", "google_genai:gemini-2.5-flash", {"temperature": 0, "thinking": "disabled"}, system="Be brief.")

    reply = await model.turn(user("Hello!"))

    assert (reply.message.content, reply.usage) == ("Hello! How can I help you today?", Usage(input=9, output=43, reasoning=34, calls=1))
    assert model.app["seen"][0][1] == "/v1/models/gemini-2.5-flash:streamGenerateContent?alt=sse"
    assert model.headers()["x-goog-api-key"] == "goo-key"
    assert model.sent() == {
        "contents": [{"role": "user", "parts": [{"text": "Hello!"}]}],
        "generationConfig": {"maxOutputTokens": 16384, "temperature": 0.0, "thinkingConfig": {"thinkingBudget": 0}},
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
    }


async def test_google_tools_then_a_verdict_by_schema(replay: Start) -> None:
    spec, tools = "google_genai:gemini-3-flash-preview", (tool("get_user_country"),)
    model = await replay("google_tools_then_json_schema_gemini3", spec, tools=tools, schema=CITY)

    asked = await model.turn(user("Largest city?"))
    (call,) = asked.message.tool_calls
    verdict = await model.turn(Message(role="tool", name=call.name, content="Mexico", tool_call_id=call.id))

    assert json.loads(verdict.message.content) == {"city": "Mexico City", "country": "Mexico"}
    assert (asked.usage, verdict.usage) == (
        Usage(input=29, output=114, reasoning=102, calls=1),
        Usage(input=161, output=72, reasoning=51, calls=1),
    )
    settings = model.sent()["generationConfig"]
    assert (settings["responseMimeType"], settings["responseJsonSchema"]) == ("application/json", CITY)
    _, echoed, answered = model.sent()["contents"]
    recorded = json.loads(model.app["q"][0][2])["candidates"][0]["content"]["parts"]
    assert [part["thoughtSignature"] for part in echoed["parts"]] == [part["thoughtSignature"] for part in recorded]
    assert answered["parts"][0]["functionResponse"]["response"] == {"output": "Mexico"}


async def test_google_streamed_with_a_signature_that_goes_back_letter_by_letter(replay: Start) -> None:
    spec = "google_genai:gemini-3-pro-preview"
    model = await replay("google_stream_thought_signature_tools", spec, tools=(tool("get_country"), tool("get_capital", "country")))

    asked = await model.turn(user("Capital of my country?"))
    (call,) = asked.message.tool_calls
    answer = await model.turn(Message(role="tool", name=call.name, content="Mexico", tool_call_id=call.id))

    assert (call.name, answer.message.content) == ("get_country", "The capital of Mexico is Mexico City.")
    assert asked.usage == Usage(input=29, output=212, reasoning=202, calls=1)
    signature = model.sent()["contents"][1]["parts"][0]["thoughtSignature"]
    assert signature in model.app["q"][0][2].decode()
    assert all(part.get("text") != "" for part in model.sent()["contents"][1]["parts"])


async def test_anthropic_streamed_with_a_retry_after_that_means_nothing(replay: Start) -> None:
    model = await replay("anthropic_stream_ratelimit_headers", "anthropic:claude-sonnet-4-6")

    reply = await model.turn(user("Two names for a pelican?"))

    assert reply.message.content == "- Captain\n- Scoop"
    assert (reply.usage, model.sent()["stream"]) == (Usage(input=17, output=10, calls=1), True)


async def test_anthropic_streamed_tool_call(replay: Start) -> None:
    model = await replay("anthropic_stream_tool_use", "anthropic:claude-haiku-4-5", tools=(tool("pelican_name_generator"),))

    asked = await model.turn(user("A name?"))

    assert asked.message.tool_calls == (ToolCall(id="toolu_01CzN6riCPqw4pVSuTd9Dwn7", name="pelican_name_generator"),)
    assert asked.usage == Usage(input=543, output=40, calls=1)


async def test_anthropic_a_verdict_by_schema(replay: Start) -> None:
    model = await replay("anthropic_json_schema", "anthropic:claude-sonnet-4-6", schema=CITY)

    reply = await model.turn(user("Tell me of Berlin."))

    assert json.loads(reply.message.content) == {"city": "Berlin", "country": "Germany", "population": 3850809}


async def test_openrouter_tool_calling_through_a_compatible_server(replay: Start) -> None:
    config = {"base_url": "URL/compatible", "max_tokens": 64}
    model = await replay("openrouter_tool_calling", "openai_compatible:mistralai/mistral-small", config, tools=(tool("divide"),))

    reply = await model.turn(user("What is 123 / 456?"))

    arguments = {"numerator": 123, "denominator": 456, "on_inf": "infinity"}
    assert reply.message.tool_calls == (ToolCall(id="3sniiMddS", name="divide", arguments=arguments),)
    assert (reply.message.content, reply.message.vendor) == ("", None)
    assert reply.usage == Usage(input=134, output=43, calls=1)
    assert (model.sent()["model"], model.sent()["max_tokens"]) == ("mistralai/mistral-small", 64)


@pytest.mark.parametrize(
    ("cassette", "model", "kind", "text"),
    [
        (
            "anthropic_err400_effort",
            "anthropic:m",
            "bad_request",
            "BadRequestError, HTTP 400, anthropic:m: This model does not support effort",
        ),
        ("anthropic_err401", "anthropic:m", "auth", "AuthenticationError, HTTP 401, anthropic:m: invalid x-api-key"),
        ("anthropic_err404_model", "anthropic:m", "not_found", "NotFoundError, HTTP 404, anthropic:m: model: claude-sonet-4-5"),
        (
            "openai_chat_err400",
            "openai_compatible:m",
            "bad_request",
            "BadRequestError, HTTP 400, openai_compatible:m: Unsupported value: 'messages[0].role'",
        ),
        ("openai_responses_err400", "openai:m", "bad_request", "BadRequestError, HTTP 400, openai:m: Invalid 'temperature': decimal below"),
        ("openai_responses_err401", "openai:m", "auth", "AuthenticationError, HTTP 401, openai:m: Incorrect API key provided: <not-a-r"),
        ("google_err404", "google_genai:m", "not_found", "ClientError, HTTP 404, google_genai:m: models/gemini-3.6-flahs is not found"),
        ("google_safety", "google_genai:m", "refused", "google_genai:m: the provider blocked the reply (SAFETY)"),
        (
            "openrouter_stream_error",
            "openai_compatible:m",
            "truncated",
            "HTTP 400, openai_compatible:m: an error inside HTTP 200: Token limit reached",
        ),
        ("anthropic_stream_max_tokens", "anthropic:m", "truncated", "anthropic:m: the reply was cut (max_tokens) after 15 tokens"),
    ],
)
async def test_a_recorded_error_is_permanent_and_asked_once(replay: Start, cassette: str, model: str, kind: str, text: str) -> None:
    call = await replay(cassette, model)
    with pytest.raises(ModelFault) as caught:
        await call.turn(user("hi"))

    error = failure(caught.value, model=model)

    assert (error.type, error.non_retryable, len(call.app["seen"])) == (kind, True, 1)
    assert error.message.startswith(text)
