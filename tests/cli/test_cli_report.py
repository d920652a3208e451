"""`gradeloop report` as its users run it: threads, batches, judgements and files of them, and every mistake in a sentence."""

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.cli.test_cli_eval import batch_of, suite
from tests.rig.batches import breaks, drafted, fails, passes
from tests.rig.cli import CommandLine
from tests.rig.judging import FRANCE, MATCH, PARIS, answers
from tests.rig.threads import row, verdict

RUN: list[dict[str, Any]] = [
    {"role": "generator", "iteration": 0, "text": "The first draft."},
    {"role": "generator", "iteration": 1, "text": "The second draft, which is good."},
    {"role": "grader", "iteration": 0, "verdict": verdict(row("c1", "it is too short"))},
    {"role": "grader", "iteration": 1, "verdict": verdict(row("c1"))},
]


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command with a thread, a batch and judgements."""
    assert commands("run", commands.task("story", RUN), "--thread", "story-1").code == 0
    time.sleep(1 - time.time() % 1)  # a batch is dated to the second, a thread to less
    refunds = suite(commands, "refunds", [passes(), fails("bad")], ["good", "bad"])
    assert commands("eval", refunds, "-o", "out.json", "-o", "out.jsonl").code == 1
    (commands.folder / "judge.yaml").write_text(json.dumps(FRANCE))
    (commands.folder / "replies.yaml").write_text(json.dumps({"replies": [answers(MATCH)]}))
    (commands.folder / "runs.jsonl").write_text("\n".join(json.dumps({**PARIS, "id": name}) for name in ("a", "b")))
    assert commands("registry", "create", "geography", "judge.yaml").code == 0
    judged = commands("judge", "judge.yaml", "runs.jsonl", "--scripted", "replies.yaml", "-o", "judged.jsonl")
    assert judged.code == 0, judged.err
    return commands


def page(gradeloop: CommandLine, *arguments: str) -> str:
    """Return the page that a report writes."""
    done = gradeloop("report", *arguments, "-o", "page.html")
    assert done.code == 0, done.err
    assert re.fullmatch(r"wrote page\.html \(\d+ KB\)\n", done.out)
    return (gradeloop.folder / "page.html").read_text()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("own.html", ("report", "latest", "-o", "own.html")),
        ("own.html", ("diff", "out.json", "out.json", "-o", "own.html")),
        ("own.html", ("batches", "export", "latest", "-o", "own.html")),
        ("own.json", ("batches", "export", "latest", "-o", "own.json")),
        ("own.jsonl", ("judge", "judge.yaml", "runs.jsonl", "--scripted", "replies.yaml", "-o", "own.jsonl")),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_file_of_the_users_is_not_replaced_unasked_and_an_own_one_is(
    gradeloop: CommandLine, name: str, arguments: tuple[str, ...]
) -> None:
    (gradeloop.folder / name).write_text("precious")

    refused = gradeloop(*arguments)

    assert refused.code == 2
    assert "is a file that gradeloop did not write; name another, or replace it with --overwrite" in refused.err
    assert (gradeloop.folder / name).read_text() == "precious"
    assert gradeloop(*arguments, "--overwrite").code in {0, 1}
    assert (gradeloop.folder / name).read_text() != "precious"
    assert gradeloop(*arguments).code in {0, 1}


def test_a_thread_is_told_draft_by_draft(gradeloop: CommandLine) -> None:
    text = page(gradeloop, "story-1")

    assert "<h1>story-1</h1>" in text
    assert "it is too short" in text
    assert "<ins>second</ins>" in text
    assert "fixed in the next draft" in text


def test_the_newest_of_all_is_what_no_name_means(gradeloop: CommandLine) -> None:
    assert "<h1>refunds</h1>" in page(gradeloop)
    assert "<h1>story-1</h1>" in page(gradeloop, "latest", "--kind", "thread")
    assert gradeloop("run", gradeloop.task("later", RUN), "--thread", "later-1").code == 0
    assert "<h1>later-1</h1>" in page(gradeloop, "latest")
    assert "<h1>refunds</h1>" in page(gradeloop, "latest", "--kind", "batch")


def test_a_batch_is_told_from_the_file_that_it_was_written_to_without_server_or_store(gradeloop: CommandLine) -> None:
    elsewhere = {"GRADELOOP_STATE_DIR": str(gradeloop.folder / "nowhere"), "TEMPORAL_ADDRESS": "127.0.0.1:9"}
    for name in ("out.json", "out.jsonl"):
        done = gradeloop("report", name, "-o", f"{name}.html", **elsewhere)

        assert done.code == 0, done.err
        assert "case-1" in (gradeloop.folder / f"{name}.html").read_text()


def test_judgements_are_told_from_a_file_and_from_the_store(gradeloop: CommandLine) -> None:
    text = page(gradeloop, "judged.jsonl", "--runs", "runs.jsonl")

    assert "2 judgements" in text
    assert 'data-l="label=match">match<' in text
    by_file = page(gradeloop, "judged.jsonl")
    assert f"<h1>{FRANCE['rubric_text']}</h1>" in by_file
    assert re.findall(r'data-label="([^"=]+)=', by_file) == ["label"]
    assert "[T0B" not in by_file[by_file.index("<main") : by_file.index("</main>")]
    assert f"<h1>{FRANCE['rubric_text']}</h1>" in page(gradeloop, "judge.yaml")
    kept = gradeloop("registry", "list", "geography").out.split()[0]
    assert "2 judgements" in page(gradeloop, f"geography/{kept}")


def test_a_page_of_judgements_by_a_rubric_without_a_name_is_named_by_all_its_criteria(gradeloop: CommandLine) -> None:
    folder = gradeloop.folder
    (folder / "plain.yaml").write_text("rubric: |\n  - it names a town\n  - it is short\ngrader: {model: scripted:judge}\n")
    judged = {"replies": [{"role": "grader", "verdict": verdict(row("c1"), row("c2", "it is long"))}]}
    (folder / "plain-replies.yaml").write_text(json.dumps(judged))
    done = gradeloop("judge", "plain.yaml", "runs.jsonl", "--scripted", "plain-replies.yaml", "-o", "plain.html")
    text = (folder / "plain.html").read_text()

    assert done.code == 0, done.err
    assert "<h1>it names a town; it is short</h1>" in text
    assert 'class="task"' not in text
    assert "where the judge is right, mend what made the run; where it is wrong, label the run" in text


def test_the_threads_of_cases_that_loop_are_told_whole_and_a_persons_word_is_in_the_next_report(gradeloop: CommandLine) -> None:
    looped = [{**reply, "when": "parcel"} for reply in RUN]
    more = {"prompts": ["Write of {{ what }}."], "generators": ["scripted:writer"], "loop": True, "max_iterations": 1}
    tests = [{"id": "parcel", "vars": {"what": "parcel"}}]
    done = gradeloop("eval", suite(gradeloop, "looping", looped, [], **more, tests=tests))
    assert done.code == 1, done.out + done.err
    batch = json.loads(gradeloop("batches", "list", "--json").out)[0]["batch_id"]
    thread = f"{batch}/parcel"

    assert "overridden" not in page(gradeloop, batch).split("<tbody>")[-1]
    assert gradeloop("override", thread, "c1", "--pass", "--why", "It is long enough.", "--by", "Ada").code == 0

    text = page(gradeloop, batch)
    assert '<span class="tag person">overridden</span>' in text
    assert "It is long enough." in page(gradeloop, thread)


@pytest.mark.slow
def test_a_batch_writes_its_page_as_one_of_its_outputs(gradeloop: CommandLine) -> None:
    named = suite(gradeloop, "paged", [passes(), fails("bad")], ["good", "bad"])
    assert gradeloop("eval", named, "-o", "eval.html", "-o", "eval.json").code == 1
    assert gradeloop("batches", "export", "latest", "-o", "export.html").code == 0

    for name in ("eval.html", "export.html"):
        text = (gradeloop.folder / name).read_text()
        assert "<h1>paged</h1>" in text
        assert "case-1" in text


def test_a_file_of_a_later_version_is_told_as_far_as_it_is_known_or_refused_in_a_sentence(gradeloop: CommandLine) -> None:
    line = {"schema": "gradeloop.batch/1", "id": "a", "index": 0, "status": "passed"}
    (gradeloop.folder / "later.jsonl").write_text(json.dumps(line | {"weather": "fine"}) + "\n" + json.dumps(line | {"status": "failed"}))
    row_of_later = {"id": "c1", "name": "x", "passed": True, "reason": "", "weather": "fine"}
    (gradeloop.folder / "deeper.jsonl").write_text(json.dumps(line | {"criteria": [row_of_later]}))
    (gradeloop.folder / "next.jsonl").write_text(json.dumps(line | {"schema": "gradeloop.batch/2"}))
    (gradeloop.folder / "deep.json").write_text("[" * 100_000)

    assert page(gradeloop, "later.jsonl").count('<tr id="case-') == 1
    assert page(gradeloop, "deeper.jsonl").count('<tr id="case-') == 1
    for name, words in {
        "next.jsonl": "line 1: its schema is 'gradeloop.batch/2', this gradeloop reads",
        "deep.json": "it holds no results",
    }.items():
        done = gradeloop("report", name)
        assert (done.code, "Traceback" in done.err) == (2, False)
        assert words in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "latest", "-o", "FOLDER/page.html"),
        ("report", "judged.jsonl", "-o", "FOLDER/summary.md"),
        ("diff", "out.json", "out.json", "-o", "FOLDER/page.html"),
        ("export", "latest", "-o", "FOLDER/results.json"),
        ("eval", "--attach", "latest", "-o", "FOLDER/results.jsonl", "-o", "FOLDER/results.csv"),
        ("judge", "judge.yaml", "runs.jsonl", "--scripted", "replies.yaml", "-o", "FOLDER/results.jsonl", "-o", "FOLDER/results.xml"),
        ("convert", "promptfooconfig.yaml", "-o", "FOLDER/suite.yaml"),
        ("run", "story.yaml", "--record", "FOLDER/said.yaml", "--json"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_the_folder_of_an_output_is_made(gradeloop: CommandLine, arguments: tuple[str, ...], tmp_path: Path) -> None:
    (gradeloop.folder / "promptfooconfig.yaml").write_text(
        "prompts: [Write]\nproviders: [echo]\ntests: [{assert: [{type: contains, value: a}]}]\n"
    )
    folder = tmp_path / "new" / "deep"
    named = [argument.replace("FOLDER", str(folder)) for argument in arguments]

    done = gradeloop(*named)

    assert done.code in {0, 1}, done.err
    assert sorted(path.name for path in folder.iterdir()) == sorted(Path(name).name for name in named if str(folder) in name)


MISTAKES = {
    "a name of nothing": (("nobody",), "'nobody' is not a file, a batch in the store, a thread on the server, or a registered judge"),
    "a batch that is none": (("nobody", "--kind", "batch"), "there is no batch 'nobody' in the store"),
    "a thread that is none": (("nobody", "--kind", "thread"), "nobody"),
    "a rubric that is none": (("nobody/x",), "there is no rubric 'x' in the collection 'nobody'"),
    "a file that is not there": (("missing.json",), "there is no file 'missing.json'"),
    "a file of something else": (("runs.jsonl",), "runs.jsonl, line 2: it holds no results of a batch"),
    "a file that is not a judge": (("refunds.yaml",), "refunds.yaml"),
    "a page of another kind": (("latest", "-o", "page.pdf"), "'page.pdf'"),
    "a folder that cannot be made": (("latest", "-o", "/proc/nowhere/page.html"), "cannot be written"),
    "runs that are not there": (("judged.jsonl", "--runs", "none.jsonl"), "the run 'none.jsonl' does not exist"),
}


def test_a_mistake_is_told_in_a_sentence(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for name, (arguments, words) in MISTAKES.items():
        with subtests.test(name):
            done = gradeloop("report", *arguments)

            assert done.code == 2, done.out + done.err
            assert words in done.err
            assert "Traceback" not in done.err


def test_an_older_page_stays_where_the_new_one_cannot_be_written(gradeloop: CommandLine) -> None:
    folder = gradeloop.folder / "full"
    folder.mkdir()
    (folder / "page.html").write_text("the older page")
    assert gradeloop("report", "nobody", "-o", "full/page.html").code == 2

    assert (folder / "page.html").read_text() == "the older page"
    assert [path.name for path in Path(folder).iterdir()] == ["page.html"]


@pytest.mark.slow
def test_a_case_drafted_once_has_a_page(gradeloop: CommandLine) -> None:
    spec = drafted("a haiku")
    replies = [passes(), {"role": "generator", "text": "An old silent pond."}]
    more = {"generators": ["scripted:writer"], "tests": [{"id": "haiku", "messages": spec["messages"]}]}
    assert gradeloop("eval", suite(gradeloop, "drafted", replies, [], **more)).code == 0

    assert "1 case" in page(gradeloop, "latest", "--kind", "batch")


def next_of(text: str) -> list[str]:
    """Return the command that an output names as the next one, as its words."""
    (line,) = re.findall(r"^next: gradeloop (.+)$", text, re.MULTILINE)
    return shlex.split(line)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the addresses that a command opens in the browser, as it opens them."""
    addresses: list[str] = []
    monkeypatch.setattr(typer, "launch", addresses.append)
    return addresses


