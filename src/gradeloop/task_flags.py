"""The flags that describe a task, and the files that they name."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from gradeloop.budget import Budget
from gradeloop.errors import InvalidRequest, explain
from gradeloop.rubric_file import YAML_SUFFIXES, read_rubric_file


@dataclass(frozen=True)
class Flags:
    """Flags of `gradeloop run` that override the task file."""

    prompt: str | None = None
    rubric: str | None = None
    model: str | None = None
    grader: str | None = None
    max_iterations: int | None = None
    tools: tuple[Path, ...] = ()
    thread: str | None = None
    budget: Budget | None = None
    record: Path | None = None
    """The file that records every exchange with a model."""
    replay: Path | None = None
    """A recording that replaces the models' replies."""


def budget_of(tokens: int | None, usd: float | None) -> Budget | None:
    """Return the budget that the flags set, or None.

    Raises:
        InvalidRequest: A value is out of range.
    """
    given = {"max_tokens": tokens, "max_cost_usd": usd}
    try:
        return Budget.model_validate(given) if any(value is not None for value in given.values()) else None
    except ValidationError as error:
        raise InvalidRequest(explain(error).replace("max_tokens", "--budget-tokens").replace("max_cost_usd", "--budget-usd")) from None


def read_rubric(flag: str) -> JsonValue:
    """Read `--rubric`: a file if there is one of that name, else the text itself."""
    path = Path(flag)
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long for a name: it is a text
        is_file = False
    if not is_file:
        if "\n" not in flag and flag.endswith((*YAML_SUFFIXES, ".md", ".txt")):
            raise InvalidRequest(f"--rubric: the file {flag!r} does not exist; correct the path, or give the rubric's text")
        return flag
    return read_rubric_file(path)


def absent(record: Path | None) -> Path | None:
    """Return the path of a recording that is to be written.

    Raises:
        InvalidRequest: The file exists already, or its folder does not.
    """
    if record is not None and (record.exists() or not record.absolute().parent.is_dir()):
        why = "exists already; name another file, or remove it" if record.exists() else "has no folder; create the folder first"
        raise InvalidRequest(f"--record: {str(record)!r} {why}")
    return record
