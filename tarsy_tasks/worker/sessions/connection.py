"""The way to one MCP server: its session, opened when first needed and replaced when it was lost.

Owns the states, the replacing and the health check's part of it. Everything here runs on the session loop; only the
snapshots `tools` and `state` are read from other threads. It knows neither Celery nor Redis.

Whoever wants to know of changes as they happen sets `on_change`.

Three rules keep it alive. One opening serves all who wait, and whoever waits gives up alone. A session that failed is
told by identity: what replaced it meanwhile is left in peace. And it is swapped first and closed when its other calls
are through.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from enum import StrEnum
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception, stop_before_delay

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.config.inheritance import Inheritance
from tarsy_tasks.errors import CallError, ConfigError
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.maskers import Masker, build_server_masker, known_secrets
from tarsy_tasks.worker.sessions.availability import ServerAvailability
from tarsy_tasks.worker.sessions.backoff import FailedAttempt, backoff
from tarsy_tasks.worker.sessions.call_errors import describe_error
from tarsy_tasks.worker.sessions.listing import ListingError
from tarsy_tasks.worker.sessions.recovery import Action, Executed, classify_error, is_out_of_reach, is_transient
from tarsy_tasks.worker.sessions.session import Mode, Session
from tarsy_tasks.worker.sessions.start_limiter import StartLimiter
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tarsy_tasks.worker.transport.transports import ServerTransport

__all__ = ["ServerConnection", "State", "build_connections"]

logger = logging.getLogger(__name__)

_CLOSE_S = 8.0
_RECENT_CALLS = 20
_RECENT_S = 300.0


class State(StrEnum):
    """Where a connection stands."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    ERROR = "error"


