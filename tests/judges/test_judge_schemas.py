"""Output schemas and prompt templates: which are taken, which refused, and in which words."""

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it ships no types
from pydantic import ValidationError

from gradeloop.batches.contract import CaseResult
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import DEFAULT_SCHEMA, JudgeResult, SchemaJudge, parse_judge, split_template
from gradeloop.judges.pass_rule import PassRule, with_gate
from gradeloop.judges.schema import DEPTH, PROPERTIES, SCHEMA_BYTES, for_provider, keys_of, problems_of, refuse_schema, without_nulls
from gradeloop.monitors.alerts import verdict_of
from gradeloop.monitors.contract import MonitorDefinition
from tests.rig.judging import spoiled


def holding(schema: Any, **more: Any) -> dict[str, Any]:
    """Return a schema with one property, `x`."""
    return {"type": "object", "properties": {"x": schema}} | more


def nested(depth: int) -> dict[str, Any]:
    """Return objects in objects."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = holding(schema)
    return schema


TEXT = {"type": "string"}
X = "output_schema.properties.x"

SCHEMAS: dict[str, tuple[Any, str | None]] = {
    # taken
    "Docent's default": (DEFAULT_SCHEMA, None),
    "a text": (holding(TEXT), None),
    "a text with citations": (holding({"type": "string", "citations": True}), None),
    "a text without": (holding({"type": "string", "citations": False}), None),
    "an integer": (holding({"type": "integer"}), None),
    "a number": (holding({"type": "number"}), None),
    "a boolean": (holding({"type": "boolean"}), None),
    "title and description": (holding({"type": "string", "title": "T", "description": "D"}, title="All", description="of it"), None),
    "an enum of texts": (holding({"type": "string", "enum": ["a", "b"]}), None),
    "an enum of integers": (holding({"type": "integer", "enum": [1, 2, 3]}), None),
    "an enum of zero": (holding({"type": "integer", "enum": [0]}), None),
    "an enum with an empty text": (holding({"type": "string", "enum": ["", "a"]}), None),
    "an enum of booleans": (holding({"type": "boolean", "enum": [True]}), None),
    "lengths": (holding({"type": "string", "minLength": 1, "maxLength": 10}), None),
    "one length": (holding({"type": "string", "minLength": 3, "maxLength": 3}), None),
    "a pattern": (holding({"type": "string", "pattern": "^[a-z]+$"}), None),
    "a format": (holding({"type": "string", "format": "date"}), None),
    "a range": (holding({"type": "integer", "minimum": 1, "maximum": 5}), None),
    "a range of one": (holding({"type": "integer", "minimum": 5, "maximum": 5}), None),
    "an open range": (holding({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}), None),
    "both lower bounds": (holding({"type": "number", "minimum": 1, "exclusiveMinimum": 0, "maximum": 1}), None),
    "a multiple": (holding({"type": "number", "multipleOf": 0.5}), None),
    "an array": (holding({"type": "array", "items": TEXT}), None),
    "an array with bounds": (holding({"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3}), None),
    "an array of objects": (holding({"type": "array", "items": holding(TEXT)}), None),
    "an object": (holding(holding(TEXT)), None),
    "an empty inner object": (holding({"type": "object", "properties": {}}), None),
    "what is required": (holding(TEXT, required=["x"]), None),
    "nothing required": (holding(TEXT, required=[]), None),
    "closed": (holding(TEXT, additionalProperties=False), None),
    "a property called type": ({"type": "object", "properties": {"type": TEXT}}, None),
    "as deep as it goes": (nested(DEPTH - 1), None),
    # refused: the root
    "no object at all": ([], "output_schema is a list; write an object with 'type: object' and properties"),
    "a text at the root": ({"type": "string"}, "output_schema.type is 'string'; the whole answer is an object, so write 'object'"),
    "no type at the root": ({"properties": {"x": TEXT}}, "output_schema.type is 'None'; the whole answer is an object, so write 'object'"),
    "no properties": (
        {"type": "object"},
        "output_schema.properties is missing or empty; name at least one property that the judge fills in",
    ),
    "empty properties": ({"type": "object", "properties": {}}, "output_schema.properties is missing or empty"),
    "citations at the root": (holding(TEXT, citations=True), "output_schema.citations is for a string; write it at the property"),
    "open": (holding(TEXT, additionalProperties=True), "output_schema.additionalProperties is 'true'; write false, or leave it out"),
    "open to texts": (holding(TEXT, additionalProperties=TEXT), "output_schema.additionalProperties is"),
    "an unknown keyword": (holding(TEXT, patternProperties={}), "output_schema: unknown keyword 'patternProperties'."),
    "required is a name": (holding(TEXT, required="x"), "output_schema.required is '\"x\"'; list names of properties"),
    "required names nothing": (holding(TEXT, required=["y"]), "output_schema.required names 'y', which is not a property. Known: x."),
    "required names one twice": (holding(TEXT, required=["x", "x"]), "output_schema.required names 'x' twice; name each property once"),
    "required is misspelt": (
        {"type": "object", "properties": {"label": TEXT}, "required": ["lable"]},
        "output_schema.required names 'lable', which is not a property. Did you mean 'label'? Known: label.",
    ),
    # refused: a property
    "no schema": (holding("string"), f"{X} is '\"string\"'; write an object with a type"),
    "no type": (holding({}), f"{X}.type is missing; write one of string, integer, number, boolean, array, object"),
    "an unknown type": (holding({"type": "str"}), f"{X}.type is '\"str\"'. Did you mean 'string'?"),
    "null": (holding({"type": "null"}), f"{X}.type is '\"null\"'."),
    "a list of types": (holding({"type": ["string", "null"]}), "(a list of types is refused: give one)"),
    "anyOf": (holding({"anyOf": [TEXT]}), f"{X}.anyOf is refused; give the property one type"),
    "oneOf": (holding({"oneOf": [TEXT]}), f"{X}.oneOf is refused; give the property one type"),
    "allOf": (holding({"allOf": [TEXT]}), f"{X}.allOf is refused; write what holds into the property itself"),
    "not": (holding({"type": "string", "not": TEXT}), f"{X}.not is refused; say what may be there with enum, bounds or pattern"),
    "$ref": (holding({"$ref": "#/$defs/a"}), f"{X}.$ref is refused; write the schema out where it is used"),
    "const": (holding({"const": 1}), f"{X}.const is refused; use an enum of one value"),
    "default": (holding({"type": "string", "default": "a"}), f"{X}.default is refused; leave it out: a judge always answers"),
    "an empty enum": (holding({"type": "string", "enum": []}), f"{X}.enum is '[]'; list at least one value that the judge may give"),
    "an enum of another type": (holding({"type": "integer", "enum": ["a"]}), f"{X}.enum has '\"a\"', which is not of type integer"),
    "an enum of true for a number": (holding({"type": "integer", "enum": [1, True]}), f"{X}.enum has 'true', which is not of type integer"),
    "an enum of numbers for a text": (holding({"type": "string", "enum": [0]}), f"{X}.enum has '0', which is not of type string"),
    "an enum with null": (holding({"type": "string", "enum": ["a", None]}), f"{X}.enum has 'null', which is not of type string"),
    "an enum with doubles": (holding({"type": "string", "enum": ["a", "a"]}), f"{X}.enum has '\"a\"' twice; name each value once"),
    "an enum against a bound": (
        holding({"type": "integer", "enum": [9], "maximum": 5}),
        f"{X}.enum has '9', which its other bounds refuse",
    ),
    "an enum against a length": (holding({"type": "string", "enum": ["abc"], "maxLength": 2}), f"{X}.enum has '\"abc\"', which its other"),
    "an enum of an array": (holding({"type": "array", "items": TEXT, "enum": [[]]}), f"{X}.enum is not for type 'array'; leave it out"),
    "least length above most": (holding({"type": "string", "minLength": 5, "maxLength": 2}), f"{X}.minLength 5 is above maxLength 2"),
    "a negative length": (holding({"type": "string", "minLength": -1}), f"{X}.minLength is '-1'; write a whole number from 0 on"),
    "half a length": (holding({"type": "string", "maxLength": 1.5}), f"{X}.maxLength is '1.5'; write a whole number from 0 on"),
    "min above max": (holding({"type": "integer", "minimum": 5, "maximum": 1}), f"{X}: nothing lies between 5 and 1"),
    "an empty open range": (holding({"type": "number", "exclusiveMinimum": 1, "maximum": 1}), f"{X}: nothing lies between 1 and 1"),
    "no whole number between": (holding({"type": "integer", "minimum": 1.2, "maximum": 1.8}), f"{X}: nothing lies between 1.2 and 1.8"),
    "a minimum as text": (holding({"type": "integer", "minimum": "1"}), f"{X}.minimum is '\"1\"'; write a number"),
    "a multiple of nothing": (holding({"type": "integer", "multipleOf": 0}), f"{X}.multipleOf is 0; write a number above 0"),
    "an array with min above max": (holding({"type": "array", "items": TEXT, "minItems": 3, "maxItems": 1}), f"{X}.minItems 3 is above"),
    "a bad pattern": (holding({"type": "string", "pattern": "("}), f"{X}.pattern: the pattern '(' is refused: missing ): ("),
    "a pattern that looks around": (holding({"type": "string", "pattern": "(?=a)"}), "RE2 has neither look-around nor back-references"),
    "a pattern that is a number": (holding({"type": "string", "pattern": 5}), f"{X}.pattern is '5'; write a regular expression as text"),
    "an unknown format": (holding({"type": "string", "format": "datetime"}), f"{X}.format is '\"datetime\"'. Did you mean 'date-time'?"),
    "a format that is a list": (holding({"type": "string", "format": []}), f"{X}.format is '[]'. Known: date-time"),
    "a format that is a list, of an enum": (
        holding({"type": "integer", "format": [], "enum": [1]}),
        f"{X}.format is not for type 'integer'",
    ),
    "citations on an integer": (holding({"type": "integer", "citations": True}), f"{X}.citations is not for type 'integer'; leave it out"),
    "citations on an array": (holding({"type": "array", "items": TEXT, "citations": True}), f"{X}.citations is not for type 'array'"),
    "citations that are a text": (holding({"type": "string", "citations": "yes"}), f"{X}.citations is '\"yes\"'; write true or false"),
    "a length on an integer": (holding({"type": "integer", "minLength": 1}), f"{X}.minLength is not for type 'integer'"),
    "an array of anything": (holding({"type": "array"}), f"{X}.items is missing; say what the array holds"),
    "a bad item": (holding({"type": "array", "items": {"type": "text"}}), f"{X}.items.type is '\"text\"'."),
    "an inner object of anything": (holding({"type": "object"}), f"{X}.properties is missing; name what the object holds"),
    "a bad inner property": (holding(holding({"type": "float"})), f"{X}.properties.x.type is '\"float\"'."),
    "an inner object that is open": (holding(holding(TEXT, additionalProperties={})), f"{X}.additionalProperties is '{{}}'; write false"),
    "a title that is a number": (holding({"type": "string", "title": 1}), f"{X}.title is '1'; write text"),
    "too deep": (nested(DEPTH), "is nested more than 12 deep; flatten it"),
    "too many": (
        {"type": "object", "properties": {f"p{at}": TEXT for at in range(PROPERTIES + 1)}},
        "has 201 properties in all, 200 at most",
    ),
    "too large": (
        holding({"type": "string", "description": "x" * SCHEMA_BYTES}),
        f"bytes, {SCHEMA_BYTES} at most; shorten its descriptions",
    ),
    "not a number": (holding({"type": "number", "minimum": float("nan")}), "output_schema is not JSON"),
}
"""By what it is about: a schema, and how its refusal reads."""


def test_a_schema_is_taken_or_refused_by_name(subtests: pytest.Subtests) -> None:
    for name, (schema, message) in SCHEMAS.items():
        with subtests.test(name=name):
            if message is None:
                refuse_schema(schema)
                continue

            with pytest.raises(ValueError, match=re.escape(message)):
                refuse_schema(schema)


def test_the_table_of_schemas_is_long_enough_and_its_taken_ones_are_json_schema() -> None:
    taken = [schema for schema, message in SCHEMAS.values() if message is None]

    assert len(SCHEMAS) >= 60
    assert len(taken) >= 25
    for schema in taken:
        Draft202012Validator.check_schema(schema)


def test_what_a_provider_is_given_is_closed_requires_all_and_has_no_bounds(subtests: pytest.Subtests) -> None:
    for name in [name for name, (_, message) in SCHEMAS.items() if message is None]:
        with subtests.test(name=name):
            prompt = for_provider(SCHEMAS[name][0])

            def walk(schema: dict[str, Any]) -> None:
                assert set(schema) <= {"type", "enum", "description", "properties", "required", "additionalProperties", "items", "anyOf"}
                if schema.get("type") == "object":
                    assert schema["additionalProperties"] is False
                    assert schema["required"] == list(schema["properties"])
                for inner in [
                    *schema.get("properties", {}).values(),
                    *schema.get("anyOf", []),
                    *([schema["items"]] if "items" in schema else []),
                ]:
                    if inner != {"type": "null"}:
                        walk(inner)

            walk(prompt)


def test_bounds_that_the_provider_does_not_keep_are_told_in_words_and_checked_afterwards() -> None:
    schema = holding({"type": "integer", "minimum": 1, "maximum": 5, "description": "How good."}, required=["x"])

    assert for_provider(schema)["properties"]["x"] == {"type": "integer", "description": "How good. at least 1, at most 5"}
    assert list(problems_of(schema, {"x": 9})) == ["$.x: 9 is greater than the maximum of 5"]


def test_the_null_of_an_optional_property_counts_as_left_out() -> None:
    schema = {"type": "object", "properties": {"a": TEXT, "b": TEXT, "c": holding(TEXT)}, "required": ["a"]}

    assert without_nulls(schema, {"a": None, "b": None, "c": {"x": None}}) == {"a": None, "c": {}}


FORMATS = {
    "date-time": ("2026-11-21T10:00:00Z", "2026-11-21"),
    "date": ("2026-11-21", "21.11.2026"),
    "time": ("10:00:00Z", "10 o'clock"),
    "email": ("a@example.com", "a example com"),
    "hostname": ("example.com", "-example-"),
    "ipv4": ("127.0.0.1", "127.0.0.256"),
    "ipv6": ("::1", "::g"),
    "uri": ("https://example.com/a", "no uri at all"),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000", "123e4567"),
}


def test_a_number_that_no_float_holds_is_a_multiple_or_not_and_no_error() -> None:
    schema = holding({"type": "number", "multipleOf": 0.3})

    assert list(problems_of(schema, {"x": 3 * 10**400})) == []
    assert "is not a multiple of" in "".join(problems_of(schema, {"x": 10**400}))


def test_every_format_is_really_checked(subtests: pytest.Subtests) -> None:
    for name, (good, bad) in FORMATS.items():
        with subtests.test(name=name):
            schema = holding({"type": "string", "format": name})

            assert not list(problems_of(schema, {"x": good}))
            assert list(problems_of(schema, {"x": bad}))


def test_a_pattern_ends_in_time_whatever_the_text() -> None:
    schema = holding({"type": "string", "pattern": "^(a+)+$"})

    assert list(problems_of(schema, {"x": "a" * 50_000 + "!"}))


def test_enums_and_booleans_are_voted_on_and_other_numbers_have_a_median() -> None:
    inner = {"type": "object", "properties": {"good": {"type": "boolean"}, "why": TEXT}}
    schema = {
        "type": "object",
        "properties": {"label": {"type": "string", "enum": ["a"]}, "n": {"type": "integer"}, "in": inner, "t": TEXT},
    }

    assert [(key.name, key.how) for key in keys_of(schema)] == [("label", "vote"), ("n", "median"), ("in.good", "vote")]


WHOLE = "{rubric} {agent_run} {output_schema} <response>"

TEMPLATES: dict[str, tuple[Any, str | None]] = {
    # taken
    "all places": ([("user", WHOLE)], None),
    "over several messages": ([("system", "{rubric} {output_schema}"), ("user", "{agent_run} <response>")], None),
    "a system prompt alone": ([("system", WHOLE)], None),
    "an example between": ([("user", "{rubric}"), ("assistant", "I see."), ("user", "{agent_run}{output_schema}<response>")], None),
    "a place twice": ([("user", WHOLE + "{rubric}")], None),
    "doubled braces": ([("user", WHOLE + '{{"label": "match"}}')], None),
    "doubled braces around a place": ([("user", WHOLE + "{{{rubric}}}")], None),
    "Docent's instructions": ([("user", WHOLE + "{output_format_instructions}")], None),
    "a closing tag, too": ([("user", WHOLE + "...</response>")], None),
    "percent and dollar": ([("user", WHOLE + " 100 % $rubric %(rubric)s {{% if %}}")], None),
    "other tags": ([("user", WHOLE + "<reasoning>")], None),
    "line ends": ([("user", WHOLE.replace(" ", "\n"))], None),
    "characters of all kinds": ([("user", WHOLE + " é 漢 🙂 \u202e")], None),
    # refused
    "none": ([], "prompt_templates is empty; give at least one message, or leave it out for ours"),
    "no run": ([("user", "{rubric} {output_schema} <response>")], "prompt_templates lack {agent_run}; write where it is put in"),
    "no rubric": ([("user", "{agent_run} {output_schema} <response>")], "prompt_templates lack {rubric}"),
    "no schema": ([("user", "{agent_run} {rubric} <response>")], "prompt_templates lack {output_schema}"),
    "two places missing": ([("user", "{rubric} <response>")], "prompt_templates lack {agent_run}, {output_schema}"),
    "a doubled place is none": ([("user", "{{agent_run}} {rubric} {output_schema} <response>")], "prompt_templates lack {agent_run}"),
    "no tag": ([("user", "{rubric} {agent_run} {output_schema}")], "no prompt template has the opening tag <response>"),
    "the closing tag alone": ([("user", "{rubric} {agent_run} {output_schema} </response>")], "no prompt template has the opening tag"),
    "an unknown variable": ([("user", WHOLE + "{task}")], "prompt_templates[0]: the template has an unknown variable 'task'. Known:"),
    "a misspelt variable": ([("user", WHOLE + "{rubrik}")], "unknown variable 'rubrik'. Did you mean 'rubric'?"),
    "in another case": ([("user", WHOLE + "{Rubric}")], "unknown variable 'Rubric'. Did you mean 'rubric'?"),
    "JSON that is not doubled": ([("user", WHOLE + '{"label": 1}')], "Braces that are meant as such are doubled."),
    "no name": ([("user", WHOLE + "{}")], "prompt_templates[0]: the template has a place without a name, {}"),
    "a number": ([("user", WHOLE + "{0}")], "unknown variable '0'."),
    "blanks around": ([("user", WHOLE + "{ rubric }")], "unknown variable ' rubric '. Did you mean 'rubric'?"),
    "an attribute": (
        [("user", WHOLE + "{agent_run.metadata}")],
        "the template's place 'agent_run.metadata' has an attribute; write {agent_run}",
    ),
    "a hidden attribute": ([("user", WHOLE + "{rubric.__class__.__init__}")], "has an attribute; write {rubric} alone"),
    "an index": ([("user", WHOLE + "{agent_run[0]}")], "the template's place 'agent_run[0]' has an index; write {agent_run} alone"),
    "a format": ([("user", WHOLE + "{rubric:>10}")], "the template's place 'rubric' has a format, '>10'; write {rubric} alone"),
    "a huge format": ([("user", WHOLE + "{rubric:999999999}")], "has a format, '999999999'"),
    "a place in a format": ([("user", WHOLE + "{rubric:{agent_run}}")], "has a format, '{agent_run}'"),
    "a conversion": ([("user", WHOLE + "{rubric!r}")], "the template's place 'rubric' has a conversion, '!r'; write {rubric} alone"),
    "an open brace": ([("user", WHOLE + "{")], "prompt_templates[0]: the template's braces are unbalanced"),
    "an open place": ([("user", WHOLE + "{rubric")], "the template's braces are unbalanced (expected '}' before end of string)"),
    "a closing brace": ([("user", WHOLE + "}")], "braces are unbalanced (Single '}' encountered in format string); write {{ and }}"),
    "three closing braces": ([("user", WHOLE + "{rubric}}")], "the template's braces are unbalanced"),
    "in the second message": ([("system", "x"), ("user", WHOLE + "{nope}")], "prompt_templates[1]: the template has an unknown variable"),
    "an unknown role": ([("tool", WHOLE)], "prompt_templates[0].role: Input should be 'system', 'user' or 'assistant'"),
    "an empty message": ([("user", WHOLE), ("user", "")], "prompt_templates[1].content: String should have at least 1 character"),
    "the answer begun": ([("user", WHOLE), ("assistant", "<response>")], "the last of prompt_templates is of role 'assistant'"),
    "too long": ([("user", WHOLE + "x" * 65_536)], "characters, 65536 at most; shorten them"),
}
"""By what it is about: the messages of a prompt by role and content, and how its refusal reads."""


def judge_with(templates: list[tuple[str, str]], **more: Any) -> SchemaJudge:
    """Read a judge with these templates."""
    messages = [{"role": role, "content": content} for role, content in templates]
    judge = parse_judge({"rubric_text": "r", "prompt_templates": messages} | more)
    assert isinstance(judge, SchemaJudge)
    return judge


def test_a_template_is_taken_or_refused_by_name(subtests: pytest.Subtests) -> None:
    for name, (templates, message) in TEMPLATES.items():
        with subtests.test(name=name):
            if message is None:
                judge_with(templates)
                continue

            with pytest.raises(InvalidRequest) as caught:
                judge_with(templates)

            assert message in str(caught.value)


def test_the_table_of_templates_is_long_enough() -> None:
    assert len(TEMPLATES) >= 40


def test_what_is_put_in_is_never_read_again() -> None:
    parts = split_template("{rubric}|{agent_run}|{{x}}")

    assert "".join(text for text, _ in parts) == "||{x}"


def test_a_judge_that_is_bound_by_its_schema_needs_no_tag() -> None:
    assert judge_with([("user", "{rubric} {agent_run} {output_schema}")], output_parsing_mode="CONSTRAINED_DECODING").constrained


DOCENTS = {
    "id": "0b7f3c9e-1111-4222-8333-944455556666",
    "version": 3,
    "n_rollouts_per_input": 2,
    "judge_variant": "multi-reflect",
    "rollout_type": "single_turn",
    "prompt_templates": [
        {
            "role": "user",
            "content": "<rubric>\n{rubric}\n</rubric>\n<agent_run>\n{agent_run}\n</agent_run>\nEnd with <response>...</response>. "
            "{output_format_instructions}\n{output_schema}",
        }
    ],
    "rubric_text": "Does the agent name the capital?",
    "output_schema": DEFAULT_SCHEMA,
    "judge_model": {"provider": "openai", "model_name": "gpt-5", "reasoning_effort": "medium"},
    "output_parsing_mode": "xml_key",
    "response_xml_key": "response",
    "output_format": "yaml",
}
"""A rubric with the fields that Docent 0.1.88 writes, in words of our own."""


def test_docents_rubric_json_loads_unchanged() -> None:
    judge = parse_judge(json.loads(json.dumps(DOCENTS)))

    assert isinstance(judge, SchemaJudge)
    assert (judge.id, judge.version, judge.judge_variant, judge.output_format) == (DOCENTS["id"], 3, "multi-reflect", "yaml")
    assert judge.judge_model is not None
    assert (judge.judge_model.id, judge.judge_model.config.reasoning_effort) == ("openai:gpt-5", "medium")
    assert judge.output_parsing_mode == "XML_KEY"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"provider": "google", "model_name": "gemini-3-pro"}, "google_genai:gemini-3-pro"),
        ({"provider": "anthropic", "model_name": "claude-haiku-5-5", "reasoning_effort": None}, "anthropic:claude-haiku-5-5"),
        ({"provider": "openai", "model_name": "gpt-5", "context_window": 1, "uses_byok": False}, "openai:gpt-5"),
        ({"provider": "azure_openai", "model_name": "our-deployment"}, "azure:our-deployment"),
        ({"provider": "anthropic_bedrock", "model_name": "us.anthropic.claude-haiku-5-5"}, "bedrock:us.anthropic.claude-haiku-5-5"),
        ("openai:gpt-5-mini", "openai:gpt-5-mini"),
    ],
)
def test_a_model_is_read_as_docent_or_we_write_it(model: Any, expected: str) -> None:
    judge = parse_judge({"rubric_text": "r", "judge_model": model})

    assert isinstance(judge, SchemaJudge)
    assert judge.judge_model is not None
    assert judge.judge_model.id == expected


def test_the_models_of_a_panel_take_turns() -> None:
    judge = parse_judge(
        {"rubric_text": "r", "panel": ["openai:a", {"provider": "azure_openai", "model_name": "b"}], "n_rollouts_per_input": 2}
    )

    assert isinstance(judge, SchemaJudge)
    turns = [(model.id, judge.sample_at(at)) for at in range(judge.rollout_count) if (model := judge.model_at(at))]
    assert turns == [("openai:a", 0), ("azure:b", 0), ("openai:a", 1), ("azure:b", 1)]
    assert judge.answers_needed == 3


BAD_JUDGES: dict[str, tuple[dict[str, Any], str]] = {
    "no provider's name": ({"judge_model": {"provider": "Azure OpenAI", "model_name": "x"}}, "'Azure OpenAI' is not a provider's name"),
    "no model": ({"judge_model": {"provider": "openai"}}, "model_name is missing"),
    "a model's unknown key": ({"judge_model": {"provider": "openai", "model_name": "x", "effort": 1}}, "unknown key 'effort'"),
    "an empty rubric": ({"rubric_text": "  "}, "rubric_text is empty; say what the judge decides"),
    "a long rubric": ({"rubric_text": "x" * 70_000}, "rubric_text has 70000 bytes, 65536 at most"),
    "no rollouts": ({"n_rollouts_per_input": 0}, "n_rollouts_per_input: Input should be greater than or equal to 1, got '0'"),
    "a panel beside a model": ({"panel": ["openai:a", "openai:b"], "judge_model": "openai:c"}, "judge_model and panel exclude one another"),
    "a panel of one": ({"panel": ["openai:a"]}, "panel: "),
    "a model twice in a panel": ({"panel": ["openai:a", "openai:a"]}, "panel: 'openai:a' is there twice; raise n_rollouts"),
    "a large panel": ({"panel": ["openai:a", "openai:b"], "n_rollouts_per_input": 13}, "2 models with 13 rollouts are 26, 25 at most"),
    "a quorum above the panel": ({"panel": ["openai:a", "openai:b"], "quorum": 3}, "the panel's rollouts 2; a"),
    "a quorum above the rollouts": ({"n_rollouts_per_input": 3, "quorum": 4}, "quorum is 4, and n_rollouts_per_input 3; a"),
    "too many rollouts": ({"n_rollouts_per_input": 26}, "n_rollouts_per_input: Input should be less than or equal to 25"),
    "another variant": ({"judge_variant": "best"}, "judge_variant: Input should be 'majority' or 'multi-reflect'"),
    "another mode": ({"output_parsing_mode": "json"}, "output_parsing_mode: Input should be 'XML_KEY' or 'CONSTRAINED_DECODING'"),
    "a key that is no tag": ({"response_xml_key": "my answer"}, "response_xml_key is 'my answer'; write a tag's name"),
    "a key for thoughts": ({"response_xml_key": "thinking"}, "response_xml_key is 'thinking', between whose tags models think"),
    "a misspelt field": ({"rubric_txt": "x"}, "unknown key 'rubric_txt'. Did you mean 'rubric_text'?"),
    "several turns": ({"rollout_type": "multi_turn"}, "rollout_type: Input should be 'single_turn'"),
}


def test_a_judge_that_makes_no_sense_is_refused_by_name(subtests: pytest.Subtests) -> None:
    for name, (changed, message) in BAD_JUDGES.items():
        with subtests.test(name=name):
            with pytest.raises(InvalidRequest) as caught:
                parse_judge({"rubric_text": "r"} | changed)

            assert message in str(caught.value)


def test_a_judge_of_which_a_part_is_something_else_is_read_or_refused_and_never_a_bug() -> None:
    criteria = {"rubric": {"criteria": [{"description": "x", "votes": 2}]}, "grader": {"model": "openai:gpt-5", "tools": ["a"]}}
    refused = []
    for value in [*spoiled(DOCENTS), *spoiled(criteria)]:
        try:
            parse_judge(value).sha256()
        except InvalidRequest as error:
            refused.append(str(error))

    assert len(refused) > 200
    assert [words for words in refused if not words.startswith("the judge") or "pydantic" in words] == []


def test_a_judge_asks_no_person() -> None:
    with pytest.raises(InvalidRequest, match="a person decides c1; a judge asks nobody"):
        parse_judge({"rubric": {"criteria": [{"description": "kind", "human": True}]}})


def test_whatever_decides_how_it_judges_is_in_the_sha256_of_a_judge() -> None:
    plain = {"rubric_text": "r", "judge_model": "openai:gpt-5"}
    changes: list[dict[str, Any]] = [
        {"rubric_text": "s"},
        {"output_schema": holding(TEXT)},
        {"prompt_templates": [{"role": "user", "content": WHOLE}]},
        {"judge_model": "openai:gpt-6"},
        {"judge_model": {"provider": "openai", "model_name": "gpt-5", "reasoning_effort": "low"}},
        {"output_parsing_mode": "CONSTRAINED_DECODING"},
        {"response_xml_key": "answer"},
        {"n_rollouts_per_input": 2},
        {"output_format": "yaml"},
    ]

    shas = [parse_judge(plain | change).sha256() for change in [{}, *changes]]

    assert len(set(shas)) == len(shas)
    assert parse_judge(plain | {"id": "other", "version": 7, "name": "n"}).sha256() == shas[0]
    assert parse_judge(plain | {"output_schema": DEFAULT_SCHEMA, "n_rollouts_per_input": 1, "output_format": "json"}).sha256() == shas[0]


def test_a_frozen_judge_cannot_be_changed() -> None:
    judge = judge_with([("user", WHOLE)])

    with pytest.raises(ValidationError):
        judge.rubric_text = "x"  # type: ignore[misc]  # which is what is tested


@pytest.mark.parametrize(
    ("pass_if", "why"),
    [
        ({"label": "match"}, None),
        (
            {"lable": "match"},
            "'lable' is not a key of the output_schema whose value the judge chooses. Did you mean 'label'? Known: label.",
        ),
        ({"label": "mtach"}, "pass_if.label: the output_schema does not allow 'mtach'. Known: match, no match."),
        ({"label": True}, "pass_if.label: the output_schema does not allow 'True'. Known: match, no match."),
        ({"explanation": "x"}, "'explanation' is not a key of the output_schema whose value the judge chooses"),
        ({}, "pass_if"),
    ],
)
def test_what_a_judge_passes_is_a_value_of_its_schema(pass_if: dict[str, Any], why: str | None) -> None:
    judge = {"rubric_text": "x", "pass_if": pass_if}
    if why is None:
        assert parse_judge(judge).sha256() == parse_judge({"rubric_text": "x"}).sha256()
        return

    with pytest.raises(InvalidRequest) as caught:
        parse_judge(judge)

    assert why in str(caught.value)


def test_numbers_and_keys_within_objects_pass_too() -> None:
    schema = holding(holding({"type": "integer", "enum": [1, 2]}) | {"type": "object"}, required=["x"])
    judge = parse_judge({"rubric_text": "x", "output_schema": schema, "pass_if": {"x.x": 2}})
    fields = {"id": "j", "agent_run_id": "a", "rubric_id": "r", "rubric_version": 1, "result_type": "DIRECT_RESULT"}
    rule = PassRule(judge, ())
    results = [JudgeResult.model_validate(fields | {"output": {"x": {"x": value}}}) for value in (1, 2)]

    assert [rule.passed(result) for result in results] == [False, True]
    assert [with_gate(result, rule.gate()).passed for result in results] == [False, True]
    assert PassRule(judge, ("x.x=1",)).passed(results[0])


def test_a_monitor_takes_a_schema_judge_that_says_what_passes() -> None:
    judge = {"rubric_text": "x", "judge_model": "scripted:judge"}
    about = {"name": "m", "source": {"kind": "folder", "path": "/runs"}}
    fields = {"id": "j", "agent_run_id": "a", "rubric_id": "r", "rubric_version": 1, "result_type": "DIRECT_RESULT"}
    said = JudgeResult.model_validate(fields | {"output": {"label": "match"}})
    result = CaseResult(id="j", index=0, status="ungraded", judgement=said)
    found = MonitorDefinition.model_validate(about | {"judge": judge | {"pass_if": {"label": "match"}}})

    assert verdict_of(found.judge, found.passes, "ungraded", result.model_dump_json()) == "passed"
    with pytest.raises(ValidationError, match="say what passes with --pass KEY=VALUE, or pass_if in its file"):
        MonitorDefinition.model_validate(about | {"judge": judge})
