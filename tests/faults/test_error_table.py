"""The recovery table row by row, and that the SDK has no exception and no error code that it does not know."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import ModuleType
from typing import Any

import anyio
import httpx2
import mcp.client
import mcp.shared
import mcp_types
import pytest
from mcp import MCPError
from pydantic import TypeAdapter, ValidationError

from tarsy_tasks.worker.sessions.recovery import Action, Executed, classify_error, is_transient, retry_after_s
from tarsy_tasks.worker.transport import transport_errors

NO, SAME, NEW = Action.NO_RETRY, Action.RETRY_SAME_SESSION, Action.RETRY_NEW_SESSION
DID_NOT, MAYBE, RAN = Executed.NO, Executed.MAYBE, Executed.YES
DOWN, STATUS = transport_errors.TRANSPORT_DOWN, transport_errors.HTTP_STATUS

TABLE: list[tuple[int, str, Any, Action, Executed]] = [
    # The session, or what carries it, is gone.
    (-32000, "Connection closed", None, NEW, MAYBE),
    (-32000, "SSE stream ended without a response", None, SAME, MAYBE),
    (-32000, "SSE stream ended and reconnection attempts were exhausted", None, SAME, MAYBE),
    (-32000, "SSE stream failed: event exceeds the size limit", None, NO, RAN),
    # The server does not know the session id; the transport has seen that it did not even look at the request.
    (transport_errors.SESSION_FORGOTTEN, "session not found: HTTP 404", None, NEW, DID_NOT),
    # Time ran out.
    (-32001, "Request 'tools/call' timed out", None, NO, MAYBE),
    (-32001, "Request timed out", None, NO, RAN),
    # The HTTP exchange failed.
    (DOWN, "ConnectError: refused", {"never_sent": True}, SAME, DID_NOT),
    (DOWN, "ReadError", {"never_sent": False}, SAME, MAYBE),
    (DOWN, "RemoteProtocolError: Server disconnected", {"never_sent": False, "tls": False}, SAME, MAYBE),
    (DOWN, "ConnectError: CERTIFICATE_VERIFY_FAILED", {"never_sent": True, "tls": True}, NO, DID_NOT),
    (DOWN, "something", None, SAME, MAYBE),
    (transport_errors.AUTH_FAILED, "OAuthFlowError: no", None, NO, DID_NOT),
    (transport_errors.NOT_SENT, "the request cannot be written as JSON", None, NO, DID_NOT),
    (transport_errors.MESSAGE_TOO_LARGE, "the answer is larger", {"limit_bytes": 1}, NO, RAN),
    (transport_errors.UNREADABLE_ANSWER, "it cannot be read", None, NO, RAN),
    # A status without a JSON-RPC body.
    *[(STATUS, f"HTTP {status}", {"status": status}, NO, DID_NOT) for status in (400, 401, 403, 404, 405, 413, 501)],
    *[(STATUS, f"HTTP {status}", {"status": status}, SAME, MAYBE) for status in (500, 502, 503, 507, 520)],
    *[(STATUS, f"HTTP {status}", {"status": status}, NO, MAYBE) for status in (408, 499, 504, 522, 524)],
    *[(STATUS, "", {"status": status, "retry_after": "1"}, SAME, DID_NOT) for status in (429, 503)],
    (STATUS, "HTTP 429", {"status": 429}, SAME, DID_NOT),
    (STATUS, "HTTP 502", {"status": 502, "retry_after": "1"}, SAME, MAYBE),
    (STATUS, "HTTP ?", None, NO, DID_NOT),
    # An answer of the server's own is never asked for twice, whatever its words.
    *[
        (code, words, None, NO, RAN)
        for code in (-32000, -32001, -32600)
        for words in ("Session not found", "x" * 10**6)
    ],
    (-32600, "Session terminated", None, NO, RAN),
    (-32000, "Bad Request: No valid session ID provided", None, NO, RAN),
    (-32602, "Invalid params", None, NO, RAN),
    (-32601, "Method not found", None, NO, RAN),
    (-32601, "Not Found", None, NO, RAN),
    (-32700, "Failed to parse JSON response", None, NO, RAN),
    (-32603, "Internal error", None, NO, RAN),
    (-32603, "connection refused", None, NO, RAN),
    (-32603, "Connection closed", None, NO, RAN),
    (-32603, "Session not found", None, NO, RAN),
    (-32603, "session not found in database", None, NO, RAN),
    (-32602, "Session terminated", None, NO, RAN),
    *[(code, "session not found in database", None, NO, RAN) for code in (-32000, -32001, -32600)],
    *[(code, "Session not found: no rows in table", None, NO, RAN) for code in (-32000, -32001, -32600)],
    (-32000, "connection refused", None, NO, RAN),
    (-32000, "the database closed: Connection closed", None, NO, RAN),
    (-32001, "the query timed out", None, NO, RAN),
    (-32001, "connection refused", None, NO, RAN),
    (-32600, "Unsupported protocol version", None, NO, RAN),
    (-32600, "no such table: session terminated", None, NO, RAN),
    (-32099, "rate limit: timed out", None, NO, RAN),
    (500, "HTTP 503", {"status": 503}, NO, RAN),
    (0, "", None, NO, RAN),
]


@pytest.mark.parametrize(("code", "message", "data", "action", "executed"), TABLE)
def test_each_row_of_the_table(code: int, message: str, data: Any, action: Action, executed: Executed) -> None:
    recovery = classify_error(MCPError(code, message, data))
    assert (recovery.action, recovery.executed) == (action, executed)


def invalid_result() -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python("no number")
    return caught.value


@pytest.mark.parametrize(
    ("error", "action", "executed"),
    [
        (invalid_result(), NO, RAN),
        (RuntimeError("Client must be used within an async context manager"), NO, MAYBE),
        (TimeoutError(), NO, MAYBE),
        (anyio.ClosedResourceError(), NO, MAYBE),
        (anyio.BrokenResourceError(), NO, MAYBE),
        (httpx2.ConnectError("refused"), NO, MAYBE),
        (OSError("a bad day"), NO, MAYBE),
        (KeyError("a bug"), NO, MAYBE),
    ],
)
def test_an_error_outside_the_protocol_is_never_retried(error: Exception, action: Action, executed: Executed) -> None:
    recovery = classify_error(error)
    assert (recovery.action, recovery.executed) == (action, executed)
    assert not is_transient(error)


@pytest.mark.parametrize("code", [DOWN, STATUS, -32000, -32001, -32600, 0])
@pytest.mark.parametrize("data", ["text", ["list"], 7, True, {"status": "503"}, {"status": [429]}, {"retry_after": 3}])
def test_data_of_any_shape_is_survived(code: int, data: Any) -> None:
    error = MCPError(code, "whatever", data)
    assert classify_error(error).action in Action
    assert retry_after_s(error) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("-1", None),
        ("7.5", None),
        ("soon", None),
        ("Wed, 21 Oct 99999999999 07:28:00 GMT", None),
        ("", None),
        ("٧", None),
        (None, None),
    ],
)
def test_retry_after_in_seconds(value: str | None, expected: float | None) -> None:
    assert retry_after_s(MCPError(STATUS, "HTTP 503", {"status": 503, "retry_after": value})) == expected


@pytest.mark.parametrize(("ahead_s", "expected"), [(90, 90), (-90, 0)])
def test_retry_after_as_a_date(ahead_s: int, expected: float) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead_s), usegmt=True)
    found = retry_after_s(MCPError(STATUS, "HTTP 429", {"status": 429, "retry_after": date}))
    assert found == pytest.approx(expected, abs=2)


def test_retry_after_without_a_time_zone_is_none() -> None:
    data = {"status": 429, "retry_after": "Wed, 21 Oct 2026 07:28:00"}
    assert retry_after_s(MCPError(STATUS, "HTTP 429", data)) is None


KNOWN_EXCEPTIONS: dict[str, tuple[Action, Executed]] = {
    "mcp.client._input_required.InputRequiredRoundsExceededError": (NO, RAN),
    "mcp.client.auth.exceptions.OAuthFlowError": (NO, MAYBE),
    "mcp.client.auth.exceptions.OAuthRegistrationError": (NO, MAYBE),
    "mcp.client.auth.exceptions.OAuthTokenError": (NO, MAYBE),
    "mcp.client.extension.UnexpectedClaimedResult": (NO, RAN),
    "mcp.client.streamable_http.ResumptionError": (NO, MAYBE),
    "mcp.client.streamable_http.StreamableHTTPError": (NO, MAYBE),
    "mcp.client.subscriptions.ListenNotSupportedError": (NO, RAN),
    "mcp.client.subscriptions.SubscriptionLost": (NO, RAN),
    "mcp.shared.auth.InvalidRedirectUriError": (NO, MAYBE),
    "mcp.shared.auth.InvalidScopeError": (NO, MAYBE),
    "mcp.shared.exceptions.MCPDeprecationWarning": (NO, MAYBE),
    "mcp.shared.exceptions.MCPError": (NO, RAN),
    "mcp.shared.exceptions.NoBackChannelError": (NO, RAN),
    "mcp.shared.exceptions.UrlElicitationRequiredError": (NO, RAN),
    "mcp.shared.path_security.PathEscapeError": (NO, MAYBE),
    "mcp.shared.uri_template.InvalidUriTemplate": (NO, MAYBE),
}
"""Every exception of the SDK's client, and the verdict on it (of an `MCPError`: with a code that means nothing)."""

