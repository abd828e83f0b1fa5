"""Each approved call runs once, whatever happens to workers, Redis, the network between them, and agents: the faults of
`tests/chaos`, while people approve calls.
"""

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.broker import keys, parked_calls, parked_views
from tarsy_tasks.broker.parked_calls import Decided
from tarsy_tasks.broker.parked_views import ParkedCallView
from tarsy_tasks.celery_app import TarsyApp, build_app
from tests.calls.waiting_calls import SHORT_LEASE, TIMEOUT_S, is_up, kill
from tests.chaos import agent
from tests.chaos.faults import frozen, last
from tests.chaos.network import Network
from tests.chaos.stage import SHORT, can_fake_clocks, wrong_clock
from tests.faults.ledger import Ledger, witness
from tests.processes import ServiceProcess, Worker, wait_until
from tests.redis_users import url_of
from tests.valkey import Valkey

COUNT = 24
SLOTS = 4
CALL_S = 0.2
GRACE_S = 1


class Deployment:
    """Two workers and a Redis of their own, to which something is done while people approve calls. Workers reach Redis
    over one network, and agents over another."""

    def __init__(self, directory: Path, ledger: Ledger, stack: ExitStack) -> None:
        self.directory = directory
        self.servers = {"desk": witness(ledger, approval="always")}
        self.valkey = Valkey(appendonly="yes", appendfsync="always")
        self.valkey.start()
        stack.callback(self.valkey.terminate)
        self.table = stack.enter_context(closing(redis.Redis.from_url(f"{self.valkey.connection_url}/0")))
        self.network = stack.enter_context(Network(self.valkey.port).running())
        self.agents_network = stack.enter_context(Network(self.valkey.port).running())
        self.agents_url = url_of(self.agents_network.port, "agent")
        agents: Any = {"broker_url": self.agents_url, "result_backend": self.agents_url}
        self.app: TarsyApp = stack.enter_context(closing(build_app(agents)))
        self.workers: list[Worker] = []
        self.started = 0
        stack.callback(self.end_workers)
        for _ in range(2):
            self.start_worker()

    def start_worker(self, **environment: str) -> None:
        place = self.directory / f"w{self.started}"
        self.started += 1
        worker = Worker(
            place,
            self.servers,
            url_of(self.network.port),
            name=place.name,
            settings=SHORT_LEASE,
            arguments=["-c", str(SLOTS)],
            environment={"TARSY_SHUTDOWN_GRACE_S": str(GRACE_S), **environment},
        )
        self.workers.append(worker)
        worker.wait_until_ready()

    def end_workers(self) -> None:
        for worker in self.workers:
            kill(worker)

    def find_parked(self) -> list[ParkedCallView]:
        return parked_views.load_waiting(self.table, 1000)[0]

    # The faults. Each leaves two workers.

    def a_worker_is_killed(self) -> None:
        kill(self.workers.pop())
        self.start_worker()

    def a_worker_is_stopped(self) -> None:
        assert self.workers.pop().stop() == 0
        self.start_worker()

    a_grace_is_over = a_worker_is_stopped
    """With calls that take longer."""

    def workers_are_replaced(self) -> None:
        for worker in self.workers.copy():
            assert worker.stop() == 0
            self.workers.remove(worker)
            self.start_worker()

    def a_clock_is_wrong(self) -> None:
        """Of the worker that goes on with the calls of a lost one."""
        for offset in ("+90s", "-90s"):
            self.start_worker(**wrong_clock(offset))
            kill(self.workers.pop(0))

    def redis_is_killed(self) -> None:
        self.valkey.terminate()
        self.valkey.start()
        wait_until(lambda: is_up(self.table), "Redis is back")

    def redis_is_frozen(self) -> None:
        with frozen(self.table.info("server")["process_id"]):
            last(SHORT.frozen_s)

    def connections_are_cut(self) -> None:
        for _ in range(5):
            for connection in self.table.client_list():
                if connection["user"] in ("worker", "agent"):
                    self.table.execute_command("CLIENT", "KILL", "ID", connection["id"])

    def networks_are_cut_and_reset(self) -> None:
        self._cut(self.network, self.agents_network, reset=True)

    def networks_stall(self) -> None:
        self._cut(self.network, self.agents_network, reset=False)

    def the_network_of_workers_is_cut(self) -> None:
        self._cut(self.network, reset=True)

    def _cut(self, *networks: Network, reset: bool) -> None:
        for each in networks:
            each.cut()
        last(SHORT.cut_s)
        for each in networks:
            each.heal(reset=reset)


