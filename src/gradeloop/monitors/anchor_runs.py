"""The anchors of a store's monitors: kept with the monitor, taken by its ticks in turn, and what the judge says of them."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from gradeloop.batches.contract import Case
from gradeloop.batches.judged import judging_case
from gradeloop.contract.transcript import AgentRun, why_unanswered
from gradeloop.errors import InvalidRequest
from gradeloop.judges.contract import CriteriaJudge, JudgingRequest, SchemaJudge
from gradeloop.monitors.alerts import verdict_of
from gradeloop.monitors.anchors import ANCHORS_PER_TICK, MOST_ANCHORS, AnchorCounts, AnchorPlan
from gradeloop.monitors.contract import MonitorDefinition, MonitorVerdict
from gradeloop.stats.correction import JudgeError
from gradeloop.store.tables import table
from gradeloop.text import clip

ANCHOR_BYTES = 64 * 1024 * 1024
"""The most JSON of a monitor's anchors."""

LABEL_KEY = "label"
"""The key of a run's metadata that says what a person says of it; the judge never sees it."""

DECIDED = frozenset({"passed", "failed", "unsure"})
"""Statuses that count as a verdict on an anchor."""


class Anchor(NamedTuple):
    """A labelled run, and the case that judges it."""

    run_id: str
    run_sha256: str
    passed: bool
    """Whether people say that it passes."""
    case: Case


def anchors_of(judge: CriteriaJudge | SchemaJudge, labelled: Iterable[tuple[AgentRun, bool]]) -> tuple[Anchor, ...]:
    """Return labelled runs as anchors; the key `label` of their metadata is left out, so that the judge is blind to it.

    Raises:
        InvalidRequest: There are too few or too many, one is there twice, or no batch can judge one.
    """
    found = dict[str, Anchor]()
    size = 0
    for run, passed in labelled:
        bare = run.model_copy(update={"metadata": {key: value for key, value in run.metadata.items() if key != LABEL_KEY}})
        sha256 = bare.sha256()
        case = None if why_unanswered(bare) else judging_case(JudgingRequest(judge=judge, run=bare))
        if case is None:
            raise InvalidRequest(f"the anchor {clip(run.id)} cannot be judged: it has no answer, or it is too large; leave it out")
        if sha256 in found:
            raise InvalidRequest(f"the anchor {clip(run.id)} is there twice; keep one of them")
        found[sha256] = Anchor(run.id, sha256, passed, case)
        size += case.size()
    if size > ANCHOR_BYTES:
        raise InvalidRequest(f"the anchors are {size:,} bytes as JSON, and at most {ANCHOR_BYTES:,} are kept; take fewer or smaller ones")
    if not 2 <= len(found) <= MOST_ANCHORS:  # noqa: PLR2004 - one of each kind
        raise InvalidRequest(f"there are {len(found):,} anchors; give 2 to {MOST_ANCHORS}")
    if len({anchor.passed for anchor in found.values()}) == 1:
        kind, other = ("pass", "fail") if next(iter(found.values())).passed else ("fail", "pass")
        raise InvalidRequest(f"all anchors are labelled to {kind}; add some that {other}, else a judge that {kind}es all would go unseen")
    return tuple(sorted(found.values(), key=lambda anchor: anchor.run_sha256))


def plan_of_anchors(anchors: Sequence[Anchor], per_tick: int = ANCHORS_PER_TICK) -> AnchorPlan:
    """Return what a definition says of its anchors."""
    known = json.dumps([[anchor.run_sha256, anchor.passed] for anchor in anchors])
    return AnchorPlan(sha256=hashlib.sha256(known.encode()).hexdigest(), total=len(anchors), per_tick=per_tick)


def insert_anchors(connection: Connection, monitor: str, anchors: Sequence[Anchor]) -> None:
    """Write a new monitor's anchors."""
    rows = [
        {
            "monitor": monitor,
            "run_sha256": anchor.run_sha256,
            "run_id": anchor.run_id,
            "label": "passed" if anchor.passed else "failed",
            "spec": anchor.case.model_dump_json(),
        }
        for anchor in anchors
    ]
    if rows:
        connection.execute(table("monitor_anchors").insert(), rows)


