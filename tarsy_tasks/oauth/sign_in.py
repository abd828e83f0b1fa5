"""One sign-in of a person to an MCP server: its tokens, and what they are bound to.

Owns what is kept of it. The tokens are for one address of a server, and come from one authorization server: if either
has another place in the configuration, they are not used. All times are those of Redis.
"""

import json
import math
from typing import Any

import httpx2
from mcp.client.auth.utils import issuers_match
from pydantic import BaseModel, ConfigDict, SecretStr

from tarsy_tasks.config import OAuthSignIn
from tarsy_tasks.oauth.client import Client, ClientMethod
from tarsy_tasks.oauth.endpoint import Endpoint
from tarsy_tasks.oauth.token_answer import TokenAnswer

__all__ = ["SignIn", "build_client", "server_address"]

_LONGEST_MARGIN_S = 60.0
_MARGIN = 0.2
"""Of a token's lifetime: the next one is fetched when this share is left, at most a minute."""


class SignIn(BaseModel):
    """A sign-in.

    Attributes:
        id: Another one for each sign-in.
        server_url: What the tokens are sent to.
        resource: What they were asked for; empty if the server does not say.
        issuer: The authorization server that gave them.
        client_secret: Of a client that registered itself; secrets of the configuration are not kept here.
        redirect_uri: That of the client.
        is_registered: The client registered itself.
        scopes: What was granted.
        expires_at: Of the access token; None if that is not known.
        is_replacement: The server had refused the access token before.
        ended: Why it cannot be renewed any more; empty if it can, or never could.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    server_url: str
    resource: str
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None = None
    client_id: str
    client_method: ClientMethod = "none"
    client_secret: SecretStr | None = None
    redirect_uri: str
    is_registered: bool = False
    access_token: SecretStr
    refresh_token: SecretStr | None = None
    scopes: list[str] = []
    signed_in_at: float
    obtained_at: float
    expires_at: float | None = None
    is_replacement: bool = False
    ended: str = ""

    def to_json(self) -> bytes:
        """As JSON, with its secrets."""
        return json.dumps({name: _reveal(value) for name, value in self}).encode()

    @property
    def secrets(self) -> set[str]:
        """What must not be shown."""
        found = (self.access_token, self.refresh_token, self.client_secret)
        return {value.get_secret_value() for value in found if value is not None}

    @property
    def renew_at(self) -> float:
        """When the next access token is to be fetched; infinity if that is not possible, or not needed."""
        if self.expires_at is None or self.refresh_token is None:
            return math.inf
        return self.expires_at - min(_LONGEST_MARGIN_S, _MARGIN * (self.expires_at - self.obtained_at))

    @property
    def endpoint(self) -> Endpoint:
        """Where the next access token comes from."""
        return Endpoint("the token endpoint", self.token_endpoint)

    def find_conflict(self, server_url: str, auth: OAuthSignIn) -> str:
        """Why it is not for a server as it is configured now; empty if it is."""
        if self.server_url != server_address(server_url):
            return f"it is for {self.server_url}, and `url` has changed"
        if auth.issuer is not None and not issuers_match(auth.issuer, self.issuer):
            return f"it is of {self.issuer}, and `issuer` has changed"
        if auth.client_id is not None and auth.client_id != self.client_id:
            return "it is of another client, and `client_id` has changed"
        return ""

    def build_client(self, auth: OAuthSignIn) -> Client:
        """Who renews it."""
        if auth.client_id is not None:
            return build_client(auth, self.client_id)
        return Client(self.client_id, self.client_method, self.client_secret)

    def renewal_form(self) -> dict[str, str]:
        """The request for the next access token."""
        assert self.refresh_token is not None
        form = {"grant_type": "refresh_token", "refresh_token": self.refresh_token.get_secret_value()}
        return form | ({"resource": self.resource} if self.resource else {})

    def renewed(self, answer: TokenAnswer, now: float, *, is_replacement: bool = False) -> "SignIn":
        """The same with the tokens of an answer; it may keep scopes and refresh token as they were."""
        update: dict[str, Any] = {"access_token": answer.access_token, "obtained_at": now, "ended": ""}
        update["is_replacement"] = is_replacement
        update["expires_at"] = None if math.isinf(answer.life_s) else now + answer.life_s
        if answer.refresh_token is not None:
            update["refresh_token"] = answer.refresh_token
        if answer.scope is not None:
            update["scopes"] = answer.scope.split()
        return self.model_copy(update=update)

    def at(self, now: float) -> "SignIn":
        """A new one, whose times began with 0, at the time of Redis."""
        expires_at = None if self.expires_at is None else now + self.expires_at
        return self.model_copy(update={"signed_in_at": now, "obtained_at": now, "expires_at": expires_at})

    def as_ended(self, why: str) -> "SignIn":
        """The same after its refresh token was refused."""
        return self.model_copy(update={"refresh_token": None, "ended": why})


def build_client(auth: OAuthSignIn, client_id: str) -> Client:
    """The client of the configuration."""
    return Client(client_id, auth.method, auth.client_secret, auth.private_key, auth.key_id, auth.signing_algorithm)


def server_address(url: str) -> str:
    """The address of a server without what may be secret."""
    return str(httpx2.URL(url).copy_with(userinfo=b"", query=None, fragment=None))


def _reveal(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value
