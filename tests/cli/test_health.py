"""`health --watch` shows the current state, also while Redis is away."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
import redis

from tarsy_tasks.broker import keys
from tarsy_tasks.telemetry.health_records import HealthRecord
from tests.cli.commands import TARSY_TASKS
from tests.cli.terminal import Terminal
from tests.processes import ServiceProcess, read_command, wait_until
from tests.redis_users import url_of
from tests.valkey import Valkey

DAY_S = 24 * 3600


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """With a Redis of its own and a server that has been unhealthy for two days."""
    (tmp_path / "mcp.json").write_text(f'{{"mcpServers": {{"desk": {{"command": "{sys.executable}"}}}}}}')
    with Valkey() as server, redis.Redis.from_url(f"{server.connection_url}/0") as client:
        now = time.time()
        record = HealthRecord(server="desk", healthy=False, checked_at=now, since=now - 2 * DAY_S, worker="w")
        client.hset(keys.worker_health_key("w"), "desk", record.model_dump_json())
        client.zadd(keys.HEALTH_WORKERS, {"w": now})
        yield {
            **os.environ,
            "TARSY_REDIS_URL": url_of(server.port, "operator"),
            "TARSY_MCP_CONFIG": str(tmp_path / "mcp.json"),
        }


def valkey_of(environment: dict[str, str]) -> psutil.Process:
    port = environment["TARSY_REDIS_URL"].rpartition(":")[2].partition("/")[0]
    (found,) = [
        each for each in psutil.Process().children(recursive=True) if f":{port}" in " ".join(read_command(each))
    ]
    return found


def test_a_terminal_shows_no_health_while_redis_does_not_answer(environment: dict[str, str]) -> None:
    watch = Terminal(TARSY_TASKS, "health", "--watch", environment=environment, columns=160)
    with closing(watch):
        wait_until(lambda: "unhealthy" in watch.text, "the table")
        day = time.strftime("%Y-%m-%d", time.localtime(time.time() - 2 * DAY_S))
        wait_until(lambda: day in watch.text, "what was not today has a date")
        valkey = valkey_of(environment)
        valkey.suspend()
        try:
            wait_until(lambda: "so no health is known" in watch.text, "Redis is silent", timeout_s=60)
            before = len(watch.text)
            wait_until(lambda: "Last read" in watch.text[before:], "it is drawn again")
            assert "unhealthy" not in watch.text[before:]
        finally:
            valkey.resume()
        before = len(watch.text)
        wait_until(lambda: "desk" in watch.text[before:], "the table is back")


def test_elsewhere_each_change_is_a_line_and_so_is_an_outage(environment: dict[str, str], tmp_path: Path) -> None:
    watch = ServiceProcess([TARSY_TASKS, "health", "--watch"], tmp_path / "watch.log", environment, tmp_path)
    try:
        watch.wait_for_log("\tdesk\tunhealthy\t")
        valkey = valkey_of(environment)
        valkey.suspend()
        try:
            watch.wait_for_log("so no health is known", timeout_s=60)
        finally:
            valkey.resume()
        wait_until(lambda: watch.log.count("\tdesk\t") == 2, "it is printed again")
        assert watch.log.count("so no health is known") == 1
    finally:
        assert watch.stop(signal.SIGINT) == 0
    assert "Traceback" not in watch.log
