"""The part of a container engine's default seccomp profile that matters here: no namespaces, no mounts, no tracing of others.

As the Moby project's profile has it for a container without added capabilities (profiles/seccomp/default.json).
"""

import ctypes
import struct

_REFUSED = {
    "mount": 165, "umount2": 166, "pivot_root": 155, "swapon": 167, "reboot": 169, "sethostname": 170, "init_module": 175,
    "quotactl": 179, "keyctl": 250, "add_key": 248, "request_key": 249, "unshare": 272, "move_pages": 279, "perf_event_open": 298,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
    "kcmp": 312, "finit_module": 313, "bpf": 321, "userfaultfd": 323, "open_tree": 428, "move_mount": 429, "fsopen": 430,
    "fsmount": 432, "fspick": 433, "ptrace": 101, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
}  # fmt: skip
"""Of x86_64."""

_CLONE, _CLONE3, _NAMESPACES = 56, 435, 0x7E020000
_ALLOW, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026


def like_a_container() -> None:
    """Put this process and all that it starts under the filter."""
    lines: list[tuple[int, int, int, int]] = [(0x20, 0, 0, 0)]
    for number in _REFUSED.values():
        lines += [(0x15, 0, 1, number), (0x06, 0, 0, _EPERM)]
    lines += [(0x15, 0, 1, _CLONE3), (0x06, 0, 0, _ENOSYS)]
    lines += [(0x15, 0, 4, _CLONE), (0x20, 0, 0, 16), (0x45, 0, 1, _NAMESPACES), (0x06, 0, 0, _EPERM), (0x06, 0, 0, _ALLOW)]
    lines += [(0x06, 0, 0, _ALLOW)]
    program = b"".join(struct.pack("=HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(program, len(program))
    described = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    word = ctypes.c_ulong
    if libc.prctl(38, word(1), word(0), word(0), word(0)) or libc.prctl(22, word(2), described, word(0), word(0)):
        raise OSError(ctypes.get_errno(), "no filter")
