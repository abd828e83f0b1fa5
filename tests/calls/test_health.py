"""Which servers work, as workers and beat tell it in Redis: everything here is real."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from tarsy_tasks import Outcome, ToolCall, ToolExecutor, health
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.scheduler import CheckScheduler
from tarsy_tasks.telemetry.health_records import (
    CHECK_INTERVAL_S,
    RECORD_TTL_S,
    HealthRecord,
    HealthStatus,
    ServerHealth,
    read_health,
)
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, ServiceProcess, Worker, free_port, listening, wait_until

TOLD_S = 20.0


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def http(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with listening(http_server(port), port, tmp_path_factory.mktemp("http")) as server:
        yield server


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, http: ServiceProcess, port: int) -> Worker:
    servers = {
        "desk": DEMO_SERVER,
        "gone": {"command": "no-such-command-anywhere"},
        "http": {"url": f"http://127.0.0.1:{port}/mcp"},
    }
    return start_worker(servers)


@pytest.fixture(scope="module")
def beat(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One that runs from the first test that asks for it."""
    with start_beat(worker, tmp_path_factory.mktemp("beat")) as beat:
        yield beat


@pytest.fixture(scope="module", autouse=True)
def healthy_since(worker: Worker, http: ServiceProcess, redis_url: str) -> float:
    """Of the server `http`, which is killed then: the worker reports that seconds later, while other tests run."""
    with redis.Redis.from_url(redis_url) as client:
        found = wait_until(lambda: reported(client, "http"), "the worker has reported")
        assert [report.healthy for report in found.workers.values()] == [True]
    http.process.kill()
    http.process.wait()
    return found.since or 0


def start_beat(worker: Worker, directory: Path, name: str = "beat") -> ServiceProcess:
    command = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "beat", "-l", "INFO"]
    return ServiceProcess(command, directory / f"{name}.log", worker.environment_of("beat"), directory)


def http_server(port: int) -> list[str]:
    return [sys.executable, "-m", "tarsy_tasks.demo.server", "--http", str(port)]


def status_of(client: redis.Redis, server: str) -> HealthStatus:
    return read_health(client, [server])[server].status


def reported(client: redis.Redis, server: str) -> ServerHealth | None:
    found = read_health(client, [server])[server]
    return found if found.workers else None


def test_without_beat_nothing_is_healthy(worker: Worker, client: redis.Redis) -> None:
    found = wait_until(lambda: reported(client, "desk"), "the worker has reported")
    (report,) = found.workers.values()
    assert (report.healthy, report.tool_count, report.server_info) == (True, 5, "tarsy-tasks demo 1.0")
    assert (found.status, found.check) == (HealthStatus.UNKNOWN, None)
    assert "is beat running?" in found.reason
    failed = wait_until(lambda: reported(client, "gone"), "the worker has reported")
    assert failed.status is HealthStatus.UNHEALTHY


@pytest.mark.usefixtures("worker")
def test_agents_and_web_services_can_ask() -> None:
    found = health.statuses()
    assert found.keys() == {"desk", "gone", "http"}
    assert not health.is_healthy("gone")
    assert any("no-such-command-anywhere" in warning for warning in health.warnings())
    assert [tool.tool for tool in health.cached_tools("desk")] == ["echo", "quote", "wait", "order", "label"]
    assert health.cached_tools("gone") == []
    assert json.loads(found["gone"].model_dump_json())["status"] == "unhealthy"


def test_an_unreadable_record_is_skipped_and_reported(worker: Worker, client: redis.Redis) -> None:
    own = client.zrange(keys.HEALTH_WORKERS, 0, -1)[0].decode()
    newer = (
        HealthRecord(server="desk", healthy=True, checked_at=1, worker="x").model_dump_json().replace('"v":1', '"v":2')
    )
    for damaged in (b"\xff{", newer, '{"v": 1}', "[]"):
        client.hset("tarsy:worker-health:odd@host", mapping={"desk": damaged})
        client.expire("tarsy:worker-health:odd@host", 5)
        client.zadd(keys.HEALTH_WORKERS, {"odd@host": client.time()[0]})
        found = read_health(client, ["desk"])["desk"]
        assert found.skipped == ("the record of worker odd@host cannot be read: it is damaged, or of another version",)
        assert "odd@host" in found.warning
        assert [*found.workers] == [own]
    client.zrem(keys.HEALTH_WORKERS, "odd@host")
    client.set(keys.health_key("strange"), '{"v": 1, "server": "desk", "healthy": true}', ex=5)
    strange = read_health(client, ["strange"])["strange"]
    assert strange.status is HealthStatus.UNKNOWN
    assert strange.skipped


