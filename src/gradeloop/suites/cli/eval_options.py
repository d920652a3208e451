"""The arguments and flags of `gradeloop eval`, as values: the suite, limits, filters by an earlier run, and `--check`."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import typer
from pydantic import JsonValue
from typer.core import TyperCommand

from gradeloop.batches.client import SpooledCases
from gradeloop.batches.compare.comparison import BatchSource, group_runs, load_batch, may_regress
from gradeloop.batches.contract import BATCH_PRIORITY, CONCURRENCY, BatchRequest, BatchSummary, CaseStatus
from gradeloop.batches.gate import few_at_once, sent_labels, wish_of
from gradeloop.batches.reader import BatchReader
from gradeloop.cli import commands
from gradeloop.cli.folder import load_env_files, own_config_file
from gradeloop.cli.task_file import budget_of
from gradeloop.contract.model_spec import Budget
from gradeloop.errors import InvalidRequest, explained
from gradeloop.exit_codes import BAD_INPUT, CAPPED, SATISFIED
from gradeloop.judges.judgements import Label
from gradeloop.settings.trust import ConfigFile
from gradeloop.settings.worker import find_imports, find_outside_roots, with_tenant
from gradeloop.store.engine import own_store
from gradeloop.suites.flags import CaseFilters, EarlierCases, SuiteFlags, overrides
from gradeloop.suites.load import check_suite
from gradeloop.suites.plan import Suite
from gradeloop.temporal.connect import WorkerSpec, refuse_unservable_here
from gradeloop.text import clip, json_without_commands, printable

Again = Literal["errors", "failures"]

NAME_CHARACTERS = 60
"""The most characters of a suite's name in a batch's id."""

CHECK_HELP = "Say what of the files would be taken, and run nothing: exit 0 where all are taken whole, 1 in part, 2 where one is refused."
SKIP_HELP = "Leave out unsupported features and run the rest; they are not judged, and no such case passes."

WIRE_NAMES = {"concurrency": "at_once"}
"""Names in a batch request that differ from the flag's."""

FILTER_HELP = "Run the cases whose id contains this text or matches this pattern; repeatable."
CONCURRENCY_HELP = "Run at most this many model and tool calls at the same time; 50 by default."
MAX_ERROR_RATE_HELP = "Pause when more than this share of cases are errors; 0.5 by default."
RATE_HELP = "Exit 1 when a smaller share of the judged cases passes; 1.0 by default."
ALLOW_ERRORS_HELP = "Exit 3 only when a larger share of cases are errors."
RETRIES_HELP = "Retries per call after a transient error of one kind; 7 by default. A provider that is away is waited for."
SUITE_HELP = "The suite to run; by default this folder's gradeloop.yaml, suite.yaml or promptfooconfig.yaml."
ENV_FILE_HELP = "Load the variables of this .env file first, over those that are set; repeatable."
DELAY_HELP = "Wait this many milliseconds before every call, and make one call at a time."
LABELS_HELP = "Correct the pass rate for the judge's error on people's labels in this file."
GATE_HELP = "Hold the raw rate, or the corrected one, against --pass-rate; raw by default."
TABLE_HELP = "Print the table of results, or only the answer; by default a terminal gets it, and a pipe a line for each case."
FAIL_ON_HELP = "Exit 1 if a case regressed from the --baseline, whatever share passes."
FAILING_HELP = "Run the cases that did not pass in this batch or file of results, errors too."

ENV_FILE = typer.Option("--env-file", "--env-path", metavar="FILE", help=ENV_FILE_HELP, is_eager=True, callback=load_env_files)
EnvFile = Annotated[list[Path] | None, ENV_FILE]
EnvFiles = Annotated[tuple[Path, ...], ENV_FILE]
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Name the suite, as the argument does.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "--max-concurrency", "-j", min=1, max=1000, metavar="N", help=CONCURRENCY_HELP)
]
Delay = Annotated[int | None, typer.Option(min=0, max=60_000, metavar="MS", help=DELAY_HELP)]

_LIMITS = ("budget", "concurrency", "max_errors", "max_error_rate", "pass_rate", "retries", "delay")


