"""For tests of one's own: `assert_rubric(output, rubric)` fails where a judge says that an output does not meet its rubric."""

import asyncio
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from gradeloop.connection import Connection, connect, find
from gradeloop.errors import JudgeFailed
from gradeloop.judges.agent_run import AgentRun, RunMessage, RunTranscript
from gradeloop.judges.config import JudgeConfig, config_of
from gradeloop.judges.judge import Judge
from gradeloop.judges.judge_result import JudgeResult
from gradeloop.judges.run_sources import with_model
from gradeloop.printable import one_line
from gradeloop.rubric import Rubric
from gradeloop.rubric_file import existing
from gradeloop.settings_file import config_file
from gradeloop.worker_process import WorkerSpec, ensure_worker


def assert_rubric(
    output: str,
    rubric: Rubric | Mapping[str, Any] | str,
    *,
    request: str | None = None,
    grader: str | None = None,
    tools: Sequence[Path | str] = (),
    scripted: Path | str | None = None,
) -> JudgeResult:
    """Judge an output, and return the judgement where it meets the rubric.

    The same output is judged by the same rubric once: a test that runs again reads what was found, while its history is kept. A server and
    a worker are found or started, as `gradeloop judge` does.

    Args:
        output: What is judged.
        rubric: Its criteria, as text or object.
        request: What the output answers, where the judge should know.
        grader: Who judges, as `provider:model`; by default the first of a table for which a key is set.
        tools: Python files of evidence tools and checks.
        scripted: A file of replies for the provider `scripted`.

    Raises:
        AssertionError: The output does not meet the rubric; the message has every criterion that fails, with its gap.
        JudgeFailed: There is no verdict: no judge could be had, its answer was invalid, or the rubric cannot be judged.
        InvalidRequest: Rubric, model or files are refused.
    """
    __tracebackhide__ = True
    run = _run(output, request)
    spec = WorkerSpec(
        tools=existing([Path(each) for each in tools], "tools"),
        scripted=Path(scripted) if scripted else None,
        config=config_file((), os.environ),
    )
    told = dict(rubric) if isinstance(rubric, Mapping) else rubric
    config, _ = with_model(config_of({"rubric": told}), grader, scripted=scripted is not None)
    with ThreadPoolExecutor(1) as alone:  # a test may have an event loop of its own
        result = alone.submit(asyncio.run, _judged(config, run, spec)).result()
    if result.failed:
        raise JudgeFailed(f"there is no verdict: {result.result_metadata.get('reason')}")
    if result.output["result"] == "failed":
        raise JudgeFailed(f"the rubric cannot be judged: {result.output['explanation']}")
    if result.output["result"] != "satisfied":
        raise AssertionError(_told(result))
    return result


def _run(output: str, request: str | None) -> AgentRun:
    asked = (RunMessage(role="user", content=request),) if request else ()
    name = hashlib.sha256(f"{request}\0{output}".encode(errors="surrogatepass")).hexdigest()[:16]
    return AgentRun(id=f"output-{name}", transcripts=(RunTranscript(messages=(*asked, RunMessage(role="assistant", content=output))),))


async def _judged(config: JudgeConfig, run: AgentRun, spec: WorkerSpec) -> JudgeResult:
    connection: Connection = await find()
    task_queue = os.environ.get("GRADELOOP_TASK_QUEUE") or await ensure_worker(spec, connection)
    return await Judge(config, await connect(connection), task_queue=task_queue)(run)


def _told(result: JudgeResult) -> str:
    """Return what fails, a line each, and what holds."""
    rows: Any = result.output["criteria"]
    failing = [row for row in rows if not row["passed"]]
    lines = [f"  ✗ {row['id']}: {one_line(row['name'])}\n    {one_line(row.get('gap') or row['reason'])}" for row in failing]
    passing = [row["id"] for row in rows if row["passed"]]
    score = result.output.get("score")
    head = f"the output does not meet its rubric{f' (score {score:.2f})' if isinstance(score, float) else ''}:"
    return "\n".join([head, *lines, *([f"  ✓ {', '.join(passing)}"] if passing else [])])
