"""The commands that read or stop a thread, and `doctor`, with the options that several commands share."""

import asyncio
import json
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradeloop.cli_help import codes_help
from gradeloop.departure import CAPPED, NO_VERDICT, SATISFIED, STOPPED

if TYPE_CHECKING:
    from gradeloop.attendance import Ending
    from gradeloop.client import GradingClient

_EXIT_CODES = {None: SATISFIED, "satisfied": SATISFIED, "max_iterations_reached": CAPPED}

thread_app = typer.Typer(rich_markup_mode=None)

ThreadId = Annotated[str, typer.Argument(metavar="THREAD", help="The thread's id, or `latest` for the newest.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else on stdout.")]
Grader = Annotated[str | None, typer.Option(metavar="MODEL", help="Judge with this model, written provider:model.")]
Tools = Annotated[list[Path] | None, typer.Option("--tools", metavar="FILE", help="Load evidence tools from this Python file; repeatable.")]
Scripted = Annotated[Path | None, typer.Option(metavar="FILE", help="Read the replies of the provider `scripted` from this file.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="List at most this many.")]


@thread_app.command()
def state(thread: ThreadId, *, as_json: Json = False) -> None:
    """Show a thread's state: status, criteria, open calls."""
    from gradeloop.overview import state_lines

    async def read(client: "GradingClient", thread_id: str) -> None:
        now = await client.state(thread_id)
        show_lines(now.model_dump(mode="json"), state_lines(thread_id, now), as_json=as_json)

    asyncio.run(with_thread(thread, read))


@thread_app.command()
def show(thread: ThreadId, *, as_json: Json = False) -> None:
    """Show the result of a thread's last turn."""
    from gradeloop.overview import state_lines
    from gradeloop.story import summary

    async def read(client: "GradingClient", thread_id: str) -> None:
        result = await client.last_result(thread_id)
        now = await client.state(thread_id)
        told = result.model_dump(mode="json") if result else None
        width = shutil.get_terminal_size().columns
        show_lines(told, summary(result, width) if result else state_lines(thread_id, now), as_json=as_json)

    asyncio.run(with_thread(thread, read))


@thread_app.command("list")
def list_threads(
    *,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="List threads whose run has this status: satisfied, interrupted, ...")
    ] = None,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """List the threads, newest first."""
    from gradeloop.client import GradingClient
    from gradeloop.listing import threads
    from gradeloop.overview import listing

    async def read() -> None:
        client = await GradingClient.connect()
        found = [listed async for listed in threads(client.temporal, status=status, limit=limit)]
        show_lines([listed.model_dump(mode="json") for listed in found], listing(found), as_json=as_json)

    asyncio.run(read())


@thread_app.command()
def interrupt(thread: ThreadId) -> None:
    """Stop a run and its calls in flight; `resume` continues it."""
    asyncio.run(with_thread(thread, lambda client, thread_id: client.interrupt(thread_id)))
    typer.echo(f"interrupting; resume it with: gradeloop resume {thread}", err=True)


@thread_app.command()
def cancel(thread: ThreadId) -> None:
    """Close a thread at once; `resume` continues it."""
    asyncio.run(with_thread(thread, lambda client, thread_id: client.cancel(thread_id)))
    typer.echo(f"cancelling; resume it with: gradeloop resume {thread}", err=True)


@thread_app.command()
def close(thread: ThreadId) -> None:
    """Serve a thread's queued turns, then close it."""
    asyncio.run(with_thread(thread, lambda client, thread_id: client.close_thread(thread_id)))
    typer.echo(f"closing; look with: gradeloop state {thread}", err=True)


@thread_app.command(epilog=codes_help("doctor"))
def doctor(*, as_json: Json = False) -> None:
    """Check this machine: server, keys, sandboxes and tools."""
    from gradeloop.doctor import Finding, findings, lines

    async def look() -> list[Finding]:
        return [found async for found in findings()]

    seen = asyncio.run(look())
    show_lines([found.model_dump(mode="json") for found in seen], (line for found in seen for line in lines(found)), as_json=as_json)
    raise typer.Exit(1 if any(found.ok is False for found in seen) else 0)


async def with_thread(thread: str, work: "Any") -> None:  # noqa: ANN401 - a coroutine function of the client and the id
    """Run a coroutine function with a client and the id of a thread, which may be given as `latest`."""
    from gradeloop.client import opened

    client, thread_id, _ = await opened(thread)
    asked: Coroutine[Any, Any, None] = work(client, thread_id)
    await asked


def show_lines(value: object, lines: "Any", *, as_json: bool) -> None:  # noqa: ANN401 - whatever rich can print
    """Print a value as JSON, or as lines for a terminal."""
    if as_json:
        typer.echo(json.dumps(value, ensure_ascii=False, default=str))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, Text))


def code_of(ending: "Ending") -> int:
    """Return the exit code of a run that a command followed."""
    if ending.how == "ended" and ending.result is not None:
        return _EXIT_CODES.get(ending.result.status, NO_VERDICT)
    return {"detached": SATISFIED, "interrupted": NO_VERDICT}.get(ending.how, STOPPED)


def words_of(ending: "Ending") -> str | None:
    """Return the command that resumes or follows the run; None if it ended."""
    if ending.how in {"interrupted", "stopped"}:
        return f"interrupted; resume it with: gradeloop resume {ending.thread_id}"
    return None if ending.how == "ended" else f"still running; follow it with: gradeloop watch {ending.thread_id}"
