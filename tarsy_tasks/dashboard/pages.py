"""The pages of all MCP servers and of one, and their JSON.

Owns the meaning of their addresses, and the order of the list.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from redis.exceptions import RedisError
from tornado.web import authenticated

from tarsy_tasks.dashboard.describe import describe_server, describe_servers
from tarsy_tasks.dashboard.page_handlers import Data, Page
from tarsy_tasks.dashboard.snapshot import ServerSnapshot, Snapshot
from tarsy_tasks.telemetry.health_records import HealthStatus

__all__ = ["ServerData", "ServerPage", "ServersData", "ServersPage"]

_SEVERITY = (HealthStatus.UNHEALTHY, HealthStatus.DEGRADED, HealthStatus.UNKNOWN, HealthStatus.HEALTHY)

_ORDERS: Mapping[str, Callable[[ServerSnapshot], tuple[float, ...]]] = {
    "status": lambda server: (_SEVERITY.index(server.status),),
    "name": lambda _: (),
    "calls": lambda server: (-server.call_count,),
    "failures": lambda server: (-server.failure_count,),
    "tool_errors": lambda server: (-server.tool_error_count,),
    "p95": lambda server: (-(server.duration.quantile_s(0.95) or 0.0),),
    "running": lambda server: (-server.queued, -server.running),
}
"""Sort keys by the word in the address; then by name."""


class ServersPage(Page):
    @authenticated
    async def get(self) -> None:
        state = await self.reader.state()
        order, status = self.get_query_argument("order", ""), self.get_query_argument("status", "")
        self.show("servers", state, listed=_build_list(state.snapshot, order, status))


class ServersData(Data):
    @authenticated
    async def get(self) -> None:
        self.write(describe_servers(await self.state()))


@dataclass(frozen=True)
class _ServerList:
    """Servers as they are shown.

    Attributes:
        counts: How many servers have each status, selected or not.
    """

    servers: list[ServerSnapshot]
    counts: Mapping[HealthStatus, int]
    order: str
    status: HealthStatus | None
    running: int
    queued: int
    call_count: int
    failure_count: int
    tool_error_count: int


def _build_list(snapshot: Snapshot | None, order: str, status: str) -> _ServerList:
    """The list that an address asks for; unknown words are ignored."""
    servers = list(snapshot.servers.values()) if snapshot else []
    chosen = next((each for each in HealthStatus if each == status), None)
    order = order if order in _ORDERS else "status"
    return _ServerList(
        servers=sorted(
            (server for server in servers if chosen in (None, server.status)),
            key=lambda server: (_ORDERS[order](server), server.name.lower()),
        ),
        counts={each: sum(server.status is each for server in servers) for each in HealthStatus},
        order=order,
        status=chosen,
        running=sum(server.running for server in servers),
        queued=sum(server.queued for server in servers),
        call_count=sum(server.call_count for server in servers),
        failure_count=sum(server.failure_count for server in servers),
        tool_error_count=sum(server.tool_error_count for server in servers),
    )


class ServerPage(Page):
    @authenticated
    async def get(self, name: str) -> None:
        state = await self.reader.state()
        if state.snapshot is None:
            self.show("server", state, name=name, server=None)
            return
        server = self.find(state.snapshot, name)
        details = None
        if not state.outage:
            try:
                details = await self.reader.server(server)
            except RedisError as error:
                state = self.with_outage(state, error)
        details = details or self.reader.known_details(server)
        opened = frozenset(self.get_query_arguments("open", strip=False))
        self.show("server", state, name=name, server=server, details=details, opened=opened)


class ServerData(Data):
    @authenticated
    async def get(self, name: str) -> None:
        snapshot = await self.state()
        server = self.find(snapshot, name)
        with self.reading():
            self.write(describe_server(snapshot, server, await self.reader.server(server)))
