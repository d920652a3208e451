"""Whole programs in a sandbox: their folder, their launch, the supervisor that watches clock, output and disk, and the two sandboxes.

Bubblewrap runs full CPython, or any program, in namespaces of its own, without network, with a folder in memory. Landlock does so without
namespaces, behind seccomp and limits, and so inside of containers too.
"""

import base64
import contextlib
import ctypes
import json
import math
import os
import random
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gradeloop.sandbox import execution, seccomp, usage
from gradeloop.sandbox.seccomp import Policy
from gradeloop.sandbox.usage import THREADS, Run, RunGroup, exceeded, run_group

LAUNCHER = Path(__file__).with_name("launcher.py")

CONCURRENCY = max(4, 2 * (os.cpu_count() or 1))
"""The most programs at once in one worker process; further ones wait before their clock starts."""

GLANCE_SECONDS = 0.05
"""The seconds between two looks at the clock and at the disk."""

REAP_SECONDS = 5.0
"""The seconds within which a killed process ends; beyond, the machine is in trouble."""

MAIN = "main.py"
"""The name of the file that holds Python source."""

OPEN_FILES = 256

NOBODIES = range(61184, 65520)
"""Unused users, one for each run, where the worker is root: systemd's range for dynamic users."""

SYSTEM = (
    "/usr",
    "/bin",
    "/lib",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/dev/null",
    "/dev/zero",
    "/dev/urandom",
    "/dev/random",
)
"""The paths of the system that a program may read beside the interpreter: libraries and programs, neither settings nor users' files."""

_READ_BYTES = 64 * 1024

_BEGUN = "+"
"""The launcher's last report, before it becomes the program."""

_SIGNALLED = 128
"""The exit code to which bubblewrap adds the number of the signal that ended the program."""

_LIMIT_SIGNALS = {signal.SIGXCPU: "it used more processor time than it may", signal.SIGXFSZ: "it wrote more to disk than it may"}

_LIMIT_ERRORS = ("MemoryError", "RecursionError")

_slots = threading.BoundedSemaphore(CONCURRENCY)


@dataclass(frozen=True)
class Launch:
    """The start of a program in a sandbox."""

    sandbox: execution.SandboxName
    prefix: Sequence[str]
    """The command that runs the launcher, if any."""
    request: Mapping[str, Any]
    """The launcher's request, except for the descriptor of its report."""
    folder: Path | None = None
    """The program's folder, where it is on this machine's disk."""
    user: int | None = None
    """The user who runs it; None for the worker's own."""
    in_memory: tuple[str, ...] = ()
    """The places of its own namespace to which it can write, which are in memory."""


