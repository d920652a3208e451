"""The command `eval` and its kin: run a suite as a batch, follow or resume a batch, run its errors again."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from gradeloop.batches.answer import (
    ANSWER_STYLES,
    BatchAnswer,
    answer_of,
    gate_exit_code,
    gate_lines,
    hint_of_verdicts,
    model_verdicts,
    next_step,
    results_line,
    why_open,
    words_by_column,
)
from gradeloop.batches.cli.batch_view import BatchProgressView, case_line
from gradeloop.batches.cli.follow import BatchFollower, StoreWatch, store_timeout
from gradeloop.batches.cli.results_table import column_lines, result_lines
from gradeloop.batches.client import BatchClient, SpooledCases, upload_cases
from gradeloop.batches.column_table import ColumnTable, metric_lines
from gradeloop.batches.compare.comparison import ComparisonGate, compare_batches, load_batch, stored_source
from gradeloop.batches.compare.wording import baseline_of
from gradeloop.batches.contract import BatchRequest, BatchSummary, CaseResult
from gradeloop.batches.exports import is_batch_file
from gradeloop.batches.gate import expectation, gate_batch
from gradeloop.batches.markdown import BatchStory
from gradeloop.batches.outputs import Outputs, json_line, renderers_by_suffix
from gradeloop.batches.reader import LATEST, BatchReader
from gradeloop.cli.commands import codes_help, ctrl_c, takes
from gradeloop.cli.folder import own_config_file
from gradeloop.errors import GradeloopError, InvalidRequest, StoreLost, StoreUnavailable, installed
from gradeloop.exit_codes import SATISFIED, STOPPED
from gradeloop.files.output import is_written_by_us
from gradeloop.files.rubric import require_files
from gradeloop.judges.judgements import read_case_labels
from gradeloop.settings.paths import state_folder
from gradeloop.settings.trust import ConfigFile
from gradeloop.settings.worker import find_imports, find_outside_roots
from gradeloop.stats.decided import EarlyAnswer
from gradeloop.store.engine import STORE_VARIABLE, own_store
from gradeloop.suites.cli.eval_options import EvalCommandLine, EvalOptions, check_suites, find_suite, worker_of
from gradeloop.suites.load import read_suite
from gradeloop.suites.plan import Suite
from gradeloop.temporal.connect import OURS, Connection, connect, done_before, ensure_worker, ensure_worker_of, find, keep_worker_alive
from gradeloop.temporal.process import beside, noticed
from gradeloop.text import counted, json_without_commands, printable

app = typer.Typer(rich_markup_mode=None)


class _Retry(EvalCommandLine):
    """`retry BATCH`, promptfoo's name of `eval --attach BATCH --retry errors`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - typer's own click has no public types
        """Read a command line, which may name the batch first."""
        batch, *flags = args if args and not args[0].startswith("-") else [LATEST, *args]
        return super().parse_args(ctx, ["--attach", batch, "--retry", "errors", *flags])


@app.command("retry", cls=_Retry, hidden=True)
@app.command("eval", cls=EvalCommandLine, epilog=codes_help("eval"))
@takes(EvalOptions)
def evaluate(options: EvalOptions) -> None:
    """Run a suite as a batch; the exit code is a gate for CI."""
    raise typer.Exit(run_eval(options.read()))


def run_eval(options: EvalOptions) -> int:
    """Run a suite, or follow a batch, and return the exit code; raise InvalidRequest for flags that exclude one another, or no suite."""
    if options.suite is None and not options.names_batch:
        options = replace(options, suite=find_suite(Path(), flags_make_one=options.flags.overrides.makes_suite))
    if options.check and options.suite is not None:
        return check_suites([options.suite, *options.suites[1:]], options.flags, options.folder.allow_outside, as_json=options.as_json)
    options.refuse_mixed()
    if options.watch and options.suite is not None:
        return run_again_on_changes(options, lambda: asyncio.run(EvalCommand(options).run()))
    return asyncio.run(EvalCommand(options).run())


