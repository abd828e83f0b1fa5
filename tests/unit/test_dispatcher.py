"""Our dispatcher and the SDK's own: with the same server, a session sends the same and ends its calls the same way."""

import asyncio
import gc
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from math import nan
from typing import Any

import anyio
import pytest
from mcp import ClientSession, MCPError
from mcp.shared.dispatcher import Dispatcher
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp_types import (
    DiscoverResult,
    Implementation,
    InitializeResult,
    JSONRPCMessage,
    ListRootsResult,
    ServerCapabilities,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.maskers import build_masker
from tarsy_tasks.worker.sessions.tool_requests import shorten_tool_calls
from tarsy_tasks.worker.transport.dispatcher import Message, MessageDispatcher
from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.server_output import ServerOutput
from tests.processes import until

Server = Callable[[Message], Iterable[Message | None]]
"""What a server says to each message that it reads; None: it ends."""
Way = Callable[[Server, list[bytes]], AbstractAsyncContextManager[Dispatcher[Any]]]
"""A dispatcher with that server; all that it sends is added to the list."""

RESULT = {"content": [{"type": "text", "text": "ä"}], "resultType": "complete"}
TIMEOUT_S = 0.05
FIRST_ROUND: dict[str, Any] = {
    **dict.fromkeys(("progress_callback", "input_responses", "request_state", "meta")),
    **dict.fromkeys(("allow_input_required", "allow_claimed"), True),
}
"""What the SDK's client adds to a call."""


class Scripted(MessageDispatcher):
    """Ours, with a server in its place of a transport."""

    def __init__(self, server: Server, sent: list[bytes]) -> None:
        flood = Flood("scripted", carrier_s=0.0, reply_s=0.0)
        super().__init__(10_000, flood, LongWork(), ServerOutput("scripted", build_masker()), "in a test")
        self._server, self._sent = server, sent
        self.hearing: list[asyncio.Task[None]] = []

    def _write(self, message: Message, data: bytes) -> None:
        self._sent.append(data)
        self.hearing.append(asyncio.create_task(self._hear([*self._server(message)])))

    async def _hear(self, said: list[Message | None]) -> None:
        for each in said:
            if each is None:
                self.end()
            else:
                await self.put(json.dumps({"jsonrpc": "2.0", **each}).encode())


@asynccontextmanager
async def ours(server: Server, sent: list[bytes]) -> AsyncGenerator[Dispatcher[Any]]:
    dispatcher = Scripted(server, sent)
    yield dispatcher
    await asyncio.gather(*dispatcher.hearing)


@asynccontextmanager
async def sdks(server: Server, sent: list[bytes]) -> AsyncGenerator[Dispatcher[Any]]:
    to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](10)
    to_server, from_session = anyio.create_memory_object_stream[SessionMessage](10)

    async def carry() -> None:
        async for item in from_session:
            data = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            sent.append(data)
            for each in server(json.loads(data)):
                if each is None:
                    to_session.close()
                    return
                message: JSONRPCMessage = jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **each})
                await to_session.send(SessionMessage(message))

    task = asyncio.create_task(carry())
    try:
        yield JSONRPCDispatcher(from_server, to_server)
    finally:
        task.cancel()
        await asyncio.wait({task})
        for stream in (to_session, from_server, to_server, from_session):
            stream.close()


def info(era: str) -> InitializeResult | DiscoverResult:
    if era == "2026":
        return DiscoverResult(
            supported_versions=["2026-07-28"], capabilities=ServerCapabilities(), ttl_ms=0, cache_scope="private"
        )
    server = Implementation(name="scripted", version="1")
    return InitializeResult(protocol_version="2025-11-25", capabilities=ServerCapabilities(), server_info=server)


