"""Providers by promptfoo's names, their settings, and tests as scenarios, by labels and repeated."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import Location
from gradeloop.suites.flags import SuiteFlags
from gradeloop.suites.load import read_suite
from gradeloop.suites.promptfoo_tests import refuse_remote
from gradeloop.suites.providers import parse_provider, read_provider
from tests.rig.suites import cases, refusal, written

NAME = "promptfooconfig.yaml"
CHECK = SuiteFlags(check=True)
TESTS = "\ntests: [{vars: {q: why}, assert: [{type: is-json}]}]"


def test_a_provider_has_its_name_at_the_workers_endpoints(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("openai:chat:gpt-5", "openai_chat:gpt-5"),
        ("openai:completion:gpt-5", "openai:gpt-5"),
        ("groq:llama-4", "groq:llama-4"),
        ("togetherai:chat:meta/llama", "together:meta/llama"),
        ("deepseek:deepseek-reasoner", "deepseek:deepseek-reasoner"),
        ("xai:grok-4", "xai:grok-4"),
        ("ollama:chat:llama3.2:3b", "ollama:llama3.2:3b"),
        ("litellm:gpt-4.1", "litellm:gpt-4.1"),
        ("azureopenai:chat:mine", "azure:mine"),
        ("bedrock:us.anthropic.claude-sonnet-4-20250514-v1:0", "bedrock:us.anthropic.claude-sonnet-4-20250514-v1:0"),
        ("vertex:claude-3-5-sonnet-v2@20241022", "vertex:claude-3-5-sonnet-v2@20241022"),
        ("vertex:gemini-2.5-pro", "google_genai:gemini-2.5-pro"),
        ("google:gemini-2.5-pro", "google_genai:gemini-2.5-pro"),
        ("cloudflare-ai:chat:@cf/google/gemma", "cloudflare-ai:@cf/google/gemma"),
        ("openai:responses:codex-mini-latest", "openai:codex-mini-latest"),
    ]
    for theirs, ours in rows:
        with subtests.test(theirs=theirs):
            assert read_provider(theirs, "p").id == ours


def test_what_is_none_of_a_chat_is_refused_by_that_name(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("openai:embedding:text-embedding-3-large", "a model of embeddings"),
        ("openai:image:dall-e-3", "a model of images"),
        ("openai:moderation:omni", "a moderation model"),
        ("anthropic:completion:claude-2.1", "a text completion, which Anthropic has retired"),
        ("openai:realtime:gpt-4o", "a realtime session"),
        ("google:live:gemini-2.0-flash-exp", "a realtime session"),
        ("openai:assistant:asst_1", "an assistant"),
        ("bedrock:agents:A", "an agent of its own"),
        ("browser", "a browser session"),
        ("https://example.com/v1", "a request of its own form"),
        ("exec:./run.sh", "a program"),
        ("python:p.py", "code of a custom provider"),
    ]
    for name, what in rows:
        with subtests.test(name=name), pytest.raises(InvalidRequest, match=f"is {what}.*, none of a chat"):
            parse_provider(name, "providers[0]")


def test_settings_become_those_of_the_model(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("openai:x", {"max_completion_tokens": 9, "temperature": 0.5}, {"max_tokens": 9, "temperature": 0.5}),
        ("google:x", {"generationConfig": {"maxOutputTokens": 9, "temperature": 1}}, {"max_tokens": 9, "temperature": 1}),
        ("bedrock:x", {"inferenceConfig": {"max_new_tokens": 7}, "region": "us-east-1"}, {"max_tokens": 7}),
        ("openai:x", {"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ("anthropic:x", {"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"thinking": 2048}),
        ("google:x", {"generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}, {"thinking": "disabled"}),
        ("vertex:gemini-x", {"topK": 40, "generationConfig": {"topP": 0.9}}, {"extra": {"topK": 40, "topP": 0.9}}),
        ("openai:x", {"top_p": 0.5, "passthrough": {"user": "u", "seed": 3}}, {"seed": 3, "extra": {"top_p": 0.5, "user": "u"}}),
        ("openai:x", {"apiBaseUrl": "http://localhost:8000/v1"}, {"base_url": "http://localhost:8000/v1"}),
        ("openai:x", {"apiHost": "a.b"}, {"base_url": "https://a.b/v1"}),
        ("openai:x", {"apiKeyEnvar": "OPENAI_API_KEY"}, {}),
    ]
    for name, config, settings in rows:
        with subtests.test(name=name):
            assert read_provider({"id": name, "config": config}, "p").spec().get("config", {}) == settings


@pytest.mark.parametrize("key", ["apiKey", "apiKeyEnvar", "headers", "apiEndpoint", "secretAccessKey", "credentials", "tls"])
def test_a_configuration_names_no_key_and_no_way_to_one(key: str) -> None:
    with pytest.raises(InvalidRequest, match=f"config.{key} says .* which only the worker's settings may"):
        parse_provider({"id": "openai:x", "config": {key: "OTHER_SECRET"}}, "providers[0]")


def test_no_key_is_taken_from_env_and_what_else_it_sets_is_a_variable(tmp_path: Path) -> None:
    text = f"prompts: ['{{{{ env.PLACE }}}} {{{{ q }}}}']\nproviders: [echo]{TESTS}\nenv: "
    (case,) = cases(tmp_path, text + "{PLACE: Rome}", name=NAME)

    assert case.output == "Rome why"
    assert "a key is not part of a configuration" in refusal(tmp_path, text + "{OPENAI_API_KEY: sk-x}", name=NAME)


def test_providers_are_a_mapping_by_id_a_file_or_one_and_a_system_prompt_is_kept(tmp_path: Path) -> None:
    system = "{config: {systemInstruction: {parts: [{text: Be kind}]}}}"
    for providers in (f"{{google:a: {system}}}", f"[{{google:a: {system}}}]", "file://p.yaml"):
        (case,) = cases(tmp_path, f"prompts: [x]\nproviders: {providers}{TESTS}", CHECK, name=NAME, p_yaml=f"- google:a: {system}")

        assert case.generator is not None
        assert case.generator.model is not None
        assert (case.generator.model.id, case.generator.system_prompt) == ("google_genai:a", "Be kind")


def test_two_providers_of_one_name_and_a_providers_own_prompts(tmp_path: Path) -> None:
    text = "prompts: [{raw: A, label: a}, {raw: B, label: b}]\nproviders: [{id: echo, prompts: [a]}, echo]" + TESTS
    found = cases(tmp_path, text, name=NAME)

    assert [(case.prompt, case.label, case.output) for case in found] == [("a", "echo", "A"), ("a", "echo-2", "A"), ("b", "echo-2", "B")]


def test_tests_name_prompts_and_providers_repeat_and_put_texts_around(tmp_path: Path) -> None:
    text = """prompts: [{raw: A, label: a}, {raw: B, label: b}]
