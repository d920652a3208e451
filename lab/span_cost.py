"""What traces cost, in processor time, which other work hardly touches: a span by its parts, and a run of three iterations by its spans.

Workers without traces, with a tenth of them and with all of them take turns on one server, in rounds of few runs; a round's difference is
taken against the round without traces beside it.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median, quantiles

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import SpanKind
from rich.console import Console
from rich.table import Table

from gradeloop.exit_codes import leave
from gradeloop.telemetry.traces import EvaluationResult, model_call, trace_evaluation, trace_with, tracing
from gradeloop.temporal.connect import Connection, connect
from gradeloop.temporal.server import ServerInfo
from lab.measure import Bench
from lab.overhead import bench_of
from lab.subjects import WATCHED
from lab.watched import collecting, embedded, traced_client

BATCH = 512
"""Spans of one request, as the SDK's batch processor sends them."""

CRITERIA = 3

TENTH = 0.1

SENT_SECONDS = 6.0
"""By when the SDK's batch processor has sent what has ended: it does every 5 seconds."""


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    spans: int = 5_000
    many: int = 20
    runs: int = 40
    """Runs of a round."""
    rounds: int = 12
    """Rounds of all lanes; 0 measures spans alone."""


class Kept(SpanProcessor):
    """Keeps the spans that end."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span."""
        self.spans.append(span)


def cpu_of(work: Callable[[], object], parts: int) -> float:
    """Return the microseconds of processor time of each of so many parts of a work; the best of three, since other work only adds."""
    spent = []
    for _ in range(3):
        began = time.process_time()
        work()
        spent.append((time.process_time() - began) / parts * 1e6)
    return min(spent)


def call_model(at: int) -> None:
    """Trace a call as a worker does."""
    more: dict[str, str | int | float | None] = {
        "gen_ai.conversation.id": "a-thread",
        "gradeloop.role": "grader",
        "gradeloop.run": "a-run",
        "gradeloop.iteration": at % 20,
    }
    with model_call("chat", "anthropic", "a-model", more, dict) as span:
        span.answered("a-model", {"input_tokens": at, "output_tokens": 5}, dict)


def evaluate(at: int) -> None:
    """Trace a grading as a worker does."""
    results = [EvaluationResult(f"c{one}", "passed", 1.0, "") for one in range(CRITERIA + 1)]
    trace_evaluation(results, {"gen_ai.conversation.id": "a-thread", "gradeloop.run": "a-run", "gradeloop.iteration": at % 20})


def run_activity(_: int) -> None:
    """Trace an activity as Temporal's interceptor does."""
    known = tracing()
    attributes = {"temporalActivityID": "1", "temporalWorkflowID": "a-thread", "temporalRunID": "a-run"}
    if known is not None:
        with known.tracer.start_as_current_span(
            "RunActivity:grade", attributes=attributes, kind=SpanKind.SERVER, set_status_on_exception=False
        ):
            pass


def spans_table(spans: int) -> Table:
    """Measure making and encoding spans, in this process."""
    shown = Table("microseconds a span", "made", "unsampled", "encoded", box=None, padding=(0, 3, 0, 0))
    for name, trace in {"a model's call": call_model, "an activity": run_activity, "a grading of 3 criteria": evaluate}.items():

        def work(trace: Callable[[int], None] = trace) -> None:
            for at in range(spans):
                trace(at)

        kept, provider = Kept(), TracerProvider()
        provider.add_span_processor(kept)
        trace_with(provider, content=False)
        made = cpu_of(work, spans)
        trace_with(TracerProvider(sampler=TraceIdRatioBased(0)), content=False)
        unsampled = cpu_of(work, spans)
        batches = [kept.spans[at : at + BATCH] for at in range(0, spans, BATCH)]
        encoded = cpu_of(lambda batches=batches: [encode_spans(batch).SerializeToString() for batch in batches], spans)  # type: ignore[misc]  # mypy does not infer a lambda's defaults
        shown.add_row(name, *(f"{figure:.1f}" for figure in (made, unsampled, encoded)))
    return shown


LANES = ("nothing", "traces, a tenth", "traces, all", "metrics and all traces")


async def runs_tables(server: ServerInfo, plan: Plan) -> list[Table]:
    """Measure the processor time of a run on workers by what they export, and count its spans."""
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(collecting())
        otlp = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_METRICS_EXPORTER": "none"}
        watched = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "GRADELOOP_METRICS_ADDRESS": "127.0.0.1:0"}
        untraced = await connect(Connection(server.address, "default", embedded=True))
        tenth, traced = await traced_client(server, TENTH), await traced_client(server, 1.0)
        names = ("unwatched", "sampled", "traced", "metrics")
        rows = zip(names, (untraced, tenth, traced, traced), ({}, otlp, otlp, watched), strict=True)
        benches = [await stack.enter_async_context(bench_of(WATCHED[name], by, server, **more)) for name, by, more in rows]
        for bench in benches:
            await bench.at_once(plan.many, 2 * plan.runs)
        await asyncio.sleep(SENT_SECONDS)
        before = await collector.seen()
        await benches[2].at_once(plan.many, plan.runs)
        await asyncio.sleep(SENT_SECONDS)
        spans = await collector.seen() - before
        spent = [[await cpu_a_run(bench, plan) for bench in benches] for _ in range(plan.rounds)]
    return [spans_of_run(spans, plan.runs), costs_table(spent)]


def spans_of_run(spans: Counter[str], runs: int) -> Table:
    """Return the spans of a run by name."""
    shown = Table("spans of a worker a run", f"{spans.total() / runs:.1f}", box=None, padding=(0, 3, 0, 0))
    for name, count in spans.most_common():
        shown.add_row(name, f"{count / runs:.1f}")
    return shown


def costs_table(spent: Sequence[Sequence[float]]) -> Table:
    """Return what a run cost; each row is a round of all lanes."""
    shown = Table("worker CPU a run", "ms (median)", "over nothing", "quartiles", box=None, padding=(0, 3, 0, 0))
    for name, column in zip(LANES, zip(*spent, strict=True), strict=True):
        low, middle, high = quantiles([here / row[0] - 1 for here, row in zip(column, spent, strict=True)], n=4)
        shown.add_row(name, f"{median(column):.2f}", f"{middle:+.1%}", f"{low:+.1%} to {high:+.1%}")
    return shown


async def cpu_a_run(bench: Bench, plan: Plan) -> float:
    """Return the milliseconds of processor time that a worker takes for a run."""
    cost = await bench.at_once(plan.many, plan.runs)
    return cost.worker_cpu / cost.runs * 1000


async def measured_runs(plan: Plan) -> list[Table]:
    """Measure runs on a server of their own."""
    async with embedded() as server:
        return await runs_tables(server, plan)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m lab.span_cost", description=__doc__)
    for name, number in vars(Plan()).items():
        parser.add_argument(f"--{name}", type=int, default=number, metavar=str(number))
    plan = Plan(**vars(parser.parse_args(arguments)))
    console = Console(highlight=False, width=120)
    console.print(spans_table(plan.spans))
    if plan.rounds:
        for shown in asyncio.run(measured_runs(plan)):
            console.print(shown)


if __name__ == "__main__":
    main()
    leave(0)
