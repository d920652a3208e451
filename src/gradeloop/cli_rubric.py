"""The commands about rubrics, and people's words on what was judged by them."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from gradeloop.cli_threads import Json, ThreadId, show_lines, with_thread


class _SupplyByDefault(TyperGroup):
    """`rubric THREAD FILE` is `rubric supply THREAD FILE`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - typer's own click has no public types
        known = bool(args) and args[0] in self.commands
        return super().resolve_command(ctx, args if known else ["supply", *args])


rubric_app = typer.Typer(
    cls=_SupplyByDefault,
    help="Give a thread a new rubric (`rubric THREAD FILE`), or `check` and `convert` one in a file.",
    short_help="Give a thread a new rubric; `check` and `convert` files.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
people_app = typer.Typer(rich_markup_mode=None)

RubricFile = Annotated[Path, typer.Argument(metavar="FILE", help="A rubric: YAML, JSON, or text.")]
Passes = Annotated[bool, typer.Option("--pass/--fail", help="Whether the criterion holds.")]
CallId = Annotated[str | None, typer.Argument(metavar="[CALL]", help="The call's id, as `state` tells it, where several wait.")]
By = Annotated[str | None, typer.Option(help="Who says so; by default you, as the system knows you.")]


@rubric_app.command()
def supply(thread: ThreadId, file: Annotated[str, typer.Argument(metavar="FILE", help="The rubric: a file, or its text.")]) -> None:
    """Give a thread a new rubric, also in the middle of a run."""
    from gradeloop.task_flags import read_rubric

    given = read_rubric(file)
    asyncio.run(with_thread(thread, lambda client, thread_id: client.supply_rubric(thread_id, given)))
    typer.echo(f"supplied; look with: gradeloop watch {thread}", err=True)


@rubric_app.command()
def check(file: RubricFile, *, as_json: Json = False) -> None:
    """Say how a rubric is understood, or what is wrong with it."""
    from gradeloop.rubric import Rubric
    from gradeloop.rubric_file import existing_rubric
    from gradeloop.rubric_lines import gate_lines, rubric_lines

    read = Rubric.model_validate(existing_rubric(file))
    lines = [line.head + line.body for line in rubric_lines(read)]
    show_lines(read.model_dump(mode="json", exclude_none=True), [*lines, *gate_lines(read)], as_json=as_json)


@rubric_app.command()
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A promptfoo configuration, test or assertions; or Mastra's scorers.")],
    *,
    source: Annotated[Literal["promptfoo", "mastra"] | None, typer.Option("--from", help="Whose it is; found out by default.")] = None,
    test: Annotated[int, typer.Option(min=0, help="Which of a configuration's tests, from 0.")] = 0,
) -> None:
    """Print promptfoo's or Mastra's rubric as one of ours."""
    from gradeloop.conversion import as_yaml, converted

    typer.echo(as_yaml(converted(file, source, test)), nl=False)


@people_app.command()
def decide(
    thread: ThreadId,
    criterion: Annotated[str, typer.Argument(metavar="CRITERION", help="The id of a criterion that waits for a person.")],
    *,
    passed: Passes,
    gap: Annotated[str | None, typer.Option(help="What the author has to mend, where it does not hold.")] = None,
    by: By = None,
) -> None:
    """Say whether a criterion holds that waits for a person."""
    asyncio.run(with_thread(thread, lambda client, thread_id: client.decide(thread_id, criterion, passed, gap=gap, by=by or _somebody())))
    typer.echo(f"decided; look with: gradeloop watch {thread}", err=True)


@people_app.command()
def approve(thread: ThreadId, call: CallId = None, *, by: By = None) -> None:
    """Let a tool call go on that waits for a person."""
    asyncio.run(with_thread(thread, lambda client, thread_id: client.approve(thread_id, call, by=by or _somebody())))
    typer.echo(f"approved; look with: gradeloop watch {thread}", err=True)


@people_app.command()
def deny(
    thread: ThreadId, call: CallId = None, *, why: Annotated[str, typer.Option(help="Told to whoever wanted it.")], by: By = None
) -> None:
    """Forbid a tool call that waits for a person."""
    asyncio.run(with_thread(thread, lambda client, thread_id: client.deny(thread_id, call, why=why, by=by or _somebody())))
    typer.echo(f"denied; look with: gradeloop watch {thread}", err=True)


@people_app.command()
def override(
    thread: ThreadId,
    criterion: Annotated[str, typer.Argument(metavar="CRITERION", help="The id of a criterion that was judged.")],
    *,
    passed: Passes,
    why: Annotated[str, typer.Option(help="Why the verdict was wrong.")],
    by: By = None,
    as_json: Json = False,
) -> None:
    """Put your verdict on a criterion beside the machine's."""
    from rich.text import Text

    from gradeloop.client import GradingClient

    async def say(client: GradingClient, thread_id: str) -> None:
        told = await client.override(thread_id, criterion, passed, why=why, by=by or _somebody())
        line = Text(f"iteration {told.iteration + 1}: {told.result}, with what people say {told.overridden_result}")
        show_lines(told.model_dump(mode="json"), [line], as_json=as_json)

    asyncio.run(with_thread(thread, say))


@people_app.command()
def prompt(
    thread: ThreadId,
    *,
    evaluation: Annotated[int | None, typer.Option(min=1, help="Which evaluation of the thread, from 1; the last one by default.")] = None,
    group: Annotated[int, typer.Option(min=1, help="Which of its calls, from 1.")] = 1,
    as_json: Json = False,
) -> None:
    """Show what the grader of an evaluation was given."""
    from gradeloop.client import GradingClient
    from gradeloop.errors import InvalidRequest
    from gradeloop.rubric_lines import prompt_lines

    async def show(client: GradingClient, thread_id: str) -> None:
        index = evaluation - 1 if evaluation else (await client.evaluations(thread_id, after=10**9)).total - 1
        given = await client.prompt(thread_id, index, group=group - 1)
        if given is None:
            raise InvalidRequest(f"{thread_id}: no grader was asked there, or its rubric is not kept any more; the last two are")
        show_lines(json.loads(given.model_dump_json()), prompt_lines(given), as_json=as_json)

    asyncio.run(with_thread(thread, show))


def _somebody() -> str:
    """Return the name of whoever types."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"
