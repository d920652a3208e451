"""`gradeloop check-judge`: a labelled set is read, asked about, and measured."""

import json

import pytest

from tests.rig.cli import CommandLine
from tests.rig.judging import FRANCE, answers, fails

RULED = FRANCE | {"pass_if": {"label": "match"}}


def test_the_command_measures_writes_a_page_and_fails_under_a_bound(gradeloop: CommandLine) -> None:
    said_so = (("Paris.", True), ("Lyon.", False), ("It is Paris.", True))
    rows = [{"prompt": "Capital of France?", "output": text, "label": label} for text, label in said_so]
    (gradeloop.folder / "capitals.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (gradeloop.folder / "checked.yaml").write_text(json.dumps(RULED | {"rubric_text": "Checked by a set."}))
    (gradeloop.folder / "checked.replies.yaml").write_text(json.dumps({"replies": [answers({"label": "match", "explanation": "yes"})]}))
    command = ("check-judge", "checked.yaml", "capitals.jsonl", "--scripted", "checked.replies.yaml")

    done = gradeloop(*command, "-o", "checked.html", "--fail-under", "accuracy=0.5", "--at", "point")
    bound = gradeloop(*command, "--fail-under", "accuracy=0.5")
    strict = gradeloop(*command, "--fail-under", "kappa=0.6", "--at", "point", "--json")
    unknown = gradeloop(*command, "--fail-under", "kappa=0.6")
    wrong = gradeloop(*command, "--fail-under", "kapa=0.6")

    assert done.code == 0, done.err
    assert "capitals.jsonl: read as labelled rows, because its columns are named prompt, output, label; 3 items, 3 judgements" in done.err
    assert "accuracy, of all 66.7%" in " ".join(done.out.split())
    assert "Lyon." in (gradeloop.folder / "checked.html").read_text()
    assert bound.code == 1
    assert "accuracy, of what is answered is 66.7% (20.8% to 93.9%), and --fail-under wants 0.5; --at point compares" in bound.err
    assert strict.code == 1, strict.err
    assert unknown.code == 3
    assert "Cohen's kappa has no interval on so few items, and --fail-under cannot decide" in unknown.err
    assert strict.result["figures"]["tnr"]["value"] == 0.0
    assert wrong.code == 2
    assert "Did you mean 'kappa'" in wrong.err


def test_probes_are_asked_beside_the_set_and_a_wrong_name_is_refused(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "pairs.csv").write_text("question,a,b,winner\nCapital?,Paris,Lyon,A\n")
    (gradeloop.folder / "pairwise.yaml").write_text(json.dumps(FRANCE | {"rubric_text": "Pairs of a set."}))
    first = answers({"winner": "A", "explanation": "first"})
    (gradeloop.folder / "pairwise.replies.yaml").write_text(json.dumps({"replies": [first]}))
    command = ("check-judge", "pairwise.yaml", "pairs.csv", "--scripted", "pairwise.replies.yaml")

    done = gradeloop(*command, "--probe", "verbosity", "--probe", "order")
    wrong = gradeloop(*command, "--probe", "verbose")

    assert done.code == 0, done.err
    assert "1 item, 6 judgements" in done.err
    assert "probe order: 100.0% of verdicts change" in done.out
    assert "probe verbosity: 0.0% of verdicts change" in done.out
    assert "p = 1.000 against repetition" in " ".join(done.out.split())
    assert wrong.code == 2
    assert "--probe 'verbose' is not a probe. Did you mean 'verbosity'" in wrong.err


@pytest.mark.slow
def test_what_was_asked_is_cached_a_preview_counts_the_rest_and_what_was_not_made_is_said(gradeloop: CommandLine) -> None:
    rows = [{"prompt": "Capital of France?", "output": f"Paris, {at} times.", "label": at % 2 == 0} for at in range(4)]
    (gradeloop.folder / "counted.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (gradeloop.folder / "counting.yaml").write_text(json.dumps(RULED | {"rubric_text": "Counted by a set."}))
    said = answers({"label": "match", "explanation": "yes"})
    (gradeloop.folder / "counting.replies.yaml").write_text(json.dumps({"replies": [said]}))
    command = ("check-judge", "counting.yaml", "counted.jsonl", "--scripted", "counting.replies.yaml", "--json")

    first = gradeloop(*command, "--limit", "1")
    preview = gradeloop(*command, "--preview", "--probe", "repetition")
    (gradeloop.folder / "counting.replies.yaml").write_text(json.dumps({"replies": [fails()]}))
    away = gradeloop(*command, "--budget-usd", "1")
    (gradeloop.folder / "counting.replies.yaml").write_text(json.dumps({"replies": [said]}))
    whole = gradeloop(*command, "--probe", "repetition")

    assert first.result["usage"]["calls"] == 1
    assert (preview.result["judgements"], preview.result["cached"], preview.result["calls"]) == (8, 1, 7)
    assert (away.code, away.result["not_made"]) == (3, 3)
    assert away.result["figures"]["coverage"]["value"] == 0.25
    assert whole.result["usage"]["calls"] == 7
    assert whole.result["probes"][0]["changed"]["value"] == 0


def test_answers_of_ties_are_rated_and_their_figure_can_be_bound(gradeloop: CommandLine) -> None:
    row = {"subset": "Ties", "prompt": "Name a primary colour of light.", "rejected": ["salt", "oak"]}
    rows = [row | {"id": "ref:1", "chosen": ["red"]}, row | {"id": "tied:1", "chosen": ["green", "blue"]}]
    (gradeloop.folder / "ties.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (gradeloop.folder / "rating.yaml").write_text(json.dumps(FRANCE | {"rubric_text": "Rated by a set."}))
    (gradeloop.folder / "rating.replies.yaml").write_text(json.dumps({"replies": [answers({"score": 7, "explanation": "so"})]}))

    done = gradeloop(
        *("check-judge", "rating.yaml", "ties.jsonl", "--scripted", "rating.replies.yaml"), "-o", "ties.html", "--fail-under", "ties=0.5"
    )

    assert "read as RewardBench 2" in done.err
    assert "7 items, 7 judgements; scores from 1 to 10" in done.err
    assert done.code == 1, done.err
    assert "Ties, by ratings 0.0%" in " ".join(done.out.split())
    assert "Ties, by ratings is 0.0% (0.0% to 79.3%), and --fail-under wants 0.5" in done.err
    assert "Ties, by ratings" in (gradeloop.folder / "ties.html").read_text()
