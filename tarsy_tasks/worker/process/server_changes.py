"""Servers that come, change and go while a worker runs.

Owns the order of each change, so that no call is lost by it. A new server is served at once. A changed one gets a new
connection beside the old, which takes its place when it is connected, when that has failed once, or at once if the
server starts on demand; the old one is closed when its calls are over. A server that was removed is served for the
grace as before; then its calls are answered that it is gone. Everything here runs on the session loop.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Protocol

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connections import Connections

__all__ = ["RunningCalls", "ServerChanges"]

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
_MARGIN_S = 5.0
"""A call that runs longer than it may, by so much, does not keep an old connection open."""


class RunningCalls(Protocol):
    """What the pool knows of the calls that run."""

    def calls_of(self, server: str) -> list[int]:
        """The calls of a server that run now."""
        ...

    def still_runs(self, call: int) -> bool:
        """Whether one of them still does."""
        ...


class ServerChanges:
    """The changes of one worker process.

    Args:
        connect: Makes the connection to a server.
        grace_s: How long a server is served that was removed.
    """

    def __init__(
        self,
        connections: Connections,
        calls: RunningCalls,
        connect: Callable[[ServerConfig], ServerConnection],
        grace_s: float,
    ) -> None:
        self._connections = connections
        self._calls = calls
        self._connect = connect
        self._grace_s = grace_s
        self._under_way: dict[str, tuple[ServerConfig | None, asyncio.Task[None]]] = {}
        """By server, what becomes of it: its new configuration, or None if it goes."""
        self._closing: set[asyncio.Task[None]] = set()

    def apply(self, wanted: Mapping[str, ServerConfig]) -> str:
        """Serve these servers from now on; what was decided before about the same ones is void. Returns what changes,
        in words for the log; empty if nothing does."""
        found: dict[str, list[str]] = {"added": [], "changed": [], "removed": []}
        for name, server in wanted.items():
            if what := self._bring(name, server):
                found[what].append(name)
        for name in self._connections.keys() - wanted.keys():
            if self._find(name) is not None:
                self._begin(name, None, self._leave(name))
                found["removed"].append(name)
        return "; ".join(f"{what} {', '.join(sorted(names))}" for what, names in found.items() if names)

    async def close(self) -> None:
        """End what is under way, because the worker stops: connections that wait to be used, or to be closed."""
        tasks = [*(task for _, task in self._under_way.values()), *self._closing]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._closing:  # what was about to be used
            await asyncio.wait({*self._closing})

    def _find(self, name: str) -> ServerConfig | None:
        """How a server is to be served, as was last decided; None if it goes, or is not served."""
        if name in self._under_way:
            return self._under_way[name][0]
        connection = self._connections.get(name)
        return connection.server if connection is not None else None

    def _bring(self, name: str, server: ServerConfig) -> str:
        if self._find(name) == server:
            return ""
        self._end(name)
        current = self._connections.get(name)
        if current is None:
            connection = self._connect(server)
            self._connections.put(connection)
            self._begin(name, server, self._open(name, connection))
            return "added"
        if current.server == server:
            return "added"  # it was removed, and its grace is not over
        self._begin(name, server, self._replace(name, server, current))
        return "changed"

    def _begin(self, name: str, server: ServerConfig | None, step: Coroutine[None, None, None]) -> None:
        self._end(name)
        self._under_way[name] = server, asyncio.create_task(step)

    def _end(self, name: str) -> None:
        if (found := self._under_way.pop(name, None)) is not None:
            found[1].cancel()

    async def _open(self, name: str, connection: ServerConnection) -> None:
        with suppress(NoSessionError):  # which is logged, and in the health records
            await connection.start()
        del self._under_way[name]

    async def _replace(self, name: str, server: ServerConfig, old: ServerConnection) -> None:
        new = self._connect(server)
        new.is_disconnected_by_operator = old.is_disconnected_by_operator
        try:
            with suppress(NoSessionError):
                await new.start()
        except asyncio.CancelledError:
            self._close_later(new, [])
            raise
        del self._under_way[name]
        calls = self._calls.calls_of(name)
        self._connections.put(new)
        self._close_later(old, calls)
        logger.info("MCP server %s is served with its changed configuration", name)

    async def _leave(self, name: str) -> None:
        logger.info("MCP server %s was removed; it is served for another %g s", name, self._grace_s)
        await asyncio.sleep(self._grace_s)
        connection = self._connections[name]
        connection.is_removed = True
        del self._under_way[name]
        self._connections.drop(name)
        self._close_later(connection, [])
        logger.info("MCP server %s is served no longer", name)

    def _close_later(self, connection: ServerConnection, calls: list[int]) -> None:
        task = asyncio.create_task(self._close(connection, calls))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, connection: ServerConnection, calls: list[int]) -> None:
        """Close a connection when these calls are over, which may use it until then."""
        try:
            async with asyncio.timeout(connection.server.timeouts.longest_call_s + _MARGIN_S):
                for call in calls:
                    while self._calls.still_runs(call):  # noqa: ASYNC110 - it ends in any thread
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            logger.warning("MCP server %s: calls that do not end lose their old session", connection.server.name)
        finally:
            await connection.close()
