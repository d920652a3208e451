"""How the command line prints help: commands in groups, exit codes below, former names refused with the new one."""

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from gradeloop.exit_codes import CODES

GROUPS = {
    "Run and watch a thread": ("init", "run", "demo", "watch", "state", "show", "list", "prompt", "resume", "interrupt", "cancel", "close"),
    "Decide as a person": ("decide", "approve", "deny", "override", "rubric"),
    "Judge finished runs": ("judge", "agreement", "registry"),
    "Suites and batches": ("eval", "batches"),
    "Reports": ("report", "diff"),
    "This machine": ("doctor", "dev", "worker", "schema"),
}
"""The commands of `gradeloop --help`, in groups."""

FORMER_COMMANDS = {"rubrics": "registry"}
FORMER_FLAGS = {
    "eval": {"--at-once": "--concurrency (-j)", "--first": "--limit", "--only": "--filter"},
    "judge": {"--at-once": "--concurrency (-j)", "--repeats": "--repeat", "--model": "--grader"},
}
"""Flags of earlier versions by command, with their names of today."""


class GroupedCommands(TyperGroup):
    """The whole command line: `--help` lists its commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - typer's own click has no public types
        """Write the commands of each group below its title."""
        width = max(len(name) for name in self.commands)
        for title, names in GROUPS.items():
            with formatter.section(title):
                limit = formatter.width - 6 - width
                formatter.write_dl([(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in names])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own click has no public types
        """Find a command; a former name fails with the new one."""
        if args[0] in FORMER_COMMANDS and not ctx.resilient_parsing:
            ctx.fail(f"The command '{args[0]}' is now '{FORMER_COMMANDS[args[0]]}'; use that name.")
        return super().resolve_command(ctx, args)


class CommandWithFormerFlags(TyperCommand):
    """A command whose flags had other names; a former name fails with the new one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own click has no public types
        """Read the flags, after a look for former names among them."""
        if not ctx.resilient_parsing:
            _refuse_former_flags(ctx, FORMER_FLAGS.get(self.name or "", {}), args)
        return super().parse_args(ctx, args)


def _refuse_former_flags(ctx: Any, former: dict[str, str], args: Sequence[str]) -> None:  # noqa: ANN401 - as above
    flags = [argument.partition("=")[0] for argument in (args[: args.index("--")] if "--" in args else args)]
    for flag in flags:
        if flag in former:
            ctx.fail(f"The flag {flag} is now {former[flag]}; use that name.")


def codes_help(command: str) -> str:
    """Return a command's exit codes, as its `--help` ends with them."""
    lines = [f"  {code:<3}  {meaning}" for code, meaning in sorted(CODES[command].items())]
    return "\n".join(["\b", "Exit codes:", *lines])
