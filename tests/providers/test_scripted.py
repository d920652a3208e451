"""The scripted provider answers by the address of a call, and says which row of its file is wrong."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from activities.providers import Providers
from activities.providers.environment import Environment
from activities.providers.scripted import Script
from gradeloop.contract.messages import Message, ToolCall, Usage
from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.provider import FailureKind, ModelFault, ModelReply, ModelRequest, Step
from gradeloop.errors import InvalidRequest


def script(tmp_path: Path, text: str) -> Script:
    """Write `text` as a scripted file and read it."""
    file = tmp_path / "replies.yaml"
    file.write_text(text)
    return Script.read(file)


async def ask(replies: Script, **step: Any) -> ModelReply:
    """Call the scripted model at a step."""
    request = ModelRequest(spec=ModelSpec(id="scripted:any"), step=Step(**step), messages=(Message(role="user", content="hi"),))
    return await Providers(Environment(), replies).complete(request)


async def fault(replies: Script, **step: Any) -> ModelFault:
    """Return the fault that the call raises."""
    with pytest.raises(ModelFault) as caught:
        await ask(replies, **step)
    return caught.value


async def test_a_reply_is_found_by_every_part_of_its_address(tmp_path: Path) -> None:
    parts = ("run", "iteration", "group", "sample", "step")
    rows = [f"  - {{role: grader, {part}: 1, text: {part}}}" for part in parts]
    replies = script(tmp_path, "replies:\n  - {role: generator, text: first}\n" + "\n".join(rows))

    answers = {part: (await ask(replies, role="grader", **{part: 1})).message.content for part in parts}

    assert answers == {part: part for part in parts}
    assert (await ask(replies, role="generator")).message.content == "first"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a cab drove by", "for cab"),
        ('{"text": "say \\"grüß dich\\""}', "for a greeting"),
        ("=== records 00cab00000000000000000000000cab0 === <verdict-cab0000000000cab>", "for anything"),
        ("nothing of it", "for anything"),
    ],
)
async def test_a_reply_may_be_for_what_holds_a_text_alone_the_codes_of_fences_aside(tmp_path: Path, content: str, said: str) -> None:
    rows = [("for anything", None), ("for cab", "cab"), ("for a greeting", 'say "grüß dich"')]
    replies = [{"role": "grader", "text": text} | ({"when": when} if when else {}) for text, when in rows]
    request = ModelRequest(spec=ModelSpec(id="scripted:any"), step=Step(role="grader"), messages=(Message(role="user", content=content),))

    reply = await Providers(Environment(), script(tmp_path, json.dumps({"replies": replies}))).complete(request)

    assert reply.message.content == said


async def test_a_reply_may_be_for_one_model_alone(tmp_path: Path) -> None:
    replies = [{"role": "grader", "text": "for any"}, {"role": "grader", "text": "for one", "model": "one"}]
    providers = Providers(Environment(), script(tmp_path, json.dumps({"replies": replies})))
    question = (Message(role="user", content="?"),)

    said = [
        (await providers.complete(ModelRequest(spec=ModelSpec(id=f"scripted:{name}"), step=Step(role="grader"), messages=question)))
        for name in ("one", "other")
    ]

    assert [reply.message.content for reply in said] == ["for one", "for any"]


async def test_a_retry_gets_the_same_reply(tmp_path: Path) -> None:
    replies = script(tmp_path, "replies: [{role: grader, tool_calls: [{name: look, arguments: {n: 1}}, {name: look}]}]")

    first, again = await ask(replies, role="grader"), await ask(replies, role="grader")

    assert first.message == again.message
    assert first.usage.model_copy(update={"seconds": 0}) == again.usage.model_copy(update={"seconds": 0})
    assert first.message.tool_calls == (
        ToolCall(id="call_0_0_0_0_0_0", name="look", arguments={"n": 1}),
        ToolCall(id="call_0_0_0_0_0_1", name="look"),
    )


async def test_a_verdict_is_given_as_json_text(tmp_path: Path) -> None:
    replies = script(tmp_path, "replies: [{role: grader, verdict: {unjudgeable: é}}]")

    reply = await ask(replies, role="grader")

    assert json.loads(reply.message.content) == {"unjudgeable": "é"}


async def test_usage_is_what_the_row_says_and_one_call(tmp_path: Path) -> None:
    replies = script(tmp_path, "replies: [{role: generator, text: a, usage: {input: 5, cached: 2, output: 3, reasoning: 1}}]")

    reply = await ask(replies, role="generator")

    known = {"attempts": 1, "seconds": reply.usage.seconds, "cost_usd": 0.0}
    assert reply.usage == Usage(input=5, cached=2, output=3, reasoning=1, calls=1, **known)


@pytest.mark.parametrize("kind", get_args(FailureKind))
async def test_a_row_can_fail_in_every_way_that_a_provider_does(tmp_path: Path, kind: FailureKind) -> None:
    replies = script(tmp_path, f"replies: [{{role: generator, error: {{kind: {kind}, message: so it goes, status: 429}}}}]")

    error = await fault(replies, role="generator")

    assert (error.kind, error.message, error.status, error.model) == (kind, "so it goes", 429, "scripted:any")


async def test_an_empty_text_is_a_malformed_reply_as_from_any_provider(tmp_path: Path) -> None:
    error = await fault(script(tmp_path, "replies: [{role: generator, text: ' '}]"), role="generator")

    assert (error.kind, error.message) == ("malformed_response", "the reply is empty")


async def test_a_delay_counts_towards_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("activities.providers.base.CALL_SECONDS", 0.05)

    error = await fault(script(tmp_path, "replies: [{role: generator, text: late, delay: 30}]"), role="generator")

    assert error.kind == "timeout"
    assert error.message.startswith("no whole reply within 0.05 s; what the provider charges for it is not known; raise config.timeout")


async def test_a_missing_row_names_the_address_that_it_should_have(tmp_path: Path) -> None:
    error = await fault(script(tmp_path, "replies: []"), role="grader", iteration=2, step=1)

    address = "role grader, run 0, iteration 2, group 0, sample 0, step 1"
    file = f"the scripted file '{tmp_path / 'replies.yaml'}'"
    assert (error.kind, error.message) == ("config", f"{file} has no reply for {address}; add a row for it")


@pytest.mark.parametrize(
    ("rows", "nearest"),
    [
        ("{role: grader, text: a}, {role: grader, iteration: 2, text: b}", "replies[1], answers only step 0"),
        ("{role: grader, iteration: 2, step: 1, when: toads, text: a}", "replies[0], answers only a prompt with 'toads'"),
        ("{role: grader, run: 1, iteration: 2, step: 1, model: x, text: a}", "replies[0], answers only run 1 and the model 'x'"),
    ],
)
async def test_a_missing_row_is_told_by_the_nearest_one(tmp_path: Path, rows: str, nearest: str) -> None:
    error = await fault(script(tmp_path, f"replies: [{rows}]"), role="grader", iteration=2, step=1)

    assert f"; the nearest, {nearest}; add a row for it" in error.message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("replies: [{role: grader, text: a}, {role: grader, text: b}]", "replies[0] and replies[1] both answer role grader, run 0"),
        ("replies: [{role: grader, txt: a}]", "replies[0]: unknown key 'txt'. Did you mean 'text'?"),
        ("reply: []", "unknown key 'reply'. Did you mean 'replies'?"),
        ("replies: [{role: judge, text: a}]", "replies[0].role: Input should be 'generator' or 'grader', got 'judge'"),
        ("replies: [{role: grader}]", "replies[0]: a row gives exactly one of text, verdict, tool_calls, error; this one gives none"),
        ("replies: [{role: grader, text: a, verdict: {}}]", "this one gives text and verdict"),
        ("replies: [{role: grader, step: -1, text: a}]", "replies[0].step: "),
        ("replies: [{role: grader, error: {kind: late, message: a}}]", "replies[0].error.kind: Input should be 'rate_limited'"),
        ("replies: [{role: grader, tool_calls: []}]", "replies[0].tool_calls: "),
        ("[]", "holds no mapping; write `replies:`"),
        ("replies: [&a 1, *a]", "line 1, column 11: the anchor &a is refused"),
    ],
)
def test_a_mistake_in_the_file_names_file_and_row(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        script(tmp_path, text)

    assert str(caught.value).startswith(f"the scripted file '{tmp_path / 'replies.yaml'}'")
    assert why in str(caught.value)
