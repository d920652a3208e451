"""What a grader is given: who it is, what is trusted, what to judge, by what, and in which form to answer."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradeloop.call_groups import CallGroup
from gradeloop.errors import InvalidRequest
from gradeloop.evaluation import CheckOutcome
from gradeloop.own_prompt import OwnPrompt, Place, reached
from gradeloop.prompts import prompt, rubric_text
from gradeloop.records import TRANSCRIPT_BUDGET, elided, is_elided, line, record_starts, records, stretches
from gradeloop.rubric import Rubric
from gradeloop.transcript import Message

_TEXTS = {
    name: prompt(name)
    for name in (
        "grading",
        "boundary",
        "output",
        "output_score",
        "output_quotes",
        "output_pass_score",
        "language",
        "bare",
        "tagged",
        "question",
        "question_tag",
    )
}

_TRUSTED = {
    "alone": "this text, the rubric below it, and the question at the very end",
    "question": "this text, and the question at the very end with its rubric",
    "own": "this text, and what stands outside of such records in the messages below",
}


@dataclass(frozen=True)
class Judged:
    """What is to be judged, as data: the thread up to the draft, and what was found out about it."""

    messages: Sequence[Message]
    """The thread, up to and including the draft."""
    request: int
    """Index of the user's current message."""
    draft: int
    """Index of the message to be judged."""
    checks: Mapping[str, CheckOutcome]
    """What tools have decided already."""
    nonce: str
    """The run's random code, which marks the fence."""


@dataclass(frozen=True)
class GraderPrompt:
    """A system prompt, equal for all runs of one rubric, and the messages after it."""

    system: str
    messages: tuple[Message, ...]
    shared: int | None
    """Index of the last message up to which the prompt is the beginning of later ones."""


def grader_prompt(
    rubric: Rubric,
    group: CallGroup,
    judged: Judged,
    *,
    instructions: str | None = None,
    tag: str | None = None,
    budget: int = TRANSCRIPT_BUDGET,
) -> GraderPrompt:
    """Return what one call group's grader is given.

    From one iteration to the next a stretch of records is added and none is changed, until they exceed `budget` characters.

    Args:
        rubric: What to judge by.
        group: Which of its criteria, and in what form to answer.
        judged: What to judge.
        instructions: The user's own grading instructions, which stand instead of ours; never of the trust boundary.
        tag: The name of the tags between which the answer is to stand, for a model whose API keeps no schema.
        budget: Characters of text shown in all.

    Raises:
        InvalidRequest: A prompt of the author's own reaches into what is not there.
    """
    if group.prompt is not None:
        return _own(rubric, group, group.prompt, judged, tag, budget)
    trusted = _TRUSTED["alone" if group.alone else "question"]
    system = _system(rubric, group, instructions or _TEXTS["grading"], trusted, tagged=tag is not None)
    asked = _question(group, judged, tag, budget)
    if group.alone:
        system += f"\n\n# Rubric\n\n{rubric_text(rubric)}"
    else:
        asked = f"# Rubric\n\n{rubric_text(rubric, group.criteria)}\n\n{asked}"
    shown = tuple(Message(role="user", content=stretch) for stretch in stretches(judged.messages, judged.nonce, budget))
    closed = "\n".join([*_decided(judged), f"=== end of records {judged.nonce} ==="])
    return GraderPrompt(system, (*shown, Message(role="user", content=f"{closed}\n\n{asked}")), len(shown) - 1)


def _system(rubric: Rubric, group: CallGroup, policy: str, trusted: str, *, tagged: bool) -> str:
    form = _TEXTS["tagged" if tagged else "bare"]
    parts = [policy, *([rubric.instructions] if rubric.instructions else ()), _TEXTS["boundary"].format(trusted=trusted)]
    parts.append(_TEXTS["output_pass_score"].format(form=form) if group.pass_score else _row_form(group, form))
    parts += [_TEXTS["language"].format(language=rubric.phrases.name)] if rubric.language else []
    return "\n\n".join(part for part in parts if part)


