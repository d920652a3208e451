"""A build rolled out and back under threads and judgements: `python -m lab.rolling_deploy`, small."""

from pathlib import Path

import pytest

from lab.rolling_deploy import Plan, deploy

SMALL = Plan(threads=24, judgements=8, delay=0.4, at_once=6, longest=150.0)


@pytest.mark.slow
async def test_a_rolling_deploy_and_its_rollback_fail_no_workflow_task_and_repeat_no_call(tmp_path: Path) -> None:
    report = await deploy(SMALL, tmp_path)
    print(report)

    threads = report.results["satisfied"]
    assert threads == report.results.total() >= SMALL.threads
    assert (report.failed_tasks, report.again) == (0, 0)
    assert report.calls.total() == 4 * threads
    assert report.judge_calls == SMALL.rollouts * report.judgements
    assert set(report.calls) == {"1", "2"}
    assert report.moved > 0
    assert report.judged_by.total() == report.judgements
