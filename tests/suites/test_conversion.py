"""Rubrics of promptfoo's and Mastra's come to what their own documents say, or are refused by name."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest
from gradeloop.files.yaml import read_yaml
from gradeloop.grading.checks import CHECKS, run_text_check
from gradeloop.grading.scoring import result_of, score_of
from gradeloop.suites.assertions import assertion_types
from gradeloop.suites.convert import as_yaml, convert_file, from_mastra, from_promptfoo
from gradeloop.suites.providers import parse_provider
from tests.grading.test_scoring import Row, judgement_of
from tests.rig.threads import draft, request, serving

SAYS: dict[str, Any] = {"type": "llm-rubric", "value": "Says\nhello"}
GREETS = SAYS | {"value": "Greets {{ who }} {{ n }} times", "metric": "greets"}
HALF: dict[str, Any] = {"type": "assert-set", "threshold": 0.5, "assert": [SAYS, SAYS]}
SORRY: dict[str, Any] = {"type": "not-llm-rubric", "value": "Apologizes"}


def test_promptfoos_outcomes(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, dict[str, Row], str, float]] = [
        ([SAYS], {"c1": (True, 0.2)}, "satisfied", 0.2),
        ([SAYS], {"c1": (False, 1.0)}, "needs_revision", 1.0),
        ([SAYS | {"threshold": 0.5}], {"c1": (True, 0.4)}, "needs_revision", 0.4),
        ([SORRY], {"c1": (True, 0.9)}, "needs_revision", 0.1),
        ([SORRY], {"c1": (False, 0.1)}, "satisfied", 0.9),
        # the threshold comes first, then it is turned round: 0.4 is no pass, so it does not apologize
        ([SORRY | {"threshold": 0.5}], {"c1": (True, 0.4)}, "satisfied", 0.6),
        ([SAYS, SORRY], {"c1": (True, 1.0), "c2": (True, 1.0)}, "needs_revision", 0.5),
        ([SAYS, SORRY | {"weight": 0}], {"c1": (True, 1.0), "c2": (True, 1.0)}, "satisfied", 1.0),
        ({"assert": [SAYS, SORRY], "threshold": 0.5}, {"c1": (False, 1.0), "c2": (True, 1.0)}, "satisfied", 0.5),
        ({"assert": [SAYS | {"weight": 3}, SORRY], "threshold": 0.8}, {"c1": (True, 1.0), "c2": (True, 1.0)}, "needs_revision", 0.75),
        ([SAYS, HALF], {"c1": (True, 1), "c2": (True, 1), "c3": (False, 0)}, "satisfied", 0.75),
        ([{"type": "assert-set", "assert": [SAYS, SAYS]}], {"c1": (True, 1), "c2": (False, 0)}, "needs_revision", 0.5),
    ]
    for test, rows, result, score in cases:
        with subtests.test(test=test):
            rubric = from_promptfoo(test)

            judgement = judgement_of(rubric, rows)

            assert result_of(rubric, judgement) == result
            assert score_of(rubric, judgement) == pytest.approx(score)


THRESHOLDS: dict[str, float | None] = {
    **dict.fromkeys(("similar", "similar:cosine", "rouge-n"), 0.75),
    **dict.fromkeys(("answer-relevance", "context-recall", "context-relevance", "context-faithfulness", "conversation-relevance"), 0.5),
    "g-eval": 0.7,
    "levenshtein": 5,
    "bleu": 0.5,
    **dict.fromkeys(("llm-rubric", "factuality", "model-graded-factuality", "model-graded-closedqa"), None),
}
"""The default of each type's threshold in promptfoo 0.123.1; None where a score of 0 may pass."""


def test_the_table_has_every_type_that_measures() -> None:
    found = {name: row.threshold for row in assertion_types() if row.build for name in (row.name, *row.spellings)}

    assert {name: threshold for name, threshold in THRESHOLDS.items() if threshold} == {name: one for name, one in found.items() if one}
    assert not set(THRESHOLDS) - set(found)


def with_one(kind: str, **more: Any) -> Rubric:
    """Return the rubric of a test with one assertion."""
    assertion = {"type": kind, "value": "one two three four"} | more
    return from_promptfoo({"vars": {"query": "q", "context": "c"}, "assert": [assertion]})


