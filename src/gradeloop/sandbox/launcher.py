"""Confines its own process and becomes the program: Landlock, seccomp, limits. Run as a script, only with the standard library.

The request comes as JSON on standard input; errors before the program starts are written to the descriptor `report`.
"""

import base64
import ctypes
import json
import os
import resource
import struct
import sys

_RULESET, _RULE, _RESTRICT, _CAPSET = 444, 445, 446, {"x86_64": 126, "aarch64": 91}
_NO_NEW_PRIVILEGES, _SECCOMP, _CAPBSET_DROP, _KEEPCAPS = 38, 22, 24, 8

_READ = 1 << 0 | 1 << 2 | 1 << 3
"""EXECUTE, READ_FILE, READ_DIR."""
_NAMES = 1 << 3
"""READ_DIR: Python looks for modules in the list of a folder's names."""
_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""The rights that Landlock knows for files: EXECUTE, READ_FILE, WRITE_FILE, TRUNCATE, IOCTL_DEV."""
_NO_NODES = 1 << 6 | 1 << 9 | 1 << 11
"""MAKE_CHAR, MAKE_SOCK, MAKE_BLOCK: never, not even in the program's own folder."""
_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Landlock's rights on files, by the version of its interface."""
_NETWORK, _SCOPES = 3, 3
"""BIND_TCP and CONNECT_TCP, from version 4 on; ABSTRACT_UNIX_SOCKET and SIGNAL, from version 6 on."""

_libc = ctypes.CDLL(None, use_errno=True)


def _call(what: str, number: int, *arguments: int | bytes | None) -> int:
    values = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *values)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _prctl(what: str, *arguments: object) -> None:
    values = [ctypes.c_ulong(argument) if isinstance(argument, int) else argument for argument in arguments]
    if _libc.prctl(*values, *[ctypes.c_ulong(0)] * (5 - len(values))) < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def _write_files(files: dict[str, str]) -> None:
    for name, text in files.items():
        if folder := os.path.dirname(name):  # noqa: PTH120 - pathlib costs a third of this script's time
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        with open(name, "wb") as file:  # noqa: PTH123
            file.write(base64.b64decode(text))


def _limit(limits: dict[str, int]) -> None:
    for name, value in limits.items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (wanted, wanted))


def _become(uid: int) -> None:
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _drop_capabilities(machine: str) -> None:
    for capability in range(64):
        try:
            _prctl("dropping a capability", _CAPBSET_DROP, capability)
        except OSError:
            break
    header, data = struct.pack("=II", 0x20080522, 0), bytes(24)
    _call("dropping the capabilities", _CAPSET[machine], header, data)


def _ruleset(read: list[str], names: list[str], write: list[str], version: int) -> int:
    rights = _RIGHTS[min(version, 5)]
    attributes = struct.pack("=QQQ", rights, _NETWORK if version >= 4 else 0, _SCOPES if version >= 6 else 0)  # noqa: PLR2004
    ruleset = _call("landlock_create_ruleset", _RULESET, attributes, 24 if version >= 6 else 16 if version >= 4 else 8, 0)  # noqa: PLR2004
    for paths, granted in ((read, _READ), (names, _NAMES), (write, ~_NO_NODES)):
        for path in paths:
            try:
                handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except (FileNotFoundError, PermissionError):  # what cannot be reached is not granted
                continue
            folder = os.path.isdir(path)  # noqa: PTH112
            rule = struct.pack("=Qi", rights & granted & (~0 if folder else _FILE), handle)
            _call(f"landlock_add_rule for {path}", _RULE, ruleset, 1, rule, 0)
            os.close(handle)
    return ruleset


def _seccomp(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    _prctl("the filter of system calls", _SECCOMP, 2, header)


# Each step gives up something that no later step needs. Landlock's rules are made while every folder can still
# be opened. Files are written by the user that will run the program. The filter comes last, since it refuses
# the calls of the steps before it. If any step fails, the program does not start, so nothing ever runs half
# confined.
def main() -> None:
    """Confine this process and become the program."""
    request = json.load(sys.stdin.buffer)
    report = request["report"]
    try:
        if request["go"] is not None:  # the worker counts and bounds this process first
            if os.read(request["go"], 1) != b"+":
                os._exit(125)
            os.close(request["go"])
        os.set_inheritable(report, False)
        empty = os.open("/dev/null", os.O_RDONLY)
        os.dup2(empty, 0)
        os.chdir(request["folder"])
        os.umask(0o077)
        ruleset = _ruleset(**request["landlock"]) if request["landlock"] else None
        if request["uid"] is not None:
            _become(request["uid"])
        _write_files(request["files"])
        _prctl("no_new_privs", _NO_NEW_PRIVILEGES, 1)
        _drop_capabilities(request["machine"])
        if ruleset is not None:
            _call("landlock_restrict_self", _RESTRICT, ruleset, 0)
            os.close(ruleset)
        _limit(request["limits"])
        _seccomp(base64.b64decode(request["filter"]))
        os.write(report, b"+")
        os.execve(request["argv"][0], request["argv"], request["environment"])  # noqa: S606 - what it is for
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody else can report it
        os.write(report, f"{type(error).__name__}: {error}"[:1000].encode(errors="replace"))
        os._exit(125)


main()
