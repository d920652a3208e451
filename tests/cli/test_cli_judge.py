"""The commands about judges, as their users run them: judged, read again, registered, held against labels; every mistake in a sentence."""

import asyncio
import csv
import json
import os
import signal
import sqlite3
from contextlib import closing
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any
from uuid import uuid4
from xml.etree.ElementTree import fromstring

import pytest

from gradeloop.store.engine import STORE_FILE
from tests.rig.cli import SECONDS, CommandLine, line_of
from tests.rig.judging import FRANCE, MATCH, NO_MATCH, PARIS, answers, fails
from tests.rig.score_servers import score_server
from tests.rig.threads import row, verdict


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command with a judge, runs and replies in its folder."""
    write(commands, "judge.yaml", FRANCE | {"n_rollouts_per_input": 2})
    write(commands, "replies.yaml", {"replies": [answers(MATCH, 0), answers(MATCH, 1)]})
    lines = [json.dumps({"id": name, "messages": PARIS["transcripts"][0]["messages"]}) for name in ("a", "b", "c")]
    (commands.folder / "runs.jsonl").write_text("\n".join(lines))
    return commands


def write(gradeloop: CommandLine, name: str, value: object) -> str:
    """Write a file of JSON, which is YAML too."""
    (gradeloop.folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return name


SCRIPTED = ("--scripted", "replies.yaml")


@pytest.mark.slow
def test_runs_are_judged_and_told_in_a_table(gradeloop: CommandLine) -> None:
    done = gradeloop("judge", "judge.yaml", "runs.jsonl", *SCRIPTED, "--pass", "label=match", "--pass-rate", "1")

    assert done.code == 0, done.err
    assert "run  verdict  label  citations" in done.out
    assert "a    passed   match  1 of 1 found" in done.out
    assert "Results: 3 judged, 3 passed (100%), 0 failures; 0 tokens" in done.out


@pytest.mark.slow
def test_a_run_of_a_thousand_conversations_is_judged_and_its_last_one_cited(gradeloop: CommandLine) -> None:
    said = [
        [{"role": "user", "content": f"q{at}"}, {"role": "assistant", "content": f"Paris is the capital, {at}."}] for at in range(1_000)
    ]
    write(gradeloop, "thousand.json", {"id": "thousand", "transcripts": [{"messages": messages} for messages in said]})
    last = MATCH | {"explanation": "It says so [T999B1:<RANGE>capital, 999</RANGE>]."}
    write(gradeloop, "thousand.replies.yaml", {"replies": [answers(last, 0), answers(last, 1)]})

    done = gradeloop("judge", "judge.yaml", "thousand.json", "--scripted", "thousand.replies.yaml", "--pass", "label=match")

    assert done.code == 0, done.err
    assert "thousand  passed   match  1 of 1 found" in done.out


def test_runs_that_cannot_be_read_are_left_out_and_listed(gradeloop: CommandLine) -> None:
    good = (gradeloop.folder / "runs.jsonl").read_text().split("\n")
    write(gradeloop, "mixed.jsonl", "\n".join([good[0], '{"id": "x", "messages": [{"role": "robot"}]}', good[1]]))

    write(gradeloop, "asked.jsonl", '{"id": "y", "input": "Which capital?", "gold": "Paris"}\n' + good[2])

    done = gradeloop("judge", "judge.yaml", "mixed.jsonl", *SCRIPTED, "--skip-bad", "--max-bad", "0.5", "--json")
    unanswered = gradeloop("judge", "judge.yaml", "asked.jsonl", *SCRIPTED, "--skip-bad", "--json")
    refused = gradeloop("judge", "judge.yaml", "asked.jsonl", *SCRIPTED)
    ended = gradeloop("judge", "judge.yaml", "mixed.jsonl", *SCRIPTED, "--skip-bad", "--max-bad", "0.2")

    reason = "mixed.jsonl, line 2: messages[0].role: the role is 'robot'; known: system, developer, user, assistant, tool, function"
    assert done.code == 0, done.err
    assert sorted(line["agent_run_id"] for line in done.lines) == ["a", "b"]
    assert f"left out: {reason}" in done.err
    assert "left out 1 of 3 runs (33%)" in done.err
    assert (unanswered.code, [line["agent_run_id"] for line in unanswered.lines]) == (3, ["c"])
    assert "left out: asked.jsonl: the run 'y' has no answer: no text and no tool call of an assistant; these keys" in unanswered.err
    assert "left out 1 of 2 runs (50%)" in unanswered.err
    assert (refused.code, "were set aside: gold; write it as the last message" in refused.err) == (2, True)
    assert (ended.code, "nothing is judged: --max-bad allows 20%" in ended.out) == (3, True)
    assert "mixed.jsonl: read as messages (an object with messages: objects with role and content), 3 times" in ended.out


def test_a_file_of_a_folder_or_an_item_of_a_list_that_cannot_be_read_costs_itself_alone(gradeloop: CommandLine) -> None:
    folder, messages = gradeloop.folder / "kept", PARIS["transcripts"][0]["messages"]
    folder.mkdir()
    write(
        gradeloop, "kept/list.json", [{"id": "l1", "messages": messages}, {"id": "l2", "messages": [7]}, {"id": "l3", "messages": messages}]
    )
    write(gradeloop, "kept/torn.json", '{"id": "t", "messages": [')
    write(gradeloop, "kept/notes.cfg", "no run")

    refused = gradeloop("judge", "judge.yaml", "kept", *SCRIPTED)
    done = gradeloop("judge", "judge.yaml", "kept", *SCRIPTED, "--skip-bad")

    assert (refused.code, "kept/list.json, line 1: [1].messages[0]: '7' is not a message" in refused.err) == (2, True)
    assert done.code == 3
    assert "Results: 2 judged" in done.out
    assert "left out: kept/list.json, line 1: [1].messages[0]: '7' is not a message" in done.out
    assert "left out: kept/torn.json, line 1: no JSON" in done.out
    assert "left out 2 of 4 runs (50%)" in done.out


def test_runs_of_any_shape_are_judged_and_shown_by_a_mapping_file(gradeloop: CommandLine) -> None:
    write(gradeloop, "cases.json", {"cases": [{"n": "c1", "q": "Capital?", "out": "Paris \x1b[31m is it.", "why": "It is known. " * 10}]})
    write(gradeloop, "lacking.yaml", "runs: $.cases[*]\nid: $.n\ninput: $.q\nanswer: $.out")
    write(gradeloop, "mapping.yaml", "runs: $.cases[*]\nid: $.n\ninput: $.q\nanswer: $.out\nleave_out: [$.why]")

    refused = gradeloop("judge", "judge.yaml", "cases.json", *SCRIPTED, "--mapping", "lacking.yaml")
    shown = gradeloop("runs", "show", "cases.json", "--mapping", "mapping.yaml")
    as_json = gradeloop("runs", "show", "cases.json", "--mapping", "mapping.yaml", "--json")
    done = gradeloop("judge", "judge.yaml", "cases.json", *SCRIPTED, "--mapping", "mapping.yaml", "--json")
    write(gradeloop, "labels.jsonl", {"agent_run_id": "c1", "label_value": {"label": "match"}})
    of_these = ("--runs", "cases.json", "--mapping", "mapping.yaml")
    agreed = gradeloop("agreement", "judge.yaml", "labels.jsonl", *of_these, "--pass", "label=match", "--json")
    write(gradeloop, "made.jsonl", done.out)
    reported = gradeloop("report", "made.jsonl", *of_these, "-o", "page.html")

    assert (refused.code, "cases.json, line 1: cases[0].why: this text of 130 characters would be shown to no judge" in refused.err) == (
        2,
        True,
    )
    assert shown.code == 0, shown.err
    assert (
        "cases.json: read as mapping ($['cases'][*])\nrun c1\n  T0B0 user text: Capital?\n  T0B1 assistant text: Paris [31m is it."
        in shown.out
    )
    assert "  account: shown 2 values (26 characters), metadata 1 value (2 characters), left out 1 value (130 characters)\n" in shown.out
    assert "          130 characters left out at $.why" in shown.out
    assert json.loads(as_json.out)["runs"][0]["account"]["left_out"] == {"$.why": 130}
    assert (done.code, [line["agent_run_id"] for line in done.lines]) == (0, ["c1"])
    assert (agreed.code, json.loads(agreed.out)["judged"]) == (0, 1), agreed.err
    assert reported.code == 0, reported.err
    assert "Capital?" in (gradeloop.folder / "page.html").read_text()


def test_runs_that_cannot_be_read_are_told_where_runs_are_shown(gradeloop: CommandLine) -> None:
    messages = [{"role": "user", "content": "Capital?"}, {"role": "assistant", "content": "x" * 500}]
    lines = [json.dumps({"id": f"m{at}", "messages": messages}) for at in range(3)]
    write(gradeloop, "many.jsonl", "\n".join([*lines, "{"]))

    refused = gradeloop("runs", "show", "many.jsonl")
    done = gradeloop("runs", "show", "many.jsonl", "--skip-bad", "--limit", "1")

    assert (refused.code, "many.jsonl, line 4: no JSON" in refused.err) == (2, True)
    assert (done.code, done.out.count("run m")) == (3, 1)
    assert "x" * 400 + "… (500 characters)" in done.out
    assert "1 of 3 runs; --limit shows more. Of all:\n  account: shown 12 values" in done.out
    assert "left out: many.jsonl, line 4: no JSON" in done.out


@pytest.mark.slow
def test_results_are_json_lines_in_a_pipe_and_in_a_file_and_are_not_paid_for_again(gradeloop: CommandLine) -> None:
    write(gradeloop, "other.yaml", FRANCE | {"name": "the same but for its name", "n_rollouts_per_input": 2})
    gradeloop("judge", "judge.yaml", "runs.jsonl", *SCRIPTED)
    write(gradeloop, "silent.yaml", {"replies": [fails(), fails(sample=1)]})

    done = gradeloop("judge", "other.yaml", "runs.jsonl", "--scripted", "silent.yaml", "--json", "-o", "out.jsonl")

    assert done.code == 0, done.err
    assert sorted(line["agent_run_id"] for line in done.lines) == ["a", "b", "c"]
    assert all(line["output"] == MATCH for line in done.lines)
    assert (gradeloop.folder / "out.jsonl").read_text() == done.out
    assert "Results: 3 judged, 0 failures" in done.err


FILES = ("all.jsonl", "all.json", "all.csv", "all.xml", "all.md", "all.html")


def test_results_are_written_in_the_format_that_each_name_says_and_read_back(gradeloop: CommandLine) -> None:
    judge = write(gradeloop, "split.yaml", FRANCE | {"rubric_text": "Of every format."})
    write(gradeloop, "every.jsonl", "\n".join(json.dumps(PARIS | {"id": name}) for name in ("=a", "b")))
    replies = write(gradeloop, "every.replies.yaml", {"replies": [answers(NO_MATCH)]})
    rule = ("--pass", "label=match", "--pass-rate", "0.5")
    flags = [flag for name in FILES for flag in ("-o", name)]

    done = gradeloop("judge", judge, "every.jsonl", "--scripted", replies, *rule, *flags)
    text = {name: (gradeloop.folder / name).read_text() for name in FILES}
    reports = [gradeloop("report", name, "-o", "again.md", "--overwrite") for name in ("all.json", "all.jsonl")]
    again = gradeloop("judge", judge, "every.jsonl", "--scripted", replies, *rule, *flags)

    assert (done.code, again.code) == (1, 1), done.err + again.err
    assert "next: gradeloop report all.jsonl --open" in done.out
    assert [json.loads(line)["agent_run_id"] for line in text["all.jsonl"].splitlines()] == ["=a", "b"]
    document = json.loads(text["all.json"])
    assert (document["schema"], [row["passed"] for row in document["judgements"]]) == ("gradeloop.judgements/1", [False, False])
    rows = list(csv.DictReader(StringIO(text["all.csv"])))
    assert [(row["agent_run_id"], row["result"], row["reason"], row["output.label"]) for row in rows] == [
        (name, "failed", "label is no match", "no match") for name in ("'=a", "b")
    ]
    suite = fromstring(text["all.xml"]).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "2", "0")
    assert [one.get("message") for one in suite.iter("failure")] == ["label is no match"] * 2
    assert "**FAILED 0% of 50%**" in text["all.md"]
    assert "0% of 2 judged runs passed, 50% wanted" in text["all.md"]
    assert '<p class="answer failed" id="answer"><a href="#case-%3Da">FAILED 0% of 50%</a></p>' in text["all.html"]
    assert [report.code for report in reports] == [0, 0], reports[0].err


def test_pages_and_summaries_of_judgements_name_the_judge_and_the_runs_that_are_known(gradeloop: CommandLine) -> None:
    judge = write(gradeloop, "a judge.yaml", FRANCE | {"rubric_text": "Of what is known."})
    write(gradeloop, "some runs.jsonl", json.dumps(PARIS | {"id": "known"}))
    replies = write(gradeloop, "known.replies.yaml", {"replies": SAID["nothing valid"]})
    gradeloop("judge", judge, "some runs.jsonl", "--scripted", replies, "-o", "known.html", "-o", "known.md", "-o", "known.json")
    write(gradeloop, "named.yaml", FRANCE | {"id": "named", "rubric_text": "Of what is registered."})
    assert gradeloop("registry", "create", "lands", "named.yaml").code == 0
    gradeloop("judge", "lands/named", "some runs.jsonl", "--scripted", replies, "-o", "named.jsonl")
    shown = gradeloop("report", "named.jsonl", "--runs", "some runs.jsonl", "-o", "named.md")

    command = "gradeloop judge 'a judge.yaml' 'some runs.jsonl' --retry errors"
    assert command in unescape((gradeloop.folder / "known.html").read_text())
    assert command in (gradeloop.folder / "known.md").read_text()
    assert shown.code == 0, shown.err
    assert "gradeloop judge lands/named\\@1 'some runs.jsonl' --retry errors" in (gradeloop.folder / "named.md").read_text()


@pytest.mark.slow
def test_a_file_whose_name_says_no_format_is_refused_before_anything_is_judged(gradeloop: CommandLine) -> None:
    done = gradeloop("judge", "judge.yaml", "runs.jsonl", *SCRIPTED, "-o", "out.yml")
    twice = gradeloop("judge", "judge.yaml", "runs.jsonl", *SCRIPTED, "-o", "out.md", "-o", "./out.md")

    assert (done.code, twice.code, done.out) == (2, 2, "")
    assert "the output 'out.yml': its suffix names no format." in done.err
    assert "Known: .csv, .html, .json, .jsonl, .md, .xml." in done.err
    assert "the output 'out.md' is named twice; name it once" in twice.err


SAID: dict[str, list[dict[str, Any]]] = {
    "a match": [answers(MATCH)],
    "no match": [answers(NO_MATCH)],
    "nothing valid": [answers("nothing", step=step) for step in range(3)],
    "no provider": [fails()],
}

CODES: dict[str, tuple[str, tuple[str, ...], int]] = {
    "all pass": ("a match", ("--pass", "label=match", "--pass-rate", "1"), 0),
    "none passes": ("no match", ("--pass", "label=match", "--pass-rate", "0.5"), 1),
    "none passes, and nobody minds": ("no match", ("--pass", "label=match"), 0),
    "an invalid answer": ("nothing valid", (), 3),
    "an invalid answer that is borne, and nothing judged": ("nothing valid", ("--allow-errors", "1"), 3),
    "a failure": ("no provider", (), 3),
    "a failure that is borne, and a rate that cannot be told": (
        "no provider",
        ("--pass", "label=match", "--pass-rate", "1", "--allow-errors", "1"),
        3,
    ),
}


@pytest.mark.slow
def test_the_exit_code_says_what_came_of_it(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for name, (said, flags, code) in CODES.items():
        with subtests.test(name):
            judge = write(gradeloop, "coded.yaml", FRANCE | {"rubric_text": f"Of {said}."})
            scripted = write(gradeloop, "coded.replies.yaml", {"replies": SAID[said]})

            done = gradeloop("judge", judge, "runs.jsonl", "--scripted", scripted, *flags)

            assert done.code == code, done.out + done.err
            words = {0: "PASSED", 1: "FAILED", 3: "INCONCLUSIVE"}
            assert [word for word in words.values() if word in done.out] == ([words[code]] if "--pass-rate" in flags else [])


def test_failures_are_read_until_a_retry_is_asked_for(gradeloop: CommandLine) -> None:
    judge = write(gradeloop, "retried.yaml", FRANCE | {"rubric_text": "Of what is asked again."})

    command = ("judge", judge, "runs.jsonl", "--scripted", write(gradeloop, "invalid.replies.yaml", {"replies": SAID["nothing valid"]}))

    def attempts() -> list[int]:
        with closing(sqlite3.connect(gradeloop.state / STORE_FILE)) as store:
            rows = store.execute("SELECT attempt FROM cases WHERE spec LIKE '%Of what is asked again.%'").fetchall()
        return [attempt for (attempt,) in rows]

    failed = gradeloop(*command)
    read, first = gradeloop(*command, "--json"), attempts()
    seen = [gradeloop(*command, *flags, "--preview", "--json").result for flags in ((), ("--retry", "errors"))]
    retried = gradeloop(*command, "--retry", "errors")

    hint = "3 failures: the judge's answers stayed invalid; the same command with --retry errors asks again"
    assert (failed.code, hint in failed.out) == (3, True), failed.err
    assert (read.code, hint in read.err, [row["result_type"] for row in read.lines]) == (3, True, ["FAILURE"] * 3)
    assert [preview["calls"] for preview in seen] == [0, 3]
    assert (retried.code, hint in retried.out, first, attempts()) == (3, True, [0] * 3, [1] * 3), retried.err


def test_a_refused_run_is_named_by_its_file_and_id(gradeloop: CommandLine) -> None:
    elsewhere = {"id": "openai_compatible:judge", "config": {"base_url": "http://127.0.0.2:9/v1"}}
    criteria = {"rubric": {"criteria": [{"description": "names Paris"}]}, "grader": {"model": elsewhere}}
    silent = write(gradeloop, "silent.jsonl", json.dumps({"id": "mute", "messages": [{"role": "assistant", "content": " "}]}))

    unknown = gradeloop("judge", write(gradeloop, "elsewhere.yaml", criteria), "runs.jsonl", *SCRIPTED)
    empty = gradeloop("judge", "judge.yaml", silent, *SCRIPTED)

    assert (unknown.code, empty.code) == (2, 2), unknown.err + empty.err
    assert "runs.jsonl: the run 'a': " in unknown.err
    assert "judging-" not in unknown.err
    assert "silent.jsonl" in empty.err


def test_a_rubric_of_criteria_passes_where_it_is_satisfied(gradeloop: CommandLine) -> None:
    write(gradeloop, "rubric.md", "- names the capital\n- is brief")
    fields = {"role": "grader", "verdict": verdict(row("c1"), row("c2", "it rambles"))}
    write(gradeloop, "criteria.replies.yaml", {"replies": [fields]})

    flags = ("--grader", "scripted:judge", "--scripted", "criteria.replies.yaml", "--pass-rate", "0.5")
    done = gradeloop("judge", "rubric.md", "runs.jsonl", *flags)

    assert done.code == 1, done.err
    assert "not passed" in done.out
    assert "needs_revision" in done.out
    assert "3 judged, 0 passed (0%)" in done.out


@pytest.mark.slow
def test_an_edited_criterion_is_asked_alone_and_a_budget_is_more_than_nothing(gradeloop: CommandLine) -> None:
    def rubric(second: str) -> str:
        criteria = [{"description": "names the capital"}, {"description": second}]
        return write(gradeloop, "edited.yaml", {"mode": "per_criterion", "criteria": criteria})

    def say(*groups: int) -> tuple[str, ...]:
        replies = [{"role": "grader", "group": at, "verdict": verdict(row("c1"))} for at in groups]
        return ("--grader", "scripted:judge", "--scripted", write(gradeloop, f"edited{groups}.yaml", {"replies": replies}), "--json")

    first = gradeloop("judge", rubric("is brief"), "runs.jsonl", *say(0, 1))
    edited = gradeloop("judge", rubric("is very brief"), "runs.jsonl", *say(1))
    within = gradeloop("judge", rubric("is polite"), "runs.jsonl", *say(1), "--budget-usd", "1")
    nothing = gradeloop("judge", rubric("is polite"), "runs.jsonl", *say(1), "--budget-usd", "0")

    assert (first.code, edited.code) == (0, 0), first.err + edited.err
    assert [line["output"]["result"] for line in edited.lines] == ["satisfied"] * 3
    assert within.code == 0, within.err
    assert json.loads(gradeloop("batches", "list", "--json").out) == []
    assert nothing.code == 2
    assert "--budget-usd" in nothing.err


@pytest.mark.slow
def test_unsure_verdicts_are_neither_passed_nor_failed_and_an_escalation_judge_decides_them(gradeloop: CommandLine) -> None:
    split = FRANCE | {"rubric_text": "Of two minds.", "n_rollouts_per_input": 3, "abstain": {"label": 0.8}}
    judge = write(gradeloop, "split.yaml", split)
    escalation = write(gradeloop, "escalation.yaml", split | {"escalate": "scripted:dear"})
    replies = [answers(MATCH, 0), answers(NO_MATCH, 1), answers(MATCH, 2), answers(MATCH, 0, model="scripted:dear")]
    write(gradeloop, "split.replies.yaml", {"replies": replies})
    rest = ("runs.jsonl", "--scripted", "split.replies.yaml", "--pass", "label=match", "--pass-rate", "0.5")

    unsure = gradeloop("judge", judge, *rest)
    decided = gradeloop("judge", escalation, *rest)
    again = gradeloop("judge", escalation, *rest, "--json")

    assert unsure.code == 3, unsure.err
    assert "0 judged, 3 unsure, 0 failures" in unsure.out
    assert "unsure of label" in " ".join(unsure.out.split())
    assert decided.code == 0, decided.err
    assert "3 judged, 3 passed (100%), 3 decided by the escalation judge, 0 failures" in " ".join(decided.out.split())
    assert [row["model"] for row in again.lines] == ["scripted:dear"] * 3


@pytest.mark.parametrize(
    ("said", "hint", "calls"),
    [
        ([fails() | {"model": "dear"}], "no escalation judge answered; the same command asks again", [3, 3]),
        (
            [answers("nothing", step=step, model="dear") for step in range(3)],
            "the escalation judge's answers stayed invalid; the same command with --retry errors asks again",
            [0, 3],
        ),
    ],
    ids=["no answer", "invalid"],
)
def test_what_an_escalation_judge_left_unsure_names_the_command_that_asks_again_and_a_preview_counts_it(
    gradeloop: CommandLine, said: list[dict[str, Any]], hint: str, calls: list[int]
) -> None:
    split = FRANCE | {"rubric_text": f"Of two minds, {hint}", "n_rollouts_per_input": 3, "abstain": {"label": 0.8}}
    replies = [answers(MATCH, 0, model="judge"), answers(NO_MATCH, 1), answers(MATCH, 2), *said]
    scripted = write(gradeloop, "unheard.replies.yaml", {"replies": replies})
    command = ("judge", write(gradeloop, "unheard.yaml", split | {"escalate": "scripted:dear"}), "runs.jsonl", "--scripted", scripted)

    before = gradeloop(*command, "--preview", "--json").result
    unsure = gradeloop(*command)
    seen = [gradeloop(*command, *flags, "--preview", "--json").result for flags in ((), ("--retry", "errors"))]
    words = gradeloop(*command, "--retry", "errors", "--preview")

    assert (before["calls"], before["to_escalate"]) == (9, 0)
    assert (unsure.code, f"3 unsure judgements: {hint}" in unsure.out) == (3, True), unsure.out + unsure.err
    assert [preview["calls"] for preview in seen] == [preview["to_escalate"] for preview in seen] == calls
    assert "3 judgements, 3 of them in the store, 3 of which the escalation judge is to be asked" in " ".join(words.out.split())


def test_a_thread_is_judged_by_its_id(gradeloop: CommandLine) -> None:
    replies: list[dict[str, Any]] = [{"role": "generator", "text": "Paris."}, {"role": "grader", "verdict": verdict(row("c1"))}]
    gradeloop("run", gradeloop.task("thread", replies), "--thread", "capital-1")
    gradeloop.kill_workers()

    done = gradeloop("judge", "judge.yaml", "thread:capital-1", *SCRIPTED, "--json")

    assert done.code == 0, done.err
    assert done.result["agent_run_id"] == "capital-1"
    assert gradeloop("judge", "judge.yaml", "thread:nobody", *SCRIPTED).code == 2


def test_a_run_that_no_payload_takes_is_judged_where_payloads_are_kept_outside(gradeloop: CommandLine) -> None:
    messages = [{"role": "assistant", "content": f"{at} " + "The capital of France is Paris. " * 1000} for at in range(85)]
    write(gradeloop, "large.json", {"id": "large", "messages": messages})

    done = gradeloop("judge", "judge.yaml", "large.json", *SCRIPTED, "--json")

    assert (gradeloop.folder / "large.json").stat().st_size > 2.5 * 1024 * 1024
    assert done.code == 0, done.err
    assert done.result["result_metadata"]["elided"] is True


def test_a_run_that_is_too_long_is_judged_in_parts_and_its_page_shows_them(gradeloop: CommandLine) -> None:
    messages = [{"role": "assistant", "content": f"{at} " + "The capital of France is Paris. " * 3000} for at in range(18)]
    write(gradeloop, "chunked.json", {"id": "chunked", "messages": messages})
    command = ("judge", "judge.yaml", "chunked.json", *SCRIPTED, "--chunk")

    preview = gradeloop(*command, "--preview", "--json")
    done = gradeloop(*command)
    again = gradeloop(*command, "--json", "--output", "chunked.jsonl")
    page = gradeloop("report", "chunked.jsonl", "--output", "chunked.html")

    parts = again.result["result_metadata"]["parts"]
    assert done.code == again.code == 0, done.err
    assert len(parts) > 2
    assert f"judged in {len(parts)} parts" in " ".join(done.out.split())
    assert json.loads(preview.out)["calls"] == 2 * (len(parts) + 1)  # two rollouts of each
    assert "elided" not in again.result["result_metadata"]
    assert page.code == 0, page.err
    assert "part 2, T0B" in (gradeloop.folder / "chunked.html").read_text()


def test_rubrics_are_registered_listed_shown_and_judged_by(gradeloop: CommandLine) -> None:
    write(gradeloop, "second.yaml", FRANCE | {"rubric_text": "Another."})
    write(gradeloop, "france.yaml", FRANCE | {"id": "france", "n_rollouts_per_input": 2})

    made = gradeloop("registry", "create", "demo", "france.yaml")
    same = gradeloop("registry", "add", "demo", "france", "france.yaml")
    added = gradeloop("registry", "add", "demo", "france", "second.yaml")
    listed = gradeloop("registry", "list", "demo")
    shown = json.loads(gradeloop("registry", "show", "demo", "france", "--version", "1").out)
    judged = gradeloop("judge", "demo/france@1", "runs.jsonl", *SCRIPTED, "--json")

    assert [made.out, same.out, added.out] == ["demo/france@1\n", "demo/france@1\n", "demo/france@2\n"]
    assert listed.out.startswith("france@2  schema  ")
    assert (shown["rubric_text"], shown["version"]) == (FRANCE["rubric_text"], 1)
    assert judged.code == 0, judged.err
    assert (judged.result["rubric_id"], judged.result["rubric_version"]) == ("france", 1)


def test_agreement_is_told_with_its_figures_and_disagreements(gradeloop: CommandLine) -> None:
    rows = [
        {"agent_run_id": "a", "label_value": {"label": "match"}, "created_by": "ann"},
        {"agent_run_id": "b", "label_value": {"label": "no match"}, "created_by": "ann", "reason": "It says Lyon."},
        {"agent_run_id": "z", "label_value": {"label": "match"}, "created_by": "ann"},
    ]
    write(gradeloop, "labels.jsonl", "\n".join(map(json.dumps, rows)))
    results = gradeloop("judge", "judge.yaml", "runs.jsonl", *SCRIPTED, "--json").out
    write(gradeloop, "results.jsonl", results)

    done = gradeloop("agreement", "judge.yaml", "labels.jsonl", "--pass", "label=match")
    by_file = gradeloop("agreement", "judge.yaml", "labels.jsonl", "--results", "results.jsonl", "--pass", "label=match", "--json")

    assert done.code == 0, done.err
    assert "2 of 3 labels have a judgement" in done.out
    assert 'label: 3 labels of 3 runs, 2 answered; "match" passes' in done.out
    assert "accuracy, of what is answered 50.0% 9.5% to 90.5% 2" in " ".join(done.out.split())
    assert "accuracy, of all 33.3% 6.1% to 79.2% 3" in " ".join(done.out.split())
    assert 'b: label is "no match" by ann, "match" by the judge\n  ann: It says Lyon.\n  judge: It names Paris' in done.out
    assert by_file.result["missing"] == ["z"]


def test_agreement_with_a_judge_that_answered_nothing_is_no_measurement(gradeloop: CommandLine) -> None:
    judge = write(gradeloop, "mute.yaml", FRANCE | {"rubric_text": "Of a mute judge."})
    write(gradeloop, "mute.labels.jsonl", {"agent_run_id": "a", "label_value": {"label": "match"}})
    replies = write(gradeloop, "mute.replies.yaml", {"replies": SAID["nothing valid"]})
    gradeloop("judge", judge, "runs.jsonl", "--scripted", replies)

    done = gradeloop("agreement", judge, "mute.labels.jsonl", "--pass", "label=match")

    assert (done.code, "0 of 1 labels have a judgement" in done.out) == (3, True), done.err


def test_only_what_was_said_of_these_runs_by_this_judge_counts(gradeloop: CommandLine) -> None:
    """A run is judged, then changed: with the changed run named, the judgement is stale; results of another judge are refused."""
    judge = write(gradeloop, "own.yaml", FRANCE | {"rubric_text": "Of these very runs.", "pass_if": {"label": "match"}})
    other = write(gradeloop, "foreign.yaml", FRANCE | {"rubric_text": "Of others."})
    write(gradeloop, "changing.json", {"id": "changing", "messages": [{"role": "assistant", "content": "Paris."}]})
    write(gradeloop, "changing.labels.jsonl", {"agent_run_id": "changing", "label_value": {"label": "match"}})
    gradeloop("judge", judge, "changing.json", *SCRIPTED, "--repeat", "2", "-o", "changing.results.jsonl")

    exact = gradeloop("agreement", judge, "changing.labels.jsonl", "--runs", "changing.json", "--json")
    foreign = gradeloop("agreement", other, "changing.labels.jsonl", "--results", "changing.results.jsonl")
    write(gradeloop, "changing.json", {"id": "changing", "messages": [{"role": "assistant", "content": "Lyon."}]})
    stale = gradeloop("agreement", judge, "changing.labels.jsonl", "--runs", "changing.json")

    assert exact.code == 0, exact.err
    assert exact.result["keys"][0]["figures"]["accuracy_all"]["value"] == 1.0
    assert exact.result["stability"][0]["judgements"] == 2
    assert foreign.code == 2
    assert "'changing' was judged by 'rubric-" in foreign.err
    assert stale.code == 2
    assert "1 were judged when they had another content" in stale.err


def test_the_corrected_rate_decides_and_says_how_many_labels_it_wants(gradeloop: CommandLine) -> None:
    """A judge that passes everything, with five labels: nothing can be corrected, so that nothing is decided."""
    judge = write(gradeloop, "gated.yaml", FRANCE | {"rubric_text": "Gated by labels."})
    labels = [{"agent_run_id": "a", "label_value": {"label": "match"}}, {"agent_run_id": "b", "label_value": {"label": "no match"}}]
    write(gradeloop, "gated.labels.jsonl", "\n".join(map(json.dumps, labels)))
    command = ("judge", judge, "runs.jsonl", *SCRIPTED, "--pass", "label=match", "--labels", "gated.labels.jsonl")

    raw = gradeloop(*command, "--pass-rate", "0.9", "--repeat", "2")
    corrected = gradeloop(*command, "--pass-rate", "0.9", "--gate", "corrected")
    without = gradeloop("judge", judge, "runs.jsonl", *SCRIPTED, "--pass", "label=match", "--gate", "corrected", "--pass-rate", "1")

    assert raw.code == 0, raw.err
    assert "corrected pass rate: unknown (100.0% as the judge says); 2 labels with a verdict" in raw.out
    assert "label: two judgements of one run differ in 0.0% (0.0% to 56.1%); 3 runs judged repeatedly" in raw.out
    assert corrected.code == 3, corrected.out
    assert "inconclusive at 90.0%" in corrected.out
    assert without.code == 2
    assert "--gate corrected needs --labels FILE" in without.err


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "whole and in parts": (
        ("judge", "judge.yaml", "long.jsonl", *SCRIPTED, "--whole", "--chunk"),
        "--whole refuses the runs that --chunk judges",
    ),
    "a run that is too long": (("judge", "judge.yaml", "long.jsonl", *SCRIPTED, "--whole"), "--whole: the run 'long-1' is longer than"),
    "no judge": (("judge", "nope.yaml", "runs.jsonl"), "the judge 'nope.yaml' does not exist; name a file, or COLLECTION/RUBRIC"),
    "no rubric of that name": (("judge", "demo/nope", "runs.jsonl"), "there is no rubric 'nope' in the collection 'demo'"),
    "no run": (("judge", "judge.yaml", "nope.jsonl", *SCRIPTED), "the run 'nope.jsonl' does not exist; name a file, or thread:ID"),
    "a folder without runs": (("judge", "judge.yaml", "empty", *SCRIPTED), "the run 'empty' is a folder without files of runs"),
    "a run twice": (("judge", "judge.yaml", "runs.jsonl", "runs.jsonl", *SCRIPTED), "two runs have the id 'a' (the same content, too)"),
    "no replies": (
        ("judge", "judge.yaml", "runs.jsonl"),
        "'scripted:judge' needs a file of replies; name it in GRADELOOP_SCRIPTED, as 'scripted:' in the task or suite, or with --scripted",
    ),
    "no key": (
        ("judge", "judge.yaml", "runs.jsonl", "--grader", "openai:gpt-5"),
        "'openai:gpt-5' needs a key and OPENAI_API_KEY is not set",
    ),
    "no model": (("judge", "rubric.txt", "runs.jsonl"), "grader.model is missing and no provider key is set"),
    "an unknown model": (
        ("judge", "judge.yaml", "runs.jsonl", "--grader", "gpt"),
        "--grader: id: 'gpt' names no model; write",
    ),
    "an unknown key": (("judge", "judge.yaml", "runs.jsonl", *SCRIPTED, "--pass", "lable=match"), "Did you mean 'label'? Known: label."),
    "an unknown value": (
        ("judge", "judge.yaml", "runs.jsonl", *SCRIPTED, "--pass", "label=yes"),
        "the judge's schema does not allow that value.",
    ),
    "a rate of nothing": (("judge", "judge.yaml", "runs.jsonl", *SCRIPTED, "--pass-rate", "1"), "add --pass KEY=VALUE"),
    "a rate above 1": (
        ("judge", "judge.yaml", "runs.jsonl", "--pass-rate", "90"),
        "'--pass-rate': '90' is not a share from 0 to 1; write 90% or 0.9",
    ),
    "a bad schema": (("judge", "bad.yaml", "runs.jsonl"), "bad.yaml: the judge: output_schema: output_schema.type is 'string'"),
    "a bad criterion": (("judge", "bad_rubric.yaml", "runs.jsonl"), "the judge 'bad_rubric.yaml', line 1, column"),
    "no tools": (("judge", "judge.yaml", "runs.jsonl", *SCRIPTED, "--tools", "no.py"), "--tools: 'no.py' does not exist; name a file"),
    "no labels": (("agreement", "judge.yaml", "nope.jsonl"), "the labels 'nope.jsonl' cannot be read"),
    "a bad label": (
        ("agreement", "judge.yaml", "bad_labels.jsonl"),
        "bad_labels.jsonl, line 1: label_value has 'lable'. Did you mean 'label'?",
    ),
    "nobody judged": (("agreement", "unjudged.yaml", "good_labels.jsonl"), "none of the labelled runs has a judgement; judge them first"),
    "bad results": (
        ("agreement", "judge.yaml", "good_labels.jsonl", "--results", "bad_labels.jsonl"),
        "bad_labels.jsonl, line 1: this is not a judgement: id: Field",
    ),
    "a taken name": (("registry", "create", "taken", "unjudged.yaml"), "the rubric 'x' exists in 'taken' already"),
}


@pytest.fixture
def mistaken(gradeloop: CommandLine) -> CommandLine:
    """Put files with mistakes into the folder."""
    write(gradeloop, "bad.yaml", FRANCE | {"output_schema": {"type": "string"}})
    write(gradeloop, "bad_rubric.yaml", {"criteria": [{"description": ""}]})
    write(gradeloop, "rubric.txt", "- names the capital")
    write(gradeloop, "bad_labels.jsonl", {"agent_run_id": "a", "label_value": {"lable": "match"}})
    write(gradeloop, "good_labels.jsonl", {"agent_run_id": "a", "label_value": {"label": "match"}})
    write(gradeloop, "unjudged.yaml", FRANCE | {"id": "x", "rubric_text": "Nobody was judged by this."})
    write(gradeloop, "long.jsonl", {"messages": [{"role": "assistant", "content": "x" * 600_001}]})
    write(gradeloop, "taken.yaml", FRANCE | {"id": "x"})
    return gradeloop


def test_a_mistake_is_told_in_a_sentence(mistaken: CommandLine, subtests: pytest.Subtests) -> None:
    mistaken("registry", "create", "taken", "taken.yaml")
    (mistaken.folder / "empty").mkdir()
    for name, (arguments, message) in MISTAKES.items():
        with subtests.test(name):
            done = mistaken(*arguments)

            assert done.code == 2, done.out + done.err
            assert message in " ".join(done.err.split()), done.err
            assert "Traceback" not in done.err


@pytest.mark.parametrize("arguments", [("judge", "judge.yaml", "runs.jsonl", *SCRIPTED), ("registry", "list", "demo")])
def test_a_server_of_ones_own_needs_a_store_that_is_named(gradeloop: CommandLine, arguments: tuple[str, ...]) -> None:
    done = gradeloop(*arguments, TEMPORAL_ADDRESS="127.0.0.1:1")

    assert done.code == 2
    assert "no store of results is named, and the server is not the embedded one; set GRADELOOP_STORE to sqlite:" in done.err


def test_a_store_that_cannot_be_used_is_told_before_anybody_is_paid(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "no.db").write_text("text" * 1000)
    judge = write(gradeloop, "unstored.yaml", FRANCE | {"rubric_text": "Without a store."})

    done = gradeloop("judge", judge, "runs.jsonl", *SCRIPTED, GRADELOOP_STORE=f"sqlite:///{gradeloop.folder / 'no.db'}")

    assert (done.code, done.out) == (2, "")
    assert "file is not a database" in done.err


def test_no_server_is_another_code_than_no_store(gradeloop: CommandLine, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'results.db'}"

    done = gradeloop("judge", "judge.yaml", "runs.jsonl", *SCRIPTED, TEMPORAL_ADDRESS="127.0.0.1:1", GRADELOOP_STORE=store)

    assert done.code == 4, done.err


def distinct(gradeloop: CommandLine, count: int) -> str:
    """Write runs that differ in what they say: the same content is judged once."""
    rows = [{"id": f"r{at}", "messages": [{"role": "assistant", "content": f"x {at}"}]} for at in range(count)]
    return write(gradeloop, f"distinct{count}.jsonl", "\n".join(map(json.dumps, rows)))


@pytest.mark.slow
def test_ctrl_c_leaves_the_judgements_to_go_on_and_the_same_command_reads_them(gradeloop: CommandLine) -> None:
    slow = write(gradeloop, "slow.yaml", FRANCE | {"rubric_text": "Slowly."})
    replies = write(gradeloop, "slow.replies.yaml", {"replies": [answers(MATCH, delay=2)]})
    command = ("judge", slow, distinct(gradeloop, 4), "--scripted", replies, "--json", "--concurrency", "2")

    process = gradeloop.start(*command)
    first = line_of(process)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    again = gradeloop(*command)

    assert json.loads(first)["output"] == MATCH
    assert process.returncode == 130, err
    assert "stopped; judgements in flight continue" in err
    assert again.code == 0, again.err
    assert len(again.lines) == 4


@pytest.mark.slow
def test_a_worker_that_is_killed_meanwhile_is_started_again(gradeloop: CommandLine) -> None:
    slow = write(gradeloop, "killed.yaml", FRANCE | {"rubric_text": "Through a kill."})
    replies = write(gradeloop, "killed.replies.yaml", {"replies": [answers(MATCH, delay=1.5)]})
    command = ("judge", slow, distinct(gradeloop, 3), "--scripted", replies, "--json", "-j", "1")

    process = gradeloop.start(*command)
    line_of(process)
    gradeloop.kill_workers()
    out, err = process.communicate(timeout=60)

    assert process.returncode == 0, err
    assert len(out.splitlines()) == 2


def test_what_models_and_files_say_is_harmless_on_a_terminal(gradeloop: CommandLine) -> None:
    evil = {"id": "\x1b]0;owned\x07[red]x", "messages": [{"role": "assistant", "content": "x"}]}
    write(gradeloop, "evil.json", evil)

    done = gradeloop("judge", "judge.yaml", "evil.json", *SCRIPTED)

    assert done.code == 0, done.err
    assert "\x1b" not in done.out
    assert "[red]x" in done.out


async def test_scores_are_written_back_and_their_failure_is_no_verdict(gradeloop: CommandLine) -> None:
    trace, said = uuid4().hex, PARIS["transcripts"][0]["messages"]
    lines = [json.dumps({"id": name, "messages": said}) for name in (trace, "untraced")]
    write(gradeloop, "traced.jsonl", "\n".join(lines))
    write(gradeloop, "named.yaml", FRANCE | {"id": "capital", "n_rollouts_per_input": 2})
    command = ("judge", "named.yaml", "traced.jsonl", *SCRIPTED, "--pass", "label=match", "--write-back", "langfuse")
    async with score_server() as server:
        done = await asyncio.to_thread(gradeloop, *command, **server.environment)
        again = await asyncio.to_thread(gradeloop, *command, **server.environment)
        refused = await asyncio.to_thread(gradeloop, *command)

    assert (done.code, again.code, refused.code) == (0, 0, 0), (done.err, again.err, refused.err)
    assert "2 scores written back; the trace of 1 run is not known" in done.out
    assert {(one["name"], one["value"], one["traceId"]) for one in server.scores.values()} == {
        ("capital", 1.0, trace),
        ("capital.label", "match", trace),
    }
    assert len(server.scores) == 2
    assert "0 scores written back" in refused.out
    assert "not written: write-back to langfuse needs the variable LANGFUSE_PUBLIC_KEY in the worker's environment" in refused.out
