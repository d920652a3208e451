"""Commands that judge finished runs, and keep judges in the registry."""

import asyncio
import json
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import uuid4

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy

from gradeloop.batches.answer import (
    ANSWER_COLOURS,
    BatchAnswer,
    answer_of_judgements,
    corrected_answer,
    gate_lines,
    hint_of_verdicts,
    model_verdicts,
)
from gradeloop.batches.cli.judge_again import judged_runs, load_older_judge, preview_lines, preview_of
from gradeloop.batches.cli.results_table import answer_line, failure_lines, result_table, results_line
from gradeloop.batches.cli.runs import MappingFile, SkipBad, account_lines, read_as_lines
from gradeloop.batches.gate import few_at_once, rated_judgements, sent_labels, wish_of
from gradeloop.batches.judge_many import CONCURRENCY, EarlyGoal, RunVerdict, escalation_judge, judge_many
from gradeloop.batches.pages.judgement_page import READ_BACK, JudgementOutputs, JudgementSource, judgement_story
from gradeloop.cli import commands
from gradeloop.cli.folder import own_config_file, own_outside_roots
from gradeloop.cli.render.run import WAIT_SECONDS
from gradeloop.cli.render.table import show_lines
from gradeloop.cli.task_file import budget_of
from gradeloop.client.call_waits import watch_calls
from gradeloop.client.client import GradingClient
from gradeloop.client.thread import ride_out
from gradeloop.contract.transcript import AgentRun
from gradeloop.errors import InvalidRequest
from gradeloop.exit_codes import CAPPED, NO_VERDICT, SATISFIED, STOPPED
from gradeloop.files.rubric import require_files
from gradeloop.judges import judgements
from gradeloop.judges.chunks import is_too_long, parts_of
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import JudgeConfig, JudgeResult, PassGate
from gradeloop.judges.pass_rule import JudgementCounts, PassRule, said_rows, with_gate
from gradeloop.judges.prompt import refuse_cut
from gradeloop.judges.sources import THREAD, load_judge, load_runs, names_file, read_judge, with_model
from gradeloop.judges.write_back import PAGE, WRITE_BACK_WORKFLOW, Target, TraceScore, WriteBackCall, WriteBackReport, scores_of
from gradeloop.settings.endpoints import loopback_servers
from gradeloop.settings.worker import find_outside_roots, with_tenant
from gradeloop.stats.correction import GatedRate, hold_verdicts
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import Connection, WorkerSpec, connect, done_before, ensure_worker, find, keep_worker_alive
from gradeloop.text import counted, json_without_commands, one_line, percent
from gradeloop.transcripts.mapping import read_mapping
from gradeloop.transcripts.readers import Reading

if TYPE_CHECKING:
    from gradeloop.judges.registry import JudgeRegistry

