"""What the mock judge says: a verdict in whatever form is asked for, decided by words in square brackets in what it is shown.

- `[draft]`, where no form is asked for, is answered with `Draft 0. ...`, and with the next number after each answer in the conversation.
- `[fail]` fails; `[score 0.4]` passes with that score; `[fail 0.4]` fails with it; nothing of the kind passes with 1.
- `[needs WORD]` passes where WORD stands elsewhere in the messages, which is how a criterion tells one output from another.
- `[judged by MODEL]` passes where that model is asked, which is how a suite tells which of its graders was meant.
- `[empty]`, `[no pass]`, `[no score]`, `[low no pass]`, `[brace]`, `[object first]` and `[prose]` answer with what a model should not.
- `[category B]` is that category, where a prompt asks for one, and `Option B. [best]` the best of several.
- `[cosine 0.8]` is the cosine between the embedding of a text and that of any without such words.
- `[500]` fails with that status, always; `[500 once NAME]` and `[prose once NAME]` do so the first time that they are seen.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]

_NEEDS = re.compile(r"\[needs ([^\]]+)\]")
_JUDGED_BY = re.compile(r"\[judged by ([^\]]+)\]")
_NUMBER = re.compile(r"\[(score|fail) ([0-9.]+)\]")
_ONCE = re.compile(r"\[(500|prose) once [^\]]+\]")
_IDS = re.compile(r"criteria of the rubric: (.+?)\.(?:\s|$)")
_KEY = re.compile(r"k[0-9]+")

REASON = "Told by the words in brackets."
DRAFT = "Draft {at}. Queues drain before a worker leaves, and each entry says who is affected."
PROSE = "All in all I would say that this is good work."

UNFIT: Mapping[str, str] = {
    "[empty]": "{}",
    "[no pass]": json.dumps({"reason": REASON, "score": 0}),
    "[low no pass]": json.dumps({"reason": REASON, "score": 0.2}),
    "[no score]": json.dumps({"reason": REASON, "pass": True}),
    "[brace]": json.dumps({"pass": False, "reason": "the code uses { brace", "score": 0}),
    "[object first]": 'The call has {"pass": true} in it.\n' + json.dumps({"reason": REASON, "pass": False, "score": 0}),
    "[null pass]": json.dumps({"reason": REASON, "pass": None, "score": 0}),
    "[word pass]": json.dumps({"reason": REASON, "pass": "false", "score": 0}),
    "[beyond]": json.dumps({"reason": REASON, "pass": True, "score": 2}),
    "[prose]": PROSE,
}
"""Answers that are not what was asked for, whatever that was, by the words that call for them."""


@dataclass(frozen=True)
class Asked:
    """What a judge is shown."""

    model: str
    """Who is asked."""
    system: str
    said: str
    """All messages that are not the system's."""
    schema: JsonObject
    """Of the answer; empty where none is asked for."""
    answered: int = 0
    """Answers of the model in the conversation so far."""


@dataclass(frozen=True)
class Word:
    """What it decides."""

    passed: bool
    score: float


def decided(asked: Asked) -> Word:
    """Return the verdict that the words call for."""
    text = asked.system + asked.said
    if number := _NUMBER.search(text):
        return Word(number[1] == "score", float(number[2]))
    seen = _NEEDS.sub("", asked.said)
    met = "[fail]" not in text and all(word in seen for word in _NEEDS.findall(text))
    met = met and all(model == asked.model for model in _JUDGED_BY.findall(text))
    return Word(met, float(met))


def answer(asked: Asked, told: set[str]) -> str | None:
    """Return the judge's words; None is a failure of the server.

    Args:
        asked: What it is shown.
        told: The words that work once and have been seen; grows.
    """
    text = asked.system + asked.said
    once = _ONCE.search(text)
    if once and once[0] not in told:
        told.add(once[0])
        return None if once[1] == "500" else PROSE
    if "[500]" in text:
        return None
    if "[draft]" in text and not asked.schema:
        return DRAFT.format(at=asked.answered)
    unfit = next((reply for word, reply in UNFIT.items() if word in text), None)
    if unfit is None and not asked.schema:
        unfit = next((say(asked, decided(asked)) for pattern, say in _PROMPTFOO.items() if re.search(pattern, text, re.DOTALL)), None)
    return unfit if unfit is not None else _FORMS[_form(asked.schema)](asked, decided(asked))


def _form(schema: JsonObject) -> str:
    keys = schema.get("properties", {})
    if any(map(_KEY.fullmatch, keys)):
        return "keyed"
    row = keys.get("criteria", {}).get("items", {})
    if "$ref" in row:
        row = schema.get("$defs", {}).get(row["$ref"].rpartition("/")[2], {})
    if "category" in keys:
        return "category"
    return next((key for key in ("satisfied", "passed") if key in row.get("properties", {})), "label" if "label" in keys else "pass")


