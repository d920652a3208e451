"""Thirty gradings of a real small model in each form: well-formed, hardly repaired, and mostly read from the server's cache."""

from dataclasses import dataclass

import pytest

from rig.real_model import Call, Tap
from tests.rig.cli import CommandLine
from tests.rig.real_suites import grader, gradings, judged, let_call, outputs, suite

GRADINGS = 30


@dataclass(frozen=True)
class Graded:
    """A batch that the model graded."""

    profile: str
    cases: dict[str, str]
    rows: list[int]
    """How many rows each case has."""
    calls: list[Call]
    at_once: int


@pytest.fixture(scope="module", params=["full", "short"])
def graded(request: pytest.FixtureRequest, commands: CommandLine, one_model: tuple[object, Tap]) -> Graded:
    """Run the batch of a profile."""
    tap, profile = one_model[1], str(request.param)
    let_call(commands, tap)
    tap.forget()
    done = commands("eval", suite(commands, profile, tap, outputs(GRADINGS), grader=grader(tap, prompt=profile)), "--json")

    assert done.code in {0, 1, 3}, done.err
    rows = [len(line["criteria"]) for line in done.lines if "criteria" in line]
    return Graded(profile, judged(done), rows, gradings(tap.calls), tap.at_once)


def test_every_grading_is_well_formed(graded: Graded) -> None:
    assert len(graded.cases) == GRADINGS
    assert {case for case, status in graded.cases.items() if status not in {"passed", "failed"}} == set()


def test_the_short_prompt_gives_a_row_where_the_full_one_may_be_called_unjudgeable(graded: Graded) -> None:
    least = 1 if graded.profile == "short" else 0

    assert len(graded.rows) == GRADINGS
    assert all(least <= rows <= 1 for rows in graded.rows)


def test_hardly_an_answer_is_asked_for_again(graded: Graded) -> None:
    assert len(graded.calls) <= 1.05 * GRADINGS


def test_every_answer_is_held_to_a_schema_and_to_a_cap_that_it_does_not_reach(graded: Graded) -> None:
    assert all(call.by_schema for call in graded.calls)
    assert all(call.cap is not None and call.written <= call.cap for call in graded.calls)
    assert {call.finish for call in graded.calls} == {"stop"}


def test_what_prompts_have_in_common_comes_from_the_servers_cache(graded: Graded) -> None:
    shared = max(call.cached for call in graded.calls)

    assert sum(call.cached for call in graded.calls) >= 0.8 * shared * GRADINGS


def test_most_of_the_full_prompt_is_shared_and_what_an_output_adds_to_the_short_one_is_short(graded: Graded) -> None:
    cached, prompts = sum(call.cached for call in graded.calls), sum(call.prompt for call in graded.calls)

    if graded.profile == "full":
        assert cached >= 0.6 * prompts
    else:
        assert prompts - cached <= 200 * GRADINGS


def test_the_server_is_asked_as_many_questions_at_once_as_it_has_slots(graded: Graded) -> None:
    assert graded.at_once == 2
