"""Commands that measure judges: their agreement with people, and how far they can be trusted on a labelled set."""

import asyncio
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gradeloop.batches.cli.judge import BudgetUsd, Concurrency, JudgeName, Retry, open_registry
from gradeloop.batches.cli.judge_again import preview_lines, preview_requests
from gradeloop.batches.cli.runs import MappingFile
from gradeloop.batches.judge_many import JudgementRequest, MakeOptions, make_judgements
from gradeloop.batches.reader import BatchReader
from gradeloop.calibration.agreement import Agreement, HumanCeiling, KeyAgreement, measure_agreement, measure_ratings
from gradeloop.calibration.check_report import Answered, CheckReport, Question, ask_about, report_check
from gradeloop.calibration.figures import NAMES, cluster_line, figure_texts
from gradeloop.calibration.labelled_sets import read_labelled_set
from gradeloop.calibration.probes import WHAT, ProbeName, against_repetition, probe_finding, probe_questions
from gradeloop.cli import commands
from gradeloop.cli.folder import own_config_file, own_outside_roots
from gradeloop.cli.render.table import Column, show_lines, table
from gradeloop.cli.task_file import budget_of
from gradeloop.contract.thread import Priority
from gradeloop.errors import InvalidRequest
from gradeloop.exit_codes import CAPPED, NO_VERDICT, STOPPED
from gradeloop.files.rubric import require_files
from gradeloop.judges.client import Judge, served_judge
from gradeloop.judges.contract import JudgeConfig, JudgeResult, JudgingRequest
from gradeloop.judges.judgements import LabelSet, read_labels, read_results, refuse_foreign_results, select_judgements, stability_lines
from gradeloop.judges.pass_rule import PassRule, in_words
from gradeloop.judges.sources import load_judge, load_runs, names_file, with_model
from gradeloop.reports.html import checked_page, document, write_page
from gradeloop.settings.endpoints import loopback_servers
from gradeloop.settings.worker import find_outside_roots
from gradeloop.stats.intervals import Estimate
from gradeloop.store.engine import own_store
from gradeloop.temporal.connect import WorkerSpec, done_before, keep_worker_alive
from gradeloop.text import clip, counted, did_you_mean, money, one_line, token_count
from gradeloop.transcripts.mapping import read_mapping
from gradeloop.transcripts.readers import Reading

app = typer.Typer(rich_markup_mode=None)

DISAGREEMENTS = 20
"""The most disagreements on a terminal; `--json` has all of them."""

LABELS_HELP = "Labels as JSON lines; none: JUDGE is a batch, whose ratings count."
RUNS_HELP = "Count only judgements of these very runs, by their content; repeatable."
RESULTS_HELP = "Read judgements that `judge --json` wrote, instead of the store's."
ORDERED_HELP = "The values of KEY are written from least to most; repeatable."
RISK_HELP = "Print the share of votes from which on the judge may decide without a person, with at most this error."
CLUSTER_HELP = "Runs whose ids have the same first group of this regular expression are one cluster: '(.+?)(-[0-9]+)?$' for epochs."

PASSED_BY = typer.Option("--pass", metavar="KEY=VALUE", help="This value of KEY passes; repeatable.")


@app.callback()
def measures() -> None:
    """Measure judges."""


