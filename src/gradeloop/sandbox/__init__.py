"""Code that a model wrote, run where it can do no harm: `run` is for snippets, for tools of one's own too."""

from gradeloop.sandbox.execution import Execution, Limits, Sandbox, SandboxError
from gradeloop.sandbox.monty import Monty

__all__ = ["Execution", "Limits", "Sandbox", "SandboxError", "run"]

PRINTED_BYTES = 64 * 1024

_MONTY = Monty()


def run(code: str, *, seconds: float = 5.0) -> Execution:
    """Run a snippet of Python in monty and return how it ended; at most `seconds` of its own time, and as long asleep.

    Raises:
        SandboxError: The sandbox itself failed.
    """
    return _MONTY.run(code, limits=Limits(seconds=seconds, output_bytes=PRINTED_BYTES))
