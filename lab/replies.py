"""What the models say on both sides, by iteration; the standard library alone, since the peer's own venv reads it too."""

import random
from dataclasses import dataclass
from typing import TypedDict

TASK = "Write the release notes of version 2."
CRITERIA = ("every change is named", "each entry says who is affected", "the text has no marketing words")
RUBRIC = "\n".join(f"- {criterion}" for criterion in CRITERIA)
EXPLANATION = "Read against the list of changes."
REASON = "As read."
GAP = "the third entry does not say who is affected"

READY = "ready"
"""What a worker prints once it serves."""

_WORDS = ("the release", "changes how", "queues drain", "when a worker", "leaves", "and which", "limits hold", "until it returns")


class Judged(TypedDict):
    """A criterion's row in a verdict, however a side spells it."""

    name: str
    passed: bool


@dataclass(frozen=True)
class Case:
    """A run in which the last draft alone passes."""

    iterations: int
    draft_bytes: int

    @property
    def name(self) -> str:
        """Name the case in queues and tables."""
        return f"{self.iterations}x{self.draft_bytes}"

    @classmethod
    def named(cls, name: str) -> "Case":
        """Read a case's name."""
        iterations, _, draft_bytes = name.partition("x")
        return cls(int(iterations), int(draft_bytes))

    def draft(self, at: int) -> str:
        """Return the draft of iteration `at`, of exactly `draft_bytes` bytes."""
        dice = random.Random(at)
        text = f"Draft {at}."
        while len(text) < self.draft_bytes:
            text += " " + dice.choice(_WORDS)
        return text[: self.draft_bytes]

    def result(self, at: int) -> str:
        """Return the verdict's result at iteration `at`."""
        return "satisfied" if at == self.iterations - 1 else "needs_revision"

    def judged(self, at: int) -> list[Judged]:
        """Return the verdict's rows at iteration `at`: the second criterion fails until the end."""
        return [{"name": name, "passed": at == self.iterations - 1 or name != CRITERIA[1]} for name in CRITERIA]
