"""Credentials go with every request to the configured server, and to no other."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from mcp import MCPError

from tarsy_tasks.config import ServerConfig, resolve_variables
from tarsy_tasks.config.resolved import ResolvedServer
from tarsy_tasks.worker.transport.credentials import Credentials, address_of
from tarsy_tasks.worker.transport.http_client import HttpClient, ssl_context
from tarsy_tasks.worker.transport.transport_errors import AUTH_FAILED
from tests.servers.guarded import Guarded, Request, guarded

SECRET = "hunter2-c0ffee"
CALL = b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}}'


@pytest.fixture
def server() -> Iterator[Guarded]:
    with guarded() as server:
        yield server


def build_client(resolved: ResolvedServer, credentials: Credentials) -> HttpClient:
    tls = ssl_context(verify=True, ca_file=None)
    return HttpClient(tls, httpx2.Timeout(10), origin=address_of(resolved), credentials=credentials)


async def post(client: HttpClient, url: str) -> httpx2.Response:
    response = await client.post(httpx2.URL(url), CALL, {"content-type": "application/json"})
    await response.aread()
    return response


def send(url: str, *targets: str, **entry: Any) -> list[httpx2.Response]:
    """Send calls as a worker that is configured so."""
    config = ServerConfig.model_validate({"name": "s", "url": url, **entry})
    resolved = resolve_variables(config, {})
    credentials = Credentials(config, lambda _: None)
    credentials.use(resolved)

    async def main() -> list[httpx2.Response]:
        async with build_client(resolved, credentials) as client:
            return [await post(client, target) for target in targets or [str(address_of(resolved))]]

    return asyncio.run(main())


def only(server: Guarded) -> Request:
    (request,) = server.requests
    return request


@pytest.mark.parametrize(
    ("entry", "header", "value"),
    [
        ({"auth": {"type": "bearer", "token": "t"}}, "authorization", "Bearer t"),
        ({"auth": {"type": "api_key", "key": "k"}}, "x-api-key", "k"),
        ({"auth": {"type": "api_key", "key": "k", "name": "X-Mine"}}, "x-mine", "k"),
        ({"headers": {"X-Mine": "m"}}, "x-mine", "m"),
        ({"headers": {"User-Agent": "mine"}}, "user-agent", "mine"),
    ],
)
def test_a_credential_is_sent_in_its_header(server: Guarded, entry: dict[str, Any], header: str, value: str) -> None:
    send(f"{server.url}/mcp/x", **entry)
    assert only(server).headers[header] == value


def test_headers_of_the_protocol_stay_those_of_the_protocol(server: Guarded) -> None:
    send(f"{server.url}/mcp/x", headers={"Content-Type": "text/plain", "X-Mine": ""})
    assert only(server).headers["content-type"] == "application/json"
    assert "x-mine" not in only(server).headers


def test_a_key_in_the_query_joins_what_the_address_has(server: Guarded) -> None:
    send(f"{server.url}/mcp/x?page=2&key=old", auth={"type": "api_key", "key": "a b&c", "in": "query", "name": "key"})
    assert only(server).path == "/mcp/x?page=2&key=a+b%26c"


def test_a_user_in_the_url_is_sent_unless_auth_is_configured(server: Guarded) -> None:
    url = server.url.replace("://", "://me:p%40ss@") + "/mcp/x"
    send(url)
    assert only(server).headers["authorization"] == "Basic bWU6cEBzcw=="
    send(url, auth={"type": "bearer", "token": "t"})
    assert server.requests[-1].headers["authorization"] == "Bearer t"


@pytest.mark.parametrize(
    "entry",
    [
        {"auth": {"type": "bearer", "token": SECRET}},
        {"auth": {"type": "api_key", "key": SECRET}},
        {"auth": {"type": "api_key", "key": SECRET, "in": "query", "name": "key"}},
        {"headers": {"X-Mine": SECRET, "Authorization": SECRET, "Cookie": SECRET}},
    ],
)
def test_nothing_is_sent_to_another_origin(server: Guarded, entry: dict[str, Any]) -> None:
    with guarded() as other:
        server.elsewhere = other.url
        own = f"{server.url}/mcp/x"
        server.keys["x"] = ("host", own.split("/")[2])
        answers = send(own, own, f"{server.url}/redirect/307", **entry)
        assert "cookie-5" in answers[0].headers["set-cookie"]  # a jar knows no ports
        assert answers[1].status_code == 307
        with pytest.raises(MCPError, match="is on another origin; credentials are not sent there") as refused:
            send(own, own, f"{other.url}/mcp/y", **entry)
        assert refused.value.code == AUTH_FAILED
        assert other.requests == []
    assert SECRET not in json.dumps([answer.text for answer in answers])


def test_a_rejected_secret_is_read_from_its_file_again(server: Guarded, tmp_path: Any) -> None:
    path = tmp_path / "key"
    path.write_text("old\n")
    server.keys["x"] = ("X-API-Key", "newer-key")
    entry = {"auth": {"type": "api_key", "key": f"${{file:{path}}}"}}
    own = f"{server.url}/mcp/x"
    config = ServerConfig.model_validate({"name": "s", "url": own, **entry})
    resolved = resolve_variables(config, {})
    learned: set[str] = set()
    credentials = Credentials(config, learned.update)
    credentials.use(resolved)

    async def main() -> list[int]:
        async with build_client(resolved, credentials) as client:
            statuses = [(await post(client, own)).status_code]
            path.write_text("newer-key\n")
            statuses += [(await post(client, own)).status_code for _ in range(2)]
            path.unlink()
            server.keys["x"] = ("X-API-Key", "newest")
            return [*statuses, (await post(client, own)).status_code]

    assert asyncio.run(main()) == [401, 200, 200, 401]
    # Refused and not replaced, refused and replaced, taken, refused and gone.
    assert [each.headers["x-api-key"] for each in server.requests] == ["old", "old", *["newer-key"] * 3]
    assert learned == {"newer-key"}


def test_a_token_that_was_withdrawn_is_replaced_once(server: Guarded) -> None:
    auth = {
        "type": "oauth_client_credentials",
        "token_url": f"{server.url}/token/plain",
        "client_id": "c",
        "client_secret": SECRET,
    }
    own = f"{server.url}/mcp/oauth"
    server.withdrawn = {"token-1"}
    answers = send(own, own, own, auth=auth)
    assert [answer.status_code for answer in answers] == [200, 200]
    assert server.tokens == 2
    server.withdrawn = {f"token-{number}" for number in range(100)}
    server.requests.clear()
    assert [answer.status_code for answer in send(own, own, own, own, auth=auth)] == [401, 401, 401]
    assert len(server.asked_for_tokens()) == 2
