"""What a warm call costs under limits, beside what it costs without: more commands in the same scripts, and nothing
else.

`tests/data/call_counts_limits.json` records them. `test_call_counts` has the counts without limits, and explains how
they are counted.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.calls.counting import SOCKET
from tests.calls.test_call_counts import RECORDED, WARM_UP, Counts, require_recorded, start_agent
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER

UNDER_LIMITS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "call_counts_limits.json").read_text())
POLICY: dict[str, Any] = {
    "limits": [
        {"tools": ["desk.*"], "rate": "1000/s", "when_over": "wait"},
        {"tools": ["desk.echo"], "each": ["agent", "tool"], "concurrency": 100, "calls_per_day": 10**9},
        {"each": ["agent"], "bytes_per_day": "1 TB"},
    ]
}


@pytest.fixture(scope="module")
def costs(
    start_worker: StartWorker, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Counts]]:
    directory = tmp_path_factory.mktemp("sockets")
    policy: Path = directory / "policy.json"
    policy.write_text(json.dumps(POLICY))
    sockets = {"worker": directory / "worker", "agent": directory / "agent"}
    environment = {SOCKET: str(sockets["worker"]), "TARSY_POLICY": str(policy)}
    worker = start_worker(
        {"desk": DEMO_SERVER}, settings="imports = ['tests.calls.counting']\n", environment=environment
    )
    with start_agent("agent", worker, sockets, redis_url) as agent:
        for _ in range(WARM_UP):
            agent.call()
        yield agent.count_calls({"worker": "worker"}, {"worker": UNDER_LIMITS})["worker"]


def test_limits_add_no_round_trip() -> None:
    dearer = {name for name, number in UNDER_LIMITS.items() if number != RECORDED["worker"][name]}
    assert dearer == {"redis_commands", "redis_bytes", "python_calls"}


def test_a_call_under_limits_costs_what_is_recorded(costs: list[Counts]) -> None:
    require_recorded(costs, UNDER_LIMITS)
