"""Commands on rubrics, prompts and the decisions of people, and the inbox of what waits for them."""

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.rule import Rule
from rich.text import Text
from typer.core import TyperGroup

from gradeloop.cli.commands import AllowOutside, Json, Limit, ThreadId, subcommands
from gradeloop.cli.folder import own_outside_roots
from gradeloop.cli.render.run import decision_commands, gate_lines, prompt_lines, question_lines, rejection_lines, rubric_lines
from gradeloop.cli.render.table import show_lines
from gradeloop.cli.task_file import read_rubric
from gradeloop.cli.threads import with_thread
from gradeloop.client.client import GradingClient
from gradeloop.client.waiting import StoredQuestions, WaitingThread, stored_questions, waiting_threads
from gradeloop.contract.rubric import Rubric
from gradeloop.errors import InvalidRequest, StoreUnavailable
from gradeloop.extensions import load
from gradeloop.files.roots import FileScope
from gradeloop.files.rubric import load_rubric
from gradeloop.grading.rubric_lint import lint_rubric
from gradeloop.settings.paths import user_name
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import connect, find
from gradeloop.text import duration, one_line


class _SupplyByDefault(TyperGroup):
    """`rubric THREAD FILE` is `rubric supply THREAD FILE`; extensions bring further commands, as `rubric convert`."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(**settings)
        for name, command in subcommands("rubric").items():
            self.commands[name] = typer.main.get_command(load(command.app))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own click has no public types
        known = bool(args) and args[0] in self.commands
        return super().resolve_command(ctx, args if known else ["supply", *args])


app = typer.Typer(rich_markup_mode=None)
rubric_app = typer.Typer(
    cls=_SupplyByDefault,
    help="Give a thread a new rubric (`rubric THREAD FILE`), or check or convert a rubric file.",
    short_help="Give a thread a new rubric; check or convert a rubric file.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(rubric_app, name="rubric")

RubricFile = Annotated[Path, typer.Argument(metavar="FILE", help="The rubric's file: YAML, JSON, or text.")]
Passes = Annotated[bool, typer.Option("--pass/--fail", help="Pass or fail the criterion.")]
CallId = Annotated[str | None, typer.Argument(metavar="CALL", help="The call's id, which `state` prints; needed if several wait.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Record this name; your user name by default.")]


@rubric_app.command()
def supply(
    thread: ThreadId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The rubric's file, or its text.")],
    *,
    allow_outside: AllowOutside = None,
) -> None:
    """Give a thread a new rubric, even in the middle of a run."""
    given: Any = read_rubric(file, own_outside_roots(allow_outside))  # the client refuses what is not a rubric
    asyncio.run(with_thread(thread, lambda client, thread_id: client.supply_rubric(thread_id, given), fresh=True))
    typer.echo(f"rubric replaced; follow it with: gradeloop watch {thread}", err=True)


@rubric_app.command()
def check(file: RubricFile, *, allow_outside: AllowOutside = None, as_json: Json = False) -> None:
    """Show how a rubric is read, or what is wrong with it."""
    read = Rubric.model_validate(load_rubric(file, FileScope.of(file, own_outside_roots(allow_outside))))
    lines = [line.head + line.body for line in rubric_lines(read)]
    show_lines(read.model_dump(mode="json", exclude_none=True), [*lines, *gate_lines(read)], as_json=as_json)
    for finding in lint_rubric(read):
        better = f"; better: {' / '.join(map(one_line, finding.better))}" if finding.better else ""
        typer.echo(f"{finding.criterion}: {finding.problem}: {one_line(finding.why)}{better}", err=True)


@app.command()
def decide(
    thread: ThreadId,
    criterion: Annotated[str, typer.Argument(metavar="CRITERION", help="The id of the criterion that waits for a person.")],
    *,
    passed: Passes,
    gap: Annotated[str | None, typer.Option(metavar="TEXT", help="Say what the author must fix; for --fail.")] = None,
    by: By = None,
) -> None:
    """Pass or fail a criterion that waits for a person."""
    asyncio.run(
        with_thread(
            thread, lambda client, thread_id: client.decide(thread_id, criterion, passed, gap=gap, by=by or user_name()), fresh=True
        )
    )
    typer.echo(f"decided; follow it with: gradeloop watch {thread}", err=True)


@app.command()
def approve(thread: ThreadId, call: CallId = None, *, by: By = None) -> None:
    """Approve a tool call that waits for a person."""
    asyncio.run(with_thread(thread, lambda client, thread_id: client.approve(thread_id, call, by=by or user_name()), fresh=True))
    typer.echo(f"approved; follow it with: gradeloop watch {thread}", err=True)


@app.command()
def deny(
    thread: ThreadId,
    call: CallId = None,
    *,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Give the model this reason.")],
    by: By = None,
) -> None:
    """Deny a tool call that waits for a person."""
    asyncio.run(with_thread(thread, lambda client, thread_id: client.deny(thread_id, call, why=why, by=by or user_name()), fresh=True))
    typer.echo(f"denied; follow it with: gradeloop watch {thread}", err=True)


@app.command()
def override(
    thread: ThreadId,
    criterion: Annotated[str, typer.Argument(metavar="CRITERION", help="The id of the judged criterion.")],
    *,
    passed: Passes,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Say why the verdict was wrong.")],
    by: By = None,
    as_json: Json = False,
) -> None:
    """Override a verdict; the grader's own is kept beside yours."""

    async def work(client: GradingClient, thread_id: str) -> None:
        judged = await client.override(thread_id, criterion, passed, why=why, by=by or user_name())
        line = Text(f"iteration {judged.iteration + 1}: {judged.result}, with overrides {judged.overridden_result}")
        show_lines(judged.model_dump(mode="json"), [line], as_json=as_json)

    asyncio.run(with_thread(thread, work))


