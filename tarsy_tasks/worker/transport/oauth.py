"""Access tokens by OAuth client credentials (RFC 6749, section 4.4): one server's token, for all sessions of a process.

Owns fetching a token, keeping it, and fetching the next one before it expires. The SDK's own provider holds a lock
during the request that it authenticates, so calls would run one after the other, and it fetches a token only after a
refusal. Here only the first token is waited for, and all callers wait for the same fetch.
"""

import asyncio
import logging
import math
import re
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote

import httpx2
from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls, issuers_match
from pydantic import BaseModel, SecretStr, ValidationError

from tarsy_tasks.config import OAuthClientCredentials
from tarsy_tasks.worker.transport.http_bodies import read_body
from tarsy_tasks.worker.transport.transport_errors import CredentialsError

__all__ = ["Token", "TokenSource"]

logger = logging.getLogger(__name__)

_FETCH_S = 10.0
_LONGEST_MARGIN_S = 60.0
_MARGIN = 0.2
"""Of a token's lifetime: the next one is fetched when this share is left, at most a minute."""
_FAILED_S = 2.0
"""No new attempt for this long after a failure: there may be hundreds of calls, and servers lock clients out."""
_RENEWED_S = 10.0
"""A token that was fetched after a refusal is not replaced for another refusal for this long."""
_LARGEST_BYTES = 64 * 1024
_SHOWN_CHARS = 200
_TOKEN = re.compile(r"[\x21-\x7e]+")
_TRANSIENT = (408, 425, 429)


@dataclass(frozen=True)
class Token:
    """An access token.

    Attributes:
        renew_at: Monotonic time when the next one is fetched.
        expires_at: Monotonic time when it expires; infinity if the endpoint gave no lifetime.
    """

    value: SecretStr
    renew_at: float
    expires_at: float


class _Answer(BaseModel):
    """The used part of a token endpoint's answer."""

    access_token: SecretStr
    token_type: str = "Bearer"  # noqa: S105
    expires_in: Any = None


class _Refusal(BaseModel):
    error: str
    error_description: str = ""


class _Metadata(BaseModel):
    """The used part of an authorization server's metadata (RFC 8414)."""

    issuer: str
    token_endpoint: str


class TokenSource:
    """The access token of one server. Everything runs on the session loop.

    Args:
        ca_file: More authorities to trust. The certificate of a token endpoint is always verified.
    """

    def __init__(
        self,
        server: str,
        auth: OAuthClientCredentials,
        ca_file: str | None,
        on_secrets: Callable[[Iterable[str]], None],
        fetch_s: float = _FETCH_S,
    ) -> None:
        self.auth = auth
        self._fetch_s = fetch_s
        self._on_secrets = on_secrets
        self._server = server
        self._ca_file = ca_file
        self._token: Token | None = None
        self._fetching: asyncio.Task[Token] | None = None
        self._failure: CredentialsError | None = None
        self._failed_at = self._renewed_at = float("-inf")

    async def current(self) -> Token:
        """A token that has not expired.

        Raises:
            CredentialsError: None could be fetched.
        """
        token, now = self._token, time.monotonic()
        if token is None or now >= token.expires_at:
            return await self._fetched()
        if now >= token.renew_at and not self._failed_lately():
            self._begin()
        return token

    async def renew(self, refused: Token) -> Token:
        """As `current`, after the server has refused a token; the same again if it was renewed a moment ago."""
        now = time.monotonic()
        if self._token is refused and now >= self._renewed_at + _RENEWED_S:
            self._token, self._renewed_at = None, now
        return await self.current()

    async def _fetched(self) -> Token:
        if self._fetching is None and self._failure is not None and self._failed_lately():
            raise CredentialsError(self._failure.text, self._failure.is_transient)
        # A caller that gives up must not cancel the fetch for the others.
        return await asyncio.shield(self._begin())

    def _failed_lately(self) -> bool:
        return time.monotonic() < self._failed_at + _FAILED_S

    def _begin(self) -> "asyncio.Task[Token]":
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), name=f"mcp-token-{self._server}")
            self._fetching.add_done_callback(self._end)
        return self._fetching

    def _end(self, task: "asyncio.Task[Token]") -> None:
        self._fetching = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._token, self._failure = task.result(), None
            self._on_secrets({self._token.value.get_secret_value()})
            return
        self._failed_at = time.monotonic()
        if isinstance(error, CredentialsError):
            self._failure = error
        if self._token is not None:
            logger.warning("the access token for MCP server %s was not renewed: %s", self._server, error)

    async def _fetch(self) -> Token:
        auth = self.auth
        asked_at = time.monotonic()
        where = auth.token_url or auth.issuer or ""
        try:
            # A new client for each token, about one an hour, so that no connection stays open.
            async with (
                asyncio.timeout(self._fetch_s),
                httpx2.AsyncClient(
                    verify=await asyncio.to_thread(_tls, self._ca_file), timeout=self._fetch_s
                ) as client,
            ):
                where = auth.token_url or await _discover(client, auth.issuer or "")
                response = await client.send(_build_request(client, where, auth), stream=True)
                body = await read_body(response, _LARGEST_BYTES)
        except TimeoutError:
            raise _error(where, f"did not answer within {self._fetch_s:g} s", is_transient=True) from None
        except httpx2.InvalidURL:
            raise _error(where, "is not a valid address") from None
        except httpx2.HTTPError as error:
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise _error(where, f"cannot be reached ({reason})", is_transient=True) from None
        except OSError as error:
            raise _error(where, f"cannot be reached: ca_file {self._ca_file} cannot be used: {error}") from None
        answer = _read_answer(where, response, body or b"", auth)
        logger.info("fetched an access token for MCP server %s", self._server)
        expires_at = asked_at + (life_s := _life_s(answer.expires_in))
        return Token(answer.access_token, expires_at - min(_LONGEST_MARGIN_S, _MARGIN * life_s), expires_at)


