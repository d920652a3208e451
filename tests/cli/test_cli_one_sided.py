"""A judge that says one thing to everything: terminal and page suggest to measure it, and of any other judge they say nothing."""

import json
from typing import Any

import pytest

from gradeloop.batches.answer import LEAST_ALIKE, hint_of_verdicts, is_small
from gradeloop.stats.correction import JudgeError
from tests.rig.batches import fails, passes
from tests.rig.cli import CommandLine, Done

CURE = "measure whether the judge can tell cases apart: gradeloop check-judge JUDGE DATASET"


ALIKE = [True] * LEAST_ALIKE


@pytest.mark.parametrize(
    ("verdicts", "model", "error", "names"),
    [
        ({"c1": ALIKE}, "ollama:qwen3", None, "c1"),
        ({"c1": [False] * LEAST_ALIKE}, "openai:gpt-oss-1.5b", None, "c1"),
        ({"c1": ALIKE, "c2": [*ALIKE, False]}, "scripted:smollm2-135m", None, "c1"),
        ({f"c{at}": ALIKE for at in range(5)}, "llamacpp:x", None, "c0, c1, c2 and 2 more"),
        ({"c1": ALIKE[1:]}, "ollama:qwen3", None, ""),
        ({"c1": [*ALIKE, False]}, "ollama:qwen3", None, ""),
        ({"c1": ALIKE}, "openai:gpt-6-luna", None, ""),
        ({"c1": ALIKE}, None, None, ""),
        ({"c1": [True, True]}, "openai:gpt-6-luna", (3, 3, 2, 0), "c1"),
        ({"c1": [True, True], "c2": [True, False]}, "openai:gpt-6-luna", (3, 3, 2, 0), ""),
        ({"c1": [True, True]}, "openai:gpt-6-luna", (5, 5, 0, 0), ""),
        ({}, None, (3, 3, 2, 0), ""),
    ],
)
def test_what_makes_a_judge_suspicious(
    verdicts: dict[str, list[bool]], model: str | None, error: tuple[int, int, int, int] | None, names: str
) -> None:
    keys = ("passed", "passed_found", "failed", "failed_found")
    judged = [([(name, passed)], model) for name, given in verdicts.items() for passed in given]
    hint = hint_of_verdicts(judged, JudgeError(**dict(zip(keys, error, strict=True))) if error else None)

    assert hint.endswith(CURE) if names else hint == ""
    assert hint.startswith(f"{names}: all verdicts are the same, " if names else "")


def test_a_model_is_small_by_its_name_or_its_server() -> None:
    small = ["ollama:x", "vllm:meta/Llama-70B", "openai_compatible:x", "groq:llama-3.1-8b-instant", "together:Qwen/Qwen3-0.6B"]
    large = ["openai:gpt-6-luna", "groq:llama-3.3-70b", "anthropic:claude-haiku-4-5", "together:mixtral-8x22b", "scripted:judge"]

    assert [name for name in small if not is_small(name)] == []
    assert [name for name in large if is_small(name)] == []


def evaluated(gradeloop: CommandLine, replies: list[dict[str, Any]], count: int, *flags: str, grader: str = "scripted:judge-1b") -> Done:
    """Run a suite of so many outputs, of which every third is bad."""
    (gradeloop.folder / "replies.yaml").write_text(json.dumps({"replies": replies}))
    tests = [{"id": f"case-{at}", "output": f"{'bad' if at % 3 == 0 else 'good'} {at}"} for at in range(count)]
    fields = {"name": "alike", "grader": grader, "scripted": "replies.yaml", "rubric": "- it is good", "tests": tests, "cache": False}
    (gradeloop.folder / "alike.yaml").write_text(json.dumps(fields))
    return gradeloop("eval", "alike.yaml", *flags)


@pytest.mark.slow
def test_the_terminal_and_the_page_of_a_batch_suggest_to_measure_a_small_judge_that_always_passes(gradeloop: CommandLine) -> None:
    alike = evaluated(gradeloop, [passes()], LEAST_ALIKE, "-o", "alike.html")
    differs = evaluated(gradeloop, [passes(), fails("bad")], LEAST_ALIKE, "-o", "differs.html")
    pages = [(gradeloop.folder / f"{name}.html").read_text() for name in ("alike", "differs")]

    said = f"c1: all verdicts are the same, and scripted:judge-1b is small or local; {CURE}"
    assert said in alike.out.replace("\n", " ")
    assert [said in page for page in pages] == [True, False]
    assert CURE not in differs.out


def test_labels_that_differ_make_a_large_judge_suspicious_too(gradeloop: CommandLine) -> None:
    labels = [
        {"agent_run_id": f"case-{at}", "label_value": {"status": status}, "output": f"{word} {at}"}
        for at, (word, status) in enumerate([("bad", "failed"), ("good", "passed")])
    ]
    (gradeloop.folder / "labels.jsonl").write_text("\n".join(map(json.dumps, labels)))
    done = evaluated(gradeloop, [passes()], 6, "--labels", "labels.jsonl", "-o", "labelled.html", grader="scripted:judge")

    said = f"c1: all verdicts are the same, although people's labels differ; {CURE}"
    assert said in done.out.replace("\n", " "), done.err
    assert said.replace("'", "&#39;") in (gradeloop.folder / "labelled.html").read_text()


@pytest.mark.slow
def test_a_judge_of_finished_runs_is_suspicious_in_the_same_way(gradeloop: CommandLine) -> None:
    runs = [
        {"id": f"r{at}", "messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": f"good {at}"}]}
        for at in range(LEAST_ALIKE)
    ]
    (gradeloop.folder / "runs.jsonl").write_text("\n".join(map(json.dumps, runs)))
    (gradeloop.folder / "replies.yaml").write_text(json.dumps({"replies": [passes()]}))
    (gradeloop.folder / "judge.yaml").write_text(json.dumps({"rubric": "- it is good", "grader": {"model": "scripted:judge-1b"}}))
    done = gradeloop("judge", "judge.yaml", "runs.jsonl", "--scripted", "replies.yaml")

    assert done.code == 0, done.err
    assert f"c1: all verdicts are the same, and scripted:judge-1b is small or local; {CURE}" in done.out.replace("\n", " ")
