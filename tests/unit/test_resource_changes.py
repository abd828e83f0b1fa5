"""What servers report as changed is dropped from the cache, and nobody waits for what is reported later."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.worker.process.resource_changes import ResourceChanges

pytestmark = pytest.mark.keeps_keys


def test_a_flood_holds_nobody_back(redis_url: str) -> None:
    """Its server reports something more as soon as the last of it is dropped."""

    async def wait_for_one(pool: Any) -> None:
        exchange = AsyncRedisExchange(lambda: pool)
        connections: dict[str, Any] = {name: connection(name) for name in ("flood", "quiet")}
        changes = ResourceChanges(connections, exchange)

        is_over = asyncio.Event()

        def report() -> None:
            if not is_over.is_set():
                connections["flood"].on_resources("note:x")
                asyncio.get_running_loop().call_soon(report)

        async with asyncio.timeout(20):
            report()
            for _ in range(3):
                connections["quiet"].on_resources("note:y")
                await changes.dropped()
            is_over.set()
            await changes.dropped()
        exchange.close()

    with redis.Redis.from_url(redis_url) as client:
        asyncio.run(wait_for_one(client.connection_pool))


def connection(name: str) -> Any:
    server = SimpleNamespace(
        name=name, cache=SimpleNamespace(resources=60), masking=SimpleNamespace(model_dump_json=str)
    )
    return SimpleNamespace(server=server, identity="it", on_resources=None)
