"""A model's fallbacks on the wire: what is refused, and what changes no hash of what has none."""

import hashlib
import re
from typing import Any

import pytest
from pydantic import ValidationError

from gradeloop.contract.model_spec import ModelSpec
from gradeloop.contract.rubric import Rubric
from gradeloop.grading.answer_form import FULL
from gradeloop.grading.cache_key import reuse_key
from gradeloop.grading.scoring import call_groups


def test_what_makes_no_list_of_fallbacks_is_refused_with_its_cure(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"fallback": "scripted:b"}, "is not a list; write fallback: [model, ...]"),
        ({"fallback": [{"id": "scripted:b", "fallback": ["scripted:c"]}]}, "a fallback has no fallback of its own; list all models"),
        ({"fallback": ["scripted:a"]}, "'scripted:a' is asked twice with the same config"),
        ({"fallback": ["scripted:b", "scripted:b"]}, "'scripted:b' is asked twice with the same config"),
        ({"fallback": ["b"]}, "names no model"),
        ({"fallback": ["scripted:b"] * 9}, "at most 8"),
        ({"fallback_after": 5}, "fallback_after is for a model with a fallback"),
        ({"on_refusal": True}, "on_refusal is for a model with a fallback"),
        ({"fallback": ["scripted:b"], "fallback_after": -1}, "greater than or equal to 0"),
    ]
    for fields, why in rows:
        with subtests.test(fields=fields), pytest.raises(ValidationError, match=r"(?s).*" + re.escape(why)):
            ModelSpec.model_validate({"id": "scripted:a"} | fields)


def test_each_fallback_has_settings_of_its_own() -> None:
    model = ModelSpec.model_validate(
        {"id": "scripted:a", "config": {"seed": 1}, "fallback": ["scripted:b", {"id": "scripted:a", "config": {"seed": 2}}]}
    )

    assert [(asked.id, asked.config.seed, asked.fallback) for asked in model.chain] == [
        ("scripted:a", 1, ()),
        ("scripted:b", None, ()),
        ("scripted:a", 2, ()),
    ]
    assert ModelSpec.model_validate_json(model.model_dump_json()) == model


def test_a_model_without_fallbacks_has_no_word_of_them() -> None:
    assert set(ModelSpec(id="scripted:a").model_dump(mode="json")) == {"id", "config"}


def test_a_verdict_is_kept_under_the_model_alone_while_the_rubric_has_its_own_sha256() -> None:
    plain, listed = (
        Rubric.model_validate({"criteria": [{"description": "good", "grader": grader}]})
        for grader in ("scripted:a", {"id": "scripted:a", "fallback": [{"id": "scripted:b", "config": {"seed": 2}}]})
    )

    def key(rubric: Rubric, judge: str | dict[str, Any]) -> str:
        nothing = hashlib.sha256(b"").hexdigest()
        spec = ModelSpec.model_validate(judge)
        rest: dict[str, Any] = {"instructions": None, "tools": "", "records": nothing, "request": 0, "checks": {}, "form": FULL}
        return reuse_key(rubric, call_groups(plain)[0], sample=0, judge=spec, **rest)

    assert key(plain, "scripted:a") == key(plain, {"id": "scripted:a", "fallback": ["scripted:b"]})
    assert key(plain, "scripted:a") != key(plain, "scripted:b")
    assert plain.sha256() != listed.sha256()
    assert '"temperature"' not in listed.canonical()
