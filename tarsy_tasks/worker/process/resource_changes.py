"""What servers report as changed is dropped from the cache of answers.

Owns that it happens, also when Redis is not there at the moment. What is in the cache, and how a call uses it, is in
`worker.calls.result_cache`.
"""

import asyncio
import uuid
from collections.abc import Mapping
from functools import partial

from redis.exceptions import RedisError

from tarsy_tasks.broker import answer_cache, keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.worker.calls.cache_places import RESOURCES, fields_of_change, place_of
from tarsy_tasks.worker.sessions.agent_connections import AgentsConnection
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["ResourceChanges"]

_RETRY_S = 1.0
_MOST = 1000
"""Fields of a server that wait to be dropped; beyond that, everything is."""

_Fields = set[str] | None
"""None: everything."""


class ResourceChanges:
    """The changes of resources that are reported to one worker process.

    Args:
        connections: By server.
        exchange: That of the cache of answers, for the loop.
    """

    def __init__(self, connections: Mapping[str, ServerConnection], exchange: AsyncRedisExchange) -> None:
        self._exchange = exchange
        self._changed: dict[str, _Fields] = {}
        """By place in the cache."""
        self._newest: asyncio.Future[None] | None = None
        """Is done when the last of them is dropped that was noted until now."""
        self._dropping: asyncio.Task[None] | None = None
        for connection in connections.values():
            self.add(connection)

    def add(self, connection: ServerConnection) -> None:
        """As `KeptPerServer.add`."""
        cache = connection.server.cache
        if cache is not None and cache.resources is not None:
            connection.on_resources = partial(self._note, connection)
            if isinstance(connection, AgentsConnection):
                connection.on_agents_resources = self._note

    def remove(self, server: str) -> None:
        """As `KeptPerServer.remove`."""

    async def dropped(self) -> None:
        """Return when what has changed until now is no longer in the cache."""
        if self._dropping is not None and self._newest is not None:
            await asyncio.wait({self._dropping, self._newest}, return_when=asyncio.FIRST_COMPLETED)

    def _note(self, connection: ServerConnection, uri: str | None) -> None:
        if not (place := place_of(connection, RESOURCES)):
            return
        loop = asyncio.get_running_loop()
        if not self._changed:
            self._newest = loop.create_future()
        before = self._changed.setdefault(place, set())
        if uri is None or before is None:
            self._changed[place] = None
        else:
            before.update(fields_of_change(uri))
            if len(before) > _MOST:
                self._changed[place] = None
        if self._dropping is None or self._dropping.done():
            self._dropping = loop.create_task(self._drop_all())

    async def _drop_all(self) -> None:
        """In rounds: what is noted during one is dropped in the next, so none waits for all that still come."""
        while self._changed:
            noted, self._changed, done = self._changed, {}, self._newest
            for place, fields in noted.items():
                await self._drop(place, fields)
            if done is not None:
                done.set_result(None)

    async def _drop(self, place: str, fields: _Fields) -> None:
        while True:
            try:
                await answer_cache.drop.run_async(
                    self._exchange,
                    place=keys.cache_key(place),
                    fields=sorted(fields or ()),
                    everything=fields is None,
                    generation=uuid.uuid4().hex,
                )
            except (RedisError, OSError):
                await asyncio.sleep(_RETRY_S)
            else:
                return
