"""A server with a small context, and more calls than it has slots."""

from collections.abc import Iterator

import pytest

from rig.real_model import Tap, real_model
from tests.rig.cli import CommandLine
from tests.rig.real_suites import THREE, gradings, judged, let_call, outputs, suite

CONTEXT = 2048


@pytest.fixture
def small(wheels: object) -> Iterator[Tap]:
    """Run a model whose slots hold few tokens."""
    with real_model(CONTEXT) as (_, tap):
        yield tap


def test_a_context_of_2048_tokens_holds_a_rubric_and_an_output_of_some_length(commands: CommandLine, small: Tap) -> None:
    texts = [text * 8 for text in outputs(6)]
    let_call(commands, small)
    done = commands("eval", suite(commands, "small", small, texts, rubric={"criteria": THREE}), "--json")

    assert done.code in {0, 1}, done.err
    assert set(judged(done).values()) <= {"passed", "failed"}
    assert all(call.prompt + (call.cap or CONTEXT) <= CONTEXT for call in gradings(small.calls))


def test_what_no_context_holds_ends_as_an_overflow(commands: CommandLine, small: Tap) -> None:
    rubric = {"criteria": [{"description": f"It says nothing of the {'very ' * 2000}loud lift."}]}
    let_call(commands, small)
    done = commands("eval", suite(commands, "overflow", small, outputs(1), rubric=rubric), "--json")

    assert done.code == 3
    assert [error.split(":")[0] for error in judged(done).values()] == ["context_overflow"]


def test_more_calls_than_slots_wait_for_their_turn(gradeloop: CommandLine, tap: Tap) -> None:
    done = gradeloop("eval", suite(gradeloop, "crowded", tap, outputs(12), concurrency=6), "--json")

    assert done.code in {0, 1}, done.err
    assert set(judged(done).values()) <= {"passed", "failed"}
    assert len(judged(done)) == 12
    assert tap.at_once == 6
