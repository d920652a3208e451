"""What the built-in tools are made with: the worker's settings, and the sandboxes that hold on this machine."""

from dataclasses import dataclass

from gradeloop.sandbox import Sandbox
from gradeloop.sandbox.choice import Choice
from gradeloop.sandbox.execution import MIB, Limits
from gradeloop.sandbox.monty import Monty
from gradeloop.worker_settings import WorkerSettings

UNTRIED = Choice(Monty(), None, None, ())
"""What a worker has before it has tried: snippets, which need nothing of the machine."""


class Unavailable(Exception):
    """This worker cannot offer a tool; the message says why, and the cure."""


@dataclass(frozen=True)
class Shelf:
    """What a worker's built-in tools may use."""

    settings: WorkerSettings
    sandboxes: Choice = UNTRIED

    def sandbox(self, found: Sandbox | None) -> Sandbox:
        """Return the sandbox, or say why there is none.

        Raises:
            Unavailable: None holds.
        """
        if found is None:
            why = self.sandboxes.why_not() if self.sandboxes.tried else "this worker has tried none"
            raise Unavailable(f"no sandbox for programs holds on this machine ({why}); `gradeloop doctor` says what is missing")
        return found

    def limits(self, *, snippet: bool = False, processes: int = 1) -> Limits:
        """Return the limits of a run, from the settings."""
        told = self.settings.sandbox
        return Limits(
            seconds=told.seconds if snippet else told.program_seconds,
            memory_bytes=told.memory_mib * MIB,
            output_bytes=told.output_kib * 1024,
            disk_bytes=told.disk_mib * MIB,
            processes=processes,
        )


def package(name: str, extra: str = "evidence") -> None:
    """Refuse a tool whose package is missing.

    Raises:
        Unavailable: It is not installed.
    """
    from importlib.util import find_spec

    if find_spec(name) is None:
        raise Unavailable(f"the package {name!r} is not installed; pip install 'gradeloop[{extra}]'")
