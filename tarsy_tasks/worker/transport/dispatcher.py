"""Requests to an MCP server, their answers, and what the server sends unasked, over any transport.

Owns request ids, the requests that wait for an answer, and the way of each message to the SDK's `ClientSession`, for
which it implements the SDK's `Dispatcher`. It replaces `JSONRPCDispatcher`, in which a message passes three queues and
as many tasks: that was most of what a call cost. It knows no MCP beyond cancellation and tools/list, and no framing.
"""

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import anyio
from anyio.abc import TaskStatus
from mcp import MCPError
from mcp.shared.dispatcher import (
    CallOptions,
    DispatchContext,
    Dispatcher,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    as_request_id,
    coerce_request_id,
    run_notify_intercept,
)
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp.shared.transport_context import TransportContext
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    REQUEST_TIMEOUT,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from opentelemetry.context import get_current
from opentelemetry.propagate import inject
from pydantic_core import to_json

from tarsy_tasks.worker.long_work import ASKED_S, LongWork
from tarsy_tasks.worker.transport.call_listeners import CallListener, CallListeners, with_token
from tarsy_tasks.worker.transport.elicitation_handlers import (
    ADDRESSED_HANDLER,
    ELICITATION_HANDLER,
    ElicitationHandlers,
)
from tarsy_tasks.worker.transport.flood import PROGRESS, Flood
from tarsy_tasks.worker.transport.lines import LongLine
from tarsy_tasks.worker.transport.message_bounds import LARGE_BYTES
from tarsy_tasks.worker.transport.messages import parse_message
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tarsy_tasks.worker.transport.tool_check import leave_out_invalid
from tarsy_tasks.worker.transport.transport_errors import NOT_SENT

__all__ = ["Message", "MessageDispatcher", "connection_closed"]

logger = logging.getLogger(__name__)

Message = dict[str, Any]
"""A JSON-RPC message to the server."""

_CANCELLED = "notifications/cancelled"
_PROGRESS = PROGRESS.decode()
_LIST_TOOLS = "tools/list"
_PARSED_S = 0.5
"""What any answer may cost until it is parsed; messages that nobody asked for are in the flood control."""


@dataclass(frozen=True)
class _Context:
    """What `ClientSession` reads of the SDK's `DispatchContext`."""

    request_id: RequestId | None