providers: [echo, {id: echo, label: other}]
tests:
  - {prompts: [b], providers: ['oth*'], options: {repeat: 2, prefix: '<', suffix: '>'}, assert: [{type: is-json}]}
"""
    found = cases(tmp_path, text, name=NAME)

    assert [(case.prompt, case.label, case.output, case.repeat) for case in found] == [("b", "other", "<B>", 0), ("b", "other", "<B>", 1)]
    assert "has a label that it names" in refusal(tmp_path, text.replace("[b]", "[c]"), name=NAME)


def test_scenarios_are_every_test_with_every_configuration(tmp_path: Path) -> None:
    text = """prompts: ['{{ a }} {{ b }}']
providers: [echo]
scenarios:
  - config: [{vars: {a: 1}, assert: [{type: contains, value: '1'}]}, {vars: {a: 2}}]
    tests: [{vars: {b: x}, assert: [{type: contains, value: x}]}, {vars: {a: 9, b: y}, assert: [{type: is-json}]}]
"""
    found = cases(tmp_path, text, name=NAME)

    assert [(case.output, len(case.rubric.criteria)) for case in found] == [("1 x", 2), ("9 y", 2), ("2 x", 1), ("9 y", 1)]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (
            "huggingface://datasets/cais/mmlu?split=test&subset=a&limit=10",
            """python -c 'from datasets import load_dataset; load_dataset("cais/mmlu", "a", split="test[:10]").to_csv("tests.csv")'""",
        ),
        ("huggingface://datasets/a/b'; rm -rf ~", """load_dataset("a/brm-rf", split="test")"""),
        (
            "https://docs.google.com/spreadsheets/d/1eq_F/edit?usp=sharing#gid=7",
            "curl -L -o tests.csv 'https://docs.google.com/spreadsheets/d/1eq_F/export?format=csv&gid=7'",
        ),
        ("https://example.com/tests.csv", "download it as CSV, and name the file"),
    ],
)
def test_tests_that_lie_elsewhere_are_refused_with_the_command_that_downloads_them(name: str, command: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_remote(name, Location("the suite 's'"))

    assert command in str(caught.value)


def test_what_is_left_out_is_named_once_for_all_and_its_cases_are_kept(tmp_path: Path) -> None:
    text = """prompts: [x, prompts/missing.txt]