class ServerConnection:
    """The way to one server.

    Attributes:
        server: Its configuration, variables unresolved.
        masker: For all that it says, or that is said about it.
        error: Why there is no session, None when there is one or none was wanted yet.
        last_error: Why there was none when one was last wanted in vain; it stays.
        is_held: An operator wants the server left alone until `reconnect`.
        is_starting: No attempt to open the first session has ended yet, so nothing is known of the server.
        trouble: What stood in the way of the last session that could not be opened: a sentence for operators.
        sessions_opened: How many shared sessions there have been; all but the first replaced one that was lost.
        answered_at: Monotonic time at which the server last gave a result, listed its tools, or was connected.
        on_change: Called on the loop when the server was connected, could not be connected, or changed its tools.

    Args:
        places: Where the process of a stdio server waits for its first start.
        inheritance: What that process gets of the worker's environment.
    """

    def __init__(
        self,
        server: ServerConfig,
        masker: Masker,
        places: StartLimiter | None = None,
        inheritance: Inheritance | None = None,
    ) -> None:
        self.server = server
        self.masker = masker
        self.error: CallError | None = None
        self.last_error: CallError | None = None
        self.is_held = False
        self.is_starting = True
        self.trouble = ""
        self.sessions_opened = 0
        self.answered_at = float("-inf")
        self.on_change: Callable[[], None] = lambda: None
        self._calls: deque[tuple[float, bool]] = deque(maxlen=_RECENT_CALLS)
        self._told = ""
        self._places = places or StartLimiter()
        self._output = ServerOutput(server.name, masker)
        self._transport = ServerTransport(server, self._output, inheritance or Inheritance(), known_secrets.add)
        self._mode: Mode = "auto"
        self._session: Session | None = None
        self._opening: asyncio.Task[Session] | None = None
        self._private: set[Session] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._outage = ServerAvailability(server.timeouts.recreate_s)
        self._closed = False

    @property
    def tools(self) -> Mapping[str, ToolDefinition] | None:
        """The tools of the live session, None when there is no live session. Safe to read from any thread."""
        session = self.session
        return None if session is None else session.tools

    @property
    def session(self) -> Session | None:
        """The live session, if there is one. From other threads only its attributes may be read."""
        session = self._session
        return None if session is None or session.lost else session

    @property
    def in_flight(self) -> int:
        """Calls that are running, over the shared session or their own. Safe to read from any thread."""
        session = self._session
        return sum(each.in_flight for each in (*self._private, *([session] if session is not None else [])))

    @property
    def recent_calls(self) -> tuple[int, int]:
        """Of the last 20 calls those of the last five minutes, and how many of them failed. Safe to read from any
        thread.
        """
        since = time.monotonic() - _RECENT_S
        calls = [failed for ended_at, failed in self._calls.copy() if ended_at >= since]
        return len(calls), sum(calls)

    @property
    def state(self) -> State:
        """Where the connection stands. Safe to read from any thread."""
        session = self._session
        if self._opening is not None:
            return State.RECONNECTING if self.sessions_opened else State.CONNECTING
        if session is not None and not session.lost:
            return State.CONNECTED
        return State.DISCONNECTED if self.error is None else State.ERROR

    @property
    def is_restarting(self) -> bool:
        """Whether the process of a stdio server that was lost is being started again, and nothing has gone wrong with
        that yet. Safe to read from any thread.
        """
        return self.server.transport == "stdio" and self._opening is not None and self.error is None

    async def connected(self) -> Session:
        """The live session; connects if there is none.

        Raises:
            CallError: The server is unavailable or misconfigured; the text ends with its last words.
        """
        session = self._session
        if session is not None and not session.lost:
            return session
        self._refuse_when_closed()
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_retrieve)
        # A caller that gives up must not take the connection from the others that wait for it.
        return await asyncio.shield(self._opening)

    async def connected_for_call(self) -> Session:
        """The same for a call, which fails at once while the server is known to be gone: to find that out again can
        take all of `connect_s`.

        Raises:
            CallError: As `connected`.
        """
        self._refuse_when_gone()
        return await self.connected()

    async def session_for_call(self) -> Session:
        """The session for one call, to be given back with `release`: the shared one, or with `session: per_call` one of
        its own.

        Raises:
            CallError: As `connected_for_call`.
        """
        if self.server.session == "shared":
            return await self.connected_for_call()
        self._refuse_when_gone()
        self._refuse_when_closed()
        session = await self._open_patiently()
        self._private.add(session)
        return session

    def release(self, session: Session) -> None:
        """Take back what `session_for_call` gave. Closing does not hold up the answer."""
        if session in self._private:
            self._private.discard(session)
            self._close_later(session)

    def note_answer(self) -> None:
        """The server answered: it is well."""
        self._outage.end()
        self.answered_at = time.monotonic()

    def note_failure(self, error: BaseException, ending: str, since: float) -> None:
        """The server could not be reached, was lost, or asked to wait.

        Args:
            error: What the SDK raised.
            ending: Why the session ended, empty when it lives.
            since: When the attempt began, monotonic time.
        """
        if is_out_of_reach(error):
            self._outage.note_absence(self._what_failed(error, ending), since)
        else:
            self._outage.note_failure()

    def note_call(self, *, failed: bool) -> None:
        """A call is over; it failed if it brought no result, or an error."""
        self._calls.append((time.monotonic(), failed))

    @property
    def is_expected_back(self) -> bool:
        """Whether waiting for the server makes sense. One that was well a moment ago is given `recreate_s` to return;
        one that is gone for longer is tried once a call, and then hardly at all, until it answers again.
        """
        return self._outage.is_expected_to_end

    def _refuse_when_gone(self) -> None:
        if self._outage.may_try():
            return
        raise CallError(
            ErrorCode.SERVER_UNAVAILABLE,
            f"MCP server `{self.server.name}` has been out of reach for {self._outage.gone_s:.0f} s: "
            f"{self._outage.reason}.{self.ending('')} It is tried now and then, and was not asked for this call. "
            "The tool did not run. Try again later, or do without it.",
        )

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise CallError(
                ErrorCode.SERVER_UNAVAILABLE, "The worker is stopping. The tool did not run; call it again."
            )
        if self.is_held:
            raise CallError(
                ErrorCode.SERVER_UNAVAILABLE,
                f"An operator has disconnected MCP server `{self.server.name}`. The tool did not run. "
                "Try again later, or do without it.",
            )

    async def _open(self) -> Session:
        self._swap_out()
        try:
            # Later on a server that was well must not wait for others that never come up.
            is_crowd = self.is_starting and self.server.transport == "stdio"
            async with self._places.taken() if is_crowd else nullcontext():
                session = await self._open_patiently()
        except CallError as error:
            self.error = self.last_error = error
            if error.text != self._told:
                # Said once, not at each check.
                self._told = error.text
                logger.warning("%s", error)
            raise
        else:
            self._session, self._told = session, ""
            self.sessions_opened += 1
            return session
        finally:
            self._opening, self.is_starting = None, False
            self.on_change()

    async def _open_patiently(self) -> Session:
        """A new session, opened again and again for as long as the server is expected back."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(self._is_worth_another_try),
            wait=backoff(self.server.retry),
            stop=stop_before_delay(self.server.timeouts.recreate_s),
            reraise=True,
        )
        try:
            session: Session = await retrying(self._open_once)
        except FailedAttempt as failure:
            raise self._unavailable(failure) from None
        return session

    def _is_worth_another_try(self, error: BaseException) -> bool:
        return isinstance(error, FailedAttempt) and is_transient(error.reason) and self.is_expected_back

    async def _open_once(self) -> Session:
        self._output.forget()
        began = time.monotonic()
        self._outage.note_attempt()
        session = Session(self.server, self._transport, self._mode, lambda: self.on_change(), self.masker)
        try:
            try:
                await session.open()
            except Exception:
                if self._mode == "legacy" or not session.died_in_handshake:
                    raise
                # Some servers exit on the unknown method that the probe for the 2026 era is to them.
                self._output.forget()
                session = Session(self.server, self._transport, "legacy", lambda: self.on_change(), self.masker)
                await session.open()
        except Exception as error:
            self._mode, self.is_starting = "auto", False
            self.note_failure(error, session.ending, began)
            failure = FailedAttempt(error, session.ending)
            self.error = self.last_error = self._unavailable(failure)
            self.trouble = self._describe(failure)[1]
            raise failure from error
        if self.server.transport == "stdio" and session.is_handshake_era:
            # A server that ignores the probe costs 10 s, but only once.
            self._mode = "legacy"
        self.error = None
        self.note_answer()
        return session

    def _swap_out(self) -> None:
        """Let go of the session; it is closed in the background when its other calls are through."""
        session, self._session = self._session, None
        if session is not None:
            self._close_later(session, drain_s=session.longest_call_s)

    def _close_later(self, session: Session, drain_s: float = 0.0) -> None:
        task = asyncio.create_task(session.close(drain_s))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def check(self, list_s: float, connect_s: float) -> bool:
        """List the tools past every cache; without a session, or on failure, connect and list again.

        Args:
            connect_s: How long to wait for a connection. What is not there by then goes on connecting.

        Returns:
            Whether it listed them. If not, it is busy with calls, which may go on as long as they are given.

        Raises:
            CallError: The server does not answer.
        """
        self._outage.note_attempt()
        session = self.session
        if session is None:
            await self._connected_within(connect_s)
            return True
        try:
            async with asyncio.timeout(list_s):
                await session.list_tools()
        except Exception as error:
            if isinstance(error, TimeoutError | ListingError) and self._is_busy(session):
                # Perhaps it does one thing at a time: a new session would cost the calls that it is busy with.
                logger.info(
                    "MCP server %s did not list its tools within %g s: it is busy with %d calls",
                    self.server.name,
                    list_s,
                    session.in_flight,
                )
                return False
            logger.warning("MCP server %s failed its check: %s", self.server.name, describe_error(error, self.masker))
            session.lose("it failed its check")
            await self._connected_within(connect_s)
        else:
            self.note_answer()
        return True

    async def refresh(self) -> tuple[Mapping[str, ToolDefinition], Mapping[str, ToolDefinition]]:
        """List the tools because an operator wants it; those of before, and those of now.

        Raises:
            CallError: They could not be listed. It is `last_error`, too, and in the log, for whoever does not wait.
        """
        session = await self.connected()
        before = session.tools
        try:
            await session.list_tools()
        except Exception as error:
            self.last_error = CallError(
                ErrorCode.SERVER_UNAVAILABLE,
                f"MCP server `{self.server.name}` could not be asked for its tools: "
                f"{self._what_failed(error, session.ending)}.",
            )
            logger.warning("%s", self.last_error)
            raise self.last_error from error
        self.on_change()
        return before, session.tools

    async def _connected_within(self, connect_s: float) -> None:
        try:
            async with asyncio.timeout(connect_s):
                await self.connected()
        except TimeoutError:
            raise self.error or CallError(
                ErrorCode.SERVER_UNAVAILABLE,
                f"MCP server `{self.server.name}` was not connected within {connect_s:g} s.{self.ending('')}",
            ) from None

    @staticmethod
    def _is_busy(session: Session) -> bool:
        return session.in_flight > 0 and not session.lost and not session.is_stuck

    async def disconnect(self) -> None:
        """Close the session once its calls are through, and open no other one until `reconnect`."""
        self.is_held, self.is_starting = True, False
        if self._opening is not None:
            await asyncio.wait({self._opening})
        self._swap_out()
        self.on_change()

    async def reconnect(self) -> None:
        """Open a new session, also after `disconnect`; calls of the old one come to their end.

        Raises:
            CallError: As `connected`.
        """
        self.is_held = False
        if self._session is not None:
            self._session.lose("")
        await self.connected()

    async def close(self) -> None:
        """End the session, and the one that is being opened; nothing can be connected afterwards."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        session, self._session = self._session, None
        for each in {*self._private, *([session] if session is not None else [])}:
            self._close_later(each)
        if self._background:
            await asyncio.wait({*self._background}, timeout=_CLOSE_S)

    def not_connected_within(self, timeout_s: float) -> CallError:
        """The answer to a caller that could not wait for the connection any longer. Safe to call from any thread."""
        return CallError(
            ErrorCode.SERVER_UNAVAILABLE,
            f"MCP server `{self.server.name}` was not connected within {timeout_s:.3g} s.{self.ending('')} "
            "The tool did not run.",
        )

    def _unavailable(self, failure: FailedAttempt) -> CallError:
        code, sentence = self._describe(failure)
        to_mend = "Try again later, or do without it."
        if code is not ErrorCode.SERVER_UNAVAILABLE:
            to_mend = "An operator has to mend this."
        return CallError(code, f"{sentence} The tool did not run. {to_mend}")

    def _describe(self, failure: FailedAttempt) -> tuple[ErrorCode, str]:
        name, error = self.server.name, failure.reason
        if isinstance(error, ConfigError):
            return ErrorCode.SERVER_MISCONFIGURED, f"MCP server `{name}` is misconfigured: {error}."
        what = self._what_failed(error, failure.ending)
        verdict = classify_error(error)
        refused = verdict.action is Action.NO_RETRY and verdict.executed is Executed.NO
        code = ErrorCode.SERVER_REFUSED if refused else ErrorCode.SERVER_UNAVAILABLE
        return code, f"MCP server `{name}` is not available: {what}.{self.ending('')}"

    def _what_failed(self, error: BaseException, ending: str) -> str:
        if isinstance(error, TimeoutError):
            return f"it did not complete the handshake within {self.server.timeouts.connect_s:g} s"
        if isinstance(error, ListingError):
            return f"it {error}"
        return ending if ending.startswith("it") else describe_error(error, self.masker)

    def ending(self, reason: str) -> str:
        """Why a session ended, and the server's last words: a sentence for an error text, or nothing."""
        words = self._output.last_words()
        text = f" It ended because {reason}." if reason else ""
        return text + (f" Its last words: {words!r}." if words else "")


def build_connections(servers: Iterable[ServerConfig], inheritance: Inheritance) -> dict[str, ServerConnection]:
    """The ways to servers that start together, by id."""
    places = StartLimiter()
    return {
        server.name: ServerConnection(server, build_server_masker(server), places, inheritance) for server in servers
    }


def _retrieve(task: "asyncio.Task[Any]") -> None:
    """Mark the exception of a task as seen: the callers that waited may all have given up."""
    if not task.cancelled():
        task.exception()
