"""The in-flight table, as tests move messages through it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_deliveries import AsyncDeliveries
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.sweep import Swept
from tests.processes import wait_until

__all__ = [
    "LEASE_S",
    "MESSAGE",
    "QUEUE",
    "RESULT",
    "begin",
    "is_clean",
    "pop",
    "state_of",
    "sweep",
    "unbegin",
    "withdraw",
]

QUEUE = "mcp.desk"
MESSAGE = '{"body": "…", "headers": {}}'
LEASE_S = 0.3
RESULT = "celery-task-meta-a"

T = TypeVar("T")


def pop(client: redis.Redis) -> str:
    message = client.rpop(QUEUE)
    assert isinstance(message, bytes)
    return message.decode()


def on_a_loop(client: redis.Redis, act: Callable[[AsyncDeliveries], Awaitable[T]]) -> T:
    """What an event loop does with the same table."""

    async def acted() -> T:
        exchange = AsyncRedisExchange(lambda: client.connection_pool)
        try:
            return await act(AsyncDeliveries(exchange))
        finally:
            exchange.close()

    return asyncio.run(acted())


def begin(client: redis.Redis, delivery: Delivery, owner: str, at: float = 1.0, *, after: str = "") -> CallState:
    on_a_loop(client, lambda table: table.begin(delivery, owner, at, after=after))
    return delivery.state


def unbegin(client: redis.Redis, tag: str, owner: str) -> None:
    on_a_loop(client, lambda table: table.unbegin(tag, owner))


def withdraw(client: redis.Redis, tag: str) -> tuple[CallState, bool]:
    return on_a_loop(client, lambda table: table.withdraw(tag, QUEUE, 60))


def state_of(client: redis.Redis, tag: str) -> CallState:
    return on_a_loop(client, lambda table: table.state_of(tag))


def sweep(table: Deliveries, *, until: str) -> Swept:
    """Sweeps until something is found."""
    table.sweep(LEASE_S, LEASE_S / 2)

    def found() -> Swept | None:
        swept = table.sweep(LEASE_S, LEASE_S / 2)
        return swept if swept.restored or swept.dead_letters else None

    swept = wait_until(found, until, 5)
    assert swept is not None
    return swept


def is_clean(client: redis.Redis) -> bool:
    return not client.exists(QUEUE, keys.UNACKED, keys.waiting_key(QUEUE), keys.LEASES)
