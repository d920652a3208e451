"""`gradeloop` typed as promptfoo's users type: the suite that is found, flags by promptfoo's names, filters, what is printed."""

import json
import os
import queue
import signal
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from gradeloop.suites.cli.eval_options import SUITE_NAMES
from tests.rig.cli import CommandLine, Done

REPLIES = [
    {"role": "generator", "text": "Hello Ada.", "when": "Ada"},
    {"role": "generator", "text": "Hello Grace.", "when": "Grace"},
    {"role": "generator", "text": "Hello nobody."},
]

GREETINGS = """
description: greetings
prompts: ["Greet {{name}}."]
providers: [{id: scripted:one, label: first}, scripted:two]
tests:
  - description: a mathematician
    vars: {name: Ada}
    metadata: {field: mathematics, tags: [early, code]}
    assert: [{type: contains, value: Ada}]
  - description: an admiral
    vars: {name: Grace}
    metadata: {field: navy}
    assert: [{type: contains, value: Ada}]
"""


@pytest.fixture
def gradeloop(commands: CommandLine, tmp_path: Path) -> CommandLine:
    """Return the command in a folder of the test's own, which has replies for scripted models."""
    write(tmp_path, {"replies.yaml": json.dumps({"replies": REPLIES})})
    return replace(commands, folder=tmp_path)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def ran(gradeloop: CommandLine, *flags: str, **variables: str) -> Done:
    """Run `eval` with the folder's replies."""
    return gradeloop("eval", "--scripted", "replies.yaml", *flags, **variables)


def results(gradeloop: CommandLine, *flags: str, **variables: str) -> list[dict[str, Any]]:
    """Run `eval` and return its cases, in the order of the suite."""
    done = ran(gradeloop, "--json", *flags, **variables)
    assert done.code in {0, 1}, done.err
    return sorted((line for line in done.lines if "id" in line), key=lambda line: line["index"])


@pytest.mark.slow
@pytest.mark.parametrize("name", SUITE_NAMES)
def test_without_a_name_the_folders_suite_is_run(gradeloop: CommandLine, name: str) -> None:
    suite = {"prompts": ["Greet Ada."], "tests": [{"assert": [{"type": "contains", "value": "Ada"}]}]}
    models = {"providers" if name.startswith("promptfoo") else "generators": ["scripted:one"]}
    write(gradeloop.folder, {name: json.dumps(suite | models)})

    done = ran(gradeloop)

    assert done.code == 0, done.err
    assert "Results: 1 passed of 1" in done.out


def test_of_several_suites_ours_come_first(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"suite.yaml": "tests: [{output: x, assert: [{type: equals, value: x}]}]", "promptfooconfig.yaml": GREETINGS})

    assert "Results: 1 passed of 1" in ran(gradeloop).out


def test_providers_are_side_by_side_with_their_outputs(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS})

    whole, without, cut = ran(gradeloop, "--table"), ran(gradeloop, "--no-table"), ran(gradeloop, "--table-cell-max-length", "5")
    piped = ran(gradeloop)

    assert whole.code == without.code == 1
    assert whole.out.splitlines()[-1].startswith("Results: 2 passed, 2 failed of 4")
    assert [line.split() for line in whole.out.splitlines() if line.startswith("case")] == [["case", "first", "scripted:two"]]
    assert whole.out.count("passed 1.00  Hello Ada.") == 2
    assert whole.out.count("failed 0.00  Hello Grace.") == 2
    assert "Hell…" in cut.out
    assert "Hello Ada" not in without.out + piped.out
    assert sorted(line.split()[0] for line in piped.out.splitlines()[:4]) == ["failed", "failed", "passed", "passed"]


FILTERS = [
    (("--filter-first-n", "1"), ["Ada", "Ada"]),
    (("-n", "1"), ["Ada", "Ada"]),
    (("--filter-pattern", "^an? a"), ["Grace", "Grace"]),
    (("--filter-providers", "^first$"), ["Ada", "Grace"]),
    (("--filter-targets", "two"), ["Ada", "Grace"]),
    (("--filter-metadata", "field=math"), ["Ada", "Ada"]),
    (("--filter-metadata", "tags=code", "--filter-metadata", "field=math"), ["Ada", "Ada"]),
    (("--filter-providers", "two", "--filter-first-n", "1"), ["Ada"]),
    (("--filter-pattern", "admiral", "--filter-first-n", "1"), ["Grace", "Grace"]),
    (("--filter-pattern", "admiral", "--limit", "1"), ["Grace"]),
]


@pytest.mark.slow
def test_filters_select_the_cases_that_run(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for flags, names in FILTERS:
        with subtests.test(str(flags)):
            write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS})

            assert [case["vars"]["name"] for case in results(gradeloop, *flags)] == names


