"""The in-flight table, as far as the worker's event loop needs it.

Owns writing and removing begin markers from coroutines. The states and the rest are `deliveries`.
"""

from typing import Any

from tarsy_tasks.broker import fleet, keys, steps
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import CallState, Delivery
from tarsy_tasks.broker.steps import MARKER_TTL_S

__all__ = ["AsyncDeliveries"]


class AsyncDeliveries:
    """The in-flight table of one broker, for one event loop.

    All methods raise redis-py's `RedisError`, or `OSError`, when Redis cannot be reached.
    """

    def __init__(self, exchange: AsyncRedisExchange) -> None:
        self.exchange = exchange

    async def begin(self, delivery: Delivery, owner: str, *, after: str = "", is_audited: bool = False) -> str:
        """Write that a call begins, just before it is sent. Afterwards `delivery.state` is `CallState.NONE` if it may
        be sent, and otherwise says why not. `delivery.owner` is whose begin marker is there.

        Args:
            owner: Who begins it; each delivery has another.
            after: It may run although this owner began it before.
            is_audited: It may only begin if the audit takes an entry.

        Returns:
            Why the audit takes none, and then it has not begun; or an empty text.
        """
        state, other, *trouble = await steps.begin.run_async(
            self.exchange, tag=delivery.tag, owner=owner, earlier_owner=after or owner, is_audited=is_audited
        )
        if trouble:
            return _text(trouble[0])
        delivery.state = CallState(_text(state))
        delivery.owner = owner if delivery.state is CallState.NONE else _text(other)
        return ""

    async def unbegin(self, tag: str, owner: str) -> None:
        """Remove a begin marker: the call was not sent after all."""
        await steps.unbegin.run_async(self.exchange, tag=tag, owner=owner)

    async def mark_isolated(self, tag: str) -> None:
        """A call whose workers were lost runs alone now: if this one is lost too, the call is to blame."""
        marker = keys.call_marker(tag)
        await self.exchange.execute(("HSET", marker, "suspect", 1), ("EXPIRE", marker, MARKER_TTL_S))

    async def clear_isolated(self, tag: str) -> None:
        """Such a call no longer runs alone: if its worker is lost, another one may be to blame."""
        await self.exchange.execute(("HDEL", keys.call_marker(tag), "suspect"))

    async def is_alive(self, instance: str, within_s: float) -> bool:
        """As `fleet.is_alive`."""
        return fleet.is_alive(await self.exchange.execute(*fleet.ask_alive(instance)), within_s)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
