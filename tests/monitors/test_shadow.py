"""Two judges of the same sample: the second is paid and compared, and moves no rate."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import select
from temporalio.client import Client

from gradeloop.monitors.contract import MonitorDefinition
from gradeloop.monitors.overview import shadow_text
from gradeloop.stats.intervals import paired_difference
from gradeloop.store.tables import table
from tests.monitors.test_monitoring import JUDGE, watched
from tests.rig.batches import fails, passes

STRICT: dict[str, Any] = {"rubric": "- it is very good", "grader": {"model": "scripted:strict"}}
WITH_TOOLS = STRICT | {"grader": {"model": "scripted:x", "tools": ["t"]}}


async def test_two_judges_judge_the_same_sample_and_the_second_moves_no_rate(client: Client, tmp_path: Path) -> None:
    replies = (passes(model="judge"), fails("bad", model="strict"), passes(model="strict"))
    async with watched(client, tmp_path, *replies, shadow=STRICT) as monitor:
        monitor.write("a.jsonl", *(f"good-{number}" for number in range(6)))
        monitor.write("b.jsonl", "bad-1", "bad-2", said="bad")
        found = await monitor.tick()
        again = await monitor.tick()
        verdicts = await monitor.batches.store.read(
            lambda connection: connection.execute(select(table("monitor_runs").c.verdict, table("monitor_runs").c.shadow_verdict)).all()
        )

    assert (found.rate.passed, found.rate.judged, found.failed) == (8, 8, ())
    assert sorted(map(tuple, verdicts)) == [("passed", "failed")] * 2 + [("passed", "passed")] * 6
    assert found.shadow is not None
    assert (found.shadow.judge.passed, found.shadow.shadow.passed, found.shadow.agreed) == (8, 6, 6)
    assert found.shadow.difference == paired_difference([0.0] * 2 + [1.0] * 6, [1.0] * 8)
    text, shadow = shadow_text(found), found.definition.shadow
    assert shadow is not None
    assert text.startswith(f"shadow {shadow.rubric_id}@1: pass rate 75%")
    assert "difference -25.0 points" in text
    assert again.shadow == found.shadow
    assert monitor.calls == 16


@pytest.mark.slow
async def test_a_monitor_without_a_second_judge_compares_nothing(client: Client, tmp_path: Path) -> None:
    async with watched(client, tmp_path, passes()) as monitor:
        monitor.write("a.jsonl", "a")
        found = await monitor.tick()

    assert found.shadow is None


@pytest.mark.parametrize(
    ("shadow", "said"),
    [
        (JUDGE, "shadow: this is the judge itself"),
        (STRICT | {"grader": {"model": "scripted:x", "tools": ["t"]}}, "shadow: this one reflects"),
    ],
)
def test_a_second_judge_that_compares_nothing_or_cannot_be_asked_is_refused(shadow: dict[str, Any], said: str) -> None:
    about = {"name": "m", "source": {"kind": "folder", "path": "/runs"}, "judge": JUDGE, "shadow": shadow}

    with pytest.raises(ValidationError, match=said):
        MonitorDefinition.model_validate(about)
