"""Labels by people for judged runs: a queue that hides the judge's verdict, and the labels."""

from collections.abc import Iterator, Sequence
from functools import partial

from pydantic import JsonValue
from rich.text import Text
from sqlalchemy import Connection, RowMapping, func, select

from gradeloop.batches.contract import Case, CaseResult
from gradeloop.client.waiting import StoredQuestions
from gradeloop.contract.base import Strict
from gradeloop.contract.messages import Message
from gradeloop.contract.transcript import run_as_messages
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import JudgeConfig, JudgeResult
from gradeloop.judges.pass_rule import PassRule
from gradeloop.monitors.ticks import monitor_names, monitor_of
from gradeloop.reports.html import part, segment
from gradeloop.stats.correction import SampleLabels
from gradeloop.store.engine import Store
from gradeloop.store.tables import table
from gradeloop.text import clip, counted

NEWEST_FAILED = 500
"""The newest failed runs of which people are asked."""


class LabelTask(Strict):
    """A judged run of which a person is asked; what the judge says is not in it."""

    run_id: str
    run_sha256: str
    waiting: int
    """Number of runs that wait for a label, this one included."""
    messages: tuple[Message, ...]


class WaitingLabels(Strict):
    """The runs of a monitor that wait for a label."""

    monitor: str
    runs: int


class LabelledRun(Strict):
    """Label of a run by a person, beside the judge's verdict."""

    run_id: str
    created_by: str
    passed: bool
    reason: str = ""
    judgement: JudgeResult | None = None
    """Verdict of the judge; None where the store no longer has it."""


class MonitorLabels:
    """The labels that people give to the runs of a store's monitors."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def next_task(self, name: str, person: str | None) -> LabelTask | None:
        """Return the next run of which a person is asked, without a name one that nobody has labelled; None where none waits.

        Every newest failed run waits, and as many that passed, in the order of their content: the order gives no hint.

        Raises:
            InvalidRequest: There is no such monitor.
        """

        def read(connection: Connection) -> LabelTask | None:
            monitor_of(connection, name)
            waiting = _queue(connection, name, person)
            for row in waiting[:1]:
                text = _stored(connection, row, "spec")
                judging = None if text is None else Case.model_validate_json(text).judging
                messages = tuple(run_as_messages(judging.run)) if judging else ()
                return LabelTask(run_id=row["run_id"], run_sha256=row["run_sha256"], waiting=len(waiting), messages=messages)
            return None

        return await self._store.read(read)

    async def waiting(self, person: str | None) -> list[WaitingLabels]:
        """Return the monitors with runs of which a person is asked, by name; without a person those with runs that nobody has labelled."""

        def read(connection: Connection) -> list[WaitingLabels]:
            counts = {name: len(_queue(connection, name, person)) for name in monitor_names(connection)}
            return [WaitingLabels(monitor=name, runs=runs) for name, runs in counts.items() if runs]

        return await self._store.read(read)

    async def give(self, name: str, run: str, person: str, *, passed: bool, reason: str = "") -> str:
        """Write what a person says of a run, in place of what the same person has said before, and return the run's id.

        `run`: the run's id or its sha256.

        Raises:
            InvalidRequest: There is no such monitor, or no such run that was judged.
        """

        def write(connection: Connection) -> str:
            monitor_of(connection, name)
            runs, labels = table("monitor_runs"), table("monitor_labels")
            known = (runs.c.monitor == name, (runs.c.run_id == run) | (runs.c.run_sha256 == run), runs.c.verdict.is_not(None))
            newest = select(runs.c.run_sha256, runs.c.run_id).where(*known).order_by(runs.c.number.desc(), runs.c.run_sha256)
            if (row := connection.execute(newest).first()) is None:
                cure = f"`gradeloop monitor label {name}` shows one that waits"
                raise InvalidRequest(f"the monitor {name!r} has judged no run {clip(run)}; {cure}")
            mine = {"monitor": name, "run_sha256": row[0], "created_by": person}
            connection.execute(labels.delete().where(*(labels.c[key] == value for key, value in mine.items())))
            connection.execute(labels.insert().values(**mine, passed=int(passed), reason=reason))
            return str(row[1])

        return await self._store.write(write)

    async def given(self, name: str) -> tuple[LabelledRun, ...]:
        """Return what people have said, the oldest first, with what the judge says; raise InvalidRequest where there is no such monitor."""

        def read(connection: Connection) -> tuple[LabelledRun, ...]:
            monitor_of(connection, name)
            labels, runs = table("monitor_labels"), table("monitor_runs")
            both = labels.join(runs, (labels.c.monitor == runs.c.monitor) & (labels.c.run_sha256 == runs.c.run_sha256))
            wanted = select(labels, runs.c.run_id, runs.c.case_id, runs.c.judged).select_from(both).where(labels.c.monitor == name)
            rows = connection.execute(wanted.order_by(labels.c.created, labels.c.run_sha256, labels.c.created_by)).mappings().all()
            found = list[LabelledRun]()
            for row in rows:
                said = {name: row[name] for name in ("run_id", "created_by", "passed", "reason")}
                result = _stored(connection, row, "result")
                judgement = None if result is None else CaseResult.model_validate_json(result).judgement
                found.append(LabelledRun.model_validate(said | {"judgement": judgement}))
            return tuple(found)

        return await self._store.read(read)


def label_value(judge: JudgeConfig, passes: Sequence[str], *, passed: bool) -> dict[str, JsonValue] | None:
    """Return a label as values of the judge's output, as `gradeloop agreement` takes them; None where a fail names no value.

    A fail is the other value of a key that has two, and `needs_revision` of a rubric.
    """
    wanted = PassRule(judge, passes).wanted
    value: dict[str, JsonValue] = {}
    for path, right in wanted:
        said = right if passed else _other(judge, path, right) if len(wanted) == 1 else None
        if said is None:
            return None
        inner = value
        for name in path[:-1]:
            found = inner.setdefault(name, {})
            inner = found if isinstance(found, dict) else {}
        inner[path[-1]] = said
    return value


def _other(judge: JudgeConfig, path: Sequence[str], right: JsonValue) -> JsonValue:
    """Return the value of a key that fails; None where several do."""
    if isinstance(right, bool):
        return not right
    schema = judge.output_schema
    for name in path:
        schema = schema["properties"][name]
    values = [value for value in schema.get("enum", ()) if value != right]
    return "needs_revision" if "needs_revision" in values else values[0] if len(values) == 1 else None


def _queue(connection: Connection, name: str, person: str | None) -> list[RowMapping]:
    """Return the runs that wait for a person's label, or for anybody's, in the order of their content.

    A run whose case the store has no longer is not among them: nobody could read it.
    """
    # Failed runs are rare and are what people must check, so all of the newest are asked about, and as many
    # passed ones beside them. The order is that of their content, so that neither the place in the queue nor
    # the share of each kind tells a person what the judge has said.
    runs, labels, ticks, cases = (table(name) for name in ("monitor_runs", "monitor_labels", "monitor_ticks", "cases"))
    mine = select(labels.c.run_sha256).where(labels.c.monitor == name)
    mine = mine if person is None else mine.where(labels.c.created_by == person)
    stored = runs.join(ticks, (ticks.c.monitor == runs.c.monitor) & (ticks.c.number == runs.c.judged))
    stored = stored.join(cases, (cases.c.batch_id == ticks.c.batch_id) & (cases.c.case_id == runs.c.case_id))
    judged = select(runs).select_from(stored).where(runs.c.monitor == name, runs.c.why != "backfill")
    newest = judged.order_by(runs.c.number.desc(), runs.c.run_sha256)
    failed = connection.execute(newest.where(runs.c.verdict == "failed").limit(NEWEST_FAILED)).mappings().all()
    passed = connection.execute(newest.where(runs.c.verdict == "passed").limit(len(failed))).mappings().all()
    done = set(connection.execute(mine).scalars())
    return sorted((row for row in (*failed, *passed) if row["run_sha256"] not in done), key=lambda row: str(row["run_sha256"]))


def sample_labels(connection: Connection, name: str) -> SampleLabels:
    """Return what people say of a monitor's sampled runs, by what the judge says; a run on which they are divided counts in neither."""
    runs, labels = table("monitor_runs"), table("monitor_labels")
    both = labels.join(runs, (labels.c.monitor == runs.c.monitor) & (labels.c.run_sha256 == runs.c.run_sha256))
    wanted = select(runs.c.verdict, func.sum(labels.c.passed), func.count()).select_from(both)
    wanted = wanted.where(labels.c.monitor == name, runs.c.why == "sampled", runs.c.verdict.in_(("passed", "failed")))
    rows = connection.execute(wanted.group_by(runs.c.run_sha256, runs.c.verdict)).all()
    said = [(verdict, 2 * passed > people) for verdict, passed, people in rows if 2 * passed != people]
    return SampleLabels(
        of_passed=sum(verdict == "passed" for verdict, _ in said),
        right_passes=said.count(("passed", True)),
        of_failed=sum(verdict == "failed" for verdict, _ in said),
        wrong_fails=said.count(("failed", True)),
    )


