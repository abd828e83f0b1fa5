"""Access tokens of a person who has signed in: read from Redis, and renewed there for all workers.

Owns when a worker renews, and what it does when another one does. A new refresh token that cannot be stored is kept,
and stored later: without it, somebody would have to sign in again.
"""

import asyncio
import logging
import math
import time
from dataclasses import dataclass
from uuid import uuid4

from pydantic import SecretStr
from redis.exceptions import RedisError

from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.config import OAuthSignIn
from tarsy_tasks.oauth import store
from tarsy_tasks.oauth.endpoint import EXCHANGE_S, CredentialsError, Exchange
from tarsy_tasks.oauth.sealed import Sealer, SealError
from tarsy_tasks.oauth.sign_in import SignIn
from tarsy_tasks.oauth.store import Found
from tarsy_tasks.oauth.token_answer import GrantRefused, request_tokens
from tarsy_tasks.worker.transport.access_tokens import NotSignedIn, Token

__all__ = ["SignInTokens", "SignedIn"]

logger = logging.getLogger(__name__)

_LOOK_S = 5.0
"""How often a worker looks whether somebody has signed in again, or out."""
_WAIT_S = 0.1
"""How often it looks for what another worker renews."""
_LEASE_S = 25
"""Longer than a renewal takes: 10 s for the authorization server, and as long until Redis has taken the answer."""
_STORE_S = 8.0
_REPLACED_S = 10.0
"""A token that is younger, and took the place of a refused one, is not renewed because it was refused: the server would
refuse the next one, too."""


@dataclass(frozen=True)
class SignInTokens:
    """What all workers of a deployment share.

    Attributes:
        exchange: Redis, for the session loop.
        sealer: None: there is no key.
    """

    exchange: AsyncRedisExchange
    sealer: Sealer | None


class SignedIn:
    """Fetches the tokens of one server.

    Attributes:
        auth: How somebody signs in, as it was last resolved.
        url: The server, as it was last resolved.
    """

    def __init__(
        self,
        server: str,
        auth: OAuthSignIn,
        url: str,
        ca_file: str | None,
        tokens: SignInTokens | None,
        limit_s: float = EXCHANGE_S,
    ) -> None:
        self.auth = auth
        self.url = url
        self._server = server
        self._ca_file = ca_file
        self._tokens = tokens
        self._limit_s = limit_s
        self._owner = uuid4().hex
        self._unstored: tuple[Found, SignIn] | None = None

    async def fetch(self, refused: SecretStr | None) -> Token:
        """As of `Grant`."""
        until = time.monotonic() + self._limit_s
        while True:
            found = await self._read()
            sign_in, read_at = found.sign_in, time.monotonic()
            is_refused = refused is not None and sign_in.access_token == refused
            if is_refused and sign_in.is_replacement and found.now < sign_in.obtained_at + _REPLACED_S:
                is_refused = False
            is_valid = not is_refused and (sign_in.expires_at is None or found.now < sign_in.expires_at)
            if is_valid and found.now < sign_in.renew_at:
                return _build_token(found, read_at)
            if sign_in.refresh_token is None:
                how = "is not accepted any more" if is_refused else "has expired"
                raise self._not_signed_in(sign_in.ended or f"its access token {how}, and cannot be renewed")
            match await self._begin(found):
                case b"lead":
                    await self._renew(found, is_refused=is_refused)
                case b"busy" if is_valid:
                    return _build_token(found, read_at)
                case b"busy":
                    if time.monotonic() > until:
                        text = f"another worker has not renewed the sign-in for {self._server} in time"
                        raise CredentialsError(text, is_transient=True)
                    await asyncio.sleep(_WAIT_S)
                case _:
                    pass

    async def _read(self) -> Found:
        sealer = self._sealer
        if self._unstored is not None:
            await self._store(*self._unstored)
        try:
            replies = await self._exchange.execute(*store.build_read(self._server))
        except (RedisError, OSError) as error:
            raise self._no_redis(error) from None
        try:
            found = store.read_found(sealer, self._server, replies)
        except SealError as error:
            raise self._not_signed_in(f"what is stored {error}") from None
        if found is None:
            raise self._not_signed_in("nobody has signed in")
        if conflict := found.sign_in.find_conflict(self.url, self.auth):
            raise self._not_signed_in(conflict)
        return found

    async def _begin(self, found: Found) -> bytes:
        try:
            return await store.begin_renewal.run_async(
                self._exchange, server=self._server, seen=found.sealed, owner=self._owner, lease_s=_LEASE_S
            )
        except (RedisError, OSError) as error:
            raise self._no_redis(error) from None

    async def _renew(self, found: Found, *, is_refused: bool) -> None:
        """Ask for the next access token, and store it."""
        sign_in, began = found.sign_in, time.monotonic()
        try:
            async with Exchange(self._ca_file, self._limit_s) as exchange:
                client, form = sign_in.build_client(self.auth), sign_in.renewal_form()
                answer = await request_tokens(exchange, sign_in.endpoint, form, client, sign_in.issuer, sign_in.secrets)
        except GrantRefused as error:
            await self._store(found, sign_in.as_ended(error.text))
            return
        except BaseException:
            await self._end()
            raise
        logger.info("renewed the access token for MCP server %s", self._server)
        now = found.now + time.monotonic() - began
        await self._store(found, sign_in.renewed(answer, now, is_replacement=is_refused))

    async def _store(self, found: Found, renewed: SignIn) -> None:
        """Replace what was read; it may be there no longer."""
        sealed = store.seal(self._sealer, self._server, renewed)
        self._unstored = found, renewed
        until = time.monotonic() + _STORE_S
        while True:
            try:
                await store.replace.run_async(
                    self._exchange, server=self._server, seen=found.sealed, text=sealed, owner=self._owner
                )
            except (RedisError, OSError) as error:
                if time.monotonic() > until:
                    logger.warning("the renewed sign-in for MCP server %s is not stored yet: %s", self._server, error)
                    raise self._no_redis(error) from None
                await asyncio.sleep(_WAIT_S)
            else:
                self._unstored = None
                return

    async def _end(self) -> None:
        """Let another worker try; if that fails, the lease lapses."""
        try:
            await store.end_renewal.run_async(self._exchange, server=self._server, owner=self._owner)
        except (RedisError, OSError):
            logger.debug("the renewal of the sign-in for MCP server %s lapses", self._server)

    @property
    def _sealer(self) -> Sealer:
        if self._tokens is None or self._tokens.sealer is None:
            raise CredentialsError(
                "TARSY_TOKEN_KEY is not set, so the sign-in cannot be read; set the key that `tarsy-tasks auth login` "
                "was given where the worker runs"
            )
        return self._tokens.sealer

    @property
    def _exchange(self) -> AsyncRedisExchange:
        assert self._tokens is not None
        return self._tokens.exchange

    def _not_signed_in(self, why: str) -> NotSignedIn:
        return NotSignedIn(f"{why}; an operator signs in with `tarsy-tasks auth login {self._server}`")

    def _no_redis(self, error: Exception) -> CredentialsError:
        return CredentialsError(f"the sign-in cannot be read from Redis, or stored there ({error})", is_transient=True)


def _build_token(found: Found, read_at: float) -> Token:
    """The access token of a sign-in that was read at this monotonic time."""
    sign_in = found.sign_in
    left_s = math.inf if sign_in.expires_at is None else sign_in.expires_at - found.now
    renew_s = min(_LOOK_S, max(1.0, sign_in.renew_at - found.now))
    return Token(sign_in.access_token, read_at + renew_s, read_at + left_s, sign_in.id, frozenset(sign_in.secrets))
