"""Files that others wrote name only files below their own folder: whatever reaches further is refused by its name."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gradeloop.errors import InvalidRequest
from gradeloop.grading.grants import named_in
from gradeloop.suites.flags import SuiteFlags
from tests.rig.cli import CommandLine
from tests.rig.suites import cases, refusal

SECRET = "sk-canary-7f3a9b2c4d5e6f70"

SECRETS = {
    ".txt": SECRET,
    ".yaml": f"- {{role: user, content: {SECRET}}}",
    ".csv": f"question,output\n{SECRET},{SECRET}\n",
    ".json": json.dumps([{"vars": {"q": SECRET}, "output": SECRET}]),
    ".py": f"raise SystemExit('{SECRET}')",
    ".jsonl": "",
}

CRITERION = {"description": "it is good"}
GIVEN = {"output": "x"}
JUDGED = {"rubric": "- it is good", "grader": "scripted:g", "scripted": "replies.yaml"}
ASSERTED = [{"type": "contains", "value": "x"}]


@dataclass(frozen=True)
class Field:
    """A field that takes a path."""

    name: str
    command: tuple[str, ...]
    content: Any
    """The file's content, with PATH for the path."""
    suffix: str = ".txt"
    more: tuple[tuple[str, Any], ...] = ()
    """Further files beside it."""


def suite(name: str, suffix: str = ".txt", more: tuple[tuple[str, Any], ...] = (), **fields: Any) -> Field:
    """Return a field of a suite."""
    return Field(f"suite {name}", ("eval", "suite.yaml"), {**JUDGED, "tests": [GIVEN]} | fields, suffix, more)


def promptfoo(name: str, suffix: str = ".txt", more: tuple[tuple[str, Any], ...] = (), **fields: Any) -> Field:
    """Return a field of a configuration of promptfoo."""
    given = {"prompts": ["ask"], "providers": ["echo"], "tests": [{"assert": ASSERTED}]}
    return Field(f"promptfoo {name}", ("eval", "promptfooconfig.yaml"), given | fields, suffix, more)


def task(name: str, suffix: str = ".txt", **fields: Any) -> Field:
    """Return a field of a task."""
    given = {"prompt": "Write it.", "generator": {"model": "scripted:s"}, "grader": {"model": "scripted:s"}}
    return Field(f"task {name}", ("run", "task.yaml"), {**given, "rubric": "- r", "scripted": "replies.yaml"} | fields, suffix)


PROMPT = {**CRITERION, "prompt": "file://PATH"}
RUBRICS = {
    "prompt": {"criteria": [CRITERION], "prompt": "file://PATH"},
    "criterion": {"criteria": [PROMPT]},
    "criterion in a group": {"criteria": [{"group": "g", "criteria": [PROMPT]}]},
}
INNER = (("inner.yaml", RUBRICS["criterion"]),)
ASSERTING = [{"type": "llm-rubric", "value": "file://PATH"}]
OPTIONS = {"rubricPrompt": "file://PATH"}

