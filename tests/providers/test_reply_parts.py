"""What replies of Gemini and of OpenAI's Responses hold beside an answer: thought is not part of it, a refusal or a part is none."""

from collections.abc import Callable
from typing import Any

import pytest

from activities.providers import google, openai_responses
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import ModelFault, ModelReply, ModelRequest, Step

Read = Callable[[Any, ModelRequest], ModelReply]


def asked(model: str) -> ModelRequest:
    return ModelRequest(ModelSpec(id=model), Step(role="grader"), (Message(role="user", content="hi"),))


def gemini(*parts: dict[str, Any], reason: str = "STOP") -> dict[str, Any]:
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 2, "thoughtsTokenCount": 4}
    return {"candidates": [{"content": {"parts": list(parts)}, "finishReason": reason}], "usageMetadata": usage}


def response(part: dict[str, Any], **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 3, "output_tokens": 2}
    return {"status": "completed", "output": [{"type": "message", "content": [part]}], "usage": usage, **more}


def test_what_gemini_thought_is_paid_for_and_no_part_of_its_answer() -> None:
    reply = google.model_reply(gemini({"text": "hm", "thought": True}, {"text": "the answer"}), asked("google_genai:m"))

    assert reply.message.content == "the answer"
    assert (reply.usage.input, reply.usage.output, reply.usage.reasoning) == (3, 6, 4)


HALF: dict[str, Any] = {"type": "output_text", "text": "half"}
CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


@pytest.mark.parametrize(
    ("read", "model", "body", "kind"),
    [
        (google.model_reply, "google_genai:m", gemini({"text": "half"}, reason="MAX_TOKENS"), "truncated"),
        (google.model_reply, "google_genai:m", gemini({"text": "half"}, reason="SAFETY"), "refused"),
        (openai_responses.model_reply, "openai:m", response({"type": "refusal", "refusal": "I cannot."}), "refused"),
        (openai_responses.model_reply, "openai:m", response(HALF, **CUT), "truncated"),
    ],
)
def test_a_reply_that_is_cut_or_refused_is_no_answer_and_says_what_it_cost(read: Read, model: str, body: Any, kind: str) -> None:
    with pytest.raises(ModelFault) as raised:
        read(body, asked(model))

    assert raised.value.kind == kind
    assert raised.value.usage is not None
    assert raised.value.usage.input == 3
