"""The interface of all sandboxes: the limits of a program, and how its execution ended."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from gradeloop.telemetry.metrics import SANDBOX_KILLS, SANDBOX_RUNS

MIB = 1024 * 1024

ERROR_CHARACTERS = 2_000
"""The characters that are kept of an error; an exception's text may have 10 MB."""

ExecutionStatus = Literal["ok", "raised", "limit", "unsupported"]
SandboxName = Literal["monty", "bubblewrap", "landlock"]


@dataclass(frozen=True)
class Limits:
    """The limits of a program, which is stopped when it exceeds one."""

    seconds: float = 5.0
    """The wall time in seconds, start included."""
    memory_bytes: int = 256 * MIB
    """The memory of all its processes together, and the address space of each."""
    output_bytes: int = MIB
    """The size of standard output and standard error together."""
    disk_bytes: int = 32 * MIB
    """The size of all files in its folder, and of those that it has removed and still has open."""
    processes: int = 1
    """The most processes at once, threads not counted; 1 forbids to start another one."""
    imports: tuple[str, ...] = ()
    """The folders that it may read, except for the entries directly in them whose names begin with a dot."""


@dataclass(frozen=True)
class Execution:
    """The result of a program's execution."""

    status: ExecutionStatus
    """The way it ended. `raised`: by its own failure. `limit`: stopped by time, memory, depth, output or disk. `unsupported`: it may be
    valid Python that this sandbox cannot run, which says nothing about the code."""
    stdout: str = ""
    stderr: str = ""
    wall_ms: int = 0
    truncated: bool = False
    """Whether the output was cut at its limit."""
    sandbox: SandboxName = "monty"
    error: str = ""
    """The error that ended it, at most 2,000 characters."""
    exit_code: int | None = None
    """The exit code of a process that ended by itself."""
    value: Any = None
    """The value of a snippet's last expression, as JSON-like data; only monty has it."""


def counted(ended: Execution) -> Execution:
    """Count a program's execution, and return it."""
    SANDBOX_RUNS.record(sandbox=ended.sandbox, status=ended.status)
    if ended.status == "limit":
        SANDBOX_KILLS.record(sandbox=ended.sandbox)
    return ended


class SandboxError(Exception):
    """The sandbox itself failed, which says nothing about the program."""


class SandboxMissing(SandboxError):
    """This machine does not have the sandbox."""


class Sandbox(Protocol):
    """A place where a program can do no harm."""

    @property
    @abstractmethod
    def name(self) -> SandboxName:
        """The sandbox's name."""

    @abstractmethod
    def run(self, program: str | Sequence[str], files: Mapping[str, str] | None = None, limits: Limits | None = None) -> Execution:
        """Run Python source, or a command by its argv, in a folder that holds `files` alone; blocks until it has ended.

        Raises:
            SandboxError: The sandbox itself failed, or cannot run such a program.
        """