def _pass_score(_: Asked, word: Word) -> str:
    return json.dumps({"reason": REASON, "pass": word.passed, "score": word.score})


def _keyed(asked: Asked, word: Word) -> str:
    """Answer as gradeloop asks, with a row under each key of the schema."""
    row = {"reason": REASON, "passed": word.passed, "gap": "" if word.passed else REASON}
    rows = {key: row for key in asked.schema["properties"] if _KEY.fullmatch(key)}
    return json.dumps(rows | {"unjudgeable": "", "summary": REASON})


def _rows(asked: Asked, word: Word) -> str:
    """Answer as the program by hand asks, for every criterion that the question names."""
    named = _IDS.findall(asked.said) or ["c1"]
    bare = {"reason": REASON, "passed": word.passed, "gap": None if word.passed else REASON}
    rows = [{"id": part.strip()} | bare for part in named[-1].split(",")]
    return json.dumps({"criteria": rows, "explanation": REASON})


def _satisfied(_: Asked, word: Word) -> str:
    """Answer as Mastra's rubric scorer asks, which takes any list of rows for the whole rubric."""
    row = {"criterion": "It says which run it is.", "satisfied": word.passed, "required": True, "reasoning": REASON}
    return json.dumps({"criteria": [row], "overallAssessment": REASON})


def _label(_: Asked, word: Word) -> str:
    """Answer as a judge of finished runs is asked whose rubric has no schema of its own."""
    return json.dumps({"label": "match" if word.passed else "no match", "explanation": REASON})


_OPTION = re.compile(r"Option (\w)\.( \[best\])?")


def _best(asked: Asked) -> int:
    """Return the place of the best option, from 0."""
    return next((at for at, option in enumerate(_OPTION.finditer(asked.system + asked.said)) if option[2]), 0)


def _choice(asked: Asked) -> str:
    return json.dumps({"best": str(_best(asked) + 1), "explanation": REASON})


def _shares(word: Word, met: str, missed: str) -> list[str]:
    """Return a line for each of ten parts, as many of them met as the score says."""
    return [met if at < round(10 * word.score) else missed for at in range(10)]


def _relevant(asked: Asked, word: Word) -> str:
    context = asked.said.rpartition("context: ")[2].partition("candidate sentences:")[0]
    found = re.findall(r"[^.]+\.(?:\d+\][^.]*\.)?", context)[: round(10 * word.score)]
    return " ".join(part.strip() for part in found) or "Insufficient Information"


def _category(asked: Asked, word: Word) -> str:
    named = re.search(r"\[category ([A-E])\]", asked.said)
    return json.dumps({"category": named[1] if named else "C" if word.passed else "D", "reason": REASON})


_PROMPTFOO: Mapping[str, Callable[[Asked, Word], str]] = {
    r"(?i)factuality evaluator|\{\"category\":": _category,
    r"You are assessing a submitted answer": lambda _, word: f"So.\n{'Y' if word.passed else 'N'}",
    r"concise evaluation steps": lambda asked, _: json.dumps({"steps": ["Read it.", *re.findall(r"\[[a-z]+ [^\]]+\]", asked.said)]}),
    r"rate the Reply on one metric": lambda _, word: json.dumps({"score": round(10 * word.score), "reason": REASON}),
    r"Generate question for the given answer": lambda asked, _: " ".join(["Why?", *re.findall(r"\[cosine [^\]]+\]", asked.said)]),
    r"Given a context, and an answer, analyze": lambda _, word: "\n".join(_shares(word, "It. [Attributed]", "It. [Not Attributed]")),
    r"extract relevant sentences": _relevant,
    r"create one or more statements": lambda *_: "\n".join(f"Statement {at}." for at in range(10)),
    r"Natural language inference": lambda _, word: "Final verdict for each statement in order: " + " ".join(_shares(word, "Yes.", "No.")),
    r"verdict' and 'reason'": lambda _, word: json.dumps({"verdict": "yes" if word.passed else "no", "reason": REASON}),
    r"It keeps this JSON Schema.*\"best\"": lambda asked, _: f"<response>{_choice(asked)}</response>",
    r"comparing multiple pieces of text": lambda asked, _: str(_best(asked)),
}
"""What is asked for in words, by promptfoo's own judges and for a choice by ours: by some words of their prompts."""

_COSINE = re.compile(r"\[cosine ([0-9.]+)\]")


def embedding(text: str) -> list[float]:
    """Return the embedding of a text: of two numbers, so that its cosine with any other is the one in its words."""
    cosine = float(found[1]) if (found := _COSINE.search(text)) else 1.0
    return [cosine, math.sqrt(1 - cosine**2)]


_FORMS: Mapping[str, Callable[[Asked, Word], str]] = {
    "category": _category,
    "keyed": _keyed,
    "label": _label,
    "pass": _pass_score,
    "passed": _rows,
    "satisfied": _satisfied,
}
