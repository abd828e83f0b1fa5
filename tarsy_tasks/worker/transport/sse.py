"""SSE transport: "HTTP with SSE" of protocol 2024-11-05, an event stream from the server and a POST per message to it.

Owns the stream, the POSTs and their order. It replaces the SDK's `sse_client`, in which a failed POST blocks its call
for ever, a slow POST delays all others, and an event above 1 MiB or five minutes of silence end the session. It knows
no sessions.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import httpx2
from mcp import MCPError
from mcp_types import ErrorData, RequestId
from pydantic import ValidationError

from tarsy_tasks.oauth.endpoint import CredentialsError
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.transport.dispatcher import Message, MessageDispatcher
from tarsy_tasks.worker.transport.events import Event, EventReader
from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.http_bodies import error_of, is_event_stream, is_json, pieces_of, read_body
from tarsy_tasks.worker.transport.http_client import HttpClient, find_redirect, is_same_origin, without_secrets
from tarsy_tasks.worker.transport.messages import refuse_unfinished
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tarsy_tasks.worker.transport.transport_errors import (
    HTTP_STATUS,
    SESSION_FORGOTTEN,
    TRANSPORT_DOWN,
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
_DISCARD_PAUSE_S = 0.001
"""After each piece of an event that is too large: a call that waits for it does not wait for the whole budget."""
_FORGOTTEN = (404, 410)
_UNAUTHORIZED = 401
_HEADERS = {"content-type": "application/json"}


@asynccontextmanager
async def sse_transport(
    url: httpx2.URL,
    client: HttpClient,
    *,
    max_message_bytes: int,
    flood: Flood,
    long_work: LongWork,
    output: ServerOutput,
    on_end: Callable[[str], None],
) -> AsyncGenerator[MessageDispatcher]:
    """Open the event stream, wait for the endpoint that it names, and yield the dispatcher of its messages.

    Args:
        client: With the server's credentials; the caller closes it.
        max_message_bytes: Largest event that is read; an answer in a larger one becomes an error.
        output: Receives events that are not JSON-RPC.
        on_end: Called with the reason when the stream ends or breaks; never when the context is left.

    Raises:
        MCPError: The stream cannot be opened, or names no endpoint that messages may be sent to.
    """
    dispatcher = _Posts(client, max_message_bytes, flood, long_work, output, "in the event stream")
    stream = _EventStream(url, client, dispatcher, on_end)
    reader = asyncio.create_task(stream.read(), name=flood.server)
    try:
        dispatcher.endpoint = await stream.endpoint
        yield dispatcher
    finally:
        with anyio.CancelScope(shield=True):
            dispatcher.end()
            tasks = {reader} | dispatcher.tasks
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


class _EventStream:
    """Messages from the server.

    Attributes:
        endpoint: Where messages are sent, once the server has named it.
    """

    def __init__(
        self, url: httpx2.URL, client: HttpClient, dispatcher: MessageDispatcher, on_end: Callable[[str], None]
    ) -> None:
        self.endpoint: asyncio.Future[httpx2.URL] = asyncio.get_running_loop().create_future()
        self._url = url
        self._client = client
        self._dispatcher = dispatcher
        self._on_end = on_end

    async def read(self) -> None:
        """Open the stream and forward its messages until it ends."""
        try:
            response = await self._open()
        except MCPError as error:
            self._refuse(error)
            return
        try:
            await self._dispatcher.drain(self._forward(response), self._end)
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
        try:
            response = await self._client.listen(self._url, {})
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
        reader, flood = EventReader(self._dispatcher.limit_bytes), self._dispatcher.flood
        try:
            async for piece in pieces_of(response):
                had_message, was_discarding = False, reader.is_discarding
                for event in reader.feed(piece):
                    had_message |= await self._read_event(event, response.request.url)
                flood.charge_piece(piece, has_event=had_message, discarded_bytes=reader.discarded_bytes)
                if reader.is_discarding:
                    if not was_discarding or had_message:
                        self._refuse_unfinished(reader.head)
                    await asyncio.sleep(_DISCARD_PAUSE_S)
                await flood.pause()
        except httpx2.HTTPError as error:
            return f"its event stream broke ({type(error).__name__}: {error})".replace(": )", ")")
        return "it closed its event stream"

    def _refuse_unfinished(self, head: bytes) -> None:
        refusal = refuse_unfinished(head, self._dispatcher.limit_bytes)
        if refusal is not None:
            self._dispatcher.receive(refusal)

    async def _read_event(self, event: Event, url: httpx2.URL) -> bool:
        """Act on an event; returns whether it was a message."""
        data = event.data
        if event.name == b"endpoint":
            if isinstance(data, bytes) and not self.endpoint.done():
                self._set_endpoint(data, url)
        elif event.name == b"message" and data:
            await self._dispatcher.put(data)
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
        text = (
            f"it names an endpoint on another origin, {without_secrets(endpoint)}; headers and token are not sent there"
        )
        self._refuse(MCPError(HTTP_STATUS, text, {"status": 200}))


class _Posts(MessageDispatcher):
    """Messages to the server.

    A request does not wait for the POST of another. All messages wait for that of an earlier notification. A cancel is
    only sent after its own request.

    Attributes:
        endpoint: Where messages are sent.
        tasks: POSTs in flight.
    """

    endpoint: httpx2.URL

    def __init__(self, client: HttpClient, *args: Any) -> None:
        super().__init__(*args)
        self.tasks: set[asyncio.Task[None]] = set()
        self._requests: dict[RequestId, asyncio.Task[None]] = {}
        self._sent: set[RequestId] = set()
        self._notified: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(_MAX_POSTS)
        self._client = client

    def _write(self, message: Message, data: bytes) -> None:
        match message:
            case {"method": "notifications/cancelled", "params": {"requestId": request_id}}:
                self._start(self._post_cancel(request_id, data))
            case {"method": _, "id": request_id}:
                self._requests[request_id] = self._start(self._post_request(request_id, data))
            case {"method": _}:
                self._notified = self._start(self._post_notification(data, self._notified))
            case _:
                self._start(self._post_answer(data))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def _post_request(self, request_id: RequestId, data: bytes) -> None:
        try:
            await _done(self._notified)
            async with self._slots:
                self._sent.add(request_id)
                error = await self._post(data)
            if error is not None:
                self.settle(request_id, error)
        finally:
            self._sent.discard(request_id)
            if self._requests.get(request_id) is asyncio.current_task():
                del self._requests[request_id]

    async def _post_cancel(self, request_id: RequestId, data: bytes) -> None:
        request = self._requests.get(request_id)
        if request is None:
            await self._notify(data)
            return
        if request_id in self._sent:
            await asyncio.wait({request}, timeout=_CANCEL_WAITS_S)
            await self._notify(data)
        request.cancel()  # its caller does not wait any more

    async def _post_notification(self, data: bytes, earlier: asyncio.Task[None] | None) -> None:
        await _done(earlier)
        await self._notify(data)

    async def _notify(self, data: bytes) -> None:
        await self._client.notify(self.endpoint, data, _HEADERS)

    async def _post_answer(self, data: bytes) -> None:
        async with self._slots:
            await self._post(data)

    async def _post(self, data: bytes) -> ErrorData | None:
        """Send one message; returns why it did not arrive. Its answer comes as an event."""
        try:
            response = await self._client.post(self.endpoint, data, _HEADERS)
        except MCPError as error:
            return error.error
        body = b""
        with suppress(TimeoutError, httpx2.HTTPError):
            async with asyncio.timeout(_REPLY_WITHIN_S if response.status_code < 300 else None):
                body = await read_body(response, _REPLY_BYTES) or b""
        if response.status_code < 300:
            return None
        error = (response.status_code != _UNAUTHORIZED and _json_error(response, body)) or http_status(
            response, body, _note(response)
        )
        if error.code == HTTP_STATUS and response.status_code in _FORGOTTEN:
            # The address is right, since the stream was opened there: the session is unknown.
            return ErrorData(code=SESSION_FORGOTTEN, message=f"session not found: {error.message}", data=error.data)
        return error


async def _done(task: asyncio.Task[None] | None) -> None:
    if task is not None and not task.done():
        await asyncio.wait({task})


def _json_error(response: httpx2.Response, body: bytes) -> ErrorData | None:
    try:
        return ErrorData.model_validate(error_of(body)) if is_json(response) else None
    except ValidationError:
        return None


def _note(response: httpx2.Response) -> str:
    """What a status means for this transport."""
    if (target := find_redirect(response)) is not None:
        return f", a redirect to {without_secrets(target)}, which is not followed"
    match response.status_code:
        case 200:
            kind = response.headers.get("content-type", "no content type")
            return f" with {kind} instead of text/event-stream; check the path, or use the transport http"
        case 405:
            return ", so there is no event stream; check the path, or use the transport http"
        case _:
            return ""