def test_a_score_passes_from_the_default_of_promptfoos_threshold_on(subtests: pytest.Subtests) -> None:
    kinds = [kind for kind in THRESHOLDS if kind not in CHECKS.rows]
    given: tuple[dict[str, Any], ...] = ({}, {"threshold": None})
    for threshold, kind, negated in itertools.product(given, kinds, ("", "not-")):
        with subtests.test(threshold=threshold, kind=kind, negated=negated):
            default, rubric = THRESHOLDS[kind], with_one(f"{negated}{kind}", **threshold)
            met, missed = ("needs_revision", "satisfied") if negated else ("satisfied", "needs_revision")

            assert result_of(rubric, judgement_of(rubric, {"c1": (True, default or 0)})) == met
            if default is not None:
                assert result_of(rubric, judgement_of(rubric, {"c1": (True, default - 0.01)})) == missed


@pytest.mark.parametrize(
    ("kind", "met", "missed"),
    [
        ("levenshtein", "one two three four five"[:23], "one two three four, five"),
        ("rouge-n", "one two three", "one two"),
        ("bleu", "one two three four five six", "one two 3 four"),
    ],
)
def test_a_text_is_measured_by_the_default_of_promptfoos_threshold(kind: str, met: str, missed: str) -> None:
    for threshold in ({}, {"threshold": None}):
        check = with_one(kind, **threshold).criteria[0].check
        assert check is not None
        arguments = check.arguments
        assert run_text_check(met, arguments).passed
        assert not run_text_check(missed, arguments).passed
        assert run_text_check(met, arguments) == run_text_check(met, {**arguments, "threshold": THRESHOLDS[kind]})


def test_a_configurations_test_has_the_defaults_and_its_variables() -> None:
    config: Any = {
        "prompts": ["{{ q }}"],
        "providers": ["openai:gpt-5-mini"],
        "defaultTest": {"options": {"provider": "anthropic:messages:claude-haiku-4-5"}, "vars": {"who": "Ada"}, "assert": [SORRY]},
        "tests": [{}, {"description": "greets", "vars": {"n": 1.5}, "assert": [GREETS]}],
    }

    rubric = from_promptfoo(config, test=1)

    assert (rubric.name, [criterion.id for criterion in rubric.criteria]) == ("greets", ["c1", "greets"])
    assert rubric.criteria[1].text == "Greets Ada 1.5 times"
    assert {criterion.grader.id for criterion in rubric.criteria if criterion.grader} == {"anthropic:claude-haiku-4-5"}


def test_what_has_no_effect_in_a_test_is_noted() -> None:
    notes: list[str] = []
    rubric = from_promptfoo({"assert": [SAYS | {"description": "why"}], "repeat": 3}, note=notes.append)

    assert len(rubric.criteria) == 1
    assert [note.rpartition(": ")[2] for note in notes] == ["'repeat' has no effect here", "'description' has no effect here"]


def test_its_providers_are_ours(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Any, str, dict[str, Any]]] = [
        ("openai:chat:gpt-5-mini", "openai_chat:gpt-5-mini", {}),
        ("openai:responses:gpt-5-mini", "openai:gpt-5-mini", {}),
        ("anthropic:messages:claude-haiku-4-5", "anthropic:claude-haiku-4-5", {}),
        ("google:gemini-3.5-flash", "google_genai:gemini-3.5-flash", {}),
        ("openrouter:meta/llama:free", "openrouter:meta/llama:free", {}),
        ("mistral:mistral-small-latest", "openai_compatible:mistral-small-latest", {"base_url": "https://api.mistral.ai/v1"}),
        ({"id": "azure:chat:me", "config": {"apiHost": "a.b"}}, "openai_compatible:me", {"base_url": "https://a.b/openai/v1"}),
        ({"id": "openai:gpt-5", "config": {"temperature": 0, "showThinking": False}}, "openai:gpt-5", {"temperature": 0}),
    ]
    for provider, model, config in rows:
        with subtests.test(provider=provider):
            assert parse_provider(provider, "assert[0]") == {"id": model} | ({"config": config} if config else {})