def test_a_filter_that_selects_nothing_is_named(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS})

    done = ran(gradeloop, "--filter-metadata", "field=law")

    assert done.code == 2
    assert "--filter-metadata: 'field=law' matches no case of" in done.err


def test_a_provider_that_is_filtered_out_needs_no_key(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS.replace("scripted:two", "openai:gpt-5")})

    refused, done = ran(gradeloop), results(gradeloop, "--filter-providers", "first")

    assert "OPENAI_API_KEY" in refused.err
    assert len(done) == 2


def test_what_did_not_pass_is_run_again(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS})
    ran(gradeloop, "-o", "out.json")
    theirs = {
        "results": {
            "results": [{"success": at != 1, "failureReason": at, "vars": {"name": name}} for at, name in enumerate(("Ada", "Grace"))]
        }
    }
    write(gradeloop.folder, {"theirs.json": json.dumps(theirs)})

    for source in ("out.json", "latest", "theirs.json"):
        assert {case["vars"]["name"] for case in results(gradeloop, "--filter-failing", source, "--no-cache")} == {"Grace"}, source
    none = ran(gradeloop, "--filter-errors-only", "out.json")
    assert none.code == 2
    assert "--filter-errors-only: 'out.json' has no errors, so there is nothing to run" in none.err


def test_prompts_providers_and_tests_of_the_command_line_replace_the_files(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS})
    write(
        gradeloop.folder.parent,
        {"p1.txt": "One for {{name}}", "p2.txt": "Two for {{name}}", "who.csv": "name,__expected\nGrace,contains:Grace\n"},
    )
    above = gradeloop.folder.parent

    found = results(gradeloop, "-p", f"{above}/p1.txt", f"{above}/p2.txt", "-r", "two", "scripted:three", "-t", f"{above}/who.csv")

    assert [(case["prompt"], case["label"], case["status"]) for case in found] == [
        ("p1", "scripted:two", "passed"),
        ("p1", "scripted:three", "passed"),
        ("p2", "scripted:two", "passed"),
        ("p2", "scripted:three", "passed"),
    ]


def test_flags_alone_make_a_suite(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"who.csv": "name,__expected\nGrace,contains:Grace\nAda,contains:Grace\n"})

    found = results(gradeloop, "-p", "Greet {{name}}.", "-r", "scripted:one", "-t", "who.csv")

    assert [case["status"] for case in found] == ["passed", "failed"]


def test_a_variable_of_the_command_line_is_a_default(gradeloop: CommandLine) -> None:
    text = "prompts: ['{{greeting}} {{name}}']\nproviders: [scripted:one]\ntests:\n"
    text += "".join(
        f"  - {{vars: {vars_}, assert: [{{type: contains, value: Ada}}]}}\n" for vars_ in ("{name: Ada}", "{name: Ada, greeting: Hi}")
    )
    write(gradeloop.folder, {"promptfooconfig.yaml": text})

    assert [case["vars"]["greeting"] for case in results(gradeloop, "--var", "greeting=Good=day")] == ["Good=day", "Hi"]


@pytest.mark.slow
def test_a_batch_is_called_as_the_flag_says(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"c.yaml": GREETINGS})

    done = ran(gradeloop, "-c", "c.yaml", "--description", "release 12", "-j", "2", "--delay", "1")
    listed = json.loads(gradeloop("batches", "list", "--json").out)

    assert done.code == 1, done.err
    assert listed[0]["name"] == "release 12"
    assert listed[0]["batch_id"].startswith("release-12-")


@pytest.mark.slow
def test_a_delay_makes_one_call_at_a_time(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS})

    ran(gradeloop, "--delay", "2", "--max-concurrency", "20")
    batch = json.loads(gradeloop("batches", "list", "--json").out)[0]["batch_id"]
    request = stored_request(gradeloop, batch)

    assert (request["delay"], request["at_once"]) == (2, 1)


def stored_request(gradeloop: CommandLine, batch: str) -> dict[str, Any]:
    """Return the request of a batch, as the store has it."""
    import sqlite3

    from gradeloop.store.engine import STORE_FILE

    with closing(sqlite3.connect(gradeloop.state / STORE_FILE)) as store:
        row = store.execute("SELECT request FROM batches WHERE id = ?", (batch,)).fetchone()
    found: dict[str, Any] = json.loads(row[0])
    return found


def test_an_env_file_has_keys_for_the_worker_alone(gradeloop: CommandLine) -> None:
    secret = "sk-from-the-env-file-0123456789"
    write(
        gradeloop.folder, {"promptfooconfig.yaml": GREETINGS.replace("scripted:two", "openai:gpt-5"), ".env": f"OPENAI_API_KEY={secret}\n"}
    )

    ignored, refused = gradeloop("validate"), gradeloop("validate", "--env-file", "replies.yaml")
    done = gradeloop("validate", "--env-file", ".env", OPENAI_API_KEY="")

    assert (ignored.code, refused.code) == (2, 2)
    assert "not NAME=VALUE" in refused.err
    assert "scripted" in done.err
    assert secret not in done.err + done.out
    assert "OPENAI_API_KEY" not in os.environ


