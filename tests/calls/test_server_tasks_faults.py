"""Calls that wait for tasks of a server, while workers and Redis are killed: none is `unknown`, each was sent once."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys
from tests.calls.waiting_calls import TIMEOUT_S, Start, kill, restartable, wait_for_task
from tests.processes import wait_until
from tests.servers.plain_http import serving
from tests.servers.tasks_http import TasksServer


@pytest.fixture
def server() -> Iterator[TasksServer]:
    with serving(TasksServer()) as found:
        yield found


@pytest.fixture
def start(start_mortal: Start, server: TasksServer) -> Start:
    return lambda: start_mortal({"yard": {"url": server.url}})


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
        task = wait_for_task(server, "0")
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
    with build_tools(timeout_s=5) as tools:
        pending = send(tools, 1)
        wait_for_parked(table, pending)
        kill(worker)
        complete_all(server)
        place = table.zrange(keys.PARKED, 0, 0)[0]
        table.zadd(keys.PARKED, {place: 1})  # as if it had been woken before
        ended = table.time()[0] + 7
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
    with restartable(tmp_path, {"yard": {"url": server.url}}) as everything, build_tools() as tools:
        pending = send(tools, 30)
        wait_for_parked(everything.table, pending)
        everything.restart()
        complete_all(server)
        check(pending, server)


def test_a_redis_that_restarts_under_way_loses_no_task(tmp_path: Path, server: TasksServer) -> None:
    with restartable(tmp_path, {"yard": {"url": server.url}}) as everything, build_tools() as tools:
        pending = send(tools, 30)
        wait_until(lambda: len(server.tasks) == 30, "the server has all calls", TIMEOUT_S)
        everything.restart_redis(lambda: complete_all(server))
        check(pending, server)
