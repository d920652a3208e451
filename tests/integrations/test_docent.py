"""Docent's names: rubrics, runs and judges as its programs write them, whose judgements are gradeloop's."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError
from temporalio.client import Client

from gradeloop.docent import (
    AgentRun,
    AssistantMessage,
    BaseJudge,
    BaseLLMService,
    Docent,
    JudgeResult,
    JudgeResultWithCitations,
    JudgeVariant,
    ModelOption,
    OutputParsingMode,
    PromptTemplateMessage,
    ResultType,
    Rubric,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Transcript,
    UserMessage,
    build_judge,
)
from gradeloop.errors import InvalidRequest, ServerUnreachable
from gradeloop.judges.registry import JudgeRegistry
from gradeloop.store.engine import Store
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo
from gradeloop.testing import Gate, ModelCall, Reply, ScriptedModels, WorkerProcess

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "label": {"type": "string", "enum": ["pass", "fail"]},
        "issues": {"type": "array", "items": {"type": "object", "properties": {"why": {"type": "string", "citations": True}}}},
    },
    "required": ["label"],
    "additionalProperties": False,
}
SCRIPTED = ModelOption(provider="openai_compatible", model_name="scripted")


@pytest.fixture(autouse=True)
def environment(served: WorkerProcess, temporal_server: ServerInfo, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
    monkeypatch.setenv("GRADELOOP_TASK_QUEUE", served.queue)
    monkeypatch.setenv("GRADELOOP_STORE", f"sqlite:///{tmp_path / 'rubrics.db'}")


@pytest.fixture
def service() -> BaseLLMService:
    return BaseLLMService(max_concurrency=2)


def says(label: str, *whys: str, key: str = "response") -> str:
    return f"I look.\n<{key}>{json.dumps({'label': label, 'issues': [{'why': why} for why in whys]})}</{key}>"


def rubric(**more: Any) -> Rubric:
    return Rubric(**{"rubric_text": f"It names Paris ({uuid4()}).", "output_schema": SCHEMA, "judge_model": SCRIPTED} | more)


def paris(answer: str = "The capital of France is Paris.") -> AgentRun:
    return AgentRun(transcripts=[Transcript(messages=[UserMessage(content="Capital of France?"), AssistantMessage(content=answer)])])


async def test_a_judge_answers_in_the_shape_of_docents_result(models: ScriptedModels, service: BaseLLMService) -> None:
    models.script(verdicts=[says("pass", "It does [T0B1:<RANGE>is Paris</RANGE>] 🎉 [T0B1], not [T0B9], nor [T0B0:<RANGE>Rome</RANGE>]")])
    asked, run = rubric(id="capital", version=3), paris()

    result = await build_judge(asked, service)(run)

    assert (result.result_type, result.output["label"]) == (ResultType.DIRECT_RESULT, "pass")
    assert (result.agent_run_id, result.rubric_id, result.rubric_version) == (run.id, "capital", 3)
    assert result.result_metadata is not None
    assert result.result_metadata["usage"]["calls"] == 1
    cited = JudgeResultWithCitations.from_judge_result(result, asked.output_schema, run)
    text, citations = cited.output["issues"][0]["why"].values()
    item = {"agent_run_id": run.id, "collection_id": "", "transcript_id": run.transcripts[0].id, "content_idx": None}
    quote = {"target_start_idx": None, "target_end_idx": None, "start_pattern": "is Paris", "end_pattern": None}
    assert [one["target"] for one in citations] == [
        {"item": item | {"item_type": "block_content", "block_idx": 1}, "text_range": quote},
        {"item": item | {"item_type": "block_content", "block_idx": 1}, "text_range": None},
        {"item": item | {"item_type": "block_content", "block_idx": 0}, "text_range": None},
    ]
    utf16 = text.encode("utf-16-le")
    assert utf16[2 * citations[1]["start_idx"] : 2 * citations[1]["end_idx"]].decode("utf-16-le") == "[T0B1]"


async def test_the_judgements_of_one_rubric_share_a_connection(
    models: ScriptedModels, service: BaseLLMService, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[Connection]()

    async def counted(connection: Connection) -> Client:
        opened.append(connection)
        return await connect(connection)

    monkeypatch.setattr("gradeloop.integrations.standing.connect", counted)
    models.script(verdicts=[says("pass", "It does.")] * 5)
    judge = build_judge(rubric(), service)

    results = await asyncio.gather(*(judge(paris(f"Paris, {at}.")) for at in range(5)))

    assert {result.output["label"] for result in results} == {"pass"}
    assert len(opened) == 1


async def test_rollouts_tags_templates_and_modes_are_docents(models: ScriptedModels, service: BaseLLMService) -> None:
    seen = list[str]()

    def verdict(call: ModelCall) -> Reply:
        seen.append(str(call.messages[-1]["content"]))
        return says("fail" if len(seen) == 1 else "pass", key="answer")

    models.script(verdicts=verdict)
    prompt = "Judge.\n{agent_run}\n{rubric}\nWrite <answer>, as {output_schema}. {output_format_instructions}"
    several = rubric(
        n_rollouts_per_input=3,
        judge_variant=JudgeVariant.MAJORITY,
        response_xml_key="answer",
        output_format="json",
        prompt_templates=[PromptTemplateMessage(role="user", content=prompt)],
        output_parsing_mode=OutputParsingMode.XML_KEY,
    )

    result = await build_judge(several, service, None)(paris(), temperature=0.5, max_new_tokens=100, timeout=60.0)

    assert (result.output["label"], len(seen)) == ("pass", 3)
    assert seen[0].startswith("Judge.\n")
    assert "<answer>" in rubric(response_xml_key="answer").prompt_templates[0].content
    constrained = rubric(output_parsing_mode=OutputParsingMode.CONSTRAINED_DECODING).judge()
    assert (constrained.output_parsing_mode, constrained.prompt_templates) == ("CONSTRAINED_DECODING", None)


async def test_without_an_answer_the_result_is_a_failure_and_the_next_call_asks_again(
    models: ScriptedModels, service: BaseLLMService
) -> None:
    models.script(verdicts=["no answer at all"])
    judge, run = build_judge(rubric(), service), paris()

    failed = await judge(run)
    models.script(verdicts=[says("pass")])
    judged = await judge(run)

    assert (failed.result_type, failed.output) == (ResultType.FAILURE, {})
    assert failed.result_metadata is not None
    assert failed.result_metadata["errors"][0]["error_type_id"] == "validation_failed"
    assert failed.result_metadata["errors"][0]["user_message"]
    assert judged.result_type == ResultType.DIRECT_RESULT


async def test_a_refused_run_or_model_is_a_failure_and_no_server_is_raised(
    service: BaseLLMService, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = AgentRun(transcripts=[Transcript(messages=[UserMessage(content="Hello?")])])
    unknown = rubric(judge_model=ModelOption(provider="nobody", model_name="m"))

    for judge, run, word in ((build_judge(rubric(), service), silent, "no answer"), (build_judge(unknown, service), paris(), "nobody")):
        result = await judge(run)
        assert result.result_type == ResultType.FAILURE
        assert result.result_metadata is not None
        assert word in result.result_metadata["errors"][0]["user_message"]

    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    with pytest.raises(ServerUnreachable):
        await build_judge(rubric(), service)(paris())


async def test_the_same_run_is_judged_once_and_messages_of_every_kind_are_shown(models: ScriptedModels, service: BaseLLMService) -> None:
    seen = list[str]()

    def verdict(call: ModelCall) -> Reply:
        seen.append(str(call.messages[-1]["content"]))
        return says("pass")

    models.script(verdicts=verdict)
    asked = rubric()

    def run() -> AgentRun:
        said = [{"type": "reasoning", "reasoning": "I search."}, {"type": "text", "text": "I look."}]
        calls = [ToolCall(id="c1", function="search", arguments={"query": "France"})]
        messages = [
            SystemMessage(content="Be brief."),
            UserMessage(content="Capital?"),
            AssistantMessage(content=said, tool_calls=calls),
            ToolMessage(content="Paris", tool_call_id="c1", function="search", error={"type": "timeout", "message": "late"}),
            AssistantMessage(content="Paris."),
        ]
        return AgentRun(transcripts=[Transcript(name="main", messages=messages)], metadata={"expected": "Rome"})

    first, second = run(), run()
    results = [await build_judge(asked, service)(one) for one in (first, second, first)]

    assert len(seen) == 1
    assert len({result.id for result in results}) == 1
    assert [result.agent_run_id for result in results] == [first.id, second.id, first.id]
    assert all(word in seen[0] for word in ("Be brief.", "I search.", "search", "France", "is_error", "Paris."))
    assert "Rome" not in seen[0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_templates": [{"role": "user", "content": "{agent_run} <response>"}]}, "prompt_templates lack {rubric}, {output_schema}"),
        ({"prompt_templates": [{"role": "user", "content": "{agent_run}{rubric}{output_schema}{more}"}]}, "unknown variable 'more'"),
        ({"prompt_templates": [{"role": "user", "content": "{agent_run}{rubric}{output_schema}"}]}, "opening tag <response>"),
        ({"output_schema": {"anyOf": []}}, "anyOf"),
        ({"judge_model": {"provider": "openai", "model_name": "m", "served_providers": ["a"]}}, "served_providers"),
        ({"rollout_type": "multi_turn"}, "single_turn"),
        ({"judge_variant": "exposed"}, "multi-reflect"),
        ({"n_rollouts": 3}, "n_rollouts"),
    ],
)
def test_what_a_rubric_cannot_be_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Rubric.model_validate({"rubric_text": "It is good."} | fields)

    assert words in str(refused.value)


async def test_a_client_keeps_rubrics_with_their_versions(models: ScriptedModels, tmp_path: Path) -> None:
    models.script(verdicts=[says("pass")])
    client, collection = Docent(api_key="unused"), f"geo-{uuid4()}"
    effort = ModelOption(provider="google", model_name="gemini-2.5-pro", reasoning_effort="high")
    prompts = [PromptTemplateMessage(role="user", content="{agent_run}{rubric}{output_schema}<r>")]
    whole = rubric(judge_model=effort, response_xml_key="r", prompt_templates=prompts, n_rollouts_per_input=3, output_format="json")

    assert client.get_rubric(collection, client.create_rubric(collection, whole)) == whole
    first = rubric(id="capital")
    assert client.create_rubric(collection, first) == "capital"
    registry = JudgeRegistry(Store(f"sqlite:///{tmp_path / 'rubrics.db'}"))
    await registry.add_version(collection, "capital", rubric(rubric_text="Newer.").judge())
    newest, oldest = client.get_rubric(collection, "capital"), client.get_rubric(collection, "capital", version=1)
    assert [(one.version, one.rubric_text) for one in (newest, oldest)] == [(2, "Newer."), (1, first.rubric_text)]
    assert [(row["rubric_id"], row["version"]) for row in client.list_rubrics(collection)] == sorted([("capital", 2), (whole.id, 1)])
    judge = client.get_judge(collection, "capital", version=1)
    assert isinstance(judge, BaseJudge)
    result: JudgeResult = await judge(paris())
    assert (result.rubric_id, result.rubric_version, result.output["label"]) == ("capital", 1, "pass")

    with pytest.raises(InvalidRequest, match="version is 2"):
        client.create_rubric(collection, newest)
    with pytest.raises(InvalidRequest, match="has no version 7"):
        client.get_rubric(collection, "capital", version=7)
    await registry.create_rubric(collection, {"id": "panel", "rubric_text": "Good.", "panel": ["openai:a", "openai:b"]})
    with pytest.raises(InvalidRequest, match="'panel' has panel"):
        client.get_rubric(collection, "panel")
    await registry.create_rubric(collection, {"id": "criteria", "rubric": "- It is good"})
    with pytest.raises(InvalidRequest, match="'criteria' has rubric"):
        client.get_rubric(collection, "criteria")


PROGRAM = """
import asyncio
from gradeloop.docent import *

