"""Calls that an MCP server answers with a task: they take no slot, and are answered as any other when it is done."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, tool_signature
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys, parked_calls
from tests.calls.audit_entries import only_entry
from tests.conftest import StartWorker
from tests.processes import Worker, wait_until
from tests.servers.plain_http import serving
from tests.servers.tasks_http import Task, TasksServer

TIMEOUT_S = 40
SETTINGS = 'broker_transport_options = {"visibility_timeout": 2}\n'


@pytest.fixture(scope="module")
def server() -> Iterator[TasksServer]:
    with serving(TasksServer()) as found:
        yield found


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, server: TasksServer) -> Worker:
    servers: dict[str, Any] = {
        "yard": {"url": server.url},
        "hasty": {"url": server.url, "timeouts": {"task_s": 1}},
        "short": {"url": server.url, "timeouts": {"call_s": 1}},
    }
    return start_worker(servers, settings=SETTINGS, arguments=["-c", "2"])


@pytest.fixture(scope="module")
def table(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as found:
        yield found


def build(tools: ToolExecutor, key: str, name: str = "yard.build") -> PendingCall:
    return tools.submit(name, {"key": key})


def wait_for_task(server: TasksServer, key: str, gets: int = 1) -> Task:
    found = wait_until(lambda: server.task_of(key), f"the task of {key}", TIMEOUT_S)
    wait_until(lambda: found.gets >= gets, f"somebody asks for the task of {key}", TIMEOUT_S)
    return found


def test_a_task_is_answered_like_any_call(tools: ToolExecutor, server: TasksServer, table: Any) -> None:
    pending = build(tools, "plain")
    task = wait_for_task(server, "plain", gets=2)
    assert not pending.done()
    task.complete("built")
    result = pending.result()
    assert (result.outcome, result.content, result.attempts) == (Outcome.OK, "built", 1)
    assert server.runs["plain"] == 1
    entry = only_entry(table, pending.id)
    assert (entry.outcome, entry.tool) == ("ok", "build")
