"""Commands on monitors: create, list, show, pause, resume, run-now, export and delete them."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text
from temporalio.client import Client

from gradeloop.batches.cli.judge import WriteBack
from gradeloop.batches.gate import expected_shares
from gradeloop.calibration.agreement import Agreement, measure_agreement
from gradeloop.calibration.cli.measure import agreement_lines
from gradeloop.cli.commands import (
    RISK_HELP,
    Grader,
    Json,
    OutsideFolders,
    Overwrite,
    Scripted,
    Tenant,
    ToolFiles,
    Trust,
    share_flag,
    takes,
)
from gradeloop.cli.folder import own_config_file, own_outside_roots
from gradeloop.cli.render.table import Column, show_lines, table
from gradeloop.contract.thread import TASK_QUEUE
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import GradeloopError, InvalidRequest, explained
from gradeloop.files.output import refuse_foreign
from gradeloop.judges.contract import CriteriaJudge, JudgeConfig, SchemaJudge
from gradeloop.judges.judgements import Judgements, Label, LabelSet, label_schema, read_labels
from gradeloop.judges.pass_rule import PassRule, passes_rule
from gradeloop.judges.sources import load_judge, names_file, with_model
from gradeloop.monitors import contract, overview
from gradeloop.monitors.anchor_runs import LABEL_KEY, Anchor, anchors_of, plan_of_anchors
from gradeloop.monitors.anchors import ANCHORS_PER_TICK, MOST_ANCHORS
from gradeloop.monitors.cli.monitor_suite import write_suite
from gradeloop.monitors.client import NO_WORKER, MonitorSchedule, MonitorSchedules
from gradeloop.monitors.labelling import LabelledRun, LabelTask, MonitorLabels, label_value
from gradeloop.settings.paths import user_name
from gradeloop.settings.worker import with_tenant
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import WorkerSpec, connect, ensure_worker, find, is_polled, wake_worker
from gradeloop.text import canonical_json, clip, counted, duration, json_without_commands, money, one_line, parse_share, without_commands
from gradeloop.transcripts.readers import read_run_file

app = typer.Typer(rich_markup_mode=None)
monitor_app = typer.Typer(
    help="Judge a sample of production as it happens: rates with their intervals, drift, and alerts. The store has what monitors find.",
    short_help="Judge a sample of production as it happens.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(monitor_app, name="monitor")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The monitor's name.")]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

SHOWN = 10
"""The ticks that `show` prints."""

SAYS = {"passed": True, "failed": False}


@monitor_app.command()
def label(  # noqa: PLR0913 - one parameter a flag
    name: Name,
    run: Annotated[str | None, typer.Argument(metavar="RUN", help="The run; without one, the next that waits is shown.")] = None,
    verdict: Annotated[str | None, typer.Argument(metavar="VERDICT", help="What holds of it: passed or failed.")] = None,
    *,
    by: Annotated[str | None, typer.Option(metavar="PERSON", help="Who says so; the user's name by default.")] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why.")] = "",
    agreement: Annotated[bool, typer.Option("--agreement", help="Say how far the judge agrees with the labels.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write all labels, as agreement takes them.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Label judged runs, without seeing what the judge says.

    Failed runs wait for a label, and as many that passed. What people say measures the judge.
    """
    labels, person = MonitorLabels(own_store()), by or user_name()
    if run is not None:
        if verdict not in SAYS:
            raise InvalidRequest(f"the label is {clip(verdict) if verdict else 'missing'}; write passed or failed behind the run")
        run_id = asyncio.run(labels.give(name, run, person, passed=SAYS[verdict], reason=reason))
        show_lines({"run_id": run_id, "label": verdict, "created_by": person}, [f"{run_id}: {verdict}, says {person}"], as_json=as_json)
    elif agreement or output is not None:
        definition, given = asyncio.run(overview.MonitorReader(own_store()).require(name)).definition, asyncio.run(labels.given(name))
        if output is not None:
            refuse_foreign(output, overwrite=overwrite)
            output.parent.mkdir(parents=True, exist_ok=True)
            rows = [json.dumps(one.model_dump(mode="json", exclude_none=True)) + "\n" for one in as_labels(definition, given).labels]
            output.write_text("".join(rows), encoding="utf-8")
            typer.echo(f"wrote {counted(len(rows), 'label')} to {output}", err=True)
        if agreement:
            found = agreement_of(definition, given)
            show_lines(found.model_dump(mode="json"), agreement_lines(found), as_json=as_json)
    else:
        task = asyncio.run(labels.next_task(name, person))
        show_lines(None if task is None else task.model_dump(mode="json"), _task_lines(name, task), as_json=as_json)


