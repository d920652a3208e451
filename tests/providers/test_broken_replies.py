"""Replies that cannot be sent on as they come: half a character, numbers and nesting beyond JSON's receivers.

Each is read inside of the call, by the vendor's own SDK from a real server, and whatever it comes to says what it cost.
"""

import json
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from activities.tools.registry import ToolRegistry
from gradeloop.contract.messages import Message, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest, Step
from gradeloop.contract.thread import RunResult
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import parse_judge
from gradeloop.settings.worker import WorkerSettings
from tests.rig.judging import FRANCE, fresh
from tests.rig.provider_server import PROTOCOLS, Handler, ProviderServer, raw_body, reply
from tests.rig.threads import Served
from worker import build

CHAT = "openai_compatible"
TEXT = "@text@"
HALF = "\\ud83d"
"""Half of a character, as JSON writes it."""


async def ask(server: ProviderServer, name: str, answer: Handler) -> ModelReply:
    """Make one call, which is answered so."""
    server.answer = answer
    return await server.providers.complete(ModelRequest(model(name), Step(role="grader"), (Message(role="user", content="hi"),)))


def model(provider: str) -> ModelSpec:
    """Return a model of a provider, whose answers are bound by a schema."""
    return ModelSpec.model_validate({"id": f"{provider}:m", "config": {"structured_output": True} if provider == CHAT else {}})


def written(provider: str, body: Any, literal: str = "", *, inside: bool = False) -> Handler:
    """Return an answer whose `TEXT` is a literal of JSON, or, inside of a text, that literal as part of it."""
    given = json.dumps(body).replace(TEXT if inside else f'"{TEXT}"', json.dumps(literal)[1:-1] if inside else literal)
    stream = provider == "google_genai"
    return raw_body((f"data: {given}\n\n" if stream else given).encode(), "text/event-stream" if stream else "application/json")


def cost(usage: Usage | None) -> tuple[int, int | None, int | None] | None:
    """Return the calls and the tokens."""
    return None if usage is None else (usage.calls, usage.input, usage.output)


PAID = (1, 10, 5)


@pytest.mark.parametrize("name", [CHAT, "google_genai"])  # the others are read as the first is
@pytest.mark.parametrize(
    ("literal", "content"),
    [
        (f'"a {HALF} b"', "a \ufffd b"),
        (f'"{HALF}"', "\ufffd"),
        (f'"a {HALF}\\ude00 b \\ude00"', "a \U0001f600 b \ufffd"),
        ('"a \\\\ud83d b"', "a \\ud83d b"),
    ],
)
async def test_half_a_character_in_a_text_is_replaced_and_the_reply_counts(
    provider: ProviderServer, name: str, literal: str, content: str
) -> None:
    answer = await ask(provider, name, written(name, reply(name, TEXT), literal))

    assert (answer.message.content, cost(answer.usage), len(provider.received)) == (content, PAID, 1)
    assert answer.message.size() > 0


async def test_two_halves_of_a_character_that_come_one_after_the_other_are_one(provider: ProviderServer) -> None:
    choices = [{"index": 0, "delta": {"content": TEXT}}]
    first, second = (json.dumps({"choices": choices}).replace(TEXT, half) for half in (f"a {HALF}", "\\ude00 b"))
    last = json.dumps(
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}
    )
    stream = "".join(f"data: {part}\n\n" for part in (first, second, last)).encode()

    answer = await ask(provider, CHAT, raw_body(stream, "text/event-stream"))

    assert (answer.message.content, cost(answer.usage)) == ("a \U0001f600 b", PAID)


DEEP = "[" * 150 + "]" * 150


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize(
    ("literal", "arguments"),
    [(f'{{"q": "a {HALF}"}}', {"q": "a \ufffd"}), ('{"q": 1e400}', None), (f'{{"q": {DEEP}}}', None), (f'{{"{HALF}": 1}}', {"\ufffd": 1})],
)
async def test_a_tool_calls_arguments_can_be_sent_on(provider: ProviderServer, name: str, literal: str, arguments: Any) -> None:
    """Those that no receiver takes are kept as text, so that the model is told of them, and so are those that were text before."""
    in_text = name in {"openai", CHAT}
    call = written(name, reply(name, arguments=TEXT), literal, inside=in_text)

    if name == "google_genai" and arguments is None:  # its arguments go back as they came, with their signatures
        with pytest.raises(ModelFault, match=r"nested|cannot be read"):
            await ask(provider, name, call)
        return
    answer = await ask(provider, name, call)
    arguments = None if in_text and HALF in literal else arguments

    (called,) = answer.message.tool_calls
    assert (called.arguments if called.invalid is None else None, cost(answer.usage)) == (arguments, PAID)
    assert Message.model_validate_json(answer.message.model_dump_json()) == answer.message


