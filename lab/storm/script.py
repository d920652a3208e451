"""What the models say: functions of the conversation alone, so that anybody can compute what is right."""

import json
import re
from collections.abc import Sequence
from typing import Any

_TURN = re.compile(r"^turn (\d+) of (\S+)$", re.MULTILINE)
_DRAFT = re.compile(r"draft \d+ of (\S+): revision (\d+) for turn (\d+)")
_LEVEL = re.compile(r"revision (\d+) or later")
_RECORD = re.compile(r"The draft to be judged is record (\d+)")

Spoken = tuple[str, str]
"""The role and the content of a message."""


def turn_message(thread: str, turn: int) -> str:
    """Return what the caller says in a turn."""
    return f"turn {turn} of {thread}"


def turn_number(content: str) -> int | None:
    """Return the turn that a message begins; None for any other message."""
    found = _TURN.fullmatch(content)
    return int(found.group(1)) if found else None


def draft_after(messages: Sequence[Spoken]) -> str:
    """Return the generator's answer to a conversation: it names the thread, the turn, and which of the turn's drafts it is.

    Neighbouring messages of the user's may be merged to one, of which the last turn counts.
    """
    start, turn = next((at, found[-1]) for at in range(len(messages) - 1, -1, -1) if (found := [*_TURN.finditer(messages[at][1])]))
    number = sum(role == "assistant" for role, _ in messages)
    revision = sum(role == "assistant" for role, _ in messages[start:]) + 1
    return f"draft {number} of {turn.group(2)}: revision {revision} for turn {turn.group(1)}"


def draft_turn(draft: str) -> int:
    """Return the turn that a draft is for."""
    found = _DRAFT.fullmatch(draft)
    return int(found.group(3)) if found else -1


def rubric_text(level: int, serial: int) -> str:
    """Return a rubric of one criterion, which the drafts of a turn meet from the revision `level` on."""
    return f"- it is revision {level} or later, asks rubric {serial}"


def is_met(rubric: str, draft: str) -> bool:
    """Return whether a draft meets a rubric's text.

    Raises:
        ValueError: One of them is not of this script.
    """
    level, revision = _LEVEL.search(rubric), _DRAFT.fullmatch(draft)
    if level is None or revision is None:
        raise ValueError(f"not of this script: {rubric!r}, {draft!r}")
    return int(revision.group(2)) >= int(level.group(1))


def verdict_on(prompt: str) -> dict[str, Any]:
    """Return the grader's answer to a prompt, on the record that the prompt names.

    Raises:
        ValueError: The prompt names a record that it does not show.
    """
    named = _RECORD.findall(prompt)
    lines = [line for line in prompt.splitlines() if named and line.startswith(f'{{"record": {named[-1]},')]
    if len(lines) != 1:
        raise ValueError(f"the prompt names record {named}, and shows {len(lines)} of them")
    passed = is_met(prompt, json.loads(lines[0])["text"])
    row = {"reason": "counted", "passed": passed, "gap": "" if passed else "an earlier one"}
    return {"k1": row, "unjudgeable": "", "summary": "counted"}
