"""Requests to a server over HTTP, with its credentials.

Owns where a request may go, what it says beside its body, and what follows on a redirect or a refusal: it goes to one
origin only, because it carries that server's credentials. It knows no JSON-RPC, except that a notification has no
answer.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from http.cookiejar import Cookie, CookieJar, DefaultCookiePolicy
from typing import Self
from urllib.request import Request, getproxies

import httpx2
from mcp import MCPError

from tarsy_tasks.oauth.endpoint import CredentialsError
from tarsy_tasks.worker.transport.credentials import Credentials
from tarsy_tasks.worker.transport.http_bodies import read_body
from tarsy_tasks.worker.transport.http_connections import Connections
from tarsy_tasks.worker.transport.transport_errors import credentials_missing, transport_down

__all__ = ["HttpClient", "find_redirect", "is_same_origin", "ssl_context", "without_secrets"]

_NOTIFICATION_TIMEOUT_S = 5.0
"""What is sent after a notification waits for it."""
_NOTIFICATION_REPLY_BYTES = 64 * 1024
"""It has no content; it is read only so that its connection can be used again."""
_UNAUTHORIZED = 401
_REFUSED = (_UNAUTHORIZED, 403)
_MAX_REDIRECTS = 20
_SAME_METHOD = (307, 308)
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Seconds, seconds, probes: a stream may be silent for days, but a lost peer must be noticed."""
_LISTENING = {"accept": "text/event-stream", "cache-control": "no-store"}
_PROXIES = {"http", "https", "all"}
_MAX_COOKIES = 50
_COOKIE_BYTES = 4096
"""Name and value. Browsers have the same limits, per site."""


@cache
def ssl_context(*, verify: bool, ca_file: str | None) -> ssl.SSLContext:
    """The TLS context for these settings, built once per process: that takes 20 ms, so not on the loop.

    Raises:
        OSError: `ca_file` cannot be read, or is not a certificate.
    """
    if not verify:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    if ca_file is not None:
        return ssl.create_default_context(cafile=ca_file)
    return httpx2.create_ssl_context()