def build_launch_request(
    program: str | Sequence[str], files: Mapping[str, str] | None, limits: execution.Limits, policy: Policy, folder: str
) -> dict[str, Any]:
    """Return the launcher's request, without its confinement of files."""
    machine = seccomp.architecture()
    given = dict(files or {})
    if isinstance(program, str):
        given[MAIN] = program
    path = os.pathsep.join([str(Path(interpreter()).parent), "/usr/local/bin", "/usr/bin", "/bin"])
    environment = {"PATH": path, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    return {
        "machine": machine,
        "argv": argv_of(program),
        "environment": environment,
        "files": _encoded(given),
        "folder": folder,
        "filter": base64.b64encode(seccomp.program(machine, policy)).decode(),
        "limits": {
            "AS": limits.memory_bytes,
            "CPU": math.ceil(limits.seconds) + 1,
            "FSIZE": limits.disk_bytes,
            "NOFILE": OPEN_FILES,
            "CORE": 0,
        },
        "landlock": None,
        "uid": None,
    }


def _encoded(files: Mapping[str, str]) -> dict[str, str]:
    """Return files in base64, as the launcher reads them."""
    for name in files:
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts or "\0" in name:
            raise execution.SandboxError(f"the file name {name!r} leads out of the program's folder; give a relative one")
    return {name: base64.b64encode(text.encode(errors="replace")).decode() for name, text in files.items()}


def argv_of(program: str | Sequence[str]) -> list[str]:
    """Return the command; this interpreter runs Python source with the standard library. Raise SandboxError for a relative path."""
    if isinstance(program, str):
        return [interpreter(), "-E", "-s", "-S", "-B", "-X", "utf8", MAIN]
    argv = list(program)
    if not argv or not Path(argv[0]).is_absolute() or not os.access(argv[0], os.X_OK):
        raise execution.SandboxError(f"{argv[0] if argv else ''!r} is not an absolute path to a program")
    return [_plain_path(argv[0]), *argv[1:]]


def interpreter() -> str:
    """Return the path of this interpreter."""
    return _plain_path(sys.executable)


def _plain_path(path: str) -> str:
    """Return a path without `..`, since a namespace may lack the folders on the way."""
    whole = Path(path)
    return str(whole.parent.resolve() / whole.name) if ".." in whole.parts else path


def readable(more: Sequence[str] = ()) -> list[str]:
    """Return the paths that a program may read and execute."""
    own = [sys.base_prefix, sys.prefix, *([str(Path(interpreter()).parents[1])] if ".." in Path(sys.executable).parts else []), *more]
    return [path for path in dict.fromkeys([*SYSTEM, *own]) if Path(path).exists()]


def entries(folder: str, imports: Sequence[str], *, hidden: bool) -> Iterator[str]:
    """Yield what lies directly in a folder, links aside: what a dot hides, such as `.env` and `.git`, or all else.

    In the place of a folder in which others of `imports` lie, it yields what lies directly in that.
    """
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False) and any(Path(other).is_relative_to(entry.path) for other in imports):
            yield from entries(entry.path, imports, hidden=hidden)
        elif entry.name.startswith(".") == hidden and not entry.is_symlink():
            yield entry.path


def nobody(paths: Sequence[str], *, bounded: bool) -> int | None:
    """Return an unused user, where the worker is root and such a user can reach the paths; else None.

    Raises:
        SandboxError: The number of processes must be bounded, which does not bind root, and only root can reach the paths.
    """
    if os.geteuid() != 0:
        return None
    if all(_is_open(Path(path)) and _is_open(Path(path).resolve()) for path in paths):
        return random.choice(NOBODIES)  # noqa: S311 - no secret
    if bounded:
        shut = next(path for path in paths if not (_is_open(Path(path)) and _is_open(Path(path).resolve())))
        raise execution.SandboxError(f"the worker is root, whom no limit on processes binds, and nobody else can reach {shut}")
    return None


def _is_open(path: Path) -> bool:
    """Tell whether every user may reach the path."""
    return all(parent.stat().st_mode & 0o001 for parent in path.parents)


@contextmanager
def run_folder() -> Iterator[Path]:
    """Make a folder for one run, and remove it at its end."""
    made = Path(tempfile.mkdtemp(prefix="gradeloop-sandbox-")).resolve()
    try:
        yield made
    finally:
        _remove(made)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        # Folders without rights, or deeper than Python's own removal goes: the system's tools take both.
        for command in (["chmod", "-R", "u+rwX", str(folder)], ["rm", "-rf", str(folder)]):
            subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - fixed commands on our own folder


