"""HTTP client whose failures end one request and not the whole MCP session.

Owns one override: `send` never raises for a POST of JSON-RPC, and never returns an unbounded or empty answer, nor more
unasked events than the event loop can handle. An exception there ends the SDK's `Client` (python-sdk #915, #3522), and
of a bare status the SDK drops the number and Retry-After. Both become a JSON-RPC error, which fails that one request;
if it was the probe for the 2026 era, the handshake fails too. It sends to one origin only, because every request
carries that server's credentials. It knows no sessions.
"""

import re
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from typing import Any, cast

import httpx2
from mcp_types import ErrorData, JSONRPCError

from tarsy_tasks.worker.transport.credentials import Credentials
from tarsy_tasks.worker.transport.events import Event, EventReader
from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.http_bodies import error_of, is_event_stream, is_json, read_body
from tarsy_tasks.worker.transport.lines import LongLine
from tarsy_tasks.worker.transport.messages import parse_message
from tarsy_tasks.worker.transport.transport_errors import (
    AUTH_FAILED,
    SESSION_FORGOTTEN,
    CredentialsError,
    credentials_missing,
    http_status,
    message_too_large,
    transport_down,
)

__all__ = ["SurvivableClient", "is_same_origin", "send_within_origin", "ssl_context"]

_NOTIFICATION_TIMEOUT_S = 5.0
"""The SDK posts notifications in its writer loop: a slow answer delays every call behind it."""
_NO_ERA_STATUSES = (401, 429, 503)
_BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND = 400, 401, 404
_FORGOTTEN_SESSION = re.compile(
    r"(bad request: )?"
    r"(session (terminated|not found|expired)|(no valid|unknown|invalid( or missing)?) session( id)?( provided)?"
    r"|server not initialized)"
    r"(: ?[\w-]+)?[.!]?"
)
"""The messages of the SDKs for an unknown session id."""
_ID_WITHIN = 64
"""The SDK writes `jsonrpc` and then `id`, so the start of a body shows whether it is a request or a notification."""
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, seconds, probes: a stream may be silent for days, but a lost peer must be noticed."""
_PROBE, _HANDSHAKE = b'"method":"server/discover"', b'"method":"initialize"'
_BODY_HEADERS = frozenset({"content-type", "content-length", "content-encoding", "transfer-encoding"})


@cache
def ssl_context(*, verify: bool, ca_file: str | None) -> ssl.SSLContext:
    """The TLS context for these settings, built once per process: that blocks the loop for 20 ms.

    Raises:
        OSError: `ca_file` cannot be read, or is not a certificate.
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
        max_message_bytes: Largest answer that is read.
        origin: The server; nothing is sent elsewhere. None: no credentials, and no restriction.
        flood: Slows the reading of event streams; None: they are not slowed.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int,
        origin: httpx2.URL | None = None,
        credentials: Credentials | None = None,
        flood: Flood | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._origin = origin
        self._credentials = credentials
        self._max_message_bytes = max_message_bytes
        self._flood = flood
        self._probe_failure: ErrorData | None = None

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "GET" and "text/event-stream" in request.headers.get("accept", ""):
            return await self._send_listening(request, **options)
        if request.method != "POST" or not request.headers.get("content-type", "").startswith("application/json"):
            return await self._send_authorized(request, **options)
        # After a redirect the body is in memory, but not yet read.
        if b'"id"' not in (await request.aread())[:_ID_WITHIN]:
            return await self._send_notification(request, **options)
        if self._probe_failure is not None and _HANDSHAKE in request.content[:_ID_WITHIN]:
            # The SDK takes every failure of its probe for an older server; this one was an outage.
            return _error_response(request, 503, self._probe_failure)
        try:
            response = await self._send_authorized(request, **options)
            if response.status_code < 400 and not is_json(response):
                return self._filtered(response, is_reply=True)
            body = await read_body(response, self._max_message_bytes)
        except CredentialsError as error:
            return self._fail(request, 401, credentials_missing(error))
        except Exception as error:
            return self._fail(request, 503, transport_down(error))
        if body is None and response.status_code < 400:
            return _error_response(request, 502, message_too_large(None, self._max_message_bytes))
        body = body or b""
        answer = error_of(body)
        if "mcp-session-id" in request.headers and _is_session_forgotten(response.status_code, answer):
            forgotten = ErrorData(code=SESSION_FORGOTTEN, message=f"session not found: HTTP {response.status_code}")
            return _error_response(request, response.status_code, forgotten)
        if response.status_code < 400 or answer is not None:
            # Raw: a header may contain non-ASCII bytes.
            headers = [(name, value) for name, value in response.headers.raw if name.lower() != b"content-encoding"]
            return httpx2.Response(response.status_code, headers=headers, content=body, request=request)
        return self._fail(request, response.status_code, http_status(response, body), response.headers)

    async def _send_authorized(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send with credentials; when they are refused, once more with others if there are any."""
        if self._origin is None or self._credentials is None:
            return await super().send(request, **options)
        if not is_same_origin(self._origin, request.url):
            where = request.url.copy_with(userinfo=b"", query=None, fragment=None)
            raise CredentialsError(f"{where} is on another origin; credentials are not sent there")
        credentials = await self._credentials.current()
        credentials.apply(request)
        response = await super().send(request, **options)
        if response.status_code != _UNAUTHORIZED:
            return response
        try:
            renewed = await self._credentials.renew(credentials)
        except BaseException:
            await response.aclose()
            raise
        if renewed is None:
            return response
        await response.aclose()
        renewed.apply(request)
        return await super().send(request, **options)

    def _fail(
        self, request: httpx2.Request, status: int, error: ErrorData, headers: httpx2.Headers | None = None
    ) -> httpx2.Response:
        if _PROBE in request.content[:_ID_WITHIN] and _tells_nothing_about_era(error):
            self._probe_failure = error
        return _error_response(request, status, error, headers)

    async def _send_listening(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Open the stream of messages that the server sends unasked. It may be silent for any time."""
        timeout = {**request.extensions.get("timeout", {}), "read": None}
        request.extensions = {**request.extensions, "timeout": timeout}
        response = await self._send_authorized(request, **options)
        _keep_alive(response)
        return self._filtered(response, is_reply=False)

    def _filtered(self, response: httpx2.Response, *, is_reply: bool) -> httpx2.Response:
        if self._flood is None or response.status_code >= 300 or not is_event_stream(response):
            return response
        if is_reply:
            self._flood.expect_answer()
        is_compressed = "content-encoding" in response.headers
        source = response.aiter_bytes() if is_compressed else cast("httpx2.AsyncByteStream", response.stream)
        close = response.aclose if is_compressed else cast("httpx2.AsyncByteStream", response.stream).aclose
        events = _FilteredEvents(source, close, self._flood, self._max_message_bytes, is_reply=is_reply)
        if not is_compressed:  # the other way, with a second response, costs time on every call
            response.stream = events
            return response
        headers = {"content-type": response.headers["content-type"]} | {
            name: value for name, value in response.headers.items() if name not in _BODY_HEADERS
        }
        return httpx2.Response(response.status_code, headers=headers, stream=events, request=response.request)

    async def _send_notification(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        request.extensions = {**request.extensions, "timeout": httpx2.Timeout(_NOTIFICATION_TIMEOUT_S).as_dict()}
        try:
            return await self._send_authorized(request, **options)
        except (httpx2.HTTPError, CredentialsError):
            # A notification has no answer, and the next request will fail the same way.
            return httpx2.Response(202, request=request)


class _FilteredEvents(httpx2.AsyncByteStream):
    """An event stream without unused notifications, slowed by `Flood`, with a limit for each event."""

    def __init__(
        self,
        source: AsyncIterable[bytes],
        close: Callable[[], Awaitable[None]],
        flood: Flood,
        limit_bytes: int,
        *,
        is_reply: bool,
    ) -> None:
        self._source = aiter(source)
        self._close = close
        self._flood = flood
        self._limit_bytes = limit_bytes
        self._is_reply = is_reply
        self._reader = EventReader(limit_bytes)
        self._events: Iterator[Event] = iter(())
        self._chunk_bytes, self._had_event = 0, True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        # Not a generator: the SDK stops reading at its answer, and the loop would need a task to close the generator.
        while True:
            await self._flood.pause()
            event = next(self._events, None)
            if event is not None:
                self._had_event = True
                if text := self._admit(event):
                    return text
                continue
            if not self._had_event:
                self._flood.charge_chunk(self._chunk_bytes)
            chunk = await anext(self._source)
            self._chunk_bytes, self._had_event = len(chunk), False
            self._events = self._reader.feed(chunk)

    def _admit(self, event: Event) -> bytes:
        data = event.data
        if not self._flood.admit(data if isinstance(data, bytes) else data.head):
            return b""
        if isinstance(data, LongLine):
            data = self._error_for(data)
        return event.encode(data) if data or event.marks else b""

    def _error_for(self, data: LongLine) -> bytes:
        if self._is_reply:  # the SDK sets the id of its request on any answer on this stream
            error = message_too_large(data.size_bytes, self._limit_bytes)
            return JSONRPCError(jsonrpc="2.0", id=None, error=error).model_dump_json(by_alias=True).encode()
        message = parse_message(data, self._limit_bytes)
        return b"" if message is None else message.message.model_dump_json(by_alias=True).encode()

    async def aclose(self) -> None:
        await self._close()


async def send_within_origin(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """Send, and follow redirects as the SDK's transports do: within the origin and with the same method only.

    Any other redirect is returned: headers and body are only for the configured server. The caller closes the response,
    whose body is not read.
    """
    for _ in range(client.max_redirects):
        response = await client.send(request, stream=True, follow_redirects=False)
        following = response.next_request
        if following is None or following.method != request.method or not is_same_origin(request.url, following.url):
            return response
        await response.aclose()
        request = following
    raise httpx2.TooManyRedirects("too many redirects", request=request)


def is_same_origin(here: httpx2.URL, there: httpx2.URL) -> bool:
    """Whether a request for one address may be sent to the other: same scheme, host, port and user.

    http may become https on the default ports.
    """
    same = (here.scheme, here.host, here.port) == (there.scheme, there.host, there.port)
    upgraded = here.host == there.host and here.port is None and there.port is None and here.scheme == "http"
    return (same or (upgraded and there.scheme == "https")) and (not there.userinfo or there.userinfo == here.userinfo)


def _keep_alive(response: httpx2.Response) -> None:
    stream = response.extensions.get("network_stream")
    found = stream.get_extra_info("socket") if stream is not None else None
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has all three
            found.setsockopt(socket.IPPROTO_TCP, option, value)


def _is_session_forgotten(status: int, answer: dict[str, Any] | None) -> bool:
    """Whether the server does not know the session id. A tool's own error may use the same words, but has another
    status.
    """
    if answer is None:
        return status == _NOT_FOUND
    return status in (_NOT_FOUND, _BAD_REQUEST) and _FORGOTTEN_SESSION.fullmatch(answer["message"].lower()) is not None


def _tells_nothing_about_era(error: ErrorData) -> bool:
    """Whether a request failed before the server, or a gateway, looked at its method."""
    data: dict[str, Any] = error.data or {}
    return error.code == AUTH_FAILED or data.get("never_sent") is True or data.get("status") in _NO_ERA_STATUSES


def _error_response(
    request: httpx2.Request, status: int, error: ErrorData, headers: httpx2.Headers | None = None
) -> httpx2.Response:
    """A response that fails only this request: for status 400 and above the SDK reads a JSON-RPC error."""
    raw = headers.raw if headers is not None else []
    kept = [(name, value) for name, value in raw if name.lower().decode("latin-1") not in _BODY_HEADERS]
    content = {"jsonrpc": "2.0", "id": None, "error": error.model_dump(exclude_none=True)}
    return httpx2.Response(status, headers=kept, json=content, request=request)
