"""Monitors on the wire and in the store: what a monitor is, what a tick does, what it says, and the door to its workflow."""

import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, JsonValue, SerializeAsAny, field_validator, model_validator
from temporalio import workflow

from gradeloop.batches.contract import BATCH_PRIORITY, BatchRequest
from gradeloop.batches.judged import needs_workflow
from gradeloop.contract.base import OmitEmpty, Strict, Tolerant
from gradeloop.contract.notice import Webhooks
from gradeloop.contract.thread import Priority, TenantName
from gradeloop.errors import InvalidRequest
from gradeloop.extensions import Registry
from gradeloop.judges.contract import CriteriaJudge, SchemaJudge, judging_id, parse_judge
from gradeloop.judges.pass_rule import PassRule
from gradeloop.judges.write_back import Target, WriteBackCall, WriteBackReport
from gradeloop.monitors.anchors import AnchorCounts, AnchorPlan, AnchorState, Moved
from gradeloop.stats.decided import EarlyAnswer
from gradeloop.stats.drift import DriftState, Spread
from gradeloop.stats.intervals import Interval

if TYPE_CHECKING:
    from gradeloop.monitors.files import SourceItem

MonitorName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,47}$")]
"""A monitor's name: it is part of the ids of its workflows, its batches and its page."""

MONITORING_WORKFLOW = "Monitoring"

TICK_RUNS = 1000
"""The most new runs that one tick has judged; the next one goes on behind them."""

READ_RUNS = 20_000
"""The most new runs that one tick reads, most of which a small share leaves out."""

SHOWN_RUNS = 10
"""The runs that an alert names."""

BASELINE_RUNS = 1000
"""The judged runs, and those of a day at least, from which a monitor takes the rate that drift is measured from: 100 see hardly a fall."""

LEAST_BASELINE = 100
"""The fewest judged runs that say what rate is usual."""

EMPTY_TICKS = 3
"""The ticks in a row without a judged run after which silence is an alarm."""

WAITING_DAYS = 7
"""The days for which a run that the budget or an outage left out waits to be judged: later it says little of today."""

BACKFILL_RUNS = 100
"""The runs of a backfill that one tick judges, behind its own: few enough that live work hardly waits."""

CLEAR_RUNS = 50
"""The runs over which the rate must be back before an alert is over."""


class Source(Strict):
    """A place where a monitor finds runs. Every kind has a model of its own, which a row of the registry `sources` names."""

    kind: str

    @property
    def text(self) -> str:
        """The source in words."""
        return self.kind


LEAST_QUIET = {
    "threads": (1.0, "the server lists a thread a little after its end, and one that is listed late could be passed over"),
    "bucket": (2.0, "S3 tells times to the second, and of two objects of one second the later could be passed over"),
}
"""The shortest time by kind of source for which it is left to settle, in seconds, and why; a folder whose files are moved into it whole
needs none."""


def require_quiet(seconds: float, kind: str, written: str) -> float:
    """Return for how long a source is left to settle; raise ValueError where a source that tells changes late has too little."""
    least, why = LEAST_QUIET.get(kind, (0.0, ""))
    if seconds < least:
        raise ValueError(f"{written} is too short: {why}; write {least:g}s or more, or leave it out")
    return seconds


class FolderSource(Source):
    """A folder of transcript files, in any format that is read."""

    kind: Literal["folder"] = "folder"
    path: Annotated[str, Field(pattern=r"^/")]
    """The folder on the worker's machine; the folders in it count, too."""
    quiet: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """Seconds for which a file must not have changed before it is read: one that is being written is left to a later tick."""

    @property
    def text(self) -> str:
        """The source in words."""
        return self.path


class SqlSource(Source):
    """A query of a SQLite or PostgreSQL database, whose rows come in the order of one column."""

    kind: Literal["sql"] = "sql"
    variable: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """The name of the worker's environment variable with the database's URL, which may hold a password."""
    query: Annotated[str, Field(min_length=1, max_length=20_000)]
    watermark: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    """The column of the query's result that only grows: a number, a text or a time."""

    @property
    def text(self) -> str:
        """The source in words."""
        return f"query of ${self.variable}"


class OtlpSource(Source):
    """The runs that OTLP receivers have kept in the store."""

    kind: Literal["otlp"] = "otlp"
    where: dict[Annotated[str, Field(min_length=1, max_length=200)], Annotated[str, Field(max_length=200)]] = Field(default_factory=dict)
    """Attributes that a run's resource or spans must have, as `service.name`; all runs where there are none."""

    @property
    def text(self) -> str:
        """The source in words."""
        return f"OTLP{''.join(f', {key}={value}' for key, value in self.where.items())}"


