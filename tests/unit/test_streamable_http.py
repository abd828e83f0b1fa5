"""Streamable HTTP over the wire: streams that end early are continued, cookies are kept, proxies are used."""

import asyncio
import gc
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import CallToolResult

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.worker.sessions.connections import build_connections
from tarsy_tasks.worker.sessions.opening import SessionContext
from tarsy_tasks.worker.sessions.session import Session
from tests.processes import until
from tests.servers.plain_http import Message, PlainHandler, PlainServer, event, serving

RESULTS: dict[str, Message] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "s", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": "here"}]},
}
CHANGED = event({"method": "notifications/tools/list_changed"})


class Handler(PlainHandler):
    """A server of the handshake era; how a call is answered is up to the test."""

    server: "Server"

    def do_POST(self) -> None:
        request = json.loads(self.read_body())
        method = request.get("method", "")
        self.server.requests.append((method, dict(self.headers.items())))
        if "id" not in request:
            self.reply(202)
        elif method == "tools/call":
            self.server.calls.append(request["id"])
            self.server.answer(self, request["id"])
        elif method in RESULTS:
            headers = {"Mcp-Session-Id": "s1", "Set-Cookie": "route=a"} if method == "initialize" else {}
            self.reply_json({"id": request["id"], "result": RESULTS[method]}, headers=headers)
        else:
            self.reply(400)

    def do_GET(self) -> None:
        last_id = self.headers.get("Last-Event-ID", "")
        self.server.requests.append((f"GET {last_id}".strip(), dict(self.headers.items())))
        if last_id:
            self.server.resume(self, last_id)
        else:
            self.server.listen(self)

    def do_DELETE(self) -> None:
        self.server.requests.append(("DELETE", dict(self.headers.items())))
        self.server.forget(self)

    def say(self, *events: bytes) -> None:
        """Events, after which the stream ends."""
        self.reply(200, b"".join(events), {"Content-Type": "text/event-stream"})


class Server(PlainServer):
    """What it says to a call, to a stream that is continued, and to one for what is unasked; it has none by default.

    Attributes:
        requests: All that came: the method, and the headers.
    """

    def __init__(self) -> None:
        super().__init__(Handler)
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.calls: list[Any] = []
        self.answer: Callable[[Handler, Any], None] = lambda handler, number: handler.say(self.result(number))
        self.resume: Callable[[Handler, str], None] = lambda handler, _: handler.reply(405)
        self.listen: Callable[[Handler], None] = lambda handler: handler.reply(405)
        self.forget: Callable[[Handler], None] = lambda handler: handler.reply(200)

    def result(self, number: Any) -> bytes:
        return event({"id": number, "result": RESULTS["tools/call"]})

    def methods(self, prefix: str) -> list[str]:
        return [method for method, _ in self.requests if method.startswith(prefix)]

    def headers_of(self, method: str) -> dict[str, str]:
        return next(headers for found, headers in self.requests if found == method)


async def act(session: Session) -> CallToolResult:
    return await session.call_tool("act", {}, timeout_s=10)


def talk(url: str, work: Callable[[Session], Any] = act) -> Any:
    """What comes of work with a session."""

    async def main() -> Any:
        config = ServerConfig.model_validate({"name": "s", "url": f"{url}/mcp"})
        connection = build_connections([config], SessionContext())["s"]
        async with asyncio.timeout(20):
            session = await connection.connected()
            try:
                return await work(session)
            finally:
                await connection.close()

    return asyncio.run(main())


def prime(number: int) -> bytes:
    return b"id: %d\nretry: 50\ndata:\n\n" % number


def test_an_answer_is_fetched_where_its_stream_ended() -> None:
    with serving(Server()) as server:
        server.answer = lambda handler, _: handler.say(prime(7))
        answers = iter([lambda h: h.say(prime(8)), lambda h: h.reply(503), lambda h: h.say(server.result(99))])
        server.resume = lambda handler, _: next(answers)(handler)
        assert talk(server.url).content[0].text == "here"
        assert server.methods("GET ") == ["GET 7", "GET 8", "GET 8"]
        assert len(server.calls) == 1
        assert server.headers_of("GET 7")["mcp-session-id"] == "s1"


def test_a_stream_that_cannot_be_continued_is_given_up() -> None:
    with serving(Server()) as server:
        server.answer = lambda handler, _: handler.say(prime(7))
        with pytest.raises(MCPError, match="SSE stream ended and reconnection attempts were exhausted"):
            talk(server.url)
        assert server.methods("GET ") == ["GET 7", "GET 7"]


def test_what_is_unasked_comes_over_a_stream_that_is_continued() -> None:
    ended = threading.Event()

    async def wait_for_lists(session: Session) -> None:
        await until(lambda: len(server.methods("tools/list")) == 3)

    def resume(handler: Handler, _: str) -> None:
        handler.begin_stream()
        handler.wfile.write(CHANGED)
        ended.wait(20)

    with serving(Server()) as server:
        server.listen = lambda handler: handler.say(prime(3), CHANGED)
        server.resume = resume
        talk(server.url, wait_for_lists)
        ended.set()
        assert server.methods("GET") == ["GET", "GET 3"]


