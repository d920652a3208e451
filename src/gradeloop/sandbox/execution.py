"""The seam of all sandboxes: what a program may use, and how it ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

MIB = 1024 * 1024

ERROR_CHARACTERS = 2_000
"""Of what stopped a program; an exception's text comes back whole otherwise, 10 MB of it."""

ExecutionStatus = Literal["ok", "raised", "limit", "unsupported"]
SandboxName = Literal["monty", "bubblewrap", "landlock"]


@dataclass(frozen=True)
class Limits:
    """What a program may use; beyond any of it, it is stopped."""

    seconds: float = 5.0
    """Wall time, start included."""
    memory_bytes: int = 256 * MIB
    """Of address space, a process."""
    output_bytes: int = MIB
    """Of standard output and standard error together."""
    disk_bytes: int = 32 * MIB
    """Of all files in its folder."""
    processes: int = 1
    """At once; 1 forbids to start another one. Threads are not counted."""


@dataclass(frozen=True)
class Execution:
    """How a program ended."""

    status: ExecutionStatus
    """`raised`: the program's own failure. `limit`: stopped by time, memory, depth, output or disk. `unsupported`: valid Python,
    perhaps, that this sandbox cannot run: no word on the code."""
    stdout: str = ""
    stderr: str = ""
    wall_ms: int = 0
    truncated: bool = False
    """True where the output was cut at its limit."""
    sandbox: SandboxName = "monty"
    error: str = ""
    """What stopped it, first 2,000 characters."""
    exit_code: int | None = None
    """Of a process that ended by itself."""
    value: Any = None
    """Of a snippet's last expression, as JSON-like data; monty alone knows it."""


class SandboxError(Exception):
    """The sandbox itself failed: no word on the program."""


class Sandbox(Protocol):
    """A place where a program can hurt nothing."""

    @property
    def name(self) -> SandboxName:
        """What it is called."""

    def run(self, program: str | Sequence[str], files: Mapping[str, str] | None = None, limits: Limits | None = None) -> Execution:
        """Run Python source, or a command by its argv, in an empty folder that holds `files` alone; blocks until it has ended.

        Raises:
            SandboxError: The sandbox itself failed, or cannot run such a program.
        """
