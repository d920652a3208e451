"""The filter of system calls decides as it says, on both architectures: here its program is run by an interpreter of its own."""

import itertools
import re
import struct
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from gradeloop.sandbox import SandboxError
from gradeloop.sandbox.seccomp import ALLOW, ENOSYS, ENOTTY, EPERM, ERRNO, KILL, Architecture, Policy, architecture, number, program

AUDIT: dict[Architecture, int] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES: tuple[Architecture, ...] = ("x86_64", "aarch64")
STRICT, LOOSE = Policy(processes=False, signals=False), Policy(processes=True, signals=True)
TABLES = tomllib.loads(files("gradeloop.sandbox").joinpath("syscalls.toml").read_text())

REFUSED: dict[str, tuple[int, int]] = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "sendmsg": (46, 211), "ptrace": (101, 117), "mount": (165, 40),
    "unshare": (272, 97), "setns": (308, 268), "process_vm_readv": (310, 270), "bpf": (321, 280), "perf_event_open": (298, 241),
    "keyctl": (250, 219), "memfd_create": (319, 279), "setsid": (112, 157), "setpgid": (109, 154), "setuid": (105, 146),
    "execveat": (322, 281), "shmget": (29, 194), "truncate": (76, 45), "sched_setaffinity": (203, 122), "kexec_load": (246, 104),
    "init_module": (175, 105), "userfaultfd": (323, 282), "seccomp": (317, 277), "chroot": (161, 51), "setxattr": (188, 5),
}  # fmt: skip
NEW = {
    "io_uring_setup": 425,
    "pidfd_send_signal": 424,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "landlock_add_rule": 445,
}


def decided(machine: Architecture, policy: Policy, call: int, *arguments: int, audit: int | None = None) -> int:
    """Run the filter over one system call, as the kernel would."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", call, AUDIT[machine] if audit is None else audit, 0, *[number % 2**64 for number in padded])
    lines = [struct.unpack_from("=HBBI", program(machine, policy), at) for at in range(0, len(program(machine, policy)), 8)]
    at = accumulator = 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif code == 0x06:
            return int(value)
        else:
            true = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            at += yes if true else no


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("policy", [STRICT, LOOSE], ids=["strict", "loose"])
def test_every_call_of_the_tables_and_no_other_is_let_through(machine: Architecture, policy: Policy) -> None:
    at = MACHINES.index(machine)
    allowed = {numbers[at] for numbers in TABLES["allowed"].values()}
    silent = {numbers[at] for numbers in TABLES["silent"].values()}
    examined = {numbers[at] for numbers in TABLES["examined"].values()}

    for call in set(range(600)) - examined:
        expected = ALLOW if call in allowed else ERRNO if call in silent else ERRNO | (ENOSYS if call >= 424 else EPERM)
        assert decided(machine, policy, call) == expected, call


def test_what_leads_out_is_refused(subtests: pytest.Subtests) -> None:
    for machine, name in itertools.product(MACHINES, REFUSED):
        with subtests.test(machine=machine, name=name):
            call = REFUSED[name][MACHINES.index(machine)]

            assert decided(machine, LOOSE, call) == ERRNO | EPERM
            assert decided(machine, STRICT, call) == ERRNO | EPERM


@pytest.mark.parametrize("name", NEW)
def test_what_is_newer_is_not_there(name: str) -> None:
    for machine in MACHINES:
        assert decided(machine, LOOSE, NEW[name]) == ERRNO | ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architectures_door_is_no_way_round(machine: Architecture) -> None:
    assert decided(machine, LOOSE, number("read", machine), audit=0x40000003) == KILL
    assert decided("x86_64", LOOSE, 0x40000000 | number("read", "x86_64")) == ERRNO | ENOSYS


def test_arguments_count(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, tuple[int, ...], int, int]] = [
        ("clone", (0x3D0F00,), ALLOW, ALLOW),  # a thread
        ("clone", (17,), ERRNO | EPERM, ALLOW),  # a process
        ("clone", (0x10000000 | 17,), ERRNO | EPERM, ERRNO | EPERM),  # with a user namespace
        ("clone", (0x40000000 | 0x3D0F00,), ERRNO | EPERM, ERRNO | EPERM),  # a thread with a network namespace
        ("clone", (0x8000 | 17,), ERRNO | EPERM, ERRNO | EPERM),  # as a sibling
        ("clone3", (0, 0), ERRNO | ENOSYS, ERRNO | ENOSYS),
        ("openat", (3, 0, 0x241, 0o600), ALLOW, ALLOW),
        ("openat", (3, 0, 0x410002, 0o600), ERRNO | 95, ERRNO | 95),  # O_TMPFILE
        ("openat", (3, 0, 0x404002, 0o600), ERRNO | 95, ERRNO | 95),  # O_TMPFILE of aarch64
        ("openat2", (3, 0, 0, 24), ERRNO | ENOSYS, ERRNO | ENOSYS),
        ("fcntl", (3, 1031, 1 << 20), ERRNO | EPERM, ERRNO | EPERM),  # F_SETPIPE_SZ
        ("kill", (1, 9), ERRNO | EPERM, ALLOW),
        ("tgkill", (1, 1, 9), ERRNO | EPERM, ALLOW),
        ("prlimit64", (0, 7), ALLOW, ALLOW),
        ("prlimit64", (1, 7), ERRNO | EPERM, ERRNO | EPERM),
        ("fcntl", (3, 4), ALLOW, ALLOW),
        ("fcntl", (3, 8, 1), ERRNO | EPERM, ERRNO | EPERM),
        ("ioctl", (0, 0x5401), ALLOW, ALLOW),
        ("ioctl", (0, 0x5412), ERRNO | ENOTTY, ERRNO | ENOTTY),  # TIOCSTI
        ("prctl", (15,), ALLOW, ALLOW),
        ("prctl", (38,), ERRNO | 22, ERRNO | 22),
        ("socketpair", (1, 1), ALLOW, ALLOW),
        ("socketpair", (2, 1), ERRNO | EPERM, ERRNO | EPERM),
        ("sendto", (3, 0, 0, 0, 0, 0), ALLOW, ALLOW),
        ("sendto", (3, 0, 0, 0, 0x7FFF12345678, 16), ERRNO | EPERM, ERRNO | EPERM),
        ("sendto", (3, 0, 0, 0, 0x7FFF00000000, 16), ERRNO | EPERM, ERRNO | EPERM),
    ]
    for machine, (name, arguments, strict, loose) in itertools.product(MACHINES, rows):
        with subtests.test(machine=machine, name=name, arguments=arguments, strict=strict, loose=loose):
            call = number(name, machine)

            assert decided(machine, STRICT, call, *arguments) == strict
            assert decided(machine, LOOSE, call, *arguments) == loose


def test_the_numbers_are_the_kernels() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("the kernel's headers for x86_64 are not installed")
    known = {name: int(value) for name, value in re.findall(r"#define __NR_(\w+) (\d+)$", header.read_text(), re.MULTILINE)}
    ours = {name: numbers[0] for table in TABLES.values() for name, numbers in table.items()}

    assert {name: entry for name, entry in ours.items() if name in known} == {name: known[name] for name in ours if name in known}
    assert {name: entry for name, entry in known.items() if name in REFUSED} == {name: entry[0] for name, entry in REFUSED.items()}


def test_a_machine_without_a_table_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")

    with pytest.raises(SandboxError, match="no table of system calls for 'riscv64'; there are x86_64 and aarch64"):
        architecture()