def test_a_stream_may_end_while_its_session_is_closed() -> None:
    closing, continued = threading.Event(), threading.Event()
    failures: list[dict[str, Any]] = []

    def listen(handler: Handler) -> None:
        handler.begin_stream()
        handler.wfile.write(prime(3))
        closing.wait(20)
        handler.close_connection = True

    def resume(handler: Handler, _: str) -> None:
        continued.set()
        handler.reply(405)

    def forget(handler: Handler) -> None:
        closing.set()
        continued.wait(20)
        handler.reply(200)

    async def wait_for_stream(_: Session) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        await until(lambda: server.methods("GET"))

    with serving(Server()) as server:
        server.listen, server.resume, server.forget = listen, resume, forget
        talk(server.url, wait_for_stream)
        assert server.methods("GET") == ["GET", "GET 3"]
    gc.collect()
    assert not failures


def test_the_connection_of_a_stream_is_used_again() -> None:
    def answer(handler: Handler, number: Any) -> None:
        """The end of the stream comes in a chunk of its own."""
        ports.append(handler.client_address[1])
        handler.begin(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        text = server.result(number)
        handler.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        handler.wfile.flush()
        handler.wfile.write(b"0\r\n\r\n")

    async def act_until_one_is_used_again(session: Session) -> None:
        """The end of a stream may come after the next call was sent."""
        while len(ports) < 20 and len(set(ports)) == len(ports):
            await act(session)

    ports: list[int] = []
    with serving(Server()) as server:
        server.answer = answer
        talk(server.url, act_until_one_is_used_again)
    assert len(set(ports)) < len(ports)


def test_a_session_has_its_headers_and_cookies_until_it_ends() -> None:
    with serving(Server()) as server:
        talk(server.url)
        for method in ("notifications/initialized", "tools/call", "DELETE"):
            headers = server.headers_of(method)
            found = [headers[name] for name in ("mcp-session-id", "mcp-protocol-version", "Cookie")]
            assert found == ["s1", "2025-06-18", "route=a"], method
        assert "Cookie" not in server.headers_of("initialize")


@pytest.mark.parametrize("begun", [True, False])
def test_a_call_ends_with_its_session(begun: bool) -> None:
    ended = threading.Event()

    def answer(handler: Handler, _: Any) -> None:
        if begun:
            handler.begin_stream()
            handler.wfile.write(b": one moment\n\n")
        ended.wait(20)
        handler.close_connection = True

    async def close_in_mid_call(session: Session) -> None:
        call = asyncio.create_task(act(session))
        await until(lambda: server.calls)
        await session.close()
        with pytest.raises(MCPError, match=r"^Connection closed$"):
            await call

    with serving(Server()) as server:
        server.answer = answer
        talk(server.url, close_in_mid_call)
        ended.set()
        assert server.methods("DELETE") == ["DELETE"]


def test_a_call_that_is_answered_elsewhere_is_not_sent_again() -> None:
    with serving(Server()) as server:
        server.answer = lambda handler, _: handler.reply(303, headers={"Location": "/other"})
        with pytest.raises(MCPError, match=r"redirect to .*/other was not followed"):
            talk(server.url)
        assert len(server.calls) == 1


def test_requests_go_over_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Server()) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert talk("http://mcp.invalid").content[0].text == "here"
        assert proxy.headers_of("tools/call")["Host"] == "mcp.invalid"


@pytest.mark.parametrize("is_stream", [False, True])
def test_an_answer_settles_no_request_that_it_is_not_for(is_stream: bool) -> None:
    both_sent, settled = threading.Event(), threading.Event()

    def answer(handler: Handler, number: Any) -> None:
        """The response to the first call has the id of the second one."""
        if len(server.calls) == 1:
            both_sent.wait(20)
            wrong = {"id": server.calls[1], "result": {"content": [{"type": "text", "text": "not for it"}]}}
            handler.say(event(wrong)) if is_stream else handler.reply_json(wrong)
        else:
            both_sent.set()
            settled.wait(20)
            handler.reply_json({"id": number, "result": RESULTS["tools/call"]})

    async def call_twice(session: Session) -> list[Any]:
        first = asyncio.create_task(session.call_tool("act", {}, timeout_s=2))
        await until(lambda: server.calls)
        second = asyncio.create_task(act(session))
        ended = await asyncio.gather(first, return_exceptions=True)
        settled.set()
        return [*ended, await second]

    with serving(Server()) as server:
        server.answer = answer
        first, second = talk(server.url, call_twice)
    assert second.content[0].text == "here"
    if not is_stream:  # whatever comes in the stream of a request is for it
        assert isinstance(first, MCPError)
        assert "timed out" in str(first)