def as_labels(definition: contract.MonitorDefinition, given: tuple[LabelledRun, ...]) -> LabelSet:
    """Return what people say in the form that measures a judge; a fail that names no value of the judge's keys is left out."""
    found = list[Label]()
    for one in given:
        if (value := label_value(definition.judge, definition.passes, passed=one.passed)) is not None:
            found.append(Label(agent_run_id=one.run_id, label_value=value, reason=one.reason, created_by=one.created_by))
    return LabelSet(label_schema=label_schema(definition.judge), labels=tuple(found))


def agreement_of(definition: contract.MonitorDefinition, given: tuple[LabelledRun, ...]) -> Agreement:
    """Return how far a monitor's judge agrees with people; raise InvalidRequest without labels, or without their judgements."""
    if not given:
        raise InvalidRequest(f"nobody has labelled a run yet; `gradeloop monitor label {definition.name}` shows one that waits")
    judgements = Judgements(by_run={one.run_id: (one.judgement,) for one in given if one.judgement is not None})
    return measure_agreement(definition.judge, as_labels(definition, given), judgements, passes=definition.passes)


def _task_lines(name: str, task: LabelTask | None) -> Iterator[str | Text]:
    if task is None:
        yield f"no run of {name} waits for your label"
        return
    yield f"{counted(task.waiting, 'run')} to label; this one is {one_line(task.run_id)}"
    for message in task.messages:
        yield ""
        yield f"{message.role}:"
        yield without_commands(message.content)
    yield ""
    yield "say what holds of it with one of:"
    for says in SAYS:
        yield Text(f"  gradeloop monitor label {name} {task.run_sha256} {says} --reason TEXT")


@dataclass(frozen=True)
class CreateOptions:
    """The arguments and flags of one `gradeloop monitor create`."""

    name: Name
    source: Annotated[str, typer.Option(metavar="KIND:PLACE", help="Read folder:/PATH, s3://BUCKET, sql:VARIABLE, otlp or threads.")]
    judge: Annotated[str, typer.Option(metavar="JUDGE", help="Judge by this file, or COLLECTION/RUBRIC[@VERSION] of the registry.")]
    shadow: Annotated[str | None, typer.Option(metavar="JUDGE", help="Have this judge judge the same sample, to compare.")] = None
    query: Annotated[str | None, typer.Option(metavar="SQL", help="The query of a sql: source.")] = None
    watermark: Annotated[str | None, typer.Option(metavar="COLUMN", help="The column of the query that only grows.")] = None
    where: Annotated[tuple[str, ...], typer.Option(metavar="KEY=VALUE", help="Read only otlp runs, or threads, with this.")] = ()
    quiet: Annotated[str | None, typer.Option(metavar="TIME", help="Leave what changed within this time to a later tick.")] = None
    passes: Annotated[tuple[str, ...], typer.Option("--pass", metavar="KEY=VALUE", help="What passes, for a judge with a schema.")] = ()
    sample: Annotated[tuple[str, ...], typer.Option(metavar="SHARE", help="Judge this share; STRATUM=SHARE for one stratum.")] = ()
    stratum: Annotated[str | None, typer.Option(metavar="KEY", help="Tell rates apart by this key of the metadata.")] = None
    always: Annotated[tuple[str, ...], typer.Option(metavar="KEY[=VALUE]", help="Always judge these, outside of the rate.")] = ()
    every: Annotated[str, typer.Option(metavar="TIME", help="The time from tick to tick, such as 30s, 10m or 1h.")] = "10m"
    budget: Annotated[float | None, typer.Option(metavar="USD", help="What the judge may cost a day, in US dollars.")] = None
    alert: Annotated[tuple[str, ...], typer.Option(metavar="RULE", help="Warn by a rule such as 'pass_rate < 0.9'.")] = ()
    tenant: Tenant = None
    drift: Annotated[bool, typer.Option("--drift/--no-drift", help="Warn when the rate leaves that of the first runs.")] = True
    baseline: Annotated[int, typer.Option(min=contract.LEAST_BASELINE, metavar="RUNS", help="First runs: so many, or a day's.")] = (
        contract.BASELINE_RUNS
    )
    anchors: Annotated[Path | None, typer.Option(metavar="FILE", help="Watch the judge itself by these labelled runs.")] = None
    anchor_labels: Annotated[Path | None, typer.Option(metavar="FILE", help="The anchors' labels; their metadata by default.")] = None
    anchors_per_tick: Annotated[
        int, typer.Option(min=1, max=MOST_ANCHORS, metavar="N", help="How many anchors a tick judges, in turn.")
    ] = ANCHORS_PER_TICK
    notify: Annotated[tuple[str, ...], typer.Option(metavar="WEBHOOK", help="Tell this webhook of the worker's settings.")] = ()
    write_back: WriteBack = None
    grader: Grader = None
    scripted: Scripted = None
    tools: ToolFiles = ()
    allow_outside: OutsideFolders = ()
    trust: Trust = False
    as_json: Json = False