@app.command(epilog=commands.codes_help("agreement"))
def agreement(  # noqa: PLR0913 - one parameter a flag
    judge: JudgeName,
    labels: Annotated[Path | None, typer.Argument(metavar="LABELS", help=LABELS_HELP)] = None,
    *,
    runs: Annotated[list[str] | None, typer.Option(metavar="FILE", help=RUNS_HELP)] = None,
    mapping: MappingFile = None,
    results: Annotated[Path | None, typer.Option(metavar="FILE", help=RESULTS_HELP)] = None,
    grader: commands.Grader = None,
    ordered: Annotated[list[str] | None, typer.Option(metavar="KEY", help=ORDERED_HELP)] = None,
    passes: Annotated[list[str] | None, PASSED_BY] = None,
    cluster: Annotated[str | None, typer.Option(metavar="PATTERN", help=CLUSTER_HELP)] = None,
    risk: Annotated[float | None, typer.Option(parser=commands.share_flag, metavar="SHARE", help=RISK_HELP)] = None,
    allow_outside: commands.AllowOutside = None,
    as_json: commands.Json = False,
) -> None:
    """Measure how well a judge agrees with people."""
    if risk is not None and not 0.001 <= risk <= 0.5:  # noqa: PLR2004 - the bounds are said
        raise InvalidRequest(f"--risk {risk:g} is out of range; write 0.001 to 0.5")

    async def measure(labels: Path) -> Agreement:
        registry = open_registry() if results is None or not names_file(judge) else None
        config = await load_judge(judge, registry, own_outside_roots(allow_outside))
        # Its judgements are those with the model by which `gradeloop judge` asks it. Where no key is here, none is needed to measure.
        with nullcontext() if grader is not None else suppress(InvalidRequest):
            config, _ = with_model(config, grader, scripted=True)
        people = in_clusters(read_labels(labels, config), cluster)
        meant = await load_runs(runs, None, Reading(mapping=read_mapping(mapping))) if runs else None
        if results is not None:
            found = read_results(results)
            refuse_foreign_results(results, config, found)
        else:
            found = await (registry or open_registry()).judgements(config, newest_first=True)
        judgements = select_judgements(config, found, meant)
        return measure_agreement(config, people, judgements, ordered=ordered or (), passes=passes or (), risk=risk)

    found = asyncio.run(measure(labels)) if labels else measure_ratings(BatchReader(own_store()), judge, risk)
    show_lines(found.model_dump(mode="json"), agreement_lines(found), as_json=as_json)
    if labels is None:
        typer.echo("these labels are ratings, given in sight of the verdict: people may agree too easily with what they see", err=True)
    if not found.judged:
        raise typer.Exit(NO_VERDICT)


def in_clusters(labels: LabelSet, pattern: str | None) -> LabelSet:
    """Return labels with the clusters of their runs by a pattern of ids; one that a label names itself stays.

    Raises:
        InvalidRequest: The pattern is not a regular expression with a group, or does not match an id.
    """
    if pattern is None:
        return labels
    try:
        known = re.compile(pattern)
    except re.error as error:
        raise InvalidRequest(f"--cluster is {clip(pattern)}: {error}; write a regular expression with a group") from None
    rows = []
    for label in labels.labels:
        found = known.match(label.agent_run_id) if known.groups else None
        if found is None:
            raise InvalidRequest(
                f"--cluster is {clip(pattern)}, of which no group matches {clip(label.agent_run_id)}; write '(.+?)(-[0-9]+)?$'"
            )
        rows.append(label.model_copy(update={"cluster": label.cluster or found[1] or ""}))
    return labels.model_copy(update={"labels": tuple(rows)})


def agreement_lines(found: Agreement) -> Iterator[str | Table]:
    """Yield how far a judge agrees with people, by key, and where it does not."""
    yield f"{found.judged} of {found.labels} labels have a judgement"
    if found.stale:
        yield f"{counted(len(found.stale), 'run')} had another content when judged, and {'is' if len(found.stale) == 1 else 'are'} left out"
    if found.contradictory:
        names = ", ".join(map(one_line, found.contradictory[:DISAGREEMENTS]))
        yield f"people contradict one another on {counted(len(found.contradictory), 'run')}, of which every label counts: {names}"
    for key in found.keys:
        yield from _key_lines(key)
        if (band := key.band) is not None:
            error = f"{band.error:.1%} of them wrong on {counted(band.labels, 'label')}, {band.bound:.1%} at most"
            trusted = f"trust verdicts of {band.threshold:.0%} of the votes or more, {band.coverage:.1%} of all"
            yield f"at a risk of {band.risk:.1%}: {trusted}; {error}"
        elif found.risk is not None:
            yield f"at a risk of {found.risk:.1%}: with these labels the judge may decide nothing without a person"
    for row in found.stability:
        yield from stability_lines(row)
    for odd in found.disagreements[:DISAGREEMENTS]:
        yield ""
        by = one_line(odd.by)
        yield f"{one_line(odd.agent_run_id)}: {odd.key} is {json.dumps(odd.label)} by {by}, {json.dumps(odd.judge)} by the judge"
        yield f"  {by}: {one_line(odd.label_reason) or 'no reason given'}"
        yield f"  judge: {one_line(odd.judge_reason) or 'no reason given'}"
    if len(found.disagreements) > DISAGREEMENTS:
        yield f"and {len(found.disagreements) - DISAGREEMENTS} more disagreements; --json lists them all"


