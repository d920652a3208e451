"""Code that a model wrote, run where it can hurt nothing. `run` is for snippets; `chosen` picks what this machine can hold."""

from gradeloop.sandbox.execution import Execution, Limits, Sandbox, SandboxError
from gradeloop.sandbox.monty import Monty

__all__ = ["Execution", "Limits", "Sandbox", "SandboxError", "run"]

_SNIPPETS = Monty()
PRINTED_BYTES = 64 * 1024


def run(code: str, *, seconds: float = 5.0) -> Execution:
    """Run a snippet of Python in monty and return its end; at most `seconds` of its own time, and no more asleep.

    Raises:
        SandboxError: The sandbox itself failed.
    """
    return _SNIPPETS.run(code, limits=Limits(seconds=seconds, output_bytes=PRINTED_BYTES))
