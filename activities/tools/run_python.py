"""`run_python`: a snippet in the sandbox, its result and output as evidence."""

from collections.abc import Callable
from typing import Any

from activities.tools.shelf import Shelf


def run_python_of(shelf: Shelf) -> Callable[..., dict[str, Any]]:
    """Return the tool."""
    box, limits = shelf.sandbox(shelf.sandboxes.snippets), shelf.limits(snippet=True)

    def run_python(code: str) -> dict[str, Any]:
        """Run a snippet of Python in a sandbox without files, network or time to waste.

        Its status and what it prints come back, and the value of its last expression where the sandbox is monty, in which classes
        with bases, `yield` and about half of the standard library are not available (status "unsupported").
        """
        ended = box.run(code, limits=limits)
        told: dict[str, Any] = {"status": ended.status, "stdout": ended.stdout}
        if ended.stderr:
            told["stderr"] = ended.stderr
        if ended.status != "ok":
            return told | {"error": ended.error}
        return told | ({"value": ended.value} if box.name == "monty" else {})

    return run_python