def test_what_is_not_supported_is_refused_by_name(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Any, str]] = [
        ([{"type": "javascript", "value": "x"}], "which runs in a sandbox; read it, then run its suite with: gradeloop eval --allow-code"),
        ([SAYS | {"transform": "output.trim()"}], "assert[0].transform: the transform is code, which runs in a sandbox"),
        ([SAYS | {"provider": "claude"}], "assert[0].provider: 'claude' is not supported; known ids begin with"),
        (
            [SAYS | {"provider": {"id": "openai:x", "config": {"tools": [{"type": "mcp"}]}}}],
            "config.tools names 'mcp', which its vendor runs",
        ),
        ([SAYS | {"provider": "openai:embedding:x"}], "'openai:embedding:x' is a model of embeddings, none of a chat"),
        ([{"type": "llm-rubric", "value": 7}], "is not a string; put the description in quotes"),
        ([SAYS | {"threshold": 80}], "threshold 80 is outside of 0 to 1"),
        ({"assert": [SAYS], "provider": "x"}, "tests[0]: 'provider' is not supported"),
        ({"tests": []}, "test 0 is not there"),
        ([SAYS | {"value": "{{ x }}"}, {"type": "llm-rubric", "value": "a", "weight": -1}], "greater than or equal to 0"),
    ]
    for value, why in rows:
        with subtests.test(value=value):
            with pytest.raises(InvalidRequest) as caught:
                from_promptfoo(value)

            assert why in str(caught.value)


OPTIONAL: dict[str, Any] = {"description": "b", "required": False}


def test_mastras_outcomes(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, dict[str, Row], str, float]] = [
        ("- a\n* b", {"c1": True, "c2": False}, "needs_revision", 0.0),
        ("- a\n* b", {"c1": True, "c2": True}, "satisfied", 1.0),
        ({"criteria": ["a", OPTIONAL]}, {"c1": True, "c2": False}, "satisfied", 1.0),
        ({"criteria": [OPTIONAL, OPTIONAL]}, {"c1": True, "c2": False}, "needs_revision", 0.0),
        ({"scorers": [{"criteria": "a"}, {"criteria": [OPTIONAL, "c"]}]}, {"c1": True, "c2": False, "c3": True}, "satisfied", 1.0),
        ({"scorers": [{"criteria": "a"}, {"criteria": "b"}]}, {"c1": True, "c2": False}, "needs_revision", 0.0),
        ({"scorers": [{"criteria": "a"}, {"criteria": "b"}], "strategy": "any"}, {"c1": True, "c2": False}, "satisfied", 1.0),
        ({"scorers": [{"criteria": "a"}, {"criteria": "b"}], "strategy": "any"}, {"c1": False, "c2": False}, "needs_revision", 0.0),
    ]
    for shape, rows, result, score in cases:
        with subtests.test(shape=shape):
            rubric = from_mastra(shape)

            judgement = judgement_of(rubric, rows)

            assert (result_of(rubric, judgement), score_of(rubric, judgement)) == (result, score)


def test_only_false_makes_a_criterion_optional_as_in_mastra(subtests: pytest.Subtests) -> None:
    values: tuple[Any, ...] = (True, "false", "False", "no", "", 0, 0.0, 1, None, [], {})
    for value in values:
        with subtests.test(value=value):
            criteria = ["a", {"description": "b", "required": value}, {"description": "c", "required": False}]
            shapes: list[Any] = [{"criteria": criteria}, {"scorers": [{"criteria": criteria}]}, criteria]

            assert [[criterion.required for criterion in from_mastra(shape).criteria] for shape in shapes] == [[True, True, False]] * 3


def test_a_marker_is_one_only_where_white_space_follows() -> None:
    assert [criterion.text for criterion in from_mastra("3.5 stars\n1. two\n-three\n# four").criteria] == [
        "3.5 stars",
        "two",
        "-three",
        "# four",
    ]


