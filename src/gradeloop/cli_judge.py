"""The commands about judges: runs judged, rubrics registered, judges held against people."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradeloop.cli_threads import Json, show_lines
from gradeloop.departure import CAPPED, NO_VERDICT, STOPPED

if TYPE_CHECKING:
    from gradeloop.judges.command import Order
    from gradeloop.judges.registry import Registry

judge_app = typer.Typer(rich_markup_mode=None)
rubrics_app = typer.Typer(
    help="Rubrics of judges, kept with their versions in the store (GRADELOOP_STORE).",
    short_help="Keep judges' rubrics with their versions.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

JudgeName = Annotated[str, typer.Argument(metavar="JUDGE", help="A judge or rubric in a file, or COLLECTION/RUBRIC[@VERSION].")]
Collection = Annotated[str, typer.Argument(metavar="COLLECTION", help="Where it is kept.")]
RubricId = Annotated[str, typer.Argument(metavar="RUBRIC", help="Its id.")]
JudgeFile = Annotated[Path, typer.Argument(metavar="FILE", help="A judge: YAML, JSON (Docent's too), or a rubric as text.")]


@judge_app.command()
def judge(  # noqa: PLR0913 - one parameter a flag
    judge: JudgeName,
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Files of runs (JSON, JSONL, .eval, text), or thread:ID.")],
    *,
    model: Annotated[str | None, typer.Option(help="Who judges, as provider:model.")] = None,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Judgements of each run.")] = 1,
    at_once: Annotated[int, typer.Option(min=1, max=1000, help="Judgements that are open at once.")] = 50,
    passes: Annotated[list[str] | None, typer.Option("--pass", help="What counts as passed, as KEY=VALUE; repeatable.")] = None,
    pass_rate: Annotated[float | None, typer.Option(min=0, max=1, help="Exit 1 where less than this passes.")] = None,
    allow_errors: Annotated[float, typer.Option(min=0, max=1, help="The share of failures that is borne.")] = 0.0,
    tools: Annotated[list[Path] | None, typer.Option("--tools", help="A Python file of evidence tools; repeatable.")] = None,
    scripted: Annotated[Path | None, typer.Option(help="A file of replies for the provider `scripted`.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the results there too, as JSON lines.")] = None,
    store: Annotated[bool, typer.Option("--store/--no-store", help="Whether results are kept in the store.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON line a result, as they come; nothing else on stdout.")] = False,
) -> None:
    """Judge finished runs, each paid for once."""
    from gradeloop.judges.command import Order, judged

    order = Order(judge, tuple(runs), model, repeats, at_once, tuple(passes or ()), tuple(tools or ()), scripted, output, store, as_json)
    outcome = asyncio.run(judged(order, needs_rule=pass_rate is not None))
    if outcome.stopped:
        typer.echo(_go_on(order), err=True)
        raise typer.Exit(STOPPED)
    if outcome.failures > allow_errors * outcome.total:
        raise typer.Exit(NO_VERDICT)
    if pass_rate is not None and outcome.judged and outcome.passed < pass_rate * outcome.judged:
        raise typer.Exit(CAPPED)


def _go_on(order: "Order") -> str:
    return f"stopped; the judgements that were begun go on. The same command again reads what is judged, and goes on with {order.judge}"


@judge_app.command()
def agreement(
    judge: JudgeName,
    labels: Annotated[Path, typer.Argument(metavar="LABELS", help="JSON lines: agent_run_id, label_value, reason?, created_by?.")],
    *,
    results: Annotated[Path | None, typer.Option(help="Judgements as `judge --json` wrote them; by default those in the store.")] = None,
    as_json: Json = False,
) -> None:
    """Say how far a judge agrees with people."""
    from gradeloop.judges.command import agreed
    from gradeloop.judges.judged_table import agreement_lines

    found = asyncio.run(agreed(judge, labels, results))
    show_lines(found.model_dump(mode="json"), agreement_lines(found), as_json=as_json)


@rubrics_app.command()
def create(collection: Collection, file: JudgeFile) -> None:
    """Register a rubric as version 1."""
    from gradeloop.judges.run_sources import read_judge

    async def work(registry: "Registry") -> None:
        made = await registry.create_rubric(collection, read_judge(file))
        typer.echo(f"{collection}/{made.rubric_id}@{made.version}")

    asyncio.run(_with_registry(work))


@rubrics_app.command()
def add(collection: Collection, rubric: RubricId, file: JudgeFile) -> None:
    """Register a rubric's next version; what is unchanged keeps its number."""
    from gradeloop.judges.run_sources import read_judge

    async def work(registry: "Registry") -> None:
        made = await registry.add_version(collection, rubric, read_judge(file))
        typer.echo(f"{collection}/{made.rubric_id}@{made.version}")

    asyncio.run(_with_registry(work))


@rubrics_app.command("list")
def list_rubrics(collection: Collection, *, as_json: Json = False) -> None:
    """List a collection's rubrics, each with its newest version."""

    async def work(registry: "Registry") -> None:
        found = await registry.list_rubrics(collection)
        lines = [f"{each.rubric_id}@{each.version}  {each.kind}  {each.sha256[:12]}  {each.changed:%Y-%m-%d %H:%M}" for each in found]
        show_lines([each.model_dump(mode="json") for each in found], lines or [f"no rubrics in {collection!r}"], as_json=as_json)

    asyncio.run(_with_registry(work))


@rubrics_app.command()
def show(
    collection: Collection, rubric: RubricId, *, version: Annotated[int | None, typer.Option(min=1, help="The newest by default.")] = None
) -> None:
    """Print a version of a rubric as JSON."""

    async def work(registry: "Registry") -> None:
        found = await registry.get_rubric(collection, rubric, version)
        typer.echo(json.dumps(found.model_dump(mode="json", exclude_none=True), ensure_ascii=False, indent=2))

    asyncio.run(_with_registry(work))


async def _with_registry(work: "Any") -> None:  # noqa: ANN401 - a coroutine function of the registry
    from gradeloop.judges.registry import Registry
    from gradeloop.store import own_store

    await work(Registry(own_store()))
