"""Docent's own package has the fields, defaults, enums, refusals and citations that `gradeloop.docent` has; each difference is named."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import gradeloop.docent as ours
from gradeloop.docent import AgentRun, AssistantMessage, JudgeResult, JudgeResultWithCitations, Rubric, Transcript, UserMessage
from lab.judges import provider
from lab.peer.venv import DOCENT, peer_python
from lab.served_app import served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FACTS = Path(__file__).parent.parent / "peer" / "docent_facts.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "docent_judge" / "judge.py"

ONE_TEMPLATE = "{agent_run}{rubric}{output_schema}"
REFUSED_BOTH: list[dict[str, Any]] = [
    {"prompt_templates": []},
    {"prompt_templates": [{"role": "user", "content": "{rubric}<response>"}]},
    {"prompt_templates": [{"role": "user", "content": ONE_TEMPLATE}]},
    {"prompt_templates": [{"role": "user", "content": f"{ONE_TEMPLATE}{{more}}<response>"}]},
    {"output_schema": {"type": "object", "properties": {"a": {"anyOf": []}}}},
    {"output_schema": {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True}},
    {"judge_variant": "exposed"},
    {"rollout_type": "multi_turn"},
    {"output_parsing_mode": "guess"},
    {"judge_model": {"provider": "openai", "model_name": "m", "served_providers": ["a"]}},
    {"judge_model": {"provider": "openai", "model_name": "m", "reasoning_effort": "max"}},
]
REFUSED_HERE: list[dict[str, Any]] = [{"n_rollouts": 3}, {"n_rollouts_per_input": 0}, {"rubric_text": " "}]
"""What Docent takes: an unknown field, no rollout at all, and a rubric that says nothing."""
REFUSED_THERE: list[dict[str, Any]] = [{"response_xml_key": "answer"}]
"""What Docent refuses: another tag with the default prompt, which here asks for whatever tag is named."""

TEXTS = ["It is [T0B1:<RANGE>in paris</RANGE>]", "🎉 [T0B1] and [T0B0:<RANGE>Rome</RANGE>], [R0M.k]", "[T0] [x] T0B1"]
ELSEWHERE = ["[T0B9] [R0M.none]"]
"""Citations of what is not there: Docent keeps them, as if they were found."""

OTHER_FIELDS = {
    "Rubric": {"prompt_templates"},  # our own prompt, whose fences no run can forge
    "AgentRun": {"transcript_groups"},  # dicts
}


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    cases = {"rubrics": REFUSED_BOTH + REFUSED_HERE + REFUSED_THERE, "texts": TEXTS + ELSEWHERE}
    said = '<response>{"label": "helpful", "explanation": "It says so [T0B1]."}</response>'
    with served(provider, said) as url:
        command = [str(peer_python(DOCENT)), str(FACTS), url, str(EXAMPLE), json.dumps(cases)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_fields_and_their_defaults_are_docents(facts: dict[str, Any]) -> None:
    for name, known in facts["fields"].items():
        model = getattr(ours, name)
        own: dict[str, Any] = {}
        for field, about in model.model_fields.items():
            default = "required" if about.is_required() else "made" if about.default_factory is not None else about.default
            own[field] = default.model_dump(exclude_none=True) if hasattr(default, "model_dump") else getattr(default, "value", default)
        aside = OTHER_FIELDS.get(name, set())
        there = {field: _without_nulls(default) for field, default in known.items()}
        if name == "Rubric":
            own["output_schema"] = ours.Rubric(rubric_text="x").output_schema
        assert {key: own[key] for key in own.keys() - aside} == {key: there[key] for key in there.keys() - aside}, name
    assert set(ours.ToolCall.model_fields) == set(facts["tool_call"]) - {"google_thought_signature"}
    assert ours.BaseLLMService().max_concurrency == facts["service"]
    assert ours.build_judge.__code__.co_varnames[:3] == tuple(facts["judge"])


def _without_nulls(default: Any) -> Any:
    return {key: value for key, value in default.items() if value is not None} if isinstance(default, dict) else default


def test_enums_are_docents_without_what_it_no_longer_uses(facts: dict[str, Any]) -> None:
    assert facts["enums"]["ResultType"].pop("NEAR_MISS") == "NEAR_MISS"
    for name, known in facts["enums"].items():
        assert {one.name: one.value for one in getattr(ours, name)} == known, name


def test_what_a_rubric_cannot_be_is_refused_on_both_sides(facts: dict[str, Any]) -> None:
    for at, (case, there) in enumerate(zip(REFUSED_BOTH + REFUSED_HERE + REFUSED_THERE, facts["refused"], strict=True)):
        try:
            Rubric.model_validate({"rubric_text": "It is good."} | case)
            here = False
        except ValueError:
            here = True
        assert here == (case not in REFUSED_THERE), case
        assert (there is not None) == (case not in REFUSED_HERE), (at, case, there)


def test_citations_are_docents_where_what_is_cited_is_there(facts: dict[str, Any]) -> None:
    run = AgentRun(
        transcripts=[Transcript(messages=[UserMessage(content="Where?"), AssistantMessage(content="In Paris.")])], metadata={"k": 1}
    )
    schema = {"type": "object", "properties": {"why": {"type": "string", "citations": True}}}

    def cited(text: str) -> list[Any]:
        about = {"agent_run_id": run.id, "rubric_id": "r", "rubric_version": 1, "result_type": "DIRECT_RESULT"}
        result = JudgeResult.model_validate(about | {"output": {"why": text}})
        found: list[Any] = JudgeResultWithCitations.from_judge_result(result, schema, run).output["why"]["citations"]
        for one in found:
            for name in ("agent_run_id", "transcript_id"):
                one["target"]["item"].pop(name, None)
        return found

    assert [cited(text) for text in TEXTS] == facts["citations"][: len(TEXTS)]
    assert [len(cited(text)) for text in ELSEWHERE] == [0]
    assert [len(found) for found in facts["citations"][len(TEXTS) :]] == [2]


def test_the_example_runs_there_with_docents_imports(facts: dict[str, Any]) -> None:
    assert facts["example"].startswith("Label: helpful\nExplanation: {'text': 'It says so [T0B1].', 'citations': [{"), facts["example"]
