"""Who may open Flower, and what browsers may do with its pages: what Flower itself leaves open.

Owns the host names that it answers to, the policies of its own pages, signing in by a link with a token, where a
sign-in may lead, and from where the requests of our buttons and forms may come. Passwords and OAuth are Flower's own.
"""

import base64
import hashlib
import hmac
import ipaddress
import re
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import flower.command
from flower import urls
from flower.options import options
from flower.views import BaseHandler, auth
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.web import Application, HTTPError, OutputTransform, RequestHandler

from tarsy_tasks.dashboard.ending import EndingFlower
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.settings import Settings

__all__ = ["OwnRequests", "TokenLogin", "guard"]

_USER = "operator"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_INLINE_SCRIPTS = ("\nvar autorefresh = 0;\n", "\nvar autorefresh = 1;\n")
"""All that Flower's templates have, as they are rendered."""
_LOCAL_PATH = re.compile(r"/(?!/)[!-\[\]-~]*")
"""Printable ASCII without spaces and backslashes; browsers read `\\` as `/`, and `//` begins a host."""


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src 'self' {' '.join(map(_hash, _INLINE_SCRIPTS))}",
        "style-src 'self' 'unsafe-inline'",  # DataTables sets widths
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)


def guard(settings: Settings) -> None:
    """Guard the Flower that this process is about to start.

    Raises:
        ConfigError: A password that no browser can send.
    """
    _Guarded.names = settings.dashboard_hosts
    _Guarded.token = settings.dashboard_token.get_secret_value() if settings.dashboard_token is not None else ""
    flower.command.Flower = _Guarded
    auth.is_safe_redirect = is_local_path
    urls.settings["transforms"] = [_Policies]
    urls.settings["xsrf_cookie_kwargs"] = {"samesite": "Strict"}  # not HttpOnly: Flower's own script reads it
    if _Guarded.token:
        options.auth, options.auth_provider = _USER, f"{TokenLogin.__module__}.{TokenLogin.__name__}"


class _Guarded(EndingFlower):
    """Flower for requests to its own host names only: another name may be that of a page which has its browser's DNS
    changed to reach this address.
    """

    names: tuple[str, ...] = ()
    token = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if any(not credentials.isascii() for credentials in self.options.basic_auth or ()):
            raise ConfigError("the user or password of Flower's basic_auth has characters that are not ASCII")
        address = str(self.options.address)
        self._names = {name.lower() for name in self.names}
        if not self._names and _is_loopback(address) and not self.options.unix_socket:
            self._names = {*_LOOPBACK, address.lower()}

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        if self._names and (request.host_name or "").lower() not in self._names:
            return self.get_handler_delegate(request, _OtherHost)
        _drop_unreadable_password(request.headers)
        return super().find_handler(request, **kwargs)


def is_local_path(target: str) -> bool:
    """Whether an address is a plain path of this Flower. Flower's own check fails on some, and accepts line breaks."""
    return _LOCAL_PATH.fullmatch(target) is not None


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return False


def _drop_unreadable_password(headers: HTTPHeaders) -> None:
    """Flower compares only ASCII, and fails with others."""
    with suppress(ValueError):
        kind, credentials = headers.get("Authorization", "").split()
        if kind == "Basic" and not base64.b64decode(credentials).isascii():
            del headers["Authorization"]


class _OtherHost(BaseHandler):
    def prepare(self) -> None:
        self.set_status(421)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish("Flower does not serve this host name. Add it to TARSY_DASHBOARD_HOSTS.\n")


class _Policies(OutputTransform):
    """The headers that tell browsers what a page may do; a handler's own stay."""

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        for name, value in (
            ("Content-Security-Policy", _POLICY),
            ("X-Frame-Options", "DENY"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "same-origin"),
        ):
            if name not in headers:
                headers[name] = value
        return super().transform_first_chunk(status_code, headers, chunk, finishing)


class OwnRequests(BaseHandler):
    """What changes something only for requests of Flower's own pages."""

    def check_xsrf_cookie(self) -> None:
        """Flower's checks, and those that it leaves out without authentication and with basic authentication."""
        if not self._is_from_own_page():
            raise HTTPError(403, "Cross-origin request forbidden")
        super().check_xsrf_cookie()
        RequestHandler.check_xsrf_cookie(self)

    def _is_from_own_page(self) -> bool:
        headers = self.request.headers
        # A proxy may change the host, but not what a browser says of where its request comes from.
        if (site := headers.get("Sec-Fetch-Site")) is not None:
            return site == "same-origin"
        source = headers.get("Origin", headers.get("Referer"))
        if source is None:
            return True  # of a program, such as curl; browsers send at least one of the three
        with suppress(ValueError):
            return urlsplit(source).netloc.lower() == self.request.host.lower()
        return False


class TokenLogin(BaseHandler):
    """Signs in a browser that has the token of this Flower, until the browser is closed."""

    def get(self) -> None:
        token = self.get_query_argument("token", "")
        application: Application = self.application
        expected = application.token if isinstance(application, _Guarded) else ""
        if not expected or not hmac.compare_digest(token.encode(), expected.encode()):
            raise HTTPError(403, "Open the link with the token that was printed when Flower started.")
        self.set_secure_cookie("user", _USER, expires_days=None)
        self.redirect(auth.get_next_url(self))
