"""Batches put into a store at once, as their worker leaves them there: for pages and lists of many batches."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gradeloop.batches.cases import build_result
from gradeloop.batches.contract import BatchRequest, Case, CaseStatus, Upload
from gradeloop.batches.store import insert_cases
from gradeloop.contract.messages import Usage
from gradeloop.contract.thread import Priority
from gradeloop.store.engine import Store
from gradeloop.store.tables import table

COUNTED: Mapping[str, str] = {"error": "errors"}
"""The counters whose name is not that of the status."""


def put_batch(
    store: Store,
    batch_id: str,
    statuses: Mapping[str, CaseStatus],
    *,
    created: datetime | None = None,
    tenant: str | None = None,
    seconds: float = 1.0,
    case: Mapping[str, Any] | None = None,
    grader: str = "scripted:judge",
    models: Sequence[str] = (),
    **request: Any,
) -> None:
    """Put a batch with the results of its cases into a store.

    Args:
        store: The store.
        batch_id: Its id.
        statuses: The status of each case by its id; `queued` for one that has not ended.
        created: The time when it began.
        tenant: Its tenant.
        seconds: The seconds of each case.
        case: What all its cases have.
        grader: The model that judged.
        models: The models that draft it.
        request: Other fields of its request.
    """
    given: dict[str, Any] = {"rubric": "- it is good"} | dict(case or {})
    given |= {} if "generator" in given else {"output": "the output"}
    cases = tuple(Case.model_validate({"id": name} | given) for name in statuses)
    priority = Priority(level=4, tenant=tenant) if tenant else Priority(level=4)
    asked = BatchRequest.model_validate({"batch_id": batch_id, "total": len(cases), "priority": priority} | request)
    counts = Counter(COUNTED.get(status, status) for status in statuses.values() if status != "queued")
    usage = Usage(calls=1, seconds=seconds, cost_usd=0.01, input=10, output=5)

    def write(connection: Any) -> None:
        insert_cases(connection, Upload(batch_id=batch_id, first=0, cases=cases))
        rows = table("cases")
        for position, one in enumerate(cases):
            status = statuses[one.id]
            if status == "queued":
                continue
            more = {"error": "it broke"} if status == "error" else {}
            result = build_result(one, status, output="the output", usage=usage, grader=grader, **more)
            text = result.model_copy(update={"index": position}).model_dump_json()
            mine = (rows.c.batch_id == batch_id, rows.c.position == position)
            connection.execute(rows.update().where(*mine).values(status=status, result=text, settled=position + 1))
        ended = sum(counts.values())
        values: dict[str, Any] = {
            "id": batch_id,
            "request": asked.model_dump_json(),
            "models": json.dumps(models),
            "status": "finished" if ended == len(cases) else "running",
        }
        values |= {"total": len(cases), "settled": ended, "calls": ended, "cost_usd": 0.01 * ended, "seconds": seconds * ended}
        connection.execute(table("batches").insert().values(values | dict(counts) | {"created": created or datetime.now(UTC)}))

    store.do(write)