@dataclass(frozen=True)
class LimitFlags:
    """Flags that override the suite's settings, and the settings that a batch was started with."""

    concurrency: Concurrency = None
    delay: Delay = None
    budget_tokens: Annotated[int | None, typer.Option(metavar="N", help="Pause when the batch has used this many tokens.")] = None
    budget_usd: Annotated[float | None, typer.Option(metavar="USD", help="Pause when the batch has cost this many US dollars.")] = None
    max_errors: Annotated[int | None, typer.Option(min=1, metavar="N", help="Pause when this many cases are errors.")] = None
    max_error_rate: Annotated[float | None, typer.Option(parser=commands.share_flag, metavar="SHARE", help=MAX_ERROR_RATE_HELP)] = None
    pass_rate: Annotated[float | None, typer.Option(parser=commands.share_flag, metavar="SHARE", help=RATE_HELP)] = None
    retries: Annotated[int | None, typer.Option(min=0, max=20, metavar="N", help=RETRIES_HELP)] = None

    @property
    def budget(self) -> Budget | None:
        """The budget of the batch; None if no flag gives one."""
        return budget_of(self.budget_tokens, self.budget_usd)

    def fields_of(self, values: object) -> dict[str, object]:
        """Return the limits that an object of the same fields sets, by their names in a batch request."""
        set_values = {name: value for name in _LIMITS if (value := getattr(values, name)) is not None}
        return {WIRE_NAMES.get(name, name): value for name, value in set_values.items()}


@dataclass(frozen=True)
class FolderFlags:
    """Flags on what may be read, run and replaced in the folders of the suite and the command."""

    allow_outside: commands.OutsideFolders = ()
    trust: commands.Trust = False
    overwrite: commands.Overwrite = False


@dataclass(frozen=True)
class Presentation:
    """Flags on what a batch is called, and how much of it is printed."""

    description: Annotated[str | None, typer.Option(metavar="TEXT", help="Give the batch this name instead of the suite's.")] = None
    table: Annotated[bool | None, typer.Option("--table/--no-table", help=TABLE_HELP)] = None
    cell_length: Annotated[
        int | None, typer.Option("--table-cell-max-length", min=1, metavar="N", help="Cut the outputs in the table to this.")
    ] = None
    baseline: Annotated[str | None, typer.Option(metavar="BATCH", help=commands.BASELINE_HELP)] = None


@dataclass(frozen=True)
class EarlyFlags:
    """Flags of a batch that ends once its answer is known."""

    flags: commands.UntilFlags = commands.UntilFlags()  # noqa: RUF009 - frozen
    preview: Annotated[bool, typer.Option("--preview", help="With --until: print the share of cases that it asks; run none.")] = False
    rest: Annotated[bool, typer.Option("--all", help="With --resume: ask the cases that were not asked, too.")] = False
    fail_on: Annotated[Literal["regressions"] | None, typer.Option(help=FAIL_ON_HELP)] = None

    def refuse_mixed(self, options: "EvalOptions") -> None:
        """Raise InvalidRequest where two flags exclude one another."""
        self.flags.refuse_alone(preview=self.preview)
        if self.rest and not (options.resume or options.retry):
            raise InvalidRequest("--all asks the rest of a batch that ended early; name the batch with --resume, or add it to --retry")
        if self.fail_on and options.presentation.baseline is None:
            raise InvalidRequest("--fail-on regressions compares with an earlier batch; name it with --baseline")
        other = {"--pass-rate": options.limits.pass_rate, "--labels": options.correction.labels}
        if self.fail_on and (named := [flag for flag, value in other.items() if value is not None]):
            raise InvalidRequest(f"--fail-on regressions decides by the comparison with the baseline only; leave {named[0]} out")
        corrected = options.correction.gate == "corrected"
        if self.flags.until and ((options.correction.labels and not corrected) or (self.preview and corrected)):
            raise InvalidRequest("--until decided --labels FILE needs --gate corrected, which has no --preview; add it, or leave one out")


