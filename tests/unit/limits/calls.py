"""Calls under limits, as tests take and begin them in the in-flight table."""

import asyncio
import itertools
import json
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_deliveries import AsyncDeliveries, LimitCheck
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import Delivery
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.limit_counters import OverLimit
from tarsy_tasks.policy import LimitRule, Limits

__all__ = ["LEASE_S", "Calls", "Table", "limits_of", "text_of"]

LEASE_S = 20.0
NUMBERS = itertools.count()


class Table(Deliveries):
    """The in-flight table, and the pool of its connections."""

    def __init__(self, pool: Any) -> None:
        self.pool, exchange = pool, RedisExchange(pool)
        super().__init__(lambda: exchange)


def text_of(tag: str, task: str = "tarsy.call_tool") -> str:
    return json.dumps({"body": "", "headers": {"task": task, "id": tag}, "properties": {"delivery_tag": tag}})


def limits_of(*rules: dict[str, Any]) -> Limits:
    return Limits(LimitRule.model_validate(rule) for rule in rules)


class Calls:
    """Takes calls and begins them, as a worker does."""

    def __init__(self, table: Table, limits: Limits) -> None:
        self.table, self.limits = table, limits

    def take(self, agent: str = "sre") -> Delivery:
        tag, queue = f"{agent} {next(NUMBERS)}", keys.agent_queue("desk", agent)
        self.table.publish(queue, tag, text_of(tag))
        self.table.exchange.execute(("RPOP", queue))
        return self.table.take(queue, tag, lambda: "")

    def begin(
        self, delivery: Delivery, agent: str = "sre", tool: str = "echo", patience_s: float = 60.0
    ) -> str | OverLimit:
        applied = self.limits.of(agent, "desk", tool)
        assert applied is not None
        check = LimitCheck(applied.text_without(delivery.counted_in), patience_s, LEASE_S)

        async def begin() -> str | OverLimit:
            exchange = AsyncRedisExchange(lambda: self.table.pool)
            try:
                return await AsyncDeliveries(exchange).begin_limited(delivery, f"w {delivery.count}", 1.0, check)
            finally:
                exchange.close()

        found = asyncio.run(begin())
        if found == "":
            delivery.charges = applied.charges
        return found

    def call(self, agent: str = "sre", tool: str = "echo", patience_s: float = 60.0) -> str | OverLimit:
        return self.begin(self.take(agent), agent, tool, patience_s)

    def kinds(self, count: int, **options: Any) -> list[str]:
        found = [self.call(**options) for _ in range(count)]
        return [each.kind if isinstance(each, OverLimit) else each for each in found]
