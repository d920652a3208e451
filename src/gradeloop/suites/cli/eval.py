"""The command `eval` and its kin: run a suite as a batch, follow or resume a batch, run its errors again."""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from gradeloop.batches.answer import ANSWER_STYLES, BatchAnswer, answer_of, gate_exit_code, gate_lines, next_step, results_line
from gradeloop.batches.cli.batch_view import BatchProgressView
from gradeloop.batches.cli.follow import BatchFollower
from gradeloop.batches.cli.results_table import result_lines
from gradeloop.batches.client import BatchClient, SpooledCases, upload_cases
from gradeloop.batches.compare.comparison import load_batch, stored_source
from gradeloop.batches.compare.wording import baseline_of
from gradeloop.batches.contract import BatchRequest, BatchSummary, CaseResult
from gradeloop.batches.gate import gate_batch
from gradeloop.batches.markdown import BatchStory
from gradeloop.batches.metric_table import MetricTable, metric_lines
from gradeloop.batches.outage import StoreWatch, store_timeout
from gradeloop.batches.outputs import Outputs, json_line, renderers_by_suffix
from gradeloop.batches.reader import BatchReader
from gradeloop.cli.commands import (
    BASELINE_HELP,
    AllowOutside,
    BatchId,
    Grader,
    OutputOption,
    Overwrite,
    Scripted,
    Tools,
    Trust,
    codes_help,
    ctrl_c,
    share_flag,
)
from gradeloop.cli.folder import load_env_files, own_config_file
from gradeloop.cli.task_file import budget_of
from gradeloop.errors import InvalidRequest, StoreLost, StoreUnavailable
from gradeloop.exit_codes import STOPPED
from gradeloop.files.rubric import require_files
from gradeloop.judges.labels import read_case_labels
from gradeloop.settings.worker import find_outside_roots
from gradeloop.store.engine import STORE_VARIABLE, own_store
from gradeloop.suites.cli.eval_options import (
    CHECK_HELP,
    SKIP_HELP,
    Again,
    CorrectionFlags,
    EvalCommandLine,
    EvalOptions,
    FolderFlags,
    LimitFlags,
    Presentation,
    check_suites,
    find_earlier,
    find_suite,
    one_suite,
)
from gradeloop.suites.flags import CaseFilters, SuiteFlags, overrides
from gradeloop.suites.load import read_suite
from gradeloop.temporal.connect import (
    OURS,
    Connection,
    WorkerSpec,
    connect,
    done_before,
    ensure_worker,
    ensure_worker_of,
    find,
    keep_worker_alive,
)
from gradeloop.temporal.process import noticed
from gradeloop.text import counted, json_without_commands

app = typer.Typer(rich_markup_mode=None)

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
FAILING_HELP = "Run the cases that did not pass in this batch or file of results, errors too."

SuiteArguments = Annotated[list[Path] | None, typer.Argument(metavar="SUITE.yaml", help=f"{SUITE_HELP[:-1]}; several with --check.")]
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Name the suite, as the argument does.")]
EnvFile = Annotated[
    list[Path] | None,
    typer.Option("--env-file", "--env-path", metavar="FILE", help=ENV_FILE_HELP, is_eager=True, callback=load_env_files),
]
Patterns = Annotated[list[str] | None, typer.Option("--filter", metavar="TEXT", help=FILTER_HELP)]
FirstTests = Annotated[
    int | None, typer.Option("--filter-first-n", "-n", min=1, metavar="N", help="Run the cases of the first N tests that are selected.")
]
Description = Annotated[
    str | None, typer.Option("--filter-pattern", metavar="REGEX", help="Run the tests whose description this regular expression matches.")
]
Generators = Annotated[
    str | None,
    typer.Option("--filter-providers", "--filter-targets", metavar="REGEX", help="Run the cases of the generators that this matches."),
]
Failing = Annotated[str | None, typer.Option("--filter-failing", metavar="RESULTS", help=FAILING_HELP)]
FailingOnly = Annotated[
    str | None, typer.Option("--filter-failing-only", metavar="RESULTS", help="Run the cases that failed there, without errors.")
]
ErrorsOnly = Annotated[str | None, typer.Option("--filter-errors-only", metavar="RESULTS", help="Run the cases that were errors there.")]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--filter-metadata", metavar="KEY=VALUE", help="Run the tests whose metadata of that name contains this; repeatable."),
]
Prompts = Annotated[list[str] | None, typer.Option("--prompts", "-p", metavar="FILE...", help="Use these prompts instead of the suite's.")]
Providers = Annotated[
    list[str] | None,
    typer.Option("--providers", "-r", metavar="MODEL...", help="Use these generators: the suite's by name, or other models."),
]
Tests = Annotated[str | None, typer.Option("--tests", "-t", "--vars", "-v", metavar="FILE", help="Use this file of tests instead.")]
Var = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a variable of the tests that do not set it; repeatable.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "--max-concurrency", "-j", min=1, max=1000, metavar="N", help=CONCURRENCY_HELP)
]
Delay = Annotated[int | None, typer.Option(min=0, max=60_000, metavar="MS", help=DELAY_HELP)]
CellLength = Annotated[
    int | None, typer.Option("--table-cell-max-length", min=1, metavar="N", help="Cut the outputs in the table to this.")
]


