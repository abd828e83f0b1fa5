"""The connection to a server of the handshake era for callers that can answer it.

Owns how it differs from the connection that all share: its client says that it can be asked, which in that era is said
once for a session. It is opened by the first call that needs it, and closed when it is idle. In the 2026 era each
request says so by itself (`input_requests`), and there is no such connection.
"""

from dataclasses import replace

from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["AskingConnection"]

_IDLE_S = 600.0


class AskingConnection(ServerConnection):
    """Attributes:
    users: How many calls use it now.
    takes_turns: The server asks, and over this transport it cannot be told which of several running calls it is about:
        so there is one at a time.

    Args:
        shared: The connection of the worker to the same server. What is learned about the server is passed on to it.
    """

    def __init__(self, shared: ServerConnection, context: SessionContext) -> None:
        idle_s = shared.server.idle_stop_s or _IDLE_S
        server = shared.server.model_copy(update={"start": "on_demand", "idle_stop_s": idle_s})
        super().__init__(server, shared.masker, replace(context, elicits=True))
        self._shared = shared
        self.recent_calls, self.counted = shared.recent_calls, shared.counted
        self.on_pause = shared.pause
        self.users = 0
        self.takes_turns = False

    async def connected(self) -> Session:
        self._shared.refuse_when_closed()
        self.paused_until = max(self.paused_until, self._shared.paused_until)
        return await super().connected()

    def note_question(self) -> None:
        """The server asks."""
        self.takes_turns = self.server.transport != "http" and self.server.session == "shared"