def _key_lines(key: KeyAgreement) -> Iterator[str | Table]:
    yield ""
    positive = "" if key.positive is None else f"; {json.dumps(key.positive)} passes"
    yield f"{key.key}: {counted(key.labels, 'label')} of {counted(key.runs, 'run')}, {key.answered} answered{positive}"
    yield figure_table(key.figures)
    yield from filter(None, [cluster_line(key.clusters)])
    for value, rates in key.rates.items():
        parts = [f"{NAMES[name]} {figure_texts(name, rates[name])[0]}" for name in ("tpr", "tnr", "precision", "f1")]
        yield f"{value}: {', '.join(parts)}"
    if key.confusion:
        yield "rows are labels, columns the judge"
        labels, names = sorted(key.confusion), sorted({name for row in key.confusion.values() for name in row} | set(key.confusion))
        counts = (Column(name, [str(key.confusion[label].get(name, 0)) for label in labels], right=True) for name in names)
        yield table([Column("", labels, wraps=True), *counts])
    if key.ceiling is not None:
        yield ceiling_line(key.ceiling)
    if (rate := key.pass_rate) is not None:
        raw, interval = rate.raw.texts()
        yield f"pass rate of {counted(rate.runs, 'judged run')}: {raw} ({interval}) as the judge says"
        fixed = rate.corrected and f"{rate.corrected.value:.1%} ({rate.corrected.low:.1%} to {rate.corrected.high:.1%}) corrected"
        lacking = "not corrected: labels of both kinds are needed, on which the judge is better than chance"
        yield f"  {fixed} for the judge's error on the labels" if fixed else f"  {lacking}"
    if (panel := key.panel) is not None:
        worth = f"{panel.effective:.1f} independent ones ({panel.low:.1f} to {panel.high:.1f})"
        yield f"{panel.votes} votes of a judgement are worth {worth}, on {counted(panel.runs, 'run')}"


def figure_rows(figures: Mapping[str, Estimate]) -> list[tuple[str, str, str, int]]:
    """Return figures with their intervals and the number of runs, as a terminal and a page show them."""
    return [(NAMES.get(name, name), *figure_texts(name, figure), figure.of) for name, figure in figures.items() if name != "recall"]


def figure_table(figures: Mapping[str, Estimate]) -> Table:
    """Return figures as a table with their intervals."""
    columns = zip(("figure", "value", "95 % interval", "runs"), zip(*figure_rows(figures), strict=True), strict=True)
    return table([Column(head, list(map(str, cells)), right=head in {"value", "runs"}) for head, cells in columns])


def ceiling_line(ceiling: HumanCeiling) -> str:
    """Return how far people agree with one another, and the judge with them."""
    human, judge = (side["accuracy"].texts() for side in (ceiling.human, ceiling.judge))
    return f"people agree with one another in {human[0]} ({human[1]}), the judge with them in {judge[0]} ({judge[1]})"


FAIL_UNDER_HELP = "Exit 1 when the interval of FIGURE (kappa, accuracy, ...) reaches below this value; repeatable."
AT_HELP = "What --fail-under compares: the lower bound of a figure's interval, or the figure itself."
PROBE_HELP = "Also probe: order, verbosity, style, self-preference, paraphrase, each beside repetition; repeatable."


Compared = Literal["bound", "point"]
"""Part of a figure that a bound is held against."""


@dataclass(frozen=True)
class AskFlags:
    """The flags of commands that ask a judge many questions."""

    concurrency: Concurrency = 50
    budget_usd: BudgetUsd = None
    retry: Retry = None
    preview: Annotated[bool, typer.Option("--preview", help="Print the calls to make and their cost, and ask nothing.")] = False
    store: Annotated[bool, typer.Option("--store/--no-store", help="Keep the verdicts in the store, or do not.")] = True
    tools: commands.ToolFiles = ()
    scripted: commands.Scripted = None
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write a page with the worst cases.")] = None
    overwrite: commands.Overwrite = False
    allow_outside: commands.OutsideFolders = ()
    trust: commands.Trust = False
    as_json: commands.Json = False