rubric = Rubric(id="stopped", rubric_text="It names {word}.", judge_model=ModelOption(provider="openai_compatible", model_name="scripted"))
run = AgentRun(transcripts=[Transcript(messages=[UserMessage(content="Where?"), AssistantMessage(content="In Paris.")])])
result = asyncio.run(build_judge(rubric, BaseLLMService())(run))
print(result.output["label"], result.id)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
async def test_a_program_that_was_stopped_finds_the_judgement_under_way(
    sent: signal.Signals, models: ScriptedModels, tmp_path: Path
) -> None:
    gate, calls, script = Gate(), list[ModelCall](), tmp_path / "judge.py"

    def verdict(call: ModelCall) -> Reply:
        calls.append(call)
        gate.wait()
        return '<response>{"label": "match", "explanation": "It does."}</response>'

    models.script(verdicts=verdict)
    script.write_text(PROGRAM.replace("{word}", str(uuid4())))
    first = await asyncio.create_subprocess_exec(sys.executable, str(script), stderr=asyncio.subprocess.DEVNULL)
    await gate.reached()
    first.send_signal(sent)
    await first.wait()
    gate.open()
    second = await asyncio.create_subprocess_exec(sys.executable, str(script), stdout=asyncio.subprocess.PIPE)
    out, _ = await second.communicate()

    assert out.decode().split()[0] == "match"
    assert len(calls) == 1


@pytest.mark.slow
async def test_the_example_prints_what_the_judge_says_and_cites(models: ScriptedModels, tmp_path: Path) -> None:
    models.script(verdicts=['<response>{"label": "helpful", "explanation": "It is Paris [T0B1]."}</response>'])
    text = (Path(__file__).parents[2] / "examples" / "docent_judge" / "judge.py").read_text()
    (tmp_path / "judge.py").write_text(text.replace('provider="openai"', 'provider="openai_compatible"'))
    done = await asyncio.create_subprocess_exec(sys.executable, str(tmp_path / "judge.py"), stdout=asyncio.subprocess.PIPE)
    out, _ = await done.communicate()

    assert out.decode().startswith("Label: helpful\nExplanation: {'text': 'It is Paris [T0B1].', 'citations': [{'start_idx': 12,")
