"""The subscriptions of one session to changes of resources, in either era of MCP.

Owns how a server is asked. What it reports, the session's message handler hears. Everything runs on the session loop.
"""

import asyncio
from collections.abc import Set
from contextlib import suppress

from mcp import MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import (
    EmptyResult,
    SubscribeRequest,
    SubscribeRequestParams,
    UnsubscribeRequest,
    UnsubscribeRequestParams,
)

from tarsy_tasks.worker.sessions.session import Session

__all__ = ["ResourceSubscriptions"]

_TIMEOUT_S = 5.0


class ResourceSubscriptions:
    """Those of one session.

    Attributes:
        round: How often they were all lost, as far as the session knows: what was reported meanwhile, nobody heard.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.round = 0
        self._uris: frozenset[str] = frozenset()
        self._stream: asyncio.Task[None] | None = None

    async def subscribe(self, uris: Set[str]) -> dict[str, str]:
        """Subscribe to these, and to no others. Returns why some could not be subscribed to, by URI.

        Raises:
            MCPError, SubscriptionLost, TimeoutError: Nothing could be.
        """
        return await (self._ask(uris) if self.session.is_handshake_era else self._listen(uris))

    def close(self) -> None:
        """End them, as far as the session is still there."""
        if self._stream is not None:
            self._stream.cancel()

    async def _ask(self, uris: Set[str]) -> dict[str, str]:
        refused: dict[str, str] = {}
        for uri in sorted(self._uris - uris):
            with suppress(MCPError):
                gone = UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri))
                await self.session.request(
                    lambda client, gone=gone: client.session.send_request(gone, EmptyResult), _TIMEOUT_S
                )
            self._uris -= {uri}
        for uri in sorted(uris - self._uris):
            try:
                asked = SubscribeRequest(params=SubscribeRequestParams(uri=uri))
                await self.session.request(
                    lambda client, asked=asked: client.session.send_request(asked, EmptyResult), _TIMEOUT_S
                )
            except MCPError as error:
                refused[uri] = error.message
            else:
                self._uris |= {uri}
        return refused

    async def _listen(self, uris: Set[str]) -> dict[str, str]:
        """One stream has them all; a new one begins before the old one ends, so that nothing is missed."""
        is_lost = self._stream is None or self._stream.done()
        if is_lost or uris != self._uris:
            self.round += is_lost and bool(self._uris)
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            before, self._stream = self._stream, asyncio.create_task(self._hear(sorted(uris), ready))
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await ready
            finally:
                if before is not None:
                    before.cancel()
            self._uris = frozenset(uris)
        return {}

    async def _hear(self, uris: list[str], ready: asyncio.Future[None]) -> None:
        try:
            async with self.session.listen_for(uris) as events:
                ready.set_result(None)
                async for _ in events:
                    pass
        except (MCPError, SubscriptionLost, TimeoutError) as error:
            if not ready.done():
                ready.set_exception(error)
