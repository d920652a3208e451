"""A rolling deploy that upgrades the store under a batch and threads: `python -m lab.store_deploys`, small."""

from pathlib import Path

import pytest

from lab.store_deploys import Plan, deploy

SMALL = Plan(deploys=1, threads=6)


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("too_old", [False, True], ids=["beside the old build", "that the old build must not use"])
async def test_an_upgrade_of_the_store_in_a_rolling_deploy_ends_no_case_as_an_error_and_repeats_no_call(
    tmp_path: Path, too_old: bool
) -> None:
    report = await deploy(Plan(**{**vars(SMALL), "too_old": too_old}), tmp_path)
    print(report)

    assert report.problems == []
    assert report.threads == SMALL.threads
    assert report.cases == report.calls.total()
    assert min(report.calls["old0"] + report.calls["old1"], report.calls["new0"]) > 0
    assert (report.calls["old0-again"] + report.calls["old1-again"] == 0) is too_old
