"""Commands on threads: run, watch, show, list, resume and stop them; Ctrl-C interrupts the run that is followed."""

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar
from uuid import uuid4

import typer
from rich.console import Console

from gradeloop.cli.commands import Grader, Json, Limit, OfTenant, ThreadId, codes_help, ctrl_c, takes
from gradeloop.cli.folder import own_outside_roots
from gradeloop.cli.render.run import (
    JsonScreen,
    LiveScreen,
    PlainScreen,
    Screen,
    print_line,
    rubric_lines,
    state_lines,
    summary,
    thread_lines,
)
from gradeloop.cli.render.table import Terminal, line_width, show_lines
from gradeloop.cli.task_file import BudgetTokens, BudgetUsd, Model, Task, TaskFlags, budget_of, read_rubric, read_task
from gradeloop.client.call_waits import watch_calls
from gradeloop.client.client import GradingClient, open_thread
from gradeloop.client.listing import threads
from gradeloop.contract.evaluation import Evaluation, Event
from gradeloop.contract.messages import Message
from gradeloop.contract.model_spec import Budget
from gradeloop.contract.rubric import Rubric
from gradeloop.contract.thread import RunResult
from gradeloop.errors import GradeloopError, InvalidRequest
from gradeloop.exit_codes import CAPPED, NO_VERDICT, SATISFIED, STOPPED, fail
from gradeloop.grading.templates import fill
from gradeloop.reports.model import resume_step
from gradeloop.settings.endpoints import default_model
from gradeloop.temporal.connect import OURS, Connection, application_folder, connect, ensure_worker, find, keep_worker_alive
from gradeloop.temporal.histories import request_deletion
from gradeloop.temporal.process import beside, done_beside

NOT_STARTED = "stopped before the thread started: no model was called; run the same command again to start it"

_EXIT_CODES = {None: SATISFIED, "satisfied": SATISFIED, "max_iterations_reached": CAPPED}

Result = TypeVar("Result")

app = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True)
class RunOptions:
    """The arguments and flags of one `gradeloop run`."""

    task: Annotated[Path | None, typer.Argument(metavar="TASK.yaml", help="The task's file; `gradeloop init` writes one.")] = None
    flags: TaskFlags = TaskFlags()  # noqa: RUF009 - frozen
    detach: Annotated[bool, typer.Option("--detach", help="Start the run and return without waiting for it.")] = False
    as_json: Json = False


@app.command(epilog=codes_help("run"))
@takes(RunOptions)
def run(options: RunOptions) -> None:
    """Draft, grade and revise until the draft meets the rubric."""
    work = lambda: run_task(read_task(options.task, options.flags), Terminal(), as_json=options.as_json, detach=options.detach)  # noqa: E731
    _finish(work, NOT_STARTED)


@app.command(epilog=codes_help("demo"))
def demo() -> None:
    """Watch a model write a function, fail its tests, and fix it."""
    chosen, model = default_model(os.environ), "scripted:demo"
    if chosen and chosen.spec.config.base_url is None:
        model = chosen.spec.id
    else:
        typer.echo("No provider key is set, so the models' replies come from a script; the tests really run, in the sandbox.\n")
    task = application_folder() / "examples" / "find_duplicates" / "task.yaml"
    _finish(lambda: run_task(read_task(task, TaskFlags(model=model, grader=model)), Terminal(), as_json=False, detach=False), NOT_STARTED)


@app.command(epilog=codes_help("resume"))
def resume(
    thread: ThreadId,
    *,
    model: Model = None,
    grader: Grader = None,
    budget_tokens: BudgetTokens = None,
    budget_usd: BudgetUsd = None,
    as_json: Json = False,
) -> None:
    """Resume an interrupted run where it stopped."""
    budget = budget_of(budget_tokens, budget_usd)
    work = lambda: resume_thread(thread, Terminal(), budget=budget, model=model, grader=grader, as_json=as_json)  # noqa: E731
    _finish(work, f"stopped before the run went on; resume it with: gradeloop resume {thread}")


