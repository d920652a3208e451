"""`gradeloop judge` and `gradeloop agreement`: judge runs, print and store the results."""

import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gradeloop.attendance import ctrl_c
from gradeloop.connection import Connection, connect, find
from gradeloop.errors import InvalidRequest
from gradeloop.judges.agreement import Agreement, agreement
from gradeloop.judges.bench import Bench, attended
from gradeloop.judges.config import JudgeConfig
from gradeloop.judges.judge import Judge
from gradeloop.judges.judge_result import JudgeResult
from gradeloop.judges.judged_table import Rule, result_table, sum_line
from gradeloop.judges.labels import read_labels
from gradeloop.judges.registry import Registry
from gradeloop.judges.results_file import read_results
from gradeloop.judges.run_sources import THREAD, is_file, judge_named, runs_named, with_model
from gradeloop.rubric_file import existing
from gradeloop.settings_file import config_file
from gradeloop.store import Store, own_store
from gradeloop.thread_reader import ThreadReader
from gradeloop.worker_process import WorkerSpec, done_before, ensure_worker


@dataclass(frozen=True)
class Order:
    """The arguments and flags of one `gradeloop judge`."""

    judge: str
    runs: tuple[str, ...]
    grader: str | None
    repeat: int
    concurrency: int
    passes: tuple[str, ...]
    tools: tuple[Path, ...]
    scripted: Path | None
    output: Path | None
    store: bool
    as_json: bool


@dataclass(frozen=True)
class Outcome:
    """How many judgements there are, and how many were judged, passed and failed."""

    total: int
    judged: int
    passed: int
    failures: int
    stopped: bool = False


async def judged(order: Order, *, needs_rule: bool) -> Outcome:
    """Judge runs and print their results; after Ctrl-C the judgements in flight continue on the worker.

    Raises:
        GradeloopError: With one sentence for the user.
    """
    console = Console(stderr=order.as_json, highlight=False, markup=False, emoji=False)
    registry = Registry(own_store()) if order.store or not is_file(order.judge) else None
    config = await judge_named(order.judge, registry or Registry(Store("")))
    if registry is not None:
        await registry.open()
    existing(order.tools, "--tools")
    existing((order.scripted,) if order.scripted else (), "--scripted")
    config, note = with_model(config, order.grader, scripted=order.scripted is not None)
    rule = Rule(config, order.passes)
    if needs_rule and not rule.stated:
        raise InvalidRequest("--pass-rate needs a rule for what passes; add --pass KEY=VALUE")
    early = None if any(source.startswith(THREAD) for source in order.runs) else await runs_named(order.runs, None)
    if note and not order.as_json:
        console.print(note, style="dim", soft_wrap=True)
    connection = await find()
    client = await connect(connection)
    runs = early if early is not None else await runs_named(order.runs, ThreadReader(client))
    task_queue = await _served(order, connection)
    judge = Judge(config, client, task_queue=task_queue)
    for run in runs:  # before the first of them is paid for
        await judge.request(run)
    bench = Bench(judge, runs, order.repeat, order.concurrency)
    stopped = await _with_progress(bench, task_queue, connection, order, console)
    results = bench.ordered
    _tell(config, bench, rule, order, console)
    if registry is not None and order.store:
        await registry.keep(config, [(each, repeat) for each, repeat in results if not each.result_metadata.get("again")])
    failures = sum(each.failed for each, _ in results)
    passed = sum(bool(rule.passed(each)) for each, _ in results)
    return Outcome(bench.total, len(results) - failures, passed, failures, stopped)


async def _served(order: Order, connection: Connection) -> str:
    """Return the task queue: the one that the environment names, else that of a worker that is started here."""
    if named := os.environ.get("GRADELOOP_TASK_QUEUE"):
        return named
    return await ensure_worker(WorkerSpec(tools=order.tools, scripted=order.scripted, config=config_file((), os.environ)), connection)


async def _with_progress(bench: Bench, task_queue: str, connection: Connection, order: Order, console: Console) -> bool:
    """Judge all runs behind a progress bar; True if Ctrl-C stopped it."""
    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[note]}"))
    lines = order.output.open("w", encoding="utf-8") if order.output else None
    failures = 0
    try:
        with ctrl_c() as pressed, Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("judging", total=bench.total, note="")

            def told(result: JudgeResult, _repeat: int) -> None:
                nonlocal failures
                failures += result.failed
                progress.update(bar, advance=1, note=f"{failures} failed" if failures else "")
                line = result.model_dump_json() + "\n"
                if order.as_json:
                    print(line, end="", flush=True)  # noqa: T201 - what was asked for
                if lines:
                    lines.write(line)
                    lines.flush()

            return not await done_before(attended(bench, task_queue, connection, told), pressed.get())
    finally:
        if lines:
            lines.close()


def _tell(config: JudgeConfig, bench: Bench, rule: Rule, order: Order, console: Console) -> None:
    results = bench.ordered
    if not order.as_json and results:
        console.print(result_table(config, results, rule))
    console.print(sum_line([each for each, _ in results], rule), soft_wrap=True)


async def agreed(judge: str, labels: Path, results: Path | None) -> Agreement:
    """Return how well a judge agrees with labels, by the results of a file or of the store.

    Raises:
        InvalidRequest: Judge, labels or results cannot be read, or have nothing in common.
    """
    registry = Registry(own_store()) if results is None or not is_file(judge) else None
    config = await judge_named(judge, registry or Registry(Store("")))
    held = read_labels(labels, config)
    if results is not None:
        return agreement(config, held, read_results(results))
    return agreement(config, held, await (registry or Registry(own_store())).judgements(config))
