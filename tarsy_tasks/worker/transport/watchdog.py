"""Ends the process groups of MCP servers when the worker that started them is gone, for whatever reason.

Owns process groups and process trees as `/proc` shows them, and the small program that outlives a worker:
`python -I -S watchdog.py NAME=VALUE`, which reads `+<group>` and `-<group>` lines and, when its stdin ends, ends the
remaining groups and every process that has the variable in its environment. It imports only the standard library and
nothing of this package, so that it starts in 20 ms and stays small. `child_watch` is the worker's side.

Without `/proc` (macOS) it still ends the registered groups, but finds no descendants and no marked processes.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator

__all__ = ["MARK", "Group", "end_groups", "groups_of", "read_stat"]

MARK = "TARSY_CHILD_OF"
"""The variable that names the worker in the environment of all processes below its servers."""

_GRACE_S = 0.7
"""Between SIGTERM and SIGKILL; no server may run two seconds after its worker has ended."""
_POLL_S = 0.02
_READ_BYTES = 65536
_ENVIRONMENT_BYTES = 4 * 1024 * 1024
"""More than Linux takes for arguments and environment together by default."""


class Group:
    """A process group, named by the id of the process that leads it.

    `leader_started` is from `read_stat`; None when the leader is gone or cannot be seen.

    The kernel does not use an id again while the group has a member, so a group without its leader is still the same
    group. Once all members have ended, the id may be used again, by a leader that started at another time: that group
    is never signalled.
    """

    def __init__(self, number: int, leader_started: str | None) -> None:
        self.number = number
        self._leader_started = leader_started

    @classmethod
    def current(cls, number: int) -> "Group":
        """The group that has this id now."""
        return cls(number, _started(number))

    def is_alive(self) -> bool:
        started = _started(self.number)
        return (started is None or started == self._leader_started) and self._kill(0)

    def signal(self, number: signal.Signals) -> None:
        if self.is_alive():
            self._kill(number)

    def descendants(self) -> list[int]:
        """The living descendants of the leader; none when it is gone.

        Watchdogs of other workers among them are left out: those end by themselves when they have done their work.
        """
        started = _started(self.number)
        if started is None or started != self._leader_started:
            return []
        return [pid for pid in _descendants(self.number) if not _is_watchdog(pid)]

    def _kill(self, number: int) -> bool:
        if self.number <= 1:
            return False  # the system would signal all processes, or the caller's own group
        try:
            os.killpg(self.number, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it runs as another user; on macOS also when it is dead and not yet waited for
        return True


def read_stat(pid: int) -> tuple[str, int, str] | None:
    """State letter, process group and start time of a process; None when it is gone, or there is no `/proc`."""
    try:
        data = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name in parentheses may hold anything, parentheses too. After it: state, parent, group; the 20th is the start.
    fields = data[data.rfind(b")") + 2 :].split()
    return fields[0].decode(), int(fields[2]), fields[19].decode()


def groups_of(pids: Iterable[int]) -> set[int]:
    """The process groups of some processes. One that is just being reaped has none: `/proc` shows -1."""
    return {stat[1] for stat in map(read_stat, pids) if stat is not None and stat[1] > 1}


def end_groups(groups: Iterable[Group], mark: str) -> None:
    """End groups, the groups of their leaders' descendants, and those of marked processes: SIGTERM, 0.7 s, SIGKILL.

    Args:
        mark: `NAME=VALUE` in a child's environment. It finds descendants whose parents have already ended, as servers
            do when their stdin is closed.
    """
    found = {group.number: group for group in groups if group.is_alive()}
    _signal(found, mark, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while any(group.is_alive() for group in found.values()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _signal(found, mark, signal.SIGKILL)


def _signal(found: dict[int, Group], mark: str, number: signal.Signals) -> None:
    """Signal the known groups, and add and signal those of their descendants and of the marked processes."""
    # setsid takes a process out of its parent's group, not out of the tree.
    for relative in groups_of([pid for group in found.values() for pid in group.descendants()]) - found.keys():
        found[relative] = Group.current(relative)
    for group in found.values():
        group.signal(number)
    for marked in _marked_groups(mark):
        if marked not in found:
            found[marked] = Group.current(marked)
            found[marked].signal(number)


def _marked_groups(mark: str) -> Iterator[int]:
    """The groups of the processes whose environment contains the mark, as far as this user may read them."""
    sought = b"\0%b\0" % os.fsencode(mark)
    try:
        pids = [name for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - see `_descendants`
    except OSError:
        return
    for pid in pids:
        try:
            environment = _read(f"/proc/{pid}/environ", _ENVIRONMENT_BYTES)
        except OSError:
            continue  # another user's, or gone
        if sought in b"\0%b\0" % environment:
            yield from groups_of([int(pid)])


def _is_watchdog(pid: int) -> bool:
    try:
        return b"\0%b=" % os.fsencode(MARK) in _read(f"/proc/{pid}/cmdline")
    except OSError:
        return False


def _descendants(pid: int) -> Iterator[int]:
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - pathlib takes as long to load as the rest
            for child in _read(f"/proc/{pid}/task/{thread}/children").split():
                yield int(child)
                yield from _descendants(int(child))
    except OSError:
        pass  # it has ended, or there is no such file on this system


def _started(pid: int) -> str | None:
    stat = read_stat(pid)
    return None if stat is None else stat[2]


def _read(path: str, limit_bytes: int = _READ_BYTES) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, limit_bytes)
    finally:
        os.close(file)


def main() -> None:
    """Read the worker's lines until its end of the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Supervisors signal the whole process tree; the watchdog must end last.
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, Group] = {}
    for line in sys.stdin.buffer:
        number = int(line[1:])
        if line.startswith(b"+"):
            groups[number] = Group.current(number)
        else:
            groups.pop(number, None)
    end_groups(groups.values(), mark=sys.argv[1])


if __name__ == "__main__":
    main()
