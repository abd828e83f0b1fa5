"""JSON-RPC errors that our own transports put in place of an answer.

Owns the error codes for what only a transport knows and the SDK would drop or fail on: that a request was never sent,
the HTTP status, that an answer was too large. The codes are outside the ranges that JSON-RPC and MCP use.
"""

import re
import ssl
from typing import Any

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth
from mcp_types import PARSE_ERROR, ErrorData

from tarsy_tasks.oauth.endpoint import CredentialsError

__all__ = [
    "AUTH_FAILED",
    "HTTP_STATUS",
    "MESSAGE_TOO_LARGE",
    "NOT_SENT",
    "SESSION_FORGOTTEN",
    "TRANSPORT_DOWN",
    "UNREADABLE_ANSWER",
    "TooManyError",
    "credentials_missing",
    "http_status",
    "message_too_large",
    "not_json_rpc",
    "too_many",
    "transport_down",
]

TRANSPORT_DOWN = -31990
"""The HTTP exchange failed. `data["never_sent"]` is true if the request cannot have reached the server, and
`data["tls"]` is true, else absent, if this configuration allows no TLS connection.
"""
HTTP_STATUS = -31991
"""The server answered with `data["status"]` and no JSON-RPC body; `data["retry_after"]` is that header, and
`data["scope"]` what an access token would have to be granted.
"""
AUTH_FAILED = -31992
"""Authorisation failed before the request was sent."""
MESSAGE_TOO_LARGE = -31993
"""The answer is larger than `max_message_bytes`, or has too many values: the tool has run, its answer was dropped."""
UNREADABLE_ANSWER = -31994
"""The answer is JSON-RPC that cannot be parsed: the tool has run."""
NOT_SENT = -31995
"""The request could not be written as JSON."""
SESSION_FORGOTTEN = -31996
"""The server does not know the session any more; the tool did not run."""

_NEVER_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
)
_TRANSIENT_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""The server closed the connection, as it does when it restarts; the certificate may be valid."""
_ASKED_CHARS = 200
_PLAIN_SCOPES = re.compile(r"[\w.:/+-]+(?: [\w.:/+-]+)*", re.ASCII)
_KEPT_BODY_BYTES = 5000
"""More than is shown, because it is masked before it is cut."""


def credentials_missing(error: CredentialsError) -> ErrorData:
    """The error for a request that was not sent because it has no credentials."""
    if error.is_transient:
        data: dict[str, Any] = {"kind": type(error).__name__, "never_sent": True}
        return ErrorData(code=TRANSPORT_DOWN, message=error.text, data=data)
    return ErrorData(code=AUTH_FAILED, message=error.text)


def message_too_large(size_bytes: int | None, limit_bytes: int) -> ErrorData:
    """The error for an answer above the limit; `size_bytes` None: reading stopped at the limit."""
    found = f"{size_bytes} bytes" if size_bytes is not None else "more than that"
    data: dict[str, Any] = {"limit_bytes": limit_bytes, "size_bytes": size_bytes}
    return ErrorData(
        code=MESSAGE_TOO_LARGE,
        message=f"the answer is larger than max_message_bytes ({limit_bytes} bytes): {found}",
        data=data,
    )


def not_json_rpc(text: bytes) -> ErrorData:
    """The error for an answer that is something else, with the start of it."""
    return ErrorData(code=PARSE_ERROR, message=f"its answer is not JSON-RPC: {_excerpt(text) or 'it is empty'}")


class TooManyError(Exception):
    """A message has too many values; the text continues a sentence that begins with "it has"."""


def too_many(error: TooManyError) -> ErrorData:
    """The error for an answer with more values than a worker handles."""
    return ErrorData(code=MESSAGE_TOO_LARGE, message=f"the answer has {error}")


def transport_down(error: Exception) -> ErrorData:
    """The error for an exchange that failed without an answer."""
    message = f"{type(error).__name__}: {error}".rstrip(": ")
    data: dict[str, Any] = {"kind": type(error).__name__, "never_sent": isinstance(error, _NEVER_SENT)}
    if isinstance(error, httpx2.ConnectError) and (cause := _tls_cause(error)) is not None:
        data["tls"] = True
        message = f"no TLS connection: {cause}"
    return ErrorData(code=TRANSPORT_DOWN, message=message, data=data)


def _tls_cause(error: BaseException) -> ssl.SSLError | None:
    """Why TLS is impossible, if it is: a certificate, a protocol version, a server that uses plain HTTP."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _TRANSIENT_TLS):
            return cause
        cause = cause.__cause__ or cause.__context__
    return None


def http_status(response: httpx2.Response, body: bytes, note: str = "") -> ErrorData:
    """The error for an answer that is not JSON-RPC, with the start of its body."""
    excerpt = _excerpt(body)
    asked = response.headers.get("www-authenticate", "")[:_ASKED_CHARS] if response.status_code == 401 else ""
    note += f" (it asks for {asked!r})" if asked else ""
    status = f"HTTP {response.status_code} {response.reason_phrase}".strip() + note
    return ErrorData(
        code=HTTP_STATUS,
        message=status + (f": {excerpt}" if excerpt else ""),
        data={"status": response.status_code, "retry_after": response.headers.get("retry-after")} | _missing(response),
    )


def _missing(response: httpx2.Response) -> dict[str, Any]:
    """The scope that a token lacks (RFC 6750), if the server says so: people type it into a shell."""
    if response.status_code != 403 or extract_field_from_www_auth(response, "error") != "insufficient_scope":
        return {}
    scope = extract_scope_from_www_auth(response) or ""
    return {"scope": scope if len(scope) <= _ASKED_CHARS and _PLAIN_SCOPES.fullmatch(scope) else ""}


def _excerpt(body: bytes) -> str:
    return body[:_KEPT_BODY_BYTES].decode("utf-8", "replace").strip()