class BucketSource(Source):
    """The objects of an S3 bucket, files in any format that is read."""

    kind: Literal["bucket"] = "bucket"
    bucket: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{1,254}$")]
    prefix: Annotated[str, Field(max_length=1024)] = ""
    """Prefix of the objects' keys; all objects where there is none."""
    quiet: Annotated[float, Field(ge=0, le=86_400)] = 60.0
    """Seconds for which an object must have been there: S3 tells times to the second, of an upload in parts that of its beginning."""

    @property
    def text(self) -> str:
        """The source in words."""
        return f"s3://{self.bucket}/{self.prefix}"


FINISHED = ("satisfied", "max_iterations_reached", "failed", "grader_error", "superseded", "interrupted", "ungraded")
"""The statuses that a thread may have once it is closed."""

ThreadFilter = Literal["status", "rubric", "queue"]
"""Filters of threads: their status, the sha256 of their rubric, and their task queue."""


class ThreadsSource(Source):
    """The finished threads of the worker's own namespace."""

    kind: Literal["threads"] = "threads"
    where: dict[ThreadFilter, Annotated[str, Field(min_length=1, max_length=200)]] = Field(default_factory=dict)
    quiet: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds for which a thread must have been closed: the server's list shows it a little later."""

    @field_validator("where")
    @classmethod
    def _names_a_status(cls, where: dict[ThreadFilter, str]) -> dict[ThreadFilter, str]:
        if (status := where.get("status")) is not None and status not in FINISHED:
            raise ValueError(f"status={status} is not a status of a finished thread; known: {', '.join(FINISHED)}")
        return where

    @property
    def text(self) -> str:
        """The source in words."""
        return f"finished threads{''.join(f', {key}={value}' for key, value in self.where.items())}"


def refuse_hasty(source: Source) -> None:
    """Refuse a new monitor whose source has too little time to settle; one that is stored already stays as it is.

    Raises:
        InvalidRequest: It has; the message says why.
    """
    if isinstance(source, BucketSource | ThreadsSource):
        try:
            require_quiet(source.quiet, source.kind, f"{source.quiet:g}s")
        except ValueError as error:
            raise InvalidRequest(f"source.quiet: {error}") from None


@dataclass(frozen=True)
class SourceKind:
    """A kind of source: a row of the registry `sources`.

    Example:
        ```python
        SOURCES = (SourceKind("queue", QueueSource, read_queue, queue_place, flag=queue_of_flag, written="queue:NAME"),)
        ```
    """

    name: str
    """The `kind` of its model, and the beginning of `--source`."""
    model: type[Source]
    read: Callable[[Any, str | None, Any, str | None], "Iterator[SourceItem] | AsyncGenerator[list[SourceItem], None]"]
    """Yields what is behind a cursor, up to another one if given, read with a `SourceAccess`; several at a time where it waits."""
    since: Callable[[Any, str, str], str]
    """Returns the cursor for what a person wrote as `--since`, given a cursor that the source has; raises InvalidRequest."""
    flag: Callable[["SourceFlags"], dict[str, Any] | None]
    """Returns what the flags of `gradeloop monitor create` say, for the model; None where they name another kind."""
    written: str
    """The source as a person writes it: `sql:VARIABLE`."""


