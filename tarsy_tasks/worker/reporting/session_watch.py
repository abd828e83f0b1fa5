"""What has happened to the sessions of a worker since somebody last looked.

Owns the comparison, and the fields of each event. Connections are polled: that costs them nothing, and a server that
reconnects many times a second causes few events.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connection_state import State

__all__ = ["SessionEvent", "SessionWatch"]

_NAMES_SHOWN = 20

SessionEvent = tuple[str, dict[str, Any]]
"""The kind of a `ServerEvent`, and its fields."""
_Tools = Mapping[str, ToolDefinition]


@dataclass(frozen=True)
class _Seen:
    """A server at the last poll, and the connection that served it."""

    connection: ServerConnection
    opened: int
    is_connected: bool
    error: BaseException | None
    tools: _Tools | None


class SessionWatch:
    """Compares each connection with its state at the last poll."""

    def __init__(self, connections: Mapping[str, ServerConnection]) -> None:
        self._connections = connections
        self._seen: dict[str, _Seen] = {}

    def changes(self) -> Iterator[SessionEvent]:
        """What has changed since the last call."""
        connections = dict(self._connections.items())
        for server in self._seen.keys() - connections.keys():
            if self._seen.pop(server).is_connected:
                yield "disconnected", {"server": server}
        for server, connection in connections.items():
            before = self._seen.get(server) or _Seen(connection, 0, is_connected=False, error=None, tools=None)
            opened, error, listed = connection.sessions_opened, connection.error, connection.tools
            is_connected = connection.state is State.CONNECTED
            has_new_session = opened != (before.opened if before.connection is connection else 0)
            if before.is_connected and (has_new_session or not is_connected):
                yield "disconnected", {"server": server}
            if has_new_session:
                yield "connected", {"server": server, "sessions_opened": opened, "tools": len(listed or {})}
                if not is_connected:
                    yield "disconnected", {"server": server}
            if error is not None and error is not before.error:
                text = connection.masker.mask(error.operator_text)
                yield "error", {"server": server, "code": str(error.code), "error": text}
            if listed is not None and before.tools is not None and listed is not before.tools:
                yield from _describe_change(server, before.tools, listed)
            tools = before.tools if listed is None else listed
            self._seen[server] = _Seen(connection, opened, is_connected=is_connected, error=error, tools=tools)


def _describe_change(server: str, before: _Tools, now: _Tools) -> Iterator[SessionEvent]:
    names = {
        "added": now.keys() - before.keys(),
        "removed": before.keys() - now.keys(),
        "changed": {name for name in now.keys() & before.keys() if now[name] != before[name]},
    }
    found = {what: sorted(which)[:_NAMES_SHOWN] for what, which in names.items() if which}
    if found:
        yield "tools_changed", {"server": server, **found}
