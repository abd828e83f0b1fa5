"""What a page costs Redis when somebody looks at it again and again."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tarsy_tasks import keys
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.flower_tab import recent_calls
from tarsy_tasks.flower_tab.dashboard import Dashboard
from tests.flower.records import FleetServer, write_calls


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client
        client.flushall()


def scans(client: Any) -> int:
    return client.info("commandstats").get("cmdstat_xrevrange", {}).get("calls", 0)


@pytest.mark.parametrize("place", ["", "near"])
def test_a_call_of_long_ago_is_searched_for_once(client: Any, redis_url: str, place: str) -> None:
    first, *_ = write_calls(client, [FleetServer("desk", tools=1)], recent_calls.KEPT + 500)
    dashboard = Dashboard(build_app({"broker_url": redis_url, "result_backend": redis_url}))
    near = first.at if place else None

    def look() -> int:
        before = scans(client)
        call = asyncio.run(dashboard.call(first.task_id, near=near))
        assert call.entry is not None
        assert call.entry.call_id == first.call_id
        return scans(client) - before

    assert look() > 2
    assert look() == 2, "its own place in both streams"
    client.delete(keys.AUDIT)
    assert asyncio.run(dashboard.call(first.task_id)).entry is None