@dataclass(frozen=True)
class SourceFlags:
    """The flags of `gradeloop monitor create` that say where runs are found."""

    text: str
    """The value of `--source`."""
    query: str | None = None
    watermark: str | None = None
    quiet: float | None = None
    """Seconds."""
    where: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The text before the colon."""
        return self.text.partition(":")[0]

    @property
    def place(self) -> str:
        """The text behind the colon."""
        return self.text.partition(":")[2]

    @property
    def waits(self) -> dict[str, Any]:
        """The time for which the source is left to settle, where that is said."""
        return {} if self.quiet is None else {"quiet": self.quiet}


SOURCES = Registry[SourceKind]("sources", "kind of source", "gradeloop.monitors.sources:KINDS")


def _read_source(value: object) -> object:
    """Return the source that JSON describes, by the model of its kind."""
    if isinstance(value, Source) or not isinstance(value, Mapping):
        return value
    kind = SOURCES.rows.get(str(value.get("kind")))
    if kind is None:
        raise ValueError(f"kind is {value.get('kind')!r}; write one of {', '.join(SOURCES.rows)}")
    return kind.model.model_validate(value)


MonitorSource = Annotated[SerializeAsAny[Source], BeforeValidator(_read_source)]

RateName = Literal["pass_rate", "error_rate", "unsure_rate"]

_RULE = re.compile(r"\s*(pass_rate|error_rate|unsure_rate)\s*([<>])\s*(\d+(?:\.\d+)?|\.\d+)\s*(%?)\s*")


class AlertRule(Strict):
    """A rate and the limit that it must not leave."""

    rate: RateName
    below: bool
    """Whether the alert is for a rate below the limit; else for one above it."""
    limit: Annotated[float, Field(gt=0, lt=1)]

    @classmethod
    def parse(cls, text: str) -> "AlertRule":
        """Read a rule such as `pass_rate < 0.9`; raise InvalidRequest where the text is not a rule."""
        found = _RULE.fullmatch(text)
        limit = float(found[3]) / (100 if found[4] else 1) if found else 0.0
        if found is None or not 0 < limit < 1:
            cure = "write pass_rate, error_rate or unsure_rate, < or >, and a share between 0 and 1, such as 'pass_rate < 0.9'"
            raise InvalidRequest(f"the alert {text!r} is not a rule; {cure}")
        return cls.model_validate({"rate": found[1], "below": found[2] == "<", "limit": limit})

    @property
    def text(self) -> str:
        """The rule as it is written."""
        return f"{self.rate} {'<' if self.below else '>'} {self.limit:g}"


class AlwaysRule(Strict):
    """A rule whose runs are always judged, outside of the rate."""

    key: Annotated[str, Field(min_length=1, max_length=200)]
    """A key of the run's metadata, or `error` for runs with an error in them."""
    value: JsonValue = None
    """The value that the key must have; any but false, null and nothing where none is given."""

    @classmethod
    def parse(cls, text: str) -> "AlwaysRule":
        """Read a rule such as `error` or `feedback=down`."""
        key, _, value = text.partition("=")
        return cls(key=key.strip(), value=value.strip() or None)


class MonitorDefinition(Strict):
    """A monitor: what it reads, whom it asks, how many runs, how often, and what it warns of."""

    name: MonitorName
    source: MonitorSource
    judge: SchemaJudge | CriteriaJudge
    passes: tuple[str, ...] = ()
    """Values that pass a judgement by a schema, as KEY=VALUE."""
    shadow: SchemaJudge | CriteriaJudge | None = None
    """A second judge of the same sample, outside of every rate and alert: it is only compared with the first."""
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the runs that is judged."""
    stratum: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The key of the runs' metadata by which rates are told apart."""
    strata: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    """The shares of strata that have their own."""
    always: tuple[AlwaysRule, ...] = ()
    """Runs that are judged whatever the share says, and are outside of every rate."""
    every: Annotated[int, Field(ge=5, le=7 * 86_400)] = 600
    """Seconds from tick to tick."""
    tenant: TenantName | None = None
    """The tenant that the monitor belongs to: its calls count for it, and it is forgotten with it."""
    budget_usd: Annotated[float, Field(gt=0)] | None = None
    """US dollars that the judge may cost a day (UTC); without one there is no limit."""
    alerts: tuple[AlertRule, ...] = ()
    drift: bool = True
    """Whether the rate is also watched against the monitor's own first runs."""
    baseline_runs: Annotated[int, Field(ge=LEAST_BASELINE, le=1_000_000)] = BASELINE_RUNS
    """Number of those first judged runs."""
    anchors: AnchorPlan | None = None
    """The labelled runs by which the judge itself is watched; None where there are none."""
    notify: tuple[str, ...] = ()
    """The worker's webhooks that hear of alerts; all that want them where none is named."""
    write_back: Target | None = None
    """Service to whose traces the scores of judged runs are written; none by default."""

    @field_validator("judge", "shadow", mode="before")
    @classmethod
    def _reads_judge(cls, value: object) -> object:
        return None if value is None else parse_judge(value)

    @model_validator(mode="after")
    def _decides(self) -> "MonitorDefinition":
        for name, judge in (("judge", self.judge), ("shadow", self.shadow)):
            if judge is None:
                continue
            try:
                stated = PassRule(judge, self.passes).stated
            except InvalidRequest as error:
                raise ValueError(f"{name}: {error}" if name == "shadow" else str(error)) from None
            if not stated:
                raise ValueError(f"the {name} has a schema of its own; say what passes with --pass KEY=VALUE, or pass_if in its file")
            if needs_workflow(judge):
                raise ValueError(f"{name}: this one reflects, or has tools, checks or remote graders, which no batch takes; leave them out")
        if self.shadow is not None and judging_id(self.shadow, "", 0) == judging_id(self.judge, "", 0):
            raise ValueError("shadow: this is the judge itself; name another one")
        if self.strata and self.stratum is None:
            raise ValueError("shares of strata need the metadata key that tells them apart; name it with --stratum")
        return self

    @property
    def workflow_id(self) -> str:
        """The id of the monitor's schedule, with which the ids of its ticks begin."""
        return f"monitor/{self.name}"

    @property
    def priority(self) -> Priority:
        """The priority of the monitor's calls: that of a batch, of its tenant."""
        return BATCH_PRIORITY.model_copy(update={"tenant": self.tenant})