class Story:
    """What a session sent, heard and made of it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.heard: list[str] = []
        self.endings: list[Any] = []

    async def note(self, message: Any) -> None:
        self.heard.append(type(message).__name__)

    async def end(self, work: Awaitable[Any]) -> None:
        try:
            self.endings.append((await work).model_dump())
        except MCPError as error:
            self.endings.append((error.code, error.message, error.data))
        except (ValidationError, RuntimeError, asyncio.CancelledError) as error:
            self.endings.append(type(error))

    def told(self) -> tuple[Any, ...]:
        return sorted(self.sent), self.heard, self.endings


async def tell(
    way: Way, era: str, server: Server, act: Callable[[ClientSession, Story], Awaitable[None]], **callbacks: Any
) -> Story:
    story = Story()
    async with (
        asyncio.timeout(20),
        way(server, story.sent) as dispatcher,
        ClientSession(dispatcher=dispatcher, message_handler=story.note, **callbacks) as session,
    ):
        session.adopt(info(era))
        await act(session, story)
    return story


def answering(*said: Message | None) -> Server:
    """A server that says this to a call, with ID in place of the call's id, and that lists its tool."""

    def serve(message: Message) -> Iterable[Message | None]:
        if message.get("method") == "tools/list":
            tools = {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}
            yield {
                "id": message["id"],
                "result": {**tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"},
            }
        elif message.get("method") == "tools/call":
            for each in said:
                yield each and {key: message["id"] if value == "ID" else value for key, value in each.items()}

    return serve


def asking(*said: Message) -> Server:
    """A server that says this to a call, the last of it a request, and gives the result when that is answered."""
    calls: list[Any] = []

    def serve(message: Message) -> Iterable[Message | None]:
        if message.get("method") == "tools/call":
            calls.append(message["id"])
            yield from said
        elif message.get("method") is None:
            yield {"id": calls.pop(), "result": {**RESULT, "content": []}}
        else:
            yield from answering()(message)

    return serve


OK: Message = {"id": "ID", "result": RESULT}
SAMPLING: Message = {"messages": [], "maxTokens": 1}
ELICITATION: Message = {"message": "who?", "requestedSchema": {"type": "object", "properties": {}}}
NEWS = "has-news"
SERVERS: dict[str, Callable[[], Server]] = {
    "answers": lambda: answering(OK),
    "answers-twice": lambda: answering(OK, {"id": "ID", "error": {"code": 1, "message": "late"}}),
    "answers-another-request": lambda: answering({"id": 999, "result": {}}, {"id": "x", "result": {}}, OK),
    "answers-nobody": lambda: answering({"id": None, "error": {"code": 1, "message": "whose?"}}, OK),
    "refuses": lambda: answering({"id": "ID", "error": {"code": -32602, "message": "no", "data": {"why": [1]}}}),
    "answers-without-content": lambda: answering({"id": "ID", "result": {"resultType": "complete", "content": 7}}),
    "wants-input": lambda: answering({"id": "ID", "result": {"resultType": "input_required", "requestState": "s"}}),
    "ends": lambda: answering(None),
    "ends-after-its-answer": lambda: answering(OK, None),
    NEWS: lambda: answering({"method": "notifications/tools/list_changed"}, OK),
    "has-news-of-no-meaning": lambda: answering(
        {"method": "notifications/x"}, {"method": "notifications/cancelled"}, OK
    ),
    "asks-for-a-ping": lambda: asking({"id": 1, "method": "ping"}),
    "asks-for-roots": lambda: asking({"id": "1", "method": "roots/list"}),
    "asks-for-sampling": lambda: asking({"id": 2, "method": "sampling/createMessage", "params": SAMPLING}),
    "asks-for-input": lambda: asking({"id": 3, "method": "elicitation/create", "params": ELICITATION}),
    "asks-with-bad-params": lambda: asking({"id": 4, "method": "elicitation/create", "params": {"message": 7}}),
    "asks-for-what-there-is-not": lambda: asking({"id": 5, "method": "x/y"}),
}

TEXT = {"type": "text", "text": "ä"}
RESULTS: dict[str, Message] = {
    "of no known type": {"content": [TEXT], "resultType": "weird"},
    "of a type that is not a text": {"content": [TEXT], "resultType": 7},
    "with keys of the other era": {"content": [TEXT], "requestState": 7, "inputRequests": 8},
    "that says too much": {"content": [TEXT], "resultType": "input_required", "requestState": "s"},
    "without a type": {"content": [TEXT], "isError": True, "_meta": {"x/y": 1}},
    "with unknown keys": {"content": [TEXT | {"is": 1}], "more": 1, "structuredContent": {"a": [None]}},
    "with a structured list": {"content": [], "structuredContent": [1]},
    "with a bad part": {"content": [{"type": "video"}]},
    "with bad metadata": {"content": [], "_meta": 7},
    "with a claim that is no truth value": {"content": [], "isError": "perhaps"},
    "with a model's keys": {"content": [], "is_error": True, "structured_content": {}},
    "with a link": {"content": [{"type": "resource_link", "uri": "x:y", "name": "z"}]},
    "without content": {},
}


async def call_twice(session: ClientSession, story: Story) -> None:
    await session.list_tools()
    for _ in range(2):
        await story.end(session.call_tool("t", {"text": "ä\u2028", "n": 10**30, "nan": nan}, 10.0))


async def call_as_clients_do(session: Any, story: Story) -> None:
    await session.list_tools()
    given = {"a": None, "text": "ä\u2028", "n": 10**30, "nan": nan, "in": {"b": [None, 1.5]}}
    for arguments in (given, {}, None):
        await story.end(session.call_tool("t", arguments, 10.0, **FIRST_ROUND))


async def call_shortened(session: ClientSession, story: Story) -> None:
    shorten_tool_calls(session)
    await call_as_clients_do(session, story)


async def call_twice_and_hear_news(session: ClientSession, story: Story) -> None:
    await call_twice(session, story)
    await until(lambda: len(story.heard) == 2)


async def give_up(session: ClientSession, story: Story) -> None:
    await story.end(session.call_tool("t", {}, TIMEOUT_S))
    caller = asyncio.create_task(session.call_tool("t", {}, 10.0))
    await until(lambda: sum(b'"tools/call"' in line for line in story.sent) == 2)
    caller.cancel()
    await story.end(caller)
    await session.list_tools()


@pytest.mark.parametrize("era", ["handshake", "2026"])
@pytest.mark.parametrize("name", SERVERS)
def test_a_call_ends_as_with_the_sdk(name: str, era: str) -> None:
    act = call_twice_and_hear_news if name == NEWS else call_twice
    expected = asyncio.run(tell(sdks, era, SERVERS[name](), act))
    assert len(expected.endings) == 2
    assert asyncio.run(tell(ours, era, SERVERS[name](), act)).told() == expected.told()


@pytest.mark.parametrize("era", ["handshake", "2026"])
@pytest.mark.parametrize("name", [name for name in (*SERVERS, *RESULTS) if name != NEWS])
def test_a_shortened_call_is_that_of_the_sdk(name: str, era: str) -> None:
    def serve() -> Server:
        return SERVERS[name]() if name in SERVERS else answering({"id": "ID", "result": RESULTS[name]})

    expected = asyncio.run(tell(ours, era, serve(), call_as_clients_do))
    assert len(expected.endings) == 3
    assert asyncio.run(tell(ours, era, serve(), call_shortened)).told() == expected.told()


@pytest.mark.parametrize("era", ["handshake", "2026"])
def test_a_call_is_given_up_as_with_the_sdk(era: str) -> None:
    expected = asyncio.run(tell(sdks, era, answering(), give_up))
    assert [b'"notifications/cancelled"' in line for line in expected.sent] == [False, True, False, True, False]
    assert asyncio.run(tell(ours, era, answering(), give_up)).told() == expected.told()


async def fail(_context: Any) -> Any:
    raise KeyError("a bug")


ROOTS: Message = {"id": 7, "method": "roots/list"}
PING: Message = {"id": 8, "method": "ping"}


@pytest.mark.parametrize("way", [sdks, ours])
def test_a_request_that_the_server_cancels_is_not_answered(way: Way) -> None:
    is_answered: list[bool] = []
    has_ended: list[bool] = []

    async def end_anyway(_context: Any) -> ListRootsResult:
        with suppress(asyncio.CancelledError):
            await until(lambda: is_answered)
        has_ended.append(True)
        return ListRootsResult(roots=[])

    async def act(session: ClientSession, story: Story) -> None:
        await session.list_tools()
        await story.end(session.call_tool("t", {}, 10.0))
        is_answered.append(True)
        await until(lambda: has_ended)
        await session.list_tools()

    server = asking(ROOTS, {"method": "notifications/cancelled", "params": {"requestId": "7"}}, PING)
    story = asyncio.run(tell(way, "handshake", server, act, list_roots_callback=end_anyway))
    assert [line for line in story.sent if b'"method"' not in line] == [b'{"jsonrpc":"2.0","id":8,"result":{}}']


def test_a_request_that_fails_is_an_error_and_the_session_lives(caplog: pytest.LogCaptureFixture) -> None:
    story = asyncio.run(tell(ours, "handshake", asking(ROOTS), call_twice, list_roots_callback=fail))
    answers = [json.loads(line)["error"] for line in story.sent if b'"error"' in line]
    assert answers == [{"code": -32603, "message": "Internal error"}] * 2
    assert [ending["is_error"] for ending in story.endings] == [False, False]
    assert set(caplog.messages) == {"a request of an MCP server cannot be answered"}


class Full(Scripted):
    """Its server takes no more messages."""

    async def _ready(self) -> None:
        await asyncio.Event().wait()


def test_a_request_that_nobody_awaits_leaves_no_warning() -> None:
    async def main() -> list[str]:
        warnings: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: warnings.append(context["message"]))
        dispatcher = Full(answering(), [])
        request = asyncio.create_task(dispatcher.send_raw_request("tools/call", {}))
        await until(lambda: dispatcher.is_waiting(1))
        dispatcher.end()
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        gc.collect()
        return warnings

    assert asyncio.run(main()) == []
