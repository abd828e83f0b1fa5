"""Listing the tools of each server: from the catalogue where that is current, and otherwise by asking a worker.

Owns the requests to workers, and the last list of an executor. Its coroutine runs on the background loop.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tarsy_tasks.agent.background import start_in_background
from tarsy_tasks.agent.connection import AgentConnection, connection_of
from tarsy_tasks.agent.current_lists import read_current_lists
from tarsy_tasks.agent.redis_errors import connection_errors
from tarsy_tasks.agent.reply_listener import Meta
from tarsy_tasks.agent.results import read_listing
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.agent.waiting import seconds_until
from tarsy_tasks.agent.withdrawal import withdraw
from tarsy_tasks.errors import BrokerUnavailable, TarsyTasksError
from tarsy_tasks.models import ToolDefinition, ToolListing

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["ToolLister"]

_NOT_LISTED = "No tools were listed."


@dataclass(eq=False)
class ToolLister:
    """Lists the tools of one executor; `last` is the last list, `find_app` as for `CallDispatcher`, and
    `find_own_tools` gives those of the package and of the agent itself; `labels_servers`: descriptions begin with
    `[MCP:server]`."""

    find_app: "Callable[[], Celery]"
    selection: Selection
    timeout_s: float
    find_own_tools: Callable[[], list[ToolDefinition]] = list
    labels_servers: bool = False
    last: ToolList | None = None

    async def list_tools(self) -> ToolList:
        """The tools of each server; workers are asked for those that `read_current_lists` leaves out. A server that did
        not answer is one of `failed_servers`. Raises `BrokerUnavailable` if this user can ask for no server."""
        deadline = time.monotonic() + self.timeout_s
        self.selection.refresh()
        servers = self.selection.servers
        current = await read_current_lists(self.find_app(), servers, deadline, _NOT_LISTED) if servers else {}
        asked = [server for server in servers if server not in current]
        answers = await asyncio.gather(*(self._ask(server, deadline) for server in asked), return_exceptions=True)
        by_server: dict[str, ToolListing | BaseException] = {**current, **dict(zip(asked, answers, strict=True))}
        listings = [by_server[server] for server in servers]
        if listings and isinstance(listings[0], BrokerUnavailable) and all(map(_is_unsent, listings)):
            raise listings[0]
        tools: list[ToolDefinition] = []
        instructions: dict[str, str] = {}
        failed: dict[str, str] = {}
        for server, listing in zip(servers, listings, strict=True):
            if isinstance(listing, TarsyTasksError):
                failed[server] = str(listing)
                continue
            if isinstance(listing, BaseException):
                raise listing
            offered = (tool for tool in listing.tools if tool.is_for_models)
            tools += [tool for tool in offered if self.selection.includes(server, tool.tool)]
            if listing.instructions:
                instructions[server] = listing.instructions
            selected = self.selection.tool_filter.get(server, frozenset())
            if missing := selected - {tool.tool for tool in listing.tools}:
                failed[server] = f"it has no tool {', '.join(sorted(missing))}"
        if self.labels_servers:
            tools = [_label(tool) for tool in tools]
        listed = ToolList([*tools, *self.find_own_tools()], dict(sorted(failed.items())), instructions)
        if self.last is not None:
            listed.take_index(self.last)
        self.last = listed
        return listed

    async def _ask(self, server: str, deadline: float) -> ToolListing:
        """Raises `TarsyTasksError`."""
        app = self.find_app()
        connection = connection_of(app)
        await connection.replies.connect(deadline, _NOT_LISTED)
        task_id = connection.replies.new_id()
        answer: asyncio.Future[Meta] = asyncio.get_running_loop().create_future()

        def hear(meta: Meta) -> None:
            if not answer.done():
                answer.set_result(meta)

        connection.replies.expect(task_id, hear)
        try:
            async with asyncio.timeout(seconds_until(deadline)):
                await connection.publish(app, task_id, "tarsy.list_tools", (server,), deadline, _NOT_LISTED)
                return read_listing(await answer)
        except TimeoutError:
            why = f"no worker answered within {self.timeout_s:g} s; check that a worker serves this server"
            raise TarsyTasksError(why) from None
        finally:
            if connection.replies.forget(task_id, hear):
                # It does not stay in a queue that no worker serves.
                start_in_background(_withdraw(connection, task_id, server, deadline))


async def _withdraw(connection: AgentConnection, task_id: str, server: str, deadline: float) -> None:
    with suppress(*connection_errors()):
        await withdraw(connection, task_id, server, deadline)


def _label(tool: ToolDefinition) -> ToolDefinition:
    return tool.model_copy(update={"description": f"[MCP:{tool.server}] {tool.description or tool.title}".rstrip()})


def _is_unsent(listing: ToolListing | BaseException) -> bool:
    return isinstance(listing, BrokerUnavailable)