@app.command(epilog=codes_help("fork"))
def fork(  # noqa: PLR0913 - one parameter a flag
    place: Annotated[str, typer.Argument(metavar="THREAD@N", help="The thread, and its draft, counted from 1; the last by default.")],
    *,
    rubric: Annotated[str | None, typer.Option(metavar="RUBRIC", help="Grade by this rubric: a file, or its text.")] = None,
    model: Model = None,
    grader: Grader = None,
    system_prompt: Annotated[str | None, typer.Option(metavar="TEXT", help="Draft with this system prompt.")] = None,
    max_iterations: Annotated[int | None, typer.Option(metavar="N", help="Draft at most this often, with the drafts before.")] = None,
    thread: Annotated[str | None, typer.Option(metavar="THREAD", help="Give the fork this id; a new id by default.")] = None,
    as_json: Json = False,
) -> None:
    """Start a new thread from a draft of an old one."""
    given: dict[str, Any] = {"model": model, "grader": grader, "system_prompt": system_prompt, "max_iterations": max_iterations}
    given |= {"rubric": rubric and read_rubric(rubric, own_outside_roots(None)), "fork_id": thread}
    _finish(lambda: fork_thread(place, Terminal(), given, as_json=as_json), "stopped; if the fork has started, it is in: gradeloop list")


@app.command(epilog=codes_help("watch"))
def watch(thread: ThreadId, *, as_json: Json = False) -> None:
    """Show a thread from its beginning, and follow it live."""
    _finish(lambda: watch_thread(thread, Terminal(), as_json=as_json), f"stopped; watch the thread with: gradeloop watch {thread}")


def _finish(work: "Callable[[], Coroutine[Any, Any, RunEnding]]", unstarted: str) -> NoReturn:
    """Follow a run to its end and exit with its code; `unstarted` is what Ctrl-C prints before there is a run to follow."""
    try:
        ending = asyncio.run(work())
    except KeyboardInterrupt:
        fail(unstarted, STOPPED)
    if message := reattach_message(ending):
        typer.echo(message, err=True)
    raise typer.Exit(code_of(ending))


@app.command("state", hidden=True)
@app.command()
def show(thread: ThreadId, *, as_json: Json = False) -> None:
    """Show a thread: its state, and the result of its last turn."""

    async def read(client: GradingClient, thread_id: str) -> None:
        result, now, forks = await client.last_result(thread_id), await client.state(thread_id), await client.forks(thread_id)
        value = now.model_dump(mode="json") | {"result": result.model_dump(mode="json") if result else None}
        value |= {"forks": list(forks)} if forks else {}
        ended = () if result is None or result.waiting_for else summary(result, line_width())
        show_lines(value, [*state_lines(thread_id, now, forks), *ended], as_json=as_json)

    asyncio.run(with_thread(thread, read))