@pytest.mark.parametrize("key", ["worker", keys.HEALTH_WORKERS])
def test_a_key_of_another_type_is_reported_and_replaced(
    worker: Worker, client: redis.Redis, redis_url: str, key: str
) -> None:
    own = wait_until(lambda: [*read_health(client, ["desk"])["desk"].workers], "the worker has reported")
    key = keys.worker_health_key(own[0]) if key == "worker" else key
    client.delete(key)
    client.set(key, "somebody else's", ex=60)
    blind = read_health(client, ["desk"])["desk"]
    assert (blind.status, [*blind.workers]) == (HealthStatus.UNKNOWN, [])
    assert "cannot be read" in blind.skipped[0]
    build_app({"broker_url": redis_url}).send_task(CHECK_SERVER, ("desk",))
    worker.wait_for_log(f"the key {key} in Redis was a string")
    wait_until(lambda: reported(client, "desk"), "it is written again")
    assert 0 < client.ttl(key) <= RECORD_TTL_S
    assert not read_health(client, ["desk"])["desk"].skipped


def test_a_damaged_list_of_tools_affects_no_other_server(worker: Worker, client: redis.Redis, redis_url: str) -> None:
    key = keys.tools_key("desk")
    client.delete(key)
    client.set(key, "somebody else's", ex=60)
    build_app({"broker_url": redis_url}).send_task(CHECK_SERVER, ("desk",))
    worker.wait_for_log(f"the key {key} in Redis was a string")
    wait_until(lambda: health.cached_tools("desk"), "they are written again")


def test_two_deployments_on_one_redis_use_separate_databases(
    worker: Worker, redis_url: str, client: redis.Redis
) -> None:
    assert reported(client, "desk")
    with redis.Redis.from_url(f"{redis_url.removesuffix('/0')}/1") as other:
        assert read_health(other, ["desk"])["desk"].status is HealthStatus.UNKNOWN


@pytest.fixture(scope="module")
def app(redis_url: str) -> Iterator[TarsyApp]:
    with build_app(dict.fromkeys(("broker_url", "result_backend"), redis_url)) as app:
        yield app


@pytest.fixture(scope="module")
def late_worker(start_worker: StartWorker, app: TarsyApp) -> Worker:
    """For whom a check has waited for two days."""
    app.send_task(CHECK_SERVER, ("busy", time.time() - 172800))
    return start_worker({"busy": DEMO_SERVER}, arguments=["-c", "4"])


@pytest.mark.usefixtures("late_worker")
def test_checks_that_waited_for_a_worker_do_not_mean_overload(client: redis.Redis) -> None:
    found = wait_until(lambda: (each := read_health(client, ["busy"])["busy"]).check and each, "it is checked")
    assert found.check is not None
    assert found.check.queue_wait_s is not None
    assert (found.status, found.warning) == (HealthStatus.HEALTHY, "")