def take_anchors(connection: Connection, definition: MonitorDefinition, number: int) -> list[Case]:
    """Have a tick judge the anchors whose turn it is, and return their cases: all that have no verdict, then the longest unjudged ones."""
    if definition.anchors is None:
        return []
    anchors = table("monitor_anchors")
    # The first verdicts on all anchors are what later ones are compared with, so anchors without one go
    # first, all in one tick. Then each tick takes those that have waited longest, so that all come round.
    # They have ids of their own and pass by the cache (`ask_afresh`): a kept verdict would repeat itself for
    # ever and hide every change of the judge.
    mine = select(anchors.c.run_sha256, anchors.c.spec, anchors.c.first).where(anchors.c.monitor == definition.name)
    rows = connection.execute(mine.order_by(anchors.c.first.is_not(None), anchors.c.tick, anchors.c.run_sha256)).all()
    wanted = max(definition.anchors.per_tick, sum(first is None for _, _, first in rows))
    taken = rows[:wanted]
    for sha256, _, _ in taken:
        which = (anchors.c.monitor == definition.name, anchors.c.run_sha256 == sha256)
        connection.execute(anchors.update().where(*which).values(tick=number))
    cases = [Case.model_validate_json(spec) for _, spec, _ in taken]
    return [case.model_copy(update={"id": anchor_case_id(case.id)}) for case in cases]


def anchor_case_id(case_id: str) -> str:
    """Return the id of an anchor's case, which is another one than that of the same run in the source."""
    return f"{case_id}.anchor"


def ask_afresh(connection: Connection, batch_id: str, cases: Sequence[Case]) -> None:
    """Have cases be judged past the cache of verdicts."""
    if cases:
        rows = table("cases")
        mine = (rows.c.batch_id == batch_id, rows.c.case_id.in_([case.id for case in cases]))
        connection.execute(rows.update().where(*mine).values(fresh=1))


def count_anchors(
    connection: Connection, definition: MonitorDefinition, number: int, found: Mapping[str, tuple[str, str | None]]
) -> AnchorCounts:
    """Write what became of a tick's anchors, and return the counts.

    `found`: status and result of the cases of its batch, by their ids.
    """
    if definition.anchors is None:
        return AnchorCounts()
    anchors, total = table("monitor_anchors"), AnchorCounts()
    rows = connection.execute(select(anchors).where(anchors.c.monitor == definition.name, anchors.c.tick == number)).mappings().all()
    for row in rows:
        case = Case.model_validate_json(row["spec"])
        verdict = verdict_of(definition.judge, definition.passes, *found.get(anchor_case_id(case.id), ("queued", None)))
        total = total.plus(_counts(verdict, row["label"], row["first"]))
        if verdict in DECIDED:
            mine = (anchors.c.monitor == definition.name, anchors.c.run_sha256 == row["run_sha256"])
            values = {"verdict": verdict, "judged": number, "first": row["first"] or verdict}
            connection.execute(anchors.update().where(*mine).values(**values))
    return total


def _counts(verdict: MonitorVerdict, label: str, first: str | None) -> AnchorCounts:
    if verdict not in DECIDED:
        return AnchorCounts(errors=1)
    return AnchorCounts(
        judged=1,
        right=int(verdict == label),
        repeated=int(first is not None),
        same=int(first == verdict),
        passed_before=int(first == "passed"),
        passed_again=int(first == verdict == "passed"),
    )


def forget_first_verdicts(connection: Connection, monitor: str) -> None:
    """Have the next verdict on each anchor be its first: the judge is taken as it is now."""
    anchors = table("monitor_anchors")
    connection.execute(anchors.update().where(anchors.c.monitor == monitor).values(first=None))


def anchor_error(connection: Connection, monitor: str) -> JudgeError:
    """Return how often the judge's newest verdicts on anchors are right; anchors that it is unsure of count for nothing."""
    anchors = table("monitor_anchors")
    decided = (anchors.c.monitor == monitor, anchors.c.verdict.in_(["passed", "failed"]))
    rows = connection.execute(select(anchors.c.label, anchors.c.verdict).where(*decided)).all()
    return JudgeError(
        passed=sum(label == "passed" for label, _ in rows),
        passed_found=sum(label == verdict == "passed" for label, verdict in rows),
        failed=sum(label == "failed" for label, _ in rows),
        failed_found=sum(label == verdict == "failed" for label, verdict in rows),
    )
