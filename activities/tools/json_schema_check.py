"""`json_schema_check`: the draft is JSON that fits a schema."""

from collections.abc import Callable
from typing import Any

from gradeloop.json_schema import read_json, refuse_unfit, schema_errors
from gradeloop.transcript import code_of


def json_schema_check_of() -> Callable[..., dict[str, Any]]:
    """Return the tool."""

    def json_schema_check(schema: dict[str, Any], draft: str) -> dict[str, Any]:
        """Say whether the draft, or its last fenced code block, is JSON that fits a JSON Schema (draft 2020-12), and what does not.

        Args:
            schema: References within itself are followed, others are not; patterns are RE2's.
        """
        refuse_unfit(schema)
        try:
            value = read_json(code_of(draft))
        except ValueError as error:
            return {"ok": False, "errors": [str(error)]}
        errors = list(schema_errors(schema, value))
        return {"ok": not errors, **({"errors": errors} if errors else {})}

    return json_schema_check
