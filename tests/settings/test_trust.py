"""A folder's gradeloop.toml: what of it counts before its user trusts it, and what ends the trust."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gradeloop.errors import InvalidRequest
from gradeloop.settings.trust import TRUST_FILE, find_config_file, trust
from gradeloop.settings.worker import load_settings
from tests.rig.cli import CommandLine, draft, verdict

SETTINGS = """
tools = ["tools.py"]
max_concurrent_activities = 7
[commands.check]
argv = ["{python}", "scripts/check.py", "--strict"]
[commands.module]
argv = ["{python}", "-m", "checks.strict"]
[commands.joined]
argv = ["{python}", "-mjoined"]
[commands.code]
argv = ["{python}", "-c", "import coded; coded.run()"]
[mcp.wiki]
command = ["./wiki.sh"]
tools = ["search"]
[pytest.suites]
all = "suite"
[sandbox]
seconds = 3
"""

CODE = {
    "tools.py": "import helper, json\n\ndef shout() -> str:\n    'Shout.'\n    from kit.words import loud\n    return loud('x')\n",
    "helper.py": "import importlib\nimportlib.import_module('late')\n",
    "late.py": "from src_only import value\n",
    "src/src_only.py": "value = 1\n",
    "kit/__init__.py": "",
    "kit/words.py": "from . import louder\n",
    "kit/louder.py": "import beside\n",
    "beside/part.py": "",
    "scripts/check.py": "import near\nprint(1)\n",
    "scripts/near.py": "",
    "checks/__init__.py": "",
    "checks/strict.py": "from checks import parts\n",
    "checks/parts.py": "",
    "joined.py": "",
    "coded.py": "",
    "wiki.sh": "exit 0\n",
    "suite/test_it.py": "def test_it(): pass\n",
    "suite/deep/data.json": "{}\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, with settings that name code of every kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gradeloop.toml").write_text(SETTINGS.format(python=shutil.which("sh")))
    for name, text in CODE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def trusted(folder: Path) -> bool:
    """Return whether the folder's settings are trusted."""
    config = find_config_file((), {})
    assert config is not None
    assert config.path == folder / "gradeloop.toml"
    return config.trusted