def test_checks_are_answered_while_every_slot_is_taken(
    late_worker: Worker, app: TarsyApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARSY_MCP_CONFIG", late_worker.environment["TARSY_MCP_CONFIG"])
    with ToolExecutor(["busy"], timeout_s=30) as tools:
        pending = [
            tools.submit(ToolCall(id=str(number), name="busy.wait", arguments={"seconds": 5})) for number in range(8)
        ]
        wait_until(lambda: client.llen(keys.queue("busy")) == 4, "every slot is taken, and calls wait")
        client.delete(keys.health_key("busy"))
        seconds, microseconds = client.time()
        app.send_task(CHECK_SERVER, ("busy", seconds + microseconds / 1e6))
        try:
            found = wait_until(lambda: read_health(client, ["busy"])["busy"].check, "it is answered", timeout_s=4)
            assert (found.queue_wait_s or 0) < 3
        finally:
            for each in pending:
                each.cancel()
            for each in pending:
                each.result()
            late_worker.stop()
            client.delete(keys.queue("busy"), keys.check_queue("busy"))


def test_beat_with_a_damaged_configuration_says_so_and_ends(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "damaged.json").write_text('{"mcpServers": {"desk": {"comand": "x"}}}')
    worker.environment["TARSY_MCP_CONFIG"] = str(tmp_path / "damaged.json")
    try:
        beat = start_beat(worker, tmp_path)
    finally:
        worker.environment["TARSY_MCP_CONFIG"] = str(worker.config_path)
    assert beat.process.wait(30) == 2
    assert "did you mean `command`" in beat.log
    assert "Traceback" not in beat.log


def test_a_killed_server_is_reported_without_beat_and_calls(
    request: pytest.FixtureRequest, client: redis.Redis, port: int, healthy_since: float, tmp_path: Path
) -> None:
    lost = wait_until(
        lambda: (found := read_health(client, ["http"])["http"]).status is HealthStatus.UNHEALTHY and found,
        "it is unhealthy",
        TOLD_S,
    )
    assert "is not available" in lost.reason
    assert (lost.since or 0) > healthy_since
    with listening(http_server(port), port, tmp_path):
        request.getfixturevalue("beat")
        wait_until(lambda: status_of(client, "http") is HealthStatus.HEALTHY, "it is healthy again", 2 * TOLD_S)


def test_checks_of_beat_leave_records_that_expire(worker: Worker, client: redis.Redis, beat: ServiceProcess) -> None:
    began_at = psutil.Process(beat.pid).create_time()
    found = wait_until(
        lambda: (
            (each := read_health(client, ["desk", "gone"]))["gone"].check
            and each["desk"].healthy
            and (each["desk"].checked_at or 0) > began_at
            and each
        ),
        "both were checked through their queues",
    )
    assert beat.stop() == 0
    desk, gone = found["desk"], found["gone"]
    assert desk.check is not None
    assert 0 <= (desk.queue_wait_s or 0) < 5
    assert 0 < (desk.check.latency_s or 0) < 5
    seconds, _ = client.time()
    assert abs(desk.check.checked_at - seconds) < 30
    assert gone.status is HealthStatus.UNHEALTHY
    assert "no-such-command-anywhere" in gone.reason
    workers = [key.decode() for key in client.zrange(keys.HEALTH_WORKERS, 0, -1)]
    names = [keys.health_key("desk"), keys.HEALTH_WORKERS, *map(keys.worker_health_key, workers)]
    for name in names:
        assert 0 < client.ttl(name) <= RECORD_TTL_S, name
    assert not list(beat.log_path.parent.glob("celerybeat*")), "beat keeps no file"
    assert "tarsy.check_server" not in worker.log.partition(" ready.")[2], "a check that passes has no line in the log"


def test_a_server_that_fails_every_call_is_not_healthy(worker: Worker, client: redis.Redis) -> None:
    with ToolExecutor(["desk"]) as tools:
        calls = [ToolCall(id=str(n), name="desk.order", arguments={"item": "unicorn", "count": 1}) for n in range(20)]
        assert {result.outcome for result in tools.execute_many(calls)} == {Outcome.TOOL_ERROR}
    build_app({"broker_url": worker.environment["TARSY_REDIS_URL"]}).send_task(CHECK_SERVER, ("desk",))
    found = wait_until(
        lambda: (each := read_health(client, ["desk"])["desk"]).recent_calls == 20 and each, "its calls are counted"
    )
    assert (found.status, found.failed_calls) == (HealthStatus.DEGRADED, 20)
    assert "20 of its last 20 calls failed" in found.warning


def test_a_worker_that_stops_removes_its_records(worker: Worker, client: redis.Redis) -> None:
    assert reported(client, "desk")
    assert worker.stop() == 0
    found = read_health(client, ["desk"])["desk"]
    assert (found.status, found.workers) == (HealthStatus.UNKNOWN, {})
    assert "is one running?" in found.reason


def test_of_several_beats_one_sends_each_check(redis_url: str, client: redis.Redis) -> None:
    config = {"broker_url": redis_url, "result_backend": redis_url}
    first, second = (CheckScheduler(build_app(config), lazy=True) for _ in range(2))
    assert first.wants("spare")
    assert not second.wants("spare")
    assert not first.wants("spare")
    assert client.pttl(keys.check_sent_key("spare")) < 1000 * CHECK_INTERVAL_S
    client.delete(keys.check_sent_key("spare"))
    assert second.wants("spare"), "the other one takes over"
    client.delete(keys.check_sent_key("spare"))
    client.rpush(keys.check_queue("spare"), "one waits")
    assert not first.wants("spare"), "nothing piles up where no worker serves"
    client.delete(keys.check_queue("spare"), keys.check_sent_key("spare"))


def test_checks_do_not_pile_up_without_a_worker(worker: Worker, client: redis.Redis, tmp_path: Path) -> None:
    client.delete(keys.check_sent_key("desk"))
    for name in ("first", "second"):
        with start_beat(worker, tmp_path, name) as beat:
            beat.wait_for_log("Sending due task check desk")
            wait_until(lambda: client.llen(keys.check_queue("desk")) == 1, "one check waits")
            assert beat.stop() == 0
    assert client.llen(keys.check_queue("desk")) == 1
    queues = [keys.check_queue(server) for server in ("desk", "gone", "http")]
    client.delete(*queues, *map(keys.waiting_key, queues), keys.UNACKED, keys.QUEUES)


def test_without_redis_no_health_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARSY_REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    with pytest.raises(BrokerUnavailable, match="so no health is known"):
        health.is_healthy("desk")
