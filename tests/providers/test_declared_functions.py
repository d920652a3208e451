"""What the call of a draft brings: functions, the form of the answer, and images, over all four protocols through the vendors' SDKs."""

import base64
import hashlib
import json
from typing import Any

import pytest

from gradeloop.contract.messages import Attachment, CallForm, DeclaredFunction, Message, OutputForm, ToolCall, split_attached
from gradeloop.contract.provider import ModelFault, ModelReply
from gradeloop.grading.code_checks import called_value, calls_functions, show_calls
from tests.rig.provider_server import ProviderServer, Recorded, reply

PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
WEATHER = DeclaredFunction(name="weather", description="Says it.", parameters=PLACE, strict=True)
NOW = DeclaredFunction(name="now")
ROME = {"city": "Rome"}

MODELS = {
    "openai_compatible:m": json.dumps(ROME),
    "openai:gpt-5-mini": json.dumps(ROME),
    "anthropic:claude-haiku-4-5": ROME,
    "google_genai:gemini-2.5-flash": ROME,
}
"""The arguments of a call, as each protocol has them."""


async def ask(provider: ProviderServer, model: str, text: str = "Is it warm in Rome?", **more: Any) -> tuple[ModelReply, dict[str, Any]]:
    """Call a model whose server answers with a call of `weather`; return what was sent, too."""
    name = model.partition(":")[0]
    body = reply(name, name="weather", arguments=MODELS[model])
    answer = Recorded(events=(body,)) if name == "google_genai" else body
    said = await provider.ask(model, answer, **{"messages": (Message(role="user", content=text),)} | more)
    return said, provider.received[-1].body


DECLARED: dict[str, Any] = {
    "openai_compatible:m": [
        {"type": "function", "function": {"name": "weather", "description": "Says it.", "parameters": PLACE, "strict": True}},
        {"type": "function", "function": {"name": "now"}},
    ],
    "openai:gpt-5-mini": [
        {"type": "function", "name": "weather", "description": "Says it.", "parameters": PLACE, "strict": True},
        {"type": "function", "name": "now", "description": None, "parameters": {"type": "object", "properties": {}}, "strict": False},
    ],
    "anthropic:claude-haiku-4-5": [
        {"name": "weather", "description": "Says it.", "input_schema": PLACE, "strict": True},
        {"name": "now", "input_schema": {"type": "object", "properties": {}}},
    ],
    "google_genai:gemini-2.5-flash": [
        {"functionDeclarations": [{"name": "weather", "description": "Says it.", "parametersJsonSchema": PLACE}, {"name": "now"}]}
    ],
}
CHOSEN: dict[str, dict[str, Any]] = {
    "openai_compatible:m": {"required": "required", "weather": {"type": "function", "function": {"name": "weather"}}},
    "openai:gpt-5-mini": {"required": "required", "weather": {"type": "function", "name": "weather"}},
    "anthropic:claude-haiku-4-5": {"required": {"type": "any"}, "weather": {"type": "tool", "name": "weather"}},
    "google_genai:gemini-2.5-flash": {"required": {"mode": "ANY"}, "weather": {"mode": "ANY", "allowedFunctionNames": ["weather"]}},
}


@pytest.mark.parametrize("model", MODELS)
async def test_declared_functions_and_the_choice_are_sent_and_the_calls_come_back(provider: ProviderServer, model: str) -> None:
    for choice in (None, "auto", "none", "required", "weather"):
        said, sent = await ask(provider, model, functions=(WEATHER, NOW), function_choice=choice)
        given = sent.get("toolConfig", {}).get("functionCallingConfig") if "contents" in sent else sent.get("tool_choice")
        plain: Any = {"mode": str(choice).upper()} if "contents" in sent else {"type": choice} if "anthropic" in model else choice

        assert sent["tools"] == DECLARED[model]
        assert given == (None if choice is None else CHOSEN[model].get(choice, plain))
        assert [(call.name, call.arguments) for call in said.message.tool_calls] == [("weather", ROME)]
        assert (said.usage.input, said.usage.output) == (10, 5)


