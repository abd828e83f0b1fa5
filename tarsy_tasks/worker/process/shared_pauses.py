"""Servers that asked to wait (HTTP 429, or 503 with Retry-After): what one worker reads, all workers keep to.

Owns how they learn of it: through Redis, at once from the worker that was asked, and within a second in the others. A
call that is not sent yet waits in Redis (`worker.calls.over_limit`); nothing of this is part of a call.
"""

import asyncio
import time
from collections.abc import Mapping
from functools import partial

from redis.exceptions import RedisError

from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import as_text
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.limit_counters import LONGEST_PAUSE_S, read_pauses, share_pause
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["SharedPauses"]


class SharedPauses:
    """The pauses of servers, as one worker process shares them with the others.

    Args:
        connections: By server.
        exchange: That of the broker, for the loop.
    """

    def __init__(self, connections: Mapping[str, ServerConnection], exchange: AsyncRedisExchange) -> None:
        self._connections = connections
        self._exchange = exchange
        self._unshared: dict[str, float] = {}
        """Until when, in monotonic time, by server: what Redis has not taken yet."""
        self._sharing: set[asyncio.Task[None]] = set()
        for connection in connections.values():
            self.add(connection)

    def add(self, connection: ServerConnection) -> None:
        """As `KeptPerServer.add`."""
        connection.on_pause = partial(self._share, connection.server.name)

    def remove(self, server: str) -> None:
        """As `KeptPerServer.remove`."""
        self._unshared.pop(server, None)

    def _share(self, server: str, seconds: float) -> None:
        until = self._unshared[server] = time.monotonic() + seconds
        task = asyncio.get_running_loop().create_task(self._send(server, until))
        self._sharing.add(task)
        task.add_done_callback(self._sharing.discard)

    async def _send(self, server: str, until: float) -> None:
        wait_s = until - time.monotonic()
        try:
            await share_pause.run_async(self._exchange, server=server, wait_s=wait_s, longest_s=LONGEST_PAUSE_S)
        except (RedisError, OSError):
            return  # `tend` tries again
        self._forget(server, until)

    def _forget(self, server: str, until: float) -> None:
        if self._unshared.get(server) == until:
            self._unshared.pop(server, None)

    def tend(self, exchange: RedisExchange) -> None:
        """Called every second, in a thread. Raises `RedisError`."""
        for server, until in self._unshared.copy().items():
            if (wait_s := until - time.monotonic()) > 0:
                share_pause.run(exchange, server=server, wait_s=wait_s, longest_s=LONGEST_PAUSE_S)
            self._forget(server, until)
        found = map(as_text, read_pauses.run(exchange, longest_s=LONGEST_PAUSE_S))
        for server, left_s in zip(found, found, strict=True):
            if (connection := self._connections.get(server)) is not None:
                connection.pause_until(time.monotonic() + float(left_s))
