"""Assertions in code, transforms, checks of the call and embeddings in a batch: decided by the sandbox, counted, never wrong in silence."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError

from gradeloop.contract.messages import Attachment
from gradeloop.sandbox.choice import SandboxChoice
from gradeloop.sandbox.monty import Monty
from tests.rig.batches import batching, case, drafted
from tests.rig.model_server import Reply
from tests.rig.model_server import serving as model_server


def coded(code: str, language: str = "javascript", **more: Any) -> dict[str, Any]:
    """Return a criterion that code decides."""
    return {"description": "the code holds", "check": {"tool": "code_check", "arguments": {"language": language, "code": code, **more}}}


def of(*criteria: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rubric": {"criteria": list(criteria), **more}, "grader": None}


@pytest.mark.slow
async def test_code_decides_with_the_output_and_its_context_and_says_why(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    reasons = "({pass: output.includes(context.vars.word), score: 0.25, reason: 'no ' + context.config.what})"
    cases = [
        case("a", "a kind word", vars={"word": "kind"}, **of(coded(reasons, config={"what": "word"}))),
        case("b", "a word", vars={"word": "kind"}, **of(coded(reasons, config={"what": "word"}))),
        case("c", "a word", **of(coded("import json\nreturn {'pass': len(output) > 3, 'score': 0.5, 'reason': ''}", "python"))),
        case("d", "a word", **of(coded("0.4", threshold=0.5), coded("0.6", threshold=0.5), gate="none", threshold=0.5)),
    ]
    async with batching(client, tmp_path, sandboxes=sandboxes) as batches:
        summary, results = await batches.run(cases)

    assert [result.status for result in results] == ["passed", "failed", "passed", "passed"]
    assert results[1].criteria[0].gap == "no word"
    assert [result.score for result in results] == [0.25, 0.25, 0.5, 0.5]
    assert (summary.usage.calls, summary.usage.cost_usd) == (0, None)


async def test_a_score_of_code_counts_as_it_is_above_1_and_below_0(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    """As promptfoo averages it: the mean of 3 and true is 2."""
    cases = [
        case("above", "x", **of(coded("3"), coded("true"))),
        case("below", "x", **of(coded("-1"), coded("true"), gate="none", threshold=0.5)),
        case("inverted", "x", **of(coded("({pass: false, score: 3, reason: 'no'})", negate=True))),
    ]
    async with batching(client, tmp_path, sandboxes=sandboxes) as batches:
        _, results = await batches.run(cases)

    assert [(result.status, result.score) for result in results] == [("passed", 2.0), ("failed", 0.0), ("passed", -2.0)]


FAULTS: list[tuple[str, str, str]] = [
    ("output.missing.key", "javascript", "TypeError: "),
    ("'yes'", "javascript", "it returned 'yes'; return true or false, a number, or an object with pass, score and reason"),
    ("({score: 1})", "javascript", "it returned an object whose pass is 'None'"),
    ("undefined", "javascript", "it returned undefined"),
    ("1/0", "python", "ZeroDivisionError: division by zero (line 1)"),
    ("return {'pass': 'yes'}", "python", "it returned an object whose pass is 'yes'"),
    ("import os\nos._exit(0)", "python", "it ended its process, or never returned"),
]


async def test_a_fault_of_the_code_is_an_error_and_no_verdict(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    async with batching(client, tmp_path, sandboxes=sandboxes) as batches:
        cases = [case(f"c{at}", **of(coded(code, language))) for at, (code, language, _) in enumerate(FAULTS)]
        summary, results = await batches.run(cases)

    assert summary.errors == len(FAULTS)
    for result, (code, _, why) in zip(results, FAULTS, strict=True):
        assert (result.status, result.score) == ("error", None), code
        assert (result.error or "").startswith("the check code_check of c1 could not decide: "), code
        assert why in (result.error or ""), code


async def test_a_worker_without_a_sandbox_for_it_refuses_code(client: Client, tmp_path: Path) -> None:
    untried = SandboxChoice(Monty(), None, None, ())
    async with batching(client, tmp_path, sandboxes=untried) as batches:
        with pytest.raises(WorkflowFailureError) as refused:
            await batches.upload("refused", [case("a", **of(coded("true")))])
        _, (result,) = await batches.run([case("b", "ab", **of(coded("len(output) == 2", "python")))])

    assert "JavaScript runs in a sandbox for programs, and none works here" in str(refused.value.cause)
    assert result.status == "passed"


async def test_a_transform_makes_what_is_judged_and_stored(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    parse = {"language": "javascript", "code": "JSON.parse(output)"}
    name = {"language": "javascript", "code": "output.name.toUpperCase()"}
    looks = {"description": "it is ADA", "check": {"tool": "text_check", "arguments": {"kind": "equals", "value": "ADA"}}}
    cases = [
        case("a", '{"name": "Ada"}', transforms=[parse, name], **of(looks)),
        case("b", '{"name": "Ada"}', transforms=[parse], **of(coded("output.name === 'Ada'"))),
        case("c", "no JSON", transforms=[parse], **of(looks)),
    ]
    async with batching(client, tmp_path, sandboxes=sandboxes) as batches:
        _, results = await batches.run(cases)

    assert [result.status for result in results] == ["passed", "passed", "error"]
    assert [result.output for result in results] == ["ADA", '{"name":"Ada"}', "no JSON"]
    assert (results[2].error or "").startswith("the transform could not be made: SyntaxError: ")


async def test_a_check_may_have_a_transform_of_its_own(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    def looks(value: str, **more: Any) -> dict[str, Any]:
        return {"description": value, "check": {"tool": "text_check", "arguments": {"kind": "equals", "value": value}, **more}}

    upper = {"transform": {"language": "javascript", "code": "output.toUpperCase()"}}
    broken = {"transform": {"language": "javascript", "code": "output.name.first"}}
    cases = [case("a", "ada", **of(looks("ADA", **upper), looks("ada"))), case("b", "ada", **of(looks("ADA", **broken)))]
    async with batching(client, tmp_path, sandboxes=sandboxes) as batches:
        _, results = await batches.run(cases)

    assert [(result.status, result.output) for result in results] == [("passed", "ada"), ("error", "ada")]
    assert (results[1].error or "").startswith("the transform of c1 could not be made: TypeError: ")


async def test_the_call_that_drafted_is_checked_by_what_it_took_and_cost(client: Client, tmp_path: Path) -> None:
    def call(kind: str, value: object) -> dict[str, Any]:
        return {"description": kind, "check": {"tool": "call_check", "arguments": {"kind": kind, "value": value}}}

    cases = [
        drafted("a", **of(call("latency", 60_000), call("finish-reason", "stop"))),
        drafted("b", **of(call("latency", 0))),
        drafted("c", **of(call("cost", 1))),
    ]
    async with batching(client, tmp_path, {"role": "generator", "text": "a draft", "delay": 0.05}) as batches:
        _, results = await batches.run(cases)

    assert [result.status for result in results] == ["passed", "failed", "passed"]
    assert "milliseconds" in (results[1].criteria[0].gap or "")


async def test_perplexity_is_calculated_from_the_log_probabilities_that_the_draft_came_with(client: Client, tmp_path: Path) -> None:
    def call(kind: str, value: float | None = None, **more: Any) -> dict[str, Any]:
        given = {} if value is None else {"value": value}
        return {"description": kind, "check": {"tool": "call_check", "arguments": {"kind": kind, **given, **more}}}

    cases = [
        drafted("a", **of(call("perplexity", 2.72), call("perplexity-score", 0.26), call("perplexity"))),
        drafted("b", **of(call("perplexity", 2.71))),
        drafted("c", **of(call("perplexity-score", 0.27, negate=True))),
        drafted("d", **of(call("perplexity-score"))),
        drafted("e", **of(call("perplexity", 3))),
    ]
    said = {"role": "generator", "text": "a draft"}
    known, unknown = {**said, "logprobs": {"total": -4.0, "tokens": 4}}, {**said, "when": "Write e."}
    async with batching(client, tmp_path, known, unknown) as batches:
        _, results = await batches.run(cases)

    assert [result.status for result in results] == ["passed", "failed", "passed", "passed", "error"]
    assert results[1].criteria[0].gap == "its perplexity is 2.718"
    assert [result.score and round(result.score, 4) for result in results] == [0.7563, 0, 0.7311, 0.2689, None]
    assert "perplexity: the reply of the model does not say how probable its tokens were" in (results[4].error or "")


@pytest.mark.slow
async def test_code_sees_what_the_draft_cost_and_took(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    seen = "context.providerResponse.latencyMs >= 0 && context.providerResponse.tokenUsage.total === 30 && context.prompt === 'Write a.'"
    async with batching(
        client, tmp_path, {"role": "generator", "text": "a draft", "usage": {"input": 20, "output": 10}}, sandboxes=sandboxes
    ) as batches:
        _, (result,) = await batches.run([drafted("a", **of(coded(seen)))])

    assert result.status == "passed", result


async def test_what_is_similar_is_one_call_that_is_counted_and_cached(client: Client, tmp_path: Path) -> None:
    similar = {
        "description": "a reference",
        "form": "similar",
        "grader": "scripted:vectors",
        "score": {"min": 0, "max": 1, "threshold": 0.75},
    }
    answer = {"reason": "The cosine is 0.8.", "pass": True, "score": 0.8}
    cases = [
        case("a", "same words", **of(similar)),
        case("b", "same words", **of(similar)),
        case("c", "same words", **of({**similar, "negate": True})),
    ]
    async with batching(client, tmp_path, {"role": "grader", "verdict": answer, "usage": {"input": 7}}) as batches:
        first, results = await batches.run(cases, at_once=1)
        again, _ = await batches.run([cases[0]], batch_id="again")

    assert [(result.status, round(result.score or 0, 6)) for result in results] == [("passed", 0.8), ("passed", 0.8), ("failed", 0.2)]
    assert again.usage.calls == 0
    assert 1 <= first.usage.calls <= 3
    assert first.usage.input == 7 * first.usage.calls


@pytest.mark.slow
@pytest.mark.parametrize("language", ["javascript", "python"])
async def test_200_honest_assertions_take_less_than_10_seconds(
    client: Client, tmp_path: Path, sandboxes: SandboxChoice, language: str
) -> None:
    text = (
        "output.length === 2 && context.vars.n < {at}" if language == "javascript" else "len(output) == 2 and context['vars']['n'] < {at}"
    )
    cases = [
        case(f"c{at}", "ab", vars={"n": at}, **of(*(coded(text.replace("{at}", str(at + more)), language) for more in range(1, 11))))
        for at in range(20)
    ]
    async with batching(client, tmp_path, sandboxes=sandboxes) as batches:
        await batches.run(cases[:1])  # the worker looks for its engine at its first call
        began = time.monotonic()
        summary, _ = await batches.run(cases)
        took = time.monotonic() - began

    assert summary.passed == 20
    assert took < 10


async def test_a_draft_that_calls_declared_functions_is_judged_as_the_calls_it_makes(
    client: Client, tmp_path: Path, sandboxes: SandboxChoice
) -> None:
    place = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    generator = {
        "model": {"id": "openai_compatible:writer", "config": {}},
        "functions": [{"name": "weather", "parameters": place}],
        "function_choice": "required",
    }
    text = {kind: {"description": kind, "check": {"tool": "text_check", "arguments": {"kind": kind}}} for kind in CALL_TYPES}
    ended = {"description": "it calls", "check": {"tool": "call_check", "arguments": {"kind": "finish-reason", "value": "tool_calls"}}}
    name = coded("output[0].function.name === 'weather' && JSON.parse(output[0].function.arguments).city === 'Rome'")
    said = (Reply(calls=(("weather", {"city": "Rome"}),)), Reply(calls=(("weather", {"town": "Rome"}),)), Reply("It is warm."))
    async with model_server({"writer": said}) as server:
        generator["model"]["config"]["base_url"] = f"{server.url}/v1"  # type: ignore[index]
        environment = {"GRADELOOP_BASE_URLS": f"{server.url}/v1"}
        async with batching(client, tmp_path, environment=environment, sandboxes=sandboxes) as batches:
            results = []
            for criteria in ((*text.values(), ended, name), tuple(text.values())[1:], tuple(text.values())[1:]):
                _, (result,) = await batches.run([drafted("a", **of(*criteria)) | {"generator": generator}], cache=False)
                results.append(result)

    assert [result.status for result in results] == ["passed", "failed", "failed"], results
    assert results[0].output == '[{"id":"call_1_0","type":"function","function":{"name":"weather","arguments":"{\\"city\\":\\"Rome\\"}"}}]'
    assert "'city' is a required property" in (results[1].criteria[0].gap or "")
    assert (results[2].output, results[2].criteria[0].gap) == ("It is warm.", "it is not a list of tool calls")
    assert server.requests[0]["tools"] == [{"type": "function", "function": {"name": "weather", "parameters": place}}]
    assert server.requests[0]["tool_choice"] == "required"


CALL_TYPES = ("is-json", "is-valid-openai-tools-call")


@pytest.mark.slow
async def test_a_grader_is_shown_what_the_criterions_own_transform_makes(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    name = {"language": "javascript", "code": "JSON.parse(output).name.toUpperCase()"}
    judged = {"description": "it is a name", "form": "pass_score", "transform": name}
    answer = {"reason": "So.", "pass": True, "score": 1}
    outputs = {"a": '{"name": "Ada"}', "b": '{"name": "Bo"}', "c": "no JSON"}
    cases = [case(at, output, rubric={"criteria": [judged]}) for at, output in outputs.items()]
    reply = {"role": "grader", "when": "ADA", "verdict": answer}
    other = {"role": "grader", "verdict": answer | {"pass": False, "score": 0}}
    async with batching(client, tmp_path, reply, other, sandboxes=sandboxes) as batches:
        _, results = await batches.run(cases)

    assert [result.status for result in results] == ["passed", "failed", "error"]
    assert results[0].output == '{"name": "Ada"}'
    assert "the transform of c1 could not be made" in (results[2].error or "")


@pytest.mark.slow
async def test_an_address_drafts_and_code_makes_the_output_of_its_reply(client: Client, tmp_path: Path, sandboxes: SandboxChoice) -> None:
    parse = {"language": "javascript", "code": "JSON.parse(output).choices[0].message.content.trim()"}
    looks = {"description": "it is warm", "check": {"tool": "text_check", "arguments": {"kind": "equals", "value": "It is warm."}}}
    said = [{"role": "user", "content": "Is it warm?"}]
    async with model_server({"writer": [Reply(" It is warm. ")] * 2}) as server:
        extra = {"body": {"model": "writer", "messages": said}}
        address = {"model": {"id": "http_request:POST", "config": {"base_url": f"{server.url}/v1/chat/completions", "extra": extra}}}
        case = drafted("a", transforms=[parse], **of(looks)) | {"generator": address}
        async with batching(client, tmp_path, environment={"GRADELOOP_BASE_URLS": server.url}, sandboxes=sandboxes) as batches:
            summary, (result,) = await batches.run([case])
            again, _ = await batches.run([case])

    assert (result.status, result.output, summary.usage.calls, summary.usage.tokens) == ("passed", "It is warm.", 1, None)
    assert again.usage.calls == 1  # what is at an address may answer otherwise the next time
    assert server.requests == [{"model": "writer", "messages": said}] * 2


@pytest.mark.slow
async def test_the_model_sees_an_image_and_the_judge_its_label(client: Client, tmp_path: Path) -> None:
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
    image = Attachment(url=f"data:image/png;base64,{dot}")
    said = [{"role": "user", "content": f"Which colour?\n{image.label(1)}"}]
    answer = '{"k1": {"reason": "So.", "passed": true, "gap": ""}, "unjudgeable": ""}'
    async with model_server({"writer": [Reply("It is black.")], "judge": [Reply(answer)]}) as server:
        model = {"config": {"base_url": f"{server.url}/v1", "structured_output": True}}
        generator, grader = ({"model": {"id": f"openai_compatible:{name}", **model}} for name in ("writer", "judge"))
        case = drafted("a", images=[image.model_dump()], grader=grader) | {"generator": generator, "messages": said}
        async with batching(client, tmp_path, environment={"GRADELOOP_BASE_URLS": f"{server.url}/v1"}) as batches:
            _, (result,) = await batches.run([case])

    drafting, judging = (json.dumps(request["messages"], ensure_ascii=False) for request in server.requests)
    assert (result.status, dot in drafting, image.label(1) in drafting) == ("passed", True, False)
    assert (dot in judging, image.label(1) in judging) == (False, True)
