"""The table of commands in groups, and the options and exit codes that commands share."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from gradeloop.errors import InvalidRequest, explained
from gradeloop.exit_codes import CODES
from gradeloop.extensions import Command, extensions, load
from gradeloop.text import parse_share

if TYPE_CHECKING:
    import asyncio

HIDDEN = ""
"""The group of other names for what a command does, which scripts may use and no help lists."""

_CORE = {
    "Run and watch a thread": {
        "init": ("gradeloop.cli.init", "Write an example task, suite or judge to edit."),
        "run": ("gradeloop.cli.threads", "Draft, grade and revise until the draft meets the rubric."),
        "demo": ("gradeloop.cli.threads", "Watch a model write a function, fail its tests, and fix it."),
        "watch": ("gradeloop.cli.threads", "Show a thread from its beginning, and follow it live."),
        "show": ("gradeloop.cli.threads", "Show a thread: its state, and the result of its last turn."),
        "list": ("gradeloop.cli.threads", "List the threads, newest first."),
        "prompt": ("gradeloop.cli.rubrics", "Show the prompt that the grader of an evaluation received."),
        "resume": ("gradeloop.cli.threads", "Resume an interrupted run where it stopped."),
        "fork": ("gradeloop.cli.threads", "Start a new thread from a draft of an old one."),
        "interrupt": ("gradeloop.cli.threads", "Stop a run and its calls in flight; `resume` continues it."),
        "cancel": ("gradeloop.cli.threads", "Close a thread at once; `resume` continues it."),
        "close": ("gradeloop.cli.threads", "Serve a thread's queued turns, then close it."),
    },
    "Decide as a person": {
        "inbox": ("gradeloop.cli.rubrics", "Show what waits for a person, oldest first."),
        "decide": ("gradeloop.cli.rubrics", "Pass or fail a criterion that waits for a person."),
        "approve": ("gradeloop.cli.rubrics", "Approve a tool call that waits for a person."),
        "deny": ("gradeloop.cli.rubrics", "Deny a tool call that waits for a person."),
        "override": ("gradeloop.cli.rubrics", "Override a verdict; the grader's own is kept beside yours."),
        "rubric": ("gradeloop.cli.rubrics", "Give a thread a new rubric; check or convert a rubric file."),
    },
    "Judge finished runs": {},
    "Suites and batches": {},
    "Reports": {
        "report": ("gradeloop.cli.reports", "Write an HTML page that explains every verdict."),
    },
    "Agents": {},
    "This machine": {
        "docs": ("gradeloop.cli.dev", "Show a page of the documentation, or list them."),
        "doctor": ("gradeloop.cli.dev", "Check this machine: server, keys, sandboxes, OTLP."),
        "dev": ("gradeloop.cli.dev", "Run server, worker and UI; `dev stop` ends them."),
        "trust": ("gradeloop.cli.dev", "Trust this folder's gradeloop.toml and the code it names."),
        "worker": ("gradeloop.cli.dev", "Run a worker; `worker --help` lists its settings."),
        "plan": ("gradeloop.cli.upkeep", "Show the workers, slots and connections that a load needs."),
        "forget": ("gradeloop.cli.upkeep", "Remove histories, rows, verdicts and payloads for good."),
        "store": ("gradeloop.cli.upkeep", "Check, upgrade, back up, restore and prune the store."),
        "codec": ("gradeloop.cli.dev", "Decrypt payloads for Temporal's web UI until Ctrl-C."),
        "schema": ("gradeloop.cli.schemas", "Print the JSON Schemas of the wire contract."),
    },
    HIDDEN: {
        "state": ("gradeloop.cli.threads", "Show a thread: its state, and the result of its last turn."),
        "view": ("gradeloop.cli.reports", "Open the page that `report` writes in the browser."),
    },
}
"""The commands of the core in the groups of `gradeloop --help`: the module that defines a command, and its help in one sentence.

A module is imported when one of its commands is called, so that help and completion load nothing else; a test compares the sentences.
"""


@cache
def command_groups() -> dict[str, dict[str, Command]]:
    """Return all commands by their names in the groups of `gradeloop --help`, the core's before those of extensions."""
    groups = {
        title: {name: Command(title, text, f"{module}:app") for name, (module, text) in rows.items()} for title, rows in _CORE.items()
    }
    owners = dict.fromkeys((name for rows in groups.values() for name in rows), "gradeloop")
    for extension in extensions():
        for name, command in extension.commands.items():
            if " " in name:
                continue
            if name in owners:
                raise InvalidRequest(
                    f"the extension {extension.name!r} brings the command {name!r}, which {owners[name]} has; uninstall it"
                )
            owners[name] = f"the extension {extension.name!r}"
            groups.setdefault(command.group, {})[name] = command
    return {title: rows for title, rows in groups.items() if rows}