@app.command("eval", cls=EvalCommandLine, epilog=codes_help("eval"))
def evaluate(  # noqa: PLR0913, PLR0917 - one parameter a flag, which typer names
    suites: SuiteArguments = None,
    config: Config = None,
    check: Annotated[bool, typer.Option("--check", help=CHECK_HELP)] = False,
    skip_unsupported: Annotated[bool, typer.Option("--skip-unsupported", help=SKIP_HELP)] = False,
    output: OutputOption = None,
    prompts: Prompts = None,
    providers: Providers = None,
    tests: Tests = None,
    var: Var = None,
    env_file: EnvFile = None,  # noqa: ARG001 - loaded as it is parsed
    grader: Grader = None,
    filters: Patterns = None,
    filter_first_n: FirstTests = None,
    filter_pattern: Description = None,
    filter_providers: Generators = None,
    failing: Failing = None,
    failing_only: FailingOnly = None,
    errors_only: ErrorsOnly = None,
    filter_metadata: Metadata = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Run at most this many cases.")] = None,
    loop: Annotated[bool | None, typer.Option("--loop/--no-loop", help="Revise each draft until it passes, or draft once.")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, max=100, metavar="N", help="Run each case this many times.")] = None,
    concurrency: Concurrency = None,
    delay: Delay = None,
    budget_tokens: Annotated[int | None, typer.Option(metavar="N", help="Pause when the batch has used this many tokens.")] = None,
    budget_usd: Annotated[float | None, typer.Option(metavar="USD", help="Pause when the batch has cost this many US dollars.")] = None,
    max_errors: Annotated[int | None, typer.Option(min=1, metavar="N", help="Pause when this many cases are errors.")] = None,
    max_error_rate: Annotated[float | None, typer.Option(parser=share_flag, metavar="SHARE", help=MAX_ERROR_RATE_HELP)] = None,
    pass_rate: Annotated[float | None, typer.Option(parser=share_flag, metavar="SHARE", help=RATE_HELP)] = None,
    allow_errors: Annotated[float | None, typer.Option(parser=share_flag, metavar="SHARE", help=ALLOW_ERRORS_HELP)] = None,
    labels: Annotated[Path | None, typer.Option(metavar="FILE", help=LABELS_HELP)] = None,
    gate: Annotated[Literal["raw", "corrected"] | None, typer.Option(help=GATE_HELP)] = None,
    retries: Annotated[int | None, typer.Option(min=0, max=20, metavar="N", help=RETRIES_HELP)] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Reuse verdicts from the cache, or judge everything again.")] = True,
    tools: Tools = None,
    scripted: Scripted = None,
    allow_code: Annotated[bool, typer.Option("--allow-code", help="Run the suite's own code, in the sandbox; read it first.")] = False,
    attach: Annotated[str | None, typer.Option(metavar="BATCH", help="Follow a batch that was started before, or `latest`.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="BATCH", help="Resume a batch: run what has not run, and retry its errors.")] = None,
    allow_outside: AllowOutside = None,
    trust: Trust = False,
    overwrite: Overwrite = False,
    retry: Annotated[Again | None, typer.Option(help="Retry a batch's errors, or its failures too; name the batch with --attach.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the batch and return without waiting for it.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Run the suite again whenever a file of its folder changes.")] = False,
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="Give the batch this name instead of the suite's.")] = None,
    table: Annotated[bool, typer.Option("--table/--no-table", help="Print the table of results, or its last line alone.")] = True,
    cell_length: CellLength = None,
    baseline: Annotated[str | None, typer.Option(metavar="BATCH", help=BASELINE_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per finished case, and nothing else on stdout.")] = False,
) -> None:
    """Run a suite as a batch; the exit code is a gate for CI."""
    suited = (grader, tuple(filters or ()), limit, loop, repeat, tuple(tools or ()), scripted, allow_code, skip_unsupported, check)
    narrowed = (filter_pattern, filter_metadata or (), filter_providers, find_earlier(failing, failing_only, errors_only), filter_first_n)
    flags, named = SuiteFlags(*suited, CaseFilters(*narrowed), overrides(prompts, providers, tests, var)), one_suite(suites, config, check)
    limits = LimitFlags(budget_of(budget_tokens, budget_usd), concurrency, max_errors, max_error_rate, pass_rate, retries, delay)
    shown, folder = Presentation(description, table, cell_length, baseline), FolderFlags(tuple(allow_outside or ()), trust, overwrite)
    chosen = (named, flags, limits, tuple(output or ()), attach, resume, retry, allow_errors, cache, detach, as_json, folder, shown)
    raise typer.Exit(run_eval(EvalOptions(*chosen, CorrectionFlags(labels, gate)), watch=watch, check=check, others=(suites or [])[1:]))


@app.command("retry", epilog=codes_help("retry"))
def retry_errors(
    batch: BatchId = "latest",
    *,
    output: OutputOption = None,
    env_file: EnvFile = None,  # noqa: ARG001 - loaded as it is parsed
    concurrency: Concurrency = None,
    delay: Delay = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per finished case, and nothing else on stdout.")] = False,
) -> None:
    """Run a batch's errors again, as `eval --retry errors` does."""
    limits, folder = LimitFlags(concurrency=concurrency, delay=delay), FolderFlags(overwrite=overwrite)
    options = EvalOptions(None, limits=limits, outputs=tuple(output or ()), attach=batch, again="errors", as_json=as_json, folder=folder)
    raise typer.Exit(run_eval(options))


def run_eval(options: EvalOptions, *, watch: bool = False, check: bool = False, others: Sequence[Path] = ()) -> int:
    """Run a suite, or follow a batch, and return the exit code.

    Args:
        options: The arguments and flags.
        watch: Whether the suite is run again and again, until Ctrl-C.
        check: Whether the suite is only looked at.
        others: Further suites to look at.

    Raises:
        InvalidRequest: Two flags exclude one another, or there is no suite.
    """
    if options.suite is None and not options.names_batch:
        options = replace(options, suite=find_suite(Path(), flags_make_one=options.flags.overrides.makes_suite))
    if check and options.suite is not None:
        return check_suites([options.suite, *others], options.flags, options.folder.outside, as_json=options.as_json)
    options.refuse_mixed(watch=watch)
    if watch and options.suite is not None:
        from gradeloop.suites.cli.watching import run_again_on_changes

        return run_again_on_changes(options, lambda: asyncio.run(EvalCommand(options).run()))
    return asyncio.run(EvalCommand(options).run())


BEGIN_SECONDS, BEGIN_ASKS = 0.1, 30
"""The pause between two reads of the store until a batch has begun, and the reads after which its worker is asked what it waits for."""


LEAVE_SECONDS = 5.0
"""How long Ctrl-C waits for the server to confirm a start that is under way."""


class EvalCommand:
    """Runs a suite as a batch, or follows or resumes a batch, and prints its results."""

    def __init__(self, options: EvalOptions) -> None:
        self._options = options
        self._console = Console(stderr=options.as_json, highlight=False, markup=False, emoji=False)
        self._reader = BatchReader(own_store())
        store_timeout()  # refused before anything is started
        named = options.presentation.baseline
        self._baseline = load_batch(named, lambda: self._reader) if named else None
        self._labels = read_case_labels(options.correction.labels) if options.correction.labels else None
        self._waiting: frozenset[str] = frozenset()
        """Threads of cases that wait for a person."""

    async def run(self) -> int:
        """Run a suite, or follow a batch, and return the exit code."""
        if self._options.suite is not None:
            return await self._run_suite(self._options.suite)
        return await self._follow_known(self._options.batch)

    async def _run_suite(self, path: Path) -> int:
        options = self._options
        config = own_config_file(trust=options.folder.trust)
        suite = read_suite(path, options.flags, find_outside_roots(options.folder.outside, config))
        known = [path for path in suite.outputs if path.suffix.lower() in renderers_by_suffix()]
        outputs = Outputs([*known, *options.outputs], overwrite=options.folder.overwrite)
        spool = SpooledCases(suite.cases())
        request = options.request(suite, spool)
        options.correction.refuse_rate(request.pass_rate)
        require_files(suite.tools, "--tools")
        require_files((suite.scripted,) if suite.scripted else (), "--scripted")
        unknown = [
            f"outputPath {path.name}: ignored, its suffix names no format; known: {', '.join(renderers_by_suffix())}"
            for path in suite.outputs
            if path not in known
        ]
        for note in (*suite.notes, *unknown) if not options.as_json else ():
            self._console.print(note, style="dim", soft_wrap=True)
        await self._reader.open()
        connection = await find()
        client = await connect(connection)
        task_queue = os.environ.get("GRADELOOP_TASK_QUEUE") or await ensure_worker(
            WorkerSpec(tools=suite.tools, scripted=suite.scripted, config=config), connection
        )
        batches = BatchClient(client, task_queue)
        await upload_cases(batches, request.batch_id, spool, connection, self._print_status)
        spool.close()
        if await self._reader.count_cases(request.batch_id) != request.total:
            cure = f"its worker uses another store; set {STORE_VARIABLE} here to the worker's value"
            raise InvalidRequest(f"the cases of {request.batch_id!r} were sent but are not in the store: {cure}")
        return await self._start(batches, request, outputs, connection, task_queue)

    async def _start(self, batches: BatchClient, request: BatchRequest, outputs: Outputs, connection: Connection, task_queue: str) -> int:
        """Start or resume a batch, and follow it; from the request on, Ctrl-C leaves the batch running and says so."""
        batch_id = request.batch_id
        with ctrl_c() as pressed:
            starting = asyncio.create_task(batches.start(request))
            begun = await done_before(self._begin(starting, batches, batch_id, connection, task_queue), pressed.get())
            if not begun:
                return await self._leave(starting, batch_id)
            if self._options.detach:
                self._print_status(f"started; follow it with: gradeloop eval --attach {batch_id}")
                return 0
            ended = await self._follow(batches, batch_id, outputs, connection, task_queue, pressed)
        return await self._end(ended, outputs)

    async def _begin(
        self, starting: "asyncio.Task[None]", batches: BatchClient, batch_id: str, connection: Connection, task_queue: str
    ) -> None:
        """Wait until the batch is started, and in the store if it is followed."""
        await asyncio.shield(starting)
        if OURS.fullmatch(task_queue):
            await ensure_worker_of(task_queue, connection)  # once more: it may have ended itself before the batch began
        if not self._options.detach:
            await done_before(self._wait_until_stored(batches, batch_id), keep_worker_alive(task_queue, connection))

    async def _leave(self, starting: "asyncio.Task[None]", batch_id: str) -> int:
        """Say what became of a batch whose start Ctrl-C has cut short, and return the exit code."""
        await asyncio.wait([starting], timeout=LEAVE_SECONDS)
        if starting.done() and starting.exception() is None:
            self._print_status(f"still running; follow it with: gradeloop eval --attach {batch_id}")
        else:
            starting.cancel()
            self._print_status(f"the server has not confirmed the start; the batch may run; look with: gradeloop batches show {batch_id}")
        return STOPPED

    async def _wait_until_stored(self, batches: BatchClient, batch_id: str) -> None:
        """Wait until the batch has begun, which is when the store has it."""
        watch, tries = StoreWatch(batch_id, self._print_status), 0
        ending = asyncio.create_task(batches.result(batch_id))

        async def stored() -> bool:
            return await watch.read(lambda: self._reader.has(batch_id))

        try:
            async with noticed(f"the batch {batch_id!r} waits for a worker of the task queue {batches.task_queue}"):
                while not await stored():
                    tries += 1
                    if tries % BEGIN_ASKS == 0:
                        watch.note_worker(await batches.store_problem(batch_id))
                    await asyncio.wait([ending], timeout=BEGIN_SECONDS)
                    if ending.done():
                        ending.result()
                        if not await stored():
                            raise InvalidRequest(f"the batch {batch_id!r} is not in this store; set {STORE_VARIABLE} as its worker has it")
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    async def _follow_known(self, name: str) -> int:
        """Follow a batch that was started before, or resume it."""
        options = self._options
        if options.folder.trust:  # the batch's worker may be started again
            own_config_file(trust=True)
        outputs = Outputs(options.outputs, overwrite=options.folder.overwrite)
        summary = await self._reader.summary(name)
        options.correction.refuse_rate(options.gate.get("pass_rate", summary.pass_rate))
        connection = await find()
        client = await connect(connection)
        queue = await BatchClient(client, "").queue_of(summary.batch_id)
        if queue is None and options.resumes:
            raise InvalidRequest(
                f"the server no longer has the batch {summary.batch_id!r}; run the suite again, its verdicts come from the cache"
            )
        task_queue, running = queue or ("", False)
        batches = BatchClient(client, task_queue)
        if running and options.resumes:
            raise InvalidRequest(
                f"the batch {summary.batch_id!r} is running already; follow it with: gradeloop eval --attach {summary.batch_id}"
            )
        if options.resumes:
            if OURS.fullmatch(task_queue):
                await ensure_worker_of(task_queue, connection)
            known = BatchRequest.model_validate_json(await self._reader.request(summary.batch_id))
            return await self._start(batches, options.resume_request(known), outputs, connection, task_queue)
        if running:
            with ctrl_c() as pressed:
                ended = await self._follow(batches, summary.batch_id, outputs, connection, task_queue, pressed)
            return await self._end(ended, outputs)
        summary = await self._reader.summary(summary.batch_id)  # again: a workflow that has just ended wrote it before
        stopped = {"status": "stopped", "reason": "its workflow has ended; resume it with --resume"}
        summary = summary.model_copy(update=stopped) if summary.status == "running" else summary
        await asyncio.to_thread(self._report_finished, outputs, summary.batch_id)
        return await self._finish(summary, outputs)

    async def _follow(
        self,
        batches: BatchClient,
        batch_id: str,
        outputs: Outputs,
        connection: Connection,
        task_queue: str,
        pressed: "asyncio.Queue[None]",
    ) -> BatchSummary | None:
        """Follow a batch and return its summary at the end; None if Ctrl-C came first."""
        watch = StoreWatch(batch_id, self._print_status)
        summary = await watch.read(lambda: self._reader.summary(batch_id))
        view = BatchProgressView(self._console, summary.total)
        report = _print_result if self._options.as_json else None
        follower = BatchFollower(batch_id, batches, self._reader, outputs, view, watch, report)
        self._print_status(f"batch {batch_id}: {counted(summary.total, 'case')}; Ctrl-C leaves the batch running")
        try:
            ended = await follower.follow(task_queue, connection, pressed)
        finally:
            view.close()
        if ended is None:
            self._print_status(f"still running; follow it with: gradeloop eval --attach {batch_id}")
        elif follower.waiting:
            self._waiting = frozenset(follower.waiting)
            self._print_status(f"cases wait for a person: {', '.join(follower.waiting)}; decide with: gradeloop inbox")
        return ended

    async def _end(self, ended: BatchSummary | None, outputs: Outputs) -> int:
        """Return the exit code of a batch that was followed: finished here, or left where Ctrl-C came first.

        Raises:
            StoreLost: The store went away while its results were written.
        """
        if ended is None:
            return STOPPED
        try:
            return await self._finish(ended, outputs)
        except StoreUnavailable as error:
            cure = f"write the results again with: gradeloop eval --attach {ended.batch_id}"
            raise StoreLost(f"{error}; {cure}") from None

    async def _finish(self, summary: BatchSummary, outputs: Outputs) -> int:
        """Write the outputs, print the results, and return the exit code."""
        summary = await self._keep_gate(summary)
        rate = self._options.limits.pass_rate  # named, it is held against a suite that asks for no verdict, too
        answer = answer_of(summary, pass_rate=rate)
        await asyncio.to_thread(self._close, outputs, summary, answer)
        if outputs.pages:
            from gradeloop.batches.pages.read_batch import write_pages

            await write_pages(outputs.pages, self._reader, summary.batch_id)
        if not self._options.as_json and self._options.presentation.table:
            await asyncio.to_thread(self._print_table, summary)
            metrics = await asyncio.to_thread(lambda: MetricTable(summary, self._results(summary)))
            for line in metric_lines(metrics.figures()):
                self._console.print(line, soft_wrap=True)
        self._console.print(Text(answer.text, ANSWER_STYLES[answer.word]), soft_wrap=True)
        self._console.print(results_line(summary, pass_rate=rate), soft_wrap=True)
        for line in gate_lines(summary.corrected) if summary.corrected else ():
            self._console.print(line, soft_wrap=True)
        if summary.status in {"paused", "stopped"}:
            self._print_status(f"resume it with: gradeloop eval --resume {summary.batch_id}")
        elif step := next_step(summary, answer):
            self._print_status(f"next: {step}")
        return gate_exit_code(summary, pass_rate=rate)

    async def _keep_gate(self, summary: BatchSummary) -> BatchSummary:
        """Return the summary with the gate that the flags name, and keep that with the batch: a named rate, or one corrected by labels."""
        gate: dict[str, object] = dict(self._options.gate)
        threshold = self._options.gate.get("pass_rate", summary.pass_rate)
        corrected, flag = summary.corrected, self._options.correction.gate
        if self._labels is not None and summary.status == "finished":
            corrected = await gate_batch(self._reader, summary, self._labels.labels, threshold if flag == "corrected" else None)
        elif corrected is not None:
            decides = flag is None and corrected.decision is not None
            corrected = corrected.held_against(threshold if decides else None)
        gate |= {"corrected": corrected}
        if any(getattr(summary, name) != value for name, value in gate.items()):
            await self._reader.keep_gate(summary.batch_id, gate)
        return summary.model_copy(update=gate)

    def _close(self, outputs: Outputs, summary: BatchSummary, answer: BatchAnswer) -> None:
        """Write the outputs, those of Markdown with the answer and the comparison with the baseline."""
        baseline = baseline_of(self._baseline, stored_source(summary, self._results(summary))) if self._baseline else None
        outputs.close(summary, lambda: self._results(summary), BatchStory(answer, baseline))

    def _print_table(self, summary: BatchSummary) -> None:
        for line in result_lines(self._results(summary), self._console.width, self._options.presentation.cell_characters):
            self._console.print(line)

    def _report_finished(self, outputs: Outputs, batch_id: str) -> None:
        """Write the results of a batch that ended before this command."""
        for result in self._reader.results(batch_id):
            if result.status not in {"queued", "waiting"}:
                outputs.finished(result)
                if self._options.as_json:
                    _print_result(result)

    def _results(self, summary: BatchSummary) -> Iterator[CaseResult]:
        """Yield all cases, with the reason for those that have not finished."""
        for result in self._reader.results(summary.batch_id, f"not run: {summary.reason or summary.status}"):
            thread = f"{summary.batch_id}/{result.id}"
            waits = {"status": "waiting", "error": "it waits for a person", "thread_id": thread}
            yield result.model_copy(update=waits) if thread in self._waiting else result

    def _print_status(self, message: str) -> None:
        print(message, file=sys.stderr)  # noqa: T201 - stdout has the results alone


def _print_result(result: CaseResult) -> None:
    print(json_without_commands(json_line(result)), end="", flush=True)  # noqa: T201 - the command's output
