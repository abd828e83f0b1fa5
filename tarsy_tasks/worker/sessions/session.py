"""One open MCP session, from its connect to its end.

Owns the SDK's `Client`, which one task must enter and leave because of its cancel scopes; the server's list of tools;
and the signs that a session is lost or stuck. Everything runs on the session loop. When a session is opened or replaced
is decided in `connection`; `list_changes` notices when the list of tools has changed.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, Literal, TypeVar, cast

from mcp import Client, MCPError
from mcp.client.subscriptions import Subscription
from mcp.shared.dispatcher import Dispatcher
from mcp_types import LOG_LEVEL_META_KEY, CallToolResult, Implementation
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.worker.long_work import LongWork, charged_in_full
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.call_errors import describe_error
from tarsy_tasks.worker.sessions.capabilities import describe_capabilities
from tarsy_tasks.worker.sessions.input_requests import answer_elicitation, keep_questions
from tarsy_tasks.worker.sessions.list_changes import ListChanges
from tarsy_tasks.worker.sessions.listing import Listed, ListedTools, ListingError, UnmaskedTool, list_all_tools
from tarsy_tasks.worker.sessions.output_check import find_output_problem
from tarsy_tasks.worker.sessions.recovery import REQUEST_TIMEOUT, Executed, classify_error
from tarsy_tasks.worker.sessions.tasks_extension import TaskCreated, TasksExtension
from tarsy_tasks.worker.sessions.tool_requests import shorten_tool_calls
from tarsy_tasks.worker.transport.call_listeners import CallListener
from tarsy_tasks.worker.transport.transports import ServerTransport

__all__ = ["NO_ANSWERS", "Mode", "Session"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Mode = Literal["auto", "legacy"]
"""The handshake of the SDK's client: `auto` probes for the 2026 era first, `legacy` does not."""

_CLIENT_INFO = Implementation(name="tarsy-tasks", version=version("tarsy-tasks"))
_CLOSE_S = 8.0
"""Closing a stdio server takes up to 6.5 s when it ignores its closed stdin and SIGTERM."""
_SHOWN_CHARS = 200
_LOG_LEVEL = "info"
NO_ANSWERS: Mapping[str, Any] = MappingProxyType({})