def _row_form(group: CallGroup, form: str) -> str:
    row = ['"id": "..."', *(['"quotes": [{"record": 3, "quote": "..."}]'] if group.quoted else ()), '"reason": "..."']
    row += [*(['"score": a number or null'] if group.scored else ()), '"passed": true or false', '"gap": "..." or null']
    more = [*([_TEXTS["output_score"]] if group.scored else ()), *([_TEXTS["output_quotes"]] if group.quoted else ())]
    return _TEXTS["output"].format(form=form, row=", ".join(row), more="".join(f"\n{each}" for each in more))


def _question(group: CallGroup, judged: Judged, tag: str | None, budget: int) -> str:
    starts = record_starts(judged.messages)
    elsewhere = is_elided(judged.messages, budget)
    return _TEXTS["question"].format(
        request=starts[judged.request],
        draft=starts[judged.draft],
        checks=" The lines after the last record tell what tools have decided; do not judge those criteria again." if judged.checks else "",
        read=" Long records are cut in the middle; the tool read_transcript shows any record whole." if elsewhere else "",
        ids=", ".join(group.ids),
        tag=f" {_TEXTS['question_tag'].format(tag=tag)}" if tag else "",
    )


def _decided(judged: Judged) -> list[str]:
    return [
        line({"check": about, "passed": outcome.passed, "text": elided(outcome.gap or "", 4000)}, judged.nonce)
        for about, outcome in judged.checks.items()
    ]


def _own(rubric: Rubric, group: CallGroup, own: OwnPrompt, judged: Judged, tag: str | None, budget: int) -> GraderPrompt:
    """Return a prompt of the author's own, with what is judged in its places, fenced."""
    policy = "\n\n".join(str(part) for message in own.messages if message.role == "system" for part in message.parts)
    system = _system(rubric, group, policy, _TRUSTED["own"], tagged=tag is not None)
    said = [message for message in own.messages if message.role != "system"]
    texts = ["".join(_put(part, rubric, group, judged, budget) for part in message.parts) for message in said]
    told = [Message(role="user" if each.role == "user" else "assistant", content=text) for each, text in zip(said, texts, strict=True)]
    return GraderPrompt(system, (*told, Message(role="user", content=_question(group, judged, tag, budget))), None)


def _put(part: str | Place, rubric: Rubric, group: CallGroup, judged: Judged, budget: int) -> str:
    """Return a part of a prompt as it is sent: its text, or what belongs in its place, which is never rendered."""
    if isinstance(part, str):
        return part
    if part.of == "rubric":
        if part.path:
            return _told(reached(group.criteria[0].description, part))
        return _fenced("rubric", rubric_text(rubric, group.criteria).splitlines(), judged.nonce)
    if part.of == "transcript":
        return _fenced("records", _transcript(judged, budget), judged.nonce)
    return _fenced("records", _draft(part, judged, budget), judged.nonce)


def _transcript(judged: Judged, budget: int) -> Iterator[str]:
    shown = "\n".join(stretches(judged.messages, judged.nonce, budget)).splitlines()
    yield from shown[1:]
    yield from _decided(judged)


def _draft(place: Place, judged: Judged, budget: int) -> Iterator[str]:
    number = record_starts(judged.messages)[judged.draft]
    block = records(judged.messages)[number]
    if place.path:
        try:
            parsed = json.loads(judged.messages[judged.draft].content)
        except ValueError:
            raise InvalidRequest(f"prompt: {place.written} reaches into the draft, which is no JSON; ask the generator for JSON") from None
        block |= {"part": ".".join(place.path), "text": _told(reached(parsed, place))}
    yield line(block | {"text": elided(str(block["text"]), budget)}, judged.nonce)
    yield from _decided(judged)


def _told(value: Any) -> str:  # noqa: ANN401 - JSON of any shape
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _fenced(what: str, lines: Sequence[str] | Iterator[str], nonce: str) -> str:
    """Return lines between a fence's lines, which stand alone whatever the author wrote beside the place."""
    return "\n".join(["", f"=== {what} {nonce} ===", *lines, f"=== end of {what} {nonce} ===", ""])