FORM = OutputForm(name="place", json_schema=PLACE, strict=True)
FORMS: dict[str, tuple[list[str], Any, Any]] = {
    "openai_compatible:m": (
        ["response_format"],
        {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PLACE}},
        {"type": "json_object"},
    ),
    "openai:gpt-5-mini": (
        ["text", "format"],
        {"type": "json_schema", "name": "place", "strict": True, "schema": PLACE},
        {"type": "json_object"},
    ),
    "google_genai:gemini-2.5-flash": (["generationConfig", "responseJsonSchema"], PLACE, None),
    "anthropic:claude-haiku-4-5": (["output_config", "format"], {"type": "json_schema", "schema": PLACE}, None),
}


@pytest.mark.parametrize("model", MODELS)
async def test_the_form_of_a_draft_is_sent_as_its_protocol_has_it(provider: ProviderServer, model: str) -> None:
    path, schema, plain = FORMS[model]
    for form, expected in ((FORM, schema), (OutputForm(), plain)):
        if model.startswith("anthropic") and form.json_schema is None:
            with pytest.raises(ModelFault, match="output_form has no json_schema, which Anthropic's API asks for"):
                await ask(provider, model, output_form=form)
            continue
        _, sent = await ask(provider, model, output_form=form)
        found: Any = sent
        for name in path:
            found = found.get(name)

        assert found == expected
        assert sent.get("generationConfig", {}).get("responseMimeType") == ("application/json" if "contents" in sent else None)


SHOWN: dict[CallForm, str] = {
    "chat": '[{"id":"a","type":"function","function":{"name":"weather","arguments":"{\\"city\\":\\"Rome\\"}"}}]',
    "function_call": '{"name":"weather","arguments":"{\\"city\\":\\"Rome\\"}"}',
    "responses": '{"type":"function_call","call_id":"a","name":"weather","arguments":"{\\"city\\":\\"Rome\\"}","status":"completed"}',
    "anthropic": '{"type":"tool_use","id":"a","name":"weather","input":{"city":"Rome"}}',
    "bedrock": '{"toolUseId":"a","name":"weather","input":{"city":"Rome"}}',
    "google": '[{"functionCall":{"name":"weather","args":{"city":"Rome"}}}]',
}


@pytest.mark.parametrize("form", SHOWN)
def test_a_draft_that_calls_functions_is_shown_as_its_vendor_shows_it(form: CallForm) -> None:
    calls = (ToolCall(id="a", name="weather", arguments={"city": "Rome"}),)
    silent, saying = (show_calls(Message(role="assistant", content=text, tool_calls=calls), form) for text in ("", "I look."))
    plain = show_calls(Message(role="assistant", content="It is 42."), form)

    assert silent == SHOWN[form]
    assert calls_functions(silent, form)
    assert calls_functions(saying, form)
    assert ("I look." in saying) is (form != "bedrock")
    assert (plain, calls_functions(plain, form), called_value(plain, form)) == ("It is 42.", False, "It is 42.")
    assert called_value(silent, form) == (silent if form in {"responses", "anthropic", "bedrock"} else json.loads(silent))


@pytest.mark.parametrize("form", SHOWN)
def test_arguments_that_are_no_json_are_shown_as_the_model_wrote_them(form: CallForm) -> None:
    shown = show_calls(Message(role="assistant", tool_calls=(ToolCall(id="a", name="weather", invalid="{city"),)), form)

    assert "{city" in shown


@pytest.mark.parametrize("form", SHOWN)
@pytest.mark.parametrize("text", ["42", "[1, 2]", '{"name": 1}', "null", "", '[{"text": "x"}]'])
def test_json_that_calls_nothing_stays_text(form: CallForm, text: str) -> None:
    assert (called_value(text, form), calls_functions(text, form)) == (text, False)


DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
PHOTO, PLACED = Attachment(url=f"data:image/png;base64,{DOT}", detail="low"), Attachment(url="https://a.example/b.png")
SEEN: dict[str, list[Any]] = {
    "openai_compatible:m": [
        {"type": "text", "text": "What is"},
        {"type": "image_url", "image_url": {"url": PHOTO.url, "detail": "low"}},
        {"type": "text", "text": "beside"},
        {"type": "image_url", "image_url": {"url": PLACED.url}},
    ],
    "openai:gpt-5-mini": [
        {"type": "input_text", "text": "What is"},
        {"type": "input_image", "image_url": PHOTO.url, "detail": "low"},
        {"type": "input_text", "text": "beside"},
        {"type": "input_image", "image_url": PLACED.url, "detail": "auto"},
    ],
    "anthropic:claude-haiku-4-5": [
        {"type": "text", "text": "What is"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DOT}},
        {"type": "text", "text": "beside"},
        {"type": "image", "source": {"type": "url", "url": PLACED.url}},
    ],
    "google_genai:gemini-2.5-flash": [
        {"text": "What is"},
        {"inlineData": {"mimeType": "image/png", "data": DOT}},
        {"text": "beside"},
        {"fileData": {"fileUri": PLACED.url, "mimeType": "image/png"}},
    ],
}


