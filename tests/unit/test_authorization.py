"""Signing in: which authorization server is believed, what it is asked, and what of its answers counts."""

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tarsy_tasks.config import OAuthSignIn
from tarsy_tasks.oauth.authorization import Authorization, begin_authorization, complete_authorization
from tarsy_tasks.oauth.client import Client
from tarsy_tasks.oauth.endpoint import CredentialsError, Exchange
from tarsy_tasks.oauth.revocation import revoke
from tarsy_tasks.oauth.sign_in import SignIn
from tests.servers.login_server import LoginServer, login_server

REDIRECT = "http://127.0.0.1:7777/callback"
KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def server() -> Iterator[LoginServer]:
    with login_server() as server:
        yield server


def pem(key: Any) -> str:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def config(**auth: Any) -> OAuthSignIn:
    return OAuthSignIn.model_validate({"type": "oauth", **auth})


async def begin(server: LoginServer, url: str = "", former: SignIn | None = None, **auth: Any) -> Authorization:
    scopes = auth.pop("more", ())
    async with Exchange() as exchange:
        return await begin_authorization(
            exchange, url or f"{server.url}/mcp/desk", config(**auth), REDIRECT, former, scopes
        )


async def approve(authorization: Authorization, **changes: str | None) -> str:
    """The address that the browser is sent to, with these parameters replaced or removed."""
    async with httpx2.AsyncClient() as browser:
        address = (await browser.get(authorization.url)).headers["location"]
    found = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()} | changes
    return f"{REDIRECT}?{urlencode({name: value for name, value in found.items() if value is not None})}"


async def complete(authorization: Authorization, address: str) -> SignIn:
    async with Exchange() as exchange:
        return await complete_authorization(exchange, authorization, address)


def sign_in(server: LoginServer, former: SignIn | None = None, **auth: Any) -> SignIn:
    async def work() -> SignIn:
        authorization = await begin(server, former=former, **auth)
        return await complete(authorization, await approve(authorization))

    return asyncio.run(work())


def failure(server: LoginServer, url: str = "", **auth: Any) -> str:
    with pytest.raises(CredentialsError) as caught:
        asyncio.run(begin(server, url, **auth))
    return caught.value.text


def test_a_client_registers_itself_once(server: LoginServer) -> None:
    found = sign_in(server)
    assert (found.client_id, found.is_registered, found.scopes) == ("client-0", True, ["read"])
    assert (found.issuer, found.resource) == (server.url, f"{server.url}/mcp/desk")
    again = sign_in(server, former=found)
    assert again.client_id == "client-0"
    assert sign_in(server, former=found.model_copy(update={"issuer": "https://else.example"})).client_id == "client-1"
    assert (
        sign_in(server, former=found.model_copy(update={"redirect_uri": "http://127.0.0.1:1/"})).client_id == "client-2"
    )


def test_scopes_are_those_that_are_needed_and_those_added(server: LoginServer) -> None:
    found = sign_in(server)
    assert sign_in(server, former=found, more=["write"]).scopes == ["read", "write"]
    assert sign_in(server, former=found, scopes=["admin"], more=["write"]).scopes == ["admin", "read", "write"]
    server.metadata["scopes_supported"] = ["read", "offline_access"]
    assert sign_in(server).scopes == ["offline_access", "read"] or sign_in(server).scopes == ["read", "offline_access"]


@pytest.mark.parametrize("kind", ["document", "secret", "key", "basic"])
def test_a_client_proves_who_it_is(server: LoginServer, kind: str) -> None:
    document = "https://tasks.example.com/client.json"
    auth: dict[str, Any] = {}
    match kind:
        case "document":
            server.metadata["client_id_metadata_document_supported"] = True
            auth = {"client_metadata_url": document}
        case "secret":
            server.clients["me"] = "s3cret/+"
            auth = {"client_id": "me", "client_secret": "s3cret/+", "issuer": server.url, "client_auth": "post"}
        case "key":
            server.clients["me"] = KEY.public_key()
            auth = {"client_id": "me", "private_key": pem(KEY), "issuer": server.url}
        case _:
            server.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_basic"]
    found = sign_in(server, **auth)
    assert found.access_token.get_secret_value() in server.access
    # Secrets of the configuration are not kept with the tokens.
    assert (found.client_secret is not None) == (kind == "basic")
    assert found.client_id == {"document": document, "basic": "client-0"}.get(kind, "me")

    async def end() -> bool:
        async with Exchange() as exchange:
            return await revoke(exchange, found, config(**auth))

    assert asyncio.run(end())
    assert not server.access
    assert not server.refresh


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (rsa.generate_private_key(65537, 2048), "RS256"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
        (KEY, "ES256"),
    ],
    ids=["rsa", "ed25519", "p256"],
)
def test_an_assertion_is_for_one_audience(key: Any, algorithm: str) -> None:
    import jwt

    auth = config(client_id="me", private_key=pem(key), issuer="https://login.example", key_id="k1")
    client = Client("me", auth.method, private_key=auth.private_key, key_id=auth.key_id)
    form, headers = client.authenticate({"grant_type": "x"}, "https://login.example")
    assert "Authorization" not in headers
    assertion = form["client_assertion"]
    header = jwt.get_unverified_header(assertion)
    assert (header["alg"], header["kid"]) == (algorithm, "k1")
    claims = jwt.decode(assertion, key.public_key(), [algorithm], audience="https://login.example")
    assert claims["iss"] == claims["sub"] == "me"
    with pytest.raises(jwt.InvalidAudienceError):
        jwt.decode(assertion, key.public_key(), [algorithm], audience="https://else.example")
    assert client.authenticate({}, "x")[0]["client_assertion"] != client.authenticate({}, "x")[0]["client_assertion"]


