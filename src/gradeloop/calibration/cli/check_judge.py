"""The command that measures a judge on a labelled set, public or one's own."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gradeloop.batches.cli.judge import BudgetUsd, Concurrency, JudgeName, Retry, open_registry
from gradeloop.batches.cli.rejudge import preview_lines, preview_requests
from gradeloop.batches.judge_many import WantedJudgement, make_judgements
from gradeloop.calibration.check_report import Answered, CheckReport, ProbeFinding, Question, ask_about, report_check
from gradeloop.calibration.cli.measure import PASSED_BY, ceiling_line, figure_table
from gradeloop.calibration.figures import NAMES, figure_texts
from gradeloop.calibration.labelled_sets import LabelledSet, read_labelled_set
from gradeloop.calibration.probes import WHAT, ProbeName, probe_finding, probe_questions
from gradeloop.cli.commands import Grader, Json, OutsideFolders, Overwrite, Scripted, ToolFiles, Trust, codes_help, ctrl_c, takes
from gradeloop.cli.folder import own_config_file
from gradeloop.cli.render.table import Column, show_lines, table
from gradeloop.cli.task_file import budget_of
from gradeloop.contract.messages import Usage
from gradeloop.contract.model_spec import Budget
from gradeloop.errors import InvalidRequest
from gradeloop.exit_codes import CAPPED, NO_VERDICT, STOPPED
from gradeloop.files.rubric import require_files
from gradeloop.judges.client import Judge
from gradeloop.judges.contract import JudgeConfig, JudgeResult, JudgingRequest
from gradeloop.judges.pass_rule import PassRule, in_words
from gradeloop.judges.sources import load_judge, names_file, with_model
from gradeloop.reports.html import checked_page, document, write_page
from gradeloop.settings.worker import find_outside_roots
from gradeloop.store.engine import Store, own_store
from gradeloop.temporal.connect import WorkerSpec, connect, done_before, ensure_worker, find, keep_worker_alive
from gradeloop.text import clip, counted, did_you_mean, money, one_line, token_count

app = typer.Typer(rich_markup_mode=None)

FAIL_UNDER_HELP = "Exit 1 when FIGURE (kappa, accuracy, coverage, ...) is below this value; repeatable."
PROBE_HELP = "Also probe: order, verbosity, style, self-preference, paraphrase or repetition; repeatable."


@app.callback()
def checks() -> None:
    """Measure judges on labelled sets."""


@dataclass(frozen=True)
class CheckOptions:
    """The arguments and flags of one `gradeloop check-judge`."""

    judge: JudgeName
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="Labelled items: JSON, JSONL or CSV, as JudgeBench and others have, or your own.")
    ]
    grader: Grader = None
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Ask about the first N items only.")] = None
    probe: Annotated[tuple[str, ...], typer.Option(metavar="NAME", help=PROBE_HELP)] = ()
    passes: Annotated[tuple[str, ...], PASSED_BY] = ()
    fail_under: Annotated[tuple[str, ...], typer.Option(metavar="FIGURE=VALUE", help=FAIL_UNDER_HELP)] = ()
    concurrency: Concurrency = 50
    budget_usd: BudgetUsd = None
    retry: Retry = None
    preview: Annotated[bool, typer.Option("--preview", help="Print the calls to make and their cost, and ask nothing.")] = False
    store: Annotated[bool, typer.Option("--store/--no-store", help="Keep the verdicts in the store, or do not.")] = True
    tools: ToolFiles = ()
    scripted: Scripted = None
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write a page with the worst cases.")] = None
    overwrite: Overwrite = False
    allow_outside: OutsideFolders = ()
    trust: Trust = False
    as_json: Json = False

    @property
    def budget(self) -> Budget | None:
        """The most that all judgements together may cost."""
        return budget_of(None, self.budget_usd)


@app.command("check-judge", epilog=codes_help("check-judge"))
@takes(CheckOptions)
def check_judge(options: CheckOptions) -> None:
    """Measure how far a judge can be trusted on a labelled set."""
    parse_probes(options.probe)
    bounds = parse_bounds(options.fail_under)
    checked_page(options.output, overwrite=options.overwrite)
    found = asyncio.run(run_check(options))
    if options.preview:
        return
    if found is None:
        typer.echo("stopped; judgements in flight continue. Run the same command again to read them and ask the rest", err=True)
        raise typer.Exit(STOPPED)
    show_lines(found.model_dump(mode="json"), report_lines(found), as_json=options.as_json)
    if options.output is not None:
        typer.echo(f"wrote {options.output} ({write_page(options.output, check_page(found))})", err=True)
    code = code_of(found, bounds)
    raise typer.Exit(NO_VERDICT if found.not_made and options.budget is not None else code)


BOUNDED = tuple(name for name in NAMES if name not in {"mean_error", "first_position"})
"""The figures that can be asked for by `--fail-under`: more is better in all of them."""


def parse_probes(names: Sequence[str]) -> tuple[ProbeName, ...]:
    """Return the probes of these names, once for every name.

    Raises:
        InvalidRequest: A name is that of no probe.
    """
    known: dict[str, ProbeName] = {name: name for name in WHAT}
    if odd := next((name for name in names if name not in known), None):
        raise InvalidRequest(f"--probe {clip(odd)} is no probe.{did_you_mean(odd, list(known))}")
    return tuple(dict.fromkeys(known[name] for name in names))


def parse_bounds(texts: Sequence[str]) -> dict[str, float]:
    """Return the least value of figures by name.

    Raises:
        InvalidRequest: A text is not FIGURE=VALUE.
    """
    bounds: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name.strip() not in BOUNDED:
            raise InvalidRequest(f"--fail-under {clip(text)} names no figure.{did_you_mean(name.strip(), list(BOUNDED))}")
        try:
            bounds[name.strip()] = float(value)
        except ValueError:
            raise InvalidRequest(f"--fail-under {clip(text)}: {clip(value)} is no number; write {name.strip()}=0.6") from None
    return bounds


def code_of(found: CheckReport, bounds: dict[str, float]) -> int:
    """Return the exit code of a measurement."""
    values = {name: found.figures[name].value if name in found.figures else None for name in bounds}
    if not found.figures["coverage"].value or None in values.values():
        return NO_VERDICT
    return CAPPED if any(value is not None and value < bounds[name] for name, value in values.items()) else 0


async def run_check(options: CheckOptions) -> CheckReport | None:
    """Ask a judge about a labelled set, and return the report; None after Ctrl-C, and for a preview."""
    labelled = read_labelled_set(options.dataset)
    if options.limit is not None:
        labelled = labelled.model_copy(update={"items": labelled.items[: options.limit]})
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    config = await _named_judge(options, console)
    questions = list(ask_about(config, labelled, options.passes))
    probed: dict[ProbeName, list[Question]] = {name: probe_questions(name, questions) for name in parse_probes(options.probe)}
    asked = [*questions, *(question for rows in probed.values() for question in rows)]
    items, calls = counted(len(labelled.items), "item"), counted(len(asked), "judgement")
    rule = f"; passes: {', '.join(in_words(rule.values))}" if isinstance(rule := questions[0].answer, PassRule) else ""
    taken = f"{options.dataset.name}: read as {labelled.name}, because {labelled.why}; {items}, {calls}{rule}"
    console.print(taken, style="dim", soft_wrap=True)
    store = own_store() if options.store else None
    if options.preview:
        requests = [JudgingRequest(judge=one.judge, run=one.run, repeat=one.repeat) for one in asked]
        seen = await preview_requests(requests, set(), dict(os.environ), store)
        show_lines(seen.model_dump(mode="json"), preview_lines(seen), as_json=options.as_json)
        return None
    answers = await _ask(options, asked, store, console)
    if answers is None:
        return None
    report = report_check(config, labelled, answers[: len(questions)], _findings(options, labelled, probed, answers), len(asked))
    usage = sum((answer.result.usage for answer in answers), Usage())
    not_made = sum(bool(answer.result.result_metadata.get("again")) for answer in answers)
    invalid = sum(answer.result.failed for answer in answers) - not_made
    return report.model_copy(update={"usage": usage, "not_made": not_made, "invalid": invalid})


async def _named_judge(options: CheckOptions, console: Console) -> JudgeConfig:
    """Return the judge with the model that is asked, and print which where it was chosen."""
    settings = own_config_file(trust=options.trust)
    registry = None if names_file(options.judge) else open_registry()
    config = await load_judge(options.judge, registry, find_outside_roots(options.allow_outside, settings))
    require_files(options.tools, "--tools")
    require_files((options.scripted,) if options.scripted else (), "--scripted")
    config, note = with_model(config, options.grader, scripted=options.scripted is not None)
    if note:
        console.print(note, style="dim", soft_wrap=True)
    return config


def _findings(
    options: CheckOptions, labelled: LabelledSet, probed: dict[ProbeName, list[Question]], answers: Sequence[Answered]
) -> list[ProbeFinding]:
    """Return what every probe found: its answers stand behind those of the set itself, in order."""
    at = len(answers) - sum(map(len, probed.values()))
    plain, findings = answers[:at], []
    for name in parse_probes(options.probe):
        rows = answers[at : at + len(probed[name])]
        at += len(rows)
        findings.append(probe_finding(name, labelled, plain, rows))
    return findings


async def _ask(options: CheckOptions, questions: Sequence[Question], store: Store | None, console: Console) -> list[Answered] | None:
    """Have all questions answered behind a progress bar, and return the answers in order; None after Ctrl-C."""
    if store is not None:
        await store.read(lambda _: None)  # it is made before the worker looks for it
    connection = await find()
    client = await connect(connection)
    spec = WorkerSpec(tools=options.tools, scripted=options.scripted, config=own_config_file(trust=False))
    task_queue = os.environ.get("GRADELOOP_TASK_QUEUE") or await ensure_worker(spec, connection)
    judges = {name: Judge(judge, client, task_queue=task_queue) for name, judge in {q.judge.sha256(): q.judge for q in questions}.items()}
    wanted = [WantedJudgement(judges[question.judge.sha256()], question.run, question.repeat) for question in questions]

    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: dict[int, JudgeResult] = {}
    with ctrl_c() as pressed, Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("judging", total=len(questions))

        def report(at: int, result: JudgeResult) -> None:
            found[at] = result
            progress.advance(bar)

        judging = make_judgements(
            wanted, report, concurrency=options.concurrency, store=store, budget=options.budget, retry=bool(options.retry)
        )
        await done_before(done_before(judging, keep_worker_alive(task_queue, connection)), pressed.get())
    return [Answered(question, found[at]) for at, question in enumerate(questions)] if len(found) == len(questions) else None


ASKED = {"pair": "which of two answers is better", "verdict": "whether an answer passes", "score": "how good an answer is"}
"""The forms of questions in words."""


def check_page(found: CheckReport) -> str:
    """Return the page: figures with intervals, categories, probes, cost, and the worst disagreements with their transcripts."""
    measure = "mean_error" if found.form == "score" else "accuracy"
    facts = {
        "judge": found.judge,
        "model": found.model or "",
        "set": f"{found.labelled_set}, because {found.why}",
        "asked": ASKED[found.form],
        "judgements": f"{found.judgements:,}",
        "tokens": token_count(found.usage.tokens),
        "cost": money(found.usage.cost_usd) if found.usage.cost_usd else "",
    }
    return document(
        "calibration.html",
        title=f"{found.judge} on {found.labelled_set} · gradeloop",
        found=found,
        facts={name: value for name, value in facts.items() if value},
        figures=[
            (NAMES.get(name, name), *figure_texts(name, figure), figure.of) for name, figure in found.figures.items() if name != "recall"
        ],
        measure="Mean error" if found.form == "score" else "Accuracy, of all",
        categories=[(row.name, row.items, *figure_texts(measure, row.agreement)) for row in found.categories],
        ceiling=found.ceiling and [side["accuracy"].texts() for side in (found.ceiling.human, found.ceiling.judge)],
        probes=[
            (probe.name, probe.what, *probe.changed.texts(), "" if probe.toward is None else probe.toward.texts()[0])
            for probe in found.probes
        ],
    )


def report_lines(found: CheckReport) -> Iterator[str | Table]:
    """Yield a measurement: figures with intervals, categories, probes, and what it cost."""
    yield f"{found.judge} on {found.labelled_set}: {counted(found.items, 'item')}, asked for a {found.form}"
    yield figure_table(found.figures)
    if found.categories:
        texts = [(row, figure_texts("mean_error" if found.form == "score" else "accuracy", row.agreement)) for row in found.categories]
        yield ""
        yield table(
            [
                Column("category", [one_line(row.name) for row, _ in texts], wraps=True),
                Column("items", [str(row.items) for row, _ in texts], right=True),
                Column("mean error" if found.form == "score" else "accuracy, of all", [value for _, (value, _) in texts], right=True),
                Column("95 % interval", [interval for _, (_, interval) in texts]),
            ]
        )
    if found.ceiling is not None:
        yield ceiling_line(found.ceiling)
    for row in found.standings:
        strength = "" if row.strength is None else f", strength {row.strength:+.2f}"
        yield f"{one_line(row.name)}: wins {row.win_rate:.1%} of {row.games:g} ({row.low:.1%} to {row.high:.1%}){strength}"
    for probe in found.probes:
        value, interval = probe.changed.texts()
        toward = "" if probe.toward is None or probe.toward.value is None else f", {probe.toward.value:.0%} of them to the favoured side"
        yield f"probe {probe.name}: {value} of verdicts change ({interval}){toward}; {probe.what}"
    if found.contradictory:
        yield f"{counted(len(found.contradictory), 'judgement')} with a reason that contradicts the verdict; --json names the items"
    cost = f", {money(found.usage.cost_usd)}" if found.usage.cost_usd else ""
    if found.not_made:
        yield f"{counted(found.not_made, 'judgement')} could not be made; run the same command again to ask for them alone"
    if found.invalid:
        yield f"{counted(found.invalid, 'judgement')} failed: the judge's answers stayed invalid; --retry errors asks again"
    yield f"{counted(found.judgements, 'judgement')}, {token_count(found.usage.tokens)} tokens{cost}"
