"""Beat has every server checked, and what came of it is in Redis."""

import sys
import time
from pathlib import Path

import pytest
import redis

from tarsy_tasks import keys
from tarsy_tasks.health import HealthRecord, read_health
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, ServiceProcess, Worker, wait_until

SERVERS = {"desk": DEMO_SERVER, "gone": {"command": "no-such-command-anywhere"}}


@pytest.fixture
def client(redis_url: str) -> redis.Redis:
    return redis.Redis.from_url(redis_url)


def start_beat(worker: Worker, directory: Path, name: str = "beat") -> ServiceProcess:
    command = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "beat", "-l", "INFO"]
    return ServiceProcess(command, directory / f"{name}.log", worker.environment, directory)


def test_checks_leave_records_that_expire(start_worker: StartWorker, client: redis.Redis, tmp_path: Path) -> None:
    worker = start_worker(SERVERS)
    beat = start_beat(worker, tmp_path)

    def both() -> dict[str, HealthRecord]:
        found = {name: record for name, record in read_health(client, SERVERS).items() if record}
        return found if len(found) == 2 else {}

    records = wait_until(both, "a record of both servers")
    assert beat.stop() == 0
    assert worker.stop() == 0
    healthy, ill = records["desk"], records["gone"]
    assert (healthy.healthy, healthy.tool_count, healthy.error) == (True, 5, None)
    assert abs(healthy.checked_at - time.time()) < 30
    assert (ill.healthy, ill.tool_count) == (False, None)
    assert "no-such-command-anywhere" in (ill.error or "")
    assert 0 < client.ttl(keys.health_key("desk")) <= 45
    assert not list(tmp_path.glob("celerybeat*")), "beat keeps no file"


def test_nothing_piles_up_where_no_worker_serves(
    start_worker: StartWorker, client: redis.Redis, tmp_path: Path
) -> None:
    worker = start_worker({"desk": DEMO_SERVER})
    worker.stop()
    for name in ("first", "second"):
        beat = start_beat(worker, tmp_path, name)
        beat.wait_for_log("Sending due task check desk")
        wait_until(lambda: client.llen(keys.check_queue("desk")) == 1, "one check waits")
        beat.stop()
    assert client.llen(keys.check_queue("desk")) == 1
    client.delete(keys.check_queue("desk"), keys.UNACKED, keys.WAITING)


def test_records_that_cannot_be_read_count_as_none(client: redis.Redis) -> None:
    client.set(keys.health_key("damaged"), b"\xff{", ex=5)
    client.set(keys.health_key("newer"), '{"v": 2, "server": "newer"}', ex=5)
    assert read_health(client, ["damaged", "newer", "absent"]) == {"damaged": None, "newer": None, "absent": None}
    client.delete(keys.health_key("damaged"), keys.health_key("newer"))
