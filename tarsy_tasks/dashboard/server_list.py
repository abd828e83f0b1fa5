"""The list of servers: selection, order and totals.

Owns the words for them in addresses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tarsy_tasks.dashboard.snapshot import ServerSnapshot, Snapshot
from tarsy_tasks.telemetry.health_records import HealthStatus

__all__ = ["ORDERS", "ServerList", "build_list"]

_SEVERITY = (HealthStatus.UNHEALTHY, HealthStatus.DEGRADED, HealthStatus.UNKNOWN, HealthStatus.HEALTHY)

ORDERS: Mapping[str, Callable[[ServerSnapshot], tuple[float, ...]]] = {
    "status": lambda server: (_SEVERITY.index(server.status),),
    "name": lambda _: (),
    "calls": lambda server: (-server.call_count,),
    "failures": lambda server: (-server.failure_count,),
    "p95": lambda server: (-(server.duration.quantile_s(0.95) or 0.0),),
    "running": lambda server: (-server.queued, -server.running),
}
"""Sort keys by the word in the address; then by name."""


@dataclass(frozen=True)
class ServerList:
    """Servers as they are shown.

    Attributes:
        servers: Those of the selected status, in order.
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


def build_list(snapshot: Snapshot | None, order: str, status: str) -> ServerList:
    """The list that an address asks for; unknown words are ignored."""
    servers = list(snapshot.servers.values()) if snapshot else []
    chosen = next((each for each in HealthStatus if each == status), None)
    order = order if order in ORDERS else "status"
    return ServerList(
        servers=sorted(
            (server for server in servers if chosen in (None, server.status)),
            key=lambda server: (ORDERS[order](server), server.name.lower()),
        ),
        counts={each: sum(server.status is each for server in servers) for each in HealthStatus},
        order=order,
        status=chosen,
        running=sum(server.running for server in servers),
        queued=sum(server.queued for server in servers),
        call_count=sum(server.call_count for server in servers),
        failure_count=sum(server.failure_count for server in servers),
    )
