"""A server adds a tool and says so: the tool can be called at once, without a health check in between."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, witness
from tests.processes import ServiceProcess, Worker, free_port, listening, wait_until
from tests.servers import either_era

HTTP_SERVERS = {"http-new": [], "http-old": ["--handshake"]}
SERVERS = ["stdio-new", "stdio-old", *HTTP_SERVERS]


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    directory: Path = tmp_path_factory.mktemp("servers")
    ports = {name: free_port() for name in HTTP_SERVERS}

    def running(name: str) -> AbstractContextManager[ServiceProcess]:
        command = [sys.executable, either_era.__file__, *HTTP_SERVERS[name], "--ledger", str(directory / name)]
        return listening([*command, "--http", str(ports[name])], ports[name], directory)

    with ExitStack() as stack, ThreadPoolExecutor() as at_once:
        list(at_once.map(lambda name: stack.enter_context(running(name)), HTTP_SERVERS))
        yield ports


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, ports: dict[str, int], tmp_path_factory: pytest.TempPathFactory) -> Worker:
    directory: Path = tmp_path_factory.mktemp("ledgers")
    http = {name: {"url": f"http://127.0.0.1:{port}/mcp"} for name, port in ports.items()}
    new = witness(Ledger(directory / "stdio-new"))
    old = witness(Ledger(directory / "stdio-old"), "--probe", "refused")
    return start_worker({"stdio-new": new, "stdio-old": old, **http})


@pytest.mark.parametrize("server", SERVERS)
def test_a_tool_that_a_server_adds_can_be_called(worker: Worker, server: str, redis_url: str) -> None:
    tools = ToolExecutor(timeout_s=20)

    def call(tool: str) -> tuple[Outcome, ErrorCode | None]:
        result = tools.execute(ToolCall(id="c", name=f"{server}.{tool}", arguments={}))
        return result.outcome, result.error_code

    assert call("grown") == (Outcome.REJECTED, ErrorCode.UNKNOWN_TOOL)
    with redis.Redis.from_url(redis_url) as client:
        wait_until(lambda: client.hexists(keys.tools_key(server), "listing"), "its first list is written")
    assert call("grow") == (Outcome.OK, None)
    worker.wait_for_log(f"MCP server {server} changed its tools")
    assert call("grown") == (Outcome.OK, None)
    assert worker.log.count(f"connected to MCP server {server}:") == 1
