"""Commands on suites and batches: run, follow and resume them, show and export their results."""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal
from uuid import uuid4

import typer
from pydantic import ValidationError
from rich.console import Console

from gradeloop.batches.client import BatchClient, SpooledCases, upload_cases
from gradeloop.batches.contract import BatchRequest, BatchSummary, CaseResult
from gradeloop.batches.outage import StoreWatch, store_timeout
from gradeloop.batches.outputs import SUFFIXES, Outputs, gate_exit_code, json_line, results_line
from gradeloop.batches.reader import PAGE, BatchReader
from gradeloop.cli.commands import (
    AllowOutside,
    CommandWithFormerFlags,
    Grader,
    Json,
    Limit,
    Overwrite,
    Scripted,
    Tools,
    Trust,
    codes_help,
    ctrl_c,
)
from gradeloop.cli.folder import own_config_file
from gradeloop.cli.render.batch import BatchProgressView, batch_table, case_lines, result_lines
from gradeloop.cli.render.table import show_lines
from gradeloop.cli.task_file import budget_of
from gradeloop.contract.model_spec import Budget
from gradeloop.errors import BatchLost, InvalidRequest, StoreLost, StoreUnavailable, WorkerFailed, explain
from gradeloop.exit_codes import STOPPED
from gradeloop.files.rubric import require_files
from gradeloop.settings.worker import find_outside_roots
from gradeloop.store.engine import STORE_VARIABLE, own_store
from gradeloop.suites.load import read_suite
from gradeloop.suites.plan import Suite, SuiteFlags
from gradeloop.temporal.connect import Connection, connect, find
from gradeloop.temporal.worker import OURS, WorkerSpec, done_before, ensure_worker, ensure_worker_of, keep_worker_alive
from gradeloop.text import counted, json_without_commands

