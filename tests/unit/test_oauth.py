"""Access tokens: fetched once for all, renewed in time, and what becomes of a token endpoint that fails."""

import asyncio
import base64
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from pydantic import SecretStr

from tarsy_tasks.config import OAuthClientCredentials
from tarsy_tasks.oauth.endpoint import CredentialsError
from tarsy_tasks.worker.transport.access_tokens import TokenSource
from tarsy_tasks.worker.transport.client_credentials import ClientCredentials
from tests.processes import until
from tests.servers.guarded import Guarded, guarded

T = TypeVar("T")
SECRET = "cl1ent/s+cret"


@pytest.fixture
def server() -> Iterator[Guarded]:
    with guarded() as server:
        yield server


def source(server: Guarded, kind: str = "plain", *, fetch_s: float = 10.0, **options: Any) -> TokenSource:
    options = {"token_url": f"{server.url}/token/{kind}"} | options
    auth = OAuthClientCredentials(
        type="oauth_client_credentials", client_id="me:1", client_secret=SecretStr(SECRET), **options
    )
    return TokenSource("s", ClientCredentials("s", auth, None, fetch_s), lambda _: None)


def run(use: Callable[[TokenSource], Awaitable[T]], tokens: TokenSource) -> T:
    async def main() -> T:
        return await use(tokens)

    return asyncio.run(main())


async def current(tokens: TokenSource) -> str:
    return (await tokens.current()).value.get_secret_value()


async def failure(tokens: TokenSource) -> CredentialsError:
    with pytest.raises(CredentialsError) as caught:
        await tokens.current()
    assert SECRET not in str(caught.value)
    return caught.value


def test_concurrent_requests_share_one_cached_token(server: Guarded) -> None:
    async def use(tokens: TokenSource) -> list[str]:
        at_once = await asyncio.gather(*(current(tokens) for _ in range(50)))
        return [*at_once, await current(tokens)]

    assert set(run(use, source(server))) == {"token-1"}
    assert server.tokens == 1


def test_a_token_request_has_the_form_of_the_standard(server: Guarded) -> None:
    run(current, source(server, scopes=["a", "b"], audience="https://api", resource="https://h/mcp"))
    (asked,) = server.requests
    pair = base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")).decode()
    assert pair == "me%3A1:cl1ent%2Fs%2Bcret"
    form = "grant_type=client_credentials&scope=a+b&audience=https%3A%2F%2Fapi&resource=https%3A%2F%2Fh%2Fmcp"
    assert asked.body == form

    run(current, source(server, client_auth="post"))
    asked = server.requests[-1]
    assert "authorization" not in asked.headers
    assert asked.body.endswith("client_id=me%3A1&client_secret=cl1ent%2Fs%2Bcret")


def test_a_token_is_renewed_before_it_expires_without_a_wait(server: Guarded) -> None:
    server.token_s = "6"  # as text, as some have it

    async def use(tokens: TokenSource) -> None:
        assert await current(tokens) == "token-1"
        server.gate.clear()

        async def next_is_fetched() -> bool:
            assert await current(tokens) == "token-1"
            return server.tokens > 1

        await until(next_is_fetched)
        # The next one is being fetched, and the first is still good.
        assert await current(tokens) == "token-1"
        server.gate.set()

        seen = ["token-1"]

        async def is_renewed() -> bool:
            seen.append(await current(tokens))
            return seen[-1] != seen[0]

        await until(is_renewed)
        assert (seen[-1], server.tokens) == ("token-2", 2)

    async def in_time(tokens: TokenSource) -> None:
        await asyncio.wait_for(use(tokens), 20)

    run(in_time, source(server))


@pytest.mark.parametrize("token_s", [None, 0, -5, "soon", True, [1], float("inf")])
def test_a_token_without_a_valid_expiry_is_used_until_rejected(server: Guarded, token_s: Any) -> None:
    server.token_s = token_s

    async def use(tokens: TokenSource) -> list[str]:
        return [await current(tokens), await current(tokens)]

    assert run(use, source(server)) == ["token-1", "token-1"]


