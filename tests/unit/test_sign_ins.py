"""Stored sign-ins: one worker renews for all, nothing is undone, and what cannot be used says why."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
import redis
from pydantic import SecretStr

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.config import OAuthSignIn
from tarsy_tasks.oauth import store
from tarsy_tasks.oauth.endpoint import CredentialsError
from tarsy_tasks.oauth.sealed import Sealer
from tarsy_tasks.oauth.sign_in import SignIn
from tarsy_tasks.worker.maskers import build_value_masker, known_secrets
from tarsy_tasks.worker.transport.access_tokens import NotSignedIn, Token, TokenSource
from tarsy_tasks.worker.transport.signed_in import SignedIn, SignInTokens
from tests.processes import until
from tests.servers.login_server import LoginServer, login_server

T = TypeVar("T")
AGE_S = 1000.0
KEY, OTHER_KEY = b"k" * 32, b"o" * 32


@pytest.fixture
def server() -> Iterator[LoginServer]:
    with login_server() as server:
        server.clients["me"] = None
        yield server


def sign_in(server: LoginServer, **changes: Any) -> SignIn:
    """As somebody did a while ago; its access token has expired."""
    given = server.give("read")
    now = time.time()
    fields: dict[str, Any] = {
        "id": "first",
        "server_url": f"{server.url}/mcp/desk",
        "resource": f"{server.url}/mcp/desk",
        "issuer": server.url,
        "token_endpoint": f"{server.url}/token",
        "client_id": "me",
        "redirect_uri": "http://127.0.0.1:1/callback",
        "access_token": given["access_token"],
        "refresh_token": given["refresh_token"],
        "signed_in_at": now - AGE_S,
        "obtained_at": now - AGE_S,
        "expires_at": now - 1,
    }
    return SignIn.model_validate(fields | changes)


class Bench:
    """Some workers, and what they share."""

    def __init__(self, client: redis.Redis, server: LoginServer, **auth: Any) -> None:
        self.client = client
        self.server = server
        self.auth = OAuthSignIn.model_validate({"type": "oauth", **auth})
        self.exchanges: list[AsyncRedisExchange] = []

    def put(self, sign_in: SignIn, key: bytes = KEY, name: str = "desk") -> None:
        self.client.execute_command(*store.build_write("desk", store.seal(Sealer([key]), name, sign_in)))

    def stored(self) -> SignIn:
        replies = [self.client.execute_command(*command) for command in store.build_read("desk")]
        found = store.read_found(Sealer([KEY]), "desk", [replies[0], replies[1], replies[2]])
        assert found is not None
        return found.sign_in

    def worker(self, limit_s: float = 10.0) -> SignedIn:
        exchange = AsyncRedisExchange(lambda: self.client.connection_pool)
        self.exchanges.append(exchange)
        tokens = SignInTokens(exchange, Sealer([KEY]))
        return SignedIn("desk", self.auth, f"{self.server.url}/mcp/desk", None, tokens, limit_s)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        async def main() -> T:
            try:
                return await asyncio.wait_for(work(), 40)
            finally:
                for exchange in self.exchanges:
                    exchange.close()

        return asyncio.run(main())

    def fetch(self, refused: str | None = None, **options: Any) -> str:
        async def work() -> str:
            token = await self.worker(**options).fetch(None if refused is None else SecretStr(refused))
            return token.value.get_secret_value()

        return self.run(work)

    def failure(self, refused: str | None = None, **options: Any) -> CredentialsError:
        with pytest.raises(CredentialsError) as caught:
            self.fetch(refused, **options)
        return caught.value


@pytest.fixture
def bench(client: redis.Redis, server: LoginServer) -> Bench:
    return Bench(client, server)


def test_of_many_workers_one_renews(bench: Bench, server: LoginServer) -> None:
    bench.put(sign_in(server))

    async def work() -> set[str]:
        tokens = await asyncio.gather(*(bench.worker().fetch(None) for _ in range(20)))
        return {token.value.get_secret_value() for token in tokens}

    (token,) = bench.run(work)
    assert token in server.access
    assert (server.renewals, server.reused) == (1, [])
    assert bench.stored().access_token.get_secret_value() == token
    assert not bench.client.exists(keys.renewal_key("desk"))
    assert bench.fetch() == token


def test_a_refused_token_is_replaced_once_by_all_workers(bench: Bench, server: LoginServer) -> None:
    valid = sign_in(server, expires_at=None)
    bench.put(valid)
    refused = valid.access_token.get_secret_value()
    assert bench.fetch() == refused
    renewed = bench.fetch(refused)
    assert renewed != refused
    # A worker that held the old one gets the new one, which is too new to be replaced as well.
    assert (bench.fetch(refused), bench.fetch(renewed)) == (renewed, renewed)
    assert server.renewals == 1


def test_a_token_that_is_revoked_when_it_is_new_is_replaced(bench: Bench, server: LoginServer) -> None:
    bench.put(sign_in(server, obtained_at=time.time(), expires_at=None))  # somebody has just signed in
    first = bench.stored().access_token.get_secret_value()
    assert bench.fetch(first) != first
    bench.put(sign_in(server))
    renewed = bench.fetch()  # by its time
    assert bench.fetch(renewed) != renewed


def test_a_worker_that_gets_the_refused_token_again_asks_soon(bench: Bench, server: LoginServer) -> None:
    """Another worker has just put it in the place of a refused one; later it is replaced at the first refusal."""
    bench.put(sign_in(server, obtained_at=time.time(), expires_at=None, is_replacement=True))

    async def work() -> list[str]:
        tokens = TokenSource("desk", bench.worker(), known_secrets.add)
        first = await tokens.current()
        again = await tokens.renew(first)
        bench.put(bench.stored().model_copy(update={"obtained_at": time.time() - AGE_S}))
        return [each.value.get_secret_value() for each in (first, again, await tokens.renew(again))]

    first, again, replaced = bench.run(work)
    assert (first, server.renewals) == (again, 1)
    assert replaced != first


@pytest.mark.parametrize("token_s", [None, -5, "soon", 10**9, float("inf"), "3600"])
def test_whatever_lifetime_is_claimed_a_refusal_counts(bench: Bench, server: LoginServer, token_s: Any) -> None:
    server.token_s = token_s
    bench.put(sign_in(server))
    first = bench.fetch()
    assert bench.fetch() == first
    bench.put(bench.stored().model_copy(update={"obtained_at": time.time() - AGE_S}))
    assert bench.fetch(first) != first


def test_a_refresh_token_that_is_refused_is_not_used_again(bench: Bench, server: LoginServer) -> None:
    bench.put(sign_in(server, refresh_token="revoked"))
    for _ in range(3):
        error = bench.failure()
        assert isinstance(error, NotSignedIn)
        assert "refused the sign-in (HTTP 400, invalid_grant: so it is)" in error.text
        assert error.text.endswith("an operator signs in with `tarsy-tasks auth login desk`")
    assert server.reused == ["revoked"]
    bench.put(sign_in(server))
    assert bench.fetch() in server.access


def test_a_token_endpoint_that_hangs_costs_its_time_limit(bench: Bench, server: LoginServer) -> None:
    bench.put(sign_in(server))
    server.broken["refresh_token"] = "hang"
    error = bench.failure(limit_s=0.3)
    assert (error.is_transient, "did not answer within 0.3 s" in error.text) == (True, True)
    server.broken["refresh_token"] = 503
    assert bench.failure().is_transient
    server.broken.clear()
    assert bench.fetch() in server.access


def test_a_refresh_token_follows_no_redirect(bench: Bench, server: LoginServer) -> None:
    bench.put(sign_in(server))
    server.broken["refresh_token"] = "redirect"
    assert "redirects to http://127.0.0.1:1/token, where credentials are not sent" in bench.failure().text
    server.broken.clear()
    assert bench.fetch() in server.access


def test_what_a_server_refuses_is_not_said_to_have_expired(bench: Bench, server: LoginServer) -> None:
    kept = sign_in(server, expires_at=None, refresh_token=None)
    bench.put(kept)
    token = kept.access_token.get_secret_value()
    assert bench.fetch() == token
    assert "its access token is not accepted any more, and cannot be renewed" in bench.failure(token).text


def test_a_worker_that_died_while_it_renewed_holds_up_nobody(bench: Bench, server: LoginServer) -> None:
    bench.put(sign_in(server))
    bench.client.set(keys.renewal_key("desk"), "lost", px=300)
    assert "another worker has not renewed" in bench.failure(limit_s=0.05).text
    assert bench.fetch() in server.access


@pytest.mark.parametrize("is_out", [True, False])
def test_a_renewal_undoes_no_sign_in_or_out(bench: Bench, server: LoginServer, is_out: bool) -> None:
    bench.put(sign_in(server))
    server.broken["refresh_token"] = "held"
    again = sign_in(server, id="second", expires_at=None)

    async def work() -> str:
        fetching = asyncio.create_task(bench.worker().fetch(None))
        await until(lambda: server.forms("/token"))
        if is_out:
            bench.client.execute_command(*store.build_delete("desk"))
        else:
            bench.put(again)
        server.released.set()
        return (await fetching).identity

    if is_out:
        with pytest.raises(NotSignedIn, match="nobody has signed in"):
            bench.run(work)
        assert not bench.client.exists(keys.sign_in_key("desk"))
    else:
        assert bench.run(work) == "second"
        assert bench.stored() == again


def test_what_cannot_be_read_says_why(bench: Bench, server: LoginServer) -> None:
    assert "nobody has signed in" in bench.failure().text
    bench.put(sign_in(server), OTHER_KEY)
    assert "was encrypted with another TARSY_TOKEN_KEY" in bench.failure().text
    bench.put(sign_in(server), name="other")
    assert "what is stored is damaged" in bench.failure().text
    bench.put(sign_in(server))
    sealed = bench.client.get(keys.sign_in_key("desk"))
    assert isinstance(sealed, bytes)
    for damaged in (b"", b"x", sealed[:-4], sealed[:20] + b"A" + sealed[21:], sealed + b"\xff", b"2" + sealed[1:]):
        bench.client.set(keys.sign_in_key("desk"), damaged, ex=60)
        assert "what is stored is damaged" in bench.failure().text
    bench.client.set(keys.sign_in_key("desk"), Sealer([KEY]).seal(keys.sign_in_key("desk"), b'{"v": 9}'), ex=60)
    assert "what is stored is of another version" in bench.failure().text
    assert server.requests == []


def test_a_sign_in_is_for_one_address_issuer_and_client(client: redis.Redis, server: LoginServer) -> None:
    for changes, auth, said in (
        ({"server_url": f"{server.url}/mcp/else"}, {}, "`url` has changed"),
        ({}, {"issuer": "https://else.example.com"}, "`issuer` has changed"),
        ({}, {"client_id": "else"}, "`client_id` has changed"),
    ):
        bench = Bench(client, server, **auth)
        bench.put(sign_in(server, **changes))
        assert said in bench.failure().text
    assert server.requests == []


def test_former_keys_open_and_the_first_one_seals() -> None:
    sealed = Sealer([OTHER_KEY]).seal("place", b"text")
    both = Sealer([KEY, OTHER_KEY])
    assert both.open("place", sealed) == b"text"
    assert Sealer([KEY]).open("place", both.seal("place", b"text")) == b"text"


def test_calls_do_not_wait_for_a_renewal_in_time(bench: Bench, server: LoginServer) -> None:
    near = sign_in(server, expires_at=time.time() + 30)
    bench.put(near)
    server.broken["refresh_token"] = "held"

    async def work() -> None:
        worker = bench.worker()
        first = asyncio.create_task(worker.fetch(None))
        await until(lambda: server.forms("/token"))
        # Another worker does not wait for it, nor do the calls of a worker that has the token.
        assert (await bench.worker().fetch(None)).value == near.access_token
        server.released.set()
        assert (await first).value == bench.stored().access_token != near.access_token

    bench.run(work)


def test_a_new_refresh_token_outlives_its_connection(bench: Bench, server: LoginServer) -> None:
    """It is stored when Redis takes writes again."""
    bench.put(sign_in(server))
    server.broken["refresh_token"] = "held"

    async def work() -> str:
        worker = bench.worker()
        fetching = asyncio.create_task(worker.fetch(None))
        await until(lambda: server.forms("/token"))
        bench.client.execute_command("CLIENT", "PAUSE", 500, "WRITE")
        bench.client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        server.released.set()
        return (await fetching).value.get_secret_value()

    assert bench.run(work) == bench.stored().access_token.get_secret_value()
    assert server.renewals == 1


def test_a_refusal_during_a_look_is_not_overlooked() -> None:
    """What was asked for before the refusal brings the refused token again."""
    refused: list[str | None] = []

    class Giver:
        def __init__(self) -> None:
            self.goes_on = asyncio.Event()

        async def fetch(self, value: SecretStr | None) -> Token:
            refused.append(None if value is None else value.get_secret_value())
            await self.goes_on.wait()
            return Token(SecretStr("t0ken-first" if value is None else "t0ken-second"), 0.0, float("inf"))

    async def work() -> list[str]:
        giver = Giver()
        giver.goes_on.set()
        tokens = TokenSource("desk", giver, known_secrets.add)
        first = await tokens.current()
        giver.goes_on.clear()
        looking = asyncio.create_task(tokens.look())
        await until(lambda: len(refused) == 2)
        renewing = [asyncio.create_task(tokens.renew(first)) for _ in range(3)]
        for _ in range(3):  # iterations of the event loop: they have begun
            await asyncio.sleep(0)
        giver.goes_on.set()
        await looking
        return [(await each).value.get_secret_value() for each in renewing]

    assert asyncio.run(work()) == ["t0ken-second"] * 3
    assert refused == [None, None, "t0ken-first"]


def test_only_the_last_tokens_are_masked_for_good() -> None:
    """Or a worker whose tokens live for minutes would spend a second of its loop on each of them after some days."""
    given = [f"t0ken-of-a-short-life-{n:04}" for n in range(20)]

    class Giver:
        def __init__(self) -> None:
            self.left = iter(given)

        async def fetch(self, refused: SecretStr | None) -> Token:
            return Token(SecretStr(next(self.left)), 0.0, float("inf"))

    async def work() -> None:
        tokens = TokenSource("desk", Giver(), known_secrets.add)
        for _ in given:
            await tokens.look()

    asyncio.run(work())
    masker = build_value_masker()
    assert [token for token in given if masker.mask(f"x {token} x") != f"x {token} x"] == given[-3:]
