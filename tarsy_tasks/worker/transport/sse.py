"""SSE transport: "HTTP with SSE" of protocol 2024-11-05, an event stream from the server and a POST per message to it.

Owns the stream, the POSTs and their order. It replaces the SDK's `sse_client`, in which a failed POST blocks its call
for ever, a slow POST delays all others, and an event above 1 MiB or five minutes of silence end the session. It knows
no sessions. `SurvivableClient` turns a failed POST into an error.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
from mcp import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCNotification, JSONRPCRequest, RequestId
from pydantic import ValidationError

from tarsy_tasks.worker.transport.events import Event, EventReader
from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.http_bodies import error_of, is_event_stream, is_json, read_body
from tarsy_tasks.worker.transport.http_client import SurvivableClient, is_same_origin, send_within_origin
from tarsy_tasks.worker.transport.messages import MessageChannel
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tarsy_tasks.worker.transport.transport_errors import (
    HTTP_STATUS,
    SESSION_FORGOTTEN,
    TRANSPORT_DOWN,
    CredentialsError,
    credentials_missing,
    http_status,
    transport_down,
)

__all__ = ["sse_transport"]

_MAX_POSTS = 256
"""The default number of running calls in a worker: some servers answer a POST only when its tool is done."""
_CANCEL_WAITS_S = 0.5
_REPLY_WITHIN_S = 1.0
_REPLY_BYTES = 64 * 1024
"""The response to a POST has no content; it is read only so that its connection can be used again."""
_FORGOTTEN = (404, 410)


@asynccontextmanager
async def sse_transport(
    url: str,
    client: SurvivableClient,
    *,
    max_message_bytes: int,
    flood: Flood,
    output: ServerOutput,
    on_end: Callable[[str], None],
) -> AsyncGenerator[Any]:
    """Open the event stream, wait for the endpoint that it names, and yield the message streams.

    Args:
        client: With the server's credentials, and without a `Flood`; the caller closes it.
        max_message_bytes: Largest event that is read; an answer in a larger one becomes an error.
        output: Receives events that are not JSON-RPC.
        on_end: Called with the reason when the stream ends or breaks; never when the context is left.

    Raises:
        MCPError: The stream cannot be opened, or names no endpoint that messages may be sent to.
    """
    channel = MessageChannel(max_message_bytes, flood, output, "in the event stream")
    stream = _EventStream(url, client, channel, on_end)
    reader = asyncio.create_task(stream.read())
    posts: _Posts | None = None
    tasks = {reader}
    try:
        posts = _Posts(await stream.endpoint, client, channel)
        tasks.add(asyncio.create_task(posts.write()))
        yield channel.streams
    finally:
        with anyio.CancelScope(shield=True):
            channel.close()
            if posts is not None:
                tasks |= posts.tasks
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class _EventStream:
    """Messages from the server.

    Attributes:
        endpoint: Where messages are sent, once the server has named it.
    """

    def __init__(
        self, url: str, client: SurvivableClient, channel: MessageChannel, on_end: Callable[[str], None]
    ) -> None:
        self.endpoint: asyncio.Future[httpx2.URL] = asyncio.get_running_loop().create_future()
        self._url = url
        self._client = client
        self._channel = channel
        self._on_end = on_end

    async def read(self) -> None:
        """Open the stream and forward its messages until it ends."""
        try:
            response = await self._open()
        except MCPError as error:
            self._refuse(error)
            return
        try:
            await self._channel.drain(self._forward(response), self._end)
        finally:
            await response.aclose()

    def _end(self, reason: str) -> None:
        if self.endpoint.done():
            self._on_end(reason)
            return
        text = f"{reason} before it named an endpoint for messages"
        self._refuse(MCPError(TRANSPORT_DOWN, text, {"kind": "EndOfStream", "never_sent": True}))

    def _refuse(self, error: MCPError) -> None:
        if not self.endpoint.done():
            self.endpoint.set_exception(error)

    async def _open(self) -> httpx2.Response:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        try:
            request = self._client.build_request("GET", self._url, headers=headers)
            response = await send_within_origin(self._client, request)
            if response.status_code == 200 and is_event_stream(response):
                return response
            # Up to a limit: the page may be endless.
            body = b"" if response.status_code == 200 else await read_body(response, _REPLY_BYTES) or b""
            await response.aclose()
        except CredentialsError as error:
            raise MCPError.from_error_data(credentials_missing(error)) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise MCPError.from_error_data(transport_down(error)) from None
        raise MCPError.from_error_data(http_status(response, body, _note(response)))

    async def _forward(self, response: httpx2.Response) -> str:
        """Read to the end; returns why it ended."""
        reader = EventReader(self._channel.limit_bytes)
        try:
            async for chunk in response.aiter_bytes():
                had_message = False
                for event in reader.feed(chunk):
                    had_message |= await self._read_event(event, response.url)
                if not had_message:
                    self._channel.flood.charge_chunk(len(chunk))
                await self._channel.flood.pause()
        except httpx2.HTTPError as error:
            return f"its event stream broke ({type(error).__name__}: {error})".replace(": )", ")")
        return "it closed its event stream"

    async def _read_event(self, event: Event, url: httpx2.URL) -> bool:
        """Act on an event; returns whether it was a message."""
        data = event.data
        if event.name == b"endpoint":
            if isinstance(data, bytes) and not self.endpoint.done():
                self._set_endpoint(data, url)
        elif event.name == b"message" and data:
            await self._channel.put(data)
            return True
        return False  # an event of another name, such as `ping`

    def _set_endpoint(self, data: bytes, url: httpx2.URL) -> None:
        """Accept the endpoint for messages, unless it is on another origin: they contain this server's credentials."""
        named = data.decode("utf-8", "replace").strip()
        try:
            endpoint = url.join(named)
        except httpx2.InvalidURL as error:
            text = f"it names an endpoint that is not a valid address: {error}"
            self._refuse(MCPError(HTTP_STATUS, text, {"status": 200}))
            return
        if is_same_origin(url, endpoint):
            self.endpoint.set_result(endpoint)
            return
        where = endpoint.copy_with(userinfo=b"", query=None, fragment=None)
        text = f"it names an endpoint on another origin, {where}; headers and token are not sent there"
        self._refuse(MCPError(HTTP_STATUS, text, {"status": 200}))


