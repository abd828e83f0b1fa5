"""Calls that wait for tasks of a server, while workers and Redis are killed: none is `unknown`, each was sent once."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys
from tests.conftest import StartWorker
from tests.processes import Worker, environment_of, wait_until
from tests.servers.plain_http import serving
from tests.servers.tasks_http import TasksServer
from tests.valkey import Valkey

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 2}\n'
TIMEOUT_S = 90
Start = Callable[[], Worker]


@pytest.fixture
def server() -> Iterator[TasksServer]:
    with serving(TasksServer()) as found:
        yield found


@pytest.fixture(scope="module")
def table(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def kill(worker: Worker) -> None:
    worker.process.kill()
    worker.process.wait()


@pytest.fixture
def start(start_worker: StartWorker, server: TasksServer) -> Iterator[Start]:
    """Starts workers that end with the test."""
    workers: list[Worker] = []

    def start_one() -> Worker:
        workers.append(start_worker({"yard": {"url": server.url}}, settings=SHORT_LEASE))
        return workers[-1]

    yield start_one
    for worker in workers:
        kill(worker)


def build_tools(timeout_s: float = TIMEOUT_S) -> ToolExecutor:
    return ToolExecutor(["yard"], timeout_s=timeout_s, park=True)


def send(tools: ToolExecutor, count: int) -> list[PendingCall]:
    return [tools.submit("yard.build", {"key": str(number)}) for number in range(count)]


def wait_for_parked(table: Any, pending: list[PendingCall]) -> None:
    places = [f"{keys.queue('yard')}\n{each.id}" for each in pending]
    wait_until(lambda: None not in table.zmscore(keys.PARKED, places), "all are parked", TIMEOUT_S)


def complete_all(server: TasksServer) -> None:
    with server.lock:
        for task in server.tasks.values():
            task.complete()


def check(pending: list[PendingCall], server: TasksServer) -> None:
    results = [each.result() for each in pending]
    assert {result.outcome for result in results} == {Outcome.OK}, [result.content for result in results]
    assert [result.content for result in results] == [str(number) for number in range(len(pending))]
    assert server.runs == {str(number): 1 for number in range(len(pending))}


def test_a_worker_that_is_lost_loses_no_task(start: Start, server: TasksServer, table: Any) -> None:
    """Killed as soon as Redis knows all tasks: some calls may not be parked yet."""
    worker = start()
    with build_tools() as tools:
        pending = send(tools, 30)
        names = [keys.parked_key(each.id) for each in pending]
        wait_until(lambda: table.exists(*names) == len(names), "all tasks are kept", TIMEOUT_S)
        kill(worker)
        complete_all(server)
        start()
        check(pending, server)


def test_the_other_worker_goes_on_asking(start: Start, server: TasksServer, table: Any) -> None:
    victim, _ = start(), start()
    with build_tools() as tools:
        pending = send(tools, 20)
        wait_for_parked(table, pending)
        kill(victim)
        asked = sum(task.gets for task in server.tasks.values())
        wait_until(lambda: sum(task.gets for task in server.tasks.values()) > asked + 20, "they are asked", TIMEOUT_S)
        complete_all(server)
        check(pending, server)


def test_a_worker_that_is_lost_while_it_fetches_a_result(start: Start, server: TasksServer, table: Any) -> None:
    worker = start()
    with build_tools(timeout_s=5) as tools:
        pending = send(tools, 1)
        task = wait_until(lambda: server.task_of("0"), "its task", TIMEOUT_S)
        task.held = threading.Event()
        task.complete()
        wait_until(lambda: task.done_gets == 2, "the call fetches its result", TIMEOUT_S)
        kill(worker)
        task.held.set()
        start()
        check(pending, server)


def test_a_worker_that_is_lost_once_a_call_is_woken(start: Start, server: TasksServer, table: Any) -> None:
    """Its time is over while there is no worker; its caller waits for its task for longer."""
    worker = start()
    with build_tools(timeout_s=2) as tools:
        pending = send(tools, 1)
        wait_for_parked(table, pending)
        kill(worker)
        complete_all(server)
        place = table.zrange(keys.PARKED, 0, 0)[0]
        table.zadd(keys.PARKED, {place: 1})  # as if it had been woken before
        ended = table.time()[0] + 4
        wait_until(lambda: table.time()[0] > ended, "its time is over", TIMEOUT_S)
        start()
        check(pending, server)


def test_workers_that_stop_leave_tasks_to_others(start: Start, server: TasksServer, table: Any) -> None:
    worker = start()
    with build_tools() as tools:
        pending = send(tools, 5)
        wait_for_parked(table, pending)
        assert worker.stop() == 0
        start()
        complete_all(server)
        check(pending, server)


def test_tasks_outlive_a_restart_of_everything(tmp_path: Path, server: TasksServer) -> None:
    with Valkey(appendonly="yes") as valkey, redis.Redis.from_url(f"{valkey.connection_url}/0") as table:
        servers = {"yard": {"url": server.url}}
        address = f"{valkey.connection_url}/0"
        first = Worker(tmp_path / "first", servers, address, settings=SHORT_LEASE)
        with first, environment_of(first), build_tools() as tools:
            first.wait_until_ready()
            pending = send(tools, 30)
            wait_for_parked(table, pending)
            kill(first)
            valkey.terminate()
            valkey.start()
            with Worker(tmp_path / "second", servers, address, settings=SHORT_LEASE) as second:
                second.wait_until_ready()
                complete_all(server)
                check(pending, server)


def test_a_redis_that_restarts_under_way_loses_no_task(tmp_path: Path, server: TasksServer) -> None:
    with Valkey(appendonly="yes", appendfsync="always") as valkey:
        worker = Worker(
            tmp_path / "one", {"yard": {"url": server.url}}, f"{valkey.connection_url}/0", settings=SHORT_LEASE
        )
        with worker, environment_of(worker), build_tools() as tools:
            worker.wait_until_ready()
            pending = send(tools, 30)
            wait_until(lambda: len(server.tasks) == 30, "the server has all calls", TIMEOUT_S)
            valkey.terminate()
            complete_all(server)
            valkey.start()
            check(pending, server)
