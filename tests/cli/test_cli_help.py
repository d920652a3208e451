"""The command line's help: groups, plain sentences, unknown names, shell completion, and the page that is written from it."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from deploy.site.describe_commands import build_reference
from gradeloop import exit_codes
from gradeloop.cli.commands import HIDDEN, command_groups
from gradeloop.cli.main import app
from gradeloop.contract.base import describe_fields
from gradeloop.settings.worker import WorkerSettings
from tests.test_house import BIN, loaded_by, of_packages

TOP: Any = typer.main.get_command(app)
TOP.load_all()
PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HEAVY = (
    "anthropic",
    "openai",
    "google.genai",
    "temporalio",
    "sqlalchemy",
    "rich",
    "workflows",
    "activities",
    "pydantic",
    "asyncio",
    "starlette",
    "uvicorn",
    "jinja2",
)


def commands(command: Any = TOP, path: str = "gradeloop") -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


def sentences() -> Iterator[tuple[str, str]]:
    """Yield every help text, with the command or flag that it describes."""
    for path, command in commands():
        yield path, command.help
        yield from ((f"{path} {param.name}", param.help) for param in command.params if "completion" not in param.name)
    describe_fields(WorkerSettings)
    for path, model in (
        ("worker", WorkerSettings),
        *((f"worker {name}", field.annotation) for name, field in WorkerSettings.model_fields.items()),
    ):
        for name, field in getattr(model, "model_fields", {}).items():
            if not hasattr(field.annotation, "model_fields"):
                yield f"{path} {name}", field.description


def test_the_page_of_commands_is_written_from_them() -> None:
    assert PAGE.read_text() == build_reference(), "run make docs"


@pytest.mark.slow
def test_the_page_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = build_reference()
    monkeypatch.setenv("COLUMNS", "40")

    assert build_reference() == wide


NAMED = re.compile(r"(?:`|: )gradeloop((?: [a-z][a-z-]+)+)")
"""A command in a text: in backticks, or at a sentence's end."""


def test_every_command_that_a_text_names_is_one() -> None:
    root, absent = PAGE.parents[1], list[str]()
    folders = (root / name for name in ("src", "activities", "workflows", "docs"))
    texts = [path for folder in folders for path in folder.rglob("*") if path.suffix in {".py", ".md", ".html", ".js", ".toml", ".yaml"}]
    for path in [*texts, root / "worker.py", root / "README.md"]:
        for found in NAMED.finditer(path.read_text().replace(": gradeloop", ":") if path.suffix == ".md" else path.read_text()):
            command = TOP
            for word in found[1].split():
                if hasattr(command, "commands"):
                    if word not in command.commands:
                        absent.append(f"{path.relative_to(root)}: gradeloop{found[1]}")
                        break
                    command = command.commands[word]
    assert not absent


def test_every_command_stands_in_one_group() -> None:
    assert sorted(name for rows in command_groups().values() for name in rows) == sorted(TOP.commands)


def test_the_sentence_that_help_prints_is_the_commands_own() -> None:
    printed = {name: command.help for rows in command_groups().values() for name, command in rows.items()}

    assert printed == {name: TOP.commands[name].short_help or TOP.commands[name].help for name in printed}


@pytest.mark.parametrize("columns", ["80", "200"])
def test_the_commands_are_listed_in_groups_without_being_cut(columns: str) -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": columns}, prog_name="gradeloop").output

    titles = [line.removesuffix(":") for line in shown.splitlines() if line.removesuffix(":") in command_groups()]
    assert [*filter(None, titles)] == [title for title in command_groups() if title != HIDDEN]
    assert [name for name, command in TOP.commands.items() if (f"  {name} " in shown) == command.hidden] == []
    assert "..." not in shown.partition("Run and watch a thread:")[2]


def test_every_help_is_a_plain_sentence() -> None:
    texts = list(sentences())
    whole = re.compile(r"[A-Z`].*[.]|Retries per call.*", re.DOTALL)
    clever = re.compile(r"(Of|By|For|In|From)\b|.*\b(told|stands|held|borne|somebody)\b", re.DOTALL)

    assert [place for place, text in texts if not text or not whole.fullmatch(text) or clever.match(text)] == []


UNKNOWN = [
    ("registri list demo", "No such command 'registri'. Did you mean 'registry'"),
    ("batches shw latest", "No such command 'shw'. Did you mean 'show'?"),
    ("rubrics list demo", "No such command 'rubrics'. Did you mean 'rubric'?"),
    ("eval file.yaml --concurency 3", "No such option: --concurency (Possible options: --concurrency"),
    ("eval file.yaml --at-once=3", "No such option: --at-once"),
    ("judge judge.yaml --repeats 3", "No such option: --repeats"),
]


def test_an_unknown_command_or_flag_fails_with_the_names_that_are_close(subtests: pytest.Subtests) -> None:
    for given, said in UNKNOWN:
        with subtests.test(given):
            done = CliRunner().invoke(app, given.split(), prog_name="gradeloop")

            assert done.exit_code == 2
            assert said in done.stderr


def test_a_command_says_its_own_exit_codes() -> None:
    named = {name for name in exit_codes.CODES if name and name != "worker"}

    assert {path.split()[-1] for path, command in commands() if command.epilog} == named
    for name in named:
        shown = CliRunner().invoke(app, [name, "--help"]).output
        assert all(
            re.search(rf"^ +{code} +{re.escape(meaning)}$", shown, flags=re.MULTILINE) for code, meaning in exit_codes.CODES[name].items()
        )


def test_the_shell_completes_commands_and_flags() -> None:
    def completed(words: str) -> list[str]:
        given = {"_GRADELOOP_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        return CliRunner().invoke(app, [], env=given, prog_name="gradeloop").stdout.split()

    assert sorted(completed("gradeloop e")) == ["eval"]
    assert completed("gradeloop registry ") == ["create", "add", "list", "show"]
    assert completed("gradeloop eval --scr") == ["--scripted"]


@pytest.mark.slow
def test_a_shell_is_answered_with_completions_and_the_script_that_asks_for_them() -> None:
    for given, arguments, said in (
        ({"_GRADELOOP_COMPLETE": "complete_bash", "COMP_WORDS": "gradeloop ev", "COMP_CWORD": "1"}, (), "eval\n"),
        ({"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}, ("--show-completion", "bash"), "_GRADELOOP_COMPLETE=complete_bash"),
    ):
        done = subprocess.run([BIN / "gradeloop", *arguments], env=os.environ | given, capture_output=True, text=True, check=True)
        assert said in done.stdout


def test_help_loads_nothing_heavy() -> None:
    assert of_packages(HEAVY, loaded_by(str(BIN / "gradeloop"), "--help")) == set()


def test_no_summary_of_a_groups_commands_is_cut(subtests: pytest.Subtests) -> None:
    for group in [name for name, command in TOP.commands.items() if hasattr(command, "commands")]:
        with subtests.test(group):
            shown = CliRunner().invoke(app, [group, "--help"], env={"COLUMNS": "80"}, prog_name="gradeloop").output

            assert "..." not in shown.partition("Commands:")[2]


def test_a_gate_of_diff_shows_the_values_that_it_takes() -> None:
    shown = CliRunner().invoke(app, ["diff", "--help"], env={"COLUMNS": "120"}, prog_name="gradeloop").output

    assert "regressions|errors|unsure|criteria|any" in shown