def test_only_what_names_no_code_command_host_or_path_counts_before(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = load_settings([])

    assert (settings.max_concurrent_activities, settings.sandbox.seconds) == (7, 3)
    assert (settings.tools, settings.commands, settings.mcp, settings.pytest.suites) == ([], {}, {}, {})
    assert settings.uncounted == ("tools", "commands", "mcp", "pytest")
    (said,) = caplog.messages
    assert said.startswith(f"{folder / 'gradeloop.toml'} is not trusted, so these of its settings do not count: tools, commands, mcp, ")
    assert said.endswith("pytest; read it, then run: gradeloop trust")


def test_all_of_it_counts_once_it_is_trusted(folder: Path) -> None:
    assert not trusted(folder)
    trust(Path("gradeloop.toml"))

    assert trusted(folder)
    assert load_settings([]).tools == [folder / "tools.py"]
    assert load_settings([]).uncounted == ()


@pytest.mark.parametrize("arguments", [("--config", "gradeloop.toml"), ("--config=gradeloop.toml",), ("--trust",)])
def test_who_names_the_file_or_says_trust_needs_nothing_more(folder: Path, arguments: tuple[str, ...]) -> None:
    assert load_settings(arguments).tools == [folder / "tools.py"]


@pytest.mark.parametrize("variables", [{"GRADELOOP_CONFIG": "gradeloop.toml"}, {"GRADELOOP_TRUST": "true"}])
def test_so_do_the_variables(folder: Path, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert load_settings([]).tools == [folder / "tools.py"]


def appended(name: str) -> Callable[[Path], object]:
    """Return what changes a file."""
    return lambda folder: (folder / name).write_text((folder / name).read_text() + "\n# changed\n")


def linked(folder: Path) -> None:
    """Put a link in the place of a file."""
    (folder / "wiki.sh").unlink()
    (folder / "wiki.sh").symlink_to("scripts/check.py")


CHANGES: dict[str, Callable[[Path], object]] = {
    "the settings": appended("gradeloop.toml"),
    **{name: appended(name) for name in CODE},
    "a new test": lambda folder: (folder / "suite" / "conftest.py").write_text("import os"),
    "a new part of a package": lambda folder: (folder / "kit" / "more.py").write_text(""),
    "no tools": lambda folder: (folder / "tools.py").unlink(),
    "a link": linked,
}


def test_a_change_of_the_file_or_of_any_code_that_it_names_ends_the_trust(folder: Path, subtests: pytest.Subtests) -> None:
    for name, change in CHANGES.items():
        with subtests.test(name=name):
            trust(folder)
            assert trusted(folder)

            change(folder)

            assert not trusted(folder)
            trust(folder)
            assert trusted(folder)


def test_what_python_writes_by_itself_changes_nothing(folder: Path) -> None:
    trust(folder)
    (folder / "suite" / "__pycache__").mkdir()
    (folder / "suite" / "__pycache__" / "test_it.pyc").write_bytes(b"x")

    assert trusted(folder)


def test_what_the_code_does_not_import_changes_nothing(folder: Path) -> None:
    (folder / "json").mkdir()
    (folder / "broken.py").write_text("def")
    (folder / "tools.py").write_text((folder / "tools.py").read_text() + "\nimport broken\n")
    trust(folder)
    for name in ("json/rows.json", "other.py", "kit/cache.db", "scripts/other.py"):
        (folder / name).write_text("1")

    assert trusted(folder)


def test_a_copy_elsewhere_is_not_trusted(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    trust(folder)
    other = tmp_path_factory.mktemp("other")
    shutil.copytree(folder, other, dirs_exist_ok=True)
    monkeypatch.chdir(other)

    assert not trusted(other)


def test_trust_is_kept_by_path_and_sha256_in_the_state_folder_of_the_user_alone(folder: Path, environment: Path) -> None:
    trust(folder)

    kept = json.loads((environment / TRUST_FILE).read_text())
    assert list(kept) == [str(folder / "gradeloop.toml")]
    assert len(kept[str(folder / "gradeloop.toml")]) == 64


def test_a_file_that_never_was_trusted_is_not_gone_through(folder: Path) -> None:
    os.mkfifo(folder / "endless")
    (folder / "gradeloop.toml").write_text('tools = ["endless", "/dev/zero"]\n')

    assert load_settings([]).uncounted == ("tools",)
    trust(folder)
    assert trusted(folder)


def test_the_folder_may_be_another_one(folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    monkeypatch.setenv("GRADELOOP_CONFIG", "absent.toml")

    assert load_settings(["--folder", str(folder)]).uncounted
    trust(folder)
    assert load_settings(["--folder", str(folder)]).tools == [folder / "tools.py"]


def test_a_file_of_another_name_is_not_trusted_but_named(folder: Path) -> None:
    (folder / "other.toml").write_text("")

    with pytest.raises(InvalidRequest, match=r"is not a gradeloop\.toml; a file of another name counts where --config names it"):
        trust(folder / "other.toml")
    with pytest.raises(InvalidRequest, match=r"there is no settings file 'absent'; name a gradeloop\.toml, or its folder"):
        trust(Path("absent"))


LEAVES_A_MARK = """
from pathlib import Path
Path({}).touch()
def shout() -> str:
    'Shout.'
    return 'X'
"""


@pytest.fixture(scope="module")
def gradeloop(commands: CommandLine) -> CommandLine:
    """Return the command in a folder whose settings name tools that leave a mark when they are loaded."""
    mark = commands.folder / "ran"
    (commands.folder / "tools.py").write_text(LEAVES_A_MARK.format(repr(str(mark))))
    (commands.folder / "gradeloop.toml").write_text('tools = ["tools.py"]\n')
    return commands


def test_a_run_in_a_cloned_folder_runs_none_of_its_code_until_it_is_trusted(gradeloop: CommandLine) -> None:
    mark = gradeloop.folder / "ran"
    task = gradeloop.task("story", [draft("A draft."), verdict()])

    done = gradeloop("run", task, "--json")

    assert done.code == 0, done.err
    assert not mark.exists()
    assert f"{gradeloop.folder / 'gradeloop.toml'} is not trusted, so these of its settings do not count: tools; read it" in done.err
    trusting = gradeloop("trust")
    assert trusting.out == f"trusted as it is now: {gradeloop.folder / 'gradeloop.toml'}\n  with {gradeloop.folder / 'tools.py'}\n"
    done = gradeloop("run", task, "--json")
    assert (done.code, done.err) == (0, "")
    assert mark.exists()


@pytest.mark.slow
def test_a_thread_that_goes_on_after_the_code_has_changed_runs_none_of_the_new_code(gradeloop: CommandLine) -> None:
    mark = gradeloop.folder / "ran"
    assert gradeloop("trust").code == 0
    assert gradeloop("run", gradeloop.task("more", [draft("A draft."), verdict()]), "--thread", "more-1").code == 0
    gradeloop.kill_workers()
    mark.unlink()
    (gradeloop.folder / "tools.py").write_text((gradeloop.folder / "tools.py").read_text() + "# changed by a pull\n")

    done = gradeloop("override", "more-1", "c1", "--fail", "--why", "No.")

    assert done.code == 0, done.err
    assert not mark.exists()
    assert gradeloop("run", gradeloop.task("again", [draft("A draft."), verdict()]), "--trust").code == 0
    assert mark.exists()


def test_trust_can_be_taken_back(gradeloop: CommandLine) -> None:
    assert gradeloop("trust").code == 0
    assert gradeloop("trust", "--revoke").out == f"no longer trusted: {gradeloop.folder / 'gradeloop.toml'}\n"
    assert "is not trusted; there is nothing to revoke" in gradeloop("trust", "--revoke").err
