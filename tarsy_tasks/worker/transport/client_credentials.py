"""Access tokens by OAuth client credentials (RFC 6749, section 4.4): the worker is the client, and nobody signs in."""

import logging
import time

from pydantic import SecretStr

from tarsy_tasks.config import OAuthClientCredentials
from tarsy_tasks.oauth.client import Client
from tarsy_tasks.oauth.discovery import load_authorization_server
from tarsy_tasks.oauth.endpoint import EXCHANGE_S, Endpoint, Exchange
from tarsy_tasks.oauth.token_answer import request_tokens
from tarsy_tasks.worker.transport.access_tokens import Token

__all__ = ["ClientCredentials"]

logger = logging.getLogger(__name__)

_LONGEST_MARGIN_S = 60.0
_MARGIN = 0.2
"""Of a token's lifetime: the next one is fetched when this share is left, at most a minute."""


class ClientCredentials:
    """Fetches the tokens of one server.

    Attributes:
        auth: How, as it was last resolved.
    """

    def __init__(
        self, server: str, auth: OAuthClientCredentials, ca_file: str | None, limit_s: float = EXCHANGE_S
    ) -> None:
        self.auth = auth
        self._server = server
        self._ca_file = ca_file
        self._limit_s = limit_s

    async def fetch(self, refused: SecretStr | None) -> Token:  # noqa: ARG002 - each token is another one
        """As of `Grant`."""
        auth, asked_at = self.auth, time.monotonic()
        client = Client(
            auth.client_id, auth.method, auth.client_secret, auth.private_key, auth.key_id, auth.signing_algorithm
        )
        form = {"grant_type": "client_credentials"}
        form |= {"scope": " ".join(auth.scopes)} if auth.scopes else {}
        form |= {name: value for name in ("audience", "resource") if (value := getattr(auth, name)) is not None}
        async with Exchange(self._ca_file, self._limit_s) as exchange:
            url = auth.token_url
            if url is None:
                url = (await load_authorization_server(exchange, auth.issuer or "")).token_endpoint
            audience = auth.issuer or url
            answer = await request_tokens(exchange, Endpoint("the token endpoint", url), form, client, audience)
        logger.info("fetched an access token for MCP server %s", self._server)
        expires_at = asked_at + (life_s := answer.life_s)
        return Token(answer.access_token, expires_at - min(_LONGEST_MARGIN_S, _MARGIN * life_s), expires_at)
