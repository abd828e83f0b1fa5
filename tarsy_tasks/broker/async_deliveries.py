"""The in-flight table, as far as event loops need it.

Owns writing and removing begin markers, storing the answers of plain calls, requeueing and withdrawing calls, from
coroutines. The states and the rest are in `deliveries`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tarsy_tasks.broker import fleet, keys, steps
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import answer_slots, as_text, read_state
from tarsy_tasks.broker.delivery import AuditWrite, CallState, Delivery
from tarsy_tasks.broker.large_results import LargeWrite, answer_large
from tarsy_tasks.broker.limit_counters import OverLimit, answer_counted, begin_limited, give_back

__all__ = ["AsyncDeliveries", "LimitCheck"]


class LimitCheck(NamedTuple):
    """The limits of a call.

    Attributes:
        text: The limits, in JSON (`policy.limits.AppliedLimits`).
        patience_s: How long it may wait.
        lease_s: How long a lease lasts.
    """

    text: str
    patience_s: float
    lease_s: float


class AsyncDeliveries:
    """The in-flight table of one broker, for one event loop.

    All methods raise redis-py's `RedisError`, or `OSError`, when Redis cannot be reached.
    """

    def __init__(self, exchange: AsyncRedisExchange) -> None:
        self.exchange = exchange

    async def begin(
        self, delivery: Delivery, owner: str, at: float, *, after: str = "", is_audited: bool = False
    ) -> str:
        """Write that a call begins, just before it is sent. Afterwards `delivery.state` is `CallState.NONE` if it may
        be sent, and otherwise says why not. `delivery.owner` is whose begin marker is there.

        Args:
            owner: Who begins it; each delivery has another.
            at: When, in seconds since the epoch by the clock of Redis.
            after: It may run although this owner began it before.
            is_audited: It may only begin if the audit takes an entry.

        Returns:
            Why the audit takes none, and then it has not begun; or an empty text.
        """
        delivery.begins_as = owner
        state, other, *trouble = await steps.begin.run_async(
            self.exchange,
            tag=delivery.tag,
            owner=owner,
            begun_at=f"{at:.3f}",
            earlier_owner=after or owner,
            is_audited=is_audited,
        )
        if trouble:
            return as_text(trouble[0])
        _note_begun(delivery, owner, state, other)
        return ""

    async def begin_limited(
        self,
        delivery: Delivery,
        owner: str,
        at: float,
        limits: LimitCheck,
        *,
        after: str = "",
        is_audited: bool = False,
    ) -> str | OverLimit:
        """As `begin`, if the call is within its limits; else it does not begin, and this returns the one it is over."""
        delivery.begins_as = owner
        state, other, *more = await begin_limited.run_async(
            self.exchange,
            tag=delivery.tag,
            home=delivery.queue,
            owner=owner,
            begun_at=f"{at:.3f}",
            earlier_owner=after or owner,
            is_audited=is_audited,
            limits=limits.text,
            patience_s=limits.patience_s,
            lease_s=limits.lease_s,
        )
        if len(more) > 1:
            _, limit, kind, wait_s, waits = more
            return OverLimit(as_text(limit), as_text(kind), float(wait_s), bool(waits))
        if more:
            return as_text(more[0])
        _note_begun(delivery, owner, state, other)
        return ""

    async def answer(
        self,
        delivery: Delivery,
        result_key: str,
        result: str | bytes,
        lifetime_s: int | None,
        entry: AuditWrite,
        large: LargeWrite | None = None,
    ) -> None:
        """As `Deliveries.answer`, or with a large result as `Deliveries.answer_large`."""
        if delivery.counted:
            await self._give_back(delivery)
        slots = answer_slots(delivery, result_key, result, lifetime_s)
        slots |= {"entry": entry.text, "limit": entry.limit}
        if large is not None:
            slots |= large.slots()
            slots["whole_bytes"] = large.whole_bytes
            is_first, error = await answer_large.run_async(self.exchange, **slots, charges=delivery.charges)
        elif delivery.charges:
            is_first, error = await answer_counted.run_async(self.exchange, **slots, charges=delivery.charges)
        else:
            is_first, error = await steps.answer.run_async(self.exchange, **slots)
        if is_first:
            entry.ended(as_text(error))

    async def requeue(self, delivery: Delivery) -> None:
        """As `Deliveries.requeue`."""
        if delivery.counted:
            await self._give_back(delivery)
        await steps.requeue.run_async(self.exchange, **delivery.slots)

    async def _give_back(self, delivery: Delivery) -> None:
        await give_back.run_async(self.exchange, counted=delivery.take_counted())

    async def unbegin(self, tag: str, owner: str) -> None:
        """Remove a begin marker: the call was not sent after all."""
        await steps.unbegin.run_async(self.exchange, tag=tag, owner=owner)

    async def mark_quarantined(self, tag: str) -> None:
        """A call whose workers were lost runs alone now: if this one is lost too, the call is to blame."""
        await self.exchange.execute(*steps.quarantining(tag))

    async def clear_quarantined(self, tag: str) -> None:
        """Such a call no longer runs alone: if its worker is lost, another one may be to blame."""
        await self.exchange.execute(("HDEL", keys.call_marker(tag), "suspect"))

    async def is_alive(self, instance: str, within_s: float) -> bool:
        """As `fleet.is_alive`."""
        return fleet.is_alive(await self.exchange.execute(*fleet.ask_alive(instance)), within_s)

    async def state_of(self, tag: str) -> CallState:
        """The state of a call now, by its marker."""
        state, is_withdrawn = await self.exchange.execute(
            ("HGET", keys.call_marker(tag), "mark"), ("EXISTS", keys.withdrawn_key(tag))
        )
        return CallState.WITHDRAWN if is_withdrawn and not state else read_state(state or b"")

    async def is_forgotten(self, tag: str) -> bool:
        """Whether nothing is known of a call: it was never published, or was answered long ago."""
        known = await self.exchange.execute(
            ("HEXISTS", keys.UNACKED, tag),
            ("EXISTS", keys.call_marker(tag)),
            ("EXISTS", keys.withdrawn_key(tag)),
        )
        return not any(known)

    async def withdraw(self, tag: str, queue: str, cancel_ttl_s: int) -> tuple[CallState, bool]:
        """Remove a call for which nobody waits any more: unless it has begun, it never will. If it has begun, the
        worker that runs it cancels it.

        Args:
            queue: Where it was published.
            cancel_ttl_s: For how long a worker may find out that it is to be cancelled.

        Returns:
            `CallState.NONE` if it was withdrawn, else its state; and whether a worker has or had it, and so writes its
            audit entry.
        """
        state, is_taken = await steps.withdraw.run_async(self.exchange, tag=tag, home=queue, cancel_ttl_s=cancel_ttl_s)
        return read_state(state), bool(is_taken)

    async def find_cancelled(self, tags: Sequence[str]) -> list[str]:
        """Which of these calls, at least one, are to be cancelled."""
        (found,) = await self.exchange.execute(("MGET", *map(keys.cancelled_key, tags)))
        return [tag for tag, is_cancelled in zip(tags, found, strict=True) if is_cancelled]

    async def is_served(self, server: str, now: float) -> bool:
        """Whether a live worker serves a server; `now` is the time of Redis."""
        return bool((await self.exchange.execute(fleet.ask_serving(server, now)))[0])


def _note_begun(delivery: Delivery, owner: str, state: bytes, other: bytes) -> None:
    delivery.state = CallState(as_text(state))
    if delivery.state is CallState.NONE:
        delivery.counted = ""
    delivery.owner = owner if delivery.state is CallState.NONE else as_text(other)