Why = Literal["sampled", "always", "backfill", "over budget", "left out"]
"""Reason that a run is judged or not: it is in the sample, a rule always takes it, a backfill asked for it, the day's budget is used
up, or the share leaves it out."""

MonitorVerdict = Literal["passed", "failed", "unsure", "error", "unjudged"]
"""Outcome of a chosen run; `error` and `unjudged` are not verdicts."""


class Rate(Strict):
    """Number of judged runs, and of those that passed."""

    passed: int = 0
    judged: int = 0
    worth: OmitEmpty[float] = 1.0
    """The number of independent runs that one is worth: less than 1 where the rates of ticks differ by more than chance."""
    interval: Interval | None = None
    """The 95 % interval of the rate, by Wilson; None without a judged run."""


class TickReport(Strict):
    """Report of one tick: what it read and found."""

    number: int
    tick: str
    """The id of its workflow."""
    time: str
    read: int = 0
    """New runs of the source."""
    known: int = 0
    """Runs that were read before."""
    unreadable: int = 0
    refused: OmitEmpty[tuple[str, ...]] = ()
    """The first reasons for which something is unreadable."""
    problem: str | None = None
    """Reason that the source could not be read, or that judging ended early."""
    sampled: int = 0
    always: int = 0
    over_budget: int = 0
    late: int = 0
    """Runs that earlier ticks left out, and this one judges."""
    backfilled: int = 0
    """Runs of a backfill that this tick judges, outside of every rate of its own."""
    given_up: int = 0
    """Runs that have waited for too long to be judged."""
    more: bool = False
    """Whether the source has more than one tick reads."""
    no_webhooks: tuple[str, ...] = ()
    """The webhooks of the monitor that its worker does not have: they hear of no alert."""
    rate: Rate = Rate()
    """The rate of only the sampled runs."""
    unsure: int = 0
    errors: int = 0
    unjudged: int = 0
    strata: dict[str, Rate] = Field(default_factory=dict)
    always_rate: Rate = Rate()
    """The rate of the runs that rules always take."""
    anchors: AnchorCounts = AnchorCounts()
    """Verdicts on the anchors, which are outside of every rate."""
    cost_usd: float | None = None
    settled: bool = False
    written_back: OmitEmpty[WriteBackReport | None] = None
    """The report on the scores; None while nothing is known of them."""


class Alert(Strict):
    """Something that a monitor warns of, once, until it is over."""

    kind: str
    """The rule as it is written, `drift`, `judge` or `silence`."""
    number: int
    """The tick that raised it."""
    time: str
    text: str
    runs: tuple[str, ...] = ()
    """The ids of the newest failed runs."""
    moved: Moved | None = None
    """The cause that the anchors name since: the world or the judge. None without anchors, or while they cannot tell."""
    anchors: AnchorCounts = AnchorCounts()
    """The anchors that were judged in the alert's ticks, until they said which."""
    cleared: str | None = None
    """Time of its end."""

    @property
    def said(self) -> str:
        """Text for people, with what the anchors say about it."""
        if self.moved is None or self.kind == "judge":
            return self.text
        reasons = {
            "world": f"the world has moved, not the judge: {self.anchors.text}",
            "judge": f"the judge has moved: {self.anchors.text}",
            "unclear": f"whether the world or the judge has moved is not clear yet: {self.anchors.text}",
        }
        return f"{self.text}; {reasons[self.moved]}"


class OpenAlert(Strict):
    """An alert that is not over, and the runs since."""

    number: int
    recent: tuple[tuple[int, int], ...] = ()
    """Hits and runs of the newest ticks."""
    fall: float = 0.0
    """Change of the rate when the alert was raised; 0 where the anchors say nothing about it."""
    usual: float | None = None
    """The pass rate from which it fell; None for any other rate."""
    moved: Moved | None = None
    anchors: AnchorCounts = AnchorCounts()


class BackfillGate(Tolerant):
    """A backfill that ends once it is known whether this share of its runs passes: `BackfillGate(pass_rate=0.9)`."""

    pass_rate: Annotated[float, Field(ge=0, le=1)]
    risk: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """The largest probability that judging all would say otherwise."""
    after: OmitEmpty[int] = 0
    """Number of the last tick before it."""
    total: OmitEmpty[int] = 0
    """Number of its runs; 0 until the source is read."""
    decision: OmitEmpty[EarlyAnswer | None] = None
    """The answer, once it is known; with a `risk` of 0 that of all runs."""


