"""What the command line says of a task: its flags, and the files that they name."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from gradeloop.budget import Budget
from gradeloop.errors import InvalidRequest, explain
from gradeloop.rubric_file import YAML_SUFFIXES, read_rubric_file


@dataclass(frozen=True)
class Flags:
    """What the command line says, before the task file."""

    prompt: str | None = None
    rubric: str | None = None
    model: str | None = None
    grader: str | None = None
    max_iterations: int | None = None
    tools: tuple[Path, ...] = ()
    thread: str | None = None
    budget: Budget | None = None
    record: Path | None = None
    """A file that is to hold every exchange with the models."""
    replay: Path | None = None
    """Such a file, from which the models' words come instead."""


def budget_of(tokens: int | None, usd: float | None) -> Budget | None:
    """Return the budget that the flags give; None without any.

    Raises:
        InvalidRequest: One is out of range.
    """
    given = {"max_tokens": tokens, "max_cost_usd": usd}
    try:
        return Budget.model_validate(given) if any(value is not None for value in given.values()) else None
    except ValidationError as error:
        raise InvalidRequest(f"--budget: {explain(error)}") from None


def read_rubric(flag: str) -> JsonValue:
    """Read `--rubric`: a file if there is one of that name, else the text itself."""
    path = Path(flag)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a name: it is a text
        is_file = False
    if not is_file:
        if "\n" not in flag and flag.endswith((*YAML_SUFFIXES, ".md", ".txt")):
            raise InvalidRequest(f"--rubric: the file {flag!r} does not exist")
        return flag
    return read_rubric_file(path)


def absent(record: Path | None) -> Path | None:
    """Return the path of a file that is to be written.

    Raises:
        InvalidRequest: It exists already, or its folder does not.
    """
    if record is not None and (record.exists() or not record.absolute().parent.is_dir()):
        why = "exists already; name another file, or remove it" if record.exists() else "is in no folder; make the folder first"
        raise InvalidRequest(f"--record: {str(record)!r} {why}")
    return record
