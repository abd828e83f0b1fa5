"""Requests to an authorization server: where they may go, how long they take, and how their failures read.

Owns one exchange of a few requests, which has one time limit. Nothing follows a redirect: what is sent is secret.
"""

import asyncio
import ssl
import time
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from typing import Any, NamedTuple, Self

import httpx2

__all__ = ["EXCHANGE_S", "CredentialsError", "Endpoint", "Exchange", "Reply", "is_safe", "shown_address"]

EXCHANGE_S = 10.0
_LARGEST_BYTES = 64 * 1024
_TRANSIENT = (408, 425, 429)


class CredentialsError(Exception):
    """A request cannot be authenticated, so it is not sent; the text has no full stop."""

    def __init__(self, text: str, is_transient: bool = False) -> None:
        super().__init__(text, is_transient)
        self.text = text
        self.is_transient = is_transient

    def __str__(self) -> str:
        return self.text


class Endpoint(NamedTuple):
    """An address, and what errors call it."""

    name: str
    url: str

    def error(self, what: str, *, is_transient: bool = False) -> CredentialsError:
        """The error that this endpoint did something."""
        return CredentialsError(f"{self.name} {shown_address(self.url)} {what}", is_transient)


class Reply(NamedTuple):
    """What an endpoint answered; `target` is where it redirects to, `headers` those of the response."""

    status: int
    headers: httpx2.Headers
    body: bytes
    target: str | None = None

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status >= 500 or self.status in _TRANSIENT


class Exchange:
    """A few requests within one time limit. Use it as a context manager: no connection stays open, because there is
    about one exchange an hour.

    Args:
        ca_file: More authorities to trust. The certificate of an authorization server is always verified.
    """

    def __init__(self, ca_file: str | None = None, limit_s: float = EXCHANGE_S) -> None:
        self._ca_file = ca_file
        self._limit_s = limit_s

    async def __aenter__(self) -> Self:
        self._until = time.monotonic() + self._limit_s
        try:
            tls = await asyncio.to_thread(_tls, self._ca_file)
        except OSError as error:
            raise CredentialsError(f"ca_file {self._ca_file} cannot be used: {error}") from None
        self._client = httpx2.AsyncClient(verify=tls, timeout=self._limit_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def send(self, endpoint: Endpoint, method: str, **options: Any) -> Reply:
        """Send a request; `options` are those of httpx2.

        Raises:
            CredentialsError: There was no answer.
        """
        try:
            async with asyncio.timeout(self._until - time.monotonic()):
                request = self._client.build_request(method, endpoint.url, **options)
                response = await self._client.send(request, stream=True)
                try:
                    body = await _read(response)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise endpoint.error(f"did not answer within {self._limit_s:g} s", is_transient=True) from None
        except httpx2.InvalidURL:
            raise endpoint.error("is not a valid address") from None
        except (httpx2.HTTPError, OSError) as error:
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise endpoint.error(f"cannot be reached ({reason})", is_transient=True) from None
        following = response.next_request
        target = None if following is None else shown_address(str(following.url))
        return Reply(response.status_code, response.headers, body, target)

    async def get(self, endpoint: Endpoint) -> Reply:
        """GET a JSON document. Raises as `send`, and when it is not available at the moment."""
        reply = await self.send(endpoint, "GET", headers={"Accept": "application/json"})
        if reply.is_transient:
            raise endpoint.error(f"answered HTTP {reply.status}", is_transient=True)
        return reply


@cache
def _tls(ca_file: str | None) -> ssl.SSLContext:
    """Built once per process: that takes 20 ms, so not on the loop."""
    context = httpx2.create_ssl_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


async def _read(response: httpx2.Response) -> bytes:
    """The body; empty if it is larger than any answer of an authorization server."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _LARGEST_BYTES:
            return b""
    return bytes(body)


def is_safe(address: str, *, plain: bool = True) -> bool:
    """Whether nobody between this machine and an address can read or change what is sent.

    Args:
        plain: Whether addresses of this machine need not be encrypted.
    """
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL:
        return False
    if url.scheme == "https":
        return bool(url.host)
    with suppress(ValueError):
        return plain and url.scheme == "http" and (url.host == "localhost" or ip_address(url.host).is_loopback)
    return False


def shown_address(url: str) -> str:
    """An address for an error text: without what may be secret."""
    try:
        return str(httpx2.URL(url).copy_with(userinfo=b"", query=None, fragment=None))
    except httpx2.InvalidURL:
        return "(not a valid address)"