FIELDS = (
    suite("prompts", prompts=["file://PATH"]),
    suite("prompt", prompts="file://PATH"),
    suite("prompts text", prompts=[{"text": "file://PATH"}]),
    suite("prompts messages", ".yaml", prompts=[{"messages": "file://PATH"}]),
    suite("rubric", rubric="file://PATH"),
    *(suite(f"rubric {name}", rubric=rubric) for name, rubric in RUBRICS.items()),
    suite("a rubric's file", more=INNER, rubric="file://inner.yaml"),
    *(suite(f"defaults rubric {name}", rubric=None, defaults={"rubric": rubric}) for name, rubric in RUBRICS.items()),
    suite("defaults rubric", rubric=None, defaults={"rubric": "file://PATH"}),
    suite("defaults vars", defaults={"vars": {"leak": "file://PATH"}}),
    suite("defaults vars, nested", defaults={"vars": {"a": {"b": ["file://PATH"]}}}),
    suite("defaults assert", rubric=None, defaults={"assert": ASSERTING}),
    suite("defaults options", rubric=None, defaults={"assert": [{"type": "llm-rubric", "value": "v"}], "options": OPTIONS}),
    suite("tests", ".csv", tests="PATH"),
    suite("tests list", ".csv", tests=["PATH"]),
    suite("tests url", ".csv", tests=["file://PATH"]),
    suite("test vars", tests=[{**GIVEN, "vars": {"leak": "file://PATH"}}]),
    suite("test rubric", tests=[{**GIVEN, "rubric": "file://PATH"}]),
    *(suite(f"test rubric {name}", tests=[{**GIVEN, "rubric": rubric}]) for name, rubric in RUBRICS.items()),
    suite("a test's rubric's file", more=INNER, tests=[{**GIVEN, "rubric": "file://inner.yaml"}]),
    suite("test assert", tests=[{**GIVEN, "assert": ASSERTING}]),
    suite("test options", tests=[{**GIVEN, "assert": ASSERTED, "options": OPTIONS}]),
    suite("tools", ".py", tools="PATH"),
    suite("tools list", ".py", tools=["PATH"]),
    suite("scripted", ".yaml", scripted="PATH"),
    promptfoo("prompts", prompts=["file://PATH"]),
    promptfoo("prompt", prompts="file://PATH"),
    promptfoo("prompts id", prompts=[{"id": "file://PATH", "label": "l"}]),
    promptfoo("prompts raw", prompts=[{"raw": "file://PATH", "label": "l"}]),
    promptfoo("defaultTest", ".yaml", defaultTest="file://PATH"),
    promptfoo("defaultTest vars", defaultTest={"vars": {"leak": "file://PATH"}}),
    promptfoo("defaultTest assert", defaultTest={"assert": [{"type": "contains", "value": "file://PATH"}]}),
    promptfoo("defaultTest options", defaultTest={"options": OPTIONS}),
    promptfoo("tests", ".csv", tests="PATH"),
    promptfoo("tests url", ".csv", tests=["file://PATH"]),
    promptfoo("test vars", tests=[{"vars": {"leak": "file://PATH"}, "assert": ASSERTED}]),
    promptfoo("test assert", tests=[{"assert": [{"type": "contains", "value": "file://PATH"}]}]),
    promptfoo("test options", tests=[{"assert": ASSERTED, "options": OPTIONS}]),
    promptfoo("row", more=(("rows.json", [{"vars": {"leak": "file://PATH"}, "assert": ASSERTED}]),), tests="rows.json"),
    promptfoo("outputPath", ".jsonl", outputPath="PATH"),
    promptfoo("outputPath list", ".jsonl", outputPath=["ours.json", "PATH"]),
    *(task(f"rubric {name}", rubric=rubric) for name, rubric in RUBRICS.items()),
    task("tools", ".py", tools="PATH"),
    task("tools list", ".py", tools=["PATH"]),
    task("scripted", ".yaml", scripted="PATH"),
    *(Field(f"rubric {name}", ("rubric", "check", "r.yaml"), rubric) for name, rubric in RUBRICS.items()),
    *(Field(f"run --rubric {name}", ("run", "--prompt", "p", "--rubric", "r.yaml"), rubric) for name, rubric in RUBRICS.items()),
    *(Field(f"judge {name}", ("judge", "j.yaml", "run.txt"), {"rubric": rubric}) for name, rubric in RUBRICS.items()),
    *(Field(f"judge's rubric {name}", ("judge", "j.yaml", "run.txt"), rubric) for name, rubric in RUBRICS.items()),
    *(Field(f"registered {name}", ("registry", "create", "mine", "j.yaml"), rubric) for name, rubric in RUBRICS.items()),
    Field("converted", ("rubric", "convert", "c.yaml"), [{"type": "contains", "value": "file://PATH"}]),
)

WAYS = ("../outside/secret", "/outside/secret", "linked", "folder/secret", "/proc/self/environ")
"""Ways out: up, absolute, through a linked file, through a linked folder, and into the kernel's own files."""


@pytest.fixture(scope="module")
def gradeloop(tmp_path_factory: pytest.TempPathFactory) -> CommandLine:
    """Return the command in a folder with links out of it, beside a folder with secrets."""
    top = tmp_path_factory.mktemp("top")
    folder, outside = top / "suite", top / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "folder").symlink_to(outside)
    (folder / "replies.yaml").write_text("replies: [{role: grader, text: x}]")
    (folder / "run.txt").write_text("A run.")
    for suffix, text in SECRETS.items():
        (outside / f"secret{suffix}").write_text(text)
        (folder / f"linked{suffix}").symlink_to(outside / f"secret{suffix}")
    return CommandLine(tmp_path_factory.mktemp("state"), folder)