class MessageDispatcher(Dispatcher[TransportContext]):
    """The messages of one session; those of the server pass no faster than `flood` allows.

    A transport implements `_ready` and `_write`, and `_request` if requests are sent in another way. It hands over what
    it reads with `put`, and calls `end` after the last.

    Args:
        limit_bytes: Largest message that is read; an answer in a larger one becomes an error.
        long_work: For its large messages, the same for all sessions of a server.
        output: Receives what is not JSON-RPC.
        where: Where that was found, for the log.

    Attributes:
        ended: Set when no more messages come from the server.
        listeners: Hear progress and log lines.
    """

    def __init__(self, limit_bytes: int, flood: Flood, long_work: LongWork, output: ServerOutput, where: str) -> None:
        self.limit_bytes = limit_bytes
        self.flood = flood
        self._long_work = long_work
        self._output = output
        self._where = where
        self.ended = asyncio.Event()
        self.listeners = CallListeners(flood)
        self._elicitations = ElicitationHandlers()
        self._last_id = 0
        self._waiting: dict[RequestId, asyncio.Future[dict[str, Any]]] = {}
        self._answering: dict[RequestId, anyio.CancelScope] = {}
        self._running = asyncio.Event()

    async def _ready(self) -> None:
        """Wait until the server takes more messages."""

    def _timed_out_before_write(self) -> None:
        """A request timed out in `_ready`."""

    async def _request(self, message: Message, data: bytes, options: CallOptions) -> None:  # noqa: ARG002
        """Send a request, whose JSON is `data`."""
        self._write(message, data)

    @abstractmethod
    def _write(self, message: Message, data: bytes) -> None:
        """Send a message, whose JSON is `data`."""

    # To the server.

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        """Send a request and wait for its result. Of `opts`, `request_id`, `timeout` and `cancel_on_abandon` count, and
        over HTTP the `headers`. `on_progress` is a `CallListener`; only with one the server is asked for progress.

        Raises:
            MCPError: The server's own error, `REQUEST_TIMEOUT`, `CONNECTION_CLOSED`, or one of `transport_errors`.
        """
        if self.ended.is_set():
            raise connection_closed()
        options: CallOptions = opts or {}
        self._last_id += 1
        request_id = options.get("request_id", self._last_id)
        listener = cast("CallListener | None", options.get("on_progress"))
        if listener is not None:
            params = with_token(params, request_id)
        message = _build_message(method, _with_trace(params), request_id)
        data = _encode(message)
        key = coerce_request_id(request_id)
        answer = self._waiting[key] = asyncio.get_running_loop().create_future()
        if (handler := ELICITATION_HANDLER.get()) is not None:
            self._elicitations.add(key, handler)
        timeout_s = options.get("timeout")
        is_written = False
        try:
            async with asyncio.timeout(timeout_s) as limit:
                if listener is not None:
                    self.listeners.add(key, listener, limit)
                await self._ready()
                is_written = True
                self.flood.expect_answer()
                await self._request(message, data, options)
                result = await answer
                if method == _LIST_TOOLS:
                    version = (options.get("headers") or {}).get(MCP_PROTOCOL_VERSION_HEADER, "")
                    await self._long_work.run(leave_out_invalid, result, version, allowed_s=ASKED_S)
                return result
        except TimeoutError:
            if is_written:
                self._cancel(request_id, f"timed out after {timeout_s}s", options)
            else:
                self._timed_out_before_write()
            raise MCPError(REQUEST_TIMEOUT, f"Request {method!r} timed out") from None
        except asyncio.CancelledError:
            if is_written:
                self._cancel(request_id, "caller cancelled", options)
            raise
        finally:
            del self._waiting[key]
            if listener is not None:
                self.listeners.remove(key)
            if handler is not None:
                self._elicitations.remove(key)

    def _cancel(self, request_id: RequestId, reason: str, options: CallOptions) -> None:
        """Tell the server that nobody waits for an answer any more, unless the protocol forbids it."""
        if options.get("cancel_on_abandon", True):
            message = _build_message(_CANCELLED, {"requestId": request_id, "reason": reason})
            self._write(message, _encode(message))

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,  # noqa: ARG002 (headers, which only HTTP has)
    ) -> None:
        if not self.ended.is_set():
            await self._send(_build_message(method, params))

    async def _send(self, message: Message) -> None:
        data = _encode(message)
        await self._ready()
        self._write(message, data)

    # From the server.

    async def put(self, text: bytes | LongLine, asked: RequestId | None = None) -> None:
        """Act on one message of the server, and wait for as long as it has to be slowed.

        Args:
            asked: The only request that this message may answer, whatever id it has.
        """
        if not self._running.is_set():
            await self._running.wait()
        if self.listeners.by_request and isinstance(text, bytes) and self.listeners.hear(text, asked):
            self.flood.charge_heard(text)
        elif self.flood.admit(text if isinstance(text, bytes) else text.head):
            message = await self.parse(text, asked)
            if message is not None:
                self.receive(message, asked)
            else:
                self._output.record_garbage(text, self._where)
        await self.flood.pause()

    async def parse(self, text: bytes | LongLine, asked: RequestId | None) -> JSONRPCMessage | None:
        """As `parse_message`, without blocking the event loop."""
        if isinstance(text, bytes) and len(text) > LARGE_BYTES:
            return await self._long_work.run(parse_message, text, self.limit_bytes, asked, allowed_s=_PARSED_S)
        return parse_message(text, self.limit_bytes, asked)

    def receive(self, message: JSONRPCMessage, asked: RequestId | None = None) -> None:
        """Act on one message, as `put` does."""
        match message:
            case JSONRPCResponse():
                self.settle(message.id if asked is None else asked, message.result)
            case JSONRPCError():
                self.settle(message.id if asked is None else asked, message.error)
            case JSONRPCNotification():
                self._receive_notification(message)
            case JSONRPCRequest():
                scope = self._answering[coerce_request_id(message.id)] = anyio.CancelScope()
                self._handlers.start_soon(self._answer, message, scope, asked)

    def is_waiting(self, request_id: RequestId) -> bool:
        """Whether a request is not answered yet."""
        answer = self._waiting.get(coerce_request_id(request_id))
        return answer is not None and not answer.done()

    def settle(self, request_id: RequestId | None, outcome: dict[str, Any] | ErrorData) -> None:
        """A request is answered, by the server or in its place."""
        answer = self._waiting.get(coerce_request_id(request_id)) if request_id is not None else None
        if answer is None or answer.done():
            return  # nobody waits for it any more
        if isinstance(outcome, ErrorData):
            _fail(answer, MCPError.from_error_data(outcome))
        else:
            answer.set_result(outcome)

    def _receive_notification(self, message: JSONRPCNotification) -> None:
        if message.method == _PROGRESS:
            self.listeners.take(PROGRESS, message.params, None)
            return
        if message.method == _CANCELLED:
            cancelled = as_request_id((message.params or {}).get("requestId"))
            if cancelled is not None and (scope := self._answering.get(coerce_request_id(cancelled))) is not None:
                scope.cancel()
        if not run_notify_intercept(self._on_notify_intercept, message.method, message.params):
            self._handlers.start_soon(self._notice, message)

    async def _notice(self, message: JSONRPCNotification) -> None:
        try:
            await self._on_notify(_context(None), message.method, message.params)
        except Exception:
            logger.exception("the notification %r of an MCP server cannot be handled", message.method[:100])

    async def _answer(self, request: JSONRPCRequest, scope: anyio.CancelScope, stream: RequestId | None) -> None:
        """Answer a request of the server, unless it cancels it."""
        ADDRESSED_HANDLER.set(self._elicitations.find(stream))
        with scope:
            try:
                result = await self._on_request(_context(request.id), request.method, request.params)
                reply = {"jsonrpc": "2.0", "id": request.id, "result": result}
            except Exception as error:
                found = handler_exception_to_error_data(error)
                if found is None:
                    logger.exception("a request of an MCP server cannot be answered")
                    found = ErrorData(code=INTERNAL_ERROR, message="Internal error")
                reply = {"jsonrpc": "2.0", "id": request.id, "error": found.model_dump(exclude_none=True)}
            finally:
                self._answering.pop(coerce_request_id(request.id), None)
            if not scope.cancel_called:
                await self._send(reply)

    # Its life.

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Handle the server's messages with these functions until `end` is called."""
        self._on_request, self._on_notify, self._on_notify_intercept = on_request, on_notify, on_notify_intercept
        try:
            async with anyio.create_task_group() as self._handlers:
                self._running.set()
                task_status.started()
                await self.ended.wait()
                self._handlers.cancel_scope.cancel()
        finally:
            self.end()

    async def drain(self, reading: Awaitable[str], on_end: Callable[[str], None]) -> None:
        """Wait until the transport has read everything, report why it ended, and end the session."""
        try:
            on_end(await reading)
        except Exception as error:
            # Without a reader, its calls would all wait for their timeouts.
            logger.exception("the messages of an MCP server cannot be read")
            on_end(f"its messages could not be read ({type(error).__name__})")
        finally:
            self.end()

    def end(self) -> None:
        """No more messages come from the server, which ends the session."""
        self.ended.set()
        for answer in self._waiting.values():
            if not answer.done():
                _fail(answer, connection_closed())


