"""Notices that a server has changed its list of tools, while a session is open.

Owns how servers say so, which differs between the eras of MCP, and how often a list is read for that reason. Reading it
is the session's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import ToolListChangedNotification

from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.call_errors import describe_error

__all__ = ["ListChanges"]

logger = logging.getLogger(__name__)

_RELIST_PAUSE_S = 1.0
_LISTEN_PAUSE_S = 5.0
_METHOD_NOT_FOUND = -32601


class ListChanges:
    """Those of one session.

    Args:
        server: Id of the server, for the log.
        relist: Reads the list again.
        is_lost: Whether the session is lost.
    """

    def __init__(
        self, server: str, relist: Callable[[], Awaitable[None]], is_lost: Callable[[], bool], masker: Masker
    ) -> None:
        self._server = server
        self._relist = relist
        self._is_lost = is_lost
        self._masker = masker
        self._changed = asyncio.Event()
        self._following: list[asyncio.Task[None]] = []

    async def hear(self, message: Any) -> None:
        """What the server sent besides answers."""
        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    def follow(self, client: Client, *, is_handshake_era: bool) -> None:
        """Have the list read whenever the server reports changes. In the handshake era many servers do so without
        having announced it: those of the Python SDK cannot.
        """
        if (tools := client.server_capabilities.tools) is None:
            return
        self._following.append(asyncio.create_task(self._relist_on_change()))
        if tools.list_changed and not is_handshake_era:
            self._following.append(asyncio.create_task(self._listen(client)))

    async def stop(self) -> None:
        """Stop following them, before the session ends."""
        for task in self._following:
            task.cancel()
        if self._following:
            await asyncio.wait(self._following)
        self._following.clear()

    async def _relist_on_change(self) -> None:
        while not self._is_lost():
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._relist()
            except Exception as error:
                why = describe_error(error, self._masker)
                logger.warning("MCP server %s changed its tools, but did not list them: %s", self._server, why)
            # A server that changes its tools all the time is listed once a second.
            await asyncio.sleep(_RELIST_PAUSE_S)

    async def _listen(self, client: Client) -> None:
        """In the 2026 era changes come over a stream; those between two streams are not reported."""
        may_have_missed = False
        while not self._is_lost():
            try:
                async with client.listen(tools_list_changed=True) as events:
                    if may_have_missed:
                        self._changed.set()
                    async for _ in events:
                        self._changed.set()
            except MCPError as error:
                if error.code == _METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            may_have_missed = True
            await asyncio.sleep(_LISTEN_PAUSE_S)