@pytest.mark.parametrize(("name", "reported"), [*((name, True) for name in PROTOCOLS), (CHAT, False)])
async def test_a_reply_that_is_no_answer_says_what_it_cost_where_the_server_did(
    provider: ProviderServer, name: str, reported: bool
) -> None:
    with pytest.raises(ModelFault, match="names no tool") as caught:
        await ask(provider, name, written(name, reply(name, arguments={}, name=None, reported=reported)))

    assert (caught.value.kind, cost(caught.value.usage)) == ("malformed_response", PAID if reported else (0, 0, 0))


@pytest.mark.parametrize("literal", ["NaN", "1" * 5000, "[" * 100_000, "[" * 5000 + "]" * 5000, "[" * 300 + f'"{HALF}"' + "]" * 300])
async def test_what_googles_reader_cannot_read_is_malformed_and_counted(provider: ProviderServer, literal: str) -> None:
    first = json.dumps(reply("google_genai", "a") | {"candidates": []})
    second = json.dumps(reply("google_genai", "b") | {"more": TEXT}).replace(f'"{TEXT}"', literal)
    stream = raw_body(f"data: {first}\n\ndata: {second}\n\n".encode(), "text/event-stream")

    with pytest.raises(ModelFault, match="an event of the stream cannot be read") as caught:
        await ask(provider, "google_genai", stream)

    assert (caught.value.kind, cost(caught.value.usage), len(provider.received)) == ("malformed_response", PAID, 1)


VERDICT = '{"k1": {"reason": "a ' + HALF + '", "passed": true, "gap": ""}, "unjudgeable": ""}'
"""A verdict that is plain text on the wire, and has half a character once it is parsed."""


async def test_a_verdict_with_half_a_character_is_mended_or_an_error_and_every_call_is_counted(
    provider: ProviderServer, client: Client
) -> None:
    drafts, verdicts = written(CHAT, reply(CHAT, TEXT), f'"spring {HALF}"'), written(CHAT, reply(CHAT, VERDICT))
    provider.answer = [drafts, *[verdicts] * 9]
    queue, spec = f"broken-{uuid4()}", model(CHAT).model_dump(mode="json", exclude_none=True)
    request = {"messages": [{"role": "user", "content": "hi"}], "rubric": "- a", "generator": {"model": spec}, "grader": {"model": spec}}
    async with build(client, provider.providers, ToolRegistry(), WorkerSettings(task_queue=queue)):
        result: RunResult = await Served(client, queue, provider.providers).run(request | {"max_iterations": 1})  # type: ignore[arg-type]  # it only starts threads

    assert (result.status, len(provider.received), cost(result.usage)) == ("grader_error", 4, (4, 40, 20))
    assert "half of a surrogate pair" in result.evaluations[0].explanation
    assert result.messages is not None
    assert [message.content for message in result.messages] == ["hi", "spring \ufffd"]


@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_a_judges_answer_with_half_a_character_is_a_failure_with_its_usage(
    provider: ProviderServer, client: Client, form: str
) -> None:
    answers = {"json": f'{{"label": "match", "explanation": "a {HALF}"}}', "yaml": f'label: match\nexplanation: "a {HALF}"\n'}
    provider.answer = written(CHAT, reply(CHAT, f"<response>\n{answers[form]}\n</response>"))
    judge = parse_judge(FRANCE | {"judge_model": model(CHAT).model_dump(mode="json", exclude_none=True), "output_format": form})
    queue = f"broken-{uuid4()}"
    async with build(client, provider.providers, ToolRegistry(), WorkerSettings(task_queue=queue)):
        result = await Judge(judge, client, task_queue=queue)(fresh(f"broken-{uuid4()}"))

    assert (result.result_type, len(provider.received), cost(result.usage)) == ("FAILURE", 3, (3, 30, 15))
