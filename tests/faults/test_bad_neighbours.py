"""Servers that hang, are slow to close, and flood, all at once: the calls of the others go on meanwhile.

By how much they are delayed is measured side by side in benchmarks/recovery.py.
"""

import os
import signal
import sys
from pathlib import Path

import pytest
import redis

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys as broker_keys
from tests.conftest import StartWorker
from tests.faults.ledger import IN_FLIGHT, Ledger, submit_calls, wait_for_runs, witness
from tests.processes import Worker, wait_until
from tests.servers import misbehaving_stdio

NEIGHBOURS = ["stdio", "new-sse-none", "old-sse-none"]
HANGING = 32


@pytest.fixture(scope="module", autouse=True)
def worker(start_worker: StartWorker, witness_url: str, directory: Path) -> Worker:
    stdio = {name: Ledger(directory / name) for name in ("stdio", "hangs", "lingers", "floods")}
    stderr_flood = [misbehaving_stdio.__file__, "floods-stderr-beside-its-answers"]
    return start_worker(
        {
            "stdio": witness(stdio["stdio"]),
            "new-sse-none": {"url": f"{witness_url}/new/sse/none"},
            "old-sse-none": {"url": f"{witness_url}/old/sse/none"},
            "hangs": witness(stdio["hangs"]),
            "lingers": witness(stdio["lingers"], "--lingers"),
            "floods": witness(stdio["floods"], "--flood"),
            "floods-stderr": {"command": sys.executable, "args": stderr_flood},
        }
    )


def test_the_calls_of_other_servers_are_answered_meanwhile(worker: Worker, directory: Path, redis_url: str) -> None:
    tools = ToolExecutor(timeout_s=60)
    for neighbour in NEIGHBOURS:
        assert tools.execute(ToolCall(id="w", name=f"{neighbour}.add", arguments={"key": "warm"})).outcome is Outcome.OK
    hanging = [
        *submit_calls(tools, "hangs", [f"held{number}" for number in range(HANGING)]),
        *submit_calls(tools, "lingers", ["held"], ["add"]),
    ]
    wait_for_runs(Ledger(directory / "hangs"), HANGING)
    wait_for_runs(Ledger(directory / "lingers"), 1)
    for flooding, arguments in [("floods.add", {"key": "k"}), ("floods-stderr.act", {})]:
        result = tools.execute(ToolCall(id="f", name=flooding, arguments=arguments))
        assert result.outcome is Outcome.OK, result.content
    [lingering] = worker.find_children(str(directory / "lingers"))
    os.kill(lingering.pid, signal.SIGUSR1)
    assert hanging.pop().result().outcome is Outcome.UNKNOWN
    replaced = tools.execute(ToolCall(id="l", name="lingers.add", arguments={"key": "next"}))
    assert replaced.outcome is Outcome.OK

    keys = [f"key{number}" for number in range(IN_FLIGHT)]
    pending = {neighbour: submit_calls(tools, neighbour, keys) for neighbour in NEIGHBOURS}
    for neighbour in NEIGHBOURS:
        results = [call.result() for call in pending[neighbour]]
        assert {(result.outcome, result.attempts) for result in results} == {(Outcome.OK, 1)}
        assert [result.content for result in results] == keys
    assert not any(call.done() for call in hanging)
    for call in hanging:
        call.cancel()
    with redis.Redis.from_url(redis_url) as client:
        wait_until(lambda: not client.hlen(broker_keys.UNACKED), "the worker has given them up", 60)
