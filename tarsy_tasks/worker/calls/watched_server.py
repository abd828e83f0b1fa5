"""The watches of resources that one connection to an MCP server follows.

Owns that the server is subscribed to what is watched: also after its session, or the stream of its changes, was lost.
What a watch hears then is published by `resource_watches`. Everything runs on the session loop.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from tarsy_tasks.broker import keys, watches
from tarsy_tasks.worker.calls.cache_places import wholes_of
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.resource_subscriptions import ResourceSubscriptions

__all__ = ["Watch", "WatchedServer"]

_MOST_CHANGES = 20
_LONGEST_URI = 8 * 1024
_ASK_S = 10.0


@dataclass(eq=False, slots=True)
class Watch:
    """One watch of an agent.

    Attributes:
        id: That of the task that began it.
        agent: The bound agent; empty for others.
        principal: Who watches, verified.
        changed: What the server has reported and is not published yet.
        is_uncertain: More may have changed than is in `changed`.
    """

    id: str
    server: str
    agent: str
    principal: str
    uri: str
    changed: dict[str, None] = field(default_factory=dict[str, None])
    is_uncertain: bool = False

    @property
    def member(self) -> str:
        return watches.member_of(self.server, self.agent, self.id)

    @property
    def record(self) -> str:
        return keys.watch_key(self.agent, self.id)

    def note(self, uris: Sequence[str]) -> None:
        """Something has changed; very many changes are one that is not certain."""
        self.changed.update(dict.fromkeys(uris))
        if len(self.changed) > _MOST_CHANGES:
            self.changed.clear()
            self.is_uncertain = True


class WatchedServer:
    """The watches over one connection.

    Args:
        lent: Gives the connection back, if it is that of an agent.
        report: Called when a watch has something to publish.
        refuse: Called when the server no longer accepts the subscription of a watch, with the reason.

    Attributes:
        watches: By id.
        adding: How many callers are about to add some.
    """

    def __init__(
        self,
        connection: ServerConnection,
        lent: AsyncExitStack,
        report: Callable[[Watch], None],
        refuse: Callable[[Watch, str], None],
    ) -> None:
        self.connection = connection
        self.watches: dict[str, Watch] = {}
        self.adding = 0
        self._lent = lent
        self._report = report
        self._refuse = refuse
        self._by_uri: dict[str, dict[str, Watch]] = {}
        self._subscriptions: ResourceSubscriptions | None = None
        self._turn = asyncio.Lock()
        self._passed_on = connection.on_resources
        connection.on_resources = self._heard_by = partial(self._hear, connection.on_resources)

    async def add(self, added: Sequence[Watch], timeout_s: float = _ASK_S) -> dict[str, str]:
        """Subscribe for these, too.

        Returns:
            Why the server does not accept some of them, by URI.

        Raises:
            CallError: There is no session.
            MCPError: The server could not be asked.
        """
        async with self._turn:
            subscriptions = await self._renew(timeout_s)
            refused = await subscriptions.add({each.uri for each in added}, timeout_s)
            for watch in added:
                if watch.uri not in refused:
                    self.watches[watch.id] = watch
                    self._by_uri.setdefault(watch.uri, {})[watch.id] = watch
            self.connection.watched = len(self.watches)
        return refused

    def remove(self, watch: Watch) -> None:
        """It has ended; the server hears of it with the next `look`."""
        if self.watches.get(watch.id) is watch:
            del self.watches[watch.id]
            others = self._by_uri[watch.uri]
            del others[watch.id]
            if not others:
                del self._by_uri[watch.uri]
        self.connection.watched = len(self.watches)

    async def look(self) -> bool:
        """Subscribe again where that was lost. Returns whether anything is watched. Raises as `add`."""
        async with self._turn:
            if self.watches:
                subscriptions = await self._renew(_ASK_S)
                await subscriptions.keep(self._by_uri, _ASK_S)
            return bool(self.watches or self.adding)

    async def close(self) -> None:
        """Follow nothing any more."""
        for watch in [*self.watches.values()]:
            self.remove(watch)
        if self.connection.on_resources is self._heard_by:
            self.connection.on_resources = self._passed_on
        subscriptions, self._subscriptions = self._subscriptions, None
        try:
            if subscriptions is not None and not subscriptions.session.lost:
                async with self._turn:
                    await subscriptions.keep((), _ASK_S)
        finally:
            if subscriptions is not None:
                subscriptions.close()
            await self._lent.aclose()

    async def _renew(self, timeout_s: float) -> ResourceSubscriptions:
        """The subscriptions of the session that there is now."""
        session = await self.connection.connected_for_call()
        before = self._subscriptions
        if before is not None and before.session is session and not before.is_lost:
            return before
        now = ResourceSubscriptions(session)
        refused = await now.add(self._by_uri, timeout_s)
        if before is not None:
            before.close()
        self._subscriptions = now
        for watch in [*self.watches.values()]:
            if (why := refused.get(watch.uri)) is not None:
                self.remove(watch)
                self._refuse(watch, why)
            else:
                watch.is_uncertain = True
                self._report(watch)
        return now

    def _hear(self, pass_on: Callable[[str | None], None], uri: str | None) -> None:
        pass_on(uri)
        if uri is None:
            return
        for whole in wholes_of(uri):
            for watch in self._by_uri.get(whole, {}).values():
                if len(uri) <= _LONGEST_URI:
                    watch.note([uri])
                else:
                    watch.is_uncertain = True
                self._report(watch)
