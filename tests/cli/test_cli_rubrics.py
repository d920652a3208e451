"""The commands about rubrics, and people's words, as they are typed."""

import json
from pathlib import Path

import pytest

from tests.rig.cli import CommandLine

TASK = """
prompt: Write a haiku
vars: {lines: 3}
rubric:
  criteria:
    - "It has {{ lines }} lines"
    - {id: kind, description: It is kind, human: true}
    - {description: Tone, score: {min: 1, max: 5}, votes: 3}
generator: {model: "scripted:writer"}
grader: {model: "scripted:judge"}
scripted: replies.yaml
"""


def reply(group: int, sample: int = 0, gap: str = "", **score: int) -> dict[str, object]:
    """Return a grader's verdict on the criterion of a group."""
    said = {"k1": {"reason": "r", "passed": not gap, "gap": gap, **score}, "unjudgeable": ""}
    return {"role": "grader", "group": group, "sample": sample, "verdict": said}


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command in a folder with a task that a person decides."""
    replies = [
        {"role": "generator", "text": "one"},
        reply(0),
        reply(1, 0, score=4),
        reply(1, 1, "flat", score=2),
        reply(1, 2, score=5),
    ]
    (commands.folder / "task.yaml").write_text(TASK)
    (commands.folder / "replies.yaml").write_text(json.dumps({"replies": replies}))
    return commands


def written(gradeloop: CommandLine, name: str, text: str) -> str:
    """Write a file beside the task and return its name."""
    (Path(gradeloop.folder) / name).write_text(text)
    return name


def test_a_rubric_is_told_as_it_is_understood(gradeloop: CommandLine) -> None:
    text = "threshold: 0.5\ncriteria:\n- a\n- {id: b, description: 'b', negate: true, votes: 3}\n- {group: Style, criteria: [c, d]}\n"
    done = gradeloop("rubric", "check", written(gradeloop, "rubric.yaml", text))

    assert (done.code, done.out.splitlines()) == (
        0,
        [
            "Rubric: 4 criteria",
            "  c1  a",
            "  b   b  (must not hold)  (3 votes)",
            "  c3  c  (in Style)",
            "  c4  d  (in Style)",
            "Satisfied by: every required criterion and group and a score of 0.5",
            "  Style: passes by its required criteria, weight 1",
            "Grading pass: 4 grader calls",
        ],
    )
    assert json.loads(gradeloop("rubric", "check", "rubric.yaml", "--json").out)["groups"] == [{"group": "Style", "required": True}]


def test_doubtful_criteria_are_named_with_a_better_wording(gradeloop: CommandLine) -> None:
    done = gradeloop("rubric", "check", written(gradeloop, "doubtful.yaml", "criteria:\n  - It names Paris and cites a source\n"))

    assert done.code == 0
    assert done.err.startswith("c1: compound: it makes several claims")
    assert "better: It names Paris / It cites a source" in done.err


def test_a_mistake_in_a_rubric_ends_with_2_and_its_place(gradeloop: CommandLine) -> None:
    done = gradeloop("rubric", "check", written(gradeloop, "bad.yaml", "criteria:\n  - fine\n  - Tone: professional\n"))

    assert (done.code, done.out) == (2, "")
    why = "criteria[1]: YAML reads 'Tone: professional' as a mapping; put the criterion in quotes"
    assert done.err.strip() == f"gradeloop: the rubric 'bad.yaml', line 3, column 5: {why}"


def test_a_converted_rubric_can_be_checked(gradeloop: CommandLine) -> None:
    config = "tests:\n- vars: {product: pumps}\n  assert:\n  - {type: llm-rubric, value: 'Names {{ product }}'}\n"
    done = gradeloop("rubric", "convert", written(gradeloop, "config.yaml", config))
    checked = gradeloop("rubric", "check", written(gradeloop, "ours.yaml", done.out))
    refused = gradeloop("rubric", "convert", written(gradeloop, "other.yaml", "assert: [{type: webhook, value: 'https://x.y'}]"))

    assert (done.code, checked.code, refused.code) == (0, 0, 2)
    assert "  c1  Names pumps  (scored 0 to 1)" in checked.out
    assert "assert[0]: the type 'webhook' is not supported" in refused.err


def test_a_run_waits_for_a_person_and_goes_on_with_what_they_say(gradeloop: CommandLine) -> None:
    waiting = gradeloop("run", "task.yaml", "--thread", "haiku")
    without_gap = gradeloop("decide", "haiku", "kind", "--fail")
    decided = gradeloop("decide", "haiku", "kind", "--pass", "--by", "ann")
    watched = gradeloop("watch", "haiku")
    late = gradeloop("decide", "haiku", "kind", "--pass")

    assert (waiting.code, without_gap.code, decided.code, watched.code, late.code) == (3, 2, 0, 0, 2)
    assert "  c1    It has 3 lines" in waiting.out
    assert waiting.out.rstrip().endswith("gradeloop decide haiku kind --pass   or --fail; does this hold? It is kind")
    assert "gap is missing; say what the author has to mend" in without_gap.err
    assert "decided by a person: kind" in watched.out
    assert "✓ c3    Tone  (score 4)  (2 of 3 votes)" in watched.out
    assert "nothing waits for a person in this thread" in late.err


def test_a_verdict_is_overridden_and_its_prompt_shown(gradeloop: CommandLine) -> None:
    gradeloop("run", "task.yaml", "--thread", "second")
    gradeloop("decide", "second", "kind", "--pass")
    gradeloop("watch", "second")
    done = gradeloop("override", "second", "c3", "--fail", "--why", "it is flat", "--by", "ann")
    shown = gradeloop("show", "second")
    prompt = gradeloop("prompt", "second", "--group", "2")
    as_json = json.loads(gradeloop("prompt", "second", "--json").out)
    nothing = gradeloop("prompt", "second", "--evaluation", "7")

    assert done.out == "iteration 1: satisfied, with overrides needs_revision\n"
    assert "with overrides: needs_revision" in shown.out
    assert prompt.out.startswith("call group of c3, one of 2; prompt version")
    assert (as_json["criteria"], as_json["groups"]) == (["c1"], 2)
    assert (nothing.code, "this evaluation has no grader call" in nothing.err) == (2, True)


BOOKING = '''
def book(amount: int) -> str:
    """Book an amount."""
    return f"booked {amount}"


book.needs_approval = True
'''


def booking(folder: Path, name: str, *calls: int) -> str:
    """Write a task whose grader wants to book, and return its file."""
    wanted = [{"name": "book", "arguments": {"amount": amount}} for amount in calls]
    replies = [
        {"role": "generator", "text": "a draft"},
        {"role": "grader", "tool_calls": wanted},
        reply(0) | {"step": 1},
    ]
    (folder / "book.py").write_text(BOOKING)
    (folder / f"{name}-replies.yaml").write_text(json.dumps({"replies": replies}))
    task: dict[str, object] = {"prompt": "p", "rubric": "- short", "thread": name, "tools": "book.py", "scripted": f"{name}-replies.yaml"}
    task |= {"generator": {"model": "scripted:a"}, "grader": {"model": "scripted:b", "tools": ["book"]}}
    (folder / f"{name}.yaml").write_text(json.dumps(task))
    return f"{name}.yaml"


def test_a_tool_call_waits_and_a_person_lets_it_go_on_or_not(gradeloop: CommandLine) -> None:
    waiting = gradeloop("run", booking(gradeloop.folder, "one", 5))
    state = gradeloop("show", "one")
    approved = gradeloop("approve", "one", "--by", "ann")
    watched = gradeloop("watch", "one")
    late = gradeloop("approve", "one")
    both = gradeloop("run", booking(gradeloop.folder, "two", 5, 7))
    unclear = gradeloop("deny", "two", "--why", "no")
    calls = [line.split()[3] for line in both.out.splitlines() if line.startswith("gradeloop approve two ")]
    denied = [gradeloop("deny", "two", call, "--why", "no") for call in calls]

    assert (waiting.code, approved.code, watched.code, late.code, both.code, unclear.code) == (3, 0, 0, 2, 3, 2)
    assert 'the grader asks to call book {"amount": 5}\ngradeloop approve one   or deny, with --why' in waiting.out
    assert "gradeloop approve one   or deny, with --why" in state.out
    assert "approved by a person: book" in watched.out
    assert "satisfied after 1 iteration" in watched.out
    assert "no call waits for a person in this thread" in late.err
    assert "2 calls wait; name one: " in unclear.err
    assert [command.code for command in denied] == [0, 0]
    assert "denied by a person: book" in gradeloop("watch", "two").out