@pytest.mark.parametrize("model", MODELS)
async def test_images_are_sent_in_the_place_of_their_labels(provider: ProviderServer, model: str) -> None:
    text = f"What is\n{PHOTO.label(1)}\nbeside\n{PLACED.label(2)}"
    _, sent = await ask(provider, model, text=text, images=(PHOTO, PLACED))
    _, plain = await ask(provider, model, text=text)
    turns, bare = (body.get("messages") or body.get("input") or body["contents"] for body in (sent, plain))

    assert turns[-1]["parts" if "contents" in sent else "content"] == SEEN[model]
    assert PHOTO.label(1) in json.dumps(bare, ensure_ascii=False)


PAPER, ABROAD = Attachment(type="file", url="data:application/pdf;base64,JVBERi0="), Attachment(type="file", url="https://a.example/b.pdf")
FILES: dict[str, Any] = {
    "openai_compatible:m": {"type": "file", "file": {"filename": "file.pdf", "file_data": PAPER.url}},
    "openai:gpt-5-mini": {"type": "input_file", "filename": "file.pdf", "file_data": PAPER.url},
    "anthropic:claude-haiku-4-5": {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
    },
    "google_genai:gemini-2.5-flash": {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0="}},
}
BY_ADDRESS: dict[str, Any] = {
    "openai:gpt-5-mini": {"type": "input_file", "file_url": ABROAD.url},
    "anthropic:claude-haiku-4-5": {"type": "document", "source": {"type": "url", "url": ABROAD.url}},
    "google_genai:gemini-2.5-flash": {"fileData": {"fileUri": ABROAD.url, "mimeType": "application/pdf"}},
}


@pytest.mark.parametrize("model", MODELS)
async def test_what_is_attached_to_a_message_is_sent_in_its_place(provider: ProviderServer, model: str) -> None:
    said = Message.model_validate({"role": "user", "content": [{"type": "text", "text": "Read"}, PAPER.model_dump()]})
    _, sent = await ask(provider, model, messages=(said,))
    turns = sent.get("messages") or sent.get("input") or sent["contents"]

    assert turns[-1]["parts" if "contents" in sent else "content"][1] == FILES[model]


@pytest.mark.parametrize("model", MODELS)
async def test_a_file_by_its_address_is_sent_or_refused_by_name(provider: ProviderServer, model: str) -> None:
    said = Message.model_validate({"role": "user", "content": [ABROAD.model_dump()]})
    if model not in BY_ADDRESS:
        with pytest.raises(
            ModelFault, match=r"\[file, at https://a.example/b.pdf\]: Chat Completions takes no file by its address"
        ) as refused:
            await ask(provider, model, messages=(said,))
        assert refused.value.kind == "config"
        return
    _, sent = await ask(provider, model, messages=(said,))
    turns = sent.get("messages") or sent.get("input") or sent["contents"]

    assert turns[-1]["parts" if "contents" in sent else "content"] == [BY_ADDRESS[model]]


def test_an_image_has_a_label_of_its_size_and_its_sha256() -> None:
    sha256 = hashlib.sha256(base64.b64decode(DOT)).hexdigest()

    assert PHOTO.label(3) == f"[image 3, 1 KiB, sha256 {sha256[:12]}…]"
    assert PLACED.label(1) == "[image 1, at https://a.example/b.png]"
    assert split_attached("a [image 1, 2 KiB] b", [PHOTO]) == ["a [image 1, 2 KiB] b"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("file:///etc/passwd", "is not a valid image; write https"),
        ("data:text/html;base64,AAAA", "is not a valid image"),
        ("data:image/svg+xml;base64,AAAA", "is not a valid image"),
        ("data:image/png;base64,AAA", "is not base64"),
        ("https://user@host/x.png", "is not a valid image"),
        (f"data:image/png;base64,{'A' * 1024 * 1024}", "655360 at most"),
    ],
)
def test_what_is_no_image_is_refused(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Attachment(url=url)
