"""`run_command`: a command that the worker's settings name, over the draft, in the sandbox; no shell."""

from collections.abc import Callable
from typing import Any

from activities.tools.shelf import Shelf, Unavailable
from gradeloop.evidence_settings import CommandSettings
from gradeloop.patterns import compiled
from gradeloop.transcript import code_of


def run_command_of(shelf: Shelf) -> Callable[..., dict[str, Any]]:
    """Return the tool."""
    commands = shelf.settings.commands
    if not commands:
        raise Unavailable("no command is allowed; name some under [commands] in gradeloop.toml")
    box = shelf.sandbox(shelf.sandboxes.commands)
    limits = shelf.limits(processes=shelf.settings.sandbox.processes)

    def run_command(command: str, draft: str, arguments: list[str] | None = None) -> dict[str, Any]:
        if command not in commands:
            raise ValueError(f"there is no command {command!r}; known: {', '.join(commands)}")
        allowed, further = commands[command], list(arguments or ())
        for each in further:
            if not any(compiled(pattern).fullmatch(each) for pattern in allowed.arguments):
                told = ", ".join(repr(pattern) for pattern in allowed.arguments) or "none"
                raise ValueError(f"the argument {each!r} is not allowed; what matches is: {told}")
        text = code_of(draft) if allowed.extract == "code" else draft
        ended = box.run([allowed.program, *allowed.argv[1:], *further], {allowed.file: text}, limits)
        told_of: dict[str, Any] = {"ok": ended.status == "ok", "stdout": ended.stdout, "stderr": ended.stderr}
        return told_of | ({"error": ended.error} if ended.status == "limit" else {"exit_code": ended.exit_code})

    run_command.__doc__ = "Run one of the worker's commands in a sandbox without network; no shell reads its arguments.\n\n" + "\n".join(
        f"{name}: {_words(each)}" for name, each in commands.items()
    )
    return run_command


def _words(command: CommandSettings) -> str:
    further = f", further arguments that match {', '.join(command.arguments)}" if command.arguments else ""
    held = "the draft's code" if command.extract == "code" else "the draft"
    return f"{command.description or ' '.join(command.argv)} ({command.file} holds {held}{further})"