def written(folder: Path, field: Field, path: str) -> tuple[str, ...]:
    """Write the files of a field, and return the command that reads them."""
    name = next(word for word in field.command if word.endswith(".yaml"))
    for file, content in ((name, field.content), *field.more):
        (folder / file).write_text(json.dumps(content).replace("PATH", path))
    return field.command


def paths(folder: Path, suffix: str, at: int) -> Iterator[str]:
    """Yield two of the paths that lead out of the folder, others for the next number."""
    for way in (WAYS[at % len(WAYS)], WAYS[(at + 2) % len(WAYS)]):
        path = way.replace("/outside", str(folder.parent / "outside")) if way.startswith("/outside") else way
        yield path if path.startswith("/proc") else f"{path}{suffix}"


def test_there_are_enough_fields() -> None:
    assert len(FIELDS) * len(WAYS) >= 40


def test_no_field_reaches_out_of_its_folder(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for at, field in enumerate(FIELDS):
        with subtests.test(field=field.name):
            for path in paths(gradeloop.folder, field.suffix, at):
                done = gradeloop(*written(gradeloop.folder, field, path), LEAK=SECRET)

                assert done.code == 2, (path, done)
                assert f"'{path}' lies outside of the folder" in done.err
                assert "--allow-outside" in done.err
                assert SECRET not in done.out + done.err


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_never_opened(gradeloop: CommandLine, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(gradeloop.folder / "pipe.txt")
    path = "pipe.txt" if kind == "pipe" else "/dev/zero"
    written(gradeloop.folder, suite("vars", tests=[{**GIVEN, "vars": {"endless": f"file://{path}"}}]), "")

    done = gradeloop("eval", "suite.yaml", "--allow-outside", "/")

    assert done.code == 2
    assert ("is a device, a pipe or a socket" if kind == "pipe" else "'/dev/zero' lies outside of the folder") in done.err


@pytest.mark.parametrize("pattern", ["../outside/*.csv", "../*/secret.csv", "*/../../outside/secret.csv", "folder/*.csv", "link*.csv"])
def test_a_pattern_finds_nothing_outside(gradeloop: CommandLine, pattern: str) -> None:
    written(gradeloop.folder, suite("tests", tests=pattern), "")

    done = gradeloop("eval", "suite.yaml")

    assert done.code == 2
    assert "lies outside of the folder" in done.err or "has '..' after a '*'" in done.err


def test_a_prompt_that_names_a_file_of_promptfoo_without_saying_so_reaches_no_further(gradeloop: CommandLine) -> None:
    written(gradeloop.folder, promptfoo("prompts", prompts=["../outside/secret.txt"]), "")

    assert "'../outside/secret.txt' lies outside of the folder" in gradeloop("eval", "promptfooconfig.yaml").err


def test_a_folder_that_is_allowed_is_read(gradeloop: CommandLine) -> None:
    rubric = {"criteria": [PROMPT]}
    outside = gradeloop.folder.parent / "outside"
    (outside / "grader.txt").write_text("Judge {{ output }}")
    (gradeloop.folder / "r.yaml").write_text(json.dumps(rubric).replace("PATH", "../outside/grader.txt"))

    assert gradeloop("rubric", "check", "r.yaml").code == 2
    assert gradeloop("rubric", "check", "r.yaml", "--allow-outside", "../outside").code == 0
    (gradeloop.folder / "gradeloop.toml").write_text('[files]\nallow_outside = ["../outside"]\n')
    assert gradeloop("rubric", "check", "r.yaml").code == 2
    assert gradeloop("trust").code == 0
    assert gradeloop("rubric", "check", "r.yaml").code == 0
    (gradeloop.folder / "gradeloop.toml").unlink()
    refused = gradeloop("rubric", "check", "r.yaml", "--allow-outside", "absent")
    assert refused.err == "gradeloop: --allow-outside: 'absent' is not a folder; correct the path\n"


def test_a_link_that_stays_inside_is_followed(gradeloop: CommandLine) -> None:
    (gradeloop.folder / "grader.txt").write_text("Judge {{ output }}")
    (gradeloop.folder / "alias.txt").symlink_to("grader.txt")
    written(gradeloop.folder, Field("", ("rubric", "check", "r.yaml"), {"criteria": [PROMPT]}), "alias.txt")

    assert gradeloop("rubric", "check", "r.yaml").code == 0


CODE = {"language": "python", "code": "True"}
CHARGE = {"activity": "charge_card", "task_queue": "payments"}
CALLS: dict[str, dict[str, Any]] = {
    "grader": {"grader": CHARGE},
    "grader.tools[0]": {"grader": {"model": "scripted:g", "tools": [{"name": "charge", "description": "x", **CHARGE}]}},
    "rubric.criteria[0].grader": {"rubric": {"criteria": [CRITERION | {"grader": CHARGE}]}},
    "rubric.criteria[0].panel[1]": {"rubric": {"criteria": [CRITERION | {"panel": ["scripted:g", CHARGE]}]}},
}


@pytest.mark.parametrize("place", CALLS)
def test_a_row_of_a_dataset_names_no_queue_that_the_suite_itself_does_not_name(tmp_path: Path, place: str) -> None:
    row = json.dumps({"vars": {"q": "x"}, "output": "x"} | CALLS[place])
    listed = {**JUDGED, "tests": ["rows.jsonl"]}
    named = listed | {"generators": [{"activity": "draft", "task_queue": "payments"}]}

    refused = refusal(tmp_path, json.dumps(listed), rows_jsonl=row)
    (case,) = cases(tmp_path, json.dumps(named), rows_jsonl=row)

    assert f": {place}.task_queue: the queue 'payments' was not granted; leave it out, or name a queue in the suite's own" in refused
    assert case.output == "x"


@pytest.mark.parametrize("place", CALLS)
def test_a_test_of_the_suite_itself_names_its_queue(tmp_path: Path, place: str) -> None:
    (case,) = cases(tmp_path, json.dumps({**JUDGED, "tests": [GIVEN | CALLS[place]]}))

    assert "payments" in case.model_dump_json()


@pytest.mark.parametrize(
    "criterion",
    [
        {"check": {"tool": "code_check", "arguments": CODE}},
        {
            "check": {
                "tool": "text_check",
                "arguments": {"kind": "contains", "value": "x"},
                "transform": {"language": "python", "code": "1"},
            }
        },
        {"form": "pass_score", "transform": CODE},
    ],
)
def test_code_in_a_rubric_is_allowed_as_code_in_assertions_is(tmp_path: Path, criterion: dict[str, Any]) -> None:
    written = json.dumps({**JUDGED, "rubric": {"criteria": [CRITERION | criterion]}, "tests": [GIVEN]})

    refused = refusal(tmp_path, written)
    (case,) = cases(tmp_path, written, SuiteFlags(allow_code=True))

    assert "the code 'python' was not granted; leave it out, or name a queue in the suite's own file and allow code with --allow" in refused
    assert case.output == "x"


@pytest.mark.parametrize(
    "fields",
    [
        {"providers": [CHARGE]},
        {"providers": [{"id": "openai:gpt-5", "config": CHARGE}], "tests": [{"assert": [{"type": "llm-rubric", "value": "x"}]}]},
        {"tests": [{"assert": [{"type": "llm-rubric", "value": "x", "provider": CHARGE}]}]},
        {"defaultTest": {"options": {"provider": CHARGE}, "assert": [{"type": "llm-rubric", "value": "x"}]}},
        {"tests": [{"grader": CHARGE, "assert": ASSERTED}]},
        {"tests": [{"rubric": {"criteria": [CRITERION | {"grader": CHARGE}]}}]},
        {"tests": "rows.jsonl"},
    ],
)
def test_a_configuration_of_promptfoos_has_no_activity_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-any")
    given = {"prompts": ["ask"], "providers": ["echo"], "tests": [{"assert": ASSERTED}]} | fields
    row = json.dumps({"vars": {"q": "x"}, "grader": CHARGE, "assert": ASSERTED})

    try:
        made = cases(tmp_path, json.dumps(given), name="promptfooconfig.yaml", rows_jsonl=row)
    except InvalidRequest:
        return
    assert not [named for case in made for named in named_in(case) if named.kind == "queue"]