def _stored(connection: Connection, row: RowMapping, column: str) -> str | None:
    """Return a column of the case that judged a run; None where the store has it no longer."""
    ticks, cases = table("monitor_ticks"), table("cases")
    batch = select(ticks.c.batch_id).where(ticks.c.monitor == row["monitor"], ticks.c.number == row["judged"]).scalar_subquery()
    mine = select(cases.c[column]).where(cases.c.batch_id == batch, cases.c.case_id == row["case_id"])
    found: str | None = connection.execute(mine).scalar()
    return found


async def waiting(store: Store, person: str | None) -> StoredQuestions:
    """Return the runs that people are asked to label, for an inbox."""
    return questions(await MonitorLabels(store).waiting(person))


def questions(labels: Sequence[WaitingLabels]) -> StoredQuestions:
    """Return runs to label as an inbox shows them."""
    what = f"{counted(sum(one.runs for one in labels), 'run')} to label" if labels else ""
    html = partial(part, "live_to_label.html", labels=labels, labels_path=labels_path)
    return StoredQuestions(lambda: _lines(labels), html if labels else str, what)


def _lines(labels: Sequence[WaitingLabels]) -> Iterator[Text]:
    if labels:
        yield Text(f"{counted(sum(one.runs for one in labels), 'run')} of monitors to label", "bold yellow")
    for one in labels:
        yield Text(f"  {one.monitor}: {counted(one.runs, 'run')}; label them: gradeloop monitor label {one.monitor}")


def monitor_path(name: str) -> str:
    """Return the path of a monitor's page."""
    return f"/monitors/{segment(name)}"


def labels_path(name: str) -> str:
    """Return the path of the page on which people label the runs of a monitor."""
    return f"{monitor_path(name)}/labels"
