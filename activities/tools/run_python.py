"""`run_python`: a snippet in the sandbox, its result and output as evidence."""

from typing import Any

from gradeloop.sandbox import run


def run_python(code: str) -> dict[str, Any]:
    """Run a snippet of Python in a sandbox without files, network or time to waste.

    The value of its last expression and what it prints come back. Classes with bases, `yield` and about half of the
    standard library are not available. Limits: 5 seconds, 128 MB.
    """
    outcome = run(code)
    told: dict[str, Any] = {"status": outcome.status, "printed": outcome.stdout}
    return told | ({"value": outcome.value} if outcome.status == "ok" else {"error": outcome.error})
