"""The connection to a server that each agent uses with a credential of its own.

Owns what the worker itself has of such a server: with a service credential a session of its own, for checks and the
shared list of tools; without one no session at all, and then it counts as idle. Calls go over the connections of their
agents (`agent_pool`).
"""

from collections.abc import Callable
from functools import partial

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.agent_pool import AgentPool
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.connection_state import State
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session import Session
from tarsy_tasks.worker.transport.agent_secrets import SERVICE, ReadCredentials

__all__ = ["AgentsConnection"]


class AgentsConnection(ServerConnection):
    """As `ServerConnection`; `agents` has those of the agents.

    Attributes:
        on_agents_resources: As `on_resources`, for the connection of an agent.
    """

    def __init__(self, server: ServerConfig, masker: Masker, context: SessionContext) -> None:
        source = context.credentials
        super().__init__(server, masker, context, partial(source.read, SERVICE, server.agent_variables))
        self._has_own_session = server.agent_credentials.service
        self.on_agents_resources: Callable[[ServerConnection, str | None], None] = lambda _, __: None
        # Each is opened by its agent's first call, and closed by the pool.
        of_agents = server.model_copy(update={"start": "eager"})

        def connect(read: ReadCredentials) -> ServerConnection:
            connection = ServerConnection(of_agents, masker, context, read)
            connection.recent_calls, connection.counted = self.recent_calls, self.counted
            connection.on_resources = partial(self.on_agents_resources, connection)
            return connection

        self.agents = self._of_agents = AgentPool(server, source, connect, self.refuse_when_closed)

    @property
    def in_flight(self) -> int:
        return super().in_flight + sum(each.in_flight for each in self._of_agents.connections())

    @property
    def state(self) -> State:
        return State.PER_AGENT if self.is_idle and not self._has_own_session else super().state

    @property
    def is_idle(self) -> bool:
        if self._has_own_session:
            return super().is_idle
        return not (self.is_disconnected_by_operator or self._closed or self.suspension.left_s)

    async def start(self) -> None:
        if self._has_own_session:
            await super().start()

    async def connected(self) -> Session:
        """As `ServerConnection.connected`, with the service credential."""
        if not self._has_own_session:
            self.refuse_when_closed()
            raise self.errors.per_agent()
        return await super().connected()

    async def try_suspended(self) -> bool:
        """Without a session of its own there is nothing to try: calls find out."""
        return await super().try_suspended() if self._has_own_session else True

    async def disconnect(self) -> None:
        await super().disconnect()
        self._of_agents.drop_all()

    async def reconnect(self) -> None:
        """As `ServerConnection.reconnect`, and for all agents."""
        self._of_agents.drop_all()
        if self._has_own_session:
            await super().reconnect()
        else:
            self.is_disconnected_by_operator = False
            self.suspension.lift()
            self.on_change()

    async def close(self) -> None:
        self._closed = True
        await self._of_agents.close()
        await super().close()