@dataclass(frozen=True)
class CorrectionFlags:
    """Flags by which the pass rate is corrected for the judge's error."""

    labels: Annotated[Path | None, typer.Option(metavar="FILE", help=LABELS_HELP)] = None
    gate: Annotated[Literal["raw", "corrected"] | None, typer.Option(help=GATE_HELP)] = None

    def refuse_mixed(self, *, detach: bool) -> None:
        """Refuse flags that exclude one another.

        Raises:
            InvalidRequest: Nothing corrects, or the command ends before there is something to correct.
        """
        if self.gate == "corrected" and self.labels is None:
            raise InvalidRequest(GATE_NEEDS)
        if self.labels is not None and detach:
            raise InvalidRequest("--labels corrects the results of a batch that has ended; leave --detach out, or name them with --attach")

    def refuse_rate(self, pass_rate: float) -> None:
        """Raise InvalidRequest for a pass rate of 1, which no interval's lower bound reaches."""
        if self.gate == "corrected" and pass_rate >= 1:
            raise InvalidRequest(GATE_NEEDS)


GATE_NEEDS = (
    "--gate corrected needs --labels FILE, by which it corrects, and --pass-rate SHARE below 1, or the suite's pass_rate, "
    "against which it decides"
)


@dataclass(frozen=True)
class EvalOptions:
    """The arguments and flags of one `gradeloop eval`."""

    suites: Annotated[tuple[Path, ...], typer.Argument(metavar="SUITE.yaml", help=f"{SUITE_HELP[:-1]}; several with --check.")] = ()
    config: Config = None
    check: Annotated[bool, typer.Option("--check", help=CHECK_HELP)] = False
    skip_unsupported: Annotated[bool, typer.Option("--skip-unsupported", help=SKIP_HELP)] = False
    output: commands.OutputFiles = ()
    prompts: Annotated[
        tuple[str, ...], typer.Option("--prompts", "-p", metavar="FILE...", help="Use these prompts instead of the suite's.")
    ] = ()
    providers: Annotated[
        tuple[str, ...],
        typer.Option("--providers", "-r", metavar="MODEL...", help="Use these generators: the suite's by name, or other models."),
    ] = ()
    tests: Annotated[str | None, typer.Option("--tests", "-t", "--vars", "-v", metavar="FILE", help="Use this file of tests instead.")] = (
        None
    )
    var: Annotated[
        tuple[str, ...], typer.Option(metavar="NAME=VALUE", help="Set a variable of the tests that do not set it; repeatable.")
    ] = ()
    env_file: EnvFiles = ()
    grader: commands.Grader = None
    filters: Annotated[tuple[str, ...], typer.Option("--filter", metavar="TEXT", help=FILTER_HELP)] = ()
    filter_first_n: Annotated[
        int | None, typer.Option("--filter-first-n", "-n", min=1, metavar="N", help="Run the cases of the first N tests that are selected.")
    ] = None
    filter_pattern: Annotated[
        str | None,
        typer.Option("--filter-pattern", metavar="REGEX", help="Run the tests whose description this regular expression matches."),
    ] = None
    filter_providers: Annotated[
        str | None,
        typer.Option("--filter-providers", "--filter-targets", metavar="REGEX", help="Run the cases of the generators that this matches."),
    ] = None
    failing: Annotated[str | None, typer.Option("--filter-failing", metavar="RESULTS", help=FAILING_HELP)] = None
    failing_only: Annotated[
        str | None, typer.Option("--filter-failing-only", metavar="RESULTS", help="Run the cases that failed there, without errors.")
    ] = None
    errors_only: Annotated[
        str | None, typer.Option("--filter-errors-only", metavar="RESULTS", help="Run the cases that were errors there.")
    ] = None
    filter_metadata: Annotated[
        tuple[str, ...],
        typer.Option("--filter-metadata", metavar="KEY=VALUE", help="Run the tests whose metadata of that name contains this; repeatable."),
    ] = ()
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Run at most this many cases.")] = None
    loop: Annotated[bool | None, typer.Option("--loop/--no-loop", help="Revise each draft until it passes, or draft once.")] = None
    repeat: Annotated[int | None, typer.Option(min=1, max=100, metavar="N", help="Run each case this many times.")] = None
    limits: LimitFlags = LimitFlags()
    tenant: commands.Tenant = None
    allow_errors: Annotated[float | None, typer.Option(parser=commands.share_flag, metavar="SHARE", help=ALLOW_ERRORS_HELP)] = None
    correction: CorrectionFlags = CorrectionFlags()
    early: EarlyFlags = EarlyFlags()
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Reuse drafts and verdicts, or ask for all again.")] = True
    tools: commands.ToolFiles = ()
    scripted: commands.Scripted = None
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Run the suite's own code, in the sandbox; read it first.")] = False
    imports: Annotated[tuple[Path, ...], typer.Option("--imports", metavar="FOLDER", help="Let code import from here; repeatable.")] = ()
    attach: Annotated[str | None, typer.Option(metavar="BATCH", help="Follow a batch that was started before, or `latest`.")] = None
    resume: Annotated[str | None, typer.Option(metavar="BATCH", help="Resume a batch: run what has not run, and retry its errors.")] = None
    folder: FolderFlags = FolderFlags()
    retry: Annotated[Again | None, typer.Option(help="Retry a batch's errors, or its failures too; name the batch with --attach.")] = None
    case: Annotated[tuple[str, ...], typer.Option("--case", metavar="ID", help="With --retry: only this case; repeatable.")] = ()
    detach: Annotated[bool, typer.Option("--detach", help="Start the batch and return without waiting for it.")] = False
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Run the suite again whenever a file of its folder changes.")] = False
    presentation: Presentation = Presentation()
    as_json: commands.JsonLines = False
    suite: Path | None = None
    """The suite that runs, once it is found."""
    flags: SuiteFlags = SuiteFlags()  # noqa: RUF009 - frozen
    """The flags that override the suite file, once they are read."""

    def read(self) -> "EvalOptions":
        """Return the options with the suite that they name, and with what overrides its file.

        Raises:
            InvalidRequest: Several suites are named, or a flag's value is none of its kind.
        """
        flags = SuiteFlags(
            grader=self.grader,
            filters=self.filters,
            limit=self.limit,
            loop=self.loop,
            repeat=self.repeat,
            tools=self.tools,
            scripted=self.scripted,
            allow_code=self.allow_code,
            imports=self.imports,
            skip_unsupported=self.skip_unsupported,
            check=self.check,
            select=CaseFilters(
                description=self.filter_pattern,
                metadata=self.filter_metadata,
                providers=self.filter_providers,
                earlier=find_earlier(self.failing, self.failing_only, self.errors_only),
                first=self.filter_first_n,
            ),
            overrides=overrides(self.prompts, self.providers, self.tests, self.var),
        )
        return replace(self, suite=one_suite(self.suites, self.config, check=self.check), flags=flags)

    @property
    def names_batch(self) -> bool:
        """Whether a batch that was started before is meant."""
        return bool(self.attach or self.resume or self.retry)

    @property
    def batch(self) -> str:
        """The batch that the flags name when there is no suite."""
        return self.resume or self.attach or "latest"

    @property
    def resumes(self) -> bool:
        """Whether the batch continues, instead of only being followed."""
        return self.resume is not None or self.retry is not None

    def refuse_mixed(self) -> None:
        """Raise InvalidRequest where two flags exclude one another."""
        known = [name for name, value in (("--attach", self.attach), ("--resume", self.resume), ("--retry", self.retry)) if value]
        if self.suite is not None and known:
            raise InvalidRequest(f"{known[0]} uses a batch whose cases are stored already; leave the suite {str(self.suite)!r} out")
        if self.attach and self.resume:
            raise InvalidRequest("--attach and --resume exclude each other; keep one")
        if self.case and not self.retry:
            raise InvalidRequest("--case names a case of a batch that is run again; add --retry errors or --retry failures")
        if self.suite is None and self.flags != SuiteFlags():
            flags = "--grader, --filter..., --limit, --loop, --repeat, --prompts, --providers, --tests, --var, --tools, --scripted, "
            flags += "--allow-code and --skip-unsupported"
            raise InvalidRequest(f"{flags} need a suite; a batch keeps the ones it was started with")
        self.correction.refuse_mixed(detach=self.detach)
        self.early.refuse_mixed(self)
        if self.suite is None and (self.early.flags.until or self.early.fail_on):
            raise InvalidRequest("--until and --fail-on need a suite; a batch keeps the order and the gate that it was started with")
        if self.watch and (known or self.detach):
            raise InvalidRequest(f"--watch runs a suite again and again; leave {known[0] if known else '--detach'} out")

    def request(self, suite: Suite, cases: SpooledCases) -> BatchRequest:
        """Return the request that starts the suite's batch; raise InvalidRequest where a limit is out of range."""
        name, settings = self.presentation.description or suite.name or suite.path.stem, suite.settings
        given = {"batch_id": new_batch_id(name), "total": cases.total, "name": name[:200], "cache": settings.cache and self.cache}
        own_name = (suite.name or suite.path.stem)[:200]
        given |= {"suite": None if own_name == name[:200] else own_name}
        given |= (
            {"asks": cases.asks, "derived_metrics": settings.derived_metrics}
            | self.limits.fields_of(settings)
            | self.limits.fields_of(self.limits)
            | self.gate
        )
        with explained():
            request = BatchRequest.model_validate(given | ({"at_once": 1} if given.get("delay") else {}))
        own = BATCH_PRIORITY.model_copy(update=settings.priority.model_dump(exclude_unset=True) if settings.priority else {})
        return request.model_copy(update={"priority": with_tenant(own, self.tenant)})

    def refuse_unfair(self, summary: BatchSummary) -> None:
        """Refuse what a batch that ended early cannot answer.

        Raises:
            InvalidRequest: A rate is to decide where a comparison does, or a corrected one, or failures get another chance that cases
                which were not asked do not get.
        """
        if summary.baseline and self.limits.pass_rate is not None:
            raise InvalidRequest(f"the batch {summary.batch_id!r} is compared with {summary.baseline}; leave --pass-rate out")
        if summary.decided and not summary.decided.corrected and self.correction.gate == "corrected":
            raise InvalidRequest(f"the batch {summary.batch_id!r} ended early, by the judge's own rate; leave --gate corrected out")
        if summary.decided and self.retry == "failures" and not self.early.rest:
            raise InvalidRequest(f"the batch {summary.batch_id!r} ended early; ask the rest with its failures: add --all")

    def ordered_request(
        self, suite: Suite, cases: SpooledCases, labels: Sequence[Label] = (), baseline: BatchSource | None = None
    ) -> tuple[BatchRequest, tuple[str, ...]]:
        """Return the request that starts the suite's batch, and notes on the order in which its cases are asked.

        Until it is decided they are in random order, and fewer at once unless their number is named. Those come first that have labels, or
        that may regress from the baseline.

        Raises:
            InvalidRequest: A limit is out of range, or no case can regress.
        """
        request, flags = self.request(suite, cases), self.early.flags
        against = baseline if self.early.fail_on else None
        request = request.model_copy(update={"baseline": against and against.source})
        before = group_runs(against.cases) if against else {}
        if against and not any(case.id in before or case.id.removesuffix(f"/{case.repeat + 1}") in before for case in cases):
            raise InvalidRequest(f"--fail-on regressions: no case of the suite is in {against.source}; name another --baseline")
        if flags.until is None:
            return request, ()
        # An early answer is calculated over cases in random order, each of which counts for itself. Where their
        # results count together, or the labels are too large to be sent, all are asked, and a note says why.
        why = cases.asks_all or ("metrics have names" if request.derived_metrics else "")
        why = why or ("the labels take more than 1 MB" if (known := sent_labels(labels)) is None else "")
        why = why or ("cases are repeated" if against and cases.repeats else "")
        if why := why or ("labels correct a rate of repeated cases" if labels and cases.repeats else ""):
            return request, (f"--until decided: all cases are asked, since {why}",)
        until = wish_of(flags.risk, flags.seed)
        front = {label.agent_run_id for label in labels} if against is None else may_regress(against)
        until = until.model_copy(update={"first": cases.shuffle(until.seed or 0, front)})
        if against and not until.first:
            raise InvalidRequest(f"--fail-on regressions: no case can regress from {against.source}; name a --baseline that passed")
        named = self.limits.concurrency is not None or suite.settings.concurrency is not None
        at_once = request.at_once if named else few_at_once(request.total)
        request = request.model_copy(update={"until_decided": until, "at_once": at_once, "labels": known or ()})
        return request, (f"--until decided: random order, seed {until.seed}",)

    @property
    def gate(self) -> dict[str, float]:
        """The gate that flags name: what of `pass_rate` and `allow_errors` they set."""
        named = {"pass_rate": self.limits.pass_rate, "allow_errors": self.allow_errors}
        return {name: value for name, value in named.items() if value is not None}

    def resume_request(self, known: BatchRequest) -> BatchRequest:
        """Return the request that resumes a batch: the batch's own settings, overridden by the flags."""
        at_once = self.limits.concurrency
        changed = (
            self.limits.fields_of(self.limits)
            | self.gate
            | {"again": self.retry or "errors", "cases": self.case}
            | ({"at_once": 1} if self.limits.delay else {})
            | ({"until_decided": None} if self.early.rest else {})
            | ({"at_once": CONCURRENCY} if self.early.rest and at_once is None and known.at_once == few_at_once(known.total) else {})
        )
        return known.model_copy(update=changed | ({} if self.cache else {"cache": False}))


