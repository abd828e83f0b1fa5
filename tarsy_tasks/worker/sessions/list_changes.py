"""Notices that a server has changed its tools or resources, while a session is open.

Owns how servers say so, which differs between the eras of MCP, and how often the tools are listed for that reason.
Listing them is the session's.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost, ToolsListChanged
from mcp_types import ResourceListChangedNotification, ResourceUpdatedNotification, ToolListChangedNotification

from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.call_errors import describe_error

__all__ = ["ListChanges"]

logger = logging.getLogger(__name__)

_RELIST_PAUSE_S = 1.0
_LISTEN_PAUSE_S = 5.0
_METHOD_NOT_FOUND = -32601


class ListChanges:
    """The changes that the server of one session reports.

    Args:
        server: Id of the server, for the log.
        relist: Lists the tools again.
        is_lost: Whether the session is lost.
        on_resources: Called when a resource has changed, with its URI; None: any of them may have.
        follows_resources: Ask the server to report changes of its resources.
    """

    def __init__(
        self,
        server: str,
        relist: Callable[[], Awaitable[None]],
        is_lost: Callable[[], bool],
        masker: Masker,
        on_resources: Callable[[str | None], None],
        *,
        follows_resources: bool,
    ) -> None:
        self._server = server
        self._relist = relist
        self._is_lost = is_lost
        self._masker = masker
        self._on_resources = on_resources
        self._follows_resources = follows_resources
        self._changed = asyncio.Event()
        self._following: list[asyncio.Task[None]] = []

    async def hear(self, message: Any) -> None:
        """What the server sent besides answers."""
        match message:
            case ToolListChangedNotification():
                self._changed.set()
            case ResourceListChangedNotification():
                self._on_resources(None)
            case ResourceUpdatedNotification(params=updated):
                self._on_resources(updated.uri)
            case _:
                pass

    def follow(self, client: Client, *, is_handshake_era: bool) -> None:
        """Have the tools listed whenever the server reports changes. In the handshake era many servers do so without
        having announced it: those of the Python SDK cannot.
        """
        tools, resources = client.server_capabilities.tools, client.server_capabilities.resources
        if tools is not None:
            self._following.append(asyncio.create_task(self._relist_on_change()))
        if is_handshake_era:
            return
        of_tools = tools is not None and bool(tools.list_changed)
        of_resources = self._follows_resources and resources is not None and bool(resources.list_changed)
        if of_tools or of_resources:
            listening = self._listen(client, of_tools=of_tools, of_resources=of_resources)
            self._following.append(asyncio.create_task(listening))

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

    async def _listen(self, client: Client, *, of_tools: bool, of_resources: bool) -> None:
        """In the 2026 era changes come over a stream; those between two streams are not reported."""
        may_have_missed = False
        while not self._is_lost():
            try:
                listening = client.listen(tools_list_changed=of_tools, resources_list_changed=of_resources)
                async with listening as events:
                    if may_have_missed:
                        self._note(of_tools=of_tools, of_resources=of_resources)
                    async for event in events:
                        is_tools = isinstance(event, ToolsListChanged)
                        self._note(of_tools=is_tools, of_resources=not is_tools)
            except MCPError as error:
                if error.code == _METHOD_NOT_FOUND:
                    return
            except (SubscriptionLost, TimeoutError):
                pass
            may_have_missed = True
            await asyncio.sleep(_LISTEN_PAUSE_S)

    def _note(self, *, of_tools: bool, of_resources: bool) -> None:
        if of_tools:
            self._changed.set()
        if of_resources:
            self._on_resources(None)
