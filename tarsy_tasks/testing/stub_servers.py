"""What a stub executor says of its servers: each is connected, or has failed as the test says; and nothing happens."""

from collections.abc import Callable, Sequence

from tarsy_tasks.agent.advice import Adviser
from tarsy_tasks.agent.server_event_feed import Deliver, ServerEventFeed
from tarsy_tasks.agent.server_statuses import ServerStatuses, ToolInfo
from tarsy_tasks.agent.tool_list import ToolList
from tarsy_tasks.errors import ToolNameError
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.server_status import ServerState, ServerStatus
from tarsy_tasks.telemetry.health_records import HealthStatus, ServerHealth
from tarsy_tasks.tool_names import resolve_tool_name

__all__ = ["StubEventFeed", "StubStatuses"]


class StubStatuses(ServerStatuses):
    """The servers of a list of tools, and those that failed."""

    def __init__(self, listed: ToolList, adviser: Adviser) -> None:
        self._listed, self.adviser = listed, adviser
        self._catalogue: dict[str, set[str]] = {}
        self._native: set[str] = set()
        for tool in listed:
            self._catalogue.setdefault(tool.server, set()).add(tool.tool)

    def add_native(self, tool: ToolDefinition, listed: ToolList) -> None:
        """A function of the agent has become a tool of the list."""
        self._listed = listed
        self._native.add(tool.server)
        self._catalogue.setdefault(tool.server, set()).add(tool.tool)

    def remove_native(self, server: str, listed: ToolList) -> None:
        """Functions of the agent are no tools any more."""
        self._listed = listed
        self._native.discard(server)
        del self._catalogue[server]

    async def read_all(self) -> dict[str, ServerStatus]:
        return await self._read([*self._catalogue, *self._listed.failed_servers])

    async def read_one(self, server: str) -> ServerStatus:
        if server not in self._catalogue and server not in self._listed.failed_servers:
            raise ToolNameError(ErrorCode.UNKNOWN_SERVER, f"No answer and no tool is of MCP server `{server}`.")
        return (await self._read([server]))[server]

    async def find_tool(self, name: str, listed: ToolList | None) -> ToolInfo:  # noqa: ARG002
        server, tool = resolve_tool_name(name, self._catalogue)
        status = await self.read_one(server)
        found = status.find(tool)
        runs_in = "agent" if server in self._native else "worker"
        return ToolInfo(found, status, self.adviser.advise(found.name, None), runs_in)

    async def is_tool(self, name: str, listed: ToolList | None) -> bool:  # noqa: ARG002
        try:
            return resolve_tool_name(name, self._catalogue)[0] not in self._native
        except ToolNameError:
            return False

    async def _read(self, servers: Sequence[str]) -> dict[str, ServerStatus]:
        return {server: self._status_of(server) for server in servers}

    def _status_of(self, server: str) -> ServerStatus:
        tools = tuple(tool for tool in self._listed if tool.server == server)
        if (reason := self._listed.failed_servers.get(server)) is not None:
            health = ServerHealth(server=server, status=HealthStatus.UNHEALTHY, reason=reason)
            return ServerStatus(server=server, state=ServerState.ERROR, health=health, last_error=reason)
        health = ServerHealth(server=server, status=HealthStatus.HEALTHY, tool_count=len(tools))
        return ServerStatus(
            server=server, state=ServerState.CONNECTED, health=health, connected_since=0.0, tools=tools, listed_at=0.0
        )


class StubEventFeed(ServerEventFeed):
    """Nothing happens to the servers of a stub."""

    def __init__(self) -> None: ...

    async def add(self, deliver: Deliver) -> Callable[[], None]:  # noqa: ARG002
        return lambda: None

    def close(self) -> None: ...
