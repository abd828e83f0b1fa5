"""A Redis in which nothing is counted before each test, and in which all that was counted expires."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.unit.limits.calls import Table


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as found:
        yield found
        left = [key for key in found.keys("tarsy:limit:*") if found.ttl(key) < 0]
        found.flushall()
        assert not left


@pytest.fixture
def table(client: Any) -> Table:
    return Table(client.connection_pool)
