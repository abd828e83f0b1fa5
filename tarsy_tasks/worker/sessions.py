"""MCP sessions: one per server and process, shared by all concurrent calls.

Owns connecting, the states, the list of tools and the end of a session. Everything here runs on the session loop; only
the snapshots `ServerConnection.tools` and `.state` are read from other threads. It knows neither Celery nor Redis.

Three rules keep it alive. A `Client` is entered and left by one owner task, for the SDK's cancel scopes allow nothing
else. A session that failed is swapped first and closed when its other calls are through. What a caller waits for is
never cancelled with the caller: the connection being made belongs to all of them.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from importlib.metadata import version
from typing import Any, cast

from mcp import Client
from mcp_types import CallToolResult, Implementation, PaginatedRequestParams, Tool

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.errors import CallError, ConfigError
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.masking import Masker
from tarsy_tasks.worker.recovery import Action, Executed, call_error, classify_error
from tarsy_tasks.worker.server_output import ServerOutput
from tarsy_tasks.worker.transports import open_transport

__all__ = ["ServerConnection", "State"]

logger = logging.getLogger(__name__)

_CLIENT_INFO = Implementation(name="tarsy-tasks", version=version("tarsy-tasks"))
_MAX_PAGES = 200
_MAX_TOOLS = 10_000
_CLOSE_S = 8.0
"""Closing a stdio server takes up to 6.5 s when it ignores its closed stdin and SIGTERM."""


class State(StrEnum):
    """Where a connection stands."""

    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    ERROR = "error"


class ListingError(Exception):
    """The server has no usable tools/list; the text completes "it …"."""


class Session:
    """One open MCP session, entered and left by a task of its own.

    Attributes:
        tools: What the server offers, by tool name; replaced whole by every listing.
        ending: Why the session ended, for an error text; empty while it lives.
        in_flight: Calls that are running.
        answered_at: Monotonic time of the server's last sign of life: it was connected, or a call was answered.
    """

    def __init__(self, server: ServerConfig, output: ServerOutput) -> None:
        self.tools: Mapping[str, ToolDefinition] = {}
        self.ending = ""
        self.lost = False
        self._server = server
        self._output = output
        self._client: Client | None = None
        self.in_flight = 0
        self.answered_at = time.monotonic()
        self._idle = asyncio.Event()
        self._closing = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect, shake hands and walk all pages of tools/list.

        Raises:
            Exception: Whatever the transport, the handshake or the listing failed of.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(ready), name=f"mcp-session-{self._server.name}")
        try:
            await ready
        except asyncio.CancelledError:
            self._owner.cancel()
            raise

    async def _own(self, ready: asyncio.Future[None]) -> None:
        started = time.monotonic()
        try:
            # Not anyio.fail_after: entered here and left elsewhere, it would break the nesting of the SDK's scopes.
            async with asyncio.timeout(self._server.timeouts.connect_s) as limit:
                transport = open_transport(self._server, self._output, self._on_end)
                # No response cache: a server's ttlMs would answer a health check after the server has died.
                async with Client(transport, client_info=_CLIENT_INFO, cache=None) as client:  # pyright: ignore[reportArgumentType]
                    self._client = client
                    await self.list_tools()
                    limit.reschedule(None)
                    self._log_connected(client, time.monotonic() - started)
                    ready.set_result(None)
                    await self._closing.wait()
        except BaseException as error:
            self._on_end(self.ending or _describe(_first_leaf(error)))
            if not ready.done():
                ready.set_exception(_first_leaf(error))
        finally:
            self.lost = True

    def _log_connected(self, client: Client, seconds: float) -> None:
        info = client.server_info
        logger.info(
            "connected to MCP server %s: %s, protocol %s, %s, %d tools, %d ms",
            self._server.name,
            self._server.transport,
            client.protocol_version,
            f"{info.name} {info.version}" if info else "anonymous",
            len(self.tools),
            round(seconds * 1000),
        )

    def _on_end(self, reason: str) -> None:
        self.lost = True
        self.ending = self.ending or reason

    async def list_tools(self) -> None:
        """Ask the server for all its tools and replace `tools`.

        Raises:
            ListingError: It took longer than `timeouts.list_s`, or it has no end.
        """
        assert self._client is not None
        if self._client.server_capabilities.tools is None:
            self.tools = {}
            return
        list_s = self._server.timeouts.list_s
        try:
            async with asyncio.timeout(list_s):
                found = [tool async for tool in _all_tools(self._client)]
        except TimeoutError:
            raise ListingError(f"did not list its tools within {list_s:g} s") from None
        self.tools = {tool.name: _definition(self._server.name, tool) for tool in found}

    async def call_tool(self, tool: str, arguments: dict[str, Any], timeout_s: float) -> CallToolResult:
        """Send one call; raises what the SDK raises."""
        assert self._client is not None
        self.in_flight += 1
        try:
            result = await self._client.call_tool(tool, arguments, read_timeout_seconds=timeout_s)
            self.answered_at = time.monotonic()
            return result
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def close(self, drain_s: float = 0.0) -> None:
        """End the session once its calls are through, at most `drain_s` seconds from now."""
        if self.in_flight and drain_s:
            self._idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(drain_s):
                    await self._idle.wait()
        self._closing.set()
        if self._owner is not None:
            _, unfinished = await asyncio.wait({self._owner}, timeout=_CLOSE_S)
            if unfinished:
                logger.warning("MCP server %s did not close within %g s", self._server.name, _CLOSE_S)
                self._owner.cancel()


class ServerConnection:
    """The way to one server: connects when first needed, and anew when its session was lost.

    Attributes:
        server: Its configuration, variables unresolved.
        error: Why there is no session, None when there is one or none was wanted yet.
    """

    def __init__(self, server: ServerConfig, masker: Masker) -> None:
        self.server = server
        self.state = State.DISCONNECTED
        self.error: CallError | None = None
        self._output = ServerOutput(server.name, masker)
        self._session: Session | None = None
        self._opening: asyncio.Task[Session] | None = None
        self._draining: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def tools(self) -> Mapping[str, ToolDefinition] | None:
        """The tools of the live session, None when there is no live session. Safe to read from any thread."""
        session = self._session
        return None if session is None or session.lost else session.tools

    async def connected(self) -> Session:
        """The live session; connects if there is none.

        Raises:
            CallError: The server is unavailable or misconfigured; the text ends with its last words.
        """
        session = self._session
        if session is not None and not session.lost:
            return session
        if self._closed:
            raise CallError(
                ErrorCode.SERVER_UNAVAILABLE, "The worker is stopping. The tool did not run; call it again."
            )
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_retrieve)
        # A caller that gives up must not take the connection from the others that wait for it.
        return await asyncio.shield(self._opening)

    async def _open(self) -> Session:
        self.state = State.CONNECTING if self._session is None else State.RECONNECTING
        self._swap_out()
        self._output.forget()
        session = Session(self.server, self._output)
        try:
            await session.open()
        except (Exception, asyncio.CancelledError) as error:
            self.state = State.ERROR
            self.error = self._unavailable(error, session.ending)
            logger.warning("%s", self.error)
            raise self.error from None
        finally:
            self._opening = None
        self._session, self.state, self.error = session, State.CONNECTED, None
        return session

    def _swap_out(self) -> None:
        """Let go of the session; it is closed in the background when its other calls are through."""
        session, self._session = self._session, None
        if session is not None:
            task = asyncio.create_task(session.close(self._longest_call_s()))
            self._draining.add(task)
            task.add_done_callback(self._draining.discard)

    async def call_tool(self, tool: str, arguments: dict[str, Any], timeout_s: float) -> CallToolResult:
        """Call a tool once.

        Raises:
            CallError: There is no result; code and text say why, and whether the tool ran.
        """
        session = await self.connected()
        try:
            return await session.call_tool(tool, arguments, timeout_s)
        except Exception as error:
            recovery = classify_error(error)
            if recovery.action is Action.RETRY_NEW_SESSION:
                session.lost = True
            raise call_error(
                error,
                recovery,
                name=f"{self.server.name}.{tool}",
                server=self.server.name,
                timeout_s=timeout_s,
                ending=self._ending(session.ending),
            ) from error

    async def check(self, list_s: float) -> Mapping[str, ToolDefinition]:
        """List the tools past every cache; on failure connect anew and list again.

        Raises:
            CallError: The server does not answer.
        """
        session = await self.connected()
        try:
            async with asyncio.timeout(list_s):
                await session.list_tools()
        except Exception as error:
            logger.warning("MCP server %s failed its check: %s", self.server.name, _describe(error))
            silent_s = time.monotonic() - session.answered_at
            busy = session.in_flight and not session.lost and silent_s < self._longest_call_s()
            if isinstance(error, TimeoutError | ListingError) and busy:
                # Perhaps it does one thing at a time: a new session would cost the calls that it is busy with. One that
                # answers nothing for longer than a call may take is not busy but stuck.
                raise CallError(
                    ErrorCode.SERVER_UNAVAILABLE,
                    f"MCP server `{self.server.name}` did not list its tools within {list_s:g} s while "
                    f"{session.in_flight} calls were running; its session was kept.",
                ) from None
            session.lost = True
            async with asyncio.timeout(self.server.timeouts.recreate_s):
                session = await self.connected()
        return session.tools

    async def close(self) -> None:
        """End the session, and the one that is being opened; nothing can be connected afterwards."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        session, self._session = self._session, None
        closing = {*self._draining}
        if session is not None:
            closing.add(asyncio.create_task(session.close()))
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_S)
        self.state = State.DISCONNECTED

    def _longest_call_s(self) -> float:
        """No call in flight can last longer: each has its own limit."""
        return max(self.server.timeouts.call_s, *self.server.timeouts.tools.values(), 0)

    def not_connected_within(self, timeout_s: float) -> CallError:
        """The answer to a caller that could not wait for the connection any longer. Safe to call from any thread."""
        return CallError(
            ErrorCode.SERVER_UNAVAILABLE,
            f"MCP server `{self.server.name}` was not connected within {timeout_s:.3g} s.{self._ending('')} "
            "The tool did not run.",
        )

    def _unavailable(self, error: BaseException, ending: str) -> CallError:
        name = self.server.name
        if isinstance(error, ConfigError):
            return CallError(
                ErrorCode.SERVER_MISCONFIGURED,
                f"MCP server `{name}` is misconfigured: {error}. The tool did not run; an operator has to mend this.",
            )
        if isinstance(error, TimeoutError):
            what = f"it did not complete the handshake within {self.server.timeouts.connect_s:g} s"
        elif isinstance(error, ListingError):
            what = f"it {error}"
        else:
            what = ending if ending.startswith("it") else _describe(error)
        refused = classify_error(error)
        code = ErrorCode.SERVER_UNAVAILABLE
        if refused.action is Action.NO_RETRY and refused.executed is Executed.NO:
            code = ErrorCode.SERVER_REFUSED
        return CallError(
            code,
            f"MCP server `{name}` is not available: {what}.{self._ending('')} The tool did not run. "
            "Try again later, or do without it.",
        )

    def _ending(self, reason: str) -> str:
        words = self._output.last_words()
        text = f" It ended because {reason}." if reason else ""
        return text + (f" Its last words: {words!r}." if words else "")


async def _all_tools(client: Client) -> AsyncIterator[Tool]:
    """Walk the pages of tools/list; a server that pages in circles or for ever is an error, not a loop."""
    cursor: str | None = None
    seen: set[str] = set()
    count = 0
    for _ in range(_MAX_PAGES):
        page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor) if cursor else None)
        for tool in page.tools:
            yield tool
        count += len(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return
        if cursor in seen or count > _MAX_TOOLS:
            break
        seen.add(cursor)
    raise ListingError(f"has a tools/list without end (broken off after {len(seen)} pages and {count} tools)")


def _definition(server: str, tool: Tool) -> ToolDefinition:
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    return ToolDefinition(
        name=f"{server}.{tool.name}",
        server=server,
        tool=tool.name,
        description=tool.description or tool.title or "",
        input_schema=tool.input_schema,
        annotations=annotations,
    )


def build_connections(servers: Iterable[ServerConfig], masker: Masker) -> dict[str, ServerConnection]:
    return {server.name: ServerConnection(server, masker) for server in servers}


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": .")


def _retrieve(task: "asyncio.Task[Any]") -> None:
    """Mark the exception of a task as seen: the callers that waited may all have given up."""
    if not task.cancelled():
        task.exception()