SUITE_NAMES = ("gradeloop.yaml", "suite.yaml", "promptfooconfig.yaml", "promptfooconfig.yml", "promptfooconfig.json")
"""The files that `gradeloop eval` looks for where it is given none, in this order."""


def choose_suite(argument: Path | None, config: Path | None) -> Path | None:
    """Return the suite that is named, as argument or by `--config`, or None; raise InvalidRequest where both are there."""
    if argument is not None and config is not None:
        raise InvalidRequest(f"the suite is named twice, as {str(argument)!r} and with --config {str(config)!r}; keep one")
    return argument or config


def one_suite(suites: Sequence[Path], config: Path | None, *, check: bool) -> Path | None:
    """Return the one suite that a command runs or first looks at, or None; raise InvalidRequest where several are named."""
    if len(suites) > 1 and not check:
        raise InvalidRequest(f"{len(suites)} suites are named, and one runs at a time; run each by itself, or look at all with --check")
    return choose_suite(suites[0] if suites else None, config)


def find_suite(folder: Path, *, flags_make_one: bool = False) -> Path:
    """Return the suite in a folder that has the first of the names which `SUITE_NAMES` lists.

    `flags_make_one`: whether the command line gives prompts and providers, so that there need be no file.

    Raises:
        InvalidRequest: There is none.
    """
    if found := next((folder / name for name in SUITE_NAMES if (folder / name).is_file()), None):
        return found
    if flags_make_one:
        return folder / "promptfooconfig.yaml"
    names = ", ".join(SUITE_NAMES)
    raise InvalidRequest(f"No suite is named, and this folder has none of {names}; name its file, or a batch with --attach or --resume")


