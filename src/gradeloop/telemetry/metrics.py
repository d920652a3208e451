"""Our metrics: a table of them, and where they are recorded. Without an exporter nothing is recorded, and nothing is loaded."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gradeloop.text import one_line

if TYPE_CHECKING:
    from temporalio.common import MetricCounter, MetricGaugeFloat, MetricHistogramFloat, MetricMeter

MODELS_SHOWN = 100
"""The pairs of provider and model that have series of their own: above what a team uses, and little for Prometheus."""

LABEL_CHARACTERS = 80
"""The longest value of a label; names of models come from requests."""

OTHER = "other"
"""The provider and the model of all series beyond `MODELS_SHOWN`."""

MetricKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True)
class Metric:
    """A metric, recorded wherever what it counts happens."""

    name: str
    kind: MetricKind
    description: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets."""

    def record(self, value: float = 1, /, **labels: str) -> None:
        """Add to a counter, set a gauge, or note an observation; does nothing where nobody exports metrics, or a workflow is replayed.

        `value`: how much; a counter takes whole numbers.
        """
        if _recorder is not None:
            _recorder.record(self, value, labels)


_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0)
_OF_MODEL = ("provider", "model")

VERDICTS = Metric("gradeloop_verdicts", "counter", "Gradings of threads by result, one an iteration", ("result",))
RUNS = Metric("gradeloop_runs", "counter", "Turns of threads that ended or were interrupted", ("status", "reason"))
JUDGEMENTS = Metric("gradeloop_judgements", "counter", "Judgements of finished runs by type", ("type",))
RUN_ITERATIONS = Metric("gradeloop_run_iterations", "histogram", "Iterations of a run", (), (1, 2, 3, 5, 8, 13, 20))
GRADER_ERRORS = Metric("gradeloop_grader_errors", "counter", "Calls of graders that gave no verdict", ("kind",))
MODEL_CALLS = Metric("gradeloop_model_calls", "counter", "Requests to models by outcome", (*_OF_MODEL, "role", "outcome"))
MODEL_ERRORS = Metric("gradeloop_model_errors", "counter", "Failed requests to models by kind", (*_OF_MODEL, "kind"))
MODEL_RETRIES = Metric("gradeloop_model_retries", "counter", "Failed requests that are made again", _OF_MODEL)
MODEL_WAITS = Metric("gradeloop_model_waits", "counter", "Times that a call was handed back to wait for its rate limit", _OF_MODEL)
MODEL_WAIT_SECONDS = Metric(
    "gradeloop_model_wait_seconds", "histogram", "Seconds for which a call was handed back", _OF_MODEL, (0.1, 0.5, 1, 2, 5, 10, 20)
)
MODEL_SECONDS = Metric("gradeloop_model_seconds", "histogram", "Seconds that a request took", _OF_MODEL, (0.1, 0.5, 1, 2, 5, 15, 60, 300))
TOKENS = Metric("gradeloop_tokens", "counter", "Tokens; cached and cache_written ones are part of input", (*_OF_MODEL, "type"))
COST = Metric("gradeloop_cost_usd", "histogram", "US dollars of a request", _OF_MODEL, (0.0001, 0.001, 0.01, 0.1, 1, 10))
CACHE_HITS = Metric("gradeloop_cache_hits", "counter", "Drafts and verdicts that were reused and not paid for", ("where",))
SANDBOX_RUNS = Metric("gradeloop_sandbox_runs", "counter", "Programs run in a sandbox by how they ended", ("sandbox", "status"))
SANDBOX_KILLS = Metric("gradeloop_sandbox_kills", "counter", "Programs stopped at a limit", ("sandbox",))
BATCH_CASES_STORED = Metric("gradeloop_batch_cases_stored", "counter", "Cases written into the store")
BATCH_CASES = Metric("gradeloop_batch_cases", "counter", "Cases that ended by status", ("status",))
MONITOR_RUNS = Metric("gradeloop_monitor_runs", "counter", "Runs that monitors have read by what was decided of them", ("why",))
MONITOR_ALERTS = Metric("gradeloop_monitor_alerts", "counter", "Alerts that monitors have raised")
RECEIVED_SPANS = Metric(
    "gradeloop_received_spans", "counter", "Spans and log records that were received by what became of them", ("outcome",)
)
RECEIVED_RUNS = Metric("gradeloop_received_runs", "counter", "Traces that have settled by what was put together from them", ("outcome",))
RECEIVER_ANSWERS = Metric("gradeloop_receiver_answers", "counter", "Answers to exporters by HTTP status", ("status",))
RECEIVER_OPEN = Metric("gradeloop_receiver_open_traces", "gauge", "Traces that have not settled")
STORE_SECONDS = Metric("gradeloop_store_seconds", "histogram", "Seconds of a transaction of the store", ("outcome",), _SECONDS)
STORE_BYTES = Metric("gradeloop_store_bytes", "gauge", "Size of the store")
STORE_FREE_BYTES = Metric("gradeloop_store_free_bytes", "gauge", "Free space on the disk of a store that is a file")
LIMITER_IN_FLIGHT = Metric("gradeloop_limiter_in_flight", "gauge", "Calls in flight", _OF_MODEL)
LIMITER_WINDOW = Metric("gradeloop_limiter_window", "gauge", "Calls that may be in flight", _OF_MODEL)
LIMITER_WAITING = Metric("gradeloop_limiter_waiting", "gauge", "Calls that wait for their turn", _OF_MODEL)
QUEUE_BACKLOG = Metric("gradeloop_queue_backlog", "gauge", "Tasks that wait in the worker's queue, as the server counts them", ("type",))
WORKER_SLOTS = Metric("gradeloop_worker_slots", "gauge", "Tasks that the worker takes at once, at most", ("type",))

METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
"""All of our metrics."""


class MetricRecorder:
    """Records on a meter of Temporal's SDK, whose exporter so serves its metrics and ours at once."""

    def __init__(self, meter: "MetricMeter") -> None:
        self._meter = meter
        self._counters: dict[str, MetricCounter] = {}
        self._gauges: dict[str, MetricGaugeFloat] = {}
        self._histograms: dict[str, MetricHistogramFloat] = {}
        self._series: dict[tuple[object, ...], Callable[[float], None]] = {}
        self._models: dict[tuple[str, str], dict[str, str]] = {}

    def record(self, metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        """Record, unless a workflow is replayed: it was recorded then. Raise ValueError where the labels are not the metric's."""
        from temporalio import workflow

        if workflow.in_workflow() and workflow.unsafe.is_replaying():
            return
        key = (metric.name, *labels.items())
        write = self._series.get(key)
        if write is None:
            write = self._writer(metric, labels)
            if "model" not in labels or (labels["provider"], labels["model"]) in self._models:
                self._series[key] = write
        write(value)

    def _writer(self, metric: Metric, labels: Mapping[str, str]) -> Callable[[float], None]:
        """Return what writes to one series; it has its labels already, which to hand over takes longer than to count."""
        if labels.keys() != set(metric.labels):
            raise ValueError(f"{metric.name} has the labels {metric.labels}, not {tuple(labels)}")
        name, description, bounded = metric.name, metric.description, self._bounded(labels)
        if metric.kind == "counter":
            counter = self._counters.get(name) or self._counters.setdefault(name, self._meter.create_counter(name, description))
            adding = counter.with_additional_attributes(bounded)
            return lambda value: adding.add(round(value))
        if metric.kind == "gauge":
            gauge = self._gauges.get(name) or self._gauges.setdefault(name, self._meter.create_gauge_float(name, description))
            setting = gauge.with_additional_attributes(bounded)
            return lambda value: setting.set(max(0.0, value))
        histogram = self._histograms.get(name) or self._histograms.setdefault(name, self._meter.create_histogram_float(name, description))
        observing = histogram.with_additional_attributes(bounded)
        return lambda value: observing.record(max(0.0, value))

    def _bounded(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """Return labels whose provider and model are among those that have series of their own."""
        if "model" not in labels:
            return labels
        pair = labels["provider"], labels["model"]
        shown = self._models.get(pair)
        if shown is None:
            if len(self._models) >= MODELS_SHOWN:
                return {**labels, "provider": OTHER, "model": OTHER}
            names = [one_line(name)[:LABEL_CHARACTERS] or OTHER for name in pair]
            shown = self._models[pair] = dict(zip(_OF_MODEL, names, strict=True))
        return {**labels, **shown}


_recorder: MetricRecorder | None = None


def record_on(meter: "MetricMeter | None") -> None:
    """Record all metrics of this process on a meter from now on; None ends that."""
    global _recorder  # noqa: PLW0603 - one exporter a process
    _recorder = MetricRecorder(meter) if meter is not None else None