def subcommands(group: str) -> dict[str, Command]:
    """Return the commands that extensions add to a command of the core, `convert` for `rubric convert`."""
    named = {name: command for one in extensions() for name, command in one.commands.items()}
    return {name.removeprefix(f"{group} "): command for name, command in named.items() if name.startswith(f"{group} ")}


def share_flag(text: str) -> float:
    """Return the share that a flag names, `0.9` or `90%`."""
    try:
        return parse_share(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def tenant_flag(text: str) -> str:
    """Read a tenant's name; one that no tenant can have is a usage error."""
    from gradeloop.contract.thread import Priority

    try:
        with explained():
            return str(Priority(tenant=text).tenant)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from None


ThreadId = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id, or `latest` for the newest.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else on stdout.")]
Grader = Annotated[str | None, typer.Option(metavar="MODEL", help="Judge with this model, written provider:model.")]
_TOOLS = typer.Option("--tools", metavar="FILE", help="Load evidence tools from this Python file; repeatable.")
Tools = Annotated[list[Path] | None, _TOOLS]
ToolFiles = Annotated[tuple[Path, ...], _TOOLS]
Scripted = Annotated[Path | None, typer.Option(metavar="FILE", help="Read the replies of the provider `scripted` from this file.")]
_OUTSIDE = typer.Option("--allow-outside", metavar="FOLDER", help="Let the files name others in this folder, too; repeatable.")
AllowOutside = Annotated[list[Path] | None, _OUTSIDE]
OutsideFolders = Annotated[tuple[Path, ...], _OUTSIDE]
Trust = Annotated[bool, typer.Option("--trust", help="Trust this folder's gradeloop.toml first, as `gradeloop trust` does; for CI.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace output files that gradeloop did not write, too.")]
BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="The batch's id, or `latest` for the newest.")]
_OUTPUT_HELP = "Write the results to a .json, .jsonl, .yaml, .csv, .xml, .html, .md or .txt file; repeatable."
_OUTPUT = typer.Option("--output", "-o", metavar="FILE", help=_OUTPUT_HELP)
OutputOption = Annotated[list[Path] | None, _OUTPUT]
OutputFiles = Annotated[tuple[Path, ...], _OUTPUT]
BASELINE_HELP = "Compare a summary.md with this batch, `latest` or file of results."
JsonLines = Annotated[bool, typer.Option("--json", help="Print one JSON line per finished case, and nothing else on stdout.")]
Tenant = Annotated[
    str | None,
    typer.Option(parser=tenant_flag, metavar="TENANT", help="Charge this tenant, and keep its data apart; by default GRADELOOP_TENANT."),
]
_OF_TENANT = typer.Option("--tenant", parser=tenant_flag, metavar="TENANT", help="List only what belongs to this tenant.")
OfTenant = Annotated[str | None, _OF_TENANT]
Limit = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="List at most this many.")]


RISK_HELP = "With --until: the largest chance that asking all would say otherwise; 5% by default."


@dataclass(frozen=True)
class UntilFlags:
    """Flags by which a command asks in random order, and ends once its answer is known."""

    until: Annotated[Literal["decided"] | None, typer.Option(help="Ask in random order, and end once the answer is known.")] = None
    risk: Annotated[float | None, typer.Option(parser=share_flag, metavar="SHARE", help=RISK_HELP)] = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="With --until: the seed of the order; a new one by default.")] = None

    def refuse_alone(self, *, preview: bool = False) -> None:
        """Raise InvalidRequest for a flag that says how a batch ends early where none does."""
        if self.until is None and (self.risk, self.seed, preview) != (None, None, False):
            raise InvalidRequest("--risk, --seed and --preview say how --until decided ends a batch; add it")


