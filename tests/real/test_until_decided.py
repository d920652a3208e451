"""`eval --until decided` with a real small model: its verdicts decide after which case it ends, and a killed worker changes nothing."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gradeloop.stats.decided import EarlyGate
from rig.real_model import Tap
from tests.rig.cli import CommandLine, ended
from tests.rig.real_suites import gradings, outputs, suite

CASES, WANTED = 24, 0.7


@pytest.fixture
def alone(gradeloop: CommandLine) -> Iterator[CommandLine]:
    """Return the command without a worker of an earlier test."""
    gradeloop.kill_workers()
    yield gradeloop
    gradeloop.kill_workers()


def exported(gradeloop: CommandLine) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gradeloop("batches", "export", "latest").out)
    return found


@pytest.mark.parametrize("killed", [False, True])
def test_it_ends_at_the_case_after_which_the_verdicts_of_the_model_decide(alone: CommandLine, tap: Tap, killed: bool) -> None:
    texts = [f"{'A dog costs 10 euros a night.' if at % 8 else 'No.'} {text}" for at, text in enumerate(outputs(CASES))]
    flags = ("--until", "decided", "--seed", "3", "--pass-rate", str(WANTED), "--no-cache", "-j", "2")
    process = alone.start("eval", suite(alone, f"decided-{killed}", tap, texts), *flags)
    if killed:
        tap.until(lambda seen: len(gradings(seen.calls)) > 2 and seen.in_flight > 0)  # holds as the third call comes in
        alone.kill_workers()
    done, calls = ended(process), len(gradings(tap.calls))
    known = exported(alone)["summary"].get("decision")
    whole = alone("eval", "--resume", "latest", "--all")
    gate = EarlyGate(CASES, WANTED)
    for case in exported(alone)["cases"]:
        gate.take(case["status"] if case["status"] in {"passed", "failed"} else "neither")

    assert done.code == whole.code, done.err
    assert done.code == 1
    assert gate.decision is not None
    assert known == gate.decision.model_dump(mode="json")
    assert known["asked"] < CASES
    assert calls <= known["asked"] + 2 + 2 + 2 * killed
