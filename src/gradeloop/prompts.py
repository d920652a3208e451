"""Prompts, assembled from texts in `prompts/` and from data; fences and nonces are arguments, so equal input gives equal bytes."""

from collections.abc import Mapping, Sequence
from importlib.resources import files

from gradeloop.evaluation import CheckOutcome
from gradeloop.records import TRANSCRIPT_BUDGET, elided, is_elided, line, record_starts, stretches
from gradeloop.rubric import Rubric
from gradeloop.transcript import Message

VERSION = "2"
"""Named in what depends on the wording; raised with every change of a text in `prompts/`."""


def prompt(name: str) -> str:
    """Return the text of `prompts/<name>.md`."""
    return (files("gradeloop") / "prompts" / f"{name}.md").read_text(encoding="utf-8").strip()


_TEXTS = {
    name: prompt(name)
    for name in (
        "grading",
        "boundary",
        "output",
        "bare",
        "tagged",
        "question",
        "question_tag",
        "repair",
        "missing",
        "last_turn",
        "last_draft",
        "shown_rubric",
    )
}


def grader_system(rubric: Rubric, instructions: str | None, *, tagged: bool = False) -> str:
    """Return the grader's system prompt: equal for all runs of one rubric, the trust boundary always in it.

    Args:
        rubric: What to judge by.
        instructions: The user's own grading instructions, which stand instead of ours.
        tagged: Whether the answer stands between tags, for a model whose API keeps no schema.
    """
    policy = instructions or _TEXTS["grading"]
    form = _TEXTS["output"].format(form=_TEXTS["tagged" if tagged else "bare"])
    return "\n\n".join([policy, _TEXTS["boundary"], form, "# Rubric", _rubric_text(rubric)])


def generator_system(system_prompt: str | None, shown: Rubric | None) -> str:
    """Return the generator's system prompt, with the rubric where it may see it."""
    parts = [system_prompt or ""]
    if shown is not None and shown.criteria:
        parts.append(f"{_TEXTS['shown_rubric']}\n\n{_rubric_text(shown)}")
    return "\n\n".join(part for part in parts if part)


def _rubric_text(rubric: Rubric) -> str:
    lines: list[str] = []
    for position, criterion in enumerate(rubric.criteria):
        lines += [line.text for line in rubric.context if line.before == position]
        optional = "" if criterion.id in rubric.gating else " (optional)"
        decided = " (decided by a tool)" if criterion.check else ""
        lines.append(f"- [{criterion.id}]{optional}{decided} {criterion.description}")
    return "\n".join([*lines, *(line.text for line in rubric.context if line.before >= len(rubric.criteria))])


def grader_question(  # noqa: PLR0913 - one argument a fact of the pass
    messages: Sequence[Message],
    *,
    request: int,
    draft: int,
    asked: Sequence[str],
    checks: Mapping[str, CheckOutcome],
    nonce: str,
    tag: str | None = None,
    budget: int = TRANSCRIPT_BUDGET,
) -> tuple[tuple[Message, ...], Message]:
    """Return what is judged, fenced, in stretches that each end with an answer, and the question after it.

    From one iteration to the next a stretch is added and none is changed, until the records exceed `budget` characters.

    Args:
        messages: The thread, up to and including the draft.
        request: Index of the user's current message.
        draft: Index of the message to be judged.
        asked: Ids of the criteria to judge.
        checks: What tools have decided already.
        nonce: The run's random code, which marks the fence.
        tag: The name of the tags between which the verdict is to stand, for a model whose API keeps no schema.
        budget: Characters of text shown in all.
    """
    decided = [
        line({"check": about, "passed": outcome.passed, "text": elided(outcome.gap or "", 4000)}, nonce)
        for about, outcome in checks.items()
    ]
    closed = "\n".join([*decided, f"=== end of records {nonce} ==="])
    starts = record_starts(messages)
    asking = _TEXTS["question"].format(
        request=starts[request],
        draft=starts[draft],
        checks=" The lines after the last record tell what tools have decided; do not judge those criteria again." if checks else "",
        read=" Long records are cut in the middle; the tool read_transcript shows any record whole." if is_elided(messages, budget) else "",
        ids=", ".join(asked),
        tag=f" {_TEXTS['question_tag'].format(tag=tag)}" if tag else "",
    )
    judged = tuple(Message(role="user", content=stretch) for stretch in stretches(messages, nonce, budget))
    return judged, Message(role="user", content=f"{closed}\n\n{asking}")


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
