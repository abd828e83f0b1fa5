"""What a failure of an MCP session means: may the call be sent again, over which session, and did the tool run.

Owns the one table from exception to `Recovery`, and the words that a model reads about it. It acts on nothing;
`sessions` does. Codes of `MCPError` are overloaded by servers and by the SDK, so the table also looks at the SDK's own
messages.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from mcp import MCPError
from pydantic import ValidationError

from tarsy_tasks.errors import CallError
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.transport_errors import (
    AUTH_FAILED,
    HTTP_STATUS,
    MESSAGE_TOO_LARGE,
    NOT_SENT,
    TRANSPORT_DOWN,
    UNREADABLE_ANSWER,
)

__all__ = ["Action", "Executed", "Recovery", "call_error", "classify_error"]


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

_REQUEST_TIMEOUT = -32001
_CONNECTION_CLOSED = -32000
_FORGOTTEN_SESSION = ("session terminated", "session not found")
_RETRIED_STATUSES = (429, 503)
_GATEWAY_STATUSES = (500, 502, 504)


def classify_error(error: BaseException) -> Recovery:
    """The verdict on an exception out of a call to the SDK's client.

    Source: the table in the SDK's behaviour over stdio and Streamable HTTP of both protocol eras, measured with SDK
    2.3.
    """
    if isinstance(error, MCPError):
        return _classify_mcp_error(error)
    if isinstance(error, TimeoutError):
        # Our own guard: the SDK's timeout starts only after the write, so the write itself is stuck.
        return _NEW_MAYBE
    if isinstance(error, ValidationError | RuntimeError):
        return _GIVE_UP_RAN
    return _GIVE_UP_MAYBE


def _classify_mcp_error(error: MCPError) -> Recovery:
    found: Any = error.data
    data = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    message = error.message.lower()
    if message.startswith(_FORGOTTEN_SESSION):
        return _NEW
    if error.code == TRANSPORT_DOWN:
        return _SAME if data.get("never_sent") else _SAME_MAYBE
    if error.code == HTTP_STATUS:
        status = data.get("status")
        if status in _RETRIED_STATUSES:
            return _SAME
        return _GIVE_UP_MAYBE if status in _GATEWAY_STATUSES else _GIVE_UP
    if error.code in (AUTH_FAILED, NOT_SENT):
        return _GIVE_UP
    if error.code in (MESSAGE_TOO_LARGE, UNREADABLE_ANSWER):
        return _GIVE_UP_RAN
    if error.code == _CONNECTION_CLOSED:
        if message.startswith("sse stream failed"):
            return _GIVE_UP_RAN
        return _SAME_MAYBE if message.startswith("sse stream ended") else _NEW_MAYBE
    if error.code == _REQUEST_TIMEOUT and message.endswith("timed out"):
        return _GIVE_UP_MAYBE
    return _GIVE_UP_RAN


def call_error(
    error: BaseException, recovery: Recovery, *, name: str, server: str, timeout_s: float, ending: str
) -> CallError:
    """The answer to a call that failed so: what happened, whether the tool ran, what to do.

    Args:
        name: Canonical name of the tool.
        ending: Why the session ended and the server's last words, empty when it lives.
    """
    if isinstance(error, TimeoutError) or (recovery is _GIVE_UP_MAYBE and _is_timeout(error)):
        return CallError(
            ErrorCode.CALL_TIMEOUT,
            f"`{name}` gave no answer within {timeout_s:.3g} s. It may have run. "
            "Look at its effects before you call it again.",
        )
    what = _describe(error)
    if isinstance(error, MCPError) and _is_too_large(error):
        return CallError(
            ErrorCode.RESULT_TOO_LARGE,
            f"`{name}` ran, but {what}. The answer was dropped. Ask for less: a filter, a limit or a page.",
        )
    if recovery.executed is Executed.NO:
        code = ErrorCode.SERVER_REFUSED if recovery is _GIVE_UP else ErrorCode.SERVER_UNAVAILABLE
        return CallError(
            code,
            f"MCP server `{server}` could not be asked: {what}. `{name}` did not run.{ending} "
            "Try again later, or do without it.",
        )
    if recovery.executed is Executed.MAYBE:
        return CallError(
            ErrorCode.SESSION_LOST,
            f"The connection to MCP server `{server}` was lost before `{name}` answered: {what}.{ending} "
            "It may have run. Look at its effects before you call it again.",
        )
    if isinstance(error, MCPError) and error.code not in (_CONNECTION_CLOSED, UNREADABLE_ANSWER):
        return CallError(
            ErrorCode.SERVER_ERROR,
            f"MCP server `{server}` answered `{name}` with an error: {what}. "
            "It gave no result, and the same call will most likely fail again.",
        )
    return CallError(
        ErrorCode.INVALID_RESULT,
        f"`{name}` ran, but its answer cannot be used: {what}. Do not repeat it unless running it twice is harmless.",
    )


def _is_too_large(error: MCPError) -> bool:
    """Whether the answer was above `max_message_bytes`; of an event stream the SDK says so in its own words."""
    return error.code == MESSAGE_TOO_LARGE or (
        error.code == _CONNECTION_CLOSED and error.message.startswith("SSE stream failed") and "limit" in error.message
    )


def _is_timeout(error: BaseException) -> bool:
    return isinstance(error, MCPError) and error.code == _REQUEST_TIMEOUT


def _describe(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"it is no valid MCP result ({'.'.join(map(str, first['loc']))}: {first['msg']})"
    if isinstance(error, MCPError):
        return error.message.rstrip(".") + (f" (code {error.code})" if -32768 <= error.code <= -32000 else "")
    return (str(error) or type(error).__name__).rstrip(".")