@cache
def _tls(ca_file: str | None) -> ssl.SSLContext:
    """Built once per process: that takes 20 ms, so not on the loop."""
    context = httpx2.create_ssl_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def _build_request(client: httpx2.AsyncClient, url: str, auth: OAuthClientCredentials) -> httpx2.Request:
    form = {"grant_type": "client_credentials"}
    form |= {"scope": " ".join(auth.scopes)} if auth.scopes else {}
    form |= {name: value for name in ("audience", "resource") if (value := getattr(auth, name)) is not None}
    headers = {"Accept": "application/json"}
    secret = auth.client_secret.get_secret_value()
    if auth.client_auth == "post":
        form |= {"client_id": auth.client_id, "client_secret": secret}
    else:
        pair = f"{quote(auth.client_id, safe='')}:{quote(secret, safe='')}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    return client.build_request("POST", url, data=form, headers=headers)


async def _discover(client: httpx2.AsyncClient, issuer: str) -> str:
    """The token endpoint that an authorization server names."""
    if not _is_safe(issuer):
        what = (
            "is not encrypted: anyone who can change its answer gets the client's secret; use https, or set `token_url`"
        )
        raise _error(issuer, what)
    for url in build_oauth_authorization_server_metadata_discovery_urls(issuer, ""):
        request = client.build_request("GET", url, headers={"Accept": "application/json"})
        response = await client.send(request, stream=True)
        body = await read_body(response, _LARGEST_BYTES) or b""
        if response.status_code >= 500 or response.status_code in _TRANSIENT:
            raise _error(url, f"answered HTTP {response.status_code}", is_transient=True)
        if response.status_code != 200:
            continue
        try:
            metadata = _Metadata.model_validate_json(body)
        except ValidationError:
            continue
        if not issuers_match(metadata.issuer, issuer):
            what = "has the metadata of another issuer; write `issuer` exactly as the authorization server does"
            raise _error(url, what)
        if not _is_safe(metadata.token_endpoint, plain=not issuer.startswith("https://")):
            raise _error(url, "names a token endpoint that is not encrypted; the client's secret is not sent there")
        return metadata.token_endpoint
    raise _error(issuer, "publishes no metadata with a token endpoint; set `token_url` instead")


def _is_safe(address: str, *, plain: bool = True) -> bool:
    """Whether nobody between this machine and an address can read or change what is sent.

    Args:
        plain: Whether addresses of this machine need not be encrypted.
    """
    url = httpx2.URL(address)
    if url.scheme == "https":
        return True
    with suppress(ValueError):
        return plain and url.scheme == "http" and (url.host == "localhost" or ip_address(url.host).is_loopback)
    return False


def _read_answer(where: str, response: httpx2.Response, body: bytes, auth: OAuthClientCredentials) -> _Answer:
    status = response.status_code
    if status >= 500 or status in _TRANSIENT:
        raise _error(where, f"answered HTTP {status}", is_transient=True)
    if response.next_request is not None:
        target = _shown(str(response.next_request.url))
        raise _error(where, f"redirects to {target}, where credentials are not sent; correct `token_url`")
    if status != 200:
        raise _error(where, _describe_refusal(status, body, auth))
    try:
        answer = _Answer.model_validate_json(body)
    except ValidationError:
        kind = response.headers.get("content-type", "no content type").partition(";")[0][:_SHOWN_CHARS]
        raise _error(where, f"answered with {kind} that contains no access token; check its address") from None
    if answer.token_type.lower() != "bearer":
        raise _error(where, f"returns tokens of type {answer.token_type[:_SHOWN_CHARS]!a}, expected Bearer")
    if not _TOKEN.fullmatch(answer.access_token.get_secret_value()):
        raise _error(where, "returns a token that is not valid in a header")
    return answer


def _describe_refusal(status: int, body: bytes, auth: OAuthClientCredentials) -> str:
    try:
        refusal = _Refusal.model_validate_json(body)
    except ValidationError:
        return f"answered HTTP {status}; check its address"
    reason = f"{refusal.error}: {refusal.error_description}".removesuffix(": ")
    reason = reason.replace(auth.client_secret.get_secret_value(), "••••")[:_SHOWN_CHARS]
    return f"refused client_id {auth.client_id} (HTTP {status}, {reason}); check its secret, scopes and audience"


def _life_s(value: Any) -> float:
    """A token's lifetime in seconds; infinity if there is none. Some endpoints write the number as text."""
    try:
        seconds = float(value) if isinstance(value, str | int | float) else math.inf
    except (ValueError, OverflowError):
        return math.inf
    return seconds if seconds > 0 else math.inf


def _error(where: str, what: str, *, is_transient: bool = False) -> CredentialsError:
    return CredentialsError(f"the token endpoint {_shown(where)} {what}", is_transient)


def _shown(url: str) -> str:
    try:
        return str(httpx2.URL(url).copy_with(userinfo=b"", query=None, fragment=None))
    except httpx2.InvalidURL:
        return "(not a valid address)"
