"""JSON-RPC messages between bytes and the SDK.

Owns parsing, so that a bad message costs at most one request, encoding, and the way to the session. It knows no
transport: stdio frames messages as lines, SSE as events.
"""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest, jsonrpc_message_adapter

from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.lines import KEPT_BYTES, LongLine
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tarsy_tasks.worker.transport.transport_errors import NOT_SENT, UNREADABLE_ANSWER, message_too_large

__all__ = ["MessageChannel", "parse_message"]

logger = logging.getLogger(__name__)

_QUEUED_MESSAGES = 64
_ID = rb'"id"\s*:\s*(-?\d+|"[^"\\]{0,200}")\s*'
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb",")
_ID_LAST = re.compile(rb",\s*" + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


def parse_message(text: bytes | LongLine, limit_bytes: int) -> SessionMessage | None:
    """The message in a text, None if it is not JSON-RPC.

    An answer that is too long or cannot be parsed becomes an error with its request id.
    """
    if isinstance(text, LongLine):
        return _build_error_reply(text.head, text.tail, message_too_large(text.size_bytes, limit_bytes))
    if b'"jsonrpc"' not in text:
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError:
        pass
    try:
        # One bad byte, or half of a surrogate pair, must not cost the message. With the SDK's strict reader it ends the
        # session.
        whole = json.dumps(json.loads(text.decode("utf-8", "replace")), ensure_ascii=False).encode("utf-8", "replace")
        return SessionMessage(jsonrpc_message_adapter.validate_json(whole, by_name=False))
    except (ValueError, RecursionError) as error:
        unreadable = ErrorData(code=UNREADABLE_ANSWER, message=f"it cannot be read ({type(error).__name__})")
        return _build_error_reply(text[:KEPT_BYTES], text[-KEPT_BYTES:], unreadable)


class MessageChannel:
    """The messages between a transport and its session; those of the server pass no faster than `flood` allows.

    Args:
        output: Receives what is not JSON-RPC.
        where: Where that was found, for the log.

    Attributes:
        streams: What the SDK's `Client` gets: messages from the server, messages to it.
        from_session: The messages to the server, for the transport.
    """

    def __init__(self, limit_bytes: int, flood: Flood, output: ServerOutput, where: str) -> None:
        self.limit_bytes = limit_bytes
        self.flood = flood
        self._output = output
        self._where = where
        self._to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](_QUEUED_MESSAGES)
        to_server, self.from_session = anyio.create_memory_object_stream[SessionMessage](_QUEUED_MESSAGES)
        self.streams = from_server, to_server

    async def put(self, text: bytes | LongLine) -> None:
        """Pass one message on, and wait for as long as the server has to be slowed."""
        if self.flood.admit(text if isinstance(text, bytes) else text.head):
            message = parse_message(text, self.limit_bytes)
            if message is not None:
                try:
                    self._to_session.send_nowait(message)
                except anyio.WouldBlock:
                    await self._to_session.send(message)
            elif pause_s := self._output.record_garbage(text, self._where):
                await asyncio.sleep(pause_s)
        await self.flood.pause()

    async def drain(self, reading: Awaitable[str], on_end: Callable[[str], None]) -> None:
        """Wait until the transport has read everything, report why it ended, and close the session's side."""
        try:
            on_end(await reading)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        except Exception as error:
            # Without a reader, its calls would all wait for their timeouts.
            logger.exception("the messages of an MCP server cannot be read")
            on_end(f"its messages could not be read ({type(error).__name__})")
        finally:
            self.end()

    def end(self) -> None:
        """No more messages come from the server, which ends the session."""
        self._to_session.close()

    def close(self) -> None:
        for stream in (*self.streams, self._to_session, self.from_session):
            stream.close()

    async def encode(self, item: SessionMessage) -> bytes | None:
        """The JSON of a message to the server, one line of UTF-8.

        None if it cannot be written as JSON: then a request has been answered with an error, and the session goes on.
        """
        try:
            return item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        except ValueError as error:
            text = f"the request cannot be written as JSON: {type(error).__name__}"
            await self.answer_with_error(item, ErrorData(code=NOT_SENT, message=text))
            return None

    async def answer_with_error(self, item: SessionMessage, error: ErrorData) -> None:
        """Answer a request in place of the server; other messages need no answer."""
        if isinstance(item.message, JSONRPCRequest):
            reply = JSONRPCError(jsonrpc="2.0", id=item.message.id, error=error)
            await self._to_session.send(SessionMessage(reply))


def _build_error_reply(head: bytes, tail: bytes, error: ErrorData) -> SessionMessage | None:
    """An error in place of an answer, if the answer's request id can be found at either end of it."""
    found = _ID_FIRST.match(head) or _ID_LAST.search(tail)
    if found is None:
        return None
    word = found[1].decode("utf-8", "replace")
    request_id = word.strip('"') if word.startswith('"') else int(word)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=request_id, error=error))
