"""The filter of system calls: what is not on the list does not happen. Classic BPF, assembled here, for x86_64 and aarch64."""

import functools
import platform
import struct
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from gradeloop.sandbox.execution import SandboxError

Architecture = Literal["x86_64", "aarch64"]

_AUDIT: dict[Architecture, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The architectures of linux/audit.h: a call by another architecture's interface has other numbers."""

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
EPERM, EINVAL, ENOTTY, ENOSYS, EOPNOTSUPP = 1, 22, 25, 38, 95

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
_NEW = 424
"""The number from which on all architectures agree, and programs expect older kernels to lack the calls."""

_CLONE_THREAD = 0x00010000
_CLONE_REFUSED = 0x7E028000
"""All CLONE_NEW flags, and CLONE_PARENT, which would leave a dead child to the worker."""
_FCNTL_REFUSED = (8, 10, 15, 1024, 1026, 1031)
"""F_SETOWN, F_SETSIG, F_SETOWN_EX, which have a signal sent to anybody; F_SETLEASE, F_NOTIFY; F_SETPIPE_SZ, memory that nobody counts."""
_NAMELESS = 0x00400000
"""The bit of O_TMPFILE, which makes a file that has no name, and that no look at the folder finds."""
_IOCTL_ALLOWED = (0x5401, 0x5413, 0x540F, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, TIOCGPGRP, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_PRCTL_ALLOWED = (3, 15, 16, 23)
"""PR_GET_DUMPABLE, PR_SET_NAME, PR_GET_NAME, PR_CAPBSET_READ."""

Instruction = tuple[int, int, int, int]


@dataclass(frozen=True)
class Policy:
    """The part of the filter that differs from run to run."""

    processes: bool
    """Whether the program may start others."""
    signals: bool
    """Whether it may send signals, which is safe where something else confines them to its own processes."""


@functools.cache
def _tables() -> dict[str, dict[str, list[int]]]:
    return tomllib.loads(files("gradeloop.sandbox").joinpath("syscalls.toml").read_text())


def architecture() -> Architecture:
    """Return this machine's architecture; raise SandboxError where it is neither x86_64 nor aarch64."""
    machine = platform.machine()
    if machine == "x86_64":
        return "x86_64"
    if machine in {"aarch64", "arm64"}:
        return "aarch64"
    raise SandboxError(f"no table of system calls for {machine!r}; there are x86_64 and aarch64")


def number(name: str, machine: Architecture) -> int:
    """Return the number of a system call; -1 where the architecture has none."""
    at = 0 if machine == "x86_64" else 1
    return next(table[name][at] for table in _tables().values() if name in table)


# The filter sees numbers and registers, and no memory. The architecture is checked first, since the same number
# is another call in the 32-bit interface. What is on no list is refused and does not kill: C libraries try new
# calls and fall back. For numbers from _NEW on the refusal is ENOSYS, which they take for an older kernel.
@functools.cache
def program(machine: Architecture, policy: Policy) -> bytes:
    """Return the filter as an array of `struct sock_filter`."""
    lines: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        _returns(KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        lines += [(_AT_LEAST, 0, 1, _X32), _returns(ERRNO | ENOSYS)]
    tables = _tables()
    lines += _for_calls(tables["allowed"], machine, [_returns(ALLOW)])
    lines += _for_calls(tables["silent"], machine, [_returns(ERRNO)])
    for name, block in _examined(policy).items():
        lines += _for_calls({name: tables["examined"][name]}, machine, block)
    lines += [(_AT_LEAST, 0, 1, _NEW), _returns(ERRNO | ENOSYS), _returns(ERRNO | EPERM)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _examined(policy: Policy) -> dict[str, list[Instruction]]:
    """Return the instructions for every call whose arguments count; they may overwrite the accumulator."""
    start = [_returns(ALLOW if policy.processes else ERRNO | EPERM)]
    signal = [_returns(ALLOW if policy.signals else ERRNO | EPERM)]
    named = [(_ANY_BIT, 0, 1, _NAMELESS), _returns(ERRNO | EOPNOTSUPP), _returns(ALLOW)]
    shape = (_ANY_BIT, 0, 1, _CLONE_REFUSED)
    thread = [] if policy.processes else [(_ANY_BIT, 1, 0, _CLONE_THREAD), _returns(ERRNO | EPERM)]
    return {
        "clone": [_argument(0), shape, _returns(ERRNO | EPERM), *thread, _returns(ALLOW)],
        "open": [_argument(1), *named],
        "openat": [_argument(2), *named],
        "openat2": [_returns(ERRNO | ENOSYS)],  # its flags lie in memory, too; programs fall back to openat
        "clone3": [_returns(ERRNO | ENOSYS)],  # its flags lie in memory, where no filter looks; the C library falls back to clone
        "fork": start,
        "vfork": start,
        "kill": signal,
        "tkill": signal,
        "tgkill": signal,
        "prlimit64": _only(0, (0,), EPERM),
        "fcntl": _all_but(1, _FCNTL_REFUSED, EPERM),
        "ioctl": _only(1, _IOCTL_ALLOWED, ENOTTY),
        "prctl": _only(0, _PRCTL_ALLOWED, EINVAL),
        "socketpair": _only(0, (1,), EPERM),
        # With an address, even one end of a pair sends to whoever listens there.
        "sendto": [_argument(4), (_EQUAL, 1, 0, 0), _returns(ERRNO | EPERM), _argument(4, high=True), *_one_of((0,), EPERM)],
    }


def _returns(what: int) -> Instruction:
    return (_RETURN, 0, 0, what)


def _argument(index: int, *, high: bool = False) -> Instruction:
    """Return the instruction that loads half of an argument; both architectures are little-endian."""
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index + 4 * high)


def _one_of(values: tuple[int, ...], otherwise: int) -> list[Instruction]:
    allowed = [line for value in values for line in ((_EQUAL, 0, 1, value), _returns(ALLOW))]
    return [*allowed, _returns(ERRNO | otherwise)]


def _only(index: int, values: tuple[int, ...], otherwise: int) -> list[Instruction]:
    return [_argument(index), *_one_of(values, otherwise)]


def _all_but(index: int, values: tuple[int, ...], otherwise: int) -> list[Instruction]:
    refused = [line for value in values for line in ((_EQUAL, 0, 1, value), _returns(ERRNO | otherwise))]
    return [_argument(index), *refused, _returns(ALLOW)]


# A jump of classic BPF reaches 255 instructions ahead. So each call has its block right behind its comparison,
# repeated if need be; one shared block at the end could be too far away.
def _for_calls(names: dict[str, list[int]], machine: Architecture, block: list[Instruction]) -> list[Instruction]:
    """Return the block behind a comparison with every name's number; a block ends with a return."""
    at = 0 if machine == "x86_64" else 1
    numbers = [by_machine[at] for by_machine in names.values() if by_machine[at] >= 0]
    return [line for number in numbers for line in ((_EQUAL, 0, len(block), number), *block)]
