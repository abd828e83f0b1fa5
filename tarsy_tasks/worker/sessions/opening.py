"""Opening a session with one MCP server: the attempts, their retries, and why they failed.

Owns the transport to the server and the choice of protocol era. When a session is needed is decided in `connection`.
Everything runs on the session loop.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tenacity import AsyncRetrying, retry_if_exception, stop_before_delay

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.config.inheritance import Inheritance
from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.maskers import Masker, known_secrets
from tarsy_tasks.worker.sessions.availability import ServerAvailability
from tarsy_tasks.worker.sessions.backoff import FailedAttempt, backoff
from tarsy_tasks.worker.sessions.connection_errors import ConnectionErrors
from tarsy_tasks.worker.sessions.recovery import is_out_of_reach, is_transient
from tarsy_tasks.worker.sessions.session import Mode, Session
from tarsy_tasks.worker.time_budget import Suspension
from tarsy_tasks.worker.transport.agent_secrets import CredentialSource, ReadCredentials, SecretsDirectory
from tarsy_tasks.worker.transport.child_watch import ChildWatch
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tarsy_tasks.worker.transport.signed_in import SignInTokens
from tarsy_tasks.worker.transport.transports import ServerTransport

__all__ = ["SessionContext", "SessionOpener", "StartLimiter", "first_attempt_s"]

logger = logging.getLogger(__name__)

_SHOWN_TOOLS = 10
_MOST_PATIENCE = 4
"""A server that was too slow gets twice the time in the next attempt, up to so many times `connect_s`."""
_INSTALLERS = frozenset({"bun", "bunx", "npm", "npx", "pnpm", "pnpx", "yarn"})
"""They install a package where it is run from. One that is killed meanwhile leaves half of it there, which no later
start repairs."""
_HOLD_S = 5.0
"""A process that takes longer to start is not waiting for the processor, and need not hold up the next one."""


def first_attempt_s(server: ServerConfig) -> float:
    """How long the first start of a server may take: longest if its package may have to be installed."""
    installs = server.command is not None and Path(server.command).name in _INSTALLERS
    return server.timeouts.connect_s * (_MOST_PATIENCE if installs else 1)


class StartLimiter:
    """As many slots as there are cores, and one more for a start that only waits. For one event loop.

    Processes that all start together each take as long as all of them, and some then exceed their time limit.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(1 + (os.cpu_count() or 1))

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Wait for a slot. It is released when the start is over, at the latest after 5 s."""
        await self._free.acquire()
        with ExitStack() as slot:
            slot.callback(self._free.release)
            asyncio.get_running_loop().call_later(_HOLD_S, slot.close)
            yield


@dataclass(frozen=True)
class SessionContext:
    """What the sessions of one process share.

    Attributes:
        inheritance: What the processes of stdio servers get of the worker's environment.
        start_limiter: Limits how many of them start at once.
        child_watch: Ends them when the worker is gone.
        new_suspension: For each server, how long it may cost too much.
        credentials: Where those of agents come from.
        elicits: Servers of the handshake era may ask: the callers of these sessions can answer.
        sign_ins: The tokens of persons who have signed in to servers; None: there is no Redis to read them from.
        takes_tasks: A call may be answered with a task, for the result of which the server is asked later.
    """

    inheritance: Inheritance = field(default_factory=Inheritance)
    start_limiter: StartLimiter = field(default_factory=StartLimiter)
    child_watch: ChildWatch = field(default_factory=ChildWatch)
    new_suspension: Callable[[], Suspension] = Suspension
    credentials: CredentialSource = field(default_factory=lambda: SecretsDirectory(None))
    sign_ins: SignInTokens | None = None
    elicits: bool = False
    takes_tasks: bool = True


class SessionOpener:
    """Opens the sessions of one server, one after the other or in parallel.

    Attributes:
        error: Why the last attempt failed; None before the first and after one that succeeded.
        last_error: The same, but kept after a success.
        attempts: How often it was tried to open a session.
        opened: How many sessions were opened.

    Args:
        on_tools: Called when a server has changed its tools and listed them.
        on_resources: As of `ServerConnection`.
        read: Reads the credentials of the agent that it is used for; None: of no agent.
    """

    def __init__(
        self,
        server: ServerConfig,
        masker: Masker,
        long_work: LongWork,
        suspension: Suspension,
        context: SessionContext,
        on_tools: Callable[[], None],
        on_resources: Callable[[str | None], None],
        read: ReadCredentials | None,
    ) -> None:
        self.availability = ServerAvailability(server.timeouts.recreate_s)
        self.error: NoSessionError | None = None
        self.last_error: NoSessionError | None = None
        self.attempts = self.opened = 0
        self._server = server
        self._masker = masker
        self._long_work = long_work
        self._suspension = suspension
        self._on_tools = on_tools
        self._on_resources = on_resources
        self._output = ServerOutput(server.name, masker)
        self._transport = ServerTransport(
            server,
            self._output,
            context.inheritance,
            context.child_watch,
            known_secrets.add,
            long_work,
            suspension,
            read,
            context.sign_ins,
        )
        self.errors = ConnectionErrors(server, masker, self._output, lambda: self._transport.address)
        self._connect_s = first_attempt_s(server)
        self._takes_tasks = context.takes_tasks and server.keeps_tasks
        self._mode: Mode = "auto"
        self._elicits = context.elicits
        self._left_out: Mapping[str, str] = {}

    @property
    def ignored_events(self) -> int:
        """As of `ServerConnection`."""
        return self._transport.ignored_events

    @property
    def identity(self) -> str:
        """As of `ServerConnection`."""
        return self._transport.identity

    async def open(self, *, is_trial: bool = False) -> Session:
        """A new session; tried again for as long as the server is expected back.

        Args:
            is_trial: Also while the server is suspended, to find out whether it answers.

        Raises:
            NoSessionError: No session could be opened.
        """
        retrying = AsyncRetrying(
            retry=retry_if_exception(self._is_worth_a_retry),
            wait=backoff(self._server.retry),
            stop=stop_before_delay(self._server.timeouts.recreate_s),
            reraise=True,
        )
        try:
            session: Session = await retrying(self._open_once, is_trial)
        except FailedAttempt as failure:
            self.error = self.last_error = self.errors.not_opened(failure, self._connect_s)
            raise self.error from None
        return session

    def refuse_when_suspended(self) -> None:
        """Start nothing, and use nothing that was started, while the server is suspended.

        Raises:
            NoSessionError: It is.
        """
        if self._suspension.left_s:
            self.error = self.last_error = self.errors.suspended(self._suspension.text)
            raise self.error

    def _is_worth_a_retry(self, error: BaseException) -> bool:
        return isinstance(error, FailedAttempt) and is_transient(error.error) and self.availability.is_expected_back

    async def _open_once(self, is_trial: bool) -> Session:
        if not is_trial:
            self.refuse_when_suspended()
        self._output.clear()
        began = time.monotonic()
        self.availability.record_attempt()
        self.attempts += 1
        self.errors.connect_s = self._connect_s
        session = self._new_session(self._mode)
        try:
            try:
                await session.open(self._connect_s)
            except Exception:
                if self._mode == "legacy" or not session.died_in_handshake:
                    raise
                if not is_trial:
                    self.refuse_when_suspended()
                # Some servers exit on the probe for the 2026 era, a method that they do not know.
                self._output.clear()
                session = self._new_session("legacy")
                await session.open(self._connect_s)
        except NoSessionError:
            raise
        except Exception as error:
            self._mode = "auto"
            self.record_failure(error, session.end_reason, began)
            failure = FailedAttempt(error, session.end_reason)
            self._note_duration(error)
            self.error = self.last_error = self.errors.not_opened(failure, self._connect_s)
            raise failure from error
        if self._server.transport == "stdio" and session.is_handshake_era:
            # A server that ignores the probe costs 10 s, but only once.
            self._mode = "legacy"
        self.error = None
        self.opened += 1
        self.errors.longer_attempt_s = None
        self._connect_s = self._server.timeouts.connect_s
        self.availability.record_answer()
        return session

    def _note_duration(self, error: Exception) -> None:
        """A process that was too slow may have been downloading itself, and would be killed too early each time."""
        tried_s = self._connect_s
        if isinstance(error, TimeoutError) and self._server.transport == "stdio":
            self._connect_s = min(2 * tried_s, _MOST_PATIENCE * self._server.timeouts.connect_s)
        is_longer = self._connect_s > tried_s and not self.opened
        self.errors.longer_attempt_s = self._connect_s if is_longer else None

    def _new_session(self, mode: Mode) -> Session:
        heard = self._on_tools, self._on_resources, self._note_left_out
        about = *heard, self._masker, self._long_work
        session = Session(self._server, self._transport, mode, *about, takes_tasks=self._takes_tasks)
        session.elicits = self._elicits
        return session

    def _note_left_out(self, tools: Mapping[str, str]) -> None:
        """The server listed tools that are not valid; logged when they change."""
        if tools and tools != self._left_out:
            shown = "; ".join(f"{name!r}: {why}" for name, why in [*tools.items()][:_SHOWN_TOOLS])
            more = len(tools) - _SHOWN_TOOLS
            logger.warning(
                "MCP server %s lists tools that are not valid in MCP, and that cannot be called: %s%s",
                *(self._server.name, shown, f"; and {more} more" if more > 0 else ""),
            )
        self._left_out = tools

    def record_failure(self, error: BaseException, end_reason: str, since: float) -> None:
        """The server could not be reached, was lost, or asked to wait; the attempt began at `since`, monotonic time."""
        if is_out_of_reach(error):
            self.availability.record_unreachable(self.errors.describe_unreachable(error, end_reason), since)
        else:
            self.availability.record_failure()
