"""Access tokens of one server, for all sessions of a process.

Owns keeping a token, and when the next one is fetched; where it comes from is a `Grant`. The SDK's own provider holds a
lock during the request that it authenticates, so calls would run one after the other, and it fetches a token only after
a refusal. Here only the first token is waited for, and all callers wait for the same fetch.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import SecretStr

from tarsy_tasks.oauth.endpoint import CredentialsError
from tarsy_tasks.worker.maskers import known_secrets

__all__ = ["Grant", "NotSignedIn", "Token", "TokenSource"]

logger = logging.getLogger(__name__)

_FAILED_S = 2.0
"""No new attempt for this long after a failure: there may be hundreds of calls, and servers lock clients out."""
_RENEWED_S = 10.0
"""A token that was fetched after a refusal is not replaced for another refusal for this long."""
_REMEMBERED = 3
"""Former tokens that are still masked: calls may be under way with them."""


class NotSignedIn(CredentialsError):
    """There is no token until a person signs in, and a former one is not to be used any more."""


@dataclass(frozen=True)
class Token:
    """An access token.

    Attributes:
        renew_at: Monotonic time when the next one is fetched.
        expires_at: Monotonic time when it expires; infinity if the endpoint gave no lifetime.
        identity: Who has it, if that is not always the same one.
        secrets: What else is to be masked.
    """

    value: SecretStr
    renew_at: float
    expires_at: float
    identity: str = ""
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


class Grant(Protocol):
    """Where access tokens come from."""

    async def fetch(self, refused: SecretStr | None) -> Token:
        """The next token.

        Args:
            refused: What the server did not accept, so another one is needed.

        Raises:
            CredentialsError: There is none.
        """
        ...


class TokenSource:
    """The access token of one server. Everything runs on the session loop."""

    def __init__(self, server: str, grant: Grant, on_secrets: Callable[[Iterable[str]], None]) -> None:
        self._grant = grant
        self._on_secrets = on_secrets
        self._server = server
        self._token: Token | None = None
        self._refused: SecretStr | None = None
        self._fetching: asyncio.Task[Token] | None = None
        self._failure: CredentialsError | None = None
        self._failed_at = self._renewed_at = float("-inf")
        self._former: deque[set[str]] = deque()

    @property
    def identity(self) -> str:
        """Who has the token, if that is not always the same one."""
        return "" if self._token is None else self._token.identity

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
        if self._token is refused and self._fetching is not None:
            await asyncio.wait({self._fetching})  # it began before the refusal, so it may bring the same token
        token, now = self._token, time.monotonic()
        is_same = token is not None and token.value == refused.value
        if not is_same or now < self._renewed_at + _RENEWED_S:
            return await self.current()
        self._token, self._refused, renewed_at = None, refused.value, self._renewed_at
        self._renewed_at = now
        found = await self.current()
        if found.value == refused.value:  # another worker has fetched it a moment ago
            self._renewed_at = renewed_at
        return found

    async def look(self) -> Token:
        """As `current`, but fetched now."""
        return await self._fetched()

    async def _fetched(self) -> Token:
        if self._fetching is None and self._failure is not None and self._failed_lately():
            raise CredentialsError(self._failure.text, self._failure.is_transient)
        # A caller that gives up must not cancel the fetch for the others.
        return await asyncio.shield(self._begin())

    def _failed_lately(self) -> bool:
        return time.monotonic() < self._failed_at + _FAILED_S

    def _begin(self) -> "asyncio.Task[Token]":
        if self._fetching is None:
            fetch = self._grant.fetch(self._refused)
            self._fetching = asyncio.create_task(fetch, name=f"mcp-token-{self._server}")
            self._fetching.add_done_callback(self._end)
        return self._fetching

    def _end(self, task: "asyncio.Task[Token]") -> None:
        self._fetching = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._keep(task.result())
            return
        self._failed_at = time.monotonic()
        if isinstance(error, CredentialsError):
            self._failure = error
        if self._token is not None:
            logger.warning("the access token for MCP server %s was not renewed: %s", self._server, error)
        if isinstance(error, NotSignedIn):
            self._token = None

    def _keep(self, token: Token) -> None:
        secrets = {token.value.get_secret_value(), *token.secrets}
        if not self._former or self._former[-1] != secrets:
            self._former.append(secrets)
            if len(self._former) > _REMEMBERED:
                known_secrets.forget(self._former.popleft() - set().union(*self._former))
            self._on_secrets(secrets)
        self._token, self._failure, self._refused = token, None, None
