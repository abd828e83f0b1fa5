"""What a warm call costs, in counts that do not depend on the machine; `tests/data/call_counts.json` records them.

A call that has become dearer fails here, and so does one that has become cheaper, so that the record stays true. Calls
are made one after another. What a worker does besides, such as renewing leases, only adds: therefore a count is the
lower decile of many calls. On a busy machine even that may be too many, because something falls into each call. So more
calls are made then, a few times: a call that has become dearer stays so.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.calls.counting import SOCKET, read_counts
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, wait_until

pytestmark = pytest.mark.timeout(300)  # what is counted runs several times as long

Counts = dict[str, int]

RECORDED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parents[1] / "data" / "call_counts.json").read_text())
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TOLERANCE = 0.05
WARM_UP = 10
CALLS = 50
BATCHES = 6
COLLECTABLE = 20_000


class CountedAgent:
    """Makes a call when it is asked to. Both halves of the call count what they do.

    Args:
        sockets: Where they answer, by the name of their Redis user.
    """

    def __init__(self, process: "subprocess.Popen[bytes]", sockets: dict[str, Path], redis_url: str) -> None:
        self._process = process
        self._sockets = sockets
        self._redis = redis.Redis.from_url(redis_url)

    def call(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"call\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == b"answered\n"

    def read_counts(self, side: str) -> dict[str, Any]:
        """All counts so far, once they stand still."""

        def read() -> dict[str, Any]:
            counts = read_counts(self._sockets[side])
            return counts if counts == read_counts(self._sockets[side]) else {}

        counts = wait_until(read, f"the {side} has done what belongs to the call")
        # Commands within scripts count, too.
        clients = [client for client in self._redis.client_list() if client["user"] == side]
        counts["redis_commands"] = sum(int(client["tot-cmds"]) for client in clients)
        counts["redis_bytes"] = sum(int(client["tot-net-in"]) + int(client["tot-net-out"]) for client in clients)
        return counts

    def count_calls(self, sides: dict[str, str], recorded: Mapping[str, Counts]) -> dict[str, list[Counts]]:
        """What each call of a batch costs, by side; `sides` are those to look at, by their Redis users. The first batch
        that costs what is recorded, or the last."""
        before = {user: self.read_counts(user) for user in sides}
        found: dict[str, list[Counts]] = {}
        for _ in range(BATCHES):
            found = {side: [] for side in sides.values()}
            for _ in range(CALLS):
                self.call()
                for user, side in sides.items():
                    after = self.read_counts(user)
                    found[side].append(subtract(after, before[user]))
                    before[user] = after
            if all(is_recorded(costs, recorded[side]) for side, costs in found.items()):
                break
        return found


@contextmanager
def start_agent(name: str, worker: Worker, sockets: dict[str, Path], redis_url: str) -> Iterator[CountedAgent]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.calls.counted_agent", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**worker.environment_of("agent"), SOCKET: str(sockets["agent"])},
    ) as process:
        yield CountedAgent(process, sockets, redis_url)


def subtract(after: dict[str, Any], before: dict[str, Any]) -> Counts:
    """What one call has cost."""
    calls = {ident: number - before["by_thread"].get(ident, 0) for ident, number in after["by_thread"].items()}
    totals = {name: number - before.get(name, 0) for name, number in after.items() if name != "by_thread"}
    counts = {"python_calls": sum(calls.values()), "threads": sum(map(bool, calls.values()))}
    return {**totals, **counts, "collectable": after["collectable"]}


def find_lower_decile(costs: list[Counts], name: str) -> int:
    return round(statistics.quantiles([cost.get(name, 0) for cost in costs], n=10)[0])


@pytest.fixture(scope="module")
def costs(
    start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Counts]]:
    """What each of the calls has cost the worker, and the agents."""
    directory = tmp_path_factory.mktemp("sockets")
    worker = start_worker(
        {"desk": DEMO_SERVER},
        settings="imports = ['tests.calls.counting']\n",
        environment={SOCKET: str(directory / "worker")},
    )
    found: dict[str, list[Counts]] = {side: [] for side in RECORDED}
    for name in ("agent", "async agent"):
        sides = {"worker": "worker", "agent": name}
        sockets = {user: directory / side for user, side in sides.items()}
        with start_agent(name, worker, sockets, redis_url) as agent:
            for _ in range(WARM_UP):
                agent.call()
            for side, counted in agent.count_calls(sides, RECORDED).items():
                found[side] += counted
    return found


@pytest.mark.parametrize("side", RECORDED)
def test_a_call_costs_what_is_recorded(costs: dict[str, list[Counts]], side: str) -> None:
    require_recorded(costs[side], RECORDED[side])


def compare(costs: list[Counts], counts: Mapping[str, Any]) -> tuple[Counts, dict[str, Any]]:
    """What a call costs, and what is recorded of one; both compare as equal if the one is near the other."""
    recorded = dict(counts)
    found = {name: find_lower_decile(costs, name) for name in recorded}
    # For the same work, each minor version of Python calls another number of functions.
    recorded["python_calls"] = recorded["python_calls"].get(PYTHON, found["python_calls"])
    for name in ("python_calls", "redis_bytes"):
        recorded[name] = pytest.approx(recorded[name], rel=TOLERANCE)
    return found, recorded


def is_recorded(costs: list[Counts], counts: Mapping[str, Any]) -> bool:
    found, recorded = compare(costs, counts)
    return found == recorded


def require_recorded(costs: list[Counts], counts: Mapping[str, Any]) -> None:
    """Compare the costs of calls with what is recorded of one."""
    found, recorded = compare(costs, counts)
    assert found == recorded


def test_few_objects_wait_for_the_garbage_collector(costs: dict[str, list[Counts]]) -> None:
    """All that was imported would be visited by each full collection, while every call waits for it."""
    assert max(cost["collectable"] for cost in costs["worker"]) < COLLECTABLE