class GroupedCommands(TyperGroup):
    """The whole command line: `--help` lists its commands in groups, and a command is imported when it is called."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**settings)
        rows = {name: command for rows in command_groups().values() for name, command in rows.items()}
        self._apps = {name: command.app for name, command in rows.items()}
        for name, row in rows.items():
            self.commands[name] = TyperCommand(name, help=row.help, hidden=row.group == HIDDEN, rich_markup_mode=None)

    def load(self, name: str) -> None:
        """Import the module of a command, and take all the commands that it defines."""
        if (app := self._apps.get(name)) is None:
            return
        defined: Any = typer.main.get_command(load(app))
        self.commands.update(getattr(defined, "commands", {name: defined}))  # a module of one command is that command
        self._apps = {known: other for known, other in self._apps.items() if other != app}

    def load_all(self) -> None:
        """Import every command: the reference of the command line lists their flags."""
        for name in tuple(self._apps):
            self.load(name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 - typer's own click has no public types
        """Write the commands of each group below its title."""
        groups = {title: rows for title, rows in command_groups().items() if title != HIDDEN}
        width = max(len(name) for rows in groups.values() for name in rows)
        for title, rows in groups.items():
            with formatter.section(title):
                limit = formatter.width - 6 - width
                formatter.write_dl([(name.ljust(width), self.commands[name].get_short_help_str(limit)) for name in rows])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own click has no public types
        """Find a command, whose module is imported now."""
        self.load(args[0])
        return super().resolve_command(ctx, args)


Options = TypeVar("Options")


def takes(options: type[Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Return a decorator for a command whose arguments and flags are the fields of a dataclass.

    A field is a flag where its annotation says how, as typer's parameters do; a tuple is a flag that is repeatable. The other fields are
    dataclasses of further flags, or are set later. So a flag is written once, with its help, its type and its default.

    Example:
        ```python
        @dataclass(frozen=True)
        class GreetOptions:
            name: Annotated[str, typer.Argument(help="Greet this person.")]
            loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False


        @app.command()
        @takes(GreetOptions)
        def greet(options: GreetOptions) -> None: ...
        ```
    """

    def decorate(work: Callable[[Options], None]) -> Callable[..., None]:
        @wraps(work)
        def command(**given: Any) -> None:  # noqa: ANN401 - whatever typer parsed
            work(_built(options, given))

        command.__signature__ = Signature([*_parameters(options)])  # type: ignore[attr-defined]  # which typer reads
        command.__annotations__ = {}
        return command

    return decorate


def _parameters(options: Any) -> Iterator[Parameter]:  # noqa: ANN401 - a dataclass
    for name, (kind, info, default) in _flags(options).items():
        if info is None:
            yield from _parameters(kind)
            continue
        if get_origin(kind) is tuple:
            kind, default = Optional[list[get_args(kind)[0]]], None  # type: ignore[misc]  # noqa: UP045, PLW2901 - made at run time
        default = Parameter.empty if default is MISSING else default  # noqa: PLW2901 - typer's word
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _built(options: Any, given: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
    values: dict[str, Any] = {}
    for name, (kind, info, _) in _flags(options).items():
        value = _built(kind, given) if info is None else given[name]
        values[name] = tuple(value or ()) if info is not None and get_origin(kind) is tuple else value
    return options(**values)


def _flags(options: Any) -> dict[str, tuple[Any, Any, Any]]:  # noqa: ANN401 - as above
    """Return the type, typer's description and the default of each field that is a flag; dataclasses of flags have no description."""
    hints, found = get_type_hints(options, include_extras=True), {}
    for one in fields(options):
        kind, *described = get_args(hints[one.name]) if get_origin(hints[one.name]) is Annotated else (hints[one.name],)
        if described or is_dataclass(kind):
            found[one.name] = (kind, described[0] if described else None, one.default)
    return found


def codes_help(command: str) -> str:
    """Return a command's exit codes, as its `--help` ends with them."""
    lines = [f"  {code:<3}  {meaning}" for code, meaning in sorted(CODES[command].items())]
    return "\n".join(["\b", "Exit codes:", *lines])


@contextmanager
def ctrl_c() -> Iterator["asyncio.Queue[None]"]:
    """Put each Ctrl-C into a queue instead of ending the program."""
    import asyncio  # costs `gradeloop --help` 30 ms
    import signal

    loop, pressed = asyncio.get_running_loop(), asyncio.Queue[None]()
    loop.add_signal_handler(signal.SIGINT, pressed.put_nowait, None)
    try:
        yield pressed
    finally:
        loop.remove_signal_handler(signal.SIGINT)