KNOWN_CODES: dict[str, tuple[int, Action, Executed]] = {
    "CONNECTION_CLOSED": (-32000, NO, RAN),
    "HEADER_MISMATCH": (-32020, NO, RAN),
    "INTERNAL_ERROR": (-32603, NO, RAN),
    "INVALID_PARAMS": (-32602, NO, RAN),
    "INVALID_REQUEST": (-32600, NO, RAN),
    "METHOD_NOT_FOUND": (-32601, NO, RAN),
    "MISSING_REQUIRED_CLIENT_CAPABILITY": (-32021, NO, RAN),
    "PARSE_ERROR": (-32700, NO, RAN),
    "REQUEST_TIMEOUT": (-32001, NO, RAN),
    "UNSUPPORTED_PROTOCOL_VERSION": (-32022, NO, RAN),
    "URL_ELICITATION_REQUIRED": (-32042, NO, RAN),
}
"""Every error code that the SDK has a name for, and the verdict on it under a message of no meaning."""


def modules_of(*packages: ModuleType) -> Iterator[ModuleType]:
    for package in packages:
        yield package
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def sdk_exceptions() -> dict[str, type[Exception]]:
    return {
        f"{value.__module__}.{value.__qualname__}": value
        for module in modules_of(mcp.client, mcp.shared, mcp_types)
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, BaseException)
        if value.__module__.partition(".")[0] in ("mcp", "mcp_types")
    }


