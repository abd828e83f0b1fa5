"""What a failure of an MCP session means: may the call be sent again, over which session, and did the tool run.

Owns the one table from exception to `Recovery`. It acts on nothing: `invocation` does, and `call_errors` has the words
for it. Codes of `MCPError` are overloaded by servers and by the SDK, so the table also looks at the SDK's own messages.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, cast

from mcp import MCPError
from pydantic import ValidationError

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.worker.transport.transport_errors import (
    AUTH_FAILED,
    HTTP_STATUS,
    NOT_SENT,
    SESSION_FORGOTTEN,
    TRANSPORT_DOWN,
)

__all__ = [
    "CONNECTION_CLOSED",
    "REQUEST_TIMEOUT",
    "Action",
    "Executed",
    "Recovery",
    "classify_error",
    "is_out_of_reach",
    "is_transient",
    "retry_after_s",
]


class Action(StrEnum):
    """What would have to happen before the call could be sent again."""

    NO_RETRY = "no_retry"
    RETRY_SAME_SESSION = "retry_same_session"
    RETRY_NEW_SESSION = "retry_new_session"


class Executed(StrEnum):
    """Whether the tool ran."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


@dataclass(frozen=True)
class Recovery:
    """The verdict on one failure."""

    action: Action
    executed: Executed


_GIVE_UP = Recovery(Action.NO_RETRY, Executed.NO)
_GIVE_UP_MAYBE = Recovery(Action.NO_RETRY, Executed.MAYBE)
_GIVE_UP_RAN = Recovery(Action.NO_RETRY, Executed.YES)
_SAME = Recovery(Action.RETRY_SAME_SESSION, Executed.NO)
_SAME_MAYBE = Recovery(Action.RETRY_SAME_SESSION, Executed.MAYBE)
_NEW = Recovery(Action.RETRY_NEW_SESSION, Executed.NO)
_NEW_MAYBE = Recovery(Action.RETRY_NEW_SESSION, Executed.MAYBE)

REQUEST_TIMEOUT = -32001
CONNECTION_CLOSED = -32000
_TOO_MANY_REQUESTS, _UNAVAILABLE = 429, 503
_TOOK_TOO_LONG = (408, 499, 504, 522, 524)
"""Somebody between us and the tool lost patience."""
_NOT_IMPLEMENTED = (501, 505)
_FIRST_SERVER_STATUS = 500
_LOOKED_AT = 200
"""Characters of a message that the table looks at; a server's own may be megabytes long."""
_OUTPUT_SCHEMA = ("Tool ", "Invalid schema for tool ", "Invalid structured content ")
"""How the SDK begins to say that a result does not fit the tool's own output schema."""


def classify_error(error: BaseException) -> Recovery:
    """The verdict on an exception out of a call to the SDK's client.

    Source: the table in the SDK's behaviour over stdio, SSE and Streamable HTTP of both protocol eras, measured with
    SDK 2.3.
    """
    if isinstance(error, MCPError):
        return _classify_mcp_error(error)
    if isinstance(error, ValidationError):
        return _GIVE_UP_RAN
    if isinstance(error, RuntimeError) and (type(error) is not RuntimeError or str(error).startswith(_OUTPUT_SCHEMA)):
        return _GIVE_UP_RAN
    return _GIVE_UP_MAYBE


def _classify_mcp_error(error: MCPError) -> Recovery:
    code, message, data = error.code, error.message[:_LOOKED_AT].lower(), _data_of(error)
    if code == SESSION_FORGOTTEN:
        return _NEW
    if code == TRANSPORT_DOWN:
        if data.get("tls"):
            return _GIVE_UP
        return _SAME if data.get("never_sent") else _SAME_MAYBE
    if code == HTTP_STATUS:
        return _classify_status(data.get("status"), asks_to_wait=retry_after_s(error) is not None)
    if code in (AUTH_FAILED, NOT_SENT):
        return _GIVE_UP
    if code == CONNECTION_CLOSED and message == "connection closed":
        return _NEW_MAYBE
    if code == CONNECTION_CLOSED and message.startswith("sse stream ended"):
        return _SAME_MAYBE
    if code == REQUEST_TIMEOUT and message.startswith("request '") and message.endswith("' timed out"):
        return _GIVE_UP_MAYBE
    # What is left is an answer: too large, unreadable, or an error of the server's own.
    return _GIVE_UP_RAN


def _classify_status(status: Any, *, asks_to_wait: bool) -> Recovery:
    if status == _TOO_MANY_REQUESTS or (status == _UNAVAILABLE and asks_to_wait):
        return _SAME
    if status in _TOOK_TOO_LONG:
        return _GIVE_UP_MAYBE
    if isinstance(status, int) and status >= _FIRST_SERVER_STATUS and status not in _NOT_IMPLEMENTED:
        # Also a 503 that asks nothing: gateways answer so when the server dies with the request in its hands.
        return _SAME_MAYBE
    return _GIVE_UP


def is_transient(error: BaseException) -> bool:
    """Whether a server that could not be connected for this reason may be there a moment later. One that took all of
    `connect_s` was given its time.
    """
    return isinstance(error, MCPError) and classify_error(error).action is not Action.NO_RETRY


def is_out_of_reach(error: BaseException) -> bool:
    """Whether nobody answered. A server that refuses, or that somebody says of that it is not well, answers soon; a
    configuration that is wrong needs no server to say so.
    """
    if isinstance(error, MCPError):
        return error.code in (TRANSPORT_DOWN, CONNECTION_CLOSED) and classify_error(error).action is not Action.NO_RETRY
    return not isinstance(error, ConfigError)


def retry_after_s(error: BaseException) -> float | None:
    """Seconds from now until the server wants to be asked again, if it said so."""
    value = _data_of(error).get("retry_after") if isinstance(error, MCPError) else None
    if not isinstance(value, str):
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):  # a date that is none, without a time zone, or in another era
        return None


def _data_of(error: MCPError) -> dict[str, Any]:
    found: Any = error.data
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
