"""JSON-RPC errors that our own transports put in place of an answer.

Owns the error codes for what only a transport knows and the SDK would lose or die of: that a request never left, which
HTTP status came back, that an answer was too large. The codes lie outside of the ranges that JSON-RPC and MCP use.
"""

from typing import Any

from mcp_types import ErrorData

__all__ = [
    "AUTH_FAILED",
    "HTTP_STATUS",
    "MESSAGE_TOO_LARGE",
    "NOT_SENT",
    "TRANSPORT_DOWN",
    "UNREADABLE_ANSWER",
    "message_too_large",
]

TRANSPORT_DOWN = -31990
"""The HTTP exchange failed; `data["never_sent"]` says that the request cannot have reached the server, `data["tls"]`
that it never will.
"""
HTTP_STATUS = -31991
"""The server answered with `data["status"]` and no JSON-RPC body; `data["retry_after"]` is its header."""
AUTH_FAILED = -31992
"""Authorisation failed before the request was sent."""
MESSAGE_TOO_LARGE = -31993
"""The answer is larger than `max_message_bytes`: the tool has run, its answer was dropped."""
UNREADABLE_ANSWER = -31994
"""The answer is JSON-RPC that cannot be read: the tool has run."""
NOT_SENT = -31995
"""The request could not be written as JSON."""


def message_too_large(size_bytes: int | None, limit_bytes: int) -> ErrorData:
    """The error that stands in for an answer above the limit; `size_bytes` None: reading stopped at the limit."""
    found = f"{size_bytes} bytes" if size_bytes is not None else "more than that"
    data: dict[str, Any] = {"limit_bytes": limit_bytes, "size_bytes": size_bytes}
    return ErrorData(
        code=MESSAGE_TOO_LARGE,
        message=f"the answer is larger than max_message_bytes ({limit_bytes} bytes): {found}",
        data=data,
    )