class Session:
    """One open MCP session, shared by concurrent calls or made for one.

    Attributes:
        tools: The server's tools by name; replaced as a whole by every listing.
        server_info: The server's own name and version, masked.
        instructions: The server's instructions for models, unmasked.
        capabilities: What it offers, as in `HealthRecord`.
        opened_at: When the handshake was complete; monotonic time.
        end_reason: Why the session ended, for an error text; empty while it is usable.
        lost: No call may be sent over it any more.
        in_flight: Number of running calls.
        is_handshake_era: The server uses a protocol before 2026-07-28.
        longest_call_s: The longest timeout of the running calls.
        elicits: Its callers can answer what the server asks, in the handshake era; to be set before `open`.
        died_in_handshake: The server ended before the handshake was complete.

    Args:
        on_tools: Called when the server has changed its tools and listed them.
        on_resources: As of `ListChanges`.
        on_left_out: Called after each listing with the tools that are not valid, and why.
        takes_tasks: The server may answer calls with tasks.
    """

    def __init__(
        self,
        server: ServerConfig,
        transport: ServerTransport,
        mode: Mode,
        on_tools: Callable[[], None],
        on_resources: Callable[[str | None], None],
        on_left_out: Callable[[Mapping[str, str]], None],
        masker: Masker,
        long_work: LongWork,
        *,
        takes_tasks: bool = False,
    ) -> None:
        self.tools: Mapping[str, ToolDefinition] = {}
        self._left_out: Mapping[str, str] = {}
        self.protocol = self.server_info = self.instructions = self.end_reason = ""
        self.capabilities: tuple[str, ...] = ()
        self.opened_at = 0.0
        self.lost = self.is_handshake_era = self.died_in_handshake = self.elicits = False
        self.in_flight = 0
        self.longest_call_s = 0.0
        self._server = server
        self._transport = transport
        self._mode: Mode = mode
        self._on_tools = on_tools
        self._on_resources = on_resources
        self._on_left_out = on_left_out
        self._masker = masker
        self._long_work = long_work
        self._extensions = (TasksExtension(),) if takes_tasks else ()
        self._listed: ListedTools | None = None
        self._unmasked_tools: Mapping[str, UnmaskedTool] = {}
        self._output_schemas: Mapping[str, Mapping[str, Any]] = {}
        self._client: Client | None = None
        self._silent_since = time.monotonic()
        self._probing: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._closing = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    @property
    def era(self) -> str:
        """`handshake` for versions of MCP before 2026-07-28, else `2026`."""
        return "handshake" if self.is_handshake_era else "2026"

    async def open(self, connect_s: float) -> None:
        """Connect, complete the handshake and list the tools, all in `connect_s` seconds.

        Raises:
            Exception: Why the transport, the handshake or the listing failed.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._run(ready, connect_s), name=f"mcp-session-{self._server.name}")
        try:
            await ready
        except asyncio.CancelledError:
            self._owner.cancel()
            await asyncio.wait({self._owner}, timeout=_CLOSE_S)
            raise

    async def _run(self, ready: asyncio.Future[None], connect_s: float) -> None:
        started = time.monotonic()
        cache = self._server.cache
        changes = ListChanges(
            *(self._server.name, self._relist, lambda: self.lost, self._masker, self._on_resources),
            follows_resources=cache is not None and cache.resources is not None,
        )
        try:
            # Not anyio.fail_after: entered here and left elsewhere, it would break the nesting of the SDK's scopes.
            async with asyncio.timeout(connect_s) as limit:
                transport = self._transport.open(self._on_transport_end)
                # No response cache: a server's ttlMs would answer a health check after the server has died.
                async with _client_over(
                    transport,
                    client_info=_CLIENT_INFO,
                    cache=None,
                    mode=self._mode,
                    message_handler=changes.hear,
                    elicitation_callback=answer_elicitation if self.elicits else None,
                    extensions=self._extensions,
                ) as client:
                    self._client = client
                    cast("Any", client.session).validate_tool_result = _accept
                    self._describe(client)
                    if not self.is_handshake_era:
                        keep_questions(client)
                    shorten_tool_calls(client.session)
                    await self.list_tools()
                    limit.reschedule(None)
                    changes.follow(client, is_handshake_era=self.is_handshake_era)
                    logger.info(
                        "connected to MCP server %s: %s, protocol %s (%s era), %s, %d tools, %d ms",
                        *(self._server.name, self._server.transport, self.protocol, self.era, self.server_info),
                        *(len(self.tools), round((time.monotonic() - started) * 1000)),
                    )
                    ready.set_result(None)
                    await self._closing.wait()
                    await changes.stop()
        except BaseException as error:
            self.mark_lost(describe_error(_first_leaf(error), self._masker))
            if not ready.done():
                ready.set_exception(_first_leaf(error))
        finally:
            await changes.stop()
            self.lost = True

    def _describe(self, client: Client) -> None:
        info = client.server_info
        self.protocol = client.protocol_version
        self.is_handshake_era = self.protocol in HANDSHAKE_PROTOCOL_VERSIONS
        name = f"{info.name} {info.version}".strip() if info else "anonymous"
        self.server_info = self._masker.mask_start(name, _SHOWN_CHARS)
        self.instructions = (client.instructions or "").strip()
        self.capabilities = tuple(describe_capabilities(client.server_capabilities))
        self.opened_at = time.monotonic()

    def _on_transport_end(self, reason: str) -> None:
        self.died_in_handshake = self._client is None
        if not self.died_in_handshake and not self._closing.is_set():
            logger.warning("lost the session with MCP server %s: %s", self._server.name, reason)
        self.mark_lost(reason)

    def mark_lost(self, reason: str) -> None:
        """From now on no call is sent over this session; the first reason given is kept."""
        self.lost = True
        self.end_reason = self.end_reason or reason

    async def list_tools(self) -> None:
        """Replace `tools` by what the server lists now.

        Raises:
            ListingError: It took longer than `timeouts.list_s`, does not end, or is too long.
        """
        assert self._client is not None
        list_s = self._server.timeouts.list_s
        try:
            async with asyncio.timeout(list_s):
                about = self._server.name, self._masker, self._long_work
                listed = await list_all_tools(self._client, *about, before=self._listed)
        except TimeoutError:
            raise ListingError(f"did not list its tools within {list_s:g} s") from None
        self._silent_since = time.monotonic()
        if listed is self._listed:
            return
        # Otherwise keep the same objects, whose fingerprints have been computed, and whose schemas have been compiled.
        if listed.tools != self.tools:
            self.tools = listed.tools
        if listed.output_schemas != self._output_schemas:
            self._output_schemas = listed.output_schemas
        self._unmasked_tools = listed.unmasked
        self._left_out = listed.left_out
        self._on_left_out(listed.left_out)
        self._listed = listed

    def listed(self) -> Listed:
        """What the server has listed, which does not change and outlives the session. From any thread."""
        about = self.instructions, self.capabilities
        return Listed(self._server, self.tools, self._left_out, *about, self._masker)

    def unmasked_schema(self, tool: str) -> Mapping[str, Any] | None:
        """A tool's schema before masking, None if masking changed nothing. Safe to call from any thread."""
        unmasked = self._unmasked_tools.get(tool)
        return None if unmasked is None else unmasked.input_schema

    async def call_tool(
        self,
        tool: str,
        arguments: dict[str, Any],
        timeout_s: float,
        listener: CallListener | None = None,
        answers: Mapping[str, Any] = NO_ANSWERS,
    ) -> CallToolResult:
        """Send one call; raises what the SDK raises, and `TaskCreated`. Only for a listener the server is asked for
        progress, and for the log lines that can be attributed to the call. `answers` are arguments of the SDK, to a
        question of the server.
        """
        assert self._client is not None
        unmasked = self._unmasked_tools.get(tool)
        name = tool if unmasked is None else unmasked.name
        if listener is None:
            sending = self._client.call_tool(name, arguments, read_timeout_seconds=timeout_s, **answers)
        else:
            sending = self._call_with(listener, name, arguments, timeout_s, answers)
        return await self._counted(sending, timeout_s)

    async def request(self, send: Callable[[Client], Awaitable[T]], timeout_s: float) -> T:
        """Send something else than a call; `send` may need several requests. Raises what the SDK raises."""
        assert self._client is not None
        try:
            async with asyncio.timeout(timeout_s):
                return await self._counted(send(self._client), timeout_s)
        except TimeoutError:
            raise MCPError(REQUEST_TIMEOUT, f"it took longer than {timeout_s:.3g} s") from None

    def listen_for(self, uris: Sequence[str]) -> AbstractAsyncContextManager[Subscription]:
        """A stream of changes of these resources, of which the message handler hears, too; only in the 2026 era."""
        assert self._client is not None
        return self._client.listen(resource_subscriptions=uris)

    async def _counted(self, sending: Awaitable[T], timeout_s: float) -> T:
        """Await an answer while what is sent counts as running."""
        sent_at = time.monotonic()
        if not self.in_flight:
            self._silent_since, self.longest_call_s = sent_at, 0.0
        self.longest_call_s = max(self.longest_call_s, timeout_s)
        self.in_flight += 1
        try:
            result = await sending
        except MCPError as error:
            if classify_error(error).executed is Executed.YES:
                self._silent_since = time.monotonic()
            raise
        except TaskCreated:
            self._silent_since = time.monotonic()
            raise
        else:
            self._silent_since = time.monotonic()
            return result
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def _call_with(
        self, listener: CallListener, name: str, arguments: dict[str, Any], timeout_s: float, answers: Mapping[str, Any]
    ) -> CallToolResult:
        assert self._client is not None
        listener.has_session = self._server.session == "per_call"
        listener.heard = self._note_sign_of_life
        # In the handshake era each server decides which log lines it sends.
        has_logs = not self.is_handshake_era and (listener.has_session or self._server.transport == "http")
        return await self._client.call_tool(
            name,
            arguments,
            read_timeout_seconds=timeout_s,
            progress_callback=cast("Any", listener),
            meta=cast("Any", {LOG_LEVEL_META_KEY: _LOG_LEVEL}) if has_logs else None,
            **answers,
        )

    def _note_sign_of_life(self) -> None:
        """A running call makes progress."""
        self._silent_since = time.monotonic()

    async def find_output_problem(self, tool: str, result: CallToolResult) -> str:
        """Why a result of a tool does not fit its output schema; empty if it does, or is an error, or there is none."""
        unmasked = self._unmasked_tools.get(tool)
        schema = self._output_schemas.get(tool if unmasked is None else unmasked.name)
        return "" if schema is None or result.is_error else await find_output_problem(schema, result, self._long_work)

    @property
    def is_stuck(self) -> bool:
        """Whether calls are running and none was answered for as long as the longest may take. Until then a server that
        handles one request at a time may be busy.
        """
        return time.monotonic() - self._silent_since >= self.longest_call_s

    @property
    def is_busy(self) -> bool:
        """Whether running calls may still be answered."""
        return self.in_flight > 0 and not self.lost and not self.is_stuck

    def probe(self) -> None:
        """Find out in the background whether a server that answered no call still answers at all."""
        if self._probing is None and not self.lost and not self._closing.is_set():
            self._probing = asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        try:
            await self.list_tools()
        except Exception as error:
            why = describe_error(error, self._masker)
            logger.warning("MCP server %s no longer answers: %s", self._server.name, why)
            self.mark_lost("it no longer answers")
        finally:
            self._probing = None

    async def _relist(self) -> None:
        before = self.tools
        await self._long_work.pause()  # not within the time limit of the listing
        with charged_in_full():
            await self.list_tools()
        if self.tools is not before:
            self._on_tools()

    async def close(self, drain_s: float = 0.0) -> None:
        """End the session once its calls are done, at most `drain_s` seconds from now."""
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


def _client_over(transport: AbstractAsyncContextManager[Dispatcher[Any]], **options: Any) -> Client:
    """The SDK's client with a dispatcher of ours, which only its `ClientSession` has a parameter for."""

    async def connect(stack: AsyncExitStack, _mode: str, _raise_exceptions: bool) -> Dispatcher[Any]:
        return await stack.enter_async_context(transport)

    client = Client(cast("Any", transport), **options)
    client._connect = connect  # pyright: ignore[reportPrivateUsage]
    return client


async def _accept(_tool: str, _result: CallToolResult) -> None:
    """In place of the SDK's check of a result, which makes an error of an answer that can be read."""


def _first_leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
