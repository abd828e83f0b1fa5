"""HTTP client that an MCP session survives.

Owns the one override that the project needs: `send` never raises for a POST of the SDK's transport and never hands it
an unbounded or bodiless answer. An exception there kills the whole `Client` (python-sdk #915, #3522), and a bare status
loses its number and its Retry-After. Both come back as a JSON-RPC error instead, which fails that one request. It knows
no sessions.
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
_KEPT_BODY = 200
_ID_WITHIN = 64
"""The SDK writes `jsonrpc` and then `id`, so the begin of a body tells a request from a notification without parsing
it.
"""
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

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method != "POST" or not request.headers.get("content-type", "").startswith("application/json"):
            return await super().send(request, **options)
        if b'"id"' not in request.content[:_ID_WITHIN]:
            return await self._send_notification(request, **options)
        try:
            response = await super().send(request, **options)
            if response.status_code < 400 and not _is_json(response):
                return response
            body = await self._read(response)
        except OAuthFlowError as error:
            return _error_response(
                request, 401, ErrorData(code=AUTH_FAILED, message=f"{type(error).__name__}: {error}")
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return _error_response(request, 503, _transport_error(error))
        if body is None and response.status_code < 400:
            return _error_response(request, 502, message_too_large(None, self._max_message_bytes))
        body = body or b""
        is_answer = response.status_code < 400 or isinstance(_parse_object(body).get("error"), dict)
        # 404 under a session id is the SDK's to read: it means that the server has forgotten the session.
        if is_answer or (response.status_code == 404 and "mcp-session-id" in request.headers):
            headers = [(name, value) for name, value in response.headers.multi_items() if name != "content-encoding"]
            return httpx2.Response(response.status_code, headers=headers, content=body, request=request)
        return _error_response(request, response.status_code, _status_error(response, body), response.headers)

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


def _transport_error(error: Exception) -> ErrorData:
    never_sent = isinstance(error, (*_NEVER_SENT, httpx2.InvalidURL))
    return ErrorData(
        code=TRANSPORT_DOWN,
        message=f"{type(error).__name__}: {error}".rstrip(": "),
        data={"kind": type(error).__name__, "never_sent": never_sent},
    )


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