class _Posts:
    """Messages to the server.

    A request does not wait for the POST of another. A notification is sent before all later messages, except a cancel,
    which is only sent after its own request.

    Attributes:
        tasks: POSTs in flight.
    """

    def __init__(self, endpoint: httpx2.URL, client: SurvivableClient, channel: MessageChannel) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[RequestId, asyncio.Task[None]] = {}
        self._sent: set[RequestId] = set()
        self._slots = asyncio.Semaphore(_MAX_POSTS)
        self._endpoint = endpoint
        self._client = client
        self._channel = channel

    async def write(self) -> None:
        """Send the messages of the session until it is closed."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for item in self._channel.from_session:
                data = await self._channel.encode(item)
                if data is None:
                    continue
                match item.message:
                    case JSONRPCRequest(id=request_id):
                        self._requests[request_id] = self._start(self._post_request(item, request_id, data))
                    case JSONRPCNotification(method="notifications/cancelled", params=params):
                        self._start(self._post_cancel((params or {}).get("requestId"), data))
                    case JSONRPCNotification():
                        await self._post(data)
                    case _:
                        self._start(self._answer(data))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _post_request(self, item: SessionMessage, request_id: RequestId, data: bytes) -> None:
        try:
            async with self._slots:
                self._sent.add(request_id)
                self._channel.flood.expect_answer()
                error = await self._post(data)
            if error is not None:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await self._channel.answer_with_error(item, error)
        finally:
            self._sent.discard(request_id)
            if self._requests.get(request_id) is asyncio.current_task():
                del self._requests[request_id]

    async def _post_cancel(self, request_id: RequestId | None, data: bytes) -> None:
        request = self._requests.get(request_id) if request_id is not None else None
        if request is None:
            await self._post(data)
            return
        if request_id in self._sent:
            await asyncio.wait({request}, timeout=_CANCEL_WAITS_S)
            await self._post(data)
        request.cancel()  # its caller does not wait any more

    async def _answer(self, data: bytes) -> None:
        async with self._slots:
            await self._post(data)

    async def _post(self, data: bytes) -> ErrorData | None:
        """Send one message; returns why it did not arrive. Its answer comes as an event."""
        headers = {"Content-Type": "application/json"}
        request = self._client.build_request("POST", self._endpoint, content=data, headers=headers)
        try:
            response = await send_within_origin(self._client, request)
        except httpx2.HTTPError as error:
            return transport_down(error)
        body = b""
        with suppress(TimeoutError, httpx2.HTTPError):
            async with asyncio.timeout(_REPLY_WITHIN_S if response.status_code < 300 else None):
                body = await read_body(response, _REPLY_BYTES) or b""
        if response.status_code < 300:
            return None
        error = _json_error(response, body) or http_status(response, body, _note(response))
        if error.code == HTTP_STATUS and response.status_code in _FORGOTTEN:
            # The address is right, since the stream was opened there: the session is unknown.
            return ErrorData(code=SESSION_FORGOTTEN, message=f"session not found: {error.message}", data=error.data)
        return error


def _json_error(response: httpx2.Response, body: bytes) -> ErrorData | None:
    try:
        return ErrorData.model_validate(error_of(body)) if is_json(response) else None
    except ValidationError:
        return None


def _note(response: httpx2.Response) -> str:
    """What a status means for this transport."""
    if response.next_request is not None:
        where = response.next_request.url.copy_with(userinfo=b"", query=None, fragment=None)
        return f", a redirect to {where}, which is not followed"
    match response.status_code:
        case 200:
            kind = response.headers.get("content-type", "no content type")
            return f" with {kind} instead of text/event-stream; check the path, or use the transport http"
        case 405:
            return ", so there is no event stream; check the path, or use the transport http"
        case _:
            return ""