@dataclass(frozen=True)
class CheckOptions:
    """The arguments and flags of one `gradeloop check-judge`."""

    judge: JudgeName
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="Labelled items: JSON, JSONL or CSV, as JudgeBench and others have, or your own.")
    ]
    grader: commands.Grader = None
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Ask about the first N items only.")] = None
    probe: Annotated[tuple[str, ...], typer.Option(metavar="NAME", help=PROBE_HELP)] = ()
    passes: Annotated[tuple[str, ...], PASSED_BY] = ()
    fail_under: Annotated[tuple[str, ...], typer.Option(metavar="FIGURE=VALUE", help=FAIL_UNDER_HELP)] = ()
    at: Annotated[Compared, typer.Option(help=AT_HELP)] = "bound"
    asking: AskFlags = AskFlags()


@app.command("check-judge", epilog=commands.codes_help("check-judge"))
@commands.takes(CheckOptions)
def check_judge(options: CheckOptions) -> None:
    """Measure how far a judge can be trusted on a labelled set."""
    parse_probes(options.probe)
    bounds = parse_bounds(options.fail_under)
    checked_page(options.asking.output, overwrite=options.asking.overwrite)
    if (found := asyncio.run(run_check(options))) is None:
        return
    show_lines(found.model_dump(mode="json"), report_lines(found), as_json=options.asking.as_json)
    if options.asking.output is not None:
        typer.echo(f"wrote {options.asking.output} ({write_page(options.asking.output, check_page(found, bounds, options.at))})", err=True)
    code, missed = code_of(found, bounds, options.at)
    for line in missed:
        typer.echo(line, err=True)
    raise typer.Exit(NO_VERDICT if found.not_made and options.asking.budget_usd is not None else code)


BOUNDED = tuple(name for name in NAMES if name not in {"mean_error", "first_position"})
"""The figures that can be asked for by `--fail-under`: more is better in all of them."""


def parse_probes(names: Sequence[str]) -> tuple[ProbeName, ...]:
    """Return the probes of these names, once each, and the repetition they are held against; raise InvalidRequest for an unknown name."""
    known: dict[str, ProbeName] = {name: name for name in WHAT}
    if odd := next((name for name in names if name not in known), None):
        raise InvalidRequest(f"--probe {clip(odd)} is not a probe.{did_you_mean(odd, list(known))}")
    asked = dict.fromkeys(known[name] for name in names)
    return tuple(asked | ({"repetition": None} if asked.keys() - {"self-preference"} else {}))


def parse_bounds(texts: Sequence[str]) -> dict[str, float]:
    """Return the least value of figures by name; raise InvalidRequest where a text is not FIGURE=VALUE."""
    bounds: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name.strip() not in BOUNDED:
            raise InvalidRequest(f"--fail-under {clip(text)} names no figure.{did_you_mean(name.strip(), list(BOUNDED))}")
        try:
            bounds[name.strip()] = float(value)
        except ValueError:
            raise InvalidRequest(f"--fail-under {clip(text)}: {clip(value)} is not a number; write {name.strip()}=0.6") from None
    return bounds


def code_of(found: CheckReport, bounds: Mapping[str, float], at: Compared = "bound") -> tuple[int, list[str]]:
    """Return the exit code of a measurement, and a line for each figure that misses its bound."""
    figures = {name: found.figures.get(name, Estimate()) for name in bounds}
    values = {name: figure.value if at == "point" else figure.low for name, figure in figures.items()}
    if not found.figures["coverage"].value or None in values.values():
        odd = (f"{NAMES[name]} has no {'value' if figures[name].value is None else 'interval'}" for name in bounds if values[name] is None)
        return NO_VERDICT, [f"{problem} on so few items, and --fail-under cannot decide" for problem in odd]
    missed = []
    for name, value in values.items():
        if value is not None and value < bounds[name]:
            point, interval = figure_texts(name, figures[name])
            cure = "" if at == "point" else "; --at point compares the figure itself"
            missed.append(f"{NAMES[name]} is {point} ({interval}), and --fail-under wants {bounds[name]:g}{cure}")
    return CAPPED if missed else 0, missed


