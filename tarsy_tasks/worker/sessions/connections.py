"""The connections of one worker process, by server, and who is informed when one comes or goes.

Owns which servers this process serves at the moment, and which it served before. All changes happen on the session
loop; what opens and closes connections at run time is `process.server_changes`.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import Protocol

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.worker.maskers import build_server_masker
from tarsy_tasks.worker.sessions.agent_connections import AgentsConnection
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.opening import SessionContext

__all__ = ["Connections", "KeptPerServer", "build_connection", "build_connections"]


class KeptPerServer(Protocol):
    """Part of a worker that keeps something for each server. Called on the session loop; it must not block."""

    def add(self, connection: ServerConnection) -> None:
        """A server is served from now on, or from now on by another connection."""
        ...

    def remove(self, server: str) -> None:
        """A server is served no longer."""
        ...


class Connections(dict[str, ServerConnection]):
    """A dictionary that other threads may read meanwhile: what they iterate over is as it was at that moment.

    Attributes:
        removed: Servers that this process served, and serves no longer.
    """

    def __init__(self, connections: Iterable[ServerConnection] = ()) -> None:
        super().__init__({each.server.name: each for each in connections})
        self.removed: frozenset[str] = frozenset()
        self._now = dict(super().items())
        """The same, in a dictionary that does not change."""
        self._keepers: list[KeptPerServer] = []

    def inform(self, *keepers: KeptPerServer) -> None:
        """Inform these of every change from now on, in this order."""
        self._keepers += keepers

    def put(self, connection: ServerConnection) -> None:
        """Serve a server by this connection."""
        self[connection.server.name] = connection
        self.removed = self.removed - {connection.server.name}
        self._now = dict(super().items())
        for keeper in self._keepers:
            keeper.add(connection)

    def drop(self, server: str) -> None:
        """Serve a server no longer."""
        del self[server]
        self.removed = self.removed | {server}
        self._now = dict(super().items())
        for keeper in self._keepers:
            keeper.remove(server)

    def __iter__(self) -> Iterator[str]:
        return iter(self._now)

    def keys(self) -> KeysView[str]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._now.keys()

    def values(self) -> ValuesView[ServerConnection]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._now.values()

    def items(self) -> ItemsView[str, ServerConnection]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._now.items()


def build_connection(server: ServerConfig, context: SessionContext) -> ServerConnection:
    """The connection of one process to a server."""
    kind = AgentsConnection if server.agent_variables else ServerConnection
    return kind(server, build_server_masker(server), context)


def build_connections(servers: Iterable[ServerConfig], context: SessionContext) -> dict[str, ServerConnection]:
    """The connections of one process, by server id."""
    return {server.name: build_connection(server, context) for server in servers}
