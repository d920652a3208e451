"""Judgements in a file, a line each, as `gradeloop judge -o` writes them."""

from pathlib import Path

from pydantic import ValidationError

from gradeloop.errors import InvalidRequest, explain
from gradeloop.judges.judge_result import JudgeResult


def read_results(path: Path) -> list[JudgeResult]:
    """Return the judgements of a file that `gradeloop judge -o` or `--json` wrote.

    Raises:
        InvalidRequest: It cannot be read, or holds none; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the results {str(path)!r} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append(JudgeResult.model_validate_json(line))
            except ValidationError as error:
                raise InvalidRequest(f"{path}, line {number}: this is no judgement: {explain(error)}") from None
    if not found:
        raise InvalidRequest(f"{path} holds no judgements; write some with `gradeloop judge JUDGE RUNS -o {path.name}`")
    return found
