"""The fixed story that every race disturbs: its rubrics, who takes part in it, and the texts by which every message is recognised."""

from typing import Any, Final, Literal, NamedTuple, get_args

from gradeloop.contract.messages import FEEDBACK_SOURCE, Message

Rubric = Literal["first", "other", "cleared"]
"""The name of a rubric; a cleared one has no criteria, and nothing is graded by it."""

RUBRICS: tuple[Rubric, ...] = get_args(Rubric)

Given = Rubric | Literal["{{ name }}"]
"""A rubric as it is sent: with its name in it, or with the variable that is to have a name when the turn begins."""

TO_FILL: Final = "{{ name }}"

Tool = Literal["look", "count", "search"]
"""The generator's tool, the check's and the grader's."""

MAX_ITERATIONS = 3

PASSES_FROM = 1
"""The iteration from which on the grader passes a draft."""


class Story(NamedTuple):
    """What is particular to one thread."""

    name: str
    groups: int = 1
    """How many graders judge a draft at once."""
    person: bool = False
    """Whether a person has the last word on a draft."""
    approved: frozenset[Tool] = frozenset()
    """The tools whose calls a person has to approve."""


def rubric(name: Given, story: Story) -> dict[str, Any]:
    """Return a rubric as a service writes it: a check, a criterion for each grader, and perhaps one for a person."""
    if name == "cleared":
        return {"criteria": []}
    judged = [{"id": f"c{number}", "description": f"good by {name}, {number}"} for number in range(story.groups)]
    person = [{"id": "person", "description": f"liked by {name}", "human": True}] if story.person else []
    check = {"id": "count", "description": f"short by {name}", "check": {"tool": "count"}}
    return {"mode": "per_criterion", "criteria": [check, *judged, *person]}


def request(story: Story) -> dict[str, Any]:
    """Return the request that starts the thread, without a turn."""
    return {
        "messages": [],
        "generator": {"model": "scripted:writer", "tools": ["look"]},
        "grader": {"model": "scripted:judge", "tools": ["search"]},
        "rubric": rubric(TO_FILL, story),
        "vars": {"name": "first"},
        "max_iterations": MAX_ITERATIONS,
        "idle_timeout": 3600,
    }


def draft_text(index: int) -> str:
    """Return the draft that is written as message `index`."""
    return f"draft {index}"


def look_id(index: int) -> str:
    """Return the id of the tool call that the generator makes in message `index`."""
    return f"look-{index}"


def search_id(draft: int, run: int, group: int) -> str:
    """Return the id of the tool call that a grader makes."""
    return f"search-{draft}-{run}-{group}"


def found(call: str) -> str:
    """Return what a tool answers."""
    return f"found by {call}"


class Line(NamedTuple):
    """A message as the model and the schedule compare it."""

    role: str
    text: str


def line_of(message: Message) -> Line:
    """Return a message of the thread in the model's words: the call of a tool by its id, feedback by its rubric."""
    if message.tool_calls:
        return Line(message.role, f"calls {message.tool_calls[0].id}")
    if message.source == FEEDBACK_SOURCE:
        names = [name for name in ("first", "other") if f"by {name}" in message.content]
        return Line("feedback", " and ".join(names))
    return Line(message.role, message.content)
