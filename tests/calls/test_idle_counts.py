"""What a worker does while nobody calls, in counts per second that hardly depend on the machine.

What happens besides only adds: therefore the cheapest of a few stretches of time counts. Each is as long as the
interval of health checks, so that all that is periodic is in it.
"""

from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks.telemetry.health_records import CHECK_INTERVAL_S
from tests.calls.counting import SOCKET, read_counts
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, wait_until

SERVERS = 4
STRETCHES = 3
# Found: 4.0, 1100, 42 and 6.4; on an overloaded machine up to 4.8 polls and 47 commands. A worker whose periodic work
# was not done together had 12.3, 1530, 46.5 and 7.1.
MOST = {"polls": 6, "python_calls": 1200, "redis_commands": 50, "redis_writes": 7}
"""A second."""


def read(socket: Path, client: Any) -> dict[str, float]:
    """All counts of the worker so far, and the time of Redis."""
    seconds, microseconds = client.time()
    counts = read_counts(socket)
    commands = sum(int(each["tot-cmds"]) for each in client.client_list() if each["user"] == "worker")
    calls = sum(counts["by_thread"].values())
    return {**counts, "python_calls": calls, "redis_commands": commands, "at": seconds + microseconds / 1_000_000}


def test_an_idle_worker_does_little(
    start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    socket = tmp_path_factory.mktemp("sockets") / "worker"
    start_worker(
        {f"desk{number}": DEMO_SERVER for number in range(SERVERS)},
        settings="imports = ['tests.calls.counting']\n",
        environment={SOCKET: str(socket)},
    )
    client = redis.Redis.from_url(redis_url)
    found = dict.fromkeys(MOST, float("inf"))
    for _ in range(STRETCHES):
        before = read(socket, client)
        end = before["at"] + CHECK_INTERVAL_S
        wait_until(lambda end=end: client.time()[0] > end, "a stretch of time is over", 4 * CHECK_INTERVAL_S)
        after = read(socket, client)
        took_s = after["at"] - before["at"]
        found = {name: min(found[name], (after[name] - before[name]) / took_s) for name in MOST}
        if all(found[name] <= most for name, most in MOST.items()):
            break
    assert {name: number for name, number in found.items() if number > MOST[name]} == {}