providers: [echo, {id: openai:gpt-5, config: {tools: [{type: mcp}], top_p: 1}}, openai:image:y]
tests: [{assert: [{type: is-json}]}, 'huggingface://datasets/a/b']
"""
    found = cases(tmp_path, text, CHECK, name=NAME)

    assert [case.runs for case in found] == [True, True, False, False, False, False, False]
    assert [bool(case.left_out) for case in found] == [False, True, True, True, True, True, True]
    assert "'tools' names 'mcp', which its vendor runs" in found[1].left_out[0]
    assert "(nothing is left to run)" in refusal(tmp_path, "prompts: [x]\nproviders: [browser]" + TESTS, CHECK, name=NAME)


PLACE = {"type": "object", "properties": {"type": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "Says it.", "parameters": PLACE}
GOOGLES = {**WEATHER, "parameters": {"type": "OBJECT", "properties": {"type": {"type": "STRING"}}}}


def test_functions_in_every_vendors_spelling_are_those_of_the_generator(tmp_path: Path, subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, dict[str, Any], str | None, str]] = [
        ("openai:chat:x", {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required"}, "required", "chat"),
        ("openai:x", {"functions": [WEATHER], "function_call": {"name": "weather"}}, "weather", "function_call"),
        ("openai:responses:x", {"tools": [{"type": "function", **WEATHER}], "tool_choice": "auto"}, "auto", "responses"),
        ("groq:x", {"tools": {"type": "function", "function": WEATHER}}, None, "chat"),
        (
            "anthropic:x",
            {"tools": [{"name": "weather", "description": "Says it.", "input_schema": PLACE}], "tool_choice": {"type": "any"}},
            "required",
            "anthropic",
        ),
        (
            "google:x",
            {"tools": {"function_declarations": [GOOGLES]}, "tool_config": {"function_calling_config": {"mode": "auto"}}},
            "auto",
            "google",
        ),
        (
            "vertex:gemini-2.5-pro",
            {
                "tools": [{"functionDeclarations": [GOOGLES]}],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather"]}},
            },
            "weather",
            "google",
        ),
        (
            "bedrock:amazon.nova-lite-v1:0",
            {
                "toolConfig": {
                    "toolChoice": {"any": {}},
                    "tools": [{"toolSpec": {"name": "weather", "description": "Says it.", "inputSchema": {"json": PLACE}}}],
                }
            },
            "required",
            "bedrock",
        ),
        (
            "bedrock:us.anthropic.claude-x",
            {"tools": [{"type": "custom", **WEATHER}], "tool_choice": {"type": "tool", "name": "weather"}},
            "weather",
            "anthropic",
        ),
    ]
    for name, config, choice, shown in rows:
        with subtests.test(name=name):
            (case,) = cases(tmp_path, f"prompts: [x]\nproviders: [{{id: '{name}', config: {json.dumps(config)}}}]{TESTS}", CHECK, name=NAME)

            assert case.generator is not None
            assert [function.model_dump(exclude_defaults=True) for function in case.generator.functions] == [WEATHER]
            assert (case.generator.function_choice, case.generator.shown_as) == (choice, shown)


@pytest.mark.parametrize(
    ("name", "config", "form"),
    [
        ("openai:x", {"response_format": {"type": "json_object"}}, {"name": "answer"}),
        (
            "openai:x",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "strict": True, "schema": PLACE}}},
            {"name": "p", "strict": True, "json_schema": PLACE},
        ),
        (
            "openai:responses:x",
            {"response_format": {"type": "json_schema", "name": "p", "schema": PLACE}},
            {"name": "p", "json_schema": PLACE},
        ),
        ("vertex:gemini-x", {"responseSchema": GOOGLES["parameters"]}, {"name": "answer", "json_schema": PLACE}),
        (
            "google:x",
            {"generationConfig": {"response_schema": PLACE, "response_mime_type": "application/json"}},
            {"name": "answer", "json_schema": PLACE},
        ),
        ("anthropic:x", {"output_format": {"type": "json_schema", "schema": PLACE}}, {"name": "answer", "json_schema": PLACE}),
        ("openai:x", {"response_format": "file://form.json"}, {"name": "f", "json_schema": PLACE}),
    ],
)
def test_the_form_of_an_answer_is_that_of_the_generator(tmp_path: Path, name: str, config: dict[str, Any], form: dict[str, Any]) -> None:
    text = f"prompts: [x]\nproviders: [{{id: '{name}', config: {json.dumps(config)}}}]{TESTS}"
    written = json.dumps({"type": "json_schema", "name": "f", "schema": PLACE})
    (case,) = cases(tmp_path, text, CHECK, name=NAME, form_json=written)

    assert case.generator is not None
    assert case.generator.output_form is not None
    assert case.generator.output_form.model_dump() == form


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"tools": [{"type": "web_search_preview"}]}, "'tools' names 'web_search_preview', which its vendor runs"),
        ({"tools": [{"googleSearch": {}}]}, "'tools' names 'googleSearch', which its vendor runs"),
        ({"tools": [{"type": "mcp", "server_url": "https://m"}]}, "'tools' names 'mcp', which its vendor runs"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305', which its vendor runs"),
        ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "write auto, none, required or the name of a function"),
        ({"response_format": {"type": "grammar"}}, "which is not supported"),
        ({"tools": [{"type": "function", "function": {**WEATHER, "description": "{{ q }}"}}]}, "is filled from variables"),
    ],
)
def test_what_a_vendor_runs_or_nobody_knows_is_refused_by_name(tmp_path: Path, config: dict[str, Any], why: str) -> None:
    assert why in refusal(tmp_path, f"prompts: [x]\nproviders: [{{id: openai:x, config: {json.dumps(config)}}}]{TESTS}", name=NAME)


def test_a_judge_has_no_functions() -> None:
    with pytest.raises(InvalidRequest, match="a judge answers in a form of its own"):
        parse_provider({"id": "openai:x", "config": {"response_format": {"type": "json_object"}}}, "p")


def test_a_temperature_that_a_model_does_not_take_is_left_out_with_a_note_as_in_promptfoo(tmp_path: Path) -> None:
    given = "{id: openai:o3, config: {temperature: 0.7}}, {id: openai:gpt-4.1, config: {temperature: 0.7}}"
    text = f"prompts: [x]\nproviders: [{given}]{TESTS}"
    suite = read_suite(written(tmp_path, text, NAME), CHECK)
    configs = [case.generator.model.config.temperature for case in suite.cases() if case.generator and case.generator.model]

    assert configs == [None, 0.7]
    assert any("'openai:o3' takes no temperature; it is left out, as in promptfoo" in note for note in suite.notes)