def test_a_private_key_that_cannot_sign_is_not_quoted() -> None:
    for text in ("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n", "hunter2"):
        client = Client("me", "private_key_jwt", private_key=config(
            client_id="me", private_key=text, issuer="https://login.example").private_key)  # fmt: skip
        with pytest.raises(CredentialsError, match="is not a private key in PEM without a password") as caught:
            client.authenticate({}, "x")
        assert "c2Vj" not in caught.value.text
        assert "hunter2" not in caught.value.text


@pytest.mark.parametrize(
    ("resource", "metadata", "auth", "said"),
    [
        ({"resource": "https://else.example/mcp"}, {}, {}, "describes https://else.example/mcp, not http://127.0.0.1"),
        ({"authorization_servers": ["http://192.0.2.1"]}, {}, {}, "http://192.0.2.1 is not encrypted"),
        ({}, {"issuer": "https://else.example"}, {}, "are those of another issuer"),
        ({}, {"token_endpoint": "http://192.0.2.1/t"}, {}, "have an unencrypted token endpoint"),
        ({}, {"authorization_endpoint": "javascript:1"}, {}, "have an unencrypted authorization endpoint"),
        ({}, {"authorization_endpoint": None}, {}, "there is no sign-in"),
        ({}, {"code_challenge_methods_supported": ["plain"]}, {}, "does not support PKCE with S256"),
        ({}, {"code_challenge_methods_supported": None}, {}, "does not support PKCE with S256"),
        (
            {},
            {"registration_endpoint": None},
            {},
            "register one there with the redirect address http://127.0.0.1:7777/",
        ),
        ({}, {}, {"issuer": "https://else.example"}, "not the `issuer` of its `auth`"),
    ],
)
def test_what_is_not_believed(server: LoginServer, resource: Any, metadata: Any, auth: Any, said: str) -> None:
    server.resource_metadata, server.metadata = resource, metadata
    assert said in failure(server, **auth)
    assert server.clients == {}


def test_an_unencrypted_server_names_no_authorization_server(server: LoginServer) -> None:
    assert "is not encrypted, so anyone could name another" in failure(server, "http://192.0.2.1/mcp")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "other"}, "is not the answer to this sign-in"),
        ({"state": None}, "is not the answer to this sign-in"),
        ({"iss": "https://else.example"}, "is of another authorization server, 'https://else.example'"),
        ({"iss": None}, "does not say which authorization server it is of"),
        ({"code": None}, "sent no code"),
        ({"error": "access_denied", "error_description": "not you"}, "refused the sign-in (access_denied: not you)"),
        ({"error": "access_denied", "iss": "https://else.example"}, "is of another authorization server"),
        ({"code": "guessed"}, "invalid_grant"),
    ],
)
def test_an_answer_counts_only_if_it_is_one(server: LoginServer, changes: dict[str, str | None], said: str) -> None:
    async def work() -> None:
        authorization = await begin(server)
        await complete(authorization, await approve(authorization, **changes))

    with pytest.raises(CredentialsError) as caught:
        asyncio.run(work())
    assert said in caught.value.text
    assert len(server.forms("/token")) == ("guessed" in changes.values())
    assert not server.access


def test_a_server_without_metadata_authorizes_by_itself(server: LoginServer) -> None:
    """As before 2025-06-18."""
    found = asyncio.run(begin(server, f"{server.url}/other"))
    assert (found.resource, found.server.issuer) == ("", server.url)
    assert "resource=" not in found.url
