"""The connection to one MCP server: its session, opened when first needed and replaced when it is lost.

Owns the states and the replacement of a session; how one is opened is in `opening`, and how one is checked in
`session_check`. Everything here runs on the session loop. It knows neither Celery nor Redis.

Three rules keep it alive. All callers wait for the same opening, and a caller that gives up does not cancel it. A
failed session is reported by identity, so that its replacement is not closed for it. And a session is replaced first
and closed when its other calls are done.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import NoSessionError
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.agent_pool import AgentPool
from tarsy_tasks.worker.sessions.connection_state import State
from tarsy_tasks.worker.sessions.counted_calls import CountedCalls
from tarsy_tasks.worker.sessions.listing import Listed
from tarsy_tasks.worker.sessions.on_demand import OnDemand
from tarsy_tasks.worker.sessions.opening import SessionContext, SessionOpener
from tarsy_tasks.worker.sessions.recent_calls import RecentCalls
from tarsy_tasks.worker.sessions.session import Session
from tarsy_tasks.worker.transport.agent_secrets import ReadCredentials

__all__ = ["ServerConnection"]

logger = logging.getLogger(__name__)

_CLOSE_S = 8.0


class ServerConnection:
    """The connection to one server. Its attributes and properties may be read from any thread.

    Attributes:
        server: Its configuration, variables unresolved.
        agents: The connections of its agents, if each has a credential of its own; None: all calls use this one.
        masker: For everything that comes from the server or is about it.
        long_work: For work on large values of its calls.
        suspension: Whether it is suspended, because it costs the worker too much or fails too many calls.
        counted: Its calls for its error budget; None without one.
        recent_calls: How its last calls ended.
        is_disconnected_by_operator: No session is opened until `reconnect`.
        is_removed: The server is in the configuration no longer.
        sessions_opened: Number of shared sessions so far.
        sessions_replaced: How many of them replaced one that was lost.
        paused_until: The server asked to be left alone until then, as any worker has read; monotonic time.
        pause_count: How often the server asked this worker for that.
        on_pause: Called on the loop when this worker has read that, with the seconds.
        on_suspend: Called on the loop when it is suspended.
        on_change: Called on the loop when the server was connected, could not be connected, or changed its tools.
        on_resources: Called on the loop when a resource has changed, with its URI; None: any of them may have.
        watched: How many watches of its resources this worker holds.
    """

    def __init__(
        self, server: ServerConfig, masker: Masker, context: SessionContext, read: ReadCredentials | None = None
    ) -> None:
        self.server = server
        self.agents: AgentPool[ServerConnection] | None = None
        self.masker = masker
        self.suspension = context.new_suspension()
        self.suspension.on_begin = self._suspend
        self.long_work = LongWork(self.suspension)
        self.counted = CountedCalls() if server.error_budget is not None else None
        self.is_disconnected_by_operator = self.is_removed = self._closed = False
        self.sessions_opened = self.sessions_replaced = self.pause_count = self.watched = 0
        self.paused_until = float("-inf")
        self.on_pause: Callable[[float], None] = lambda _: None
        self.on_suspend: Callable[[], None] = lambda: None
        self.on_change: Callable[[], None] = lambda: None
        self.on_resources: Callable[[str | None], None] = lambda _: None
        about = server, masker, self.long_work, self.suspension, context
        self._opener = SessionOpener(*about, lambda: self.on_change(), lambda uri: self.on_resources(uri), read)
        self.errors, self.availability = self._opener.errors, self._opener.availability
        self.record_failure = self._opener.record_failure
        self.recent_calls = RecentCalls()
        self._on_demand: OnDemand | None = None
        if (end_s := server.stops_after_s) is not None:
            self._on_demand = OnDemand(end_s, lambda: self.in_flight + self.watched, self.recent_calls, self._stop_idle)
        self._logged_error = ""
        self._start_limiter = context.start_limiter
        self._session: Session | None = None
        self._opening: asyncio.Task[Session] | None = None
        self._per_call_sessions: set[Session] = set()
        self._background: set[asyncio.Task[None]] = set()

    @property
    def error(self) -> NoSessionError | None:
        """Why there is no session; None when there is one, or none was needed yet."""
        return self._opener.error

    @property
    def last_error(self) -> NoSessionError | None:
        """Why the last attempt that failed did so; kept when there is a session again."""
        return self._opener.last_error

    @property
    def connection_attempts(self) -> tuple[int, int]:
        """How often it was tried to open a session, and how often that succeeded; `per_call` sessions count, too."""
        return self._opener.attempts, self._opener.opened

    @property
    def session(self) -> Session | None:
        """The live session, if there is one. From other threads only its attributes may be read."""
        session = self._session
        return None if session is None or session.lost else session

    @property
    def tools(self) -> Mapping[str, ToolDefinition] | None:
        """The tools of the live session, None when there is none."""
        return None if (session := self.session) is None else session.tools

    @property
    def listed(self) -> Listed | None:
        """What the server lists, also while it is idle; None if that is not known. From any thread."""
        session, is_idle = self._session, self.is_idle
        if session is not None and (is_idle or not session.lost):
            return session.listed()
        return self._on_demand.listed if is_idle and self._on_demand is not None else None

    @property
    def in_flight(self) -> int:
        """Number of running calls, over the shared session and others."""
        return sum(session.in_flight for session in self._sessions())

    @property
    def ignored_events(self) -> int:
        """How many progress notifications and log lines belonged to no running call, or did not count."""
        return self._opener.ignored_events

    @property
    def identity(self) -> str:
        """A digest of program, address and credentials, by which the server knows the worker; empty at first."""
        return self._opener.identity

    @property
    def state(self) -> State:
        """The state of the shared session."""
        if self._opening is not None:
            return State.RECONNECTING if self.sessions_opened and not self._is_resting else State.CONNECTING
        if self.session is not None:
            return State.CONNECTED
        if self.is_idle:
            return State.IDLE
        return State.DISCONNECTED if self.error is None else State.ERROR

    @property
    def is_idle(self) -> bool:
        """Whether there is no session because the server starts on demand, and nobody needs it now."""
        is_wanted = self._on_demand is None or self._opening is not None or self.session is not None
        return not (is_wanted or self.error or self.is_disconnected_by_operator or self._closed)

    @property
    def _is_resting(self) -> bool:
        return self._on_demand is not None and self._on_demand.is_resting

    @property
    def is_starting(self) -> bool:
        """Whether no attempt to open the first session has ended, so that nothing is known of the server yet; or the
        first one after it was idle."""
        if self._on_demand is not None:
            return self._is_resting and self._opening is not None and self.error is None
        return not (self.sessions_opened or self.last_error or self.is_disconnected_by_operator)

    @property
    def is_restarting(self) -> bool:
        """Whether the lost process of a stdio server is being started again, without a failure so far."""
        return self.server.transport == "stdio" and self._opening is not None and self.error is None

    async def start(self) -> None:
        """As `connected`, unless the server starts on demand: then its first call does that."""
        if self._on_demand is None:
            await self.connected()

    async def connected(self) -> Session:
        """The live session; connects if there is none.

        Raises:
            NoSessionError: The server is unavailable or misconfigured; the text ends with its last output.
        """
        if (session := self.session) is not None:
            return session
        self.refuse_when_closed()
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            # The callers that wait may all give up: nobody else looks at its exception.
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        # A caller that gives up must not take the connection from the others that wait for it.
        return await asyncio.shield(self._opening)

    async def connected_for_call(self) -> Session:
        """As `connected`, but fails at once while the server is unreachable: another attempt may take `connect_s`."""
        self._refuse_when_unreachable()
        return await self.connected()

    async def session_for_call(self, timeout_s: float) -> Session:
        """As `connected_for_call`, to be given back with `release`; with `session: per_call` it is a new one.

        Raises:
            NoSessionError: Also when connecting takes longer than `timeout_s`.
        """
        self._refuse_when_unreachable()
        is_shared = self.server.session == "shared"
        if is_shared and (live := self.session) is not None:
            return live
        try:
            async with asyncio.timeout(timeout_s):
                if is_shared:
                    return await self.connected()
                self.refuse_when_closed()
                session = await self._new_session()
        except TimeoutError:
            raise self.errors.not_connected_within(timeout_s) from None
        self._per_call_sessions.add(session)
        return session

    def is_usable(self, session: Session) -> bool:
        """Whether a call may be sent over what `session_for_call` gave a while ago."""
        return session is self.session or (session in self._per_call_sessions and not session.lost)

    def release(self, session: Session) -> None:
        """Take back what `session_for_call` gave. Closing does not delay the answer."""
        if session in self._per_call_sessions:
            self._per_call_sessions.discard(session)
            self._close_later(session)

    def pause(self, seconds: float) -> None:
        """The server asks to be left alone for so long."""
        self.pause_count += 1
        self.pause_until(time.monotonic() + seconds)
        self.on_pause(seconds)

    def pause_until(self, until: float) -> None:
        """The same of what another worker has read; monotonic time."""
        self.paused_until = max(self.paused_until, until)

    def _refuse_when_unreachable(self) -> None:
        if self.suspension.count:
            self._opener.refuse_when_suspended()
        if not self.availability.claim_attempt():
            raise self.errors.out_of_reach(self.availability.unreachable_s, self.availability.reason)

    def refuse_when_closed(self) -> None:
        """Raises `NoSessionError` if no session may be opened: the worker stops, the server was removed, disconnected
        or suspended."""
        if self._closed:
            raise self.errors.removed() if self.is_removed else self.errors.worker_stopping()
        if self.is_disconnected_by_operator:
            raise self.errors.disconnected_by_operator()
        self._opener.refuse_when_suspended()

    def _suspend(self) -> None:
        """Take no more calls for a while; those that run may end."""
        failure = self.errors.suspended(self.suspension.text)
        self._opener.error = self._opener.last_error = failure
        logger.warning(failure.operator_text)
        self._detach_session()
        self.on_suspend()
        self.on_change()

    async def try_suspended(self) -> bool:
        """Whether a server that is suspended answers again: a session is opened, which lists the tools, and closed."""
        if self._closed or self.is_disconnected_by_operator:
            return False
        timeouts = self.server.timeouts
        try:
            async with asyncio.timeout(timeouts.connect_s + timeouts.list_s):
                session = await self._opener.open(is_trial=True)
        except (NoSessionError, TimeoutError):
            return False
        self._close_later(session)
        return True

    def end_shared_suspension(self) -> None:
        """The workers no longer suspend the server: connect to it again, if it was suspended."""
        if not self.suspension.unshare() or self._closed or self.is_disconnected_by_operator:
            return
        if self._on_demand is not None:
            self._opener.error = None
            self.on_change()
        else:
            connecting = asyncio.create_task(self._reconnect_quietly())
            self._background.add(connecting)
            connecting.add_done_callback(self._background.discard)

    async def _reconnect_quietly(self) -> None:
        with suppress(NoSessionError):  # which is logged, and in the health records
            await self.connected()

    async def _open(self) -> Session:
        self._detach_session()
        try:
            # Only until it has been there: a server that is replaced must not wait for others that never start.
            is_limited = (not self.sessions_opened or self._is_resting) and self.server.transport == "stdio"
            async with self._start_limiter.slot() if is_limited else nullcontext():
                session = await self._new_session()
        except NoSessionError as error:
            if error.operator_text != self._logged_error:  # not at each health check
                self._logged_error = error.operator_text
                logger.warning(error.operator_text)
            raise
        else:
            self._session, self._logged_error = session, ""
            self.sessions_replaced += bool(self.sessions_opened) and not self._is_resting
            self.sessions_opened += 1
            if self.sessions_opened > 1:
                self.on_resources(None)  # nobody has heard what changed meanwhile
            if self._on_demand is not None:
                self._on_demand.begin()
            return session
        finally:
            self._opening = None
            self.on_change()

    async def _new_session(self) -> Session:
        session = await self._opener.open()
        try:
            self._opener.refuse_when_suspended()
        except NoSessionError:
            self._close_later(session)
            raise
        return session

    def _detach_session(self) -> None:
        """Use the session for no new call; it is closed in the background when its other calls are done."""
        if self._session is not None:
            drain_s = max(self._session.longest_call_s, self.server.timeouts.extended_s)
            self._close_later(self._session, drain_s=drain_s)
        self._session = None

    def _stop_idle(self) -> None:
        if self._on_demand is not None and (session := self.session) is not None:
            self._on_demand.rest(session)
            self._detach_session()
            logger.info("MCP server %s is stopped because it is idle; its next call starts it", self.server.name)
            self.on_change()

    def _close_later(self, session: Session, drain_s: float = 0.0) -> None:
        task = asyncio.create_task(session.close(drain_s))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _sessions(self) -> set[Session]:
        return self._per_call_sessions | ({self._session} if self._session is not None else set())

    async def refresh(self) -> tuple[Mapping[str, ToolDefinition], Mapping[str, ToolDefinition]]:
        """List the tools on an operator's request; those before, and those now.

        Raises:
            NoSessionError: They could not be listed. It is also `last_error`, and in the log, for an operator who does
                not wait.
        """
        session = await self.connected()
        before = session.tools
        try:
            await session.list_tools()
        except Exception as error:
            failure = self._opener.last_error = self.errors.tools_not_listed(error, session.end_reason)
            logger.warning(failure.operator_text)
            raise failure from error
        self.on_change()
        return before, session.tools

    async def disconnect(self) -> None:
        """Close the session once its calls are done, and open no other one until `reconnect`."""
        self.is_disconnected_by_operator = True
        if self._opening is not None:
            await asyncio.wait({self._opening})
        self._detach_session()
        self.on_change()

    async def reconnect(self) -> None:
        """As `connected`, with a new session, even after `disconnect`; the calls of the old one are not interrupted."""
        self.is_disconnected_by_operator = False
        self.suspension.lift()
        if self._session is not None:
            self._session.mark_lost("")
        await self.connected()

    async def close(self) -> None:
        """End the sessions, and the one that is being opened; nothing can be connected afterwards."""
        self._closed = True
        if self._on_demand is not None:
            self._on_demand.cancel()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        for session in self._sessions():
            self._close_later(session)
        self._session = None
        if self._background:
            await asyncio.wait({*self._background}, timeout=_CLOSE_S)
