"""JSON-RPC messages of a server, out of bytes.

Owns parsing, so that a bad message costs at most one request. It knows no transport: stdio frames messages as lines,
SSE and HTTP as events.
"""

import json
import re

from mcp_types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCResponse, RequestId, jsonrpc_message_adapter

from tarsy_tasks.worker.transport.lines import KEPT_BYTES, LongLine
from tarsy_tasks.worker.transport.message_bounds import LARGE_BYTES, check_values, limit_lists
from tarsy_tasks.worker.transport.transport_errors import (
    UNREADABLE_ANSWER,
    TooManyError,
    message_too_large,
    not_json_rpc,
    too_many,
)

__all__ = ["parse_message", "refuse_unfinished"]

_ID = rb'"id"\s*:\s*(-?\d+|"[^"\\]{0,200}")\s*'
_ID_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb",")
_ID_LAST = re.compile(rb",\s*" + _ID + rb'(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')


def parse_message(text: bytes | LongLine, limit_bytes: int, asked: RequestId | None = None) -> JSONRPCMessage | None:
    """The message in a text, None if it is not JSON-RPC.

    An answer that is too long, has too many values, or cannot be parsed becomes an error with its request id, or the
    one that was asked. A text above `LARGE_BYTES` may take long: not for the event loop.
    """
    if isinstance(text, LongLine):
        return _build_error_reply(text.head, text.tail, message_too_large(text.size_bytes, limit_bytes), asked)
    if b'"jsonrpc"' not in text:
        return None if asked is None else JSONRPCError(jsonrpc="2.0", id=asked, error=not_json_rpc(text))
    if len(text) <= LARGE_BYTES:
        return _parse(text, asked)
    try:
        check_values(text)
        message = _parse(text, asked)
        if isinstance(message, JSONRPCResponse):
            limit_lists(message.result)
    except TooManyError as error:
        return _build_error_reply(text[:KEPT_BYTES], text[-KEPT_BYTES:], too_many(error), asked)
    return message


def refuse_unfinished(head: bytes, limit_bytes: int) -> JSONRPCMessage | None:
    """The error in place of an answer that is too large already, if its request id is at its beginning."""
    return _build_error_reply(head, b"", message_too_large(None, limit_bytes), None)


def _parse(text: bytes, asked: RequestId | None) -> JSONRPCMessage | None:
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        pass
    try:
        # One bad byte, or half of a surrogate pair, must not cost the message. With the SDK's strict reader it ends the
        # session.
        whole = json.dumps(json.loads(text.decode("utf-8", "replace")), ensure_ascii=False).encode("utf-8", "replace")
        return jsonrpc_message_adapter.validate_json(whole, by_name=False)
    except (ValueError, RecursionError) as error:
        unreadable = ErrorData(code=UNREADABLE_ANSWER, message=f"it cannot be read ({type(error).__name__})")
        return _build_error_reply(text[:KEPT_BYTES], text[-KEPT_BYTES:], unreadable, asked)


def _build_error_reply(head: bytes, tail: bytes, error: ErrorData, asked: RequestId | None) -> JSONRPCMessage | None:
    """An error in place of an answer, if the answer's request id is known, or can be found at either end of it."""
    if asked is not None:
        return JSONRPCError(jsonrpc="2.0", id=asked, error=error)
    found = _ID_FIRST.match(head) or _ID_LAST.search(tail)
    if found is None:
        return None
    word = found[1].decode("utf-8", "replace")
    request_id = word.strip('"') if word.startswith('"') else int(word)
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