async def run_check(options: CheckOptions) -> CheckReport | None:
    """Ask a judge about a labelled set, and return the report; None for a preview."""
    labelled = read_labelled_set(options.dataset)
    if options.limit is not None:
        labelled = labelled.model_copy(update={"items": labelled.items[: options.limit]})
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    asking, registry = options.asking, None if names_file(options.judge) else open_registry()
    outside = find_outside_roots(asking.allow_outside, own_config_file(trust=asking.trust))
    config = await load_judge(options.judge, registry, outside)
    require_files(asking.tools, "--tools")
    require_files((asking.scripted,) if asking.scripted else (), "--scripted")
    config, note = with_model(config, options.grader, scripted=asking.scripted is not None)
    if note:
        console.print(note, style="dim", soft_wrap=True)
    questions = list(ask_about(config, labelled, options.passes))
    probed: dict[ProbeName, list[Question]] = {name: probe_questions(name, questions) for name in parse_probes(options.probe)}
    asked = [*questions, *(question for rows in probed.values() for question in rows)]
    items, calls = counted(len(labelled.items), "item"), counted(len(asked), "judgement")
    rule = f"; passes: {', '.join(in_words(rule.values))}" if isinstance(rule := questions[0].answer, PassRule) else ""
    scales = {of.scale for of in map(labelled.asked_for, labelled.items) if of.form == "score"}
    scores = "".join(f"; scores from {low} to {high}" for low, high in scales)
    taken = f"{options.dataset.name}: read as {labelled.name}, because {labelled.why}; {items}, {calls}{scores}{rule}"
    console.print(taken, style="dim", soft_wrap=True)
    requests = [JudgingRequest(judge=one.judge, run=one.run, repeat=one.repeat) for one in asked]
    if asking.preview:
        seen = await preview_requests(requests, set(), dict(os.environ), own_store() if asking.store else None)
        show_lines(seen.model_dump(mode="json"), preview_lines(seen), as_json=asking.as_json)
        return None
    answers = [Answered(*pair) for pair in zip(asked, await ask(asking, requests, console), strict=True)]
    rest = iter(answers)
    plain = list(islice(rest, len(questions)))
    findings = [probe_finding(name, labelled, plain, list(islice(rest, len(changed)))) for name, changed in probed.items()]
    return report_check(config, labelled, plain, against_repetition(findings), answers)


async def ask(
    flags: AskFlags, requests: Sequence[JudgingRequest], console: Console, own: Sequence[JudgeConfig] | None = None
) -> list[JudgeResult]:
    """Have all judgements made behind a progress bar, tenant by tenant, and return their results in order.

    `own`: the judges of the user's own files, which may name servers on loopback; by default all.

    Raises:
        Exit: Ctrl-C was pressed.
    """
    store = own_store() if flags.store else None
    if store is not None:
        await store.read(lambda _: None)  # it is made before the worker looks for it
    local = frozenset[str]().union(*map(loopback_servers, [request.judge for request in requests] if own is None else own))
    spec = WorkerSpec(flags.tools, flags.scripted, config=own_config_file(trust=False), local_servers=local)
    served, connection = await served_judge(requests[0].judge, spec)
    client, task_queue = served.client, served.task_queue
    judges, groups = dict[str, Judge](), dict[Priority | None, list[tuple[int, JudgementRequest]]]()
    for at, request in enumerate(requests):
        name = f"{request.judge.sha256()} {request.priority}"
        judge = judges.setdefault(name, Judge(request.judge, client, task_queue=task_queue, priority=request.priority))
        groups.setdefault(request.priority, []).append((at, JudgementRequest(judge, request.run, request.repeat)))
    if (budget := budget_of(None, flags.budget_usd)) is not None and len(groups) > 1:
        raise InvalidRequest(f"--budget-usd: {len(groups)} tenants are judged apart, each for its own money; name one by --tenant")

    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: dict[int, JudgeResult] = {}
    with commands.ctrl_c() as pressed, Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("judging", total=len(requests))

        def report(places: Sequence[int], at: int, result: JudgeResult) -> None:
            found[places[at]] = result
            progress.advance(bar)

        async def judge_all() -> None:
            options: MakeOptions = {"concurrency": flags.concurrency, "store": store, "budget": budget, "retry": bool(flags.retry)}
            for group in groups.values():
                await make_judgements([one for _, one in group], partial(report, [at for at, _ in group]), **options)

        await done_before(done_before(judge_all(), keep_worker_alive(task_queue, connection)), pressed.get())
    if len(found) < len(requests):
        typer.echo("stopped; judgements in flight continue. Run the same command again to read them and ask the rest", err=True)
        raise typer.Exit(STOPPED)
    return [found[at] for at in range(len(requests))]


