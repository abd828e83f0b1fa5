"""Keeps the watches of an agent's process: their records in Redis are renewed, and what workers publish is passed on.

Owns the leases, also through an outage and a restart of Redis: after each, every watch hears once that its resource may
have changed. Everything runs on the background loop.
"""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Protocol

from tarsy_tasks.agent.background import start_in_background
from tarsy_tasks.agent.connection import AgentConnection, connection_of
from tarsy_tasks.agent.per_app import PerApp
from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal
from tarsy_tasks.agent.waiting import retry_until
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.watches import LEASE_S
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.resources import WatchMessage

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["WatchKeeper", "keeper_of"]

logger = logging.getLogger(__name__)
_RENEW_S = LEASE_S / 3
_LOOK_S = 0.5
_RECONNECT_S = 10.0
_AFTER_ERROR_S = 2.0
_REFUSED_S = 10.0
"""For how long Redis may refuse this user, whose rules may just be loaded again, until the watches end."""
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
"""Between two attempts to begin a watch again."""
_UNWATCHED = "Nothing is watched."


class Kept(Protocol):
    """What is kept: `resource_watch.Watched`."""

    id: str

    def hear(self, message: WatchMessage) -> None: ...
    def note_uncertain(self) -> None: ...
    def end(self, error: Exception) -> None: ...
    async def begin_again(self) -> bool: ...


class WatchKeeper:
    """The watches of one application in this process."""

    def __init__(self, connection: AgentConnection) -> None:
        self._agent = connection.agent
        self._replies = connection.replies
        self._kept: dict[str, Kept] = {}
        self._lost: set[Kept] = set()
        """Watches that Redis has lost or workers have ended, and that are to be begun again."""
        self._keeping: asyncio.Task[None] | None = None

    @property
    def losses(self) -> int:
        """How often the connection was lost."""
        return self._replies.losses

    async def open(self, timeout_s: float) -> None:
        """Return once what workers publish can be heard. Raises `BrokerUnavailable`."""
        deadline = time.monotonic() + timeout_s
        await self._replies.connect(deadline, _UNWATCHED)
        try:
            await retry_until(deadline, self._replies.hear_events)
        except connection_errors() as error:
            raise BrokerUnavailable(f"Redis could not be reached ({error}). {_UNWATCHED}") from error
        if self._replies.refuses_events:
            raise BrokerUnavailable(
                f"Redis does not allow this user to receive changes. {_UNWATCHED} An operator has to renew its ACL "
                "rules (`tarsy-tasks acl`)."
            )

    def add(self, watch: Kept, losses: int) -> None:
        """Keep a watch from now on, under its present id.

        Args:
            losses: The `losses` before a worker was asked to subscribe.
        """
        self._kept[watch.id] = watch
        self._replies.listen_for_changes(watch.id, watch.hear)
        if losses != self._replies.losses and self._replies.hears_events:  # again; otherwise it hears of it after that
            watch.note_uncertain()
        if self._keeping is None:
            self._keeping = start_in_background(self._keep())

    def remove(self, watch: Kept) -> None:
        """It has ended."""
        self._lost.discard(watch)
        if self._forget(watch):
            start_in_background(self.release(watch.id))
        if not self._kept and not self._lost and self._keeping is not None:
            self._keeping.cancel()
            self._keeping = None

    def begin_again(self, watch: Kept) -> None:
        """Nobody holds it any more: ask a worker again, until that is settled."""
        if self._forget(watch):
            self._lost.add(watch)
            start_in_background(self._ask_again(watch))

    async def release(self, watch_id: str) -> None:
        """Have the workers hear that a watch has ended."""
        try:
            await self._replies.redis.execute(("DEL", self._record(watch_id)))
        except connection_errors():
            pass  # it lapses

    def _forget(self, watch: Kept) -> bool:
        self._replies.stop_listening(watch.id)
        return self._kept.pop(watch.id, None) is not None

    def _record(self, watch_id: str) -> str:
        return keys.watch_key(self._agent, watch_id)

    async def _keep(self) -> None:
        losses, renew_at = self._replies.losses, time.monotonic() + _RENEW_S
        refused_at: float | None = None
        while True:
            await asyncio.sleep(_LOOK_S)
            is_deaf = not (self._replies.hears_events or self._replies.refuses_events)
            was_lost = is_deaf or losses != self._replies.losses
            if not (was_lost or time.monotonic() >= renew_at):
                continue
            losses = self._replies.losses
            try:
                await self._replies.connect(time.monotonic() + _RECONNECT_S, _UNWATCHED)
                await self._replies.hear_events()
                await self._renew(was_lost=was_lost)
            except (BrokerUnavailable, *connection_errors()) as error:
                losses = -1  # what was published meanwhile, nobody heard
                if not is_refusal(error.__cause__ or error):
                    refused_at = None
                    continue
                refused_at = refused_at or time.monotonic()
                if time.monotonic() - refused_at >= _REFUSED_S:
                    self._end_all(error)
            except Exception:
                logger.exception("watches of resources could not be renewed")
                losses = -1
                await asyncio.sleep(_AFTER_ERROR_S)
            else:
                renew_at, refused_at = time.monotonic() + _RENEW_S, None

    def _end_all(self, error: Exception) -> None:
        if not isinstance(error, BrokerUnavailable):
            error = BrokerUnavailable(f"Redis no longer lets this user watch resources ({error}).")
        for watch in [*self._kept.values(), *self._lost]:
            watch.end(error)

    async def _renew(self, *, was_lost: bool) -> None:
        if kept := [*self._kept.values()]:
            are_renewed = await self._replies.redis.execute(
                *(("EXPIRE", self._record(each.id), LEASE_S) for each in kept)
            )
            for watch, is_renewed in zip(kept, are_renewed, strict=True):
                if not is_renewed:
                    self.begin_again(watch)
                elif was_lost:
                    watch.note_uncertain()

    async def _ask_again(self, watch: Kept) -> None:
        """Each attempt may take as long as a call."""
        pause_s = _FIRST_PAUSE_S
        while watch in self._lost:
            if await watch.begin_again():
                self._lost.discard(watch)
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _build(app: "Celery") -> WatchKeeper:
    return WatchKeeper(connection_of(app))


keeper_of = PerApp(_build)
"""The one keeper of this process for an application."""