@monitor_app.command()
@takes(CreateOptions)
def create(options: CreateOptions) -> None:
    """Create a monitor, and start its schedule.

    Creating it again changes nothing; another monitor of this name is refused.
    """
    name, every = options.name, options.every
    chosen: dict[str, Any] = {
        **{key: getattr(options, key) for key in ("name", "passes", "stratum", "drift", "notify", "write_back")},
        "tenant": priority.tenant if (priority := with_tenant(None, options.tenant)) else None,
        "source": _source(options),
        "every": round(_seconds(every, "--every")),
        "budget_usd": options.budget,
        "baseline_runs": options.baseline,
        "always": tuple(map(contract.AlwaysRule.parse, options.always)),
        "alerts": tuple(map(contract.AlertRule.parse, options.alert)),
        **_shares(options.sample),
    }
    spec = WorkerSpec(tools=options.tools, scripted=options.scripted, config=own_config_file(trust=options.trust))
    if options.anchor_labels is not None and options.anchors is None:
        raise InvalidRequest("--anchor-labels says what holds of anchors; name their file with --anchors")
    is_new, stays = asyncio.run(_create(chosen, options, spec))
    said = f"monitor {name} {'reads every' if is_new else 'was there already, and reads every'} {every}"
    lines = [f"{said}; look at it with: gradeloop monitor show {name}", *([] if stays else [_UNATTENDED])]
    show_lines({"name": name, "created": is_new}, lines, as_json=options.as_json)


_UNATTENDED = (
    "its worker ends once it is idle, and later ticks wait for one: run `gradeloop dev`, with the files that you named here, "
    "and create the monitor again without them"
)
"""Note of `create` about a monitor without a permanent worker."""


async def _create(chosen: dict[str, Any], options: CreateOptions, spec: WorkerSpec) -> tuple[bool, bool]:
    """Return whether the monitor is new, and whether its ticks have a lasting worker, not one that ends when idle."""
    from gradeloop.judges.registry import JudgeRegistry

    store, outside = own_store(), own_outside_roots(options.allow_outside)
    loaded = [
        None if name is None else await load_judge(name, None if names_file(name) else JudgeRegistry(store), outside)
        for name in (options.judge, options.shadow)
    ]
    connection = await find()
    client = await connect(connection)
    served = await _served_queue(spec, client)

    def servable(judge: JudgeConfig | None) -> JudgeConfig | None:
        if judge is None:
            return None
        judge, _ = with_model(judge, options.grader, scripted=spec.scripted is not None, own_keys=served is None)
        if judge.escalate is not None:
            raise InvalidRequest("the judge escalates, and a monitor asks one judge; take `escalate` out of it")
        return judge

    judge, shadow = map(servable, loaded)
    with explained():
        definition, anchors = contract.MonitorDefinition.model_validate(chosen | {"judge": judge, "shadow": shadow}), tuple[Anchor, ...]()
    if options.anchors is not None:
        anchors = read_anchors(options.anchors, options.anchor_labels, definition.judge, definition.passes)
        definition = definition.model_copy(update={"anchors": plan_of_anchors(anchors, options.anchors_per_tick)})
    task_queue = served or await ensure_worker(spec, connection)
    is_new = await overview.MonitorReader(store).create(definition, anchors)
    priority = definition.priority if definition.tenant else None
    await MonitorSchedules(client).create(definition.name, definition.every, task_queue, priority=priority)
    return is_new, served is not None


