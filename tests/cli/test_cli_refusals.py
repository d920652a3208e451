"""What a run refuses before its first call, `validate` and `eval --check` find in the same words; no thread is shown for it."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeloop.cli import threads
from gradeloop.errors import InvalidRequest
from gradeloop.temporal import process
from gradeloop.temporal.connect import ask_worker
from tests.rig.cli import CommandLine, Done, draft, verdict

MODEL = {"model": "scripted:story"}
TOOLS = "def look(draft: str) -> bool:\n    return True\n\n\nif True:\n    async def search(draft: str) -> bool:\n        return True\n"
URL = {"id": "openai_compatible:m", "config": {"base_url": "http://198.51.100.9/v1"}}


def checked(tool: str, **arguments: Any) -> dict[str, Any]:
    """Return a rubric with one criterion that a tool decides."""
    return {"rubric": {"criteria": [{"description": "It is fine", "check": {"tool": tool, "arguments": arguments}}]}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a misspelt built-in tool": (
        checked("word_cuont", maximum=3),
        "the check of c1: unknown tool 'word_cuont'. Did you mean 'word_count'?",
    ),
    "a misspelt tool of a file": (checked("serch") | {"tools": ["tools.py"]}, "unknown tool 'serch'. Did you mean 'search'?"),
    "a misspelt argument": (checked("word_count", maximun=3), "the arguments of 'word_count': maximun: is not known here. Known: "),
    "a tool that is no check": (checked("regex_check"), "the tool 'regex_check' needs more than the draft; it needs pattern"),
    "a tool of graders alone": (checked("read_transcript"), "unknown tool 'read_transcript'"),
    "a misspelt tool of the grader": (
        {"grader": MODEL | {"tools": ["run_pyton"]}},
        "grader.tools: unknown tool 'run_pyton'. Did you mean 'run_python'?",
    ),
    "a misspelt tool of the generator": ({"generator": MODEL | {"tools": ["run_pyton"]}}, "generator.tools: unknown tool 'run_pyton'"),
    "a grader that is not a function here": ({"grader": {"function": "nobody"}}, "grader: unknown tool 'nobody'"),
    "an unknown provider of the generator": ({"generator": {"model": "opnai:gpt-5"}}, "unknown provider 'opnai'. Did you mean 'openai'?"),
    "an unknown provider of the grader": ({"grader": {"model": "opnai:gpt-5"}}, "unknown provider 'opnai'. Did you mean 'openai'?"),
    "an unknown provider of a fallback": (
        {"grader": {"model": {"id": "scripted:a", "fallback": ["opnai:gpt-5"]}}},
        "unknown provider 'opnai'",
    ),
    "an address that is not listed": ({"grader": {"model": URL}}, "base_url 'http://198.51.100.9/v1' is not allowed on this worker"),
    "a setting that the model does not take": (
        {"grader": {"model": {"id": "openai:gpt-5", "config": {"temperature": 0.5}}}},
        "temperature",
    ),
    "replies that are not named": ({"scripted": None}, "'scripted:story' needs a file of replies"),
    "a file of tools that is not Python": ({"tools": ["broken.py"]}, "broken.py' does not import: SyntaxError"),
}


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> Iterator[CommandLine]:
    """Return the command in a folder with files of tools, with keys of all providers, and with time for every refusal."""
    (commands.folder / "tools.py").write_text(TOOLS)
    (commands.folder / "broken.py").write_text("def look(:")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threads, "REFUSAL_SECONDS", 30.0)
        yield commands


def written(gradeloop: CommandLine, name: str, more: dict[str, Any]) -> tuple[str, str]:
    """Write a task, and a suite of one case that is drafted and judged in the same way, and return their names."""
    number = list(REFUSED).index(name) if name in REFUSED else len(REFUSED)
    task = gradeloop.task(f"task{number}", [draft("a"), verdict()], **more)
    fields = json.loads((gradeloop.folder / task).read_text())
    tools = {"tools": fields["tools"]} if "tools" in fields else {}
    suite = {"prompts": ["hi"], "generators": [fields["generator"]], "tests": [{"id": "one", "vars": {"q": "a"}}]}
    suite |= {key: fields[key] for key in ("grader", "rubric", "scripted") if fields.get(key) is not None} | tools
    (gradeloop.folder / f"suite{number}.yaml").write_text(json.dumps(suite))
    return task, f"suite{number}.yaml"


def why(done: Done, *around: str) -> str:
    """Return the sentence with which a command refuses, without what says where the file or the case is."""
    said = re.sub(r"(?m)^.* is not done yet, \d+ s\n", "", done.err or done.out).strip().removeprefix("gradeloop: ")
    said = re.sub(r"^the task '[^']+'(, line \d+, column \d+)?: ", "", said)
    for part in around:
        said = said.removeprefix(part)
    return said


@pytest.mark.slow
def test_run_validate_eval_and_check_refuse_with_the_same_sentence(gradeloop: CommandLine, subtests: pytest.Subtests) -> None:
    for name, (more, words) in REFUSED.items():
        with subtests.test(name):
            task, suite = written(gradeloop, name, more)
            keys = {"OPENAI_API_KEY": "a-key"}
            of_the_case = ("case 'one': ", "the case 'one': ")

            run = gradeloop("run", task, "--json", **keys)
            evaluated = gradeloop("eval", suite, **keys)
            assert words in run.err, run
            assert (run.code, evaluated.code) == (2, 2)
            assert run.out == ""
            for kept in ({"OPENAI_API_KEY": ""}, keys):
                one, two, three = (
                    gradeloop("validate", task, **kept),
                    gradeloop("validate", suite, **kept),
                    gradeloop("eval", "--check", suite, **kept),
                )
                assert (one.code, two.code, three.code) == (2, 2, 2), (one, two, three)
                assert why(one) == why(run)
                assert why(two, *of_the_case) == why(three, f"{suite}: refused: ", *of_the_case) == why(evaluated, *of_the_case)
            assert why(evaluated, *of_the_case) == why(run)


def test_what_runs_is_found_whole(gradeloop: CommandLine) -> None:
    task, suite = written(gradeloop, "", checked("search") | {"tools": ["tools.py"]})

    assert gradeloop("validate", task, suite).code == 0
    assert gradeloop("eval", "--check", suite).code == 0
    assert gradeloop("run", task, "--json").lines[0]["type"] == "thread"


@pytest.mark.slow
def test_a_file_of_tools_is_not_run_by_a_look_at_its_task(gradeloop: CommandLine, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (gradeloop.folder / "marks.py").write_text(f"open({str(mark)!r}, 'w').close()\n\n\ndef look(draft: str) -> bool:\n    return True\n")
    task, suite = written(gradeloop, "", checked("look") | {"tools": ["marks.py"]})

    assert gradeloop("validate", task, suite).code == 0
    assert gradeloop("eval", "--check", suite).code == 0
    assert not mark.exists()


@pytest.mark.parametrize("flags", [(), ("--detach",), ("--json",)])
def test_a_refused_start_shows_no_thread(gradeloop: CommandLine, flags: tuple[str, ...]) -> None:
    task, _ = written(gradeloop, "", checked("word_cuont"))

    done = gradeloop("run", task, "--thread", f"refused-{len(flags)}{''.join(flags)}", *flags)

    assert done.code == 2
    assert "refused-" not in done.out


@pytest.mark.parametrize(("tool", "deleted"), [("word_cuont", ["of-word_cuont"]), ("word_count", [])])
def test_a_thread_that_has_paid_for_a_call_is_never_deleted(
    gradeloop: CommandLine, monkeypatch: pytest.MonkeyPatch, tool: str, deleted: list[str]
) -> None:
    asked, name = list[str](), f"of-{tool}"

    async def refuses(*_: object, **__: object) -> None:
        raise InvalidRequest("refused late")

    async def deletes(_: object, thread_id: str) -> None:
        asked.append(thread_id)

    monkeypatch.setattr(threads, "follow_with_interrupts", refuses)
    monkeypatch.setattr(threads, "request_deletion", deletes)
    task, _ = written(gradeloop, "", checked(tool, maximum=99))

    done = gradeloop("run", task, "--thread", name)

    assert (done.code, asked) == (2, deleted), done.err


@pytest.mark.slow
def test_a_refused_start_leaves_no_thread_once_the_server_has_deleted_it(gradeloop: CommandLine) -> None:
    task, _ = written(gradeloop, "", checked("word_cuont"))
    mended, _ = written(gradeloop, "a misspelt argument", checked("word_count", maximum=99))
    gradeloop("run", task, "--thread", "written-anew")

    while "exists already" in (done := gradeloop("run", mended, "--thread", "written-anew", "--json")).err:
        time.sleep(1.0)  # the server deletes a thread some 10 to 30 seconds after it was asked

    assert done.lines[0]["thread_id"] == "written-anew"


@pytest.mark.slow
def test_a_look_at_a_file_asks_a_worker_of_its_own(gradeloop: CommandLine) -> None:
    task, _ = written(gradeloop, "", checked("word_cuont"))

    assert why(gradeloop.alone("validate", task)) == why(gradeloop("validate", task))


async def test_a_slow_look_promises_nothing_that_has_begun(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(process, "NOTICE_SECONDS", 0.1)

    assert await ask_worker("requests", given=b"[]") == []
    assert re.fullmatch(r"the worker's examination is not done yet, \d+ s", caplog.messages[0])