@app.command("list")
def list_threads(
    *,
    status: Annotated[
        str | None, typer.Option(metavar="STATUS", help="List threads whose run has this status: satisfied, interrupted, ...")
    ] = None,
    tenant: OfTenant = None,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """List the threads, newest first."""

    async def read() -> None:
        client = await GradingClient.connect()
        found = [listed async for listed in threads(client.temporal, status=status, tenant=tenant, limit=limit)]
        show_lines([listed.model_dump(mode="json") for listed in found], thread_lines(found), as_json=as_json)

    asyncio.run(read())


@app.command()
def interrupt(thread: ThreadId) -> None:
    """Stop a run and its calls in flight; `resume` continues it."""
    answer = asyncio.run(with_thread(thread, lambda client, thread_id: client.interrupt(thread_id)))
    if answer is not None and not answer.interrupted:
        typer.echo("nothing was running", err=True)
        return
    where = f"interrupted while {answer.phase}" if answer else "interrupting"
    typer.echo(f"{where}; resume it with: gradeloop resume {thread}", err=True)


@app.command()
def cancel(thread: ThreadId) -> None:
    """Close a thread at once; `resume` continues it."""
    asyncio.run(with_thread(thread, lambda client, thread_id: client.cancel(thread_id)))
    typer.echo(f"cancelling; resume it with: gradeloop resume {thread}", err=True)


@app.command()
def close(thread: ThreadId) -> None:
    """Serve a thread's queued turns, then close it."""
    asyncio.run(with_thread(thread, lambda client, thread_id: client.close_thread(thread_id)))
    typer.echo(f"closing; look with: gradeloop show {thread}", err=True)


async def with_thread(thread: str, work: Callable[[GradingClient, str], Coroutine[Any, Any, Result]], *, fresh: bool = False) -> Result:
    """Run a coroutine function with a client and the id of a thread, which may be given as `latest`, and return its result.

    `fresh`: whether the work makes the thread go on, so that its worker has to read its files as they are now.
    """
    client, thread_id, _ = await open_thread(thread, fresh=fresh)
    return await work(client, thread_id)


def code_of(ending: "RunEnding") -> int:
    """Return the exit code of a run that a command followed."""
    if ending.how == "ended" and ending.result is not None:
        return _EXIT_CODES.get(ending.result.status, NO_VERDICT)
    return {"detached": SATISFIED, "interrupted": NO_VERDICT}.get(ending.how, STOPPED)


def reattach_message(ending: "RunEnding") -> str | None:
    """Return the message with the command that resumes or follows the run; None if it ended for good."""
    resumable = ending.result is not None and ending.result.status == "interrupted"
    if resumable or ending.how in {"interrupted", "stopped"}:
        step = resume_step(ending.thread_id, ending.result.error if ending.result else None)
        return f"interrupted; {step.words or 'resume it with:'} {step.command}"
    return None if ending.how == "ended" else f"still running; follow it with: gradeloop watch {ending.thread_id}"


ENDS = {"interrupted", "waiting", "run_ended"}
"""Events after which a turn may be over."""

PAID = {"message", "tool_called", "rubric_evaluation_end"}
"""Events after which more tokens are spent than before."""


async def follow(client: GradingClient, thread_id: str, screen: Screen, *, after: int = 0) -> RunResult | None:
    """Show the thread's events; return its result, which says who was away in an outage, or None if it was interrupted otherwise."""
    async for event in client.watch(thread_id, after=after):
        screen.show_event(event, *await _details(client, thread_id, event))
        if isinstance(screen, LiveScreen) and event.type in PAID:
            screen.show_tokens((await client.state(thread_id)).usage)
        if event.type in ENDS and await _is_current(client, thread_id, event):
            shown = event.type != "interrupted" or event.reason == "outage"
            return await client.last_result(thread_id) if shown else None
    return await client.result(thread_id)


async def _is_current(client: GradingClient, thread_id: str, event: Event) -> bool:
    """Return whether the thread still has the status that the event reports: the event may be long past."""
    status = (await client.state(thread_id)).status
    stands = status != "running" if event.type == "run_ended" else status == event.type
    return stands and not any(later.type in ENDS for later in (await client.events(thread_id, after=event.seq)).items)


async def _details(client: GradingClient, thread_id: str, event: Event) -> tuple[Message | None, Evaluation | None]:
    """Fetch what the event refers to."""
    if event.index is None:
        return None, None
    if event.type == "message":
        return next(iter((await client.messages(thread_id, after=event.index, limit=1)).items), None), None
    if event.type == "rubric_evaluation_end":
        return None, next(iter((await client.evaluations(thread_id, after=event.index, limit=1)).items), None)
    return None, None


STOP_SECONDS = 15.0
"""Seconds that an interrupted run may take to stop; a call in flight is cancelled within 2."""


@dataclass(frozen=True)
class RunEnding:
    """The end of a followed run, as the terminal reports it."""

    thread_id: str
    how: Literal["ended", "interrupted", "stopped", "detached", "left"]
    """`stopped` means interrupted by Ctrl-C in this terminal; `left` and `detached` runs continue without it."""
    result: RunResult | None = None


async def follow_with_interrupts(
    client: GradingClient,
    thread_id: str,
    screen: Screen,
    connection: Connection,
    pressed: "asyncio.Queue[None]",
    *,
    after: int = 0,
    interrupts: bool = True,
) -> RunEnding:
    """Show a thread to its end; Ctrl-C interrupts it, or leaves it running, and a second one leaves at once."""
    served = _while_served(client, thread_id, connection, follow(client, thread_id, screen, after=after))
    with closing(screen):
        async with beside(served, watch_calls(client.temporal, lambda: [thread_id], screen.show_wait)) as (following, _):
            screen.show_thread(thread_id)
            await _first_of(following, pressed.get())
            pressing = not following.done()
            if pressing and interrupts:
                print("interrupting; press Ctrl-C again to leave at once", file=sys.stderr)  # noqa: T201 - while the screen is live
                await _first_of(_interrupt(client, thread_id, following), pressed.get())
            if not following.done():
                return RunEnding(thread_id, "left")
            result = await following
    if result is None:
        return RunEnding(thread_id, "stopped" if pressing else "interrupted")
    screen.show_result(result)
    return RunEnding(thread_id, "ended", result)


async def _interrupt(client: GradingClient, thread_id: str, following: "asyncio.Task[RunResult | None]") -> None:
    """Interrupt the run and wait until it stops."""
    with suppress(TimeoutError):
        async with asyncio.timeout(STOP_SECONDS):
            with suppress(GradeloopError):  # it has just ended, or the server is gone; following it reports either
                await client.interrupt(thread_id)
            await asyncio.wait([following])


async def _while_served(client: GradingClient, thread_id: str, connection: Connection, work: Coroutine[Any, Any, Result]) -> Result:
    """Return what the work returns; the thread's worker is started again if it dies meanwhile."""

    async def keep_served() -> None:
        task_queue = await client.task_queue_of(thread_id)
        if OURS.fullmatch(task_queue):
            await keep_worker_alive(task_queue, connection)

    return await done_beside(work, keep_served())


async def _first_of(*work: Awaitable[object]) -> None:
    """Wait until one of the awaitables is done or has failed, and cancel all but the first of them."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks[1:]:
            task.cancel()


def choose_screen(console: Console, rubric: Rubric | None, *, as_json: bool) -> Screen:
    """Return the screen for this output: JSON lines, a live view on a terminal, or plain lines."""
    if as_json:
        return JsonScreen(console)
    return LiveScreen(console, rubric) if console.is_terminal and not console.is_dumb_terminal else PlainScreen(console, rubric)


REFUSAL_SECONDS = 1.0
"""Seconds for which a thread that has started is not shown: a worker that refuses it does so with its first step."""


async def run_task(task: Task, console: Console, *, as_json: bool, detach: bool) -> RunEnding:
    """Start a task's thread and follow it."""
    rubric = fill(task.request.rubric, task.request.vars)
    if not as_json:
        for note in task.notes:
            console.print(note, style="dim", soft_wrap=True)
        show_rubric(console, rubric)
    connection = await find()
    served = os.environ.get("GRADELOOP_TASK_QUEUE")
    client = GradingClient(await connect(connection), task_queue=served or await ensure_worker(task.worker, connection))
    thread_id = task.thread or f"run-{uuid4().hex[:8]}"
    with ctrl_c() as pressed:  # one that comes while the thread is being started is served once it is followed
        await client.start(task.request, thread_id=thread_id)
        if not served:
            await ensure_worker(task.worker, connection)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFUSAL_SECONDS):
                    await client.result(thread_id)
            screen = choose_screen(console, rubric, as_json=as_json)
            if detach:
                screen.show_thread(thread_id)
                screen.close()
                return RunEnding(thread_id, "detached")
            return await follow_with_interrupts(client, thread_id, screen, connection, pressed)
        except InvalidRequest:
            with suppress(GradeloopError):
                await _delete_unpaid(client, thread_id)
            raise


