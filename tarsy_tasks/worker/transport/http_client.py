"""HTTP client that an MCP session survives.

Owns the one override that the project needs: `send` never raises for a POST of JSON-RPC, and never hands out an
unbounded or bodiless answer, nor more unasked events than the event loop can bear. An exception there kills the whole
`Client` (python-sdk #915, #3522), and a bare status loses its number and its Retry-After. Both come back as a JSON-RPC
error instead, which fails that one request; when it is the probe for the 2026 era, the handshake fails with it. It
sends to one origin only, for every request carries that server's `credentials`. It knows no sessions.
"""

import re
import socket
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import httpx2
from mcp_types import ErrorData, JSONRPCError

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

if TYPE_CHECKING:
    from tarsy_tasks.worker.transport.credentials import Credentials

__all__ = ["SurvivableClient", "is_same_origin", "send_within_origin", "ssl_context"]

_NOTIFICATION_TIMEOUT_S = 5.0
"""The SDK posts notifications in its writer loop: one that is answered slowly would delay every call behind it."""
_NO_ERA_STATUSES = (401, 429, 503)
_BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND = 400, 401, 404
_FORGOTTEN_SESSION = re.compile(
    r"(bad request: )?"
    r"(session (terminated|not found|expired)|(no valid|unknown|invalid( or missing)?) session( id)?( provided)?"
    r"|server not initialized)"
    r"(: ?[\w-]+)?[.!]?"
)
"""How the SDKs say that they do not know a session id."""
_ID_WITHIN = 64
"""The SDK writes `jsonrpc` and then `id`, so the begin of a body tells a request from a notification without parsing
it.
"""
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, seconds, probes: a stream may be silent for days, and a lost peer has to be noticed all the same."""
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
        max_message_bytes: Largest answer that is read.
        origin: The server; nothing is sent anywhere else. None: no credentials, and no limit.
        credentials: Go with every request.
        flood: Slows the reading of event streams; None: they are handed out as they come.
        options: As for `httpx2.AsyncClient`.
    """

    def __init__(
        self,
        *,
        max_message_bytes: int,
        origin: httpx2.URL | None = None,
        credentials: "Credentials | None" = None,
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
        # What follows a redirect has not been read yet; the body is in memory all the same.
        if b'"id"' not in (await request.aread())[:_ID_WITHIN]:
            return await self._send_notification(request, **options)
        if self._probe_failure is not None and _HANDSHAKE in request.content[:_ID_WITHIN]:
            # The SDK takes every failure of its probe for the sign of an older server; an outage is none.
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
        if "mcp-session-id" in request.headers and _says_session_is_forgotten(response.status_code, answer):
            forgotten = ErrorData(code=SESSION_FORGOTTEN, message=f"session not found: HTTP {response.status_code}")
            return _error_response(request, response.status_code, forgotten)
        if response.status_code < 400 or answer is not None:
            # Raw: a header may hold what is no ASCII.
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
        grant = await self._credentials.grant()
        grant.apply(request)
        response = await super().send(request, **options)
        if response.status_code != _UNAUTHORIZED:
            return response
        try:
            renewed = await self._credentials.renew(grant)
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
        if _PROBE in request.content[:_ID_WITHIN] and _says_nothing_of_era(error):
            self._probe_failure = error
        return _error_response(request, status, error, headers)

    async def _send_listening(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Open the stream of what the server says unasked, which may be silent for as long as the server likes."""
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
        is_packed = "content-encoding" in response.headers
        source = response.aiter_bytes() if is_packed else cast("httpx2.AsyncByteStream", response.stream)
        close = response.aclose if is_packed else cast("httpx2.AsyncByteStream", response.stream).aclose
        events = _FilteredEvents(source, close, self._flood, self._max_message_bytes, is_reply=is_reply)
        if not is_packed:  # a second response, and unpacking, would cost every call
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
            # Nobody waits for an answer to a notification, and the request that comes next will meet the same failure.
            return httpx2.Response(202, request=request)


class _FilteredEvents(httpx2.AsyncByteStream):
    """An event stream without what nobody reads, at a pace that the event loop can bear, every event bounded."""

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
        self._chunk_bytes = 0
        self._brought = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        # No generator: the SDK breaks off at its answer, and the loop has to finish a broken-off one in a task.
        while True:
            await self._flood.pause()
            event = next(self._events, None)
            if event is not None:
                self._brought = True
                if text := self._admit(event):
                    return text
                continue
            if not self._brought:
                self._flood.charge_chunk(self._chunk_bytes)
            chunk = await anext(self._source)
            self._chunk_bytes, self._brought = len(chunk), False
            self._events = self._reader.feed(chunk)

    def _admit(self, event: Event) -> bytes:
        data = event.data
        if not self._flood.admit(data if isinstance(data, bytes) else data.head):
            return b""
        if isinstance(data, LongLine):
            data = self._instead_of(data)
        return event.encode(data) if data or event.marks else b""

    def _instead_of(self, data: LongLine) -> bytes:
        if self._is_reply:  # the SDK puts the id of its request into whatever answers on this stream
            error = message_too_large(data.size_bytes, self._limit_bytes)
            return JSONRPCError(jsonrpc="2.0", id=None, error=error).model_dump_json(by_alias=True).encode()
        message = parse_message(data, self._limit_bytes)
        return b"" if message is None else message.message.model_dump_json(by_alias=True).encode()

    async def aclose(self) -> None:
        await self._close()


async def send_within_origin(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """Send, and follow redirects as the SDK's transports do: within the origin and with the same method only.

    A redirect elsewhere is returned as it is: headers and body are for the configured server's eyes. The caller closes
    the response, whose body is not read.
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
    """Whether what is meant for one address may be sent to the other: same scheme, host, port and user.

    http may become https on the usual ports.
    """
    same = (here.scheme, here.host, here.port) == (there.scheme, there.host, there.port)
    upgraded = (here.scheme, there.scheme, here.host, here.port, there.port) == (
        "http",
        "https",
        there.host,
        None,
        None,
    )
    return (same or upgraded) and (not there.userinfo or there.userinfo == here.userinfo)


def _keep_alive(response: httpx2.Response) -> None:
    stream = response.extensions.get("network_stream")
    found = stream.get_extra_info("socket") if stream is not None else None
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has all of them
            found.setsockopt(socket.IPPROTO_TCP, option, value)


def _says_session_is_forgotten(status: int, answer: dict[str, Any] | None) -> bool:
    """Whether the server does not know the session id that it was sent. A tool's own error may use the same words, but
    comes with another status.
    """
    if answer is None:
        return status == _NOT_FOUND
    return status in (_NOT_FOUND, _BAD_REQUEST) and _FORGOTTEN_SESSION.fullmatch(answer["message"].lower()) is not None


def _says_nothing_of_era(error: ErrorData) -> bool:
    """Whether a request failed before the server, or what stands before it, looked at its method."""
    data: dict[str, Any] = error.data or {}
    return error.code == AUTH_FAILED or data.get("never_sent") is True or data.get("status") in _NO_ERA_STATUSES


def _error_response(
    request: httpx2.Request, status: int, error: ErrorData, headers: httpx2.Headers | None = None
) -> httpx2.Response:
    """A reply that fails only this request: from status 400 on, the SDK reads a JSON-RPC error from the body."""
    raw = headers.raw if headers is not None else []
    kept = [(name, value) for name, value in raw if name.lower().decode("latin-1") not in _BODY_HEADERS]
    content = {"jsonrpc": "2.0", "id": None, "error": error.model_dump(exclude_none=True)}
    return httpx2.Response(status, headers=kept, json=content, request=request)