app = typer.Typer(rich_markup_mode=None)
batches_app = typer.Typer(
    help="List, show, export and pause batches. The store that GRADELOOP_STORE names has them.",
    short_help="List, show, export and pause batches.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(batches_app, name="batches")

FILTER_HELP = "Run the cases whose id contains this text or matches this pattern; repeatable."
CONCURRENCY_HELP = "Run at most this many model and tool calls at the same time; 50 by default."
MAX_ERROR_RATE_HELP = "Pause when more than this share of cases are errors; 0.5 by default."
RATE_HELP = "Exit 1 when a smaller share of the judged cases passes; 1.0 by default."
ALLOW_ERRORS_HELP = "Exit 3 only when a larger share of cases are errors."
RETRIES_HELP = "Retries per call after a transient error of one kind; 7 by default. A provider that is away is waited for."

BatchId = Annotated[str, typer.Argument(metavar="BATCH", help="The batch's id, or `latest` for the newest.")]
CaseId = Annotated[str | None, typer.Argument(metavar="CASE", help="Show this case of the batch, by its id.")]
OutputOption = Annotated[
    list[Path] | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the results to a .json, .jsonl, .csv, .xml or .html file; repeatable."),
]
Again = Literal["errors", "failures"]


@app.command("eval", cls=CommandWithFormerFlags, epilog=codes_help("eval"))
def evaluate(  # noqa: PLR0913 - one parameter a flag
    suite: Annotated[Path | None, typer.Argument(metavar="SUITE.yaml", help="The suite to run, or a promptfooconfig.yaml.")] = None,
    *,
    output: OutputOption = None,
    grader: Grader = None,
    filters: Annotated[list[str] | None, typer.Option("--filter", metavar="TEXT", help=FILTER_HELP)] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Run at most this many cases.")] = None,
    loop: Annotated[bool | None, typer.Option("--loop/--no-loop", help="Revise each draft until it passes, or draft once.")] = None,
    repeat: Annotated[int | None, typer.Option(min=1, max=100, metavar="N", help="Run each case this many times.")] = None,
    concurrency: Annotated[int | None, typer.Option("--concurrency", "-j", min=1, max=1000, metavar="N", help=CONCURRENCY_HELP)] = None,
    budget_tokens: Annotated[int | None, typer.Option(metavar="N", help="Pause when the batch has used this many tokens.")] = None,
    budget_usd: Annotated[float | None, typer.Option(metavar="USD", help="Pause when the batch has cost this many US dollars.")] = None,
    max_errors: Annotated[int | None, typer.Option(min=1, metavar="N", help="Pause when this many cases are errors.")] = None,
    max_error_rate: Annotated[float | None, typer.Option(min=0, max=1, metavar="SHARE", help=MAX_ERROR_RATE_HELP)] = None,
    pass_rate: Annotated[float | None, typer.Option(min=0, max=1, metavar="SHARE", help=RATE_HELP)] = None,
    allow_errors: Annotated[float, typer.Option(min=0, max=1, metavar="SHARE", help=ALLOW_ERRORS_HELP)] = 0.0,
    retries: Annotated[int | None, typer.Option(min=0, max=20, metavar="N", help=RETRIES_HELP)] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Reuse verdicts from the cache, or judge everything again.")] = True,
    tools: Tools = None,
    scripted: Scripted = None,
    attach: Annotated[str | None, typer.Option(metavar="BATCH", help="Follow a batch that was started before, or `latest`.")] = None,
    resume: Annotated[str | None, typer.Option(metavar="BATCH", help="Resume a batch: run what has not run, and retry its errors.")] = None,
    allow_outside: AllowOutside = None,
    trust: Trust = False,
    overwrite: Overwrite = False,
    retry: Annotated[Again | None, typer.Option(help="Retry a batch's errors, or its failures too; name the batch with --attach.")] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the batch and return without waiting for it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per finished case, and nothing else on stdout.")] = False,
) -> None:
    """Run a suite as a batch; the exit code is a gate for CI."""
    budget = budget_of(budget_tokens, budget_usd)
    flags = SuiteFlags(grader, tuple(filters or ()), limit, loop, repeat, tuple(tools or ()), scripted)
    limits = LimitFlags(budget, concurrency, max_errors, max_error_rate, pass_rate, retries)
    folder = FolderFlags(tuple(allow_outside or ()), trust, overwrite)
    options = EvalOptions(suite, flags, limits, tuple(output or ()), attach, resume, retry, allow_errors, cache, detach, as_json, folder)
    options.refuse_mixed()
    raise typer.Exit(asyncio.run(EvalCommand(options).run()))


@batches_app.command("list")
def list_batches(*, limit: Limit = 20, as_json: Json = False) -> None:
    """List the batches, newest first."""
    found = asyncio.run(BatchReader(own_store()).summaries(limit))
    width = shutil.get_terminal_size().columns
    values = [summary.model_dump(mode="json") for summary in found]
    show_lines(values, [batch_table(found, width)] if found else ["no batches yet"], as_json=as_json)


@batches_app.command()
def show(
    batch: BatchId,
    case: Annotated[str | None, typer.Argument(metavar="CASE", help="Show this case of the batch, by its id.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Show a batch's results, or one of its cases in full."""
    reader = BatchReader(own_store())
    if case is not None:
        result = asyncio.run(reader.result(asyncio.run(reader.summary(batch)).batch_id, case))
        show_lines(result.model_dump(mode="json"), case_lines(result), as_json=as_json)
        return
    with reader.snapshot(batch) as found:
        width, summary = shutil.get_terminal_size().columns, found.summary
        lines = [f"batch {summary.batch_id}", *result_lines(found.results(), width), results_line(summary)]
    show_lines(summary.model_dump(mode="json"), lines, as_json=as_json)


@batches_app.command()
def export(batch: BatchId, *, output: OutputOption = None, overwrite: Overwrite = False) -> None:
    """Write a batch's results to files."""
    if not output:
        raise InvalidRequest("No output file is named; name one with --output, its suffix sets the format")
    files, reader = Outputs(output, overwrite=overwrite), BatchReader(own_store())
    with reader.snapshot(batch) as found:
        for result in found.results():
            if result.status not in {"queued", "waiting"}:
                files.finished(result)
        files.close(found.summary, found.results)
    if files.pages:
        from gradeloop.reports.read_batch import write_pages

        asyncio.run(write_pages(files.pages, reader, found.summary.batch_id))
    typer.echo(f"wrote {', '.join(map(str, output))}")


@batches_app.command()
def pause(batch: BatchId) -> None:
    """Pause a running batch after the cases in flight."""

    async def work() -> str:
        summary = await BatchReader(own_store()).summary(batch)
        await BatchClient(await connect(await find()), "").pause(summary.batch_id)
        return summary.batch_id

    name = asyncio.run(work())
    typer.echo(f"pausing {name}; resume it with: gradeloop eval --resume {name}")


NAME_CHARACTERS = 60
"""The most characters of a suite's name in a batch's id."""

WIRE_NAMES = {"concurrency": "at_once"}
"""Names in a batch request that differ from the flag's."""


@dataclass(frozen=True)
class LimitFlags:
    """Flags that override the suite's settings, and the settings that a batch was started with."""

    budget: Budget | None = None
    concurrency: int | None = None
    max_errors: int | None = None
    max_error_rate: float | None = None
    pass_rate: float | None = None
    retries: int | None = None

    def fields_of(self, values: object) -> dict[str, object]:
        """Return the limits that an object of the same fields sets, by their names in a batch request."""
        set_values = {name: getattr(values, name) for name in vars(self) if getattr(values, name) is not None}
        return {WIRE_NAMES.get(name, name): value for name, value in set_values.items()}


@dataclass(frozen=True)
class FolderFlags:
    """Flags on what may be read, run and replaced in the folders of the suite and the command."""

    outside: tuple[Path, ...] = ()
    """Folders besides its own in which the suite may name files."""
    trust: bool = False
    """Whether to trust the folder's gradeloop.toml first."""
    overwrite: bool = False
    """Whether outputs replace files that gradeloop did not write, too."""


@dataclass(frozen=True)
class EvalOptions:
    """The arguments and flags of one `gradeloop eval`."""

    suite: Path | None
    flags: SuiteFlags = SuiteFlags()  # noqa: RUF009 - frozen
    limits: LimitFlags = LimitFlags()
    outputs: tuple[Path, ...] = ()
    attach: str | None = None
    """The batch to follow."""
    resume: str | None = None
    """The batch to resume."""
    again: Literal["errors", "failures"] | None = None
    allow_errors: float = 0.0
    cache: bool = True
    detach: bool = False
    as_json: bool = False
    folder: FolderFlags = FolderFlags()

    @property
    def batch(self) -> str:
        """The batch that the flags name when there is no suite."""
        return self.resume or self.attach or "latest"

    @property
    def resumes(self) -> bool:
        """Whether the batch continues, instead of only being followed."""
        return self.resume is not None or self.again is not None

    def refuse_mixed(self) -> None:
        """Refuse flags that exclude one another.

        Raises:
            InvalidRequest: Two flags exclude one another, or nothing is named.
        """
        known = [name for name, value in (("--attach", self.attach), ("--resume", self.resume), ("--retry", self.again)) if value]
        if self.suite is None and not known:
            raise InvalidRequest("No suite is named; give its file, or name a batch with --attach or --resume")
        if self.suite is not None and known:
            raise InvalidRequest(f"{known[0]} uses a batch whose cases are stored already; leave the suite {str(self.suite)!r} out")
        if self.attach and self.resume:
            raise InvalidRequest("--attach and --resume exclude each other; keep one")
        if self.suite is None and self.flags != SuiteFlags():
            flags = "--grader, --filter, --limit, --loop, --repeat, --tools and --scripted"
            raise InvalidRequest(f"{flags} need a suite; a batch keeps the ones it was started with")

    def request(self, suite: Suite, total: int) -> BatchRequest:
        """Return the request that starts the suite's batch.

        Raises:
            InvalidRequest: A limit is out of range.
        """
        name, settings = suite.name or suite.path.stem, suite.settings
        given = {"batch_id": new_batch_id(name), "total": total, "name": name[:200], "cache": settings.cache and self.cache}
        try:
            return BatchRequest.model_validate(given | self.limits.fields_of(settings) | self.limits.fields_of(self.limits))
        except ValidationError as error:
            raise InvalidRequest(explain(error)) from None

    def resume_request(self, known: BatchRequest) -> BatchRequest:
        """Return the request that resumes a batch: the batch's own settings, overridden by the flags."""
        changed = self.limits.fields_of(self.limits) | {"again": self.again or "errors"}
        return known.model_copy(update=changed | ({} if self.cache else {"cache": False}))


def new_batch_id(name: str) -> str:
    """Return a new batch's id: the suite's name, the time, and four random letters."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._")[:NAME_CHARACTERS] or "batch"
    return f"{plain}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{uuid4().hex[:4]}"


BEGIN_TRIES, BEGIN_SECONDS = 600, 0.1
"""How often, and how far apart, the store is read until a batch has begun: a minute, enough to start its worker again."""

BEGIN_ASKS = 30
"""The reads after which the worker is asked whether it waits for the store."""


LEAVE_SECONDS = 5.0
"""How long Ctrl-C waits for the server to confirm a start that is under way."""


class EvalCommand:
    """Runs a suite as a batch, or follows or resumes a batch, and prints its results."""

    def __init__(self, options: EvalOptions) -> None:
        self._options = options
        self._console = Console(stderr=options.as_json, highlight=False, markup=False, emoji=False)
        self._reader = BatchReader(own_store())
        store_timeout()  # refused before anything is started
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
        known = [path for path in suite.outputs if path.suffix.lower() in SUFFIXES]
        outputs = Outputs([*known, *options.outputs], overwrite=options.folder.overwrite)
        spool = SpooledCases(suite.cases())
        request = options.request(suite, spool.total)
        require_files(suite.tools, "--tools")
        require_files((suite.scripted,) if suite.scripted else (), "--scripted")
        unknown = [
            f"outputPath {path.name}: ignored, its suffix names no format; known: {', '.join(SUFFIXES)}"
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
            await self._wait_until_stored(batches, batch_id)

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
        watch = StoreWatch(batch_id, self._print_status)
        ending = asyncio.create_task(batches.result(batch_id))
        try:
            tries = 0
            while tries < BEGIN_TRIES:
                if await watch.read(lambda: self._reader.has(batch_id)):
                    return
                tries += 1
                if tries % BEGIN_ASKS == 0:
                    problem = await batches.store_problem(batch_id)
                    watch.note_worker(problem)
                    tries = 0 if problem else tries
                await asyncio.wait([ending], timeout=BEGIN_SECONDS)
                if ending.done():
                    ending.result()
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
        raise WorkerFailed(
            f"the batch {batch_id!r} has not begun within a minute; check its worker, then run: gradeloop eval --attach {batch_id}"
        )

    async def _follow_known(self, name: str) -> int:
        """Follow a batch that was started before, or resume it."""
        options = self._options
        if options.folder.trust:  # the batch's worker may be started again
            own_config_file(trust=True)
        outputs = Outputs(options.outputs, overwrite=options.folder.overwrite)
        summary = await self._reader.summary(name)
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
            self._print_status(f"cases wait for a person: {', '.join(follower.waiting)}; decide with: gradeloop decide")
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
        await asyncio.to_thread(outputs.close, summary, lambda: self._results(summary))
        if outputs.pages:
            from gradeloop.reports.read_batch import write_pages

            await write_pages(outputs.pages, self._reader, summary.batch_id)
        if not self._options.as_json:
            for line in await asyncio.to_thread(lambda: list(result_lines(self._results(summary), self._console.width))):
                self._console.print(line)
        rate = self._options.limits.pass_rate
        self._console.print(results_line(summary, pass_rate=rate), soft_wrap=True)
        if summary.status in {"paused", "stopped"}:
            self._print_status(f"resume it with: gradeloop eval --resume {summary.batch_id}")
        return gate_exit_code(summary, allow_errors=self._options.allow_errors, pass_rate=rate)

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


READ_SECONDS = 0.25
"""The pause between two reads of the store."""

STILL_SECONDS = 3.0
"""How long no case may end before the batch is asked whether all its running cases wait for people."""

ASK_SECONDS = 1.0
"""The pause between two queries of the workflow."""


@dataclass
class BatchFollower:
    """Follows a batch: shows its progress, writes finished cases, and keeps its worker alive."""

    batch_id: str
    client: BatchClient
    reader: BatchReader
    outputs: Outputs
    view: BatchProgressView
    watch: StoreWatch
    on_result: Callable[[CaseResult], None] | None = None
    """Called with every result as it comes."""
    after: int = 0
    """The store's number of the last result that was reported."""
    summary: BatchSummary | None = None
    waiting: tuple[str, ...] = ()
    """Threads that wait for a person, if nothing else is left to do."""
    _running: int = 0
    _still: bool = False
    """Whether no case has ended for a while."""

    async def follow(self, task_queue: str, connection: Connection, pressed: "asyncio.Queue[None]") -> BatchSummary | None:
        """Return the batch's summary once it has ended, is paused, or waits for people; None if Ctrl-C came first."""
        ended = await done_before(self._follow(task_queue, connection), pressed.get())
        return self.summary if ended else None

    async def _follow(self, task_queue: str, connection: Connection) -> None:
        result = asyncio.create_task(self.client.result(self.batch_id))
        beside = [asyncio.create_task(keep_worker_alive(task_queue, connection)), asyncio.create_task(self._count_running())]
        watching = asyncio.create_task(self._until_still(result))
        try:
            await asyncio.wait([watching, *beside], return_when=asyncio.FIRST_COMPLETED)
            for task in beside:
                if task.done():
                    task.result()
            await watching
        finally:
            for unfinished in (result, watching, *beside):
                unfinished.cancel()
            await asyncio.gather(result, watching, *beside, return_exceptions=True)

    async def _until_still(self, result: "asyncio.Task[BatchSummary]") -> None:
        """Report results until the batch has ended, or waits for people alone."""
        clock = asyncio.get_running_loop().time
        since = ended = clock()
        while not result.done():
            await asyncio.wait([result], timeout=READ_SECONDS)
            if await self._report():
                since = ended = clock()
            elif clock() - since > STILL_SECONDS and await self._waits():
                return
            else:
                since = since if clock() - since <= STILL_SECONDS else clock()
            self._still = clock() - ended > STILL_SECONDS
        await self._report()
        try:
            self.summary = result.result()
        except BatchLost as error:
            known = await self.watch.read(lambda: self.reader.summary(self.batch_id))
            why = known.reason if known.status == "stopped" and known.reason else str(error)
            self.summary = known.model_copy(update={"status": "stopped", "reason": why})

    async def _report(self) -> int:
        """Report the results that came since the last call, and the batch's progress; return how many they are."""
        reported = 0
        while True:
            results, self.after = await self.watch.read(lambda: self.reader.ended_since(self.batch_id, self.after))
            for result in results:
                self.outputs.finished(result)
                self.view.finished(result)
                if self.on_result is not None:
                    self.on_result(result)
            reported += len(results)
            if len(results) < PAGE:
                break
        self.summary = await self.watch.read(lambda: self.reader.summary(self.batch_id))
        self.view.update(self.summary, self._running)
        return reported

    async def _count_running(self) -> None:
        """Query the batch again and again for how many cases are running."""
        while True:
            running = await self.client.in_flight(self.batch_id)
            self._running = self._running if running is None else running
            self.view.note_rate_limit(await self.client.rate_limit_wait(self.batch_id))
            if self._still:
                self.watch.note_worker(await self.client.store_problem(self.batch_id))
            await asyncio.sleep(ASK_SECONDS)

    async def _waits(self) -> bool:
        """Return whether all running cases wait for people, so that no other case begins; the summary then counts them as waiting."""
        summary = self.summary
        if summary is None or not summary.open or not self._running:
            return False
        found = await self.client.waiting(self.batch_id)
        if len(found) < self._running:
            return False
        self.waiting = tuple(found)
        self.summary = summary.model_copy(update={"waiting": len(found)})
        return True
