"""No command ends with a traceback, and 1, which means a gate, is never an internal error."""

import json
import re
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, NoReturn

import pytest
from pydantic import TypeAdapter
from typer.core import TyperCommand

import worker
from gradeloop.cli.commands import command_groups
from gradeloop.exit_codes import CODES, INTERNAL
from tests.rig.cli import CommandLine
from tests.rig.judging import FRANCE


def invalid() -> object:
    return TypeAdapter(dict[str, int]).validate_python({str(at): "no number" for at in range(200)})


def _ended_by(fail: Callable[[], object], *_: object) -> object:
    return fail()


ERRORS: dict[str, Callable[[], object]] = {
    "a missing key": lambda: dict[str, str]()["judge"],
    "another type": lambda: len(5),  # type: ignore[arg-type]  # as a bug would
    "a failed assertion": lambda: (_ for _ in ()).throw(AssertionError),
    "a model of pydantic's": invalid,
    "several at once": lambda: (_ for _ in ()).throw(ExceptionGroup("of tasks", [ValueError("x")])),
    "a recursion": lambda: json.loads("[" * 100_000),
}
NAMES = [name for rows in command_groups().values() for name in rows]


def test_what_nobody_foresaw_ends_with_a_code_of_its_own_and_a_sentence(
    gradeloop: CommandLine, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for name, fail in ERRORS.items():
        with subtests.test(name):
            monkeypatch.setattr(TyperCommand, "invoke", partial(_ended_by, fail))

            done = gradeloop("list")
            shown = gradeloop("list", GRADELOOP_TRACEBACK="1")

            assert (done.code, shown.code, done.out) == (INTERNAL, INTERNAL, "")
            assert re.fullmatch(r"gradeloop: internal error: \w+:.*; the fault is in gradeloop; please report it, .*\n", done.err)
            assert len(done.err) < 1_000
            assert "Traceback (most recent call last)" in shown.err
            assert shown.err.endswith(done.err)


def test_every_command_ends_so(gradeloop: CommandLine, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    for command in [name for name in NAMES if name not in {"worker", "dev", "doctor"}]:
        with subtests.test(command):

            def fail(*_: object) -> NoReturn:
                raise RuntimeError("a-secret-of-this-house is no key")  # a message may quote a secret

            monkeypatch.setattr(TyperCommand, "invoke", fail)
            monkeypatch.setenv("ANTHROPIC_API_KEY", "a-secret-of-this-house")

            done = gradeloop(command, GRADELOOP_TRACEBACK="1")

            if done.code != 2:  # a command of commands, which prints those
                assert done.code == INTERNAL
                assert "a-secret-of-this-house" not in done.err


def test_a_worker_ends_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> NoReturn:
        raise KeyError("queue")

    monkeypatch.setattr(worker, "serve", fail)

    assert worker.main([]) == INTERNAL


def test_every_table_of_codes_has_it_and_none_calls_1_an_error() -> None:
    assert all(INTERNAL in codes for codes in CODES.values())
    assert not [codes[1] for codes in CODES.values() if "error" in codes.get(1, "")]


SCHEMA = {"type": "object", "properties": {"label": {"type": "string", "enum": ["pass", "fail"]}}, "required": ["label"]}
JUDGES: dict[str, dict[str, Any]] = {
    "pass_if": {"pass_if": {"label": "pass"}},
    "abstain": {"n_rollouts_per_input": 5, "abstain": {"label": 0.8}},
    "abstain and pass_if": {"n_rollouts_per_input": 5, "abstain": {"label": 0.8}, "pass_if": {"label": "pass"}},
    "escalate": {"n_rollouts_per_input": 3, "abstain": {"label": 0.8}, "escalate": "scripted:escalation"},
    "a panel": {"judge_model": None, "panel": ["scripted:a", "scripted:b"], "abstain": {"label": 0.8}, "quorum": 2},
    "reflections": {"n_rollouts_per_input": 2, "judge_variant": "multi-reflect"},
    "criteria": {},
    "criteria that abstain": {"abstain": {"criteria.kind": 0.8}},
}
SETS: dict[str, dict[str, Any]] = {
    "pairs": {"prompt": "Which?", "a": "x", "b": "y", "label": "A"},
    "RewardBench": {"prompt": "Which?", "chosen": "x", "rejected": "y", "subset": "s"},
    "criteria": {"prompt": "Which?", "output": "x", "label": True, "criterion": "It is kind."},
    "HealthBench": {"prompt": "Which?", "completion": "x", "rubric": "It is kind.", "binary_labels": [True]},
    "scores": {"prompt": "Which?", "output": "x", "label": 4.5},
    "verdicts": {"prompt": "Which?", "output": "x", "label": True},
    "a blank criterion": {"prompt": "Which?", "completion": "x", "rubric": " ", "binary_labels": [True]},
}


def test_a_labelled_set_of_any_form_is_asked_about_or_refused_whatever_the_judge_says_of_keys_of_its_own(
    gradeloop: CommandLine, subtests: pytest.Subtests
) -> None:
    by_criteria = {"rubric": {"criteria": [{"id": "kind", "description": "is kind", "votes": 3}]}, "grader": {"model": "scripted:judge"}}
    (gradeloop.folder / "no.replies.yaml").write_text('{"replies": []}')
    for judge, rows in product(JUDGES, SETS):
        config = (by_criteria if "criteria" in judge else FRANCE | {"output_schema": SCHEMA}) | JUDGES[judge]
        (gradeloop.folder / "of_a_set.yaml").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
        (gradeloop.folder / "of_a_judge.jsonl").write_text(json.dumps(SETS[rows]))
        nothing_says = rows == "verdicts" and judge in {"abstain", "escalate", "a panel", "reflections"}
        refused = nothing_says or (rows == "a blank criterion" and "criteria" in judge)
        with subtests.test(judge=judge, rows=rows):
            done = gradeloop("check-judge", "of_a_set.yaml", "of_a_judge.jsonl", "--scripted", "no.replies.yaml", "--preview", "--json")

            assert done.code == (2 if refused else 0), done.err
            assert "internal error" not in done.err
            if refused:
                assert ("add pass_if: {label: VALUE}" if nothing_says else "the item '1/") in done.err


def test_a_judge_that_abstains_is_measured_on_pairs(gradeloop: CommandLine) -> None:
    """With a store, and by a workflow of each judgement, which validates the judge anew."""
    (gradeloop.folder / "abstains.yaml").write_text(json.dumps(FRANCE | {"output_schema": SCHEMA} | JUDGES["abstain and pass_if"]))
    (gradeloop.folder / "pair.jsonl").write_text(json.dumps(SETS["RewardBench"]))
    said = [{"role": "grader", "sample": at, "text": '<response>{"winner": "A", "explanation": "x"}</response>'} for at in range(5)]
    (gradeloop.folder / "winner.replies.yaml").write_text(json.dumps({"replies": said}))
    command = ("check-judge", "abstains.yaml", "pair.jsonl", "--scripted", "winner.replies.yaml", "--json")

    for done in (gradeloop(*command), gradeloop(*command, "--no-store")):
        assert done.code == 0, done.err
        assert done.result["figures"]["coverage"]["value"] == 1.0
        assert done.result["figures"]["first_position"]["value"] == 1.0
