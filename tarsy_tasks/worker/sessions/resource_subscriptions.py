"""The subscriptions of one session to changes of resources, in either era of MCP.

Owns how a server is asked. What it reports then, the session's message handler hears (`list_changes`). Everything runs
on the session loop.
"""

import asyncio
from collections.abc import Collection, Iterable

from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import (
    EmptyResult,
    SubscribeRequest,
    SubscribeRequestParams,
    UnsubscribeRequest,
    UnsubscribeRequestParams,
)

from tarsy_tasks.worker.sessions.recovery import CONNECTION_CLOSED, REQUEST_TIMEOUT, Executed, classify_error
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["ResourceSubscriptions"]

_NOT_ACCEPTED = "it did not accept the subscription"


class ResourceSubscriptions:
    """The subscriptions of one session.

    Attributes:
        session: The session that they belong to.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._uris: frozenset[str] = frozenset()
        self._stream: asyncio.Task[None] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether what the server reports is no longer heard."""
        return self.session.lost or (self._stream is not None and self._stream.done())

    async def add(self, uris: Collection[str], timeout_s: float) -> dict[str, str]:
        """Subscribe to these, too. One call at a time.

        Returns:
            Why the server does not accept some of them, by URI.

        Raises:
            MCPError: It could not be asked.
        """
        if self.session.is_handshake_era:
            return await self._ask_for_each(uris, timeout_s)
        if not (new := frozenset(uris) - self._uris):
            return {}
        try:
            accepted = await self._listen(self._uris | new, timeout_s)
        except MCPError as error:
            if not _is_answer(error):
                raise
            if len(new) == 1:
                return dict.fromkeys(new, error.message)
            # One that the server does not accept must not be in the way of the others.
            refused: dict[str, str] = {}
            for uri in new:
                refused |= await self.add([uri], timeout_s)
            return refused
        return dict.fromkeys(new - accepted, _NOT_ACCEPTED)

    async def keep(self, uris: Collection[str], timeout_s: float) -> None:
        """Go on with these only. Raises as `add`."""
        gone = self._uris - frozenset(uris)
        if not gone or self.is_lost:
            return
        if self.session.is_handshake_era:
            self._uris -= gone
            for uri in gone:
                try:
                    await self._request(UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri)), timeout_s)
                except MCPError as error:
                    if not _is_answer(error):
                        return  # what it goes on reporting is left out
        elif self._uris - gone:
            await self._listen(self._uris - gone, timeout_s)
        else:
            self.close()

    def close(self) -> None:
        """End them, as far as the server hears of it."""
        self._uris = frozenset()
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None

    async def _ask_for_each(self, uris: Iterable[str], timeout_s: float) -> dict[str, str]:
        refused: dict[str, str] = {}
        for uri in frozenset(uris) - self._uris:
            try:
                await self._request(SubscribeRequest(params=SubscribeRequestParams(uri=uri)), timeout_s)
            except MCPError as error:
                if not _is_answer(error):
                    raise
                refused[uri] = error.message
            else:
                self._uris |= {uri}
        return refused

    async def _request(self, request: SubscribeRequest | UnsubscribeRequest, timeout_s: float) -> None:
        async def send(client: Client) -> EmptyResult:
            return await client.session.send_request(request, EmptyResult)

        await self.session.request(send, timeout_s)

    async def _listen(self, uris: frozenset[str], timeout_s: float) -> frozenset[str]:
        """One stream has all of them. A new one is accepted before the old one ends, so that nothing is missed."""
        accepted: asyncio.Future[frozenset[str]] = asyncio.get_running_loop().create_future()
        stream = asyncio.create_task(self._hear(sorted(uris), accepted))
        try:
            async with asyncio.timeout(timeout_s):
                found = await accepted
        except BaseException as error:
            stream.cancel()
            if isinstance(error, TimeoutError):
                raise MCPError(REQUEST_TIMEOUT, f"it took longer than {timeout_s:.3g} s") from None
            raise
        if not uris <= found and found <= self._uris:
            stream.cancel()  # nothing new
            return found
        before, self._stream, self._uris = self._stream, stream, found
        if before is not None:
            before.cancel()
        return found

    async def _hear(self, uris: list[str], accepted: "asyncio.Future[frozenset[str]]") -> None:
        try:
            async with self.session.listen_for(uris) as subscription:
                accepted.set_result(frozenset(subscription.honored.resource_subscriptions or ()))
                async for _ in subscription:
                    pass
        except SubscriptionLost as error:
            if not accepted.done():
                accepted.set_exception(MCPError(CONNECTION_CLOSED, str(error)))
        except Exception as error:
            # The session has ended; `is_lost` says so.
            if not accepted.done():
                accepted.set_exception(error)


def _is_answer(error: MCPError) -> bool:
    return classify_error(error).executed is Executed.YES