def _build_message(method: str, params: Mapping[str, Any] | None, request_id: RequestId | None = None) -> Message:
    message: Message = {"jsonrpc": "2.0"}
    if request_id is not None:
        message["id"] = request_id
    message["method"] = method
    if params:
        message["params"] = params
    return message


def _with_trace(params: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The parameters of a request with the current trace, if there is one (SEP-414)."""
    if not get_current():
        return params
    trace: dict[str, Any] = {}
    inject(trace)
    if not trace:
        return params
    params = params or {}
    return {**params, "_meta": {**(params.get("_meta") or {}), **trace}}


def _encode(message: Message) -> bytes:
    try:
        return to_json(message, inf_nan_mode="null")
    except ValueError as error:
        text = f"the request cannot be written as JSON: {type(error).__name__}"
        raise MCPError(NOT_SENT, text) from None


def _context(request_id: RequestId | None) -> DispatchContext[TransportContext]:
    return cast("DispatchContext[TransportContext]", _Context(request_id))


def _fail(answer: "asyncio.Future[Any]", error: MCPError) -> None:
    answer.set_exception(error)
    answer.exception()  # Its request may already have ended, or not wait for it yet: that is not worth a warning.


def connection_closed() -> MCPError:
    """The error of a request whose session has ended."""
    return MCPError(CONNECTION_CLOSED, "Connection closed")
