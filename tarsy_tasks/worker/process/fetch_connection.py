"""The connection on which a worker fetches messages, from its opening until it is closed for good.

Owns the scripts that it runs, whether Redis allows them, and opening it again when it was lost. When something is
fetched, and what becomes of it, is decided in `fetcher`.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kombu.exceptions import KombuError
from redis.exceptions import RedisError, ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange, Subscription
from tarsy_tasks.broker.fetch import declare_fetch, fetch
from tarsy_tasks.broker.redis_errors import ErrorKind, classify_error
from tarsy_tasks.broker.shares import declare_fair_fetch
from tarsy_tasks.telemetry.outage_log import OutageLog

__all__ = ["TRACK_NEXT", "FetchConnection"]

logger = logging.getLogger(__name__)

_RETRY_S = (0.1, 2.0)
_TRACK = ("CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
TRACK_NEXT = ("CLIENT", "CACHING", "YES")
"""Sent right before a command that reads a key: its next change is reported."""
_PROBE, _PROBE_AGENTS = keys.queue(""), keys.agents_key("")
"""A queue of no server, and the set of its agents."""


class FetchConnection:
    """All of its methods run on the session loop.

    Args:
        find_pool: As for `AsyncRedisExchange`.
        hear: Called with the keys that were reported to have changed; None: any of them.
        reopened: Called when a lost connection is open again.
        weights: Of the shares, as for `declare_fair_fetch`.
        limiting: As for `declare_fetch`.
        instance: Name of this worker process.

    Attributes:
        exchange: Sends commands.
        fetch: The script that pops and leases.
        fetch_fairly: The same, where agents have shares.
        serves_agents: Whether Redis allows the second one.
    """

    def __init__(
        self,
        find_pool: Callable[[], Any],
        hear: Callable[[list[bytes] | None], None],
        reopened: Callable[[], None],
        weights: Mapping[str, float],
        limiting: str,
        instance: str,
    ) -> None:
        self._instance = instance
        self.exchange = AsyncRedisExchange(find_pool, Subscription(_TRACK, hear, self._lost))
        self.fetch = declare_fetch(limiting=limiting) if limiting else fetch
        self.fetch_fairly = declare_fair_fetch(weights, limiting)
        self.serves_agents = True
        self._reopened = reopened
        self._is_kept_open = False
        self._opening: asyncio.Task[None] | None = None
        self._outage = OutageLog(logger, "the connection on which messages are fetched cannot be opened again")

    async def open(self) -> None:
        """Open it, and learn what Redis allows; once.

        Raises:
            RedisError: Redis cannot be reached, or refuses what is needed (`ResponseError`).
        """
        probe = self._probe()
        await self.exchange.open()
        # Redis may not know the script; and its user may not be allowed to do what is in it.
        await self.fetch.run_async(self.exchange, _PROBE, **probe)
        try:
            await self.fetch_fairly.run_async(self.exchange, _PROBE_AGENTS, **probe)
            wake = keys.wake_key("", self._instance)
            await self.exchange.execute(("SCARD", _PROBE_AGENTS), ("ZCARD", keys.shares_key("")), ("STRLEN", wake))
            self.serves_agents = True
        except ResponseError as error:
            if classify_error(error) is ErrorKind.PASSING:
                raise
            self.serves_agents = False
            text = (
                "the queues of agents with a Redis user of their own are not served, because Redis refuses it: %s (%s)"
            )
            logger.warning(text, error, "`tarsy-tasks acl` prints the rules of `worker`")

    def keep_open(self) -> None:
        """From now on, open it again when it is lost."""
        self._is_kept_open = True

    def stop_reopening(self) -> None:
        """From now on, leave it closed when it is lost."""
        self._is_kept_open = False
        if self._opening is not None:
            self._opening.cancel()

    def reopen(self) -> None:
        """Open it again in the background, as often as it takes; what Redis has forgotten is sent once more."""
        if self._is_kept_open and (self._opening is None or self._opening.done()):
            self._opening = asyncio.get_running_loop().create_task(self._open_again())

    async def replace_terms(self, weights: Mapping[str, float], limiting: str) -> None:
        """The policy or the servers have changed; arguments as of the constructor."""
        fetch_alone = declare_fetch(limiting=limiting) if limiting else fetch
        fetch_fairly = declare_fair_fetch(weights, limiting)
        probe = self._probe()
        with suppress(RedisError, OSError):  # else Redis learns them when it is connected again
            await fetch_alone.run_async(self.exchange, _PROBE, **probe)
            await fetch_fairly.run_async(self.exchange, _PROBE_AGENTS, **probe)
        self.fetch, self.fetch_fairly = fetch_alone, fetch_fairly

    def _probe(self) -> dict[str, Any]:
        return {"limits": "1", "checks": 0, "room": 1, "kept": 0, "instance": self._instance}

    def close(self) -> None:
        """Close it for good."""
        self.stop_reopening()
        self.exchange.close()

    def _lost(self, error: Exception) -> None:
        if self._is_kept_open:
            logger.warning("the connection on which messages are fetched was lost: %s", error)
            self.reopen()

    async def _open_again(self) -> None:
        wait_s, longest_s = _RETRY_S
        while True:
            try:
                await self.open()
                break
            except (RedisError, KombuError, OSError) as error:
                self._outage.failed(error)
            await asyncio.sleep(random.uniform(wait_s / 2, wait_s))  # noqa: S311 - no secret
            wait_s = min(2 * wait_s, longest_s)
        self._outage.succeeded()
        self._reopened()
