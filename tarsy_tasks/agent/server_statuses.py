"""What an agent reads of its servers and tools without asking a worker: their status, and what a name means.

Owns the one exchange with Redis, on the background loop, and which of a server's tools count for this executor.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tarsy_tasks.agent.advice import Adviser, Permission
from tarsy_tasks.agent.connection import connection_of
from tarsy_tasks.agent.redis_errors import connection_errors
from tarsy_tasks.agent.selection import Selection
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.agent.waiting import seconds_until
from tarsy_tasks.errors import BrokerUnavailable, ToolNameError
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.server_status import ServerState, ServerStatus, build_statuses, status_command
from tarsy_tasks.telemetry.health_records import HealthStatus, ServerHealth

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["ServerStatuses", "ToolInfo"]

_NOT_READ = "No status was read."


@dataclass(frozen=True)
class ToolInfo:
    """What is known of one tool.

    Attributes:
        tool: Its definition, as last listed.
        server: The status of its server.
        permission: Whether a call would be permitted, as far as this process knows; a worker decides.
        runs_in: `agent` for a native tool, which this process runs without asking a worker: what a policy says of it is
            only advice.
    """

    tool: ToolDefinition
    server: ServerStatus
    permission: Permission
    runs_in: Literal["agent", "worker"] = "worker"


@dataclass(eq=False)
class ServerStatuses:
    """Reads for one executor; `find_app` as for `CallDispatcher`. `find_native` gives the functions of the agent."""

    find_app: "Callable[[], Celery]"
    selection: Selection
    adviser: Adviser
    timeout_s: float
    find_native: Callable[[], Sequence[ToolDefinition]] = tuple

    async def read_all(self) -> dict[str, ServerStatus]:
        """The status of each selected server. Raises `BrokerUnavailable`."""
        self.selection.refresh()
        return await self._read(self.selection.servers)

    async def read_one(self, server: str) -> ServerStatus:
        """The status of one of them.

        Raises:
            ToolNameError: It is not selected.
            BrokerUnavailable: Redis could not be reached, or refuses that.
        """
        self.selection.require_server(server)
        return (await self._read([server]))[server]

    async def find_tool(self, name: str, listed: ToolList | None) -> ToolInfo:
        """The tool that a name means; as it is in `listed`, if no worker has written yet what its server lists. Raises
        as `read_one`, also if there is no such tool."""
        server, tool = self.selection.resolve(name)
        if server in self.selection.native:
            return self._describe_native(server, tool)
        status = await self.read_one(server)
        found = _find(listed, server, tool) if status.listed_at is None else None
        found = found or status.find(tool)
        return ToolInfo(found, status, self.adviser.advise(found.name, None))

    async def is_tool(self, name: str, listed: ToolList | None) -> bool:
        """Whether a name means a tool of theirs. Raises `BrokerUnavailable`; asks Redis only if `listed` does not say
        it."""
        try:
            server, tool = self.selection.resolve(name)
            if server in self.selection.native:
                return False
            if _find(listed, server, tool):
                return True
            (await self.read_one(server)).find(tool)
        except ToolNameError:
            return False
        return True

    def _describe_native(self, server: str, tool: str) -> ToolInfo:
        tools = [each for each in self.find_native() if each.server == server]
        [found] = [each for each in tools if each.tool == tool]
        health = ServerHealth(server=server, status=HealthStatus.HEALTHY)
        status = ServerStatus(server=server, state=ServerState.CONNECTED, health=health, tools=tuple(tools))
        return ToolInfo(found, status, self.adviser.advise(found.name, None), "agent")

    async def _read(self, servers: Sequence[str]) -> dict[str, ServerStatus]:
        if not servers:
            return {}
        deadline = time.monotonic() + self.timeout_s
        connection = connection_of(self.find_app())
        await connection.replies.connect(deadline, _NOT_READ)
        try:
            async with asyncio.timeout(seconds_until(deadline)):
                [reply] = await connection.replies.redis.execute(status_command(servers))
        except TimeoutError:
            raise BrokerUnavailable(f"Redis did not answer within {self.timeout_s:g} s. {_NOT_READ}") from None
        except connection_errors() as error:
            raise BrokerUnavailable(
                f"Redis could not be read ({error}). {_NOT_READ} If it refuses this user, renew the ACL rules "
                "(`tarsy-tasks acl`)."
            ) from error
        return build_statuses(servers, reply, self._selects)

    def _selects(self, tool: ToolDefinition) -> bool:
        return self.selection.includes(tool.server, tool.tool) and self.adviser.permits(tool)


def _find(listed: ToolList | None, server: str, tool: str) -> ToolDefinition | None:
    return next((each for each in listed or () if each.server == server and each.tool == tool), None)