def supervise(launch: Launch, limits: execution.Limits) -> execution.Execution:
    """Run the program and return how it ended; raise SandboxError where the program could not be confined, so it did not run."""
    with _slots, contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(run_group(limits))
        except OSError as error:
            raise execution.SandboxError(f"{launch.sandbox} cannot make a control group: {error}") from None
        # Three channels besides output: the request, in memory; the report, by which the launcher says that it
        # is confined, or why not; and `go`, at which it waits until the worker has put it into its control
        # group. Without the last one, the program could start processes outside of the group first.
        report, report_end = os.pipe()
        stack.callback(os.close, report)
        go, go_end = os.pipe() if group else (None, None)
        if go_end is not None:
            stack.callback(os.close, go_end)
        request = stack.enter_context(os.fdopen(os.memfd_create("request"), "w+b"))
        request.write(json.dumps({**launch.request, "report": report_end, "go": go}).encode())
        request.seek(0)
        started = time.monotonic()
        try:
            process = subprocess.Popen(  # noqa: S603 - our own launcher
                [*launch.prefix, interpreter(), "-I", "-S", "-B", str(LAUNCHER)],
                stdin=request,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(report_end,) if go is None else (report_end, go),
                env={},
                start_new_session=True,
                user=launch.user,
                group=launch.user,
                extra_groups=None if launch.user is None else (),
            )
        except OSError as error:
            raise execution.SandboxError(f"{launch.sandbox} does not start: {error}") from None
        finally:
            for descriptor in (report_end, go):
                if descriptor is not None:
                    os.close(descriptor)
        watched = _Watched(process, limits, Run(process.pid, launch.folder, launch.in_memory), started)
        try:
            _bound(launch, group, process.pid, go_end)
            _watch(watched)
        finally:
            _end(process)
        if group is not None:
            watched.stopped = group.exceeded(limits) or watched.stopped
        return execution.counted(_execution(launch.sandbox, watched, report))


def _bound(launch: Launch, group: RunGroup | None, process: int, go: int | None) -> None:
    """Put the run into its group, and only then let the launcher begin."""
    if group is None or go is None:
        return
    try:
        group.take(process)
        os.write(go, b"+")
    except OSError as error:
        raise execution.SandboxError(f"{launch.sandbox} cannot put the program into its control group: {error}") from None


@dataclass
class _Watched:
    process: subprocess.Popen[bytes]
    limits: execution.Limits
    run: Run
    started: float
    output: dict[int, bytearray] = field(default_factory=dict)
    stopped: str = ""
    truncated: bool = False


# One thread waits for three things at once: output, the end of the process (its pidfd), and the next look at clock, memory and disk. The
# process is the leader of its session, so that the whole group is killed before it is reaped, and its number can mean nothing else by then.
# Its end counts, not that of the pipes: a grandchild may hold them open for ever, so only what is there then is still read. Output beyond
# the limit is dropped as it comes; else a program could fill the worker's memory within one look.
def _watch(watched: _Watched) -> None:
    """Read output until the process has ended or exceeds a limit."""
    process = watched.process
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        ended = os.pidfd_open(process.pid)
        stack.callback(os.close, ended)
        selector.register(ended, selectors.EVENT_READ)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ)
                watched.output[stream.fileno()] = bytearray()
        looked = watched.started
        while not watched.stopped:
            now = time.monotonic()
            left = watched.started + watched.limits.seconds - now
            if left <= 0:
                watched.stopped = f"TimeoutError: it took more than {watched.limits.seconds:g} seconds"
                return
            if now - looked > GLANCE_SECONDS:
                looked = now
                watched.stopped = exceeded(watched.run, watched.limits)
            ready = [key.fd for key, _ in selector.select(min(left, GLANCE_SECONDS))]
            done = [fd for fd in ready if fd in watched.output and not _read(watched, fd)]
            for fd in done:
                selector.unregister(fd)
            if ended in ready:
                # A grandchild may hold the pipes open, so what is there now is all that is waited for.
                while any(_read(watched, fd) for fd in watched.output if fd not in done) and not watched.stopped:
                    pass
                return