async def _served_queue(spec: WorkerSpec, client: Client) -> str | None:
    """Return the queue of a worker that stays: the one that a variable names, or `gradeloop`, where files are named for no other worker."""
    if named := os.environ.get("GRADELOOP_TASK_QUEUE"):
        return named
    return TASK_QUEUE if not (spec.tools or spec.scripted) and await is_polled(client, TASK_QUEUE) else None


def _source(options: CreateOptions) -> dict[str, Any]:
    kind, where = options.source.partition(":")[0], options.where
    if kind != "sql" and (options.query or options.watermark):
        raise InvalidRequest("--query and --watermark are for a sql: source; leave them out")
    if kind not in {"otlp", "threads"} and where:
        raise InvalidRequest("--where is for the sources otlp and threads; leave it out")
    if kind in {"otlp", "sql"} and options.quiet:
        raise InvalidRequest("--quiet is for folders, buckets and threads; leave it out")
    quiet = None if options.quiet is None else _quiet_seconds(options.quiet, kind)
    if bad := next((pair for pair in where if not pair.partition("=")[0] or "=" not in pair), None):
        example = "deployment.environment.name=production" if kind == "otlp" else "status=satisfied"
        raise InvalidRequest(f"--where {clip(bad)} is not a pair; write KEY=VALUE, such as {example}")
    pairs = dict(pair.split("=", 1) for pair in where)
    flags = contract.SourceFlags(options.source, options.query, options.watermark, quiet, pairs)
    for row in contract.SOURCES:
        if (said := row.flag(flags)) is not None:
            return {"kind": row.name, **said}
    *others, last = (row.written for row in contract.SOURCES)
    raise InvalidRequest(f"--source {clip(options.source)} is not a source; write {', '.join(others)} or {last}")


def _quiet_seconds(text: str, kind: str) -> float:
    """Return for how long a source is left to settle; one that tells changes late must have some time for it."""
    try:
        return contract.require_quiet(_seconds(text, "--quiet"), "bucket" if kind == "s3" else kind, clip(text))
    except ValueError as error:
        raise InvalidRequest(f"--quiet {error}") from None


