"""Streamable HTTP transport: a POST per message, whose response is the answer or an event stream with the answer in it.

Owns the POSTs, the event streams and their resumption, and the session id of the handshake era. It replaces the SDK's
`streamable_http_client`, in which the failure of one request ends them all, and a call passes four tasks and three
queues. It knows no sessions beyond that id.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
from mcp import MCPError
from mcp.shared.dispatcher import CallOptions, coerce_request_id
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, ErrorData, JSONRPCError, JSONRPCResponse, RequestId
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tarsy_tasks.oauth.endpoint import CredentialsError
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.transport.dispatcher import Message, MessageDispatcher, connection_closed
from tarsy_tasks.worker.transport.events import EventReader
from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.http_bodies import error_of, is_event_stream, is_json, pieces_of, read_body
from tarsy_tasks.worker.transport.http_client import HttpClient, find_redirect, without_secrets
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tarsy_tasks.worker.transport.transport_errors import (
    AUTH_FAILED,
    SESSION_FORGOTTEN,
    http_status,
    message_too_large,
    transport_down,
)

__all__ = ["streamable_http_transport"]

_SESSION_ID = "mcp-session-id"
_ACCEPTED, _BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND = 202, 400, 401, 404
_FIRST_OTHER_STATUS = 300
_NO_ERA_STATUSES = (401, 429, 503)
_PROBE, _HANDSHAKE, _READY = "server/discover", "initialize", "notifications/initialized"
_FORGOTTEN_SESSION = re.compile(
    r"(bad request: )?"
    r"(session (terminated|not found|expired)|(no valid|unknown|invalid( or missing)?) session( id)?( provided)?"
    r"|server not initialized)"
    r"(: ?[\w-]+)?[.!]?"
)
"""The messages of the SDKs for an unknown session id."""
_ATTEMPTS = 2
"""To open a stream again, one after the other."""
_PAUSE_S, _SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 0.05, 600.0
"""Before that, unless the server says how long."""
_END_WITHIN_S, _END_CHUNKS = 0.1, 4
"""How long, and for how many chunks, the end of an event stream is awaited after the answer, so that its connection can
be used again.
"""


@asynccontextmanager
async def streamable_http_transport(
    url: httpx2.URL,
    client: HttpClient,
    *,
    max_message_bytes: int,
    flood: Flood,
    long_work: LongWork,
    output: ServerOutput,
) -> AsyncGenerator[MessageDispatcher]:
    """Yield the dispatcher of the messages to a server; nothing is sent yet.

    Args:
        client: With the server's credentials; the caller closes it.
        max_message_bytes: Largest message that is read; an answer in a larger one becomes an error.
        output: Receives what is not JSON-RPC, unless it is in place of an answer.
    """
    dispatcher = _Exchanges(url, client, max_message_bytes, flood, long_work, output, "in an event stream")
    try:
        yield dispatcher
        await dispatcher.end_session()
    finally:
        with anyio.CancelScope(shield=True):
            dispatcher.end()
            await dispatcher.cancel_tasks()


@dataclass
class _Place:
    """Where an event stream is to be continued, and when."""

    last_id: bytes = b""
    pause_s: float = _PAUSE_S

    def note(self, marks: tuple[bytes, ...]) -> None:
        """Take over the `id` and `retry` lines of an event."""
        for mark in marks:
            name, _, value = mark.partition(b":")
            value = value.strip()
            if name == b"id":
                self.last_id = value if value.isascii() else b""
            elif value.isdigit():
                self.pause_s = min(max(int(value) / 1000, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)


class _Exchanges(MessageDispatcher):
    """Messages to the server.

    A request is sent by the task that waits for its answer, and given up by closing its connection; servers of the
    handshake era get a cancel then. All other messages are sent in the background.
    """

    def __init__(self, url: httpx2.URL, client: HttpClient, *args: Any) -> None:
        super().__init__(*args)
        self._url = url
        self._client = client
        self._session_id = self._version = ""
        self._probe_failure: MCPError | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=self.flood.server)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _headers(self, given: Mapping[str, str]) -> dict[str, str]:
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        if self._session_id:
            headers[_SESSION_ID] = self._session_id
        if self._version:
            headers[MCP_PROTOCOL_VERSION_HEADER] = self._version
        headers.update(given)
        return headers

    def _note_version(self, options: CallOptions) -> None:
        """Messages without a version of their own have that of the last message that had one."""
        self._version = options.get("headers", {}).get(MCP_PROTOCOL_VERSION_HEADER, self._version)

    # To the server.

    def _write(self, message: Message, data: bytes) -> None:
        self._start(self._notify(message, data))

    async def _notify(self, message: Message, data: bytes) -> None:
        await self._client.notify(self._url, data, self._headers({}))
        if message.get("method") == _READY and self._session_id:
            self._start(self._listen())

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Send a notification, which arrives before all that is sent later."""
        self._note_version(opts or {})
        before = self._tasks.copy()
        await super().notify(method, params, opts)
        if sending := self._tasks - before:
            await asyncio.wait(sending)

    def _cancel(self, request_id: RequestId, reason: str, options: CallOptions) -> None:
        # In the 2026 era the closed connection says it.
        version = options.get("headers", {}).get(MCP_PROTOCOL_VERSION_HEADER, self._version)
        if version not in MODERN_PROTOCOL_VERSIONS:
            super()._cancel(request_id, reason, options)

    async def _request(self, message: Message, data: bytes, options: CallOptions) -> None:
        method: str = message["method"]
        if method == _HANDSHAKE:
            if self._probe_failure is not None:
                # The SDK takes every failure of its probe for an older server; this one was an outage.
                raise self._probe_failure
            self._version = ""
        self._note_version(options)
        headers = self._headers(options.get("headers", {}))
        try:
            response = await self._client.post(self._url, data, headers, has_limit=options.get("timeout") is not None)
            if method == _HANDSHAKE:
                session_id = response.headers.get(_SESSION_ID, "")
                self._session_id = session_id if session_id.isascii() else ""
            await self._read_response(response, message["id"])
        except MCPError as error:
            if self.ended.is_set():
                raise connection_closed() from None
            if method == _PROBE and _tells_nothing_about_era(error.error):
                self._probe_failure = error
            raise

    async def end_session(self) -> None:
        """Tell the server that its session is not used any more."""
        if self._session_id:
            with suppress(httpx2.HTTPError, CredentialsError):
                response = await self._client.request("DELETE", self._url, b"", self._headers({}))
                await response.aclose()

    async def cancel_tasks(self) -> None:
        tasks = self._tasks.copy()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # From the server.

    async def _read_response(self, response: httpx2.Response, asked: RequestId) -> None:
        """Receive the answer to a request.

        Raises:
            MCPError: There is no answer.
        """
        if response.status_code < _FIRST_OTHER_STATUS and is_event_stream(response):
            await self._follow(response, asked)
            return
        try:
            body = await read_body(response, self.limit_bytes, self.flood)
        except Exception as error:
            raise MCPError.from_error_data(transport_down(error)) from None
        if response.status_code == _ACCEPTED:
            raise MCPError(INVALID_REQUEST, "server answered a request with 202 Accepted")
        if response.status_code >= _FIRST_OTHER_STATUS:
            raise MCPError.from_error_data(self._read_refusal(response, body or b""))
        if not is_json(response):
            kind = response.headers.get("content-type", "none")
            raise MCPError(INVALID_REQUEST, f"unexpected content type: {kind}")
        if body is None:
            raise MCPError.from_error_data(message_too_large(None, self.limit_bytes))
        self.flood.admit(body)
        message = await self.parse(body, asked)
        assert message is not None  # with a request id, what cannot be parsed is an error
        if not isinstance(message, JSONRPCResponse | JSONRPCError) or message.id is None:
            self.receive(message, asked)
        elif coerce_request_id(message.id) == asked:
            self.receive(message)
        # Else it is an answer to another request, which does not wait for this response. This one was not answered.

    def _read_refusal(self, response: httpx2.Response, body: bytes) -> ErrorData:
        if (target := find_redirect(response)) is not None:
            return ErrorData(code=INVALID_REQUEST, message=_describe_redirect(response.request.url, target))
        answer = error_of(body)
        if self._session_id and _is_session_forgotten(response.status_code, answer):
            return ErrorData(code=SESSION_FORGOTTEN, message=f"session not found: HTTP {response.status_code}")
        # What a 401 asks for is in its header, whatever its body is.
        is_status = answer is None or response.status_code == _UNAUTHORIZED
        return http_status(response, body) if is_status else ErrorData.model_validate(answer)

    async def _follow(self, response: httpx2.Response | None, asked: RequestId | None) -> None:
        """Read an event stream, and continue it where it ends, until the answer comes; without a request, for ever.

        Raises:
            MCPError: The answer does not come.
        """
        place = _Place()
        failures = 0
        while not self.ended.is_set():
            if response is None:
                failures += 1
            else:
                failures = 0
                if await self._read_stream(response, place, asked):
                    return
                if asked is not None and not place.last_id:
                    raise MCPError(CONNECTION_CLOSED, "SSE stream ended without a response")
            if failures == _ATTEMPTS:
                if asked is None:
                    return
                raise MCPError(CONNECTION_CLOSED, "SSE stream ended and reconnection attempts were exhausted")
            await asyncio.sleep(place.pause_s)
            response = await self._open_stream(place)
        if asked is not None:
            raise connection_closed()

    async def _listen(self) -> None:
        """Receive what the server sends unasked, if it has a stream for that."""
        await self._follow(await self._open_stream(_Place()), None)

    async def _open_stream(self, place: _Place) -> httpx2.Response | None:
        headers = self._headers({"accept": "text/event-stream"})
        if place.last_id:
            headers["last-event-id"] = place.last_id.decode("latin-1")
        try:
            response = await self._client.listen(self._url, headers)
        except (httpx2.HTTPError, httpx2.InvalidURL, CredentialsError):
            return None
        if response.status_code < _FIRST_OTHER_STATUS and is_event_stream(response):
            return response
        await response.aclose()
        return None

    async def _read_stream(self, response: httpx2.Response, place: _Place, asked: RequestId | None) -> bool:
        """Receive the messages of an event stream; returns whether the answer was one of them."""
        reader = EventReader(self.limit_bytes)
        pieces = pieces_of(response)
        is_answered = False
        try:
            async for piece in pieces:
                had_event = False
                for event in reader.feed(piece):
                    had_event = True
                    place.note(event.marks)
                    if event.name == b"message" and event.data:
                        await self.put(event.data, asked)
                        is_answered = asked is not None and not self.is_waiting(asked)
                        if is_answered:
                            return True
                if asked is not None and reader.is_discarding:
                    self.settle(asked, message_too_large(None, self.limit_bytes))
                    return True
                self.flood.charge_piece(piece, has_event=had_event, discarded_bytes=reader.discarded_bytes)
                await self.flood.pause()
        except httpx2.HTTPError:
            pass  # it is continued, or the request fails
        finally:
            if is_answered:
                self._start(_close_after_end(response, pieces))
            else:
                await response.aclose()
        return False


async def _close_after_end(response: httpx2.Response, pieces: AsyncIterator[bytes]) -> None:
    """Close a response, but wait a moment for its end, so that its connection can be used again."""
    try:
        with suppress(TimeoutError, StopAsyncIteration, httpx2.HTTPError):
            async with asyncio.timeout(_END_WITHIN_S):
                for _ in range(_END_CHUNKS):
                    await anext(pieces)
    finally:
        await response.aclose()


def _describe_redirect(here: httpx2.URL, there: httpx2.URL) -> str:
    where = without_secrets(there)
    if here.scheme == "https" and there.scheme == "http":
        return (
            f"a redirect to {where} was not followed: it leads from HTTPS to HTTP. The server probably does not trust "
            "the headers of the proxy in front of it; the path may also need a slash at its end, or none"
        )
    return f"a redirect to {where} was not followed; if that is the server, configure that address"


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
