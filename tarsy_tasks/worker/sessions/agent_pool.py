"""The connections of one server for agents that use it with credentials of their own: one for each agent.

Owns which agent has one, how many there are, and when one is replaced or closed: its credential has changed or is gone,
it was idle, or another agent needs its place. Calls come first: what is only watched gives its place to a call, and no
watch takes a place from another one. Credentials are read again when they are older than their source allows,
by the first call after that; all calls of that agent wait for it, and those of no other. Here only a digest of them is
kept. Everything runs on the session loop.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar
from weakref import WeakValueDictionary

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import CallError, ConfigError, NoCredentialError
from tarsy_tasks.interceptors import ANONYMOUS
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.transport.agent_secrets import CredentialSource, ReadCredentials, digest_of

__all__ = ["AgentPool"]

logger = logging.getLogger(__name__)

_REMEMBERED = 1000
_WATCH_AGE_S = 10.0
"""How old a credential may get while resources are watched with it."""


class Closable(Protocol):
    """What an agent has."""

    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


@dataclass(eq=False)
class _Lent(Generic[C]):
    """What one agent has.

    Attributes:
        digest: Of its credentials.
        read_at: When these were last read, monotonic; `used_at` when its last call ended.
        users: How many calls use it now; `watchers`, how many watches of resources.
        is_current: It is the agent's; otherwise it is closed when its last call ends.
    """

    connection: C
    digest: str
    read_at: float
    used_at: float = field(default_factory=time.monotonic)
    users: int = 0
    watchers: int = 0
    is_current: bool = True


class AgentPool(Generic[C]):
    """Lends the connections of one server.

    Args:
        source: Where credentials come from.
        connect: Makes a connection, not opened yet, that reads its agent's credentials with the given function.
        admit: Raises a `CallError` if the server takes no calls now.
    """

    def __init__(
        self,
        server: ServerConfig,
        source: CredentialSource,
        connect: Callable[[ReadCredentials], C],
        admit: Callable[[], None],
    ) -> None:
        self._server = server.name
        self._names: Collection[str] = server.agent_variables
        self._limits = server.agent_credentials
        self._wait_s = server.timeouts.connect_s
        self._source = source
        self._connect = connect
        self._admit = admit
        self._lent: dict[str, _Lent[C]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One call of an agent looks at its credentials at a time."""
        self._closing: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._logged: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._lent)

    def connections(self) -> list[C]:
        """The connections of all agents. From any thread."""
        return [each.connection for each in self._lent.copy().values()]

    @asynccontextmanager
    async def lend(self, agent: str) -> AsyncGenerator[C]:
        """The connection of an agent, which is not closed in the block.

        Args:
            agent: The principal of a call.

        Raises:
            CallError: The agent is not known or has no credential, the credential cannot be used, or the server takes
                no calls now.
        """
        self._admit()
        self.refuse_unknown(agent)
        lent = self._lent.get(agent)
        if lent is not None and self._is_fresh(lent):
            lent.users += 1
        else:
            async with self._lock(agent):
                lent = await self._find(agent)
                lent.users += 1  # before another agent can take its place
        try:
            yield lent.connection
        finally:
            lent.users -= 1
            lent.used_at = time.monotonic()
            self._freed.set()
            if not lent.is_current:
                self._close_if_unused(lent)

    @asynccontextmanager
    async def lend_to_watch(self, agent: str) -> AsyncGenerator[C]:
        """As `lend`, but it may be closed in the block: `keeps` says so. It does not wait for a place.

        Raises:
            CallError: Also if too many agents watch.
        """
        self._admit()
        self.refuse_unknown(agent)
        async with self._lock(agent):
            lent = self._lent.get(agent)
            if (lent is None or not lent.watchers) and self._count_watched() >= self._most_watched:
                raise self._too_many_watch()
            if lent is None or not self._is_fresh(lent):
                lent = await self._find(agent, for_watch=True)
                if not lent.watchers and self._count_watched() >= self._most_watched:  # others began meanwhile
                    raise self._too_many_watch()
            lent.watchers += 1
        try:
            yield lent.connection
        finally:
            lent.watchers -= 1
            self._freed.set()

    async def keeps(self, agent: str, connection: C) -> bool:
        """Whether what was lent to a watch is still the agent's: a call may have needed its place, and its credential
        may have changed. Raises a `CallError` if the agent has none any more."""
        async with self._lock(agent):
            lent = self._lent.get(agent)
            if lent is None or lent.connection is not connection:
                return False
            if not self._is_fresh(lent, _WATCH_AGE_S):
                try:
                    await self._find(agent, for_watch=True)
                except CallError as error:
                    if error.code is ErrorCode.NO_CREDENTIAL:
                        raise
                    # Calls fail, but what is open is closed only if the credential has changed.
                lent = self._lent.get(agent)
            return lent is not None and lent.connection is connection

    def _lock(self, agent: str) -> asyncio.Lock:
        return self._locks.setdefault(agent, asyncio.Lock())

    def refuse_unknown(self, agent: str) -> None:
        """Raises a `CallError` for calls whose sender is not verified: no source is asked for a credential of these."""
        if agent == ANONYMOUS:
            raise self._not_known()

    def reader(self, agent: str) -> ReadCredentials:
        """Reads the credentials of an agent, for a connection of the pool or an isolated one. Its errors are shown to
        the agent, so only the log says where credentials are kept.

        Raises:
            CallError: The agent is not known.
        """
        self.refuse_unknown(agent)

        async def read() -> Mapping[str, str]:
            try:
                return await self._source.read(agent, self._names)
            except NoCredentialError as error:
                self._log(agent, error)
                raise NoCredentialError(f"the agent `{agent}` needs {self._needed}") from None
            except ConfigError as error:
                self._log(agent, error)
                text = (
                    f"the credential of the agent `{agent}` ({self._needed}) cannot be used; the worker's log says why"
                )
                raise ConfigError(text) from None

        return read

    @property
    def max_age_s(self) -> float:
        """For how long credentials are used without reading them again."""
        return self._source.max_age_s

    async def read_digest(self, agent: str) -> str:
        """Read the credentials of an agent, and return the `digest_of` them.

        Raises:
            CallError: It has none, or they cannot be used.
        """
        try:
            credentials = await self._source.read(agent, self._names)
        except NoCredentialError as error:
            self._log(agent, error)
            raise self._missing(agent) from None
        except ConfigError as error:
            self._log(agent, error)
            raise self._unusable(agent) from None
        self._logged.pop(agent, None)
        return digest_of(credentials)

    def drop_all(self) -> None:
        """Have every agent's next call open a new session; the calls that run are not interrupted."""
        for agent in [*self._lent]:
            self._drop(agent)

    async def close(self) -> None:
        """Close all of them; the server is to be closed already, so that there are no new ones."""
        if self._timer is not None:
            self._timer.cancel()
        for lent in self._lent.values():
            lent.users, lent.is_current = 0, False
            self._close_if_unused(lent)
        self._lent.clear()
        self._freed.set()
        if self._closing:
            await asyncio.wait({*self._closing})

    @property
    def _most_watched(self) -> int:
        """How many agents may watch: the other places are left to calls of others."""
        return (self._limits.max_sessions + 1) // 2

    def _count_watched(self) -> int:
        return sum(1 for each in self._lent.values() if each.watchers)

    def _is_fresh(self, lent: _Lent[C], least_s: float = 0.0) -> bool:
        return time.monotonic() - lent.read_at < max(self._source.max_age_s, least_s)

    async def _find(self, agent: str, *, for_watch: bool = False) -> _Lent[C]:
        """What the agent has, by what its credentials are now."""
        lent = self._lent.get(agent)
        if lent is not None and self._is_fresh(lent):
            return lent  # another call has looked meanwhile
        try:
            digest = await self.read_digest(agent)
        except CallError as error:
            if error.code is ErrorCode.NO_CREDENTIAL:
                self._drop(agent)
            raise
        lent = self._lent.get(agent)
        if lent is None or lent.digest != digest:
            self._drop(agent)
            await self._wait_for_place(for_watch=for_watch)
            self._admit()
            lent = self._lent[agent] = _Lent(self._connect(self.reader(agent)), digest, time.monotonic())
            if self._timer is None:
                self._watch_idle(self._limits.idle_s)
        lent.read_at = time.monotonic()
        return lent

    async def _wait_for_place(self, *, for_watch: bool) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                while len(self._lent) >= self._limits.max_sessions:
                    places = [
                        (each.watchers > 0, each.used_at, agent)
                        for agent, each in self._lent.items()
                        if not each.users and not (for_watch and each.watchers)
                    ]
                    if places:
                        self._drop(min(places)[2])
                    elif for_watch:
                        raise self._too_many_watch()
                    else:
                        self._freed.clear()
                        await self._freed.wait()
        except TimeoutError:
            raise CallError(
                ErrorCode.SERVER_UNAVAILABLE,
                f"All {self._limits.max_sessions} sessions that agents can have with MCP server `{self._server}` at "
                "once in this worker are in use. The tool did not run. Try again later.",
            ) from None

    def _drop(self, agent: str) -> None:
        if (lent := self._lent.pop(agent, None)) is not None:
            lent.is_current = False
            self._close_if_unused(lent)

    def _close_if_unused(self, lent: _Lent[C]) -> None:
        if not lent.users:
            task = asyncio.create_task(lent.connection.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _watch_idle(self, wait_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(max(wait_s, 0.1), self._close_idle)

    def _close_idle(self) -> None:
        self._timer = None
        oldest = time.monotonic() - self._limits.idle_s
        for agent, each in [*self._lent.items()]:
            if not each.users and not each.watchers and each.used_at <= oldest:
                self._drop(agent)
        if self._lent:
            now = oldest + self._limits.idle_s
            since = min(now if each.users or each.watchers else each.used_at for each in self._lent.values())
            self._watch_idle(since - oldest)

    def _log(self, agent: str, error: ConfigError) -> None:
        """For operators, once for each agent and reason."""
        if self._logged.get(agent) != str(error):
            if len(self._logged) >= _REMEMBERED:
                self._logged.clear()
            self._logged[agent] = str(error)
            logger.warning("MCP server %s cannot be called by the agent %s: %s", self._server, agent, error)

    def _not_known(self) -> CallError:
        return CallError(
            ErrorCode.NO_CREDENTIAL,
            f"MCP server `{self._server}` is called with the credential of each agent, and who sent this call is not "
            "verified. The tool did not run, and calling it again will not help. Tell the user that an operator must "
            "give this agent a Redis user of its own, or have it sign its calls.",
        )

    def _missing(self, agent: str) -> CallError:
        return CallError(
            ErrorCode.NO_CREDENTIAL,
            f"The agent `{agent}` has no credential for MCP server `{self._server}`: it needs {self._needed}. The tool "
            "did not run, and calling it again will not help. Tell the user that an operator must give it one.",
        )

    def _unusable(self, agent: str) -> CallError:
        return CallError(
            ErrorCode.SERVER_MISCONFIGURED,
            f"The credential of the agent `{agent}` for MCP server `{self._server}` ({self._needed}) cannot be used. "
            "The tool did not run. Tell the user that an operator must correct it: the worker's log says what is "
            "wrong.",
        )

    def _too_many_watch(self) -> CallError:
        return CallError(
            ErrorCode.TOO_MANY_SESSIONS,
            f"The resource is not watched: MCP server `{self._server}` is used with the credential of each agent, and "
            f"watches may take {self._most_watched} of the {self._limits.max_sessions} sessions that a worker process "
            "may have with it at once, if no call needs them. Try again later, or read the resource from time to time; "
            "an operator can raise `agent_credentials.max_sessions`.",
        )

    @property
    def _needed(self) -> str:
        return ", ".join(sorted(self._names))