def _seconds(text: str, flag: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if found is None:
        raise InvalidRequest(f"{flag} {clip(text)} is not a time; write a number with s, m, h or d behind it, such as 10m")
    return float(found[1]) * _SECONDS[found[2]]


def _shares(texts: Sequence[str]) -> dict[str, Any]:
    """Return the share of all runs, and those of strata."""
    shares: dict[str, Any] = {"strata": {}}
    for text in texts:
        name, found, value = text.rpartition("=")
        try:
            share = parse_share(value)
        except ValueError as error:
            raise InvalidRequest(f"--sample: {error}, or STRATUM=5% for one stratum") from None
        if found:
            shares["strata"][name] = share
        else:
            shares["sample"] = share
    return shares


@monitor_app.command("list")
def list_monitors(*, as_json: Json = False) -> None:
    """List the monitors with their rates."""
    found, unserved, problem = asyncio.run(_listed())
    rows = table(
        [
            Column("monitor", [one.name for one in found], wraps=True),
            Column("every", [duration(one.definition.every) for one in found]),
            Column("ticks", [str(one.state.ticks) for one in found]),
            Column("pass rate", [overview.rate_text(one.rate) for one in found], wraps=True),
            Column("alerts", [one_line(", ".join(alert.kind for alert in one.open_alerts)) or "none" for one in found], wraps=True),
        ]
    )
    said = [f"{name}: {NO_WORKER}" for name in sorted(unserved)] + ([problem] if problem else [])
    values = [
        one.model_dump(mode="json", include={"name", "rate", "state"})
        | {"alerts": [alert.kind for alert in one.open_alerts]}
        | ({} if problem else {"is_served": one.name not in unserved})
        for one in found
    ]
    show_lines(values, [rows, *said] if found else ["no monitors yet"], as_json=as_json)


async def _listed() -> tuple[list[overview.MonitorSummary], frozenset[str], str]:
    """Return all monitors, those without a worker, and why the server cannot say which these are; empty where it can."""
    found = await overview.MonitorReader(own_store()).summaries()
    if not found:
        return found, frozenset(), ""
    try:
        return found, await MonitorSchedules(await connect(await find())).unserved([one.name for one in found]), ""
    except GradeloopError as error:
        return found, frozenset(), f"whether a worker is there for their ticks is not known: {error}"


@monitor_app.command()
def show(name: Name, *, as_json: Json = False) -> None:
    """Show what a monitor has found.

    The rates with their intervals, the alerts, the newest ticks and the newest failures.
    """

    async def work() -> tuple[overview.MonitorSummary, MonitorSchedule | None]:
        summary = await overview.MonitorReader(own_store()).summary(name)
        return summary, await MonitorSchedules(await connect(await find())).find(name)

    found, schedule = asyncio.run(work())
    value = found.model_dump(mode="json") | {"schedule": schedule and schedule.model_dump(mode="json")}
    show_lines(value, [*_schedule_lines(found, schedule), *_summary_lines(found)], as_json=as_json)


def _schedule_lines(found: overview.MonitorSummary, schedule: MonitorSchedule | None) -> Iterator[str]:
    when = "no schedule on this server" if schedule is None else "paused" if schedule.paused else f"next tick {schedule.next_tick}"
    yield f"monitor {found.name}: every {duration(found.definition.every)}, {when}"
    if schedule is not None and not schedule.is_served:
        yield NO_WORKER


def _summary_lines(found: overview.MonitorSummary) -> Iterator[object]:
    yield f"pass rate {overview.rates_text(found.rate, found)} in the newest {counted(len(found.ticks), 'tick')}"
    yield from (one_line(f"  {stratum}: {overview.rates_text(rate, found)}") for stratum, rate in found.strata.items())
    if said := overview.undecided_text(found):
        yield f"no alert yet: {said}"
    yield from filter(
        None,
        (
            note(found)
            for note in (overview.waiting_text, overview.anchor_text, overview.labels_text, overview.shadow_text, overview.backfill_text)
        ),
    )
    for alert in found.alerts[:SHOWN]:
        over = f", over since {alert.cleared}" if alert.cleared else ""
        yield one_line(f"{'alert' if alert.cleared is None else 'past alert'} {alert.time}: {alert.said}{over}")
        if alert.runs and alert.cleared is None:
            yield one_line(f"  newest failed runs: {', '.join(alert.runs)}")
    if found.ticks:
        yield _tick_table(found, found.ticks[:SHOWN])
    yield from (one_line(f"failed: {run.run_id} (tick {run.tick})") for run in found.failed[:SHOWN])


def _tick_table(found: overview.MonitorSummary, ticks: Sequence[contract.TickReport]) -> object:
    return table(
        [
            Column("tick", [str(tick.number) for tick in ticks]),
            Column("read", [str(tick.read) for tick in ticks]),
            Column("pass rate", [overview.rates_text(tick.rate, found) if tick.settled else "being judged" for tick in ticks], wraps=True),
            Column("errors", [str(tick.errors) for tick in ticks]),
            Column("unjudged", [str(tick.unjudged + tick.over_budget) for tick in ticks]),
            Column("cost", ["" if tick.cost_usd is None else money(tick.cost_usd) for tick in ticks]),
            Column("notes", [one_line(overview.tick_notes(tick)) for tick in ticks], wraps=True),
        ]
    )


@monitor_app.command()
def pause(name: Name) -> None:
    """Begin no further tick; what runs goes on."""
    asyncio.run(_change(name, "pause"))
    typer.echo(f"paused {name}; resume it with: gradeloop monitor resume {name}")


@monitor_app.command()
def resume(name: Name) -> None:
    """Begin ticks again.

    The next one reads all that came meanwhile.
    """
    asyncio.run(_change(name, "resume"))
    typer.echo(f"resumed {name}")


@monitor_app.command("run-now")
def run_now(name: Name) -> None:
    """Begin a tick now, or after the one that runs."""
    asyncio.run(_change(name, "run_now"))
    typer.echo(f"a tick of {name} begins; look at it with: gradeloop monitor show {name}")


@monitor_app.command()
def accept(name: Name) -> None:
    """Take a change that was meant as the new normal.

    Ends alerts on the judge and on drift; ticks to come are compared with the next ones.
    """
    over = asyncio.run(overview.MonitorReader(own_store()).accept(name))
    typer.echo(f"{name} begins anew: {', '.join(over) + ' over' if over else 'no alert was open'}; the next ticks are its beginning")


@dataclass(frozen=True)
class BackfillOptions:
    """The argument and the flags of `gradeloop monitor backfill`."""

    name: Name
    since: Annotated[str, typer.Option(metavar="DATE", help="Read the source since this date, or value of the watermark.")]
    sample: Annotated[str | None, typer.Option(metavar="SHARE", help="Judge this share; the monitor's own by default.")] = None
    preview: Annotated[bool, typer.Option("--preview", help="Print the calls to make and their cost, and judge nothing.")] = False
    until: Annotated[Literal["decided"] | None, typer.Option(help="Judge in random order, and end once --pass-rate is answered.")] = None
    pass_rate: Annotated[float | None, typer.Option(parser=share_flag, metavar="SHARE", help="With --until: the share to pass.")] = None
    risk: Annotated[float | None, typer.Option(parser=share_flag, metavar="SHARE", help=RISK_HELP)] = None
    as_json: Json = False

    def gate(self) -> contract.BackfillGate | None:
        """Return the question whose answer ends the backfill; None where all is judged."""
        if (self.until is None) != (self.pass_rate is None) or (self.until is None and self.risk is not None):
            raise InvalidRequest("--until decided needs --pass-rate SHARE, and --risk belongs to it; name them together, or leave them out")
        given = {"pass_rate": self.pass_rate} | ({} if self.risk is None else {"risk": self.risk})
        with explained():
            return None if self.until is None else contract.BackfillGate.model_validate(given)


@monitor_app.command()
@takes(BackfillOptions)
def backfill(options: BackfillOptions) -> None:
    """Judge runs that the monitor has passed without a verdict.

    Its ticks judge them behind their own runs, 100 a tick, within the budget a day.
    """
    share = None if options.sample is None else _shares([options.sample]).get("sample")
    if options.sample is not None and not share:
        raise InvalidRequest(f"--sample {clip(options.sample)} is not a share of all runs; write 5% or 0.05")
    call = contract.BackfillCall(monitor=options.name, since=options.since, share=share, preview=options.preview, gate=options.gate())
    found = asyncio.run(_backfill(call))
    show_lines(found.model_dump(mode="json"), list(_backfill_lines(call, found)), as_json=options.as_json)


async def _backfill(call: contract.BackfillCall) -> contract.BackfillReport:
    monitor = await overview.MonitorReader(own_store()).require(call.monitor)
    connection = await find()
    schedules = MonitorSchedules(await connect(connection))
    task_queue = await schedules.queue_of(call.monitor)
    await wake_worker(task_queue, connection)
    priority = monitor.definition.priority if monitor.definition.tenant else None
    return await schedules.backfill(call.model_copy(update={"priority": priority}), task_queue)


def _backfill_lines(call: contract.BackfillCall, found: contract.BackfillReport) -> Iterator[str]:
    others = {
        "have a verdict": found.done,
        "wait already": found.waiting,
        "are left out by the share": found.left_out,
        "cannot be judged": found.unjudgeable,
        "cannot be read": found.unreadable,
    }
    yield f"{counted(found.read, 'run')} since then" + "".join(f"; {number:,} {what}" for what, number in others.items() if number)
    yield from (f"unreadable: {reason}" for reason in found.refused)
    cost = "a model's price is not known" if found.cost_usd is None else f"about {money(found.cost_usd) or '$0'}"
    cached = f", {found.cached:,} more are in the cache" if found.cached else ""
    verb = "would be judged" if call.preview else "will be judged"
    yield f"{counted(found.chosen, 'run')} {verb}: {counted(found.calls, 'call')}{cached}; {cost}"
    if call.gate is not None and found.chosen:
        yield f"until decided, {expected_shares(found.chosen, call.gate.pass_rate, call.gate.risk, 'judge')}"
    if found.chosen and not call.preview:
        yield f"ticks judge {contract.BACKFILL_RUNS} each behind their own runs; look at it with: gradeloop monitor show {call.monitor}"


@monitor_app.command()
def delete(name: Name) -> None:
    """Remove a monitor; cached verdicts stay."""
    asyncio.run(_change(name, "delete"))
    typer.echo(f"deleted {name}")


async def _change(name: str, what: str) -> None:
    reader = overview.MonitorReader(own_store())
    await reader.require(name)
    connection = await find()
    schedules = MonitorSchedules(await connect(connection))
    changes = {"pause": schedules.pause, "resume": schedules.resume, "run_now": schedules.run_now, "delete": schedules.delete}
    if what == "run_now":
        await wake_worker(await schedules.queue_of(name), connection)
    await changes[what](name)
    if what == "delete":
        await reader.delete(name)


@monitor_app.command()
def export(
    name: Name,
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; stdout by default.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only the runs that failed.")] = False,
    to_suite: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the failed runs as a suite, YAML.")] = None,
    generator: Annotated[str | None, typer.Option(metavar="MODEL", help="The model that answers the suite's tests anew.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a line of JSON for each run that was chosen, or a suite.

    The suite has each failed run as a test, and the judge's rubric.
    """
    reader = overview.MonitorReader(own_store())
    if to_suite is not None:
        if output is not None:
            raise InvalidRequest("--to-suite writes a suite, and --output lines of JSON; give one of them")
        definition = asyncio.run(reader.require(name)).definition
        total = write_suite(to_suite, definition, asyncio.run(reader.failed_cases(name)), generator, overwrite=overwrite)
        typer.echo(f"wrote {counted(total, 'test')} to {to_suite}; run it with: gradeloop eval {to_suite}")
        return
    if generator is not None:
        raise InvalidRequest("--generator is for the tests of a suite; name its file with --to-suite")
    runs = [run for run in asyncio.run(reader.runs(name)) if not failed or run.verdict == "failed"]
    text = "".join(json.dumps(run.model_dump(mode="json")) + "\n" for run in runs)
    if output is None:
        sys.stdout.write(json_without_commands(text))
        return
    refuse_foreign(output, overwrite=overwrite)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    typer.echo(f"wrote {counted(len(runs), 'run')} to {output}")


_WORDS = {"passed": True, "pass": True, "true": True, "failed": False, "fail": False, "false": False}


def read_anchors(runs: Path, labels: Path | None, judge: CriteriaJudge | SchemaJudge, passes: tuple[str, ...]) -> tuple[Anchor, ...]:
    """Read labelled runs as the anchors of a monitor.

    `labels`: what people say, as `gradeloop agreement` takes it; by default each run's metadata has a `label`, passed or failed.
    `passes`: what passes a judgement by a schema, and so a label.

    Raises:
        InvalidRequest: A file cannot be read, or a run has no label that passes or fails it.
    """
    if not runs.is_file():
        raise InvalidRequest(f"--anchors {clip(str(runs))} is not a file; name one with labelled runs")
    found = read_run_file(runs)
    return anchors_of(judge, _by_metadata(runs, found) if labels is None else _by_labels(found, labels, judge, passes))


def _by_metadata(path: Path, runs: Iterator[AgentRun]) -> Iterator[tuple[AgentRun, bool]]:
    for run in runs:
        said = run.metadata.get(LABEL_KEY)
        passed = _WORDS.get(said.strip().lower()) if isinstance(said, str) else said
        if not isinstance(passed, bool):
            has = "no label" if said is None else f"the label {clip(canonical_json(said))}"
            cure = "write passed or failed as `label` into its metadata, or name a file of labels with --anchor-labels"
            raise InvalidRequest(f"{path}: the run {clip(run.id)} has {has}; {cure}")
        yield run, passed


def _by_labels(
    runs: Iterator[AgentRun], path: Path, judge: CriteriaJudge | SchemaJudge, passes: tuple[str, ...]
) -> Iterator[tuple[AgentRun, bool]]:
    """Yield the runs with what most people say of them; a run of whom they say nothing is left out."""
    votes: dict[str, list[bool]] = {}
    wanted = PassRule(judge, passes).wanted
    for row in read_labels(path, judge).labels:
        if (passed := passes_rule(wanted, row.label_value)) is not None:
            votes.setdefault(row.agent_run_id, []).append(passed)
    for run in runs:
        said = votes.get(run.id, [])
        if 2 * sum(said) != len(said):
            yield run, 2 * sum(said) > len(said)