def _read(watched: _Watched, fd: int) -> bool:
    """Read available output; False at its end, or where there is none."""
    try:
        part = os.read(fd, _READ_BYTES)
    except BlockingIOError:
        return False
    left = watched.limits.output_bytes - sum(len(output) for output in watched.output.values())
    watched.output[fd] += part[:left]
    if len(part) > left:
        watched.truncated = True
        watched.stopped = watched.stopped or f"it printed more than {watched.limits.output_bytes} bytes"
    return bool(part)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole group before its leader is reaped, so that its number cannot have passed to another process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        raise execution.SandboxError(f"the process {process.pid} does not end, though it was killed") from None
    finally:
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _execution(sandbox: execution.SandboxName, watched: _Watched, report: int) -> execution.Execution:
    os.set_blocking(report, False)
    try:
        message = os.read(report, 4096).decode(errors="replace")
    except BlockingIOError:
        message = ""
    stdout, stderr = (output.decode(errors="replace") for output in watched.output.values())
    # Only the launcher's own report tells a program that failed from one that never ran confined. A program
    # that exceeded a limit before the report came, such as in a start that took too long, is stopped all the
    # same. Anything else is the sandbox's fault and must not count as a failure of the code.
    if message != _BEGUN and not (message == "" and watched.stopped):
        why = message.removeprefix(_BEGUN) or stderr.strip() or f"it left with {watched.process.returncode}"
        raise execution.SandboxError(f"{sandbox} could not confine the program: {why[: execution.ERROR_CHARACTERS]}")
    code = watched.process.returncode
    if sandbox == "bubblewrap" and code > _SIGNALLED:
        code = _SIGNALLED - code
    status, error = _status_of(code, watched.stopped, stderr)
    wall = int((time.monotonic() - watched.started) * 1000)
    own = None if watched.stopped or code < 0 else code
    return execution.Execution(status, stdout, stderr, wall, watched.truncated, sandbox, error[: execution.ERROR_CHARACTERS], own)


def _status_of(code: int, stopped: str, stderr: str) -> tuple[execution.ExecutionStatus, str]:
    if stopped:
        return "limit", stopped
    if code == 0:
        return "ok", ""
    if -code in _LIMIT_SIGNALS:
        return "limit", _LIMIT_SIGNALS[signal.Signals(-code)]
    last = stderr.rstrip().rpartition("\n")[2]
    if last.startswith(_LIMIT_ERRORS):
        return "limit", last
    if code < 0:
        name = next((number.name for number in signal.Signals if number == -code), f"signal {-code}")
        return "raised", f"it was ended by {name}"
    return "raised", last or f"it left with exit code {code}"


FOLDER = "/sandbox"

SHARED = "/dev/shm"  # noqa: S108 - of the program's own namespace
"""The shared memory of programs; all of the rest of `/dev` is read-only."""

SHARED_BYTES = 8 * execution.MIB


class Bubblewrap:
    """A sandbox that runs programs in namespaces, inside of which the filter of system calls and the limits apply."""

    name: Literal["bubblewrap"] = "bubblewrap"

    def __init__(self, read_only: Sequence[str] = ()) -> None:
        self._read_only = read_only

    def run(
        self, program: str | Sequence[str], files: Mapping[str, str] | None = None, limits: execution.Limits | None = None
    ) -> execution.Execution:
        """Run a program as `Sandbox.run` says."""
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise execution.SandboxMissing("bwrap is not installed; Debian and Ubuntu have it as the package bubblewrap")
        limits = limits or execution.Limits()
        policy = Policy(processes=limits.processes > 1, signals=True)
        request = build_launch_request(program, files, limits, policy, FOLDER)
        request["limits"]["NPROC"] = limits.processes + THREADS
        user = nobody([interpreter(), sys.base_prefix, str(LAUNCHER)], bounded=usage.delegated() is None) if policy.processes else None
        return supervise(
            Launch(self.name, _bwrap_command(bwrap, self._read_only, limits), request, user=user, in_memory=(FOLDER, SHARED)), limits
        )


