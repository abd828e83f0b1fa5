"""The connection to a server of the handshake era for callers that can answer it.

Owns how it differs from the connection that all share: its client says that it can be asked, which in that era is said
once for a session. It is opened by the first call that needs it, and closed when it is idle. In the 2026 era each
request says so by itself (`input_requests`), and there is no such connection.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import replace

from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["ElicitationConnection"]

_IDLE_S = 600.0


class ElicitationConnection(ServerConnection):
    """Attributes:
    users: How many calls use it now.
    takes_turns: The server asks, and over this transport it cannot be told which of several running calls it is about:
        so there is one at a time, and the others wait in line.

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
        self._line: deque[asyncio.Future[None]] = deque()

    async def connected(self) -> Session:
        self._shared.refuse_when_closed()
        self.paused_until = max(self.paused_until, self._shared.paused_until)
        return await super().connected()

    @property
    def waiting(self) -> int:
        """How many calls wait for their turns."""
        return len(self._line)

    @property
    def is_free(self) -> bool:
        """Whether a call may use it at once."""
        return not (self.takes_turns and self.users)

    async def enter(self) -> None:
        """Use it from now on, if need be after those that came before. `leave` ends that."""
        if self.is_free:
            self.users += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                with suppress(ValueError):
                    self._line.remove(turn)
            else:
                self.leave()  # it got its turn, and cannot use it any more
            raise

    def leave(self) -> None:
        """The call that uses it does so no longer. If it was the last one, the turn goes to the next in line."""
        self.users -= 1
        while self._line and not self.users:
            turn = self._line.popleft()
            if not turn.done():  # else its call has just been cancelled
                self.users += 1
                turn.set_result(None)

    def note_question(self) -> None:
        """The server asks."""
        self.takes_turns = self.server.transport != "http" and self.server.session == "shared"