def test_a_refused_token_is_replaced_once_and_not_again_at_once(server: Guarded) -> None:
    async def use(tokens: TokenSource) -> list[str]:
        first = await tokens.current()
        seconds = await asyncio.gather(*(tokens.renew(first) for _ in range(20)))
        third = await tokens.renew(seconds[0])
        return [each.value.get_secret_value() for each in (first, *seconds, third)]

    assert run(use, source(server)) == ["token-1", *["token-2"] * 21]
    assert server.tokens == 2


def test_the_issuer_s_metadata_name_the_token_endpoint(server: Guarded) -> None:
    assert run(current, source(server, token_url=None, issuer=f"{server.url}/good")) == "token-1"
    error = run(failure, source(server, token_url=None, issuer=f"{server.url}/impostor"))
    assert "are those of another issuer" in error.text
    assert not error.is_transient
    error = run(failure, source(server, token_url=None, issuer=f"{server.url}/plain"))
    assert "have an unencrypted token endpoint" in error.text
    error = run(failure, source(server, token_url=None, issuer=f"{server.url}/nothing"))
    assert "publishes no metadata with a token endpoint" in error.text
    assert server.tokens == 1


@pytest.mark.parametrize(
    "issuer", ["http://login.example.com", "http://10.0.0.1/realm", "HTTP://127.0.0.1.example.com"]
)
def test_an_issuer_without_encryption_is_not_asked(server: Guarded, issuer: str) -> None:
    error = run(failure, source(server, token_url=None, issuer=issuer))
    assert "is not encrypted" in error.text
    assert not error.is_transient


@pytest.mark.parametrize(
    ("kind", "text", "is_transient"),
    [
        ("html", "answered with text/html that contains no access token; check its address", False),
        ("endless", "that contains no access token", False),
        ("refuses", "refused client_id me:1 (HTTP 401, invalid_client: no client has", False),
        ("404", "answered HTTP 404; check its address", False),
        ("500", "answered HTTP 500", True),
        ("429", "answered HTTP 429", True),
        ("mac", "returns tokens of type 'mac', expected Bearer", False),
        ("broken", "returns a token that is not valid in a header", False),
    ],
)
def test_an_error_of_the_token_endpoint_has_its_url_and_cause(
    server: Guarded, kind: str, text: str, is_transient: bool
) -> None:
    error = run(failure, source(server, kind, client_auth="post"))
    assert error.text.startswith(f"the token endpoint {server.url}/token/{kind} ")
    assert text in error.text
    assert error.is_transient is is_transient


def test_the_client_s_secret_follows_no_redirect(server: Guarded) -> None:
    with guarded() as other:
        server.elsewhere = other.url
        error = run(failure, source(server, "redirects"))
        assert other.requests == []
    assert f"redirects to {other.url}/token/plain, where credentials are not sent" in error.text
    assert not error.is_transient


def test_an_unreachable_token_endpoint_fails_within_its_timeout(server: Guarded) -> None:
    error = run(failure, source(server, "hangs", fetch_s=0.3))
    assert "did not answer within 0.3 s" in error.text
    assert error.is_transient
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        error = run(failure, source(server, token_url=f"http://127.0.0.1:{unheard.getsockname()[1]}/"))
    assert "cannot be reached (ConnectError" in error.text
    assert error.is_transient


def test_a_token_endpoint_that_failed_is_left_alone_for_a_moment(server: Guarded) -> None:
    async def use(tokens: TokenSource) -> None:
        for _ in range(30):
            await failure(tokens)

    run(use, source(server, "refuses"))
    assert len(server.requests) == 1


def test_a_token_that_cannot_be_renewed_is_used_to_its_end(server: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    server.token_s = 1

    async def use(tokens: TokenSource) -> None:
        await tokens.current()
        grant = tokens._grant
        assert isinstance(grant, ClientCredentials)
        grant.auth = grant.auth.model_copy(update={"token_url": f"{server.url}/token/500"})

        async def is_another() -> bool:
            return await current(tokens) != "token-1"

        with pytest.raises(CredentialsError):
            await until(is_another)

    run(use, source(server))
    assert "was not renewed: the token endpoint" in caplog.text