FAULTS = [
    "a_worker_is_killed",
    "a_worker_is_stopped",
    "a_grace_is_over",
    "workers_are_replaced",
    "redis_is_killed",
    "redis_is_frozen",
    "connections_are_cut",
    "networks_are_cut_and_reset",
    "networks_stall",
    "the_network_of_workers_is_cut",
    "a_clock_is_wrong",
]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, ledger: Ledger) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(tmp_path_factory.mktemp("faults"), ledger, stack)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_approved_call_runs_once_whatever_fails(stage: Deployment, ledger: Ledger, fault: str) -> None:
    """The fault comes while calls are in each state between the decision and the answer."""
    if fault == "a_clock_is_wrong" and not can_fake_clocks() and not os.environ.get("CI"):
        pytest.skip("libfaketime is not installed")
    call_s = 2.0 * GRACE_S if fault == "a_grace_is_over" else CALL_S
    names = [f"{fault}-{number}" for number in range(COUNT)]
    with ToolExecutor(["desk"], timeout_s=TIMEOUT_S, park=True, app=stage.app) as tools:
        pending = {key: tools.submit("desk.add", {"key": key, "wait_s": call_s}) for key in names}
        views = wait_for_parked(stage)
        with ThreadPoolExecutor(2) as threads:
            approving = threads.submit(approve_until_done, stage.table, views)
            wait_until(lambda: any(key in pending for key in ledger.runs("add")), "the first one runs", TIMEOUT_S)
            threads.submit(getattr(stage, fault)).result()
            approving.result()
        results = {key: each.result() for key, each in pending.items()}
    runs = ledger.runs("add")
    assert {result.outcome for result in results.values()} <= {Outcome.OK, Outcome.UNKNOWN}
    for key, result in results.items():
        assert runs[key] <= 1
        assert runs[key] == 1 or result.outcome is Outcome.UNKNOWN
    unknown = sum(result.outcome is Outcome.UNKNOWN for result in results.values())
    assert unknown <= 2 * SLOTS, "those that had begun"
    assert stage.find_parked() == []


def test_approved_calls_of_a_killed_agent_run_once(stage: Deployment, ledger: Ledger) -> None:
    """Nobody waits for them, but they were approved."""
    command = [sys.executable, agent.__file__, stage.agents_url, "desk", "orphan", str(COUNT), str(CALL_S), "park"]
    process = ServiceProcess(command, stage.directory / "agent.log", {**os.environ}, stage.directory)
    process.wait_for_log("all are sent")
    views = wait_for_parked(stage)
    approve_until_done(stage.table, views[: COUNT // 2])
    wait_until(lambda: any(key.startswith("orphan") for key in ledger.runs()), "the first one runs", TIMEOUT_S)
    process.process.kill()
    process.process.wait()
    approve_until_done(stage.table, views)
    wait_until(lambda: stage.table.hlen(keys.UNACKED) == 0, "all are answered", TIMEOUT_S)
    runs = ledger.runs()
    assert {key: count for key, count in runs.items() if key.startswith("orphan")} == {
        f"orphan-{number}": 1 for number in range(COUNT)
    }


def wait_for_parked(stage: Deployment) -> list[ParkedCallView]:
    wait_until(lambda: len(stage.find_parked()) == COUNT, f"{COUNT} calls are parked", TIMEOUT_S)
    return stage.find_parked()


def approve_until_done(table: Any, views: list[ParkedCallView]) -> None:
    for view in views:
        decided = wait_until(lambda view=view: try_to_approve(table, view), "it was decided", TIMEOUT_S)
        assert decided in (Decided.APPROVED, Decided.LATE), decided  # late: the reply to the first try was lost


def try_to_approve(table: Any, view: ParkedCallView) -> Decided | None:
    try:
        return parked_calls.decide(table, view, is_approved=True, by="ann")
    except redis.RedisError:
        return None
