"""Ends the process groups of MCP servers when the worker that started them is gone, however it went.

Owns what a process group and a process tree are, as `/proc` shows them, and the small program that outlives a worker:
`python -I -S watchdog.py NAME=VALUE`, which reads `+<group>` and `-<group>` lines and, when its stdin ends, ends the
groups that are left and every process that has the variable in its environment. It imports the standard library only
and nothing of this package, so that it starts in 20 ms and stays small. `child_watch` is the worker's side.

Where there is no `/proc` (macOS), groups are ended all the same; what needs `/proc` sees nothing there.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator

__all__ = ["MARK", "Group", "end_groups", "groups_of", "read_stat"]

MARK = "TARSY_CHILD_OF"
"""The variable that tells, in the environment of all that a worker's servers start, which worker that is."""

_GRACE_S = 0.7
"""Between SIGTERM and SIGKILL; two seconds after its worker's end no server may be left."""
_POLL_S = 0.02
_READ_BYTES = 65536
_ENVIRONMENT_BYTES = 4 * 1024 * 1024
"""More than Linux takes for arguments and environment together by default."""


class Group:
    """A process group, named by the id of the process that leads it.

    Args:
        number: The id.
        leader_started: When its leader started, as `read_stat` tells; None when it is gone, or cannot be seen.

    The kernel gives an id to nobody else while the group has a member, so a group whose leader is gone is still the
    same group. Only when all of it has died may the id come back, with a leader that started at another time: that one
    is a stranger, and is never signalled.
    """

    def __init__(self, number: int, leader_started: str | None) -> None:
        self.number = number
        self._leader_started = leader_started

    @classmethod
    def now(cls, number: int) -> "Group":
        """The group that has this id at this moment."""
        return cls(number, _started(number))

    def is_alive(self) -> bool:
        started = _started(self.number)
        return (started is None or started == self._leader_started) and self._kill(0)

    def signal(self, number: signal.Signals) -> None:
        if self.is_alive():
            self._kill(number)

    def descendants(self) -> list[int]:
        """The living descendants of the leader; none when it is gone, and its id perhaps another's.

        Without the watchdogs of workers that are among them: those end by themselves, when they have done their work.
        """
        started = _started(self.number)
        if started is None or started != self._leader_started:
            return []
        return [pid for pid in _descendants(self.number) if not _is_watchdog(pid)]

    def _kill(self, number: int) -> bool:
        if self.number <= 1:
            return False  # to the system that would mean: everybody, or the caller's own group
        try:
            os.killpg(self.number, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it runs as somebody else; on macOS also: it is dead and nobody has waited for it yet
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
    """The process groups that some processes are in. One that is just being reaped is in none: `/proc` shows -1."""
    return {stat[1] for stat in map(read_stat, pids) if stat is not None and stat[1] > 1}


def end_groups(groups: Iterable[Group], mark: str) -> None:
    """End groups, those that their leaders' descendants made for themselves, and those of marked processes.

    SIGTERM, a moment, SIGKILL.

    Args:
        groups: What to end.
        mark: `NAME=VALUE`, as a child's environment holds it. It finds those whose parents ended before anybody looked,
            which servers do by themselves as soon as their stdin is closed.
    """
    found = {group.number: group for group in groups if group.is_alive()}
    _signal(found, mark, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while any(group.is_alive() for group in found.values()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    _signal(found, mark, signal.SIGKILL)


def _signal(found: dict[int, Group], mark: str, number: signal.Signals) -> None:
    """Signal the groups that are known, those of their descendants, then those of the marked; all are known then."""
    # A session of its own (setsid) takes a process out of its parent's group, not out of the tree.
    for relative in groups_of([pid for group in found.values() for pid in group.descendants()]) - found.keys():
        found[relative] = Group.now(relative)
    for group in found.values():
        group.signal(number)
    for marked in _marked_groups(mark):
        if marked not in found:
            found[marked] = Group.now(marked)
            found[marked].signal(number)


def _marked_groups(mark: str) -> Iterator[int]:
    """The groups of the processes whose environment holds the mark, of those that this user may look at."""
    sought = b"\0%b\0" % os.fsencode(mark)
    try:
        pids = [name for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - see `_descendants`
    except OSError:
        return
    for pid in pids:
        try:
            environment = _read(f"/proc/{pid}/environ", _ENVIRONMENT_BYTES)
        except OSError:
            continue  # another's, or gone
        if sought in b"\0%b\0" % environment:
            yield from groups_of([int(pid)])


def _is_watchdog(pid: int) -> bool:
    try:
        return b"\0%b=" % os.fsencode(MARK) in _read(f"/proc/{pid}/cmdline")
    except OSError:
        return False


def _descendants(pid: int) -> Iterator[int]:
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - pathlib is as much to load as the rest
            for child in _read(f"/proc/{pid}/task/{thread}/children").split():
                yield int(child)
                yield from _descendants(int(child))
    except OSError:
        pass  # it has ended meanwhile, or there is no such file here


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
    """Follow the worker's lines until its end of the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Supervisors signal the whole family; this one goes last.
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, Group] = {}
    for line in sys.stdin.buffer:
        number = int(line[1:])
        if line.startswith(b"+"):
            groups[number] = Group.now(number)
        else:
            groups.pop(number, None)
    end_groups(groups.values(), mark=sys.argv[1])


if __name__ == "__main__":
    main()
