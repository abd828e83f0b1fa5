"""Has MCP servers report changes of the resources that agents watch, and publishes them.

Owns, for each server, which watches there are now and which of them this worker has subscribed to: of all workers
with a session with that server, one subscribes. A watch whose agent no longer renews its lease is removed. When a
session, its stream or another worker was lost, the agents of its watches hear that their resources may have changed.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from mcp import MCPError
from mcp.client.subscriptions import SubscriptionLost
from redis.exceptions import RedisError

from tarsy_tasks.broker import keys, watches
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.resource_changes import WatchMessage
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.worker.sessions.call_errors import describe_error
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.resource_subscriptions import ResourceSubscriptions

__all__ = ["ResourceWatches"]

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
_URI_CHARS = 8 * 1024


class _Watch:
    """One watch of an agent.

    Attributes:
        was_begun: A worker has subscribed to it before.
        heard: The subscriptions and the round of them that its agent knows of.
    """

    def __init__(self, watch_id: str, text: bytes) -> None:
        found = json.loads(text)
        self.id = watch_id
        self.uri, self.agent = str(found["uri"]), str(found["agent"])
        self.was_begun = bool(found.get("begun"))
        self.heard: tuple[object, int] | None = None

    def covers(self, uri: str) -> bool:
        return uri == self.uri or uri.startswith(f"{self.uri.rstrip('/')}/")

    def dump(self) -> str:
        return json.dumps({"uri": self.uri, "agent": self.agent, "begun": True})


class _ServerWatches:
    """Those of one server, as far as this worker subscribes to them."""

    def __init__(self, connection: ServerConnection, redis: AsyncRedisExchange, instance: str) -> None:
        self._connection = connection
        self._redis = redis
        self._instance = instance
        self._key = keys.watches_key(connection.server.name)
        self._watches: dict[str, _Watch] = {}
        self._subscriptions: ResourceSubscriptions | None = None
        self._changed: dict[str, None] = {}
        self._publishing: asyncio.Task[None] | None = None

    async def look(self) -> None:
        """Follow what is in Redis now. Raises `RedisError` and `OSError`."""
        session = self._connection.session
        watcher = keys.watcher_key(self._connection.server.name)
        if session is None:
            return
        found = await watches.lead.run_async(self._redis, watches=self._key, watcher=watcher, instance=self._instance)
        if found is None:
            self.close()
            return
        await self._take(found)
        if self._subscriptions is None or self._subscriptions.session is not session:
            self._unsubscribe()
            self._subscriptions = ResourceSubscriptions(session)
        subscriptions = self._subscriptions
        try:
            refused = await subscriptions.subscribe({each.uri for each in self._watches.values()})
        except (MCPError, SubscriptionLost, TimeoutError) as error:
            why = describe_error(error, self._connection.masker)
            logger.warning("MCP server %s: no changes of resources are heard: %s", self._connection.server.name, why)
            return
        state = (subscriptions, subscriptions.round)
        for watch in [*self._watches.values()]:
            if watch.uri in refused:
                await self._refuse(watch, refused[watch.uri])
            elif watch.heard != state:
                await self._begin(watch)
                watch.heard = state

    async def _take(self, found: list[bytes]) -> None:
        """Take over what was added and removed."""
        now = dict(zip((each.decode() for each in found[::2]), found[1::2], strict=True))
        known = {watch_id: self._watches.get(watch_id) or _Watch(watch_id, text) for watch_id, text in now.items()}
        leases = (("EXISTS", keys.watch_lease_key(each.agent, each.id)) for each in known.values())
        alive = await self._redis.execute(*leases) if known else []
        gone = [each.id for each, lives in zip(known.values(), alive, strict=True) if not lives]
        if gone:
            await self._redis.execute(("HDEL", self._key, *gone))
        self._watches = {watch_id: watch for watch_id, watch in known.items() if watch_id not in gone}

    async def _begin(self, watch: _Watch) -> None:
        kind = "missed" if watch.was_begun else "begun"
        await watches.change.run_async(self._redis, watches=self._key, watch_id=watch.id, text=watch.dump())
        watch.was_begun = True
        await self._publish(watch, WatchMessage(watch=watch.id, kind=kind))

    async def _refuse(self, watch: _Watch, why: str) -> None:
        del self._watches[watch.id]
        error = self._connection.masker.mask_start(why, 500)
        await self._publish(watch, WatchMessage(watch=watch.id, kind="refused", error=error))
        await self._redis.execute(("HDEL", self._key, watch.id))

    async def _publish(self, watch: _Watch, message: WatchMessage) -> None:
        await self._redis.execute(("PUBLISH", keys.events_channel(watch.id, watch.agent), message.dump()))

    def hear(self, uri: str) -> None:
        """The server reports a change. Those of one moment are published together."""
        if self._watches:
            self._changed[uri[:_URI_CHARS]] = None
            if self._publishing is None or self._publishing.done():
                self._publishing = asyncio.get_running_loop().create_task(self._publish_changes())

    async def _publish_changes(self) -> None:
        while self._changed:
            uris, self._changed = [*self._changed], {}
            for uri in uris:
                shown = self._connection.masker.mask_start(uri, _URI_CHARS)
                for watch in [each for each in self._watches.values() if each.covers(uri)]:
                    try:
                        await self._publish(watch, WatchMessage(watch=watch.id, kind="changed", uri=shown))
                    except (RedisError, OSError):
                        watch.heard = None  # it hears that it may have missed something

    def _unsubscribe(self) -> None:
        if self._subscriptions is not None:
            self._subscriptions.close()
            self._subscriptions = None

    def close(self) -> None:
        """Another worker subscribes, or nobody watches any more."""
        self._watches.clear()
        self._unsubscribe()


class ResourceWatches:
    """Those of one worker process.

    Args:
        connections: By server.
        redis: That of the results, for the loop.
    """

    def __init__(self, connections: Mapping[str, ServerConnection], redis: AsyncRedisExchange, instance: str) -> None:
        self._connections = connections
        self._redis = redis
        self._instance = instance
        self._servers: dict[str, _ServerWatches] = {}
        self._outage = OutageLog(logger, "watches of resources cannot be read")
        for connection in connections.values():
            self.add(connection)

    def add(self, connection: ServerConnection) -> None:
        """As `KeptPerServer.add`."""
        connection.on_resources = partial(self._hear, connection.server.name, connection.on_resources)

    def remove(self, server: str) -> None:
        """As `KeptPerServer.remove`."""
        if (found := self._servers.pop(server, None)) is not None:
            found.close()

    def _hear(self, server: str, other: "partial[None] | None", uri: str | None) -> None:
        if other is not None:
            other(uri)
        if uri is not None and server in self._servers:
            self._servers[server].hear(uri)

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                try:
                    await self._look()
                    self._outage.succeeded()
                except (RedisError, OSError) as error:
                    self._outage.failed(error)
                except Exception:
                    logger.exception("watches of resources cannot be followed")
                await asyncio.sleep(_LOOK_S)
        finally:
            for each in self._servers.values():
                each.close()

    async def _look(self) -> None:
        connections = [*self._connections.values()]
        if not connections:
            return
        names = [each.server.name for each in connections]
        counts = await self._redis.execute(*(("HLEN", keys.watches_key(name)) for name in names))
        for name, connection, count in zip(names, connections, counts, strict=True):
            if count:
                if name not in self._servers:
                    self._servers[name] = _ServerWatches(connection, self._redis, self._instance)
                with suppress(KeyError):  # the server was removed meanwhile
                    await self._servers[name].look()
            elif name in self._servers:
                self.remove(name)