@pytest.mark.slow
def test_what_a_batch_says_comes_next_works(gradeloop: CommandLine, opened: list[str], subtests: pytest.Subtests) -> None:
    for replies, code, step in (([fails("bad")], 1, "report BATCH --open"), ([breaks("bad")], 3, "eval --retry errors --attach BATCH")):
        with subtests.test(step):
            done = gradeloop("eval", suite(gradeloop, f"next-{code}", replies, [f"bad, {code} comes of it"]))
            batch = batch_of(done)
            words = next_of(done.out + done.err)
            reports = words[0] == "report"

            assert done.code == code, done.err
            assert " ".join(words) == step.replace("BATCH", batch)
            again = gradeloop(*words, *(["-o", "next.html", "--overwrite"] if reports else []))
            assert again.code == (0 if reports else code), again.err
            assert opened == [(gradeloop.folder / "next.html").as_uri()]
            assert next_of(gradeloop("batches", "show", batch).out) == words


@pytest.mark.slow
def test_a_judge_in_json_is_found_as_one_in_yaml_is(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "judge.json").write_text(json.dumps(FRANCE, indent=2))
    (gradeloop.folder / "one line.json").write_text(json.dumps(FRANCE))
    rubric = {"criteria": [{"description": "It is polite."}]}
    (gradeloop.folder / "unused.json").write_text(json.dumps(rubric, indent=2))
    asked = ("judge", "judge.json", "runs.jsonl", "--scripted", "replies.yaml", "--pass", "label=no match")

    for arguments in (("judge.json",), ("judge.json", "--kind", "judgements"), ("one line.json", "--runs", "runs.jsonl")):
        text = page(gradeloop, *arguments)
        assert f"<h1>{FRANCE['rubric_text']}</h1>" in text
        assert "2 judgements" in text
    assert next_of(gradeloop(*asked).out) == ["report", "judge.json", "--pass", "label=no match", "--open"]
    refused = gradeloop("report", "unused.json", "-o", "unused.html")
    assert refused.code == 2
    assert "the store has no judgements by 'unused.json'; judge some runs first: gradeloop judge unused.json RUNS" in refused.err