class HttpClient:
    """Sends requests to a server. Use it as a context manager.

    Args:
        origin: The server; nothing is sent elsewhere. None: no credentials, and no restriction.
        timeout: For the steps of a request, unless it has its own time limit.
    """

    def __init__(
        self,
        tls: ssl.SSLContext,
        timeout: httpx2.Timeout,
        *,
        origin: httpx2.URL | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._origin = origin
        self._credentials = credentials
        # Proxies are for httpx2's own transport, which takes more time.
        self._direct = None if _PROXIES & getproxies().keys() else Connections(tls)
        # With the default of 100 connections, further calls fail after 30 s.
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=3.0)
        self._client = httpx2.AsyncClient(
            verify=tls, limits=limits, transport=self._direct, cookies=_BoundedCookies().jar
        )
        self._headers = dict(self._client.headers)
        self._timeouts = timeout.as_dict()
        self._patient = {**self._timeouts, "read": None}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def post(
        self, url: httpx2.URL, data: bytes, headers: Mapping[str, str], *, has_limit: bool = False
    ) -> httpx2.Response:
        """POST a message; the body of the response is not read, and the caller closes it.

        Args:
            has_limit: The caller does not wait for ever, so that the body may come at any time.

        Raises:
            MCPError: There is no response; one of `transport_errors`.
        """
        try:
            return await self.request("POST", url, data, headers, is_patient=has_limit)
        except CredentialsError as error:
            raise MCPError.from_error_data(credentials_missing(error)) from None
        except Exception as error:
            raise MCPError.from_error_data(transport_down(error)) from None

    async def notify(self, url: httpx2.URL, data: bytes, headers: Mapping[str, str]) -> None:
        """POST a message that has no answer, and wait up to 5 s until it has arrived. The next request will fail in the
        same way if it does not.
        """
        with suppress(TimeoutError, httpx2.HTTPError, CredentialsError):
            async with asyncio.timeout(_NOTIFICATION_TIMEOUT_S):
                response = await self.request("POST", url, data, headers)
                await read_body(response, _NOTIFICATION_REPLY_BYTES)

    async def listen(self, url: httpx2.URL, headers: Mapping[str, str]) -> httpx2.Response:
        """Open a stream of messages that the server sends unasked. It may be silent for any time.

        Raises:
            httpx2.HTTPError, httpx2.InvalidURL: There is no response.
            CredentialsError: The request was not sent.
        """
        response = await self.request("GET", url, b"", {**_LISTENING, **headers}, is_patient=True)
        _keep_alive(response)
        return response

    async def request(
        self, method: str, url: httpx2.URL, data: bytes, headers: Mapping[str, str], *, is_patient: bool = False
    ) -> httpx2.Response:
        """Send a request, and follow redirects within the origin that keep the method. Any other redirect is returned:
        headers and body are only for the configured server. Raises as `listen`.
        """
        timeouts = self._patient if is_patient else self._timeouts
        for _ in range(_MAX_REDIRECTS):
            request = httpx2.Request(
                method,
                url,
                headers={**self._headers, **headers},
                cookies=self._client.cookies,
                content=data,
                extensions={"timeout": timeouts},
            )
            response = await self._send_authorized(request)
            following = find_redirect(response)
            keeps_method = method == "GET" or response.status_code in _SAME_METHOD
            if following is None or not keeps_method or not is_same_origin(request.url, following):
                return response
            await response.aclose()
            url = following
        raise httpx2.TooManyRedirects("too many redirects")

    async def _send_authorized(self, request: httpx2.Request) -> httpx2.Response:
        """Send with credentials; when they are refused, once more with others if there are any."""
        if self._origin is None or self._credentials is None:
            return await self._send(request)
        if not is_same_origin(self._origin, request.url):
            raise CredentialsError(
                f"{without_secrets(request.url)} is on another origin; credentials are not sent there"
            )
        credentials = await self._credentials.current()
        credentials.apply(request)
        response = await self._send(request)
        if response.status_code not in _REFUSED:
            return response
        try:
            if response.status_code == _UNAUTHORIZED:
                renewed = await self._credentials.renew(credentials)
            else:
                renewed = await self._credentials.find_other(credentials)
        except BaseException:
            await response.aclose()
            raise
        if renewed is None:
            return response
        await response.aclose()
        renewed.apply(request)
        return await self._send(request)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        if self._direct is None:
            return await self._client.send(request, stream=True)
        response = await self._direct.handle_async_request(request)
        # To read thousands of them would block the event loop.
        if "set-cookie" in response.headers and len(response.headers.get_list("set-cookie")) <= _MAX_COOKIES:
            self._client.cookies.extract_cookies(response)
        return response


class _BoundedCookies(DefaultCookiePolicy):
    """The default policy, but for few cookies, none of which is large."""

    def __init__(self) -> None:
        super().__init__()
        self.jar = CookieJar(self)

    def set_ok(self, cookie: Cookie, request: Request) -> bool:
        if len(cookie.name) + len(cookie.value or "") > _COOKIE_BYTES or not super().set_ok(cookie, request):
            return False
        place = (cookie.domain, cookie.path, cookie.name)
        others = sum((each.domain, each.path, each.name) != place for each in self.jar)
        return others < _MAX_COOKIES


def find_redirect(response: httpx2.Response) -> httpx2.URL | None:
    """Where a response redirects to, None if it does not."""
    if not response.has_redirect_location:
        return None
    try:
        return response.request.url.join(response.headers["location"])
    except httpx2.InvalidURL:
        return None


def without_secrets(url: httpx2.URL) -> httpx2.URL:
    """An address for an error text."""
    return url.copy_with(userinfo=b"", query=None, fragment=None)


def is_same_origin(here: httpx2.URL, there: httpx2.URL) -> bool:
    """Whether a request for one address may be sent to the other: same scheme, host, port and user.

    http may become https on the default ports.
    """
    same = (here.scheme, here.host, here.port) == (there.scheme, there.host, there.port)
    upgraded = here.host == there.host and here.port is None and there.port is None and here.scheme == "http"
    return (same or (upgraded and there.scheme == "https")) and (not there.userinfo or there.userinfo == here.userinfo)


def _keep_alive(response: httpx2.Response) -> None:
    stream = response.extensions.get("network_stream")
    found = stream.get_extra_info("socket") if stream is not None else None
    if found is None or found.family not in (socket.AF_INET, socket.AF_INET6):
        return
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has all three
            found.setsockopt(socket.IPPROTO_TCP, option, value)
