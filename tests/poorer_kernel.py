"""Runs a command as on a kernel that refuses some system calls: `python poorer_kernel.py NUMBER,… COMMAND…`.

Docker's default profile refuses `unshare` like this. -1 takes root's capabilities, as `cap_drop: [ALL]` does.
"""

import ctypes
import errno
import os
import struct
import sys

__all__ = ["CAPABILITIES", "LANDLOCK", "UNSHARE", "without"]

CAPABILITIES, LANDLOCK, UNSHARE = -1, 444, 272 if os.uname().machine == "x86_64" else 97
_NO_NEW_PRIVS, _SECCOMP, _FILTER, _DROP_BOUND = 38, 22, 2, 24


def without(*calls: int) -> list[str]:
    """What to put before a command."""
    return [sys.executable, __file__, ",".join(map(str, calls))]


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    refused = {int(number) for number in sys.argv[1].split(",")}
    if CAPABILITIES in refused:
        for capability in range(64):
            libc.prctl(_DROP_BOUND, ctypes.c_ulong(capability), *[ctypes.c_ulong(0)] * 3)
    steps = [(0x20, 0, 0, 0)]
    for number in refused - {CAPABILITIES}:
        steps += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | errno.EPERM)]
    steps.append((0x06, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    for option, argument, more in ((_NO_NEW_PRIVS, 1, 0), (_SECCOMP, _FILTER, ctypes.addressof(header))):
        if libc.prctl(option, ctypes.c_ulong(argument), ctypes.c_ulong(more), ctypes.c_ulong(0), ctypes.c_ulong(0)):
            raise OSError(ctypes.get_errno(), "prctl")
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
