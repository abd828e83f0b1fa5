"""Tasks that not everybody can ask about: in the process of a stdio server, with the credential of an agent; and what
several workers, and servers that do not answer, do to those that anybody can.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor, tool_signature
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import build_app
from tests.calls.audit_entries import only_entry
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, Start, kill, revoke, wait_for_task
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger
from tests.plants import know
from tests.processes import Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.servers import tasks_stdio
from tests.servers.plain_http import serving
from tests.servers.tasks_http import TasksServer
from tests.valkey import Valkey

MANY = 70
"""More than a worker asks one server about at once."""


@pytest.fixture(scope="module")
def hanging() -> Iterator[TasksServer]:
    with serving(TasksServer()) as found:
        yield found


@pytest.fixture(scope="module")
def start(start_worker: StartWorker, ledger: Ledger, server: TasksServer, hanging: TasksServer) -> Start:
    shed = {"command": sys.executable, "args": ["-S", "-E", tasks_stdio.__file__, str(ledger.path)]}
    servers = {"shed": shed, "yard": {"url": server.url}, "swamp": {"url": hanging.url}}
    return partial(start_worker, servers, settings=SHORT_LEASE)


@pytest.fixture(scope="module")
def workers(start: Start) -> list[Worker]:
    """Two that serve the same."""
    return [start(), start()]


@pytest.fixture(scope="module")
def worker(workers: list[Worker]) -> Worker:
    return workers[0]


def wait_for_gets(ledger: Ledger, key: str, count: int = 2) -> list[str]:
    """Which workers have asked about the task of that key, once that was so often."""
    wait_until(lambda: len(ledger.lines("get", key)) >= count, f"the task of {key} is asked for", TIMEOUT_S)
    return [line[2] for line in ledger.lines("get", key)]


def owner_of(ledger: Ledger, key: str) -> str:
    """The worker whose process has run that call."""
    [line] = ledger.lines("run", "add", key)
    return line[3]


def finish(ledger: Ledger, key: str) -> None:
    ledger.path.with_name(f"{ledger.path.name}.{key}").touch()


def test_the_worker_of_a_process_asks_it(tools: ToolExecutor, ledger: Ledger) -> None:
    pending = {key: tools.submit("shed.add", {"key": key}) for key in ("one", "two", "three", "four")}
    for key in pending:
        assert {*wait_for_gets(ledger, key)} == {owner_of(ledger, key)}
        finish(ledger, key)
    assert {key: each.result().content for key, each in pending.items()} == {key: key for key in pending}
    for key in pending:
        assert {*wait_for_gets(ledger, key)} == {owner_of(ledger, key)}, "also when it was done"


def test_a_cancelled_call_cancels_in_its_process(tools: ToolExecutor, ledger: Ledger) -> None:
    pending = tools.submit("shed.add", {"key": "dropped"})
    wait_for_gets(ledger, "dropped")
    pending.cancel()
    assert pending.result().outcome is Outcome.CANCELLED
    assert [line[2] for line in ledger.lines("cancel", "dropped")] == [owner_of(ledger, "dropped")]


def test_a_process_that_dies_takes_its_task_along(workers: list[Worker], tools: ToolExecutor, ledger: Ledger) -> None:
    pending = tools.submit("shed.add", {"key": "lost"})
    wait_for_gets(ledger, "lost")
    [owner] = [each for each in workers if str(each.pid) == owner_of(ledger, "lost")]
    [process] = owner.find_children(tasks_stdio.__file__)
    os.kill(process.pid, signal.SIGKILL)
    result = pending.result()
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.TASK_LOST)
    assert "no longer knows that task" in result.content
    assert "Check its effects" in result.content


def test_a_lost_worker_takes_its_process_along(
    workers: list[Worker], start: Start, tools: ToolExecutor, ledger: Ledger
) -> None:
    pending = tools.submit("shed.add", {"key": "gone"})
    wait_for_gets(ledger, "gone")
    [owner] = [each for each in workers if str(each.pid) == owner_of(ledger, "gone")]
    kill(owner)
    result = pending.result()
    pids = {str(each.pid) for each in workers}
    workers[workers.index(owner)] = start()
    assert (result.outcome, result.error_code) == (Outcome.UNKNOWN, ErrorCode.TASK_LOST)
    assert len(ledger.lines("run", "add", "gone")) == 1, "it is not sent again"
    assert {line[2] for line in ledger.lines("get", "gone")} == pids, "the other worker has asked, too"


def test_of_two_workers_one_cancels_a_task(
    worker: Worker, tools: ToolExecutor, server: TasksServer, table: Any
) -> None:
    cancelled = tools.submit("yard.build", {"key": "cancelled"})
    revoked = tool_signature("yard.build", {"key": "revoked"}, park=True).delay()
    tasks = [wait_for_task(server, key, gets=2) for key in ("cancelled", "revoked")]
    cancelled.cancel()
    revoke(worker, revoked.id)
    assert cancelled.result().outcome is Outcome.CANCELLED
    wait_until(lambda: revoked.state == "REVOKED", "Celery knows", TIMEOUT_S)
    assert [task.cancels for task in tasks] == [1, 1]
    for each in (cancelled, revoked):
        assert only_entry(table, each.id).outcome == "cancelled"
    assert not table.exists(keys.PARKED, keys.polled_key("yard"))


def test_a_server_that_hangs_keeps_no_other_waiting(
    tools: ToolExecutor, server: TasksServer, hanging: TasksServer
) -> None:
    stuck = [tools.submit("swamp.build", {"key": str(number)}) for number in range(MANY)]
    for number in range(MANY):
        wait_for_task(hanging, str(number), gets=0)
    hanging.goes_on.clear()
    wait_until(lambda: len(hanging.held) > MANY / 2, "requests get no answers", TIMEOUT_S)
    pending = tools.submit("yard.build", {"key": "beside"})
    task = wait_for_task(server, "beside", gets=3)
    assert tools.execute("swamp.look", {"key": "also"}).content == "also", "nothing of it is busy"
    task.complete()
    assert pending.result().content == "beside"
    assert not any(each.done() for each in stuck)
    with hanging.lock:
        for each in hanging.tasks.values():
            each.complete()
    hanging.goes_on.set()
    assert {each.result().content for each in stuck} == {str(number) for number in range(MANY)}


def test_a_task_is_asked_for_with_the_credential_of_its_agent(tmp_path: Path, server: TasksServer) -> None:
    agents = ("sre", "dev")
    tokens = {name: know(f"credential of {name}", f"key-{name}-0123456789abcdef") for name in agents}
    for name, token in tokens.items():
        (tmp_path / "agents" / name).mkdir(parents=True)
        (tmp_path / "agents" / name / "TOKEN").write_text(token)
        (tmp_path / "agents" / name / "TOKEN").chmod(0o600)
    yard = {"url": server.url, "headers": {"Authorization": "Bearer ${agent:TOKEN}"}}
    secrets = {"TARSY_AGENT_SECRETS": str(tmp_path / "agents")}
    with Valkey(agents=tuple(AgentUser(name, ("yard",)) for name in agents)) as valkey:
        settings = {"settings": SHORT_LEASE, "environment": secrets}
        workers = [
            Worker(tmp_path / name, {"yard": yard}, url_of(valkey.port), name=name, **settings) for name in ("w1", "w2")
        ]
        with workers[0], workers[1], environment_of(workers[0]):
            for worker in workers:
                worker.wait_until_ready()
            for name in agents:
                url = url_of(valkey.port, name)
                app = build_app({"broker_url": url, "result_backend": url})
                with closing(app), ToolExecutor(["yard"], timeout_s=TIMEOUT_S, park=True, app=app) as tools:
                    done, dropped = (tools.submit("yard.build", {"key": f"{name} {key}"}) for key in ("ok", "no"))
                    wait_for_task(server, f"{name} ok", gets=3).complete()
                    wait_for_task(server, f"{name} no", gets=3)
                    dropped.cancel()
                    assert done.result().content == f"{name} ok"
                    assert dropped.result().outcome is Outcome.CANCELLED
                    assert wait_for_task(server, f"{name} no").cancels == 1
                    for key in (f"{name} ok", f"{name} no"):
                        assert {*server.principals[key]} == {f"Bearer {tokens[name]}"}