@pytest.mark.slow
def test_what_a_judge_says_comes_next_works(gradeloop: CommandLine, opened: list[str]) -> None:
    asked = ("judge", "judge.yaml", "runs.jsonl", "--scripted", "replies.yaml", "--pass", "label=no match")
    by_file, by_judge = gradeloop(*asked, "-o", "of next.jsonl", "--overwrite"), gradeloop(*asked)

    assert next_of(by_file.out) == ["report", "of next.jsonl", "--open"]
    assert next_of(by_judge.out) == ["report", "judge.yaml", "--pass", "label=no match", "--open"]
    for done in (by_file, by_judge):
        shown = gradeloop(*next_of(done.out), "-o", "next.html", "--overwrite")
        assert shown.code == 0, shown.err
        assert opened.pop() == (gradeloop.folder / "next.html").as_uri()
        assert "2 judgements" in (gradeloop.folder / "next.html").read_text()
    passed = gradeloop(*asked[:-1], "label=match")
    assert "next:" not in passed.out + passed.err


def answer_in(html: str) -> tuple[str, str]:
    """Return the first line of a page and its colour."""
    ((colour, line),) = re.findall(r'<p class="answer (\w+)"[^>]*>(.*?)</p>', html)
    return re.sub("<[^>]+>", "", line), colour