app = typer.Typer(rich_markup_mode=None)
registry_app = typer.Typer(
    help="Keep judges' rubrics and their versions in the store that GRADELOOP_STORE names.",
    short_help="Keep judges' rubrics and their versions.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(registry_app, name="registry")

WRITE_BACK_SECONDS = 300
"""Seconds for which a command has the writing back of a page of scores tried."""

CONCURRENCY_HELP = "Run at most this many judgements at the same time."
BUDGET_HELP = "Begin no further judgement once all of them have cost this much; run again to judge the rest."
AGAIN_HELP = "Judge runs again that an older judge has judged, named by --only-judge; without RUN, all that the store knows."
ONLY_JUDGE_HELP = "With --again: only runs that this judge has judged: a file, COLLECTION/RUBRIC@VERSION, or RUBRIC@VERSION."
RULE_HELP = "Count a result as passed when its KEY is VALUE; repeatable."
WHOLE_HELP = "Refuse a run that is too long for the judge to be shown all of it."
CHUNK_HELP = "Judge a run that is too long in overlapping parts, with a last call that sees the findings."
WriteBack = Annotated[Target | None, typer.Option(help="Write the scores of traced runs to their traces.")]
RETRY_HELP = "Judge failures again, also those for which the judge's answers stayed invalid; the others are read."
MAX_BAD_HELP = "With --skip-bad: exit 0 if at most this share cannot be read; judge nothing if more."
LABELS_HELP = "Correct the pass rate for the judge's error on people's labels in this file."
FILES_HELP = "Also write the results to a .jsonl, .json, .csv, .xml, .md or .html file; repeatable."
ALLOW_ERRORS_HELP = "Exit 3 only when a larger share of judgements fail."

JudgeName = Annotated[str, typer.Argument(metavar="JUDGE", help="The judge: a file of a judge or rubric, or COLLECTION/RUBRIC[@VERSION].")]
Concurrency = Annotated[int, typer.Option("--concurrency", "-j", min=1, max=1000, metavar="N", help=CONCURRENCY_HELP)]
BudgetUsd = Annotated[float | None, typer.Option(metavar="USD", help=BUDGET_HELP)]
Retry = Annotated[Literal["errors"] | None, typer.Option(help=RETRY_HELP)]
Collection = Annotated[str, typer.Argument(metavar="COLLECTION", help="The collection's name.")]
RubricId = Annotated[str, typer.Argument(metavar="RUBRIC", help="The rubric's id.")]
JudgeFile = Annotated[Path, typer.Argument(metavar="FILE", help="The judge: YAML, JSON (Docent's too), or a rubric as text.")]


@dataclass(frozen=True)
class JudgeOptions:
    """The arguments and flags of one `gradeloop judge`."""

    judge: JudgeName
    runs: Annotated[
        tuple[str, ...], typer.Argument(metavar="RUN", help="Runs to judge: files (JSON, JSONL, .eval, text), or thread:ID; repeatable.")
    ] = ()
    grader: commands.Grader = None
    repeat: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Judge each run this many times.")] = 1
    concurrency: Concurrency = 50
    tenant: commands.Tenant = None
    passes: Annotated[tuple[str, ...], typer.Option("--pass", metavar="KEY=VALUE", help=RULE_HELP)] = ()
    pass_rate: Annotated[
        float | None, typer.Option(parser=commands.share_flag, metavar="SHARE", help="Exit 1 when a smaller share passes.")
    ] = None
    labels: Annotated[Path | None, typer.Option(metavar="FILE", help=LABELS_HELP)] = None
    gate: Annotated[Literal["raw", "corrected"], typer.Option(help="Hold the raw rate, or the corrected one, against --pass-rate.")] = "raw"
    allow_errors: Annotated[float, typer.Option(parser=commands.share_flag, metavar="SHARE", help=ALLOW_ERRORS_HELP)] = 0.0
    tools: commands.ToolFiles = ()
    scripted: commands.Scripted = None
    output: Annotated[tuple[Path, ...], typer.Option("--output", "-o", metavar="FILE", help=FILES_HELP)] = ()
    overwrite: commands.Overwrite = False
    skip_bad: SkipBad = False
    mapping: MappingFile = None
    whole: Annotated[bool, typer.Option("--whole", help=WHOLE_HELP)] = False
    chunk: Annotated[bool, typer.Option("--chunk", help=CHUNK_HELP)] = False
    max_bad: Annotated[float | None, typer.Option(parser=commands.share_flag, metavar="SHARE", help=MAX_BAD_HELP)] = None
    allow_outside: commands.OutsideFolders = ()
    trust: commands.Trust = False
    store: Annotated[bool, typer.Option("--store/--no-store", help="Keep the results in the store, or do not.")] = True
    budget_usd: BudgetUsd = None
    retry: Retry = None
    write_back: WriteBack = None
    again: Annotated[bool, typer.Option("--again", help=AGAIN_HELP)] = False
    only_judge: Annotated[str | None, typer.Option(metavar="JUDGE@VERSION", help=ONLY_JUDGE_HELP)] = None
    preview: Annotated[bool, typer.Option("--preview", help="Print the calls to make and their cost, and judge nothing.")] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per result, and nothing else on stdout.")] = False
    early: commands.UntilFlags = commands.UntilFlags()  # noqa: RUF009 - frozen
    rule: PassGate | None = None
    """The rule that results are written with; None without one."""
    files: JudgementOutputs = field(default_factory=lambda: JudgementOutputs(()))
    """The files that results are written to."""

    @property
    def corrected(self) -> bool:
        """Whether the rate that labels correct decides, rather than the raw one."""
        return self.gate == "corrected"

    def refuse_mixed(self) -> None:
        """Raise InvalidRequest where flags do not go together, or no run is named."""
        if self.again != (self.only_judge is not None):
            raise InvalidRequest("--again and --only-judge go together; write --again --only-judge RUBRIC@VERSION for the judge to replace")
        if not self.again and not self.runs:
            raise InvalidRequest("no run is named; give files of runs or thread:ID, or --again --only-judge RUBRIC@VERSION")
        if self.again and not self.store:
            raise InvalidRequest("--again reads earlier judgements from the store; leave --no-store out")
        if self.whole and self.chunk:
            raise InvalidRequest("--whole refuses the runs that --chunk judges in parts; leave one of them out")
        if self.corrected and (self.labels is None or self.pass_rate is None):
            raise InvalidRequest(
                "--gate corrected needs --labels FILE, by which it corrects, and --pass-rate SHARE, against which it decides"
            )
        self.early.refuse_alone()
        if self.early.until and (self.pass_rate is None or not self.store or self.chunk):
            raise InvalidRequest("--until decided needs --pass-rate SHARE and the store; leave --no-store and --chunk out")
        if self.early.until and self.labels is not None and (not self.corrected or self.repeat > 1):
            raise InvalidRequest("--until decided --labels FILE needs --gate corrected, and each run judged once; add it, or leave one out")

    def goal(self, rule: PassRule, labels: Sequence[judgements.Label]) -> EarlyGoal:
        """Return until when runs are judged."""
        if self.early.until is None or self.pass_rate is None:
            return EarlyGoal()
        if rule.judge.abstain:
            raise InvalidRequest("--until decided: the judge abstains, so that others decide what passes; leave it out")
        seed = int(rule.judge.sha256()[:8], 16) if self.early.seed is None else self.early.seed  # the same command goes on with its batch
        if (known := sent_labels(labels)) is None:
            raise InvalidRequest("--until decided: the labels take more than 1 MB; leave some out, or --until")
        return EarlyGoal(wish_of(self.early.risk, seed, pass_if=rule.values), self.pass_rate, labels=known)


@app.command(epilog=commands.codes_help("judge"))
@commands.takes(JudgeOptions)
def judge(options: JudgeOptions) -> None:
    """Judge finished runs; stored verdicts are not paid for twice."""
    options.refuse_mixed()
    outcome = asyncio.run(judge_runs(options))
    if outcome.stopped:
        rest = f"Run the same command again to read them and judge the rest with {options.judge}"
        typer.echo(f"stopped; judgements in flight continue. {rest}", err=True)
        raise typer.Exit(STOPPED)
    counts = outcome.counts
    unread = outcome.left_out and options.max_bad is None
    if unread or counts.errors > options.allow_errors * outcome.total or (outcome.total and not counts.judged):
        raise typer.Exit(NO_VERDICT)
    if options.corrected or outcome.decision is not None:
        raise typer.Exit({"passed": SATISFIED, "failed": CAPPED}.get(outcome.decision or "", NO_VERDICT))
    if options.pass_rate is not None and counts.passed < options.pass_rate * counts.judged:
        raise typer.Exit(CAPPED)


@registry_app.command()
def create(collection: Collection, file: JudgeFile, *, allow_outside: commands.AllowOutside = None) -> None:
    """Register a rubric as version 1."""
    made = asyncio.run(open_registry().create_rubric(collection, read_judge(file, own_outside_roots(allow_outside))))
    typer.echo(f"{collection}/{made.rubric_id}@{made.version}")


@registry_app.command()
def add(collection: Collection, rubric: RubricId, file: JudgeFile, *, allow_outside: commands.AllowOutside = None) -> None:
    """Register a rubric's next version, if it changed."""
    made = asyncio.run(open_registry().add_version(collection, rubric, read_judge(file, own_outside_roots(allow_outside))))
    typer.echo(f"{collection}/{made.rubric_id}@{made.version}")


@registry_app.command("list")
def list_rubrics(collection: Collection, *, as_json: commands.Json = False) -> None:
    """List a collection's rubrics with their newest versions."""
    found = asyncio.run(open_registry().list_rubrics(collection))
    lines = [f"{row.rubric_id}@{row.version}  {row.kind}  {row.sha256[:12]}  {row.changed:%Y-%m-%d %H:%M}" for row in found]
    show_lines([row.model_dump(mode="json") for row in found], lines or [f"no rubrics in {collection!r}"], as_json=as_json)


@registry_app.command()
def show(
    collection: Collection,
    rubric: RubricId,
    *,
    version: Annotated[int | None, typer.Option(min=1, metavar="N", help="Print this version; the newest by default.")] = None,
) -> None:
    """Print a rubric as JSON."""
    found = asyncio.run(open_registry().get_rubric(collection, rubric, version))
    typer.echo(json_without_commands(json.dumps(found.model_dump(mode="json", exclude_none=True), ensure_ascii=False, indent=2)))


def open_registry() -> "JudgeRegistry":
    """Return the registry of the store that is meant."""
    from gradeloop.judges.registry import JudgeRegistry  # loads SQLAlchemy, which a judge in a file does not need

    return JudgeRegistry(own_store())


@dataclass(frozen=True)
class JudgeOutcome:
    """The judgements that were asked for, and their outcomes."""

    total: int
    counts: JudgementCounts
    stopped: bool = False
    decision: str | None = None
    """Decision by the corrected rate, or before all are judged: `passed`, `failed` or `inconclusive`; None without either."""
    left_out: int = 0
    """The records that could not be read."""


@dataclass(frozen=True)
class _Judging:
    """The facts that the steps of one `gradeloop judge` share."""

    options: JudgeOptions
    config: JudgeConfig
    rule: PassRule
    runs: Sequence[AgentRun]
    reading: Reading
    registry: "JudgeRegistry | None"
    console: Console
    gate: EarlyGoal

    def say(self, *lines: str, style: str | None = None) -> None:
        """Print lines, each as long as it is."""
        for line in lines:
            self.console.print(line, style=style, soft_wrap=True)


async def judge_runs(options: JudgeOptions) -> JudgeOutcome:
    """Judge runs and print their results; after Ctrl-C the judgements in flight continue on the worker."""
    console = Console(stderr=options.as_json, highlight=False, markup=False, emoji=False)
    registry = open_registry() if options.store or not names_file(options.judge) else None
    settings, priority = own_config_file(trust=options.trust), with_tenant(None, options.tenant, level=4)
    written = config = await load_judge(options.judge, registry, find_outside_roots(options.allow_outside, settings))
    options = replace(options, files=JudgementOutputs(options.output, overwrite=options.overwrite))
    if registry is not None:
        await registry.open()
    require_files(options.tools, "--tools")
    require_files((options.scripted,) if options.scripted else (), "--scripted")
    config, note = with_model(config, options.grader, scripted=options.scripted is not None)
    rule, labels = PassRule(config, options.passes), judgements.read_labels(options.labels, config) if options.labels else None
    if (options.pass_rate is not None or options.labels is not None) and not rule.stated:
        raise InvalidRequest(
            f"{'--labels' if options.pass_rate is None else '--pass-rate'} needs a rule for what passes; add --pass KEY=VALUE"
        )
    reading = Reading(skip_bad=options.skip_bad, answered=True, mapping=read_mapping(options.mapping))
    gate = options.goal(rule, labels.labels if labels else ())
    # Runs of files are read before a server is needed, so that a mistake in them starts nothing. Runs of threads
    # can be read only from the server.
    early = None if any(source.startswith(THREAD) for source in options.runs) else await _named_runs(options, None, reading, console)
    if note and not options.as_json:
        console.print(note, style="dim", soft_wrap=True)
    client = await connect(connection := await find())
    runs = early if early is not None else await _named_runs(options, GradingClient(client), reading, console)
    if options.only_judge is not None and registry is not None:
        runs = await _runs_to_replace(options, options.only_judge, runs, registry, client)
    if options.preview:
        more: Any = {"priority": priority, "chunk": options.chunk, "retry": bool(options.retry)}
        found = await preview_of(config, runs, options.repeat, registry if options.store else None, **more)
        show_lines(found.model_dump(mode="json"), preview_lines(found), as_json=options.as_json)
        return JudgeOutcome(0, JudgementCounts(0, 0, 0, 0))
    task_queue = os.environ.get("GRADELOOP_TASK_QUEUE") or await ensure_worker(
        WorkerSpec(options.tools, options.scripted, config=settings, local_servers=loopback_servers(config)), connection
    )
    options = replace(options, rule=rule.gate(None if options.corrected else options.pass_rate, options.allow_errors))
    work, total = _Judging(options, config, rule, runs, reading, registry, console, gate), len(runs) * options.repeat
    finished = await _judge_all(work, Judge(config, client, task_queue=task_queue, priority=priority), task_queue, connection)
    _print_results(work, finished)
    gated = await _print_measures(work, labels, finished)
    if registry is not None and options.store:
        await _save(config, finished, registry)
    if len(finished) == total or work.gate.decision is not None:
        await _write_outputs(work, finished, gated, client)
    await done_before(_write_back(work, finished, client, task_queue), keep_worker_alive(task_queue, connection))
    if not options.as_json and not all(rule.passed(row.result) for row in finished):
        _print_next(work, is_as_written=config.sha256() == written.sha256())
    return JudgeOutcome(
        total,
        rule.count([row.result for row in finished]),
        stopped=len(finished) < total and work.gate.decision is None,
        decision=work.gate.decision.answer if work.gate.decision else gated.decision if gated and options.corrected else None,
        left_out=len(reading.left_out),
    )


async def _write_back(work: _Judging, finished: Sequence[RunVerdict], client: Client, task_queue: str) -> None:
    """Have the worker write the scores to the runs' traces, if that is asked for, and print what became of them; stopped, it goes on."""
    if (to := work.options.write_back) is None:
        return
    now, scores, untraced = datetime.now(UTC), list[TraceScore](), 0
    for row in finished:
        found = scores_of(to, work.rule, work.runs[row.position], row.result, now, row.repeat)
        scores.extend(found or ())
        untraced += found is None

    async def write(page: tuple[TraceScore, ...]) -> WriteBackReport:
        call = WriteBackCall(to=to, scores=page, seconds=WRITE_BACK_SECONDS)
        same: Any = {"id": f"write-back/{uuid4()}", "id_conflict_policy": WorkflowIDConflictPolicy.USE_EXISTING, "task_queue": task_queue}
        try:
            return await ride_out(
                lambda: client.execute_workflow(WRITE_BACK_WORKFLOW, call, result_type=WriteBackReport, **same), "the write-back"
            )
        except WorkflowFailureError as error:
            return WriteBackReport(problems=(f"the write-back ended without a report: {error.cause}",))

    reports = await asyncio.gather(*(write(tuple(scores[at : at + PAGE])) for at in range(0, len(scores), PAGE)))
    work.say(sum(reports, WriteBackReport(untraced=untraced)).text)


def _raw_answer(work: _Judging, finished: Sequence[RunVerdict]) -> BatchAnswer | None:
    """Return whether the runs pass, by the judge's own rate or an answer that came early; None where labels correct the rate of all."""
    if not finished or not work.options.rule:
        return None
    counts = work.rule.count([row.result for row in finished])
    return answer_of_judgements(counts, work.options.rule, work.gate.decision, len(work.runs) * work.options.repeat)


def _print_results(work: _Judging, finished: Sequence[RunVerdict]) -> None:
    """Print all results in a table, whether they pass, what there is of each, and what is to be done about failures."""
    results, options, rule = [row.result for row in finished], work.options, work.rule
    if not options.as_json and results:
        work.console.print(result_table(work.config, [(row.result, row.repeat) for row in finished], rule))
    if (answer := _raw_answer(work, finished)) is not None:
        total = len(work.runs) * options.repeat
        if work.gate.decision is not None and answer.words:
            work.say(f"{answer.words}; {total - len(results):,} of {counted(total, 'judgement')} were not asked")
        work.console.print(answer_line(answer), soft_wrap=True)
    work.console.print(results_line(results, rule), soft_wrap=True)
    work.say(*failure_lines(results))


def _print_hint(work: _Judging, results: Sequence[JudgeResult], gated: GatedRate | None) -> None:
    """Print the suggestion to measure the judge, where it says one thing to everything."""
    judged = [model_verdicts(said_rows(result), result.model) for result in results]
    if not any(verdicts for verdicts, _ in judged):
        judged = [([(result.rubric_id, said)], result.model) for result in results if (said := work.rule.passed(result)) is not None]
    if hint := hint_of_verdicts(judged, gated.error if gated else None):
        work.say(hint, style="yellow")


async def _write_outputs(work: _Judging, finished: Sequence[RunVerdict], gated: GatedRate | None, client: Client) -> None:
    """Write the files that are written when all is judged; pages begin with the corrected rate where that decides."""
    options, config = work.options, work.config
    rows = [(with_gate(row.result, options.rule), row.repeat) for row in finished]
    if not rows or not options.files.explains:
        options.files.write(rows, None, ())
        return
    source = JudgementSource(options.judge, is_file=False, gate=options.rule, judge=options.judge, runs=options.runs)
    name = f"{config.rubric_id}, version {config.version}"
    story = await judgement_story([result for result, _ in rows], source, name, {run.id: run for run in work.runs}, client)
    head = replace(story.head, notes=(*(gate_lines(gated) if gated else ()), *story.head.notes))
    early = _raw_answer(work, finished) if work.gate.decision is not None else None
    if (answer := early or (corrected_answer(gated) if gated and options.corrected else None)) is not None:
        head = replace(head, answer=answer.text, verdict=ANSWER_COLOURS[answer.word], words=answer.words)
    options.files.write(rows, head, story.reports)


def _print_next(work: _Judging, *, is_as_written: bool) -> None:
    """Print the command that shows the judgements; none where neither a file nor the judge's name leads to them."""
    options = work.options
    if read_back := next((path for path in options.output if path.suffix.lower() in READ_BACK), None):
        work.say(f"next: gradeloop report {shlex.quote(str(read_back))} --open")
    elif options.store and is_as_written:
        rule = [shlex.join(("--pass", text)) for text in options.passes]
        rule += [f"--pass-rate {options.pass_rate:g}"] if options.pass_rate is not None and not options.corrected else []
        work.say(f"next: gradeloop report {' '.join([shlex.quote(options.judge), *rule])} --open")


async def _save(config: JudgeConfig, finished: Sequence[RunVerdict], registry: "JudgeRegistry") -> None:
    """Store the judge's results, and the escalation judge's results on unsure ones, as separate judgements.

    Of the escalation judge's failures those are stored for which it was paid, so that a preview knows that they are only read.
    """
    own = [(row.first or row.result, row.repeat) for row in finished]
    await registry.save(config, [(result, repeat) for result, repeat in own if not result.result_metadata.get("again")])
    if (escalation := escalation_judge(config)) is not None:
        await registry.save(escalation, [(row.result, row.repeat) for row in finished if row.result.escalated_from])
        failed = [(row.escalation, row.repeat) for row in finished if row.escalation is not None and row.escalation.failed]
        await registry.save(escalation, [(result, repeat) for result, repeat in failed if not result.result_metadata.get("again")])


async def _print_measures(work: _Judging, labels: judgements.LabelSet | None, finished: Sequence[RunVerdict]) -> GatedRate | None:
    """Print how often repeated judgements differ, and the pass rate corrected by labels; return the latter."""
    results, config, registry = [row.first or row.result for row in finished], work.config, work.registry
    if any(row.repeat for row in finished):
        for found in judgements.measure_stability(
            config, judgements.select_judgements(config, results), judgements.compared_keys(judgements.label_schema(config))
        ):
            work.say(*judgements.stability_lines(found))
    if labels is None:
        _print_hint(work, results, None)
        return None
    stored = await registry.judgements(config, newest_first=True) if registry else ()
    firsts = [row.result for row in finished if row.repeat == 0]
    rows, known = rated_judgements(config, work.rule.wanted, labels.labels, firsts, stored)
    gated = hold_verdicts(rows, work.options.pass_rate, known)
    work.say(*gate_lines(gated))
    if work.options.corrected and work.gate.decision is None:
        work.console.print(answer_line(corrected_answer(gated)), soft_wrap=True)
    _print_hint(work, results, gated)
    return gated


async def _named_runs(options: JudgeOptions, reader: GradingClient | None, reading: Reading, console: Console) -> list[AgentRun]:
    """Load the command's runs; print their formats and the skipped ones. Exit with 3 if too many were skipped.

    Raises:
        Exit: More is left out than `--max-bad` allows.
        InvalidRequest: A run cannot be read, or is too long for `--whole`.
    """
    runs = await load_runs(options.runs, reader, reading) if options.runs else []
    if options.whole:
        refuse_cut(runs)
    if not options.as_json:
        for line in (*read_as_lines(reading), *(account_lines(reading.account, paths=0) if reading.account.values else ())):
            console.print(line, soft_wrap=True)
    for text in reading.left_out:
        console.print(one_line(f"left out: {text}"), soft_wrap=True)
    if reading.left_out:
        total = reading.runs + len(reading.left_out)
        console.print(f"left out {len(reading.left_out)} of {counted(total, 'run')} ({percent(reading.share_left_out)})", soft_wrap=True)
    if (options.max_bad is not None and reading.share_left_out > options.max_bad) or (reading.left_out and not reading.runs):
        rest = f"--max-bad allows {percent(options.max_bad)}" if reading.runs else "every run was left out"
        console.print(f"nothing is judged: {rest}", soft_wrap=True)
        raise typer.Exit(NO_VERDICT)
    return runs


async def _runs_to_replace(
    options: JudgeOptions, only_judge: str, named: Sequence[AgentRun], registry: "JudgeRegistry", client: Client
) -> list[AgentRun]:
    """Return the runs that the older judge has judged, as it is written or with the model that this command chooses for it."""
    older = await load_older_judge(only_judge, options.judge, registry)
    with_default, _ = with_model(older, options.grader, scripted=options.scripted is not None)
    return await judged_runs((older, with_default), named, registry, client)


async def _judge_all(work: _Judging, judge: Judge, task_queue: str, connection: Connection) -> list[RunVerdict]:
    """Judge all runs as `_judge_readable` does; a refusal names the file of the run. Raise InvalidRequest where a run is refused."""
    try:
        for run in work.runs:  # one that is refused, or of which a part is, is refused before the first of them is paid for
            for asked in [part.run for part in parts_of(judge.config, run)] if work.options.chunk and is_too_long(run) else [run]:
                await judge.request(asked)
        return await _judge_readable(work, judge, task_queue, connection)
    except InvalidRequest as error:
        path = next((path for name, path in work.reading.files.items() if str(error).startswith(f"the run {name!r}")), None)
        raise (error if path is None else type(error)(f"{path}: {error}")) from None


async def _judge_readable(work: _Judging, judge: Judge, task_queue: str, connection: Connection) -> list[RunVerdict]:
    """Judge all runs behind a progress bar, with an eye on the worker, and return the results in order; Ctrl-C leaves some out."""
    notes = TextColumn("{task.fields[failures]}{task.fields[wait]}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    columns = (TextColumn("judging"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), notes)
    finished: list[RunVerdict] = []
    options, console, asked = work.options, work.console, len(work.runs) * work.options.repeat
    failures, spoke, concurrency = 0, time.monotonic(), options.concurrency
    if work.gate.until is not None:
        concurrency = few_at_once(asked) if concurrency == CONCURRENCY else concurrency
        work.say(f"--until decided: random order, seed {work.gate.until.seed}", style="dim")
    progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with options.files.lines() as write, commands.ctrl_c() as pressed, progress:
        bar = progress.add_task("judging", total=asked, failures="", wait="")

        def show_wait(wait: str | None) -> None:
            nonlocal spoke
            progress.update(bar, wait=wait or "")
            if wait is not None and not console.is_terminal and time.monotonic() - spoke >= WAIT_SECONDS:
                spoke = time.monotonic()
                work.say(f"{len(finished)} of {counted(asked, 'judgement')} made; {wait}")

        def report(row: RunVerdict) -> None:
            nonlocal failures
            finished.append(row)
            failures += row.result.failed
            progress.update(bar, advance=1, failures=f"{failures} failed; " if failures else "")
            line = with_gate(row.result, options.rule).model_dump_json() + "\n"
            if options.as_json:
                print(json_without_commands(line), end="", flush=True)  # noqa: T201 - the command's output
            write(line)

        judging = judge_many(
            judge,
            work.runs,
            report,
            repeats=options.repeat,
            concurrency=concurrency,
            store=own_store() if options.store else None,
            budget=budget_of(None, options.budget_usd),
            chunk=options.chunk,
            retry=bool(options.retry),
            gate=work.gate,
        )
        watching = watch_calls(await judge.connected(), lambda: judge.in_flight, lambda wait: show_wait(wait.text if wait else None))
        await done_before(done_before(done_before(judging, watching), keep_worker_alive(task_queue, connection)), pressed.get())
    return sorted(finished)
