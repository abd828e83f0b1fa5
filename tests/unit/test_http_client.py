"""What the HTTP client makes of connections that fail."""

import asyncio

import httpx2
import pytest
from mcp import MCPError
from mcp_types import ErrorData

from tarsy_tasks.worker.transport.http_client import HttpClient, is_same_origin, ssl_context
from tarsy_tasks.worker.transport.transport_errors import TRANSPORT_DOWN

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
