"""What a token endpoint answers: tokens, or why there are none.

Owns what of it is believed. How long a token lives is a claim: what makes no sense counts as unknown, and then the
token is used until a server refuses it.
"""

import math
import re
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError

from tarsy_tasks.oauth.client import Client
from tarsy_tasks.oauth.endpoint import CredentialsError, Endpoint, Exchange, Reply

__all__ = ["GrantRefused", "TokenAnswer", "request_tokens"]

_SHOWN_CHARS = 200
_TOKEN = re.compile(r"[\x21-\x7e]+")
_ENDED = ("invalid_grant",)


class TokenAnswer(BaseModel):
    """The used part of the answer.

    Attributes:
        scope: What was granted; None: what was asked for.
        expires_in: Seconds, in principle.
    """

    access_token: SecretStr
    token_type: str = "Bearer"  # noqa: S105
    expires_in: Any = None
    refresh_token: SecretStr | None = None
    scope: str | None = None

    @property
    def life_s(self) -> float:
        """The lifetime of the access token; infinity if it is not known. Some endpoints write the number as text."""
        value = self.expires_in
        try:
            seconds = float(value) if isinstance(value, str | int | float) else math.inf
        except (ValueError, OverflowError):
            return math.inf
        return seconds if seconds > 0 else math.inf


class GrantRefused(CredentialsError):
    """The code or the refresh token is not valid, and never will be."""


class _Refusal(BaseModel):
    error: str
    error_description: str = ""


async def request_tokens(
    exchange: Exchange,
    endpoint: Endpoint,
    form: dict[str, str],
    client: Client,
    audience: str,
    secrets: Collection[str] = (),
) -> TokenAnswer:
    """Ask a token endpoint.

    Args:
        audience: As `Client.authenticate` takes it.
        secrets: What the endpoint could repeat in its answer.

    Raises:
        GrantRefused: What the client presents is not valid any more.
        CredentialsError: There are no tokens for another reason.
    """
    data, headers = client.authenticate(form, audience)
    known = [*secrets, *(value.get_secret_value() for value in (client.secret, client.private_key) if value)]
    reply = await exchange.send(endpoint, "POST", data=data, headers=headers)
    return _read(endpoint, reply, client, known)


def _read(endpoint: Endpoint, reply: Reply, client: Client, secrets: Collection[str]) -> TokenAnswer:
    if reply.is_transient:
        raise endpoint.error(f"answered HTTP {reply.status}", is_transient=True)
    if reply.target is not None:
        raise endpoint.error(f"redirects to {reply.target}, where credentials are not sent; correct its address")
    if reply.status != 200:
        raise _refusal(endpoint, reply, client, secrets)
    try:
        answer = TokenAnswer.model_validate_json(reply.body)
    except ValidationError:
        kind = reply.headers.get("content-type", "no content type").partition(";")[0][:_SHOWN_CHARS]
        raise endpoint.error(f"answered with {kind} that contains no access token; check its address") from None
    if answer.token_type.lower() != "bearer":
        raise endpoint.error(f"returns tokens of type {answer.token_type[:_SHOWN_CHARS]!a}, expected Bearer")
    for token in (answer.access_token, answer.refresh_token):
        if token is not None and not _TOKEN.fullmatch(token.get_secret_value()):
            raise endpoint.error("returns a token that is not valid in a header")
    return answer


def _refusal(endpoint: Endpoint, reply: Reply, client: Client, secrets: Collection[str]) -> CredentialsError:
    try:
        refusal = _Refusal.model_validate_json(reply.body)
    except ValidationError:
        return endpoint.error(f"answered HTTP {reply.status}; check its address")
    reason = f"{refusal.error}: {refusal.error_description}".removesuffix(": ")
    for secret in filter(None, secrets):
        reason = reason.replace(secret, "••••")
    status = f"HTTP {reply.status}, {reason[:_SHOWN_CHARS]}"
    if refusal.error in _ENDED:
        return GrantRefused(endpoint.error(f"refused the sign-in ({status})").text)
    return endpoint.error(f"refused client_id {client.client_id} ({status}); check its secret, scopes and audience")