class MonitorState(Tolerant):
    """State of a monitor between two ticks."""

    ticks: int = 0
    empty: int = 0
    """Ticks in a row without a judged run."""
    day: str = ""
    spent_usd: float = 0.0
    baseline_passed: int = 0
    baseline_judged: int = 0
    baseline_spread: Spread = Spread()
    """The spread of the ticks of those first runs; of none where an older release counted the runs."""
    tests: dict[str, DriftState] = Field(default_factory=dict)
    anchors: AnchorState = AnchorState()
    open: dict[str, OpenAlert] = Field(default_factory=dict)
    backfill: OmitEmpty[BackfillGate | None] = None
    """The newest backfill, where it ends early."""


class MonitorTick(Tolerant):
    """The argument of the workflow `Monitoring`; the monitor itself is in the store."""

    monitor: str
    priority: OmitEmpty[Priority | None] = None
    """The priority of its calls; that of a batch where there is none."""


class TickCall(Strict):
    """The argument of `collect` and `settle`."""

    monitor: str
    tick: str
    """The workflow's id, which is equal for all attempts of a tick."""
    number: OmitEmpty[int] = 0
    """Number of the tick that is settled."""
    problem: OmitEmpty[str | None] = None
    """Reason that its batch ended early."""


class DueTick(Tolerant):
    """A tick that has runs to judge, or nothing to judge, and is not settled."""

    number: int
    batch: BatchRequest | None = None


class CollectedTick(Tolerant):
    """Result of `collect`: the ticks to settle, those first that an earlier workflow left behind."""

    due: tuple[DueTick, ...]
    webhooks: OmitEmpty[Webhooks] = Field(default_factory=dict)


class FinishedTick(Tolerant):
    """Result of `settle`: the alerts to tell of, and those that are over."""

    raised: tuple[Alert, ...] = ()
    cleared: tuple[Alert, ...] = ()
    notify: tuple[str, ...] = ()
    title: str = ""
    write_back: OmitEmpty[WriteBackCall | None] = None
    """The call that writes the tick's scores back; None where they are not."""


class BackfillCall(Strict):
    """The one argument of the workflow `MonitorBackfill` and of its activity."""

    monitor: str
    since: Annotated[str, Field(min_length=1, max_length=100)]
    """A date or a time, UTC where it does not say otherwise; of a query whose watermark is not a time, a value of the watermark."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """The share of the runs that is judged; the monitor's own where there is none."""
    preview: bool = False
    """Whether the runs are only counted."""
    gate: OmitEmpty[BackfillGate | None] = None
    """The question whose answer ends the backfill; by default all of its runs are judged."""
    priority: OmitEmpty[Priority | None] = None


class BackfillReport(Tolerant):
    """Counts and cost of a backfill."""

    read: int = 0
    """Runs of the source since then that the monitor has passed."""
    done: int = 0
    """Those that have a verdict."""
    waiting: int = 0
    """Those that wait to be judged, or are being judged."""
    left_out: int = 0
    """Those that the share leaves out."""
    unjudgeable: int = 0
    """Those that no batch can judge: nothing is said in them, or they are too large."""
    unreadable: int = 0
    refused: OmitEmpty[tuple[str, ...]] = ()
    """The first reasons for which something is unreadable."""
    chosen: int = 0
    """Those that are judged from now on, or would be."""
    calls: int = 0
    """Calls of their judgements, without repairs."""
    cached: int = 0
    """Calls whose answer is in the cache of verdicts."""
    cost_usd: float | None = 0.0
    """An estimate of the calls; None where a model's price is unknown."""


BACKFILL_WORKFLOW = "MonitorBackfill"


@workflow.defn(name=BACKFILL_WORKFLOW)
class MonitorBackfill:
    """The door to a backfill of a monitor; a worker's own class implements it."""

    @workflow.run
    async def run(self, call: BackfillCall) -> BackfillReport:
        """Have the runs wait that the monitor has passed without a verdict, and return how many; its ticks judge them."""
        raise NotImplementedError


@workflow.defn(name=MONITORING_WORKFLOW)
class Monitoring:
    """The door to one tick of a monitor; a worker's own class implements it."""

    @workflow.run
    async def run(self, tick: MonitorTick) -> int:
        """Read the source, judge the sample, and say what has changed; return the number of ticks that were settled."""
        raise NotImplementedError
