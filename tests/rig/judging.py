"""Judgements as the tests ask for them: a run, a judge, and what the judge's model says."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import copy
from typing import Any

from temporalio.client import Client

from gradeloop.judges.client import Judge
from gradeloop.judges.contract import JudgeResult
from tests.rig.threads import Reply, Served, serving

PARIS: dict[str, Any] = {
    "id": "paris",
    "transcripts": [
        {
            "messages": [
                {"role": "user", "content": "What is the capital of France?"},
                {"role": "assistant", "content": "The capital of France is Paris."},
            ]
        }
    ],
}

FRANCE: dict[str, Any] = {"rubric_text": "The agent says that the capital of France is Paris.", "judge_model": "scripted:judge"}

MATCH = {"label": "match", "explanation": "It names Paris [T0B1:<RANGE>is Paris</RANGE>]."}
NO_MATCH = {"label": "no match", "explanation": "It names nothing [T0B9]."}


def answers(output: object, sample: int = 0, *, step: int = 0, iteration: int = 0, **more: Any) -> Reply:
    """Return what a judge's model says: an output between the tags, or a text as it is."""
    text = output if isinstance(output, str) else f"I look.\n<response>{json.dumps(output)}</response>"
    return {"role": "grader", "sample": sample, "step": step, "iteration": iteration, "text": text} | more


def fails(kind: str = "auth", sample: int = 0, *, step: int = 0, iteration: int = 0) -> Reply:
    """Return a call that fails for good."""
    error = {"kind": kind, "message": "as it was told to"}
    return {"role": "grader", "sample": sample, "step": step, "iteration": iteration, "error": error}


@asynccontextmanager
async def bench(client: Client, judge: dict[str, Any], *replies: Reply, **options: Any) -> AsyncIterator[tuple[Judge, Served]]:
    """Serve a judge on a queue of its own."""
    async with serving(client, *replies, **options) as served:
        yield Judge(judge, client, task_queue=served.task_queue), served


async def judged(client: Client, judge: dict[str, Any], *replies: Reply, run: dict[str, Any] | None = None, **options: Any) -> JudgeResult:
    """Judge one run."""
    async with bench(client, judge, *replies, **options) as (asked, _):
        return await asked(run or PARIS)


def fresh(name: str, run: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a run of its own id, so that no other test has judged it."""
    return (run or PARIS) | {"id": name}


ODD: tuple[Any, ...] = (None, 5, True, "x", "", [], {}, [5], ["x"], {"a": 1}, [[]], -1.5)


def spoiled(value: Any) -> Iterator[Any]:
    """Yield a value with each of its parts in turn replaced by something else."""
    for odd in ODD:
        yield from _spoiled(value, odd)


def _spoiled(value: Any, odd: object) -> Iterator[Any]:
    yield odd
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        for inner in _spoiled(value[key], odd):
            whole = copy(value)
            whole[key] = inner
            yield whole
