"""Which connection a call uses whose server may ask something: one for each server, when needed.

Isolated sessions, and those with the credentials of an agent, are not asked in the handshake era.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.elicitation_connection import ElicitationConnection
from tarsy_tasks.worker.sessions.opening import SessionContext

__all__ = ["ElicitationConnections"]

_MOST_IN_LINE = 100
"""So many calls of a server wait in this worker until it is their turn to be asked; further ones come again."""


class Slots(Protocol):
    """Counts what runs, by queue."""

    def enter(self, queue: str) -> None: ...

    def leave(self, queue: str) -> None: ...


class ElicitationConnections:
    """The connections for questions of one worker; a `KeptPerServer`.

    Attributes:
        slots: What takes part of the worker: a call that waits takes none.
        waiting: How many of its calls wait for an answer now.
    """

    def __init__(self, sessions: SessionContext, slots: Slots) -> None:
        self._sessions = sessions
        self.slots = slots
        self._by_server: dict[str, ElicitationConnection] = {}
        self._background: set[asyncio.Task[None]] = set()
        self.waiting = 0

    @asynccontextmanager
    async def lend(
        self, connection: ServerConnection, shared: ServerConnection | None, queue: str
    ) -> AsyncGenerator[ServerConnection | None]:
        """The connection for a call that may be asked, once it is its turn; None if it has to come again, because too
        many wait for that.

        Args:
            connection: The one that the call would use otherwise.
            shared: That of all calls of its server.
            queue: Where the call came from: while it waits, it takes no slot.
        """
        if (
            shared is None
            or connection is not shared
            or shared.server.elicitation.wait_s <= 0
            or not await _is_old(shared)
        ):
            yield connection
            return
        name = shared.server.name
        elicitation = self._by_server.get(name)
        if elicitation is None:
            elicitation = self._by_server[name] = ElicitationConnection(shared, self._sessions)
        if not elicitation.is_free:
            if elicitation.waiting >= _MOST_IN_LINE:
                yield None
                return
            self.slots.leave(queue)
            try:
                await elicitation.enter()
            finally:
                self.slots.enter(queue)
        else:
            await elicitation.enter()
        try:
            yield elicitation
        finally:
            elicitation.leave()

    def add(self, connection: ServerConnection) -> None:
        """As `KeptPerServer.add`."""
        self.remove(connection.server.name)

    def remove(self, server: str) -> None:
        """As `KeptPerServer.remove`."""
        if (elicitation := self._by_server.pop(server, None)) is not None:
            self.spawn(elicitation.close())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have something done that no call waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Close all of them."""
        for server in [*self._by_server]:
            self.remove(server)
        if self._background:
            await asyncio.wait({*self._background})


async def _is_old(connection: ServerConnection) -> bool:
    """Whether a server is of the handshake era. One that cannot be reached is not asked."""
    session = connection.session
    if session is None:
        with suppress(NoSessionError):
            session = await connection.connected_for_call()
    return session is not None and session.is_handshake_era
