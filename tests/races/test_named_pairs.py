"""What a thread's documents say of two things at once, each as a race: the place, what comes in one task, and the model says the end."""

import logging
from collections.abc import Iterator

import pytest

from tests.races.places import CALLS, PLACES, difference

DRAFTS, GRADES, SECOND = "generate 3", CALLS[4], "generate 7"
VERDICT, LAST_VERDICT = CALLS[6], CALLS[13]
STOPPED = f"interrupted at {VERDICT}"
IDLE = "idle with a draft"
LATER = "a later turn: generate 8"

NAMED: dict[str, tuple[str, ...]] = {
    "another rubric judges the second draft, which is being written": (SECOND, "another rubric"),
    "a passing verdict that comes with another rubric is recorded on the old run first": (LAST_VERDICT, "another rubric", "result"),
    "so is a failing one": (VERDICT, "another rubric", "result"),
    "another rubric judges the last draft of an idle thread": (IDLE, "another rubric"),
    "the rubric in force judges the last draft of an idle thread": (IDLE, "the rubric in force"),
    "nothing said to an interrupted thread resumes its run": (STOPPED, "invoke, no messages"),
    "another rubric supersedes an interrupted run": (STOPPED, "invoke, no messages, another rubric"),
    "another rubric with a message supersedes an interrupted run": (STOPPED, "invoke, another rubric"),
    "another rubric waits with a run that was interrupted": (STOPPED, "another rubric"),
    "another rubric judges the draft of a turn that was interrupted before it": ("interrupted at generate 1", "another rubric"),
    "the rubric in force changes nothing while a draft is written": (DRAFTS, "the rubric in force"),
    "the rubric in force changes nothing while a draft is graded": (GRADES, "the rubric in force"),
    "the last of two rubrics counts for an idle thread": (IDLE, "a cleared rubric", "another rubric"),
    "the last of two rubrics counts for a draft": (DRAFTS, "a cleared rubric", "another rubric"),
    "a rubric that is taken back counts for no draft": (DRAFTS, "another rubric", "the rubric in force"),
    "a rubric that is taken back stops no grading": (GRADES, "another rubric", "the rubric in force"),
    "a rubric that is taken back leaves a verdict that comes with it": (LAST_VERDICT, "another rubric", "the rubric in force", "result"),
    "a cleared rubric ends the run at a draft": (DRAFTS, "a cleared rubric"),
    "a cleared rubric ends the run at a grading": (GRADES, "a cleared rubric"),
    "a malformed rubric changes nothing while a draft is written": (DRAFTS, "a malformed rubric"),
    "a malformed rubric changes nothing while a draft is graded": (GRADES, "a malformed rubric"),
    "a person's interrupt counts beside another rubric": (GRADES, "another rubric", "interrupt"),
    "an interrupt does nothing where the run ends with it": (LAST_VERDICT, "interrupt", "result"),
    "an interrupt keeps the verdict that comes with it": (VERDICT, "interrupt", "result"),
    "an interrupt keeps the draft that comes with it": (DRAFTS, "interrupt", "result"),
    "an interrupt does nothing to an idle thread": (IDLE, "interrupt"),
    "a cancel keeps the draft that comes with it": (DRAFTS, "result", "cancel"),
    "a cancel keeps the verdict that comes with it": (LAST_VERDICT, "result", "cancel"),
    "a rubric that is pending as a draft is cancelled judges that draft": (LATER, "another rubric", "cancel"),
    "new messages for an interrupted grading ask for another draft": (STOPPED, "invoke"),
    "two who resume at once go on with one run": (STOPPED, "resume", "resume"),
    "two who resume a draft at once go on with one draft": ("interrupted at generate 1", "resume", "resume"),
    "who resumes or asks as the interrupt comes is served after it": ("generate 1", "interrupt", "resume", "invoke"),
    "a second interrupt does nothing": (STOPPED, "interrupt"),
    "nothing is resumed where nothing is interrupted": (GRADES, "resume"),
    "who waits for a person can be interrupted and resumed": ("waiting for a decision", "interrupt"),
    "a new rubric takes over from one that waits for a person": ("waiting for a decision", "another rubric"),
    "an override that comes with the next verdict ends the run": (LAST_VERDICT, "override", "result"),
    "an interrupted thread can be closed": (STOPPED, "close"),
    "a thread that is closed in a turn ends with it": (GRADES, "close"),
    "a turn with the rubric in force has a draft of its own": (IDLE, "the rubric in force", "invoke"),
    "a turn with another rubric has a draft of its own": (IDLE, "another rubric", "invoke"),
    "an interrupted turn goes on under the rubric of a turn without messages": (
        "a later turn interrupted at generate 6", "invoke, no messages, another rubric",
    ),
    "a later turn has a draft of its own where an override ends its run as it is graded": (
        "a later turn: grade first 0 of 8 at 0.1 step 0", "override",
    ),
    "so it has where a tool call waits for approval": ("a later turn waiting for the approval of look", "override"),
    "so it has where it was interrupted in its draft": ("a later turn interrupted at generate 6", "override"),
    "so it has where it was interrupted in its grading": ("a later turn interrupted at search-8-0-0", "override"),
}  # fmt: skip
"""What a thread does, the place, and what comes at it."""


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Have nobody log the refusals that are meant."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def test_what_the_documents_say_of_two_things_at_once_is_so() -> None:
    places = {place.name: place for place in PLACES}

    found = {name: difference(places[where], *kinds) for name, (where, *kinds) in NAMED.items()}

    assert {name: why for name, why in found.items() if why} == {}
