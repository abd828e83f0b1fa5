"""Servers share the slots of a worker: none takes those of the others, and none runs more calls than it may."""

import statistics
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tarsy_tasks.agent.pending_call import PendingCall
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.celery_app import agent_app
from tarsy_tasks.telemetry.health_records import read_health
from tarsy_tasks.worker.process.bulkhead import MOST_BYTES
from tests.conftest import StartWorker
from tests.faults.ledger import Ledger, submit_calls, witness
from tests.processes import DEMO_SERVER, Worker, environment_of, wait_until
from tests.warm_start import warm_command

RECORDING = Path(__file__).parent.parent / "servers" / "recording.py"
SLOTS = 8
LIMIT = 4
POLL_S = 0.1
"""How long a poll of kombu's lasts that leaves out a queue."""


class Narrow:
    """The server `narrow`, of which a worker runs `LIMIT` calls at once, and what it wrote down."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def entry(self) -> dict[str, Any]:
        return warm_command(str(RECORDING), str(self.directory)) | {"max_concurrency": LIMIT}

    def submit(self, test: str, count: int, seconds: float) -> list[PendingCall]:
        tools = ToolExecutor(["narrow"], timeout_s=40)
        arguments = [{"name": f"{test}-{number}", "seconds": seconds} for number in range(count)]
        return [tools.submit(ToolCall(id="1", name="narrow.hold", arguments=each)) for each in arguments]

    def begun(self, test: str) -> int:
        return len(list(self.directory.glob(f"{test}-*.begun")))

    def has_begun(self, test: str, count: int) -> bool:
        return self.begun(test) >= count

    def most_at_once(self, test: str) -> int:
        changes = [(path.stat().st_mtime_ns, 1) for path in self.directory.glob(f"{test}-*.begun")]
        changes += [(path.stat().st_mtime_ns, -1) for path in self.directory.glob(f"{test}-*.finished")]
        running = most = 0
        for _, change in sorted(changes):
            running += change
            most = max(most, running)
        return most


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Narrow:
    return Narrow(tmp_path_factory.mktemp("narrow"))


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("hung") / "ledger")


@pytest.fixture(scope="module")
def servers(narrow: Narrow, ledger: Ledger) -> dict[str, Any]:
    single = {**DEMO_SERVER, "max_concurrency": 1}
    return {"narrow": narrow.entry, "single": single, "hung": witness(ledger), "desk": DEMO_SERVER}


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, servers: dict[str, Any]) -> Worker:
    return start_worker(servers, arguments=["-c", str(SLOTS)])


def echo(tools: ToolExecutor, server: str = "desk") -> None:
    result = tools.execute(ToolCall(id="1", name=f"{server}.echo", arguments={"text": "here"}))
    assert (result.outcome, result.content) == (Outcome.OK, "here")


def is_checked(client: redis.Redis, server: str) -> bool:
    return read_health(client, [server])[server].check is not None


def end(calls: list[PendingCall]) -> list[Outcome]:
    return [call.result().outcome for call in calls]


def cancel(calls: list[PendingCall]) -> None:
    for call in calls:
        call.cancel()
    assert set(end(calls)) == {Outcome.CANCELLED}


def test_a_server_runs_calls_up_to_its_limit_and_delays_no_other(narrow: Narrow) -> None:
    calls = narrow.submit("limit", 20, seconds=1.5)
    tools = ToolExecutor(timeout_s=10)
    echoes = 0
    while not calls[-1].done():
        echo(tools)
        echoes += 1
    assert set(end(calls)) == {Outcome.OK}
    assert narrow.most_at_once("limit") == LIMIT
    assert echoes > 20


def test_large_messages_of_a_server_run_one_after_the_other(redis_url: str) -> None:
    tools = ToolExecutor(timeout_s=60)
    arguments = {"seconds": 50, "padding": "x" * MOST_BYTES}
    first, second = (tools.submit(ToolCall(id="1", name="desk.wait", arguments=arguments)) for _ in range(2))
    with redis.Redis.from_url(redis_url) as client:

        def has_begun(call: PendingCall) -> bool:
            return client.hget(keys.call_marker(call.id), "mark") == b"begun"

        wait_until(lambda: has_begun(first), "the first one has begun", 30)
        small = tools.submit(ToolCall(id="1", name="desk.echo", arguments={"text": "here"}))
        echo(tools, "single")
        assert client.llen(keys.queue("desk")) == 2
        cancel([first])
        wait_until(lambda: has_begun(second), "the second one has begun", 30)
    cancel([second])
    assert small.result().outcome is Outcome.OK


def test_a_freed_slot_is_used_at_once() -> None:
    tools = ToolExecutor(timeout_s=20)
    echo(tools, "single")
    calls = [tools.submit(ToolCall(id="1", name="single.echo", arguments={"text": "x"})) for _ in range(60)]
    ended: list[float] = []
    for each in calls:
        assert each.result().outcome is Outcome.OK
        ended.append(time.monotonic())
    gaps = [later - earlier for earlier, later in pairwise(ended)]
    assert statistics.median(gaps) < POLL_S / 2, "each call waited for the end of a poll"


def test_a_server_that_hangs_takes_half_of_the_slots_at_most(ledger: Ledger) -> None:
    calls = submit_calls(ToolExecutor(timeout_s=4), "hung", [f"held{number}" for number in range(20)])
    wait_until(lambda: len(ledger.lines("run")) == SLOTS // 2, "half of the slots are taken")
    tools = ToolExecutor(timeout_s=10)
    while True:
        echo(tools)
        begun = len(ledger.lines("run"))
        if any(call.done() for call in calls):
            break
        assert begun < SLOTS, "until one ends, which frees its slot"
    assert set(end(calls)) <= {Outcome.TIMEOUT, Outcome.UNKNOWN, Outcome.UNAVAILABLE}


def test_a_check_finds_a_slot_while_calls_take_all_that_they_can(
    narrow: Narrow, ledger: Ledger, redis_url: str
) -> None:
    before = len(ledger.lines("run"))
    calls = narrow.submit("full", SLOTS, seconds=60)
    calls += submit_calls(ToolExecutor(timeout_s=40), "hung", [f"held-full{number}" for number in range(SLOTS)])

    def running() -> int:
        return narrow.begun("full") + len(ledger.lines("run")) - before

    wait_until(lambda: running() == SLOTS - 1, "all slots but one are taken")
    with redis.Redis.from_url(redis_url) as client:
        for server in ("desk", "single"):
            client.delete(keys.health_key(server))
            agent_app().send_task(CHECK_SERVER, (server,))
            wait_until(partial(is_checked, client, server), "the check of a full worker")
        assert running() == SLOTS - 1
    cancel(calls)


def test_calls_over_the_limit_of_one_worker_are_taken_by_another(
    narrow: Narrow, start_worker: StartWorker, servers: dict[str, Any]
) -> None:
    calls = narrow.submit("second", 2 * LIMIT, seconds=60)
    wait_until(lambda: narrow.begun("second") == LIMIT, "the first worker runs what it may")
    other = start_worker({"narrow": servers["narrow"]}, arguments=["-c", str(SLOTS)])
    wait_until(lambda: narrow.begun("second") == 2 * LIMIT, "the second worker runs the rest")
    cancel(calls)
    other.stop()


def own_ports() -> set[int]:
    return {each.laddr.port for each in psutil.Process().net_connections() if each.laddr}


def test_cut_connections_under_load_do_not_change_the_limit(narrow: Narrow, redis_url: str) -> None:
    calls = narrow.submit("cut", 20, seconds=1)
    with redis.Redis.from_url(redis_url) as client:
        for _ in range(2):
            begun = narrow.begun("cut")
            wait_until(partial(narrow.has_begun, "cut", begun + LIMIT), "calls run")
            for each in client.client_list(_type="normal"):
                # Those in Celery's pool of this process would fail a later module.
                if each["user"] == "worker" and int(each["addr"].rpartition(":")[2]) not in own_ports():
                    client.client_kill_filter(_id=each["id"])
    assert set(end(calls)) == {Outcome.OK}
    assert (narrow.most_at_once("cut"), narrow.begun("cut")) == (LIMIT, 20)
    again = narrow.submit("again", 2 * LIMIT, seconds=0.5)
    assert set(end(again)) == {Outcome.OK}
    assert narrow.most_at_once("again") == LIMIT, "the counts are as before"


def test_a_worker_with_one_slot_runs_calls_and_checks_in_turn(start_worker: StartWorker, redis_url: str) -> None:
    lone = start_worker({"lone": DEMO_SERVER}, arguments=["-c", "1"])
    with environment_of(lone), redis.Redis.from_url(redis_url) as client:
        tools = ToolExecutor(timeout_s=20)
        echo(tools, "lone")
        calls = [tools.submit(ToolCall(id="1", name="lone.wait", arguments={"seconds": 0.2})) for _ in range(20)]
        agent_app().send_task(CHECK_SERVER, ("lone",))
        wait_until(partial(is_checked, client, "lone"), "the check")
        assert not calls[-1].done(), "the check goes before the calls that wait"
        assert set(end(calls)) == {Outcome.OK}
    lone.stop()