def _bwrap_command(bwrap: str, read_only: Sequence[str], limits: execution.Limits) -> list[str]:
    command = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    command += ["--uid", "65534", "--gid", "65534", "--hostname", "sandbox"]
    emptied = []
    # Mounts apply in their order, and a later one covers an earlier one. So the shown folders come first, and
    # entries in them whose names begin with a dot are covered by empty ones. Then come the interpreter and
    # libraries, which may lie below them, and at last everything is made read-only but the program's own
    # folder.
    for folder in sorted(limits.imports):  # before the interpreter, which may lie in one of them
        command += ["--ro-bind", folder, folder]
        for path in entries(folder, limits.imports, hidden=True):
            command += ["--size", "4096", "--tmpfs", path] if Path(path).is_dir() else ["--ro-bind", "/dev/null", path]
            emptied += ["--remount-ro", path] if Path(path).is_dir() else []
    for path in [path for path in readable(read_only) if not path.startswith("/dev")] + [str(LAUNCHER)]:
        command += ["--ro-bind", path, path]
    command += ["--dev", "/dev", "--size", str(min(SHARED_BYTES, limits.disk_bytes)), "--perms", "1777", "--tmpfs", SHARED]
    command += ["--size", str(limits.disk_bytes), "--perms", "0700", "--tmpfs", FOLDER, "--remount-ro", "/dev", "--remount-ro", "/"]
    return [*command, *emptied, "--chdir", FOLDER, "--"]


_CREATE_RULESET, _VERSION_ASKED = 444, 1
_SIGNALS_SCOPED = 6
"""The version of Landlock from which on it confines signals to a program's own processes."""

DEVICES = ("/dev/null",)


def landlock_version() -> int:
    """Return the version of the kernel's Landlock; 0 where it has none."""
    if not sys.platform.startswith("linux"):
        return 0
    answer = ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, _VERSION_ASKED)
    return max(0, int(answer))


class Landlock:
    """A sandbox that runs programs with the rights of this process, less what Landlock, seccomp and limits take away."""

    name: Literal["landlock"] = "landlock"

    def __init__(self, read_only: Sequence[str] = (), *, at_most: int | None = None) -> None:
        """Take further paths that a program may read, and for tests an older version of Landlock."""
        self._read_only = read_only
        self._version = min(landlock_version(), at_most or landlock_version())

    def run(
        self, program: str | Sequence[str], files: Mapping[str, str] | None = None, limits: execution.Limits | None = None
    ) -> execution.Execution:
        """Run a program as `Sandbox.run` says."""
        if not self._version:
            raise execution.SandboxMissing("this kernel has no Landlock; it came with Linux 5.13")
        limits = limits or execution.Limits()
        policy = Policy(processes=limits.processes > 1, signals=self._version >= _SIGNALS_SCOPED)
        read = readable(self._read_only)
        with run_folder() as folder:
            request = build_launch_request(program, files, limits, policy, str(folder))
            inside = [f"{shown}/file" for shown in limits.imports]  # which nobody can read where the folder is closed
            needed = [argv_of(program)[0], str(folder), *(read if isinstance(program, str) else ()), *inside]
            uid = nobody(needed, bounded=policy.processes and usage.delegated() is None)
            if uid is not None:
                os.chown(folder, uid, uid)
            request["uid"] = uid
            read += [path for shown in limits.imports for path in entries(shown, limits.imports, hidden=False)]
            request["landlock"] = {"read": read, "names": [*limits.imports], "write": [str(folder), *DEVICES], "version": self._version}
            if policy.processes:
                request["limits"]["NPROC"] = limits.processes + THREADS + (0 if uid is not None else _tasks())
            return supervise(Launch(self.name, (), request, folder), limits)


def _tasks() -> int:
    """Return how many threads this user has on the machine: the limit counts them all."""
    # The kernel counts NPROC by user and not by program. So where the program runs as the worker's own user,
    # what that user runs already has to be added, or the program could start nothing.
    total = 0
    for status in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if status.stat().st_uid == os.geteuid():
                total += sum(1 for _ in (status / "task").iterdir())
    return total