@app.command()
def prompt(
    thread: ThreadId,
    *,
    evaluation: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Show this evaluation, counted from 1; the last by default.")
    ] = None,
    group: Annotated[int, typer.Option(min=1, metavar="N", help="Show this grader call of the evaluation, counted from 1.")] = 1,
    as_json: Json = False,
) -> None:
    """Show the prompt that the grader of an evaluation received."""

    async def work(client: GradingClient, thread_id: str) -> None:
        index = evaluation - 1 if evaluation else (await client.evaluations(thread_id, after=10**9)).total - 1
        given = await client.prompt(thread_id, index, group=group - 1)
        if given is None:
            why = "this evaluation has no grader call, or its rubric has expired (the last two are kept)"
            raise InvalidRequest(f"{thread_id}: {why}; choose another --evaluation")
        show_lines(json.loads(given.model_dump_json()), prompt_lines(given), as_json=as_json)

    asyncio.run(with_thread(thread, work))


@app.command()
def inbox(*, limit: Limit = 20, as_json: Json = False) -> None:
    """Show what waits for a person, oldest first."""

    async def read() -> tuple[list[WaitingThread], Iterator[Text | Rule]]:
        found = await waiting_threads(await connect(await find()), limit=limit)
        questions: list[StoredQuestions] = []
        with contextlib.suppress(InvalidRequest, StoreUnavailable):  # threads need no store
            questions = [] if as_json else await stored_questions(own_store(), user_name())
        return found, inbox_lines(found, datetime.now(UTC), questions)

    found, lines = asyncio.run(read())
    show_lines([thread.model_dump(mode="json") for thread in found], lines, as_json=as_json)


def inbox_lines(waiting: list[WaitingThread], now: datetime, questions: Sequence[StoredQuestions] = ()) -> Iterator[Text | Rule]:
    """Yield a card for each thread: its task, since when it waits, the draft with its verdicts and changes, the commands that decide.

    What extensions ask comes after them, such as unsure cases and runs to label.
    """
    others = [line for asked in questions for line in asked.lines()]
    if waiting:
        yield from _thread_lines(waiting, now)
    elif not others:
        yield Text("nothing waits for a person")
    yield from others


def _thread_lines(waiting: Sequence[WaitingThread], now: datetime) -> Iterator[Text | Rule]:
    yield Text(f"{len(waiting):,} waiting for a person, oldest first", "bold yellow")
    for thread in waiting:
        yield Rule(style="dim")
        since = duration(max((now - thread.since).total_seconds(), 0.0))
        yield Text(one_line(thread.task or thread.thread_id), "bold").append(f"  waiting for {since}  {one_line(thread.thread_id)}", "dim")
        if thread.problem:
            yield Text(f"  {one_line(thread.problem)}", "bold yellow")
        if thread.waiting_for:
            yield from question_lines(thread.waiting_for, thread.waiting_for.draft.text if thread.waiting_for.draft else None)
            yield from rejection_lines(thread.rejections)
            yield from decision_commands(thread.thread_id, thread.waiting_for)