def test_the_commands_beside_eval_show_export_and_retry_the_newest_batch(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS})
    ran(gradeloop, "-o", "out.json", "-o", "out.yaml")
    batch = json.loads((gradeloop.folder / "out.json").read_text())["summary"]["batch_id"]

    viewed, plain, named = (
        gradeloop("view", "-n"),
        gradeloop("export"),
        gradeloop("export", "eval", batch, "-o", "again.txt", "-o", "again.md"),
    )
    retried = gradeloop("retry", batch)

    assert viewed.code == plain.code == named.code == 0, viewed.err + plain.err + named.err
    page = Path(viewed.out.split()[1])
    assert page.is_relative_to(gradeloop.state)
    assert batch in page.read_text()
    assert json.loads(plain.out)["summary"]["batch_id"] == batch
    assert (gradeloop.folder / "again.txt").read_text().count("  | Hello") == 4
    assert retried.code == 1, retried.err
    assert "Results: 2 passed, 2 failed of 4" in retried.out


def test_a_suite_is_validated_without_a_call(gradeloop: CommandLine) -> None:
    suite = GREETINGS.replace("scripted:", "openai:gpt-")
    write(gradeloop.folder, {"promptfooconfig.yaml": suite, "bad.yaml": suite.replace("type: contains", "type: contain", 1)})

    good, bad = gradeloop("validate", OPENAI_API_KEY="sk-0"), gradeloop("validate", "-c", "bad.yaml", OPENAI_API_KEY="sk-0")
    theirs = gradeloop("validate", "config", "-c", "promptfooconfig.yaml", "--json", OPENAI_API_KEY="sk-0")

    assert good.code == 0, good.err
    assert good.out == "promptfooconfig.yaml: 4 cases; it can run\n"
    assert bad.code == 2
    assert "Did you mean 'contains'?" in bad.err
    assert theirs.result == {"file": "promptfooconfig.yaml", "kind": "suite", "cases": 4, "notes": []}


def test_a_configuration_is_converted_and_runs_alike(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS})

    shown, done, again = gradeloop("convert"), gradeloop("convert", "-o", "ours.yaml"), gradeloop("convert", "-o", "ours.yaml")

    assert shown.out == (gradeloop.folder / "ours.yaml").read_text()
    assert done.out == "wrote ours.yaml; run it with: gradeloop eval ours.yaml\n"
    assert again.code == 2
    assert "'ours.yaml' exists; name another file, or replace it with --overwrite" in again.err
    assert [case["status"] for case in results(gradeloop, "ours.yaml")] == ["passed", "passed", "failed", "failed"]


class Told:
    """What a process says, read as it comes."""

    def __init__(self, stream: IO[str]) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._seen: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, text: str) -> None:
        """Wait for the next line with a text."""
        while (line := self._lines.get(timeout=60)) is not None:
            self._seen.append(line)
            if text in line:
                return
        raise AssertionError(f"it ended without {text!r}: {''.join(self._seen)}")

    def whole(self) -> str:
        """Return all that was said, once the process has ended."""
        while (line := self._lines.get(timeout=60)) is not None:
            self._seen.append(line)
        return "".join(self._seen)


@pytest.mark.slow
def test_a_watched_suite_is_run_again_when_a_file_of_it_changes(gradeloop: CommandLine) -> None:
    write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS})
    process = gradeloop.start("eval", "--scripted", "replies.yaml", "--watch", "--no-table", "-o", "out.json")
    assert process.stdout
    assert process.stderr
    told = Told(process.stderr)

    def results_line() -> str:
        return next(line for line in process.stdout or () if line.startswith("Results:"))

    first = results_line()
    told.wait_for("waiting for changes; Ctrl-C ends the watch")  # a change before that is seen, too, but may begin a run of its own
    write(gradeloop.folder, {"promptfooconfig.yaml": "prompts: ["})
    told.wait_for("correct the YAML there")
    told.wait_for("waiting for changes")
    write(gradeloop.folder, {"promptfooconfig.yaml": GREETINGS.replace("{name: Grace}", "{name: Ada}")})
    second = results_line()
    told.wait_for("waiting for changes")
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    err = told.whole()

    assert first.startswith("Results: 2 passed, 2 failed of 4")
    assert second.startswith("Results: 4 passed of 4")
    assert process.returncode == 130
    assert "changed: promptfooconfig.yaml" in err
    assert "changed: out.json" not in err
