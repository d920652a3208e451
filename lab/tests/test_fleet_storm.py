"""Batches on a fleet while everything fails, small; the whole is `python -m lab.fleet_storm`."""

from pathlib import Path

import pytest

from lab.fleet_storm import FAULTS, Plan, storm
from rig.postgresql import NoPostgresqlError

SMALL = Plan(minutes=1.0, workers=3, batches=1, cases=60, at_once=30, pause=(3.0, 6.0), outage=4.0)


@pytest.mark.storm
@pytest.mark.parametrize("kind", [*FAULTS, ""], ids=[*FAULTS, "all"])
async def test_every_case_of_a_fleet_is_judged_and_counted_whatever_fails(tmp_path: Path, kind: str) -> None:
    try:
        report = await storm(Plan(**(vars(SMALL) | {"only": kind})), tmp_path)
    except NoPostgresqlError as error:
        pytest.skip(str(error))
    print(report)

    assert report.problems == []
    assert report.batches > 0
    assert report.cases == report.batches * SMALL.cases
