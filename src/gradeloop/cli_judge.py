"""The commands about judges: judge finished runs, measure agreement with people, keep rubrics in the registry."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradeloop.cli_help import CommandWithFormerFlags, codes_help
from gradeloop.cli_threads import Grader, Json, Scripted, Tools, show_lines
from gradeloop.departure import CAPPED, NO_VERDICT, STOPPED

if TYPE_CHECKING:
    from gradeloop.judges.command import Order
    from gradeloop.judges.registry import Registry

judge_app = typer.Typer(rich_markup_mode=None)
registry_app = typer.Typer(
    help="Keep judges' rubrics and their versions in the store that GRADELOOP_STORE names.",
    short_help="Keep judges' rubrics and their versions.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

CONCURRENCY_HELP = "Run at most this many judgements at the same time."
RULE_HELP = "Count a result as passed when its KEY is VALUE; repeatable."
ALLOW_ERRORS_HELP = "Exit 3 only when a larger share of judgements fail."

JudgeName = Annotated[str, typer.Argument(metavar="JUDGE", help="The judge: a file of a judge or rubric, or COLLECTION/RUBRIC[@VERSION].")]
Collection = Annotated[str, typer.Argument(metavar="COLLECTION", help="The collection's name.")]
RubricId = Annotated[str, typer.Argument(metavar="RUBRIC", help="The rubric's id.")]
JudgeFile = Annotated[Path, typer.Argument(metavar="FILE", help="The judge: YAML, JSON (Docent's too), or a rubric as text.")]


@judge_app.command(cls=CommandWithFormerFlags, epilog=codes_help("judge"))
def judge(  # noqa: PLR0913 - one parameter a flag
    judge: JudgeName,
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Runs to judge: files (JSON, JSONL, .eval, text), or thread:ID; repeatable.")
    ],
    *,
    grader: Grader = None,
    repeat: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Judge each run this many times.")] = 1,
    concurrency: Annotated[int, typer.Option("--concurrency", "-j", min=1, max=1000, metavar="N", help=CONCURRENCY_HELP)] = 50,
    passes: Annotated[list[str] | None, typer.Option("--pass", metavar="KEY=VALUE", help=RULE_HELP)] = None,
    pass_rate: Annotated[float | None, typer.Option(min=0, max=1, metavar="SHARE", help="Exit 1 when a smaller share passes.")] = None,
    allow_errors: Annotated[float, typer.Option(min=0, max=1, metavar="SHARE", help=ALLOW_ERRORS_HELP)] = 0.0,
    tools: Tools = None,
    scripted: Scripted = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write the results there, as JSON lines.")
    ] = None,
    store: Annotated[bool, typer.Option("--store/--no-store", help="Keep the results in the store, or do not.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per result, and nothing else on stdout.")] = False,
) -> None:
    """Judge finished runs; stored judgements are not paid for twice."""
    from gradeloop.judges.command import Order, judged

    order = Order(
        judge, tuple(runs), grader, repeat, concurrency, tuple(passes or ()), tuple(tools or ()), scripted, output, store, as_json
    )
    outcome = asyncio.run(judged(order, needs_rule=pass_rate is not None))
    if outcome.stopped:
        typer.echo(_stopped_message(order), err=True)
        raise typer.Exit(STOPPED)
    if outcome.failures > allow_errors * outcome.total:
        raise typer.Exit(NO_VERDICT)
    if pass_rate is not None and outcome.judged and outcome.passed < pass_rate * outcome.judged:
        raise typer.Exit(CAPPED)


def _stopped_message(order: "Order") -> str:
    return f"stopped; judgements in flight continue. Run the same command again to read them and judge the rest with {order.judge}"


@judge_app.command()
def agreement(
    judge: JudgeName,
    labels: Annotated[
        Path, typer.Argument(metavar="LABELS", help="People's labels as JSON lines: agent_run_id, label_value, reason?, created_by?.")
    ],
    *,
    results: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Read judgements that `judge --json` wrote, instead of the store's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how well a judge agrees with people."""
    from gradeloop.judges.command import agreed
    from gradeloop.judges.judged_table import agreement_lines

    found = asyncio.run(agreed(judge, labels, results))
    show_lines(found.model_dump(mode="json"), agreement_lines(found), as_json=as_json)


@registry_app.command()
def create(collection: Collection, file: JudgeFile) -> None:
    """Register a rubric as version 1."""
    from gradeloop.judges.run_sources import read_judge

    async def work(registry: "Registry") -> None:
        made = await registry.create_rubric(collection, read_judge(file))
        typer.echo(f"{collection}/{made.rubric_id}@{made.version}")

    asyncio.run(_with_registry(work))


@registry_app.command()
def add(collection: Collection, rubric: RubricId, file: JudgeFile) -> None:
    """Register a rubric's next version; an unchanged rubric keeps its version."""
    from gradeloop.judges.run_sources import read_judge

    async def work(registry: "Registry") -> None:
        made = await registry.add_version(collection, rubric, read_judge(file))
        typer.echo(f"{collection}/{made.rubric_id}@{made.version}")

    asyncio.run(_with_registry(work))


@registry_app.command("list")
def list_rubrics(collection: Collection, *, as_json: Json = False) -> None:
    """List a collection's rubrics with their newest versions."""

    async def work(registry: "Registry") -> None:
        found = await registry.list_rubrics(collection)
        lines = [f"{each.rubric_id}@{each.version}  {each.kind}  {each.sha256[:12]}  {each.changed:%Y-%m-%d %H:%M}" for each in found]
        show_lines([each.model_dump(mode="json") for each in found], lines or [f"no rubrics in {collection!r}"], as_json=as_json)

    asyncio.run(_with_registry(work))


@registry_app.command()
def show(
    collection: Collection,
    rubric: RubricId,
    *,
    version: Annotated[int | None, typer.Option(min=1, metavar="N", help="Print this version; the newest by default.")] = None,
) -> None:
    """Print a rubric as JSON."""

    async def work(registry: "Registry") -> None:
        found = await registry.get_rubric(collection, rubric, version)
        typer.echo(json.dumps(found.model_dump(mode="json", exclude_none=True), ensure_ascii=False, indent=2))

    asyncio.run(_with_registry(work))


async def _with_registry(work: "Any") -> None:  # noqa: ANN401 - a coroutine function of the registry
    from gradeloop.judges.registry import Registry
    from gradeloop.store import own_store

    await work(Registry(own_store()))
