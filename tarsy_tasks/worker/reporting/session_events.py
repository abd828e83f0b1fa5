"""Celery events about MCP sessions and servers.

Owns the types: `worker-mcp-connected`, `worker-mcp-disconnected`, `worker-mcp-error` for each server of a worker, and
`worker-mcp-healthy`, `worker-mcp-unhealthy` for alerts. They are of the group `worker`, which needs no `-E` to be sent.
Connections are polled: that costs them nothing, and a server that reconnects many times a second causes few events.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from tarsy_tasks.worker.reporting.alerts import Alert
from tarsy_tasks.worker.sessions.connection import ServerConnection, State

__all__ = ["CONNECTED", "DISCONNECTED", "ERROR", "SessionWatch", "alert_event"]

CONNECTED = "worker-mcp-connected"
DISCONNECTED = "worker-mcp-disconnected"
ERROR = "worker-mcp-error"

Event = tuple[str, dict[str, Any]]
"""Type and fields."""


class SessionWatch:
    """Compares each connection with its state at the last poll."""

    def __init__(self, connections: Mapping[str, ServerConnection]) -> None:
        self._connections = connections
        self._opened = dict.fromkeys(connections, 0)
        self._connected = dict.fromkeys(connections, False)
        self._errors: dict[str, BaseException | None] = dict.fromkeys(connections)

    def changes(self) -> Iterator[Event]:
        """What has changed since the last call."""
        for server, connection in self._connections.items():
            opened, error = connection.sessions_opened, connection.error
            is_connected = connection.state is State.CONNECTED
            has_new_session = opened != self._opened[server]
            if self._connected[server] and (has_new_session or not is_connected):
                yield DISCONNECTED, {"server": server}
            if has_new_session:
                yield CONNECTED, {"server": server, "sessions_opened": opened, "tools": len(connection.tools or {})}
                if not is_connected:
                    yield DISCONNECTED, {"server": server}
            if error is not None and error is not self._errors[server]:
                text = connection.masker.mask(error.operator_text)
                yield ERROR, {"server": server, "code": str(error.code), "error": text}
            self._opened[server], self._connected[server], self._errors[server] = opened, is_connected, error


def alert_event(alert: Alert) -> Event:
    """The event of an alert."""
    fields = {"server": alert.server, "alert_id": alert.id, "lasted_s": alert.lasted_s, "error": alert.error}
    return f"worker-mcp-{alert.status}", fields