def refuse_unservable_suite(config: ConfigFile | None, suite: Suite) -> None:
    """Refuse a suite whose cases, which have been read, the worker of this folder would refuse."""
    asked = [case.model_dump(mode="json") for case in suite.plan.models.asked.values()]
    refuse_unservable_here(worker_of(config, suite), asked)


def worker_of(config: ConfigFile | None, suite: Suite) -> WorkerSpec:
    """Return the files that the worker of a suite is started with; a case that is read later may name one more server of this machine."""
    servers, imports = suite.plan.local_servers, suite.plan.rubrics.allow_code.imports
    return WorkerSpec(suite.tools, suite.scripted, config=config, local_servers=servers, imports=imports)


def check_suites(suites: Sequence[Path], flags: SuiteFlags, outside: Sequence[Path], *, as_json: bool) -> int:
    """Print what of each file would be taken, and return the exit code: 0 for all whole, 1 for some in part, 2 where one is refused.

    Raises:
        InvalidRequest: No file is named.
    """
    if not suites:
        raise InvalidRequest("No suite is named; give the files that are checked")
    roots = find_outside_roots(tuple(outside), config := own_config_file(trust=False))
    flags = replace(flags, imports=find_imports(flags.imports, config))
    codes = {"whole": SATISFIED, "in part": CAPPED, "refused": BAD_INPUT}
    code = SATISFIED
    for path in suites:
        report = check_suite(path, flags, roots, partial(refuse_unservable_suite, config))
        code = max(code, codes[report.verdict])
        lines = [json_without_commands(json.dumps(report.as_json(), ensure_ascii=False))] if as_json else report.lines()
        for line in lines:
            typer.echo(line if as_json else printable(line))
    return code


