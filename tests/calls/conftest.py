"""Fixtures of calls that wait; a module has its own `worker`."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tarsy_tasks import ToolExecutor
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, kill
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger
from tests.processes import Worker
from tests.servers.plain_http import serving
from tests.servers.tasks_http import TasksServer


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger")


@pytest.fixture(scope="module")
def server() -> Iterator[TasksServer]:
    """An MCP server with tasks."""
    with serving(TasksServer()) as found:
        yield found


@pytest.fixture
def tools(worker: Worker) -> Iterator[ToolExecutor]:
    """An agent that waits for parked calls."""
    with ToolExecutor(timeout_s=TIMEOUT_S, park=True, agent_id="sre") as found:
        yield found


@pytest.fixture
def start_mortal(start_worker: StartWorker) -> Iterator[Callable[[dict[str, Any]], Worker]]:
    """Starts workers that end with the test."""
    workers: list[Worker] = []

    def start(servers: dict[str, Any]) -> Worker:
        workers.append(start_worker(servers, settings=SHORT_LEASE))
        return workers[-1]

    yield start
    for worker in workers:
        kill(worker)
