"""Calls of a suspended server wait for workers that can take them; if there are none, they are answered."""

from types import SimpleNamespace
from typing import Any

import pytest
import redis

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.worker.process.bulkhead import Bulkhead
from tarsy_tasks.worker.process.suspended_queues import SuspendedQueues

QUEUES = ["mcp.desk", "mcp.desk.check", "mcp.files"]


class SomeWorker:
    """What a worker process has that serves two servers."""

    def __init__(self, client: redis.Redis, name: str) -> None:
        self.exchange = RedisExchange(client.connection_pool)
        self.desk: Any = SimpleNamespace(suspension=SimpleNamespace(left_s=0.0))
        files: Any = SimpleNamespace(suspension=SimpleNamespace(left_s=0.0))
        self.bulkhead = Bulkhead()
        self.bulkhead.open(8, [ServerConfig(name=each, command="x") for each in ("desk", "files")])
        self.woken = 0
        self.bulkhead.watch(self.wake)
        self.suspended = SuspendedQueues({"desk": self.desk, "files": files}, self.bulkhead, name)
        fleet.announce(self.exchange, name, ["desk", "files"])

    def wake(self) -> None:
        self.woken += 1

    def suspend(self, left_s: float = 30.0) -> None:
        self.desk.suspension.left_s = left_s
        self.desk.on_suspend()

    @property
    def takes_calls(self) -> bool:
        self.suspended.tend(self.exchange)
        polled = self.bulkhead.select(QUEUES)
        assert {"mcp.desk.check", "mcp.files"} <= set(polled)
        return "mcp.desk" in polled


def test_calls_of_a_suspended_server_wait_for_other_workers(client: redis.Redis) -> None:
    first, second = SomeWorker(client, "w1"), SomeWorker(client, "w2")
    assert first.takes_calls
    first.suspend()
    assert "mcp.desk" not in first.bulkhead.select(QUEUES), "at once"
    assert not first.takes_calls
    assert second.takes_calls
    first.desk.suspension.left_s = 0.0
    assert first.takes_calls
    assert first.woken == 1
    assert not client.exists(keys.suspended_key("desk"))


def test_if_all_workers_have_suspended_it_they_answer(client: redis.Redis) -> None:
    first, second = SomeWorker(client, "w1"), SomeWorker(client, "w2")
    first.suspend()
    second.suspend()
    assert not first.takes_calls, "it does not know yet of the other one"
    assert second.takes_calls
    assert first.takes_calls
    assert 29 <= client.ttl(keys.suspended_key("desk")) <= 31
    fleet.announce(first.exchange, "w3", ["desk"])
    assert not first.takes_calls


def test_what_redis_refuses_leaves_no_call_waiting(client: redis.Redis) -> None:
    first, second = SomeWorker(client, "w1"), SomeWorker(client, "w2")
    assert second.takes_calls
    client.set(keys.suspended_key("desk"), "another application's")
    first.suspend()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        first.suspended.tend(first.exchange)
    assert "mcp.desk" in first.bulkhead.select(QUEUES)


def test_a_suspension_that_ends_before_redis_has_it_ends(client: redis.Redis) -> None:
    """An operator ends it at once, or Redis is away for as long as it lasts."""
    first, second = SomeWorker(client, "w1"), SomeWorker(client, "w2")
    assert second.takes_calls
    first.suspend()
    first.desk.suspension.left_s = 0.0
    assert first.takes_calls