FAILED: frozenset[CaseStatus] = frozenset({"failed"})
ERRORS: frozenset[CaseStatus] = frozenset({"error", "queued", "waiting"})
"""The statuses of cases without a verdict."""

THEIR_BYTES = 256 * 1024 * 1024
"""The largest file of promptfoo's results, which is read whole."""


def find_earlier(not_passed: str | None, failed: str | None, errors: str | None) -> tuple[EarlierCases, ...]:
    """Return the cases that earlier runs, each a batch or a file of results, have with these outcomes.

    Two flags select the cases that either of them names.

    Raises:
        InvalidRequest: There is no such batch or file, or it has no such case.
    """
    asked = [("--filter-failing", not_passed, FAILED | ERRORS), ("--filter-failing-only", failed, FAILED)]
    asked.append(("--filter-errors-only", errors, ERRORS))
    return tuple(_earlier_cases(flag, name, statuses) for flag, name, statuses in asked if name is not None)


def _earlier_cases(flag: str, name: str, statuses: frozenset[CaseStatus]) -> EarlierCases:
    theirs = _their_results(Path(name))
    if theirs is not None:
        found = EarlierCases(name, variables=tuple(_their_variables(theirs, statuses)))
    else:
        batch = load_batch(name, lambda: BatchReader(own_store()))
        found = EarlierCases(name, frozenset(case.id for case in batch.cases if case.status in statuses))
    if not found.ids and not found.variables:
        what = "errors" if statuses == ERRORS else "failures" if statuses == FAILED else "failures or errors"
        raise InvalidRequest(f"{flag}: {clip(name)} has no {what}, so there is nothing to run")
    return found


