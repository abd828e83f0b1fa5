"""The worker's child processes: all that a stdio server starts ends with the server, and with the worker.

Owns the watchdog process (one per worker, started with the first child) and the known descendants of each child. It
runs on the session loop and blocks it for microseconds; how a server is asked to end is in `stdio`.

Every child has the watch's mark in its environment and passes it on to its own children. When the worker is gone, the
mark finds a child that was not registered yet, and a daemon: a grandchild with its own session (setsid) whose parent
ended before the first look. It does not find a process that overwrites its environment, nor any without `/proc`.
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
from tarsy_tasks.worker.transport.sandbox.launcher import bare_environment
from tarsy_tasks.worker.transport.watchdog import MARK, Group, groups_of, read_stat

__all__ = ["ChildWatch", "ProcessTree"]

logger = logging.getLogger(__name__)

_CHECKS_PER_UPDATE = 4
"""Searching for new descendants costs ten times as much as a look at the known ones."""
_STOPPED_CHECKS = 2
_EXIT_S = 2.0


class ChildWatch:
    """The watchdog process and its pipe, which is closed when this process ends, even by SIGKILL."""

    def __init__(self) -> None:
        self._groups: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = uuid.uuid4().hex

    def mark(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment to start a child with. From now on the watchdog finds it."""
        if self._process is None:
            self._start()
        return {**environment, MARK: self._mark}

    def add(self, group: int) -> None:
        """From now on this process group ends with the worker."""
        self._groups.add(group)
        self._send(b"+%d\n" % group)

    def discard(self, group: int) -> None:
        """This process group is dead, and the system may use its id again."""
        self._groups.discard(group)
        if self._process is not None:
            self._send(b"-%d\n" % group)

    def restart_if_dead(self) -> None:
        """Start the watchdog again if something has killed it."""
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            logger.warning("the watchdog of the MCP servers ended with code %s; starting it again", code)
            self._start()

    def close(self) -> None:
        """End the watchdog; it ends what is still registered."""
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

    def _send(self, line: bytes) -> None:
        self.restart_if_dead()
        if self._process is None:
            self._start()
            return
        assert self._process.stdin is not None
        try:
            written = self._process.stdin.write(line)
        except OSError:
            written = None
        if written != len(line):
            # It has ended, or has not read its pipe for thousands of lines.
            self._process.kill()
            self._process.wait()
            self.restart_if_dead()

    def _start(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own file
                [sys.executable, "-I", "-S", watchdog.__file__, f"{MARK}={self._mark}"],
                # Without the mark: a worker may run below a server of another one, and its watchdog must not end with
                # that server.
                env=bare_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            logger.warning("the watchdog cannot be started, so MCP servers may outlive a killed worker: %s", error)
            return
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        with suppress(OSError):  # it has ended already: the next check finds that
            self._process.stdin.write(b"".join(b"+%d\n" % group for group in self._groups))


class ProcessTree:
    """A child that was started with `start_new_session`, its descendants, and their process groups."""

    def __init__(self, pid: int, watch: ChildWatch) -> None:
        self._pid = pid
        self._watch = watch
        self._own = Group.current(pid)
        self._members = [pid]
        self._groups = {pid: self._own}
        self._checks = 0
        self._stopped_checks = 0
        watch.add(pid)

    def check(self) -> bool:
        """Whether the tree has been stopped (SIGSTOP) for two checks in a row. To be called every second or two."""
        self._watch.restart_if_dead()
        if self._checks % _CHECKS_PER_UPDATE == 0:
            self.update()
        self._checks += 1
        self._stopped_checks = self._stopped_checks + 1 if self.is_stopped() else 0
        return self._stopped_checks >= _STOPPED_CHECKS

    def update(self) -> None:
        """Find the members. A descendant is not found any more when its parent has ended, so its group is kept."""
        self._members = [self._pid, *self._own.descendants()]
        for number in groups_of(self._members[1:]) - self._groups.keys():
            self._groups[number] = Group.current(number)
            self._watch.add(number)
        for number, group in list(self._groups.items()):
            if number != self._pid and not group.is_alive():
                del self._groups[number]
                self._watch.discard(number)

    def is_stopped(self) -> bool:
        """Whether a member of the child's own group is stopped: the child, or what a launcher like npx started.

        Members in other groups do not count: shells put their jobs into groups, and may stop them.
        """
        stats = map(read_stat, self._members)
        return any(stat is not None and stat[0] == "T" and stat[1] == self._pid for stat in stats)

    def signal(self, number: signal.Signals) -> None:
        """Signal every group of the tree."""
        for group in self._groups.values():
            group.signal(number)

    def release(self) -> None:
        """The tree has been killed."""
        for number in self._groups:
            self._watch.discard(number)
        self._groups.clear()
