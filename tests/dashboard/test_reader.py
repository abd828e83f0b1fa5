"""What repeated requests cost Redis, and what they cost the readers during an outage."""

import asyncio
from typing import Any

import pytest

from tarsy_tasks.broker import keys
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.dashboard import recent_calls
from tarsy_tasks.dashboard.reader import DashboardReader
from tests.dashboard.records import FleetServer, write_calls
from tests.processes import until


def scans(client: Any) -> int:
    return client.info("commandstats").get("cmdstat_xrevrange", {}).get("calls", 0)


@pytest.mark.parametrize("place", ["", "near"])
def test_an_old_call_is_searched_for_once(client: Any, redis_url: str, place: str) -> None:
    first, *_ = write_calls(client, [FleetServer("desk", tools=1)], recent_calls.KEPT + 500)
    reader = DashboardReader(build_app({"broker_url": redis_url, "result_backend": redis_url}))
    near = first.at if place else None

    def look() -> int:
        before = scans(client)
        call = asyncio.run(reader.call(first.task_id, near=near))
        assert call.entry is not None
        assert call.entry.call_id == first.call_id
        return scans(client) - before

    assert look() > 2
    assert look() == 2, "its place in both streams"
    client.delete(keys.AUDIT)
    assert asyncio.run(reader.call(first.task_id)).entry is None


class _Hanging:
    """A Redis that takes connections and answers nothing.

    Attributes:
        attempts: Connections so far.
        waiting: Those whose clients still wait, as tasks that end with them.
    """

    def __init__(self) -> None:
        self.attempts = 0
        self.waiting: set[asyncio.Task[Any] | None] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempts += 1
        self.waiting.add(asyncio.current_task())
        while await reader.read(1000):
            pass
        self.waiting.discard(asyncio.current_task())
        writer.close()
        await writer.wait_closed()


def test_only_the_first_request_waits_for_a_hanging_redis() -> None:
    async def look_again() -> None:
        hanging = _Hanging()
        async with await asyncio.start_server(hanging.serve, "127.0.0.1", 0) as server:
            url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
            reader = DashboardReader(build_app({"broker_url": url, "result_backend": url}))
            state = await reader.state()
            before = hanging.attempts

            async def is_tried_again() -> bool:
                nonlocal state
                state = await reader.state()
                return hanging.attempts > before and len(hanging.waiting) == 1

            await until(is_tried_again)
            assert state.outage, "it returns while Redis is tried again"
            await asyncio.gather(*filter(None, hanging.waiting))

    asyncio.run(asyncio.wait_for(look_again(), 60))
