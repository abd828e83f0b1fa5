"""What a failure of an MCP session means: may the call be sent again, over which session, and did the tool run.

Owns the one table from exception to `Recovery`; `invocation` acts on it, and `call_errors` has the texts. Servers and
the SDK use the same codes of `MCPError` for different failures, so the table also looks at the SDK's own messages.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, cast

from mcp import MCPError
from pydantic import ValidationError

from tarsy_tasks.broker.limit_counters import LONGEST_PAUSE_S
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
    "asks_to_wait",
    "classify_error",
    "data_of",
    "is_out_of_reach",
    "is_transient",
    "pause_of",
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
"""The server, or a proxy before it, did not wait any longer."""
_NOT_IMPLEMENTED = (501, 505)
_FIRST_SERVER_STATUS = 500
_PAUSE_S = 1.0
"""Without Retry-After."""
_SEARCHED_CHARS = 200
"""Of a message; a server's own may be megabytes long."""


def classify_error(error: BaseException) -> Recovery:
    """The verdict on an exception of the SDK's client.

    Source: measured with SDK 2.3 over stdio, SSE and Streamable HTTP, in both protocol eras.
    """
    if isinstance(error, MCPError):
        return _classify_mcp_error(error)
    # Of the SDK's own kinds of RuntimeError each is about a result.
    ran = isinstance(error, ValidationError) or (isinstance(error, RuntimeError) and type(error) is not RuntimeError)
    return _GIVE_UP_RAN if ran else _GIVE_UP_MAYBE


def _classify_mcp_error(error: MCPError) -> Recovery:
    code, message, data = error.code, error.message[:_SEARCHED_CHARS].lower(), data_of(error)
    if code == SESSION_FORGOTTEN:
        return _NEW
    if code in (AUTH_FAILED, NOT_SENT) or (code == TRANSPORT_DOWN and data.get("tls")):
        return _GIVE_UP
    if code == TRANSPORT_DOWN:
        return _SAME if data.get("never_sent") else _SAME_MAYBE
    if code == HTTP_STATUS:
        return _classify_status(data.get("status"), asks_to_wait=retry_after_s(error) is not None)
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
        # Also a 503 without Retry-After: gateways send it when the server dies while it handles the request.
        return _SAME_MAYBE
    return _GIVE_UP


def is_transient(error: BaseException) -> bool:
    """Whether the server may be available in a moment. A timeout is not transient: it has already taken `connect_s`."""
    return isinstance(error, MCPError) and classify_error(error).action is not Action.NO_RETRY


def is_out_of_reach(error: BaseException) -> bool:
    """Whether there was no answer. A server that refuses, or a gateway that reports a failed one, answers soon; a wrong
    configuration is found without the server.
    """
    if isinstance(error, MCPError):
        return error.code in (TRANSPORT_DOWN, CONNECTION_CLOSED) and classify_error(error).action is not Action.NO_RETRY
    return not isinstance(error, ConfigError)


def asks_to_wait(error: BaseException | None) -> bool:
    """Whether the server answered that it is too busy, or has had enough for now."""
    if not isinstance(error, MCPError) or error.code != HTTP_STATUS:
        return False
    return data_of(error).get("status") == _TOO_MANY_REQUESTS or retry_after_s(error) is not None


def retry_after_s(error: BaseException) -> float | None:
    """Retry-After, in seconds from now; None if the server gave none."""
    value = data_of(error).get("retry_after") if isinstance(error, MCPError) else None
    if not isinstance(value, str):
        return None
    if value.strip().isascii() and value.strip().isdigit():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError, OverflowError):  # not a date, without a time zone, or out of range
        return None


def pause_of(error: BaseException) -> float | None:
    """For how many seconds nobody should send anything to the server; None if it does not ask for that."""
    if not isinstance(error, MCPError) or error.code != HTTP_STATUS:
        return None
    asked_s, status = retry_after_s(error), data_of(error).get("status")
    if status == _TOO_MANY_REQUESTS or (status == _UNAVAILABLE and asked_s is not None):
        return min(_PAUSE_S if asked_s is None else asked_s, LONGEST_PAUSE_S)
    return None


def data_of(error: MCPError) -> dict[str, Any]:
    """Its `data`, if that is an object."""
    found: Any = error.data
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
