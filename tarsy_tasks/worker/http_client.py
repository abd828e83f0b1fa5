"""HTTP client that an MCP session survives.

Owns the one override that the project needs: `send` never raises for a POST of the SDK's transport and never hands it
an unbounded or bodiless answer. An exception there kills the whole `Client` (python-sdk #915, #3522), and a bare status
loses its number and its Retry-After. Both come back as a JSON-RPC error instead, which fails that one request; when it
is the probe for the 2026 era, the handshake fails with it. It knows no sessions.
"""

import json
import ssl
from functools import cache
from typing import Any, cast

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp_types import ErrorData

from tarsy_tasks.worker.transport_errors import AUTH_FAILED, HTTP_STATUS, TRANSPORT_DOWN, message_too_large

__all__ = ["SurvivableClient", "ssl_context"]

_NOTIFICATION_TIMEOUT_S = 5.0
"""The SDK posts notifications in its writer loop: one that is answered slowly would delay every call behind it."""
_NEVER_SENT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
)
_NO_ERA_STATUSES = (401, 429, 503)
_KEPT_BODY = 200
_ID_WITHIN = 64
"""The SDK writes `jsonrpc` and then `id`, so the begin of a body tells a request from a notification without parsing
it.
"""
_PROBE, _HANDSHAKE = b'"method":"server/discover"', b'"method":"initialize"'
_BODY_HEADERS = frozenset({"content-type", "content-length", "content-encoding", "transfer-encoding"})


@cache
def ssl_context(*, verify: bool, ca_file: str | None) -> ssl.SSLContext:
    """The TLS context for these settings, made once a process: building one blocks the loop for 20 ms.

    Raises:
        OSError: `ca_file` cannot be read, or is no certificate.
    """
    if not verify:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    return httpx2.create_ssl_context()


class SurvivableClient(httpx2.AsyncClient):
    """An `AsyncClient` whose POSTs of JSON-RPC fail one request at a time.

    Args:
        max_message_bytes: Largest JSON answer that is read. (Of an event stream the SDK bounds each event.)
        options: As for `httpx2.AsyncClient`.
    """

    def __init__(self, *, max_message_bytes: int, **options: Any) -> None:
        super().__init__(**options)
        self._max_message_bytes = max_message_bytes
        self._outage: ErrorData | None = None

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method != "POST" or not request.headers.get("content-type", "").startswith("application/json"):
            return await super().send(request, **options)
        if b'"id"' not in request.content[:_ID_WITHIN]:
            return await self._send_notification(request, **options)
        if self._outage is not None and _HANDSHAKE in request.content[:_ID_WITHIN]:
            # The SDK takes every failure of its probe for the sign of an older server; an outage is none.
            return _error_response(request, 503, self._outage)
        try:
            response = await super().send(request, **options)
            if response.status_code < 400 and not _is_json(response):
                return response
            body = await self._read(response)
        except OAuthFlowError as error:
            return self._fail(request, 401, ErrorData(code=AUTH_FAILED, message=f"{type(error).__name__}: {error}"))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return self._fail(request, 503, _transport_error(error))
        if body is None and response.status_code < 400:
            return _error_response(request, 502, message_too_large(None, self._max_message_bytes))
        body = body or b""
        is_answer = response.status_code < 400 or isinstance(_parse_object(body).get("error"), dict)
        # 404 under a session id is the SDK's to read: it means that the server has forgotten the session.
        if is_answer or (response.status_code == 404 and "mcp-session-id" in request.headers):
            headers = [(name, value) for name, value in response.headers.multi_items() if name != "content-encoding"]
            return httpx2.Response(response.status_code, headers=headers, content=body, request=request)
        return self._fail(request, response.status_code, _status_error(response, body), response.headers)

    def _fail(
        self, request: httpx2.Request, status: int, error: ErrorData, headers: httpx2.Headers | None = None
    ) -> httpx2.Response:
        if _PROBE in request.content[:_ID_WITHIN] and _says_nothing_of_era(error):
            self._outage = error
        return _error_response(request, status, error, headers)

    async def _send_notification(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        request.extensions = {**request.extensions, "timeout": httpx2.Timeout(_NOTIFICATION_TIMEOUT_S).as_dict()}
        try:
            return await super().send(request, **options)
        except httpx2.HTTPError:
            # Nobody waits for an answer to a notification, and the request that comes next will meet the same failure.
            return httpx2.Response(202, request=request)

    async def _read(self, response: httpx2.Response) -> bytes | None:
        """The whole body, or None if it is larger than the limit."""
        pieces: list[bytes] = []
        size = 0
        try:
            async for piece in response.aiter_bytes():
                size += len(piece)
                if size > self._max_message_bytes:
                    return None
                pieces.append(piece)
        finally:
            await response.aclose()
        return b"".join(pieces)


def _is_json(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("application/json")


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _says_nothing_of_era(error: ErrorData) -> bool:
    """Whether a request failed before the server, or what stands before it, looked at its method."""
    data: dict[str, Any] = error.data or {}
    return error.code == AUTH_FAILED or data.get("never_sent") is True or data.get("status") in _NO_ERA_STATUSES


def _transport_error(error: Exception) -> ErrorData:
    never_sent = isinstance(error, (*_NEVER_SENT, httpx2.InvalidURL))
    return ErrorData(
        code=TRANSPORT_DOWN,
        message=f"{type(error).__name__}: {error}".rstrip(": "),
        data={"kind": type(error).__name__, "never_sent": never_sent, "tls": _is_tls_refusal(error)},
    )


def _is_tls_refusal(error: BaseException) -> bool:
    """Whether the two sides will never agree on TLS, rather than one of them having hung up meanwhile."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)


def _status_error(response: httpx2.Response, body: bytes) -> ErrorData:
    excerpt = body[:_KEPT_BODY].decode("utf-8", "replace").strip()
    return ErrorData(
        code=HTTP_STATUS,
        message=f"HTTP {response.status_code} {response.reason_phrase}".strip() + (f": {excerpt}" if excerpt else ""),
        data={"status": response.status_code, "retry_after": response.headers.get("retry-after")},
    )


def _error_response(
    request: httpx2.Request, status: int, error: ErrorData, headers: httpx2.Headers | None = None
) -> httpx2.Response:
    """A reply that fails only this request: from status 400 on, the SDK reads a JSON-RPC error from the body."""
    kept = [(name, value) for name, value in (headers or httpx2.Headers()).multi_items() if name not in _BODY_HEADERS]
    content = {"jsonrpc": "2.0", "id": None, "error": error.model_dump(exclude_none=True)}
    return httpx2.Response(status, headers=kept, json=content, request=request)