BEGIN_SECONDS, BEGIN_ASKS = 0.1, 30
"""The pause between two reads of the store until a batch has begun, and the reads after which its worker is asked what it waits for."""

LEAVE_SECONDS = 5.0
"""Seconds that Ctrl-C waits for the server to confirm a start that is under way."""


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
        flags = replace(options.flags, imports=find_imports(options.flags.imports, config))
        suite = read_suite(path, flags, find_outside_roots(options.folder.allow_outside, config))
        known = [path for path in suite.outputs if path.suffix.lower() in renderers_by_suffix()]
        outputs = Outputs([*known, *options.output], overwrite=options.folder.overwrite)
        require_files(suite.tools, "--tools")
        require_files((suite.scripted,) if suite.scripted else (), "--scripted")
        if options.early.preview:
            request, ordered = options.ordered_request(suite, SpooledCases(suite.cases()), baseline=self._baseline)
            for line in (*(ordered if request.until_decided is None else ()), expectation(request)):
                self._console.print(line, soft_wrap=True)
            return SATISFIED
        async with beside(_served(config, suite)) as (served,):
            spool = SpooledCases()
            for case in suite.cases():
                spool.add(case)
                await asyncio.sleep(0)  # in which the server and the worker come up
            labels = self._labels.labels if self._labels is not None else ()
            request, ordered = options.ordered_request(suite, spool, labels, self._baseline)
            options.correction.refuse_rate(request.pass_rate)
            unknown = [
                f"outputPath {path.name}: ignored, its suffix names no format; known: {', '.join(renderers_by_suffix())}"
                for path in suite.outputs
                if path not in known
            ]
            for note in (*suite.notes, *unknown, *ordered) if not options.as_json else ():
                self._console.print(note, style="dim", soft_wrap=True)
            await self._reader.open()
            await served
            connection, task_queue = await _served(config, suite)  # the cases may name one more server of this machine
        client = await connect(connection)
        batches = BatchClient(client, task_queue)
        await upload_cases(batches, request, spool, connection, self._print_status)
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
        outputs = Outputs(options.output, overwrite=options.folder.overwrite)
        summary = await self._reader.summary(name)
        for case in options.case:
            await self._reader.case(summary.batch_id, case)
        options.correction.refuse_rate(options.gate.get("pass_rate", summary.pass_rate))
        options.refuse_unfair(summary)
        connection = await find()
        client = await connect(connection)
        queue = await BatchClient(client, "").queue_of(summary.batch_id)
        if queue is None and options.resumes:
            raise InvalidRequest(
                f"the server no longer has the batch {summary.batch_id!r}; run the suite again, its verdicts come from the cache"
            )
        task_queue, running = queue or ("", False)
        batches = BatchClient(client, task_queue)
        if (wanted := await self._resumed(summary, running=running)) is not None:
            if OURS.fullmatch(task_queue):
                await ensure_worker_of(task_queue, connection, fresh=True)
            return await self._start(batches, wanted, outputs, connection, task_queue)
        if running:
            with ctrl_c() as pressed:
                ended = await self._follow(batches, summary.batch_id, outputs, connection, task_queue, pressed)
            return await self._end(ended, outputs)
        summary = await self._reader.summary(summary.batch_id)  # again: a workflow that has just ended wrote it before
        stopped = {"status": "stopped", "reason": "its workflow has ended; resume it with --resume"}
        summary = summary.model_copy(update=stopped) if summary.status == "running" else summary
        await asyncio.to_thread(self._report_finished, outputs, summary.batch_id)
        return await self._finish(summary, outputs)

    async def _resumed(self, summary: BatchSummary, *, running: bool) -> BatchRequest | None:
        """Return the request by which the flags resume a batch; None where it is only followed, or its answer known.

        Raises:
            InvalidRequest: It is another tenant's, or runs, and otherwise than the flags say.
        """
        options = self._options
        if not options.resumes:
            return None
        if summary.decided and summary.open and not options.early.rest and not (options.retry and summary.errors):
            self._print_status("its answer is known; --all asks the rest, too")
            return None
        known = BatchRequest.model_validate_json(await self._reader.request(summary.batch_id))
        if options.tenant not in {None, known.priority.tenant}:
            raise InvalidRequest(f"--tenant: the batch {summary.batch_id!r} is another tenant's; leave --tenant out, or run the suite")
        wanted = options.resume_request(known)
        if not running:
            return wanted
        if options.retry or wanted.model_copy(update={"again": known.again}) != known:
            cure = f"follow it with: gradeloop eval --attach {summary.batch_id}"
            raise InvalidRequest(f"the batch {summary.batch_id!r} is running already, as it was started; {cure}")
        self._print_status("it is still running")
        return None

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
        shown, columns = self._options.presentation, await asyncio.to_thread(lambda: ColumnTable(summary, self._results(summary)))
        table = shown.table if shown.table is not None or shown.cell_length is None else True
        if not self._options.as_json and table is not False:
            if table or self._console.is_terminal:
                await asyncio.to_thread(self._print_table, summary)
            for line in (*column_lines(columns.columns(), self._console.width), *metric_lines(columns.figures())):
                self._console.print(line, soft_wrap=isinstance(line, str))
            if hint := await asyncio.to_thread(self._hint, summary):
                self._console.print(hint, style="yellow", soft_wrap=True)
        said = f"{answer.text}: {answer.words}" if summary.decided and answer.words else answer.text
        self._console.print(Text(said, ANSWER_STYLES[answer.word]), soft_wrap=True)
        for line in (*words_by_column(columns, summary), results_line(summary, pass_rate=rate)):
            self._console.print(line, soft_wrap=True)
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
        decides = flag == "corrected" and summary.decided is None
        if self._labels is not None and summary.status == "finished":
            corrected = await gate_batch(self._reader, summary, self._labels.labels, threshold if decides else None)
        elif corrected is not None:
            decides = flag is None and corrected.decision is not None
            corrected = corrected.held_against(threshold if decides else None)
        gate |= {"corrected": corrected}
        if summary.baseline is not None and summary.decided is None and summary.status == "finished":
            gate |= {"decision": await asyncio.to_thread(self._compared, summary, summary.baseline)}
        if any(getattr(summary, name) != value for name, value in gate.items()):
            await self._reader.keep_gate(summary.batch_id, gate)
        return summary.model_copy(update=gate)

    def _compared(self, summary: BatchSummary, baseline: str) -> EarlyAnswer | None:
        """Return whether a case of a batch that asked all regressed from its baseline; None where nothing could be compared.

        A file is read only where this command's own flag names it: what a batch says names none.
        """
        before = self._baseline if self._baseline and self._baseline.source == baseline else None
        if before is None and is_batch_file(baseline):
            return None
        try:
            before = before or load_batch(baseline, lambda: self._reader)
            found = compare_batches(before, stored_source(summary, self._results(summary)))
        except InvalidRequest as error:  # the results are written all the same
            self._print_status(str(error))
            return None
        answer = "failed" if found.findings(ComparisonGate.REGRESSIONS) else "passed"
        return None if found.overall is None else EarlyAnswer(answer=answer, asked=summary.total, risk=0, wanted=1)

    def _close(self, outputs: Outputs, summary: BatchSummary, answer: BatchAnswer) -> None:
        """Write the outputs, those of Markdown with the answer and the comparison with the baseline."""
        baseline = baseline_of(self._baseline, stored_source(summary, self._results(summary))) if self._baseline else None
        outputs.close(summary, lambda: self._results(summary), BatchStory(answer, baseline))

    def _print_table(self, summary: BatchSummary) -> None:
        for line in result_lines(self._results(summary), self._console.width, self._options.presentation.cell_length):
            self._console.print(line)

    def _hint(self, summary: BatchSummary) -> str:
        judged = (model_verdicts(result.criteria, result.grader) for result in self._results(summary))
        return hint_of_verdicts(judged, summary.corrected.error if summary.corrected else None)

    def _report_finished(self, outputs: Outputs, batch_id: str) -> None:
        """Write the results of a batch that ended before this command."""
        for result in self._reader.results(batch_id):
            if result.status not in {"queued", "waiting"}:
                outputs.finished(result)
                if self._options.as_json:
                    _print_result(result)
                elif not self._console.is_terminal:
                    self._console.print(case_line(result), soft_wrap=True)

    def _results(self, summary: BatchSummary) -> Iterator[CaseResult]:
        """Yield all cases, with the reason for those that have not finished."""
        why = why_open(summary) if summary.decided else f"not run: {summary.reason or summary.status}"
        for result in self._reader.results(summary.batch_id, why):
            thread = f"{summary.batch_id}/{result.id}"
            waits = {"status": "waiting", "error": "it waits for a person", "thread_id": thread}
            yield result.model_copy(update=waits) if thread in self._waiting else result

    def _print_status(self, message: str) -> None:
        print(message, file=sys.stderr)  # noqa: T201 - stdout has only the results