def test_the_sdk_has_no_exception_that_the_table_does_not_know() -> None:
    assert sdk_exceptions().keys() == KNOWN_EXCEPTIONS.keys()


@pytest.mark.parametrize(("name", "verdict"), KNOWN_EXCEPTIONS.items())
def test_each_exception_of_the_sdk_has_its_verdict(name: str, verdict: tuple[Action, Executed]) -> None:
    # Their constructors differ; what classifies them is their type.
    kind = sdk_exceptions()[name]
    error = kind.__new__(kind)
    if isinstance(error, MCPError):
        MCPError.__init__(error, 1, "words without a meaning")
    recovery = classify_error(error)
    assert (recovery.action, recovery.executed) == verdict


def test_the_sdk_has_no_error_code_that_the_table_does_not_know() -> None:
    codes = {
        name: value
        for module in modules_of(mcp_types)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, int) and -32768 <= value <= -32000
    }
    assert codes == {name: code for name, (code, _, _) in KNOWN_CODES.items()}
    ours = {getattr(transport_errors, name) for name in transport_errors.__all__ if name.isupper()}
    assert ours.isdisjoint(codes.values())


@pytest.mark.parametrize(("code", "action", "executed"), KNOWN_CODES.values(), ids=KNOWN_CODES.keys())
def test_each_code_of_the_sdk_has_its_verdict(code: int, action: Action, executed: Executed) -> None:
    recovery = classify_error(MCPError(code, "words without a meaning"))
    assert (recovery.action, recovery.executed) == (action, executed)
