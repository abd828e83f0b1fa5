"""The connection of one run to an MCP server: a session, or a client, that no other run shares.

Owns how it differs from the connection that all share: what a run has done in its session is gone with the session, so
it is not replaced behind the run's back. Which runs have one is decided in `calls.isolated_calls`.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.masking.masked_text import MaskedText
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.sessions.connection import ServerConnection
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session import Session
from tarsy_tasks.worker.transport.agent_secrets import digest_of

__all__ = ["IsolatedConnection", "lost_session_error"]


class IsolatedConnection(ServerConnection):
    """Args:
    shared: The connection of the worker to the same server. What is learned about the server is passed on to it.
    agent: Whose run it is.

    Raises:
        CallError: The server is used with the credential of each agent, and this one is not known.
    """

    def __init__(self, shared: ServerConnection, context: SessionContext, agent: str) -> None:
        self._agent = agent
        self._read = None if shared.agents is None else shared.agents.reader(agent)
        self._digest = ""
        """Of the credentials that it was opened with."""
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        # The run decides when it is opened and closed.
        server = shared.server.model_copy(update={"session": "shared", "start": "eager", "idle_stop_s": None})
        # A task would be asked for over the connection that all share.
        read = None if self._read is None else self._read_credentials
        super().__init__(server, shared.masker, replace(context, takes_tasks=False), read)
        self._shared = shared
        self._may_reopen = server.isolated.restart
        self.recent_calls = shared.recent_calls
        self.counted = shared.counted
        self.on_pause = shared.pause

    @property
    def is_lost(self) -> bool:
        """Whether its state is gone."""
        return bool(self.sessions_opened) and self.session is None and self._opening is None and not self.is_renewable

    @property
    def is_renewable(self) -> bool:
        """Whether a session that was lost may be replaced: the configuration says so, or there was no state."""
        return self._may_reopen or (self._session is not None and not self.has_state)

    @property
    def has_state(self) -> bool:
        """Whether the server can keep something for this run alone. One of the 2026 era has no sessions; its process
        belongs to the run, if it is one of this worker."""
        return self._session is not None and (self._session.is_handshake_era or self.server.transport == "stdio")

    async def _read_credentials(self) -> Mapping[str, str]:
        assert self._read is not None
        found = await self._read()
        self._digest, self._read_at = digest_of(found), time.monotonic()
        return found

    @property
    def has_old_credentials(self) -> bool:
        """Whether it is time to read them again, as for agents that share a session among their runs."""
        agents = self._shared.agents
        return agents is not None and self._digest != "" and time.monotonic() - self._read_at >= agents.max_age_s

    async def has_other_credentials(self) -> bool:
        """Whether those of its agent are now others than it was opened with.

        Raises:
            CallError: The agent has none any more, or they cannot be used.
        """
        async with self._reading:
            if (agents := self._shared.agents) is None or not self.has_old_credentials:
                return False  # another call has just read them
            if await agents.read_digest(self._agent) != self._digest:
                return True
            self._read_at = time.monotonic()
            return False

    async def connected(self) -> Session:
        if self.is_lost:
            raise lost_session_error(self.server.name, self.describe_loss())
        self._shared.refuse_when_closed()
        self.paused_until = max(self.paused_until, self._shared.paused_until)
        return await super().connected()

    def describe_loss(self) -> str:
        """Why its state is gone: sentences, the first one in lower case."""
        reason = self._session.end_reason if self._session is not None else ""
        return f"its connection was lost.{self.errors.describe_end(reason)}"


def lost_session_error(server: str, why: str) -> NoSessionError:
    """The error for the first call after the state of a run was lost.

    Args:
        why: What happened, as the end of a sentence; masked, or our own.
    """
    text = (
        f"The isolated session of this run with MCP server `{server}` is gone, with all that was done in it: {why} "
        "This call was not sent. The next call opens a new session: repeat there what the run needs, if that is safe."
    )
    return NoSessionError(ErrorCode.SESSION_LOST, MaskedText(text))