ASKED = {"pair": "which of two answers is better", "verdict": "whether an answer passes", "score": "how good an answer is"}
"""The forms of questions in words."""


def check_page(found: CheckReport, bounds: Mapping[str, float], at: Compared = "bound") -> str:
    """Return the page: figures with intervals and bounds, categories, probes, cost, and the worst disagreements with their transcripts."""
    code, missed = code_of(found, bounds, at)
    measure = "mean_error" if found.form == "score" else "accuracy"
    facts = {
        "judge": found.judge,
        "model": found.model or "",
        "set": f"{found.labelled_set}, because {found.why}",
        "asked": ASKED[found.form],
        "judgements": f"{found.judgements:,}",
        "tokens": token_count(found.usage.tokens),
        "cost": money(found.usage.cost_usd),
    }
    return document(
        "calibration.html",
        title=f"{found.judge} on {found.labelled_set} · gradeloop",
        found=found,
        wanted=", ".join(f"{name} of at least {bound:g}" for name, bound in bounds.items()),
        colour={0: "passed", CAPPED: "failed"}.get(code, "unsure") if bounds else "",
        missed=missed,
        official=NAMES.get(found.official, found.official),
        facts={name: value for name, value in facts.items() if value},
        figures=figure_rows(found.figures),
        categories=[(row.name, row.items, *figure_texts(measure, row.agreement)) for row in found.categories],
        ceiling=found.ceiling and [side["accuracy"].texts() for side in (found.ceiling.human, found.ceiling.judge)],
        probes=[(row.name, row.what, *row.changed.texts(), "" if row.toward is None else row.toward.texts()[0]) for row in found.probes],
    )


def report_lines(found: CheckReport) -> Iterator[str | Table]:
    """Yield a measurement: figures with intervals, categories, probes, and what it cost."""
    yield f"{found.judge} on {found.labelled_set}: {counted(found.items, 'item')}, asked for a {found.form}"
    yield figure_table(found.figures)
    yield f"{found.labelled_set}: the figure that is published of judges is {NAMES[found.official]!r}"
    yield from filter(None, [cluster_line(found.clusters)])
    if found.categories:
        figure, head = ("mean_error", "mean error") if found.form == "score" else ("accuracy", "accuracy, of all")
        values, intervals = zip(*(figure_texts(figure, row.agreement) for row in found.categories), strict=True)
        names = Column("category", [one_line(row.name) for row in found.categories], wraps=True)
        items = Column("items", [str(row.items) for row in found.categories], right=True)
        yield ""
        yield table([names, items, Column(head, values, right=True), Column("95 % interval", intervals)])
    if found.ceiling is not None:
        yield ceiling_line(found.ceiling)
    for row in found.standings:
        strength = "" if row.strength is None else f", strength {row.strength:+.2f}"
        yield f"{one_line(row.name)}: wins {row.win_rate:.1%} of {row.games:g} ({row.low:.1%} to {row.high:.1%}){strength}"
    for probe in found.probes:
        value, interval = probe.changed.texts()
        toward = "" if probe.toward is None or probe.toward.value is None else f", {probe.toward.value:.0%} of them to the favoured side"
        chance = "" if probe.by_chance is None else f", p = {probe.by_chance:.3f} against repetition"
        yield f"probe {probe.name}: {value} of verdicts change ({interval}){chance}{toward}; {probe.what}"
    if found.contradictory:
        yield f"{counted(len(found.contradictory), 'judgement')} with a reason that contradicts the verdict; --json names the items"
    cost = f", {money(found.usage.cost_usd)}" if found.usage.cost_usd else ""
    if found.not_made:
        yield f"{counted(found.not_made, 'judgement')} could not be made; run the same command again to ask only for them"
    if found.invalid:
        yield f"{counted(found.invalid, 'judgement')} failed: the judge's answers stayed invalid; --retry errors asks again"
    yield f"{counted(found.judgements, 'judgement')}, {token_count(found.usage.tokens)} tokens{cost}"