@pytest.mark.parametrize(
    ("model", "grader"),
    [
        ("openai/gpt-5-mini", "openai:gpt-5-mini"),
        ("google/gemini-3-flash", "google_genai:gemini-3-flash"),
        ("openrouter/openai/gpt-5-mini", "openrouter:openai/gpt-5-mini"),
    ],
)
def test_the_model_of_a_scorer_grades_its_criteria(model: str, grader: str) -> None:
    scorer: dict[str, Any] = {"criteria": ["a", OPTIONAL], "model": model, "options": {"scale": 1}}
    alone, gate = from_mastra(scorer), from_mastra({"scorers": [scorer, {"criteria": "c"}]})

    assert [criterion.grader.id for criterion in alone.criteria if isinstance(criterion.grader, ModelSpec)] == [grader] * 2
    assert [criterion.grader is None for criterion in gate.criteria] == [False, False, True]


@pytest.mark.parametrize(
    "shape", [{"criteria": []}, {}, {"scorers": []}, {"scorers": [{"criteria": ""}, {"criteria": "a"}], "strategy": "any"}]
)
def test_a_scorer_without_criteria_asks_nobody(shape: Any) -> None:
    assert (from_mastra(shape).cleared, from_mastra(shape).scoring) == (True, "binary")


async def test_such_a_scorer_scores_1_without_a_call(client: Client) -> None:
    empty = from_mastra({"criteria": []}).model_dump(mode="json")
    async with serving(client, draft()) as served:
        result = await served.run(request(empty))

    assert (result.status, result.score, result.output, served.models.requests_of("grader")) == (None, 1.0, "draft 0", [])


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ({"criteria": ["a"], "scale": 10}, "the scorer: 'scale' is not supported"),
        ({"scorers": [{"criteria": "a"}], "strategy": "most"}, "strategy: 'most' is not supported"),
        ({"scorers": [{"criteria": "a"}], "timeout": 5}, "isTaskComplete: 'timeout' is not supported"),
        ({"criteria": [{"description": "a", "weight": 2}]}, "criteria[0]: 'weight' is not supported"),
        (
            {"criteria": "a", "options": {"scale": 10}},
            "options: \"{'scale': 10}\" is not supported; a score is 0 or 1, leave the scale out",
        ),
        (
            {"scorers": [{"criteria": "a", "model": {"id": 5}}]},
            "scorers[0].model: \"{'id': 5}\" is not a name of a model; write it as vendor/model",
        ),
        ({"criteria": "a", "model": "gpt-5-mini"}, "model: 'gpt-5-mini' is not a name of a model; write it as vendor/model"),
    ],
)
def test_what_mastra_has_and_we_do_not_is_refused_by_name(shape: Any, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        from_mastra(shape)

    assert why in str(caught.value)


def test_a_converted_file_is_written_as_it_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "judge.txt").write_text("Judge {{ output }} by {{ rubric }}, {{ product }}")
    (tmp_path / "config.yaml").write_text(
        "tests:\n- vars: {product: pumps}\n  assert:\n"
        "  - {type: llm-rubric, value: 'Names {{ product }}', rubricPrompt: 'file://judge.txt', weight: 2}\n"
        "  - {type: assert-set, metric: tone, assert: [{type: not-llm-rubric, value: Apologizes}]}\n"
    )

    rubric = convert_file(tmp_path / "config.yaml", None, 0)

    assert Rubric.model_validate(read_yaml(as_yaml(rubric), "the rubric")) == rubric
    assert rubric.criteria[0].prompt is not None
    assert rubric.criteria[0].prompt.messages[0].parts[-1] == ", pumps"


def test_a_test_whose_variables_are_lists_counts_as_the_tests_that_they_make(tmp_path: Path) -> None:
    text = "defaultTest: {vars: {greeting: [Dear, Hello]}}\ntests:\n"
    text += "- {vars: {name: [Ada, Grace]}, assert: [{type: llm-rubric, value: 'Says {{ greeting }} {{ name }}'}]}\n"
    text += "- vars: {name: [Ada, Grace], greeting: Hi}\n  options: {disableVarExpansion: true}\n"
    text += "  assert: [{type: llm-rubric, value: '{{ greeting }}'}]\n"
    (tmp_path / "config.yaml").write_text(text)

    said = [convert_file(tmp_path / "config.yaml", None, at).criteria[0].description for at in range(5)]

    assert said == ["Says Dear Ada", "Says Dear Grace", "Says Hello Ada", "Says Hello Grace", "Hi"]
    with pytest.raises(InvalidRequest, match="test 5 is not there; they run from 0 to 4"):
        convert_file(tmp_path / "config.yaml", None, 5)