def _their_results(path: Path) -> list[JsonValue] | None:
    """Return the results in a JSON file that promptfoo wrote; None for anything else."""
    if path.suffix.lower() != ".json" or not path.is_file() or path.stat().st_size > THEIR_BYTES:
        return None
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    results = value.get("results") if isinstance(value, dict) else None
    rows = results.get("results") if isinstance(results, dict) else None
    return rows if isinstance(rows, list) else None


def _their_variables(rows: list[JsonValue], statuses: frozenset[CaseStatus]) -> Iterator[dict[str, JsonValue]]:
    for row in rows:
        if not isinstance(row, dict) or row.get("success"):
            continue
        status: CaseStatus = "error" if row.get("failureReason") == 2 else "failed"  # noqa: PLR2004 - promptfoo's number of an error
        variables = row.get("vars")
        if status in statuses and isinstance(variables, dict):
            yield {name: value for name, value in variables.items() if not name.startswith("_")}  # which promptfoo adds when it runs a test


VARIADIC = {"-p": "--prompts", "--prompts": "--prompts", "-r": "--providers", "--providers": "--providers"}
"""The flags that take all values up to the next flag, as promptfoo's do."""

OUTPUT_FLAGS = {"-o", "--output"}
UNAMBIGUOUS = (".csv", ".html", ".jsonl", ".md", ".txt", ".xml")
"""Suffixes of outputs that no suite has, so that several outputs may follow one flag."""


class EvalCommandLine(TyperCommand):
    """The command `eval`, some of whose flags take several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own click has no public types
        """Parse the flags after each value of a flag that has several has got its own."""
        return super().parse_args(ctx, list(_spread(args)))


def _spread(args: list[str]) -> Iterator[str]:
    """Yield the arguments with the flag repeated before every value of it but the first."""
    flag, has_value = "", False
    for at, argument in enumerate(args):
        if argument == "--":
            yield from args[at:]
            return
        if argument.startswith("-") and argument != "-":
            flag, has_value = argument, False
        elif has_value and (flag in VARIADIC or (flag in OUTPUT_FLAGS and argument.endswith(UNAMBIGUOUS))):
            yield flag
        else:
            flag, has_value = (flag, True) if flag and not has_value else ("", False)
        yield argument


def new_batch_id(name: str) -> str:
    """Return a new batch's id: the suite's name, the time, and four random letters."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:NAME_CHARACTERS] or "batch"
    return f"{plain}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"
