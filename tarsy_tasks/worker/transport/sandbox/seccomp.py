"""The filter of system calls (seccomp) for the processes in a sandbox.

Owns which calls are refused, and the assembly of the filter. It is pure; the launcher installs what it builds.

A filter sees numbers, not what pointers point to. So calls with flags in memory (`clone3`, `io_uring`) are reported as
absent, and programs use those that came before.
"""

import platform
import struct
from errno import EACCES, ENOSYS, EPERM

__all__ = ["build_filter"]

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine → column of the numbers, and the kernel's word for it."""

_REFUSED = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
"""Calls that reach other processes or the kernel itself, or need memory that no limit counts."""
_ABSENT = {
    "clone3": (435, 435),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}
_CLONE, _PRLIMIT, _SOCKET, _SOCKETPAIR = (56, 220), (302, 261), (41, 198), (53, 199)
_NEW_NAMESPACES = 0x7E020000
_FAMILIES = (2, 10, 16)
"""AF_INET, AF_INET6, and AF_NETLINK, with which programs list the interfaces. AF_UNIX would reach Docker's socket."""
_CONNECTED_TYPES = (1, 5)
"""SOCK_STREAM and SOCK_SEQPACKET; a pair of others could be connected to something else."""

_LOAD, _AND, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
"""Numbers from here on are a second set of the same calls."""

_Code = list[tuple[int, int, int, int]]
"""Instructions: operation, jumps if true and if false, operand."""


def build_filter(network: bool, machine: str = platform.machine()) -> bytes | None:
    """The filter in the form that the kernel reads; None where the numbers of the calls are not known."""
    if machine not in _ARCHITECTURES:
        return None
    column, architecture = _ARCHITECTURES[machine]
    code: _Code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        _refuse(ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        _refuse(ENOSYS),
    ]
    for calls, error in ((_REFUSED, EPERM), (_ABSENT, ENOSYS)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                code += _on(number, [_refuse(error)])
    allow = (_RETURN, 0, 0, _ALLOW)
    # On these machines all low halves come first, and no flag is in a high one.
    code += _on(_CLONE[column], [_load_argument(0), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), _refuse(EPERM), allow])
    code += _on(_PRLIMIT[column], [_load_argument(0), (_EQUAL, 1, 0, 0), _refuse(EPERM), allow])
    families = _accept(_FAMILIES) if network else []
    code += _on(_SOCKET[column], [_load_argument(0), *families, _refuse(EACCES)])
    types = [_load_argument(1), (_AND, 0, 0, 0xF), *_accept(_CONNECTED_TYPES)]
    code += _on(_SOCKETPAIR[column], [*types, _refuse(EACCES)])
    code.append(allow)
    return b"".join(struct.pack("HBBI", *each) for each in code)


def _refuse(error: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERROR | error)


def _load_argument(index: int) -> tuple[int, int, int, int]:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _accept(values: tuple[int, ...]) -> _Code:
    return [step for value in values for step in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]


def _on(number: int, then: _Code) -> _Code:
    """What happens to one call; `then` must not end without a return."""
    return [(_EQUAL, 0, len(then), number), *then]
