"""The error texts for a call that was sent and got no result: what happened, whether the tool ran, what to do next.

Models read them. What a failure means is decided in `recovery`; a call that got no session is in `connection_errors`.
"""

from mcp import MCPError
from pydantic import ValidationError

from tarsy_tasks.errors import CallError
from tarsy_tasks.masking.masked_text import MaskedText
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.recovery import CONNECTION_CLOSED, REQUEST_TIMEOUT, Action, Executed, Recovery, data_of
from tarsy_tasks.worker.transport.transport_errors import HTTP_STATUS, MESSAGE_TOO_LARGE, NOT_SENT, UNREADABLE_ANSWER

__all__ = ["call_error", "describe_error", "lost_error", "timeout_error"]

_UNAUTHORIZED, _CONTENT_TOO_LARGE = 401, 413
_DESCRIBED_CHARS = 2000
_STATUS_CHARS, _REFUSAL_CHARS = 300, 500
"""Of an answer that is not JSON-RPC, the start of its body is enough."""
_LOOK_FIRST = "Check its effects before you call it again."


def call_error(
    error: Exception,
    recovery: Recovery,
    server: str,
    tool: str,
    timeout_s: float,
    session_end: str,
    masker: Masker,
    sign_in: str = "",
) -> CallError:
    """The answer to a call that failed.

    Args:
        session_end: From `ConnectionErrors.describe_end`.
        sign_in: From `ConnectionErrors.find_sign_in`.
    """
    name = f"{server}.{tool}"
    what = describe_error(error, masker)
    code, message = (error.code, error.message) if isinstance(error, MCPError) else (None, "")
    if recovery.executed is Executed.MAYBE:
        if code == REQUEST_TIMEOUT:
            return timeout_error(server, tool, timeout_s)
        return lost_error(server, tool, f"{what}.{session_end}")
    if recovery.executed is Executed.NO:
        refused = recovery.action is Action.NO_RETRY
        return _error(
            ErrorCode.SERVER_REFUSED if refused else ErrorCode.SERVER_UNAVAILABLE,
            f"MCP server `{server}` did not accept the call: {what}. `{name}` did not run.{session_end} "
            + (_refusal_remedy(error, sign_in) if refused else "Try again later, or continue without it."),
        )
    is_broken_stream = code == CONNECTION_CLOSED and message.startswith("SSE stream failed")
    if code == MESSAGE_TOO_LARGE or (is_broken_stream and "limit" in message):  # nothing else shows it for a stream
        return _error(
            ErrorCode.RESULT_TOO_LARGE,
            f"`{name}` ran, but {what}. Its answer was dropped. Ask for less: a filter, a limit or a page.",
        )
    if code not in (None, UNREADABLE_ANSWER) and not is_broken_stream:
        return _error(
            ErrorCode.SERVER_ERROR,
            f"MCP server `{server}` answered `{name}` with an error: {what}. "
            "It gave no result, but may have done part of its work. The same call will most likely fail again: "
            "change it, or continue without it.",
        )
    return _error(
        ErrorCode.INVALID_RESULT,
        f"`{name}` ran, but its answer cannot be used: {what}. Do not repeat it unless running it twice is harmless.",
    )


def lost_error(server: str, tool: str, what: str, *, again: bool = False) -> CallError:
    """The answer to a call that was sent and lost; with `again`, `what` is why it could not be sent again."""
    failed = ", and the call could not be sent again" if again else ""
    return _error(
        ErrorCode.SESSION_LOST,
        f"The connection to MCP server `{server}` was lost before `{server}.{tool}` answered{failed}: "
        f"{what.rstrip('.')}. The tool may have run. {_LOOK_FIRST}",
    )


def timeout_error(server: str, tool: str, timeout_s: float) -> CallError:
    """The answer to a call that was sent and not answered in time."""
    return _error(
        ErrorCode.CALL_TIMEOUT,
        f"`{server}.{tool}` gave no answer within {timeout_s:.3g} s. It may have run. {_LOOK_FIRST}",
    )


def _error(code: ErrorCode, text: str) -> CallError:
    """An error whose parts are masked already, or our own."""
    return CallError(code, MaskedText(text))


def _refusal_remedy(error: Exception, sign_in: str) -> str:
    data = data_of(error) if isinstance(error, MCPError) else {}
    if isinstance(error, MCPError) and (error.code == NOT_SENT or data.get("status") == _CONTENT_TOO_LARGE):
        return "Call it again with fewer or other arguments."
    if data.get("status") == _UNAUTHORIZED:
        what = f"sign in again (`{sign_in}`)" if sign_in else "set or correct `auth` of the server"
        return f"An operator must {what}; continue without it."
    if "scope" in data:
        what = f"have it granted (`{sign_in}`, or `scopes` of its `auth`)" if sign_in else "give it one that has it"
        return f"Its access token lacks a scope: an operator can {what}; continue without it."
    return "An operator must fix this; continue without it."


def describe_error(error: BaseException, masker: Masker) -> str:
    """What went wrong, masked and bounded, for a text or a log line; without a full stop."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        found = masker.mask_start(f"{'.'.join(map(str, first['loc']))}: {first['msg']}", _DESCRIBED_CHARS)
        return f"it is not a valid MCP result ({found})"
    if isinstance(error, MCPError):
        is_refusal = data_of(error).get("status") == _UNAUTHORIZED  # it also says what it asks for
        status_chars = _REFUSAL_CHARS if is_refusal else _STATUS_CHARS
        limit = status_chars if error.code == HTTP_STATUS else _DESCRIBED_CHARS
        return masker.mask_start(error.message, limit).rstrip(".") + (
            f" (code {error.code})" if -32768 <= error.code <= -32000 else ""
        )
    return f"{type(error).__name__}: {masker.mask_start(str(error), _DESCRIBED_CHARS)}".rstrip(": .")