async def _delete_unpaid(client: GradingClient, thread_id: str) -> None:
    """Delete a thread that was refused before any call, so that the mended task may have its name; one that has paid for anything stays."""
    state, messages = await client.state(thread_id), await client.messages(thread_id)
    if not (state.usage.attempts or state.usage.calls or any(message.role == "assistant" for message in messages.items)):
        await request_deletion(client.temporal, thread_id)


async def fork_thread(place: str, console: Console, given: dict[str, Any], *, as_json: bool) -> RunEnding:
    """Start a fork of `THREAD@N`, with these arguments of `client.fork`, and follow it."""
    found = re.fullmatch(r"(.+)@(\d{1,9})", place, re.DOTALL | re.ASCII)
    thread, iteration = (found[1], int(found[2]) - 1) if found else (place, None)
    client, thread_id, connection = await open_thread(thread, fresh=True)
    fork_id = await _while_served(client, thread_id, connection, client.fork(thread_id, iteration, **given))
    return await watch_thread(fork_id, console, as_json=as_json, interrupts=True)


async def resume_thread(
    thread_id: str, console: Console, *, budget: Budget | None, as_json: bool, model: str | None = None, grader: str | None = None
) -> RunEnding:
    """Resume an interrupted thread, with other models where they are named, and follow it."""
    client, thread_id, connection = await open_thread(thread_id, fresh=True)

    async def read() -> tuple[Rubric | None, int]:
        state = await client.state(thread_id)
        return state.rubric, (await client.events(thread_id, after=10**9)).total

    rubric, seen = await _while_served(client, thread_id, connection, read())
    with ctrl_c() as pressed:
        async with beside(client.resume(thread_id, budget=budget, model=model, grader=grader)) as (resuming,):

            async def begin() -> None:
                while not resuming.done() and pressed.empty() and (await client.events(thread_id, after=10**9)).total == seen:
                    await asyncio.wait([resuming], timeout=0.05)
                if resuming.done():
                    resuming.result()

            await _while_served(client, thread_id, connection, begin())
            if not as_json:
                show_rubric(console, rubric)
            screen = choose_screen(console, rubric, as_json=as_json)
            return await follow_with_interrupts(client, thread_id, screen, connection, pressed, after=seen)


async def watch_thread(thread_id: str, console: Console, *, as_json: bool, interrupts: bool = False) -> RunEnding:
    """Show a thread from its first own event on, and follow it; Ctrl-C leaves it running, or `interrupts` it."""
    client, thread_id, connection = await open_thread(thread_id)

    async def read() -> tuple[Rubric | None, int]:
        state = await client.state(thread_id)
        if (origin := state.forked_from) is None:
            return state.rubric, 0
        forked = ("rubric_evaluation_end", origin.grading_run_id, origin.iteration)  # this event and those before are the old thread's
        events = (await client.events(thread_id)).items
        return state.rubric, max((one.seq for one in events if (one.type, one.grading_run_id, one.iteration) == forked), default=0)

    rubric, after = await _while_served(client, thread_id, connection, read())
    if not as_json:
        show_rubric(console, rubric)
    screen = choose_screen(console, rubric, as_json=as_json)
    with ctrl_c() as pressed:
        return await follow_with_interrupts(client, thread_id, screen, connection, pressed, interrupts=interrupts, after=after)


def show_rubric(console: Console, rubric: Rubric | None) -> None:
    """Print the rubric as it was understood."""
    for line in rubric_lines(rubric) if rubric and not rubric.cleared else ():
        print_line(console, line)