def test_whether_judgements_pass_is_said_alike_by_the_terminal_its_lines_and_every_page(gradeloop: CommandLine) -> None:
    asked = ("judge", "judge.yaml", "runs.jsonl", "--scripted", "replies.yaml", "--pass", "label=no match", "--pass-rate", "0.8")
    done = gradeloop(*asked, "-o", "gated.jsonl", "--overwrite")
    by_judge = gradeloop(*asked)
    lines = [json.loads(line) for line in (gradeloop.folder / "gated.jsonl").read_text().splitlines()]

    assert done.code == 1
    assert "\nFAILED 0% of 80%\n" in done.out
    assert [line["passed"] for line in lines] == [False, False]
    assert lines[0]["gate"] == {"pass_if": {"label": "no match"}, "pass_rate": 0.8, "allow_errors": 0.0}
    assert next_of(by_judge.out) == ["report", "judge.yaml", "--pass", "label=no match", "--pass-rate", "0.8", "--open"]
    for words in (next_of(done.out), next_of(by_judge.out)):
        text = page(gradeloop, *words[1:-1])
        assert answer_in(text) == ("FAILED 0% of 80%", "failed")
        assert "label is no match; 80% wanted" in text
    assert answer_in(page(gradeloop, "gated.jsonl", "--pass", "label=match", "--pass-rate", "0.8")) == ("PASSED", "passed")
    summary = gradeloop("report", "gated.jsonl", "-o", "judged summary.md", "--overwrite")
    text = (gradeloop.folder / "judged summary.md").read_text()
    assert summary.code == 0, summary.err
    assert "❌ **FAILED 0% of 80%**" in text
    assert "passes: label is no match; 80% wanted" in text
    assert re.search(
        r"<code>gradeloop agreement geography/rubric-\w+\\@1 LABELS --results gated.jsonl --pass .label=no match.</code>", text
    )
    assert text.count("| not passed | match |") == 2
    refused = gradeloop("report", "latest", "--kind", "batch", "-o", "refused.md")
    assert (refused.code, "gradeloop batches export latest -o summary.md writes that of a batch" in refused.err) == (2, True)
    (gradeloop.folder / "gated one.jsonl").write_text(json.dumps(lines[0]))
    assert answer_in(page(gradeloop, "gated one.jsonl")) == ("FAILED: label is match", "failed")
    refused = gradeloop("report", "gated.jsonl", "--pass", "labl=match", "-o", "refused.html")
    assert (refused.code, "--pass 'labl=match' names no key of these judgements" in refused.err) == (2, True)
    refused = gradeloop("report", "latest", "--kind", "batch", "--pass", "label=match", "-o", "refused.html")
    assert (refused.code, "--pass and --pass-rate are for judgements" in refused.err) == (2, True)


