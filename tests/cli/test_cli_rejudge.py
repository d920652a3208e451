"""A judge exchanged: what an older version judged is found, its calls are counted first, it is judged again, and stale verdicts say so."""

import json
from typing import Any

import pytest

from tests.rig.cli import CommandLine
from tests.rig.judging import FRANCE, MATCH, PARIS, answers


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command with two versions of a judge, the first of which has judged two of three runs."""

    def write(name: str, value: object) -> None:
        (commands.folder / name).write_text(value if isinstance(value, str) else json.dumps(value))

    def lines(*names: str) -> str:
        return "\n".join(
            json.dumps({"id": name, "messages": PARIS["transcripts"][0]["messages"]} | {"metadata": {"of": name}}) for name in names
        )

    write("old.json", FRANCE | {"id": "capital"})
    write("new.json", FRANCE | {"id": "capital", "rubric_text": "Edited: " + FRANCE["rubric_text"]})
    write("replies.yaml", {"replies": [answers(MATCH)]})
    write("some.jsonl", lines("a", "b"))
    write("all.jsonl", lines("a", "b", "c"))
    assert commands("registry", "create", "geo", "old.json").code == 0
    assert commands("registry", "add", "geo", "capital", "new.json").code == 0
    judged = commands("judge", "geo/capital@1", "some.jsonl", "--scripted", "replies.yaml", "-o", "judged.jsonl")
    assert judged.code == 0, judged.err
    return commands


SCRIPTED = ("--scripted", "replies.yaml")
AGAIN = ("judge", "geo/capital@2", "--again", "--only-judge", "capital@1", *SCRIPTED)


def test_a_judge_is_exchanged_after_a_look_at_the_price(gradeloop: CommandLine) -> None:
    before = gradeloop(*AGAIN, "--preview", "--json")
    words = gradeloop(*AGAIN, "--preview")
    some = gradeloop(*AGAIN, "all.jsonl", "--preview", "--json")
    done = gradeloop(*AGAIN, "--json")
    after = gradeloop(*AGAIN, "--preview", "--json")

    assert before.code == 0, before.err
    counts: list[Any] = [(found["judgements"], found["judged"], found["calls"]) for found in (*before.lines, *some.lines, *after.lines)]
    assert counts[0] == counts[1] == (2, 0, counts[0][2])
    assert counts[0][2] in {1, 2}
    assert counts[2] == (2, 2, 0)
    assert "2 judgements" in words.out
    assert "to make; nothing to pay" in words.out
    assert sorted((line["agent_run_id"], line["rubric_version"]) for line in done.lines) == [("a", 2), ("b", 2)]


def test_stale_verdicts_are_marked_on_every_page(gradeloop: CommandLine) -> None:
    def page(*arguments: str) -> str:
        done = gradeloop("report", *arguments, "-o", "page.html")
        assert done.code == 0, done.err
        return (gradeloop.folder / "page.html").read_text()

    cure = "judge again with gradeloop judge geo/capital --again --only-judge capital@1"
    stale = f"stale: judged by version 1 of capital, whose newest is 2; {cure}"
    assert stale in page("geo/capital@1")
    assert stale in page("judged.jsonl")
    assert gradeloop(*AGAIN).code == 0
    assert "stale" not in page("geo/capital@2")


MISTAKES = [
    (("judge", "geo/capital", "--again", "all.jsonl"), "--again and --only-judge go together"),
    (("judge", "geo/capital", "--only-judge", "capital@1"), "--again and --only-judge go together"),
    (("judge", "geo/capital"), "no run is named"),
    (("judge", "geo/capital", "--again", "--only-judge", "capital@1", "--no-store"), "leave --no-store out"),
    (("judge", "geo/capital", "--again", "--only-judge", "capital@7", *SCRIPTED), "has no version 7"),
    (("judge", "geo/capital", "--again", "--only-judge", "capital@1", "other.jsonl", *SCRIPTED), "has judged none of these 1 run"),
]


def test_a_mistake_ends_with_2_and_its_cure(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for arguments, message in MISTAKES:
        with subtests.test(message):
            (gradeloop.folder / "other.jsonl").write_text(json.dumps({"id": "z", "messages": [{"role": "assistant", "content": "x"}]}))

            done = gradeloop(*arguments)

            assert done.code == 2, done.out + done.err
            assert message in done.err
