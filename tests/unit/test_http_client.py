"""What the HTTP client makes of connections that fail, and of cookies."""

import asyncio
from typing import cast

import httpx2
import pytest
from mcp import MCPError
from mcp_types import ErrorData

from tarsy_tasks.worker.transport.http_client import HttpClient, is_same_origin, ssl_context
from tarsy_tasks.worker.transport.transport_errors import TRANSPORT_DOWN
from tests.servers.plain_http import PlainHandler, PlainServer, serving

REFUSES_TLS = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


async def _error_from(said: bytes) -> ErrorData:
    """The error of a request to https, from a server that says this and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(said)
        await writer.drain()
        writer.close()

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        HttpClient(ssl_context(verify=True, ca_file=None), httpx2.Timeout(10)) as client,
    ):
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(MCPError) as found:
            await client.post(httpx2.URL(f"https://127.0.0.1:{port}/mcp"), b"{}", {})
    return found.value.error


def test_a_tls_failure_is_not_mistaken_for_a_stopped_server() -> None:
    error = asyncio.run(_error_from(REFUSES_TLS))
    assert error.code == TRANSPORT_DOWN
    assert error.message.startswith("no TLS connection: ")
    assert error.data == {"kind": "ConnectError", "never_sent": True, "tls": True}


def test_a_server_that_hangs_up_in_the_handshake_is_down() -> None:
    error = asyncio.run(_error_from(b""))
    assert error.code == TRANSPORT_DOWN
    assert error.data == {"kind": "ConnectError", "never_sent": True}


def test_what_is_meant_for_one_address_goes_to_its_origin_only() -> None:
    def same(here: str, there: str) -> bool:
        return is_same_origin(httpx2.URL(here), httpx2.URL(there))

    assert same("http://h/sse", "http://h:80/messages")
    assert same("http://h/sse", "https://h/sse")
    assert same("http://user:pass@h/", "http://user:pass@h/x")
    assert not same("https://h/sse", "http://h/sse")
    assert not same("http://h:8000/", "https://h:8000/")
    assert not same("http://h/", "http://h.example/")
    assert not same("http://h/", "http://user:pass@h/")


class Cookies(PlainHandler):
    """Sets the cookies that the server has next."""

    def do_GET(self) -> None:
        server = cast("CookieServer", self.server)
        server.received.append(self.headers.get("Cookie", ""))
        self.send_response(200)
        for cookie in next(server.cookies):
            self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Length", "0")
        self.end_headers()


class CookieServer(PlainServer):
    def __init__(self, *cookies: list[str]) -> None:
        super().__init__(Cookies)
        self.cookies = iter([*cookies, []])
        self.received: list[str] = []


def _cookies_after(monkeypatch: pytest.MonkeyPatch, is_proxied: bool, *cookies: list[str]) -> list[str]:
    """The names of the cookies that a client has after responses that set these."""

    async def main() -> None:
        async with HttpClient(ssl_context(verify=True, ca_file=None), httpx2.Timeout(10)) as client:
            for _ in range(len(cookies) + 1):
                response = await client.request("GET", httpx2.URL("http://h.invalid/" if is_proxied else url), b"", {})
                await response.aclose()

    with serving(CookieServer(*cookies)) as server:
        url = server.url
        if is_proxied:
            monkeypatch.setenv("http_proxy", url)
        asyncio.run(main())
        return [each.partition("=")[0] for each in server.received[-1].split("; ")]


@pytest.mark.parametrize("is_proxied", [False, True])
def test_a_server_can_set_few_cookies_and_none_that_is_large(monkeypatch: pytest.MonkeyPatch, is_proxied: bool) -> None:
    many = [[f"c{turn}-{number}=x" for number in range(40)] for turn in range(3)]
    found = _cookies_after(monkeypatch, is_proxied, ["first=1", f"large={'x' * 4096}"], *many, ["first=2"])
    assert len(found) == 50
    assert "first" in found
    assert "large" not in found


def test_of_very_many_cookies_at_once_none_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _cookies_after(monkeypatch, False, [f"c{number}=x" for number in range(90)]) == [""]