@pytest.mark.slow
def test_a_judge_says_itself_what_passes_and_a_page_without_a_rule_says_that_none_does(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "rule.json").write_text(json.dumps(FRANCE | {"pass_if": {"label": "match"}}))
    asked = ("judge", "rule.json", "runs.jsonl", "--scripted", "replies.yaml", "--pass-rate", "1")
    done = gradeloop(*asked, "--json", "-o", "ruled.jsonl", "--overwrite")
    gradeloop("judge", "judge.yaml", "runs.jsonl", "--scripted", "replies.yaml", "-o", "unruled.jsonl", "--overwrite")

    assert (done.code, [line["passed"] for line in done.lines]) == (0, [True, True])
    assert answer_in(page(gradeloop, "ruled.jsonl")) == ("PASSED", "passed")
    assert answer_in(page(gradeloop, "rule.json")) == ("2 OF 2 PASSED", "passed")
    text = page(gradeloop, "unruled.jsonl")
    assert answer_in(text) == ("2 JUDGED: 2 match", "none")
    assert "No rule says what passes. Next: say it with <code>gradeloop report unruled.jsonl --pass label=VALUE</code>" in text
    assert answer_in(page(gradeloop, "unruled.jsonl", "--pass", "label=match")) == ("2 OF 2 PASSED", "passed")
