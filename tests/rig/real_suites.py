"""Suites and tasks that a real small model grades."""

import json
from typing import Any

from rig.real_model import NAME, Call, Tap
from tests.rig.cli import CommandLine, Done

RUBRIC = {"criteria": [{"id": "price", "description": "It names a price in euros."}]}

THREE = [
    *RUBRIC["criteria"],
    {"id": "day", "description": "It names a day of the week."},
    {"id": "thanks", "description": "It thanks the guest."},
]


def outputs(count: int) -> list[str]:
    """Return short replies of a hotel's desk, no two of which are equal."""
    said = ("Dogs are welcome.", "A dog costs {price} euros a night.", "Thank you for your message.", "The garden is closed on Sunday.")
    return [
        " ".join(said[at % 4 : at % 4 + 2] or said[:1]).format(price=10 + at) + f" Your room is number {at + 1}." for at in range(count)
    ]


def let_call(gradeloop: CommandLine, tap: Tap) -> None:
    """Have the workers of a command ask the model what it is, and call it."""
    gradeloop.variables.update({"GRADELOOP_PROBE": "on", "GRADELOOP_BASE_URLS": tap.url})  # type: ignore[attr-defined]  # a dictionary


def grader(tap: Tap, **more: Any) -> dict[str, Any]:
    """Return the model as a grader."""
    return {"model": {"id": f"openai_compatible:{NAME}", "config": {"base_url": tap.url, "temperature": 0}}, **more}


def suite(gradeloop: CommandLine, name: str, tap: Tap, texts: list[str], **more: Any) -> str:
    """Write a suite whose outputs the model grades, and return the file's name."""
    tests = [{"id": f"case-{at}", "output": text} for at, text in enumerate(texts)]
    asked = "A guest asks a hotel: Can I bring my dog?"
    fields = {"name": name, "grader": grader(tap), "prompts": [asked], "rubric": RUBRIC, "tests": tests, "cache": False}
    (gradeloop.folder / f"{name}.yaml").write_text(json.dumps(fields | more))
    return f"{name}.yaml"


def gradings(calls: list[Call], word: str = "room") -> list[Call]:
    """Return the calls that show an output; those that ask what the server can do show none."""
    return [call for call in calls if any(word in str(message["content"]) for message in call.body["messages"])]


def judged(done: Done) -> dict[str, str]:
    """Return the status of each case that a batch told as JSON, or its error."""
    return {line["id"]: line.get("error") or line["status"] for line in done.lines if "id" in line}