async def _served(config: ConfigFile | None, suite: Suite) -> tuple[Connection, str]:
    """Return the server, and the task queue whose worker serves a suite; started now where they do not run."""
    connection = await find()
    return connection, os.environ.get("GRADELOOP_TASK_QUEUE") or await ensure_worker(worker_of(config, suite), connection)


def _print_result(result: CaseResult) -> None:
    print(json_without_commands(json_line(result)), end="", flush=True)  # noqa: T201 - the command's output


INPUT_SUFFIXES = {
    *(".yaml", ".yml", ".json", ".jsonl", ".csv", ".txt", ".md", ".j2", ".xml", ".html", ".toml"),
    *(".py", ".js", ".cjs", ".mjs", ".ts"),
}
"""The suffixes of files that a suite may name."""

POLL_MILLISECONDS = 250


def run_again_on_changes(options: EvalOptions, run: Callable[[], int]) -> int:
    """Run a suite now and whenever a file of its folder changes, and return the exit code once Ctrl-C ends that.

    A suite that is refused is run again when it has been corrected. What gradeloop itself wrote is not a change.

    Raises:
        InvalidRequest: The package that watches files is missing.
    """
    files = (options.suite, options.flags.scripted, *options.flags.overrides.files, *options.flags.tools)
    changes = _changes({path.resolve().parent for path in files if path is not None})
    next(changes)  # the watch begins before the first run, so that no change is missed
    while _run(run) != STOPPED:
        print("waiting for changes; Ctrl-C ends the watch", file=sys.stderr)  # noqa: T201 - stdout has only the results
        changed: set[Path] = set()
        while not changed:
            try:
                changed = next(changes)
            except (KeyboardInterrupt, StopIteration):
                return STOPPED
        names = ", ".join(sorted(path.name for path in changed))
        print(f"changed: {printable(names)}", file=sys.stderr)  # noqa: T201 - as above
    return STOPPED


def _run(run: Callable[[], int]) -> int:
    try:
        return run()
    except GradeloopError as error:
        print(f"gradeloop: {printable(str(error))}", file=sys.stderr)  # noqa: T201 - as above
        return 0


def _changes(folders: set[Path]) -> Iterator[set[Path]]:
    """Yield the inputs that have changed since the last time, none of them after a while without changes."""
    with installed("--watch needs the package watchfiles; install it with: pip install 'gradeloop[watch]'"):
        from watchfiles import DefaultFilter, watch
    own = state_folder().resolve()
    watched = watch(*folders, watch_filter=DefaultFilter(), yield_on_timeout=True, rust_timeout=POLL_MILLISECONDS, raise_interrupt=True)
    for changes in watched:
        paths = {Path(name) for _, name in changes}
        yield {
            path for path in paths if path.suffix.lower() in INPUT_SUFFIXES and not path.is_relative_to(own) and not is_written_by_us(path)
        }
