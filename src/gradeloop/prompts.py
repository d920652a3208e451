"""Prompts, assembled from texts in `prompts/` and from data; fences and nonces are arguments, so equal input gives equal bytes."""

import hashlib
import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from importlib.resources import files

from gradeloop.criterion import Criterion
from gradeloop.records import visible
from gradeloop.rubric import Rubric
from gradeloop.transcript import Message

VERSION = "3"
"""Named in what depends on the wording; raised with every change of a text in `prompts/`."""


def prompt(name: str) -> str:
    """Return the text of `prompts/<name>.md`."""
    return (files("gradeloop") / "prompts" / f"{name}.md").read_text(encoding="utf-8").strip()


_TEXTS = {name: prompt(name) for name in ("repair", "missing", "last_turn", "last_draft", "shown_rubric")}


def sent_sha256(system: str, messages: Sequence[Message], *secret: str | None) -> str:
    """Return the sha256 of what a model is sent, with the random codes in it masked, so that it is the same each time."""
    said = json.dumps([system, *((each.role, each.content) for each in messages)])
    for code in filter(None, secret):
        said = said.replace(code, "·")
    return hashlib.sha256(said.encode()).hexdigest()


def rubric_text(rubric: Rubric, shown: Sequence[Criterion] | None = None) -> str:
    """Return criteria as lines that cannot be mistaken for one another, with the headings that they stand under.

    Args:
        rubric: What they are part of.
        shown: Which of them; all by default.
    """
    pressing = rubric.pressing
    wanted = None if shown is None else {criterion.id for criterion in shown}
    lines: list[str] = []
    told = 0
    for position, criterion in enumerate(rubric.criteria):
        headings = [visible(line.text) for line in rubric.context if line.before <= position][told:]
        if wanted is None or criterion.id in wanted:
            lines += [*(headings if shown is None else headings[-1:]), _criterion_line(criterion, pressing)]
            told += len(headings)
    rest = [visible(line.text) for line in rubric.context][told:] if shown is None else []
    return "\n".join([*lines, *rest])


def _criterion_line(criterion: Criterion, pressing: AbstractSet[str]) -> str:
    text = visible(criterion.text)
    marks = [] if criterion.id in pressing else ["optional"]
    marks += ["decided by a tool"] if criterion.check else ["decided by a person"] if criterion.human else []
    marks += [f"score {criterion.score.min:g} to {criterion.score.max:g}"] if criterion.score else []
    marks += ["with quotes"] if criterion.quoted else []
    told = "".join(f" ({mark})" for mark in marks)
    return f"- [{criterion.id}]{told} {json.dumps(text, ensure_ascii=False) if len(text.splitlines()) > 1 else text}"


def generator_system(system_prompt: str | None, shown: Rubric | None) -> str:
    """Return the generator's system prompt, with the rubric where it may see it."""
    parts = [system_prompt or ""]
    if shown is not None and shown.criteria:
        parts.append(f"{_TEXTS['shown_rubric']}\n\n{rubric_text(shown)}")
    return "\n\n".join(part for part in parts if part)


def repair(problems: Sequence[str], asked: Sequence[str]) -> Message:
    """Return the request for a well-formed verdict."""
    return Message(role="user", content=_TEXTS["repair"].format(problems="; ".join(problems), ids=", ".join(asked)))


def missing(asked: Sequence[str]) -> Message:
    """Return the request for the rows that were left out."""
    return Message(role="user", content=_TEXTS["missing"].format(ids=", ".join(asked)))


def last_turn() -> Message:
    """Return what a grader is told when its tool calls or turns are used up."""
    return Message(role="user", content=_TEXTS["last_turn"])


def last_draft() -> Message:
    """Return what a generator is told when its tool calls or turns are used up."""
    return Message(role="user", content=_TEXTS["last_draft"])
