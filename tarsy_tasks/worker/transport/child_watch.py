"""The worker's child processes, seen as families: what a stdio server started is ended with it, and with the worker.

Owns the watchdog process (one per worker, started with the first child) and what is known of each child's descendants.
It runs on the session loop and blocks it for microseconds; how a server is asked to end is the business of `stdio`.

Every child has the watch's mark in its environment, and hands it to what it starts. That finds, when the worker is
gone, a child that was not registered yet, and a grandchild that made a session of its own and lost its parent before
anybody looked: a daemon, which ends with the worker as all else does. One that overwrites its environment is not found
by it, and where there is no `/proc` none is.
"""

import logging
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import suppress

from tarsy_tasks.worker.transport import watchdog
from tarsy_tasks.worker.transport.watchdog import MARK, Group, groups_of, read_stat

__all__ = ["ChildWatch", "ProcessTree", "child_watch"]

logger = logging.getLogger(__name__)

_LOOKS_PER_SEARCH = 4
"""Searching a tree costs ten times as much as looking at the processes that are known."""
_STOPPED_LOOKS = 2
_EXIT_S = 2.0


class ChildWatch:
    """The watchdog process and its pipe. The pipe ends with this process, even by SIGKILL; that is the whole trick."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = uuid.uuid4().hex

    def mark(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment to start a child with. From here on the watchdog is there to find it."""
        if self._process is None:
            self._start()
        return {**environment, MARK: self._mark}

    def add(self, group: int) -> None:
        """From now on this process group ends with the worker."""
        self._groups.add(group)
        self._tell(b"+%d\n" % group)

    def discard(self, group: int) -> None:
        """This process group is dead, and its id may soon be another's."""
        self._groups.discard(group)
        if self._process is not None:
            self._tell(b"-%d\n" % group)

    def mend(self) -> None:
        """Start the watchdog anew if something has killed it."""
        if self._process is not None and self._process.poll() is not None:
            logger.warning("the watchdog of the MCP servers ended with code %s", self._process.returncode)
            self._start()

    def close(self) -> None:
        """End the watchdog; what is still registered ends with it."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_EXIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._groups.clear()

    def _tell(self, line: bytes) -> None:
        self.mend()
        if self._process is None:
            self._start()
            return
        assert self._process.stdin is not None
        try:
            written = self._process.stdin.write(line)
        except OSError:
            written = None
        if written != len(line):
            # It is gone, or has not read its pipe for thousands of lines.
            self._process.kill()
            self._process.wait()
            self.mend()

    def _start(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own file
                [sys.executable, "-I", "-S", watchdog.__file__, f"{MARK}={self._mark}"],
                # In a worker that is itself below a server of another one: it must outlive its worker, not end with it.
                env={name: value for name, value in os.environ.items() if name != MARK},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            logger.warning("no watchdog, MCP servers may outlive a worker that is killed: %s", error)
            return
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        with suppress(OSError):  # gone already: the next look finds that
            self._process.stdin.write(b"".join(b"+%d\n" % group for group in self._groups))


child_watch = ChildWatch()
"""The one of this process."""


class ProcessTree:
    """A child that leads a process group, its descendants, and the groups that they made for themselves.

    Args:
        pid: The child, started with `start_new_session`.
    """

    def __init__(self, pid: int, watch: ChildWatch = child_watch) -> None:
        self._pid = pid
        self._watch = watch
        self._own = Group.now(pid)
        self._members = [pid]
        self._groups = {pid: self._own}
        self._looks = 0
        self._stopped_looks = 0
        watch.add(pid)

    def look(self) -> bool:
        """Look at the family, as is done every second or two; whether it has been stopped (SIGSTOP) for a while."""
        self._watch.mend()
        if self._looks % _LOOKS_PER_SEARCH == 0:
            self.search()
        self._looks += 1
        self._stopped_looks = self._stopped_looks + 1 if self.is_stopped() else 0
        return self._stopped_looks >= _STOPPED_LOOKS

    def search(self) -> None:
        """Find who belongs to the family now. A descendant whose parent ends is found no more, so its group is kept."""
        self._members = [self._pid, *self._own.descendants()]
        for number in groups_of(self._members[1:]) - self._groups.keys():
            self._groups[number] = Group.now(number)
            self._watch.add(number)
        for number, group in list(self._groups.items()):
            if number != self._pid and not group.is_alive():
                del self._groups[number]
                self._watch.discard(number)

    def is_stopped(self) -> bool:
        """Whether a member of the child's own group is stopped: the child, or what a launcher like npx started.

        Members in groups of their own do not count: that is what a shell does to its jobs, and it may stop them.
        """
        stats = map(read_stat, self._members)
        return any(stat is not None and stat[0] == "T" and stat[1] == self._pid for stat in stats)

    def signal(self, number: signal.Signals) -> None:
        """Signal every group of the family."""
        for group in self._groups.values():
            group.signal(number)

    def release(self) -> None:
        """The family has been killed."""
        for number in self._groups:
            self._watch.discard(number)
        self._groups.clear()
