"""Where a value stands: a path in a file, told with line and column where they are known."""

from dataclasses import dataclass, field, replace

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gradeloop.errors import InvalidRequest, explain, field_path
from gradeloop.printable import clip
from gradeloop.yaml_file import Places

_UNKNOWN: Places = {}


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a file, as the beginning of a message."""

    file: str = ""
    """In the words of a message: `the suite 'a.yaml'`; empty where there is none."""
    path: tuple[int | str, ...] = ()
    placed: Places = field(default_factory=lambda: _UNKNOWN, repr=False)
    """Where the file's values stand, by their paths."""

    def at(self, *steps: int | str) -> "Spot":
        """Return the place of a value inside this one."""
        return replace(self, path=(*self.path, *steps))

    @property
    def place(self) -> str:
        """The file, with line and column of the value or of what it is missing from."""
        starts = (self.path[:end] for end in range(len(self.path), -1, -1))
        found = next((self.placed[start] for start in starts if start in self.placed), None)
        return f"{self.file}, line {found[0]}, column {found[1]}" if found else self.file

    def told(self, *steps: int | str) -> str:
        """Return the path, after the line and column of what stands inside of it."""
        return ": ".join(part for part in (self.at(*steps).place, field_path(self.path)) if part)

    def __str__(self) -> str:
        return self.told()


def refused(error: ValidationError, spot: Spot) -> InvalidRequest:
    """Return pydantic's report as a refusal that begins with the place of the first mistake."""
    first = error.errors(include_url=False)[0]
    steps = tuple(part for part in first["loc"] if not (isinstance(part, str) and part.startswith("<")))
    whole, inside, words = field_path((*spot.path, *steps)), field_path(steps), explain(error)
    told = f"{whole}{words.removeprefix(inside)}" if inside else ": ".join(part for part in (whole, words) if part)
    return InvalidRequest(": ".join(part for part in (spot.at(*steps, *_odd_key(first)).place, told) if part))


def _odd_key(detail: ErrorDetails) -> tuple[str, ...]:
    """Return the key that a model does not know, whose own place is told."""
    given = detail["input"] if detail["type"] == "unknown_key" else None
    named = detail.get("ctx", {}).get("key")
    return tuple(key for key in given if clip(str(key)) == named)[:1] if isinstance(given, dict) else ()
