"""A run in a control group of its own, where the system has delegated one; elsewhere on a tree of files that looks like one."""

from pathlib import Path

import pytest

from gradeloop.sandbox import usage
from gradeloop.sandbox.execution import MIB, Limits, Sandbox, SandboxError, SandboxMissing
from gradeloop.sandbox.programs import Landlock
from gradeloop.sandbox.usage import RunGroup, find_delegated

LIMITS = Limits(seconds=20, memory_bytes=128 * MIB, processes=3)


@pytest.fixture(autouse=True)
def _nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has files is not removed, however long one waits."""
    if usage.delegated() is None:
        monkeypatch.setattr(usage, "END_SECONDS", 0.0)


def tree(root: Path, own: str, **controllers: str) -> tuple[Path, Path]:
    """Make a tree of groups, each with its controllers, and the file that names the own group."""
    for name, enabled in controllers.items():
        group = root / "groups" / name.replace("__", "/").strip("/")
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.subtree_control").write_text(enabled)
    (root / "own").write_text(f"1:memory:/elsewhere\n0::/{own}\n")
    return root / "groups", root / "own"


def test_the_parent_of_the_own_group_is_taken_where_it_is_delegated(tmp_path: Path) -> None:
    mounted, own = tree(tmp_path, "unit/worker", unit="cpu memory pids", unit__worker="")

    assert find_delegated(mounted, own) == mounted / "unit"


def test_controllers_that_are_off_are_turned_on(tmp_path: Path) -> None:
    mounted, own = tree(tmp_path, "unit/worker", unit="", unit__worker="")

    assert find_delegated(mounted, own) == mounted / "unit"
    assert (mounted / "unit" / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_the_own_group_is_taken_where_it_is_the_root(tmp_path: Path) -> None:
    mounted, own = tree(tmp_path, "", __="memory pids")

    assert find_delegated(mounted, own) == mounted


def test_where_nothing_is_delegated_there_is_no_group(tmp_path: Path) -> None:
    mounted, own = tree(tmp_path, "unit/worker")
    first = tmp_path / "first"
    first.write_text("4:memory:/here\n")

    assert find_delegated(mounted, own) is None
    assert find_delegated(mounted, first) is None
    assert find_delegated(mounted, tmp_path / "absent") is None


def test_a_group_that_takes_no_process_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: RunGroup, __: int) -> None:
        raise PermissionError(13, "Permission denied")

    mounted, own = tree(tmp_path, "unit/worker", unit="memory pids", unit__worker="memory pids")
    monkeypatch.setattr(RunGroup, "take", refused)

    assert find_delegated(mounted, own) is None


@pytest.fixture
def landlock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """Return the sandbox, whose runs have groups in a folder; nothing but the kernel bounds them there."""
    monkeypatch.setattr(usage, "delegated", lambda: tmp_path)
    monkeypatch.setattr(usage, "_name", lambda: "run")
    box = Landlock()
    try:
        box.run("pass", limits=Limits(seconds=20))
    except SandboxMissing as error:
        pytest.skip(str(error))
    for file in (tmp_path / "run").iterdir():
        file.unlink()
    (tmp_path / "run").rmdir()
    return box


def test_a_run_is_in_its_group_before_it_begins_and_the_group_ends_with_it(landlock: Sandbox, tmp_path: Path) -> None:
    ended = landlock.run("import os\nprint(os.getpid())", limits=LIMITS)
    written = {file.name: file.read_text() for file in (tmp_path / "run").iterdir()}

    assert (ended.status, ended.stdout.strip()) == ("ok", written["cgroup.procs"])
    assert (written["memory.max"], written["pids.max"]) == (str(128 * MIB), str(3 + usage.THREADS))
    assert written["cgroup.kill"] == "1"


def test_a_run_that_the_kernel_has_ended_for_its_memory_is_told_so(landlock: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(group: RunGroup, _: Limits) -> None:
        (group.path / "memory.events").write_text("low 0\nhigh 0\noom 1\noom_kill 2\n")

    monkeypatch.setattr(RunGroup, "limit", killed)
    ended = landlock.run("import os\nos.kill(os.getpid(), 9)", limits=LIMITS)

    assert (ended.status, ended.error) == ("limit", f"MemoryError: its processes use more than {128 * MIB} bytes of memory together")


def test_a_run_that_cannot_be_put_into_its_group_never_begins(landlock: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: RunGroup, __: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(RunGroup, "take", refused)

    with pytest.raises(SandboxError, match=r"landlock cannot put the program into its control group: .*not permitted"):
        landlock.run("print('it runs')", limits=LIMITS)


@pytest.mark.skipif(usage.delegated() is None, reason="no control group (version 2) is delegated to this process")
def test_the_kernel_bounds_the_memory_of_all_processes_together() -> None:
    code = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        kept = bytearray(os.urandom(1024)) * (100 * 1024)
        time.sleep(20)
time.sleep(20)
"""

    ended = Landlock().run(["/usr/bin/python3", "-c", code], limits=LIMITS)

    assert (ended.status, ended.error.partition(":")[0]) == ("limit", "MemoryError")
