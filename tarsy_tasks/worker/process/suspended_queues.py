"""Calls of a server that this worker has suspended: they wait in Redis for workers that have not.

Owns when no calls are taken from the queue of a suspended server, and how the workers of that server know of each
other's suspensions. If all of them have suspended it, each takes its calls and answers them: an agent reads why, and
does not wait for nothing.
"""

from collections.abc import Mapping
from functools import partial

from redis.exceptions import ResponseError

from tarsy_tasks.broker import fleet
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.worker.process.bulkhead import Bulkhead
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["SuspendedQueues"]


class SuspendedQueues:
    """The queues of the servers that one worker process has suspended.

    Args:
        connections: By server.
        instance: Name of this worker process.
    """

    def __init__(self, connections: Mapping[str, ServerConnection], bulkhead: Bulkhead, instance: str) -> None:
        self._connections = connections
        self._bulkhead = bulkhead
        self._instance = instance
        self._announced: set[str] = set()
        for server, connection in connections.items():
            self._hold_back_suspended(server, connection)

    def add(self, connection: ServerConnection) -> None:
        """As `KeptPerServer.add`."""
        self._hold_back_suspended(connection.server.name, connection)

    def remove(self, server: str) -> None:
        """As `KeptPerServer.remove`: the next `tend` finds it."""

    def _hold_back_suspended(self, server: str, connection: ServerConnection) -> None:
        connection.on_suspend = partial(self._bulkhead.hold_back, server)

    def tend(self, exchange: RedisExchange) -> None:
        """Called every second, in a thread. Raises `RedisError`."""
        for server, connection in self._connections.items():
            if left_s := connection.suspension.left_s:
                try:
                    is_served_elsewhere = fleet.suspend(exchange, self._instance, server, left_s)
                except ResponseError:
                    self._bulkhead.release(server)
                    raise
                self._announced.add(server)
                if is_served_elsewhere:
                    self._bulkhead.hold_back(server)
                else:
                    self._bulkhead.release(server)
            else:
                # Also what has never been shared: a suspension may end before Redis could be reached.
                self._bulkhead.release(server)
                if server in self._announced:
                    self._resume(exchange, server)
        for server in self._announced - self._connections.keys():
            self._resume(exchange, server)

    def _resume(self, exchange: RedisExchange, server: str) -> None:
        fleet.resume(exchange, self._instance, server)
        self._announced.discard(server)
