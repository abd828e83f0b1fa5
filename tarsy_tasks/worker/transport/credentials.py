"""Authentication to a server over HTTP: headers, tokens, keys.

Owns what is put into a request, and its renewal when the server refuses it: a secret in a file may have been replaced,
a token revoked. Where requests may go is checked in `http_client`. Everything runs on the session loop, but files are
read in a thread.
"""

import logging
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import httpx2
from pydantic import SecretStr

from tarsy_tasks.config import ApiKeyAuth, BearerAuth, OAuthClientCredentials, OAuthSignIn, ServerConfig
from tarsy_tasks.config.resolved import ResolvedServer
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.oauth.endpoint import CredentialsError
from tarsy_tasks.worker.transport.access_tokens import Token, TokenSource
from tarsy_tasks.worker.transport.agent_secrets import ReadCredentials, resolve_server
from tarsy_tasks.worker.transport.client_credentials import ClientCredentials
from tarsy_tasks.worker.transport.signed_in import SignedIn, SignInTokens

__all__ = ["Credentials", "RequestCredentials", "address_of"]

logger = logging.getLogger(__name__)

_PROTOCOL = ("accept", "content-type", "content-length", "host", "last-event-id")
"""Headers of the transport; those of MCP belong to it too."""


@dataclass(frozen=True)
class RequestCredentials:
    """What is put into a request.

    Attributes:
        parameter: Name and value of a query parameter.
        token: The access token in the headers, if it was fetched.
    """

    headers: Mapping[str, SecretStr] = field(default_factory=dict[str, SecretStr])
    parameter: tuple[str, SecretStr] | None = None
    token: Token | None = None

    def apply(self, request: httpx2.Request) -> None:
        """Put it into a request, in place of what may be there."""
        for name, value in self.headers.items():
            is_protocol = name.lower() in _PROTOCOL or name.lower().startswith("mcp-")
            if not (is_protocol and name in request.headers):
                request.headers[name] = value.get_secret_value()
        if self.parameter is not None:
            name, value = self.parameter
            request.url = request.url.copy_set_param(name, value.get_secret_value())


class Credentials:
    """The credentials for one server, shared by its sessions in this process, or by those of one agent.

    Args:
        read: Reads the credentials of that agent; None: of no agent.
        sign_ins: The tokens of persons who have signed in; None where there are none.

    Attributes:
        resolved: The server as it was last resolved; None before.
    """

    def __init__(
        self,
        server: ServerConfig,
        on_secrets: Callable[[Iterable[str]], None],
        read: ReadCredentials | None = None,
        sign_ins: SignInTokens | None = None,
    ) -> None:
        self._read = read
        self.resolved: ResolvedServer | None = None
        self._server = server
        self._on_secrets = on_secrets
        self._fixed = RequestCredentials()
        self._sign_ins = sign_ins
        self._grant: ClientCredentials | SignedIn | None = None
        self._tokens: TokenSource | None = None

    @property
    def identity(self) -> str:
        """As of `ResolvedServer`, and who has signed in; empty before."""
        signed_in = "" if self._tokens is None else self._tokens.identity
        return "" if self.resolved is None else self.resolved.identity + signed_in

    def use(self, resolved: ResolvedServer) -> None:
        """Use the credentials of a configuration that was just resolved."""
        self.resolved, self._fixed = resolved, _build_fixed(resolved)
        auth, grant = resolved.auth, self._grant
        if isinstance(auth, OAuthClientCredentials):
            if not isinstance(grant, ClientCredentials):
                grant = ClientCredentials(self._server.name, auth, resolved.ca_file)
            grant.auth = auth
        elif isinstance(auth, OAuthSignIn):
            url = str(address_of(resolved))
            if not isinstance(grant, SignedIn):
                grant = SignedIn(self._server.name, auth, url, resolved.ca_file, self._sign_ins)
            grant.auth, grant.url = auth, url
        if grant is not None and grant is not self._grant:
            self._grant, self._tokens = grant, TokenSource(self._server.name, grant, self._on_secrets)

    async def current(self) -> RequestCredentials:
        """What to send.

        Raises:
            CredentialsError: No access token could be fetched.
        """
        return self._fixed if self._tokens is None else _with_token(self._fixed, await self._tokens.current())

    async def renew(self, refused: RequestCredentials) -> RequestCredentials | None:
        """What to send after the server has refused this; None when there is nothing else. Raises as `current`."""
        try:
            resolved = await resolve_server(self._server, self._read)
        except ConfigError as error:
            logger.warning("the credentials for MCP server %s were not renewed: %s", self._server.name, error)
            return None
        self._on_secrets(resolved.secrets)
        self.use(resolved)
        found = self._fixed
        if self._tokens is not None:
            token = refused.token
            found = _with_token(found, await (self._tokens.current() if token is None else self._tokens.renew(token)))
        return None if found == refused else found

    async def find_other(self, lacking: RequestCredentials) -> RequestCredentials | None:
        """What to send if somebody has signed in again meanwhile, because this may not do enough; else None."""
        if self._tokens is None or lacking.token is None or not isinstance(self._grant, SignedIn):
            return None
        try:
            token = await self._tokens.look()
        except CredentialsError:
            return None
        return None if token.identity == lacking.token.identity else _with_token(self._fixed, token)


def address_of(resolved: ResolvedServer) -> httpx2.URL:
    """The server's URL without user and password, which are sent in a header."""
    assert resolved.url is not None
    return httpx2.URL(resolved.url.get_secret_value()).copy_with(userinfo=b"")


def _build_fixed(resolved: ResolvedServer) -> RequestCredentials:
    headers = {name: value for name, value in resolved.headers.items() if value.get_secret_value()}
    parameter: tuple[str, SecretStr] | None = None
    match resolved.auth:
        case BearerAuth(token=token):
            headers["Authorization"] = SecretStr(f"Bearer {token.get_secret_value()}")
        case ApiKeyAuth(location="query", name=name, key=key):
            parameter = name, key
        case ApiKeyAuth(name=name, key=key):
            headers[name] = key
        case _:
            pass
    assert resolved.url is not None
    url = httpx2.URL(resolved.url.get_secret_value())
    if url.userinfo and resolved.auth is None and not any(name.lower() == "authorization" for name in headers):
        user = b64encode(f"{url.username}:{url.password}".encode()).decode()
        headers["Authorization"] = SecretStr(f"Basic {user}")
    return RequestCredentials(headers, parameter)


def _with_token(found: RequestCredentials, token: Token) -> RequestCredentials:
    authorization = SecretStr(f"Bearer {token.value.get_secret_value()}")
    return replace(found, headers={**found.headers, "Authorization": authorization}, token=token)
