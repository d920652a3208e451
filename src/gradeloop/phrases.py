"""What the code itself says in a verdict or in feedback, in the language of the rubric."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from pydantic import Field

from gradeloop.strict import Sparse, Strict

Sentence = Field(min_length=1, max_length=1000)


class Phrases(Strict):
    """One language's sentences; those with fields name them in braces."""

    name: str
    """The language, in English: the grader is told to answer in it."""
    opening: str = Sentence
    failing: str = Sentence
    unverified: str = Sentence
    suggested: str = Sentence
    passing: str = Sentence
    closing: str = Sentence
    no_verdict: str = Sentence
    check_passed: str = Sentence
    check_failed: str = Sentence
    check_false: str = Sentence
    checks: str = Sentence
    counted: str = Sentence
    not_passed: str = Sentence
    not_verified: str = Sentence
    unquoted: str = Sentence
    not_asked: str = Sentence
    decided: str = Sentence


class Feedback(Strict):
    """Sentences of the author's own in what the generator is told."""

    opening: Sparse[str | None] = None
    failing: Sparse[str | None] = None
    unverified: Sparse[str | None] = None
    suggested: Sparse[str | None] = None
    passing: Sparse[str | None] = None
    closing: Sparse[str | None] = None


@cache
def _shipped() -> dict[str, Phrases]:
    text = (files("gradeloop") / "prompts" / "phrases.toml").read_text(encoding="utf-8")
    return {code: Phrases.model_validate(told) for code, told in tomllib.loads(text).items()}


def languages() -> tuple[str, ...]:
    """Return the codes of the languages that are shipped."""
    return tuple(_shipped())


def phrases(language: str | None, own: Mapping[str, str] | None = None) -> Phrases:
    """Return a language's sentences, with the author's own in their places."""
    return _shipped()[language or "en"].model_copy(update=dict(own or {}))
