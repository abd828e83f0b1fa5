"""What operators see of a running worker: metrics, control commands, events, alerts, Flower."""

import json
import math
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from tarsy_tasks import Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.telemetry.metrics import NO_TOOL, read_metrics
from tests.cli.commands import run_forked
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, ServiceProcess, Worker, free_port, listening, wait_until
from tests.servers import witness_stdio
from tests.servers.webhook_receiver import Receiver, receiver

Samples = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def shop_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def hook() -> Iterator[Receiver]:
    with receiver(204) as server:
        yield server


@pytest.fixture(scope="module")
def worker(
    start_worker: StartWorker,
    metrics_port: int,
    shop_port: int,
    hook: Receiver,
    tmp_path_factory: pytest.TempPathFactory,
) -> Worker:
    directory = tmp_path_factory.mktemp("operations")
    witness = {"command": sys.executable, "args": ["-S", "-E", witness_stdio.__file__, str(directory / "ledger")]}
    servers = {
        "desk": DEMO_SERVER,
        "witness": witness,
        "shop": {"url": f"http://127.0.0.1:{shop_port}/mcp", "timeouts": {"recreate_s": 1}},
    }
    run_dir = directory / "run"
    environment = {
        "TARSY_METRICS_PORT": str(metrics_port),
        "TARSY_RUN_DIR": str(run_dir),
        "TARSY_ALERT_WEBHOOK": hook.url,
        "TARSY_ALERT_WEBHOOK_SECRET": "a secret",
    }
    worker = start_worker(servers, environment=environment)
    worker.wait_for_log("connected to MCP server desk")
    worker.wait_for_log("connected to MCP server witness")
    with redis.Redis.from_url(worker.environment["TARSY_REDIS_URL"]) as client:
        wait_until(lambda: client.exists(keys.MEASURING_WORKERS), "the worker knows the time of Redis")
    return worker


@pytest.fixture(scope="module")
def app(worker: Worker, redis_url: str) -> Iterator[TarsyApp]:
    app = build_app({"broker_url": redis_url, "result_backend": redis_url})
    yield app
    app.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def samples(url: str) -> Samples:
    """Values by name and labels in the order of their names."""
    with urllib.request.urlopen(url, timeout=10) as response:
        text = response.read().decode()
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        if family.name.startswith("tarsy_")
        for sample in family.samples
    }


def make_calls() -> None:
    with ToolExecutor(timeout_s=30) as tools:
        assert tools.execute(ToolCall(id="1", name="desk.echo", arguments={"text": "a"})).outcome == Outcome.OK
        assert tools.execute(ToolCall(id="2", name="desk.order", arguments={"item": "unicorn", "count": 1})).is_error
        assert tools.execute(ToolCall(id="3", name="desk.invented_by_a_model")).outcome == Outcome.REJECTED


def test_a_worker_serves_metrics_with_names_of_the_catalogue(worker: Worker, metrics_port: int) -> None:
    make_calls()
    url = f"http://127.0.0.1:{metrics_port}/metrics"
    # An agent has its answer a moment before its worker has counted it.
    wait_until(lambda: ("tarsy_calls_total", "rejected", "desk", "") in samples(url), "all calls are counted")
    found = samples(url)
    assert found["tarsy_calls_total", "ok", "desk", "echo"] >= 1
    assert found["tarsy_calls_total", "tool_error", "desk", "order"] >= 1
    assert found["tarsy_calls_total", "rejected", "desk", ""] >= 1
    assert found["tarsy_call_duration_seconds_bucket", "+Inf", "desk", "echo"] >= 1
    assert found["tarsy_call_queue_wait_seconds_count", "desk", "echo"] >= 1
    assert found["tarsy_call_last_error_timestamp_seconds", "TOOL_ERROR", "desk", "order"] > time.time() - 300
    assert found["tarsy_session_connected", "desk"] == 1
    assert not any("invented" in word for key in found for word in key)


def test_the_numbers_reach_redis_and_flower(
    worker: Worker, client: Any, tmp_path: Path, metrics_port: int, app: TarsyApp
) -> None:
    make_calls()
    # Another deployment on the same Redis, and a newer version of this one.
    client.hset("tarsy:metrics:elsewhere", mapping={"calls:ok get": "3", "calls:newer get": "x"})
    client.zadd(keys.MEASURED_SERVERS, {"elsewhere": time.time()})
    client.expire("tarsy:metrics:elsewhere", 60)
    own = samples(f"http://127.0.0.1:{metrics_port}/metrics")["tarsy_calls_total", "ok", "desk", "echo"]
    wait_until(
        lambda: any(
            each.tool == "echo" and each.calls.get(Outcome.OK) == own for each in read_metrics(client, ["desk"])["desk"]
        ),
        "the calls are counted in Redis",
    )
    port = free_port()
    command = [sys.executable, "-m", "celery", "-A", "tarsy_tasks", "flower", "--address=127.0.0.1", f"--port={port}"]
    flower = ServiceProcess(command, tmp_path / "flower.log", worker.environment_of("flower"), tmp_path)
    try:
        flower.wait_for_log("Visit me at")
        found = wait_until(lambda: samples_or_none(f"http://127.0.0.1:{port}/metrics"), "Flower answers")
    finally:
        flower.stop()
    assert found["tarsy_redis_up",] == 1
    assert found["tarsy_calls_total", "ok", "desk", "echo"] == own
    assert found["tarsy_calls_total", "ok", "elsewhere", "get"] == 3
    assert ("tarsy_server_healthy", "elsewhere") not in found, "nobody here has a server of this name any more"
    assert math.isnan(found["tarsy_server_healthy", "desk"]), "it is configured, and no check came through its queue"


def samples_or_none(url: str) -> Samples | None:
    try:
        return samples(url)
    except OSError:
        return None


def test_calls_in_flight_and_recreated_sessions_are_numbers_too(
    worker: Worker, client: Any, app: TarsyApp, metrics_port: int
) -> None:
    url = f"http://127.0.0.1:{metrics_port}/metrics"
    with ToolExecutor(timeout_s=30) as tools:
        pending = tools.submit(ToolCall(id="1", name="desk.wait", arguments={"seconds": 20}))
        wait_until(lambda: samples(url).get(("tarsy_calls_in_flight", "desk", "wait")) == 1, "it runs")
        pending.cancel()
        wait_until(lambda: samples(url)["tarsy_calls_in_flight", "desk", "wait"] == 0, "it does not run any more")
    ask(app, "mcp_reconnect", server="witness")
    wait_until(
        lambda: samples(url).get(("tarsy_session_recreations_total", "witness"), 0) >= 1, "the session is counted"
    )
    assert samples(url)["tarsy_connections_total", "witness"] >= 2
    assert samples(url)["tarsy_connection_attempts_total", "witness"] >= 2
    assert {each.tool for each in read_metrics(client, ["witness"])["witness"]} >= {NO_TOOL}


def ask(app: TarsyApp, command: str, **arguments: Any) -> dict[str, Any]:
    """The answer of the one worker to a control command."""
    (reply,) = app.control.broadcast(command, arguments=arguments, reply=True, timeout=10, limit=1)
    (answer,) = reply.values()
    return answer


def test_mcp_sessions_shows_the_state_of_each_session(worker: Worker, app: TarsyApp) -> None:
    found = ask(app, "mcp_sessions")
    assert found["desk"]["state"] == "connected"
    assert found["desk"] | {"last_error": None, "sessions_opened": 1} == {
        "state": "connected",
        "held": False,
        "transport": "stdio",
        "protocol": "2026-07-28",
        "era": "2026",
        "server_version": "tarsy-tasks demo 1.0",
        "tools": 5,
        "sessions_opened": 1,
        "in_flight": 0,
        "last_error": None,
        "agents": None,
        "watched": 0,
    }
    assert found["shop"]["state"] in ("error", "reconnecting", "connecting", "disconnected")
    wait_until(lambda: "shop" in (ask(app, "mcp_sessions")["shop"]["last_error"] or ""), "it says why")


def test_mcp_reconnect_opens_a_new_session_and_spares_what_runs(worker: Worker, app: TarsyApp) -> None:
    opened = ask(app, "mcp_sessions")["desk"]["sessions_opened"]
    with ToolExecutor(timeout_s=30) as tools:
        pending = tools.submit(ToolCall(id="1", name="desk.wait", arguments={"seconds": 8}))
        wait_until(lambda: ask(app, "mcp_sessions")["desk"]["in_flight"] == 1, "the call runs")
        began = ask(app, "mcp_reconnect", server="desk")["ok"]
        assert began["state"] in ("reconnecting", "connected")
        wait_until(lambda: ask(app, "mcp_sessions")["desk"]["sessions_opened"] == opened + 1, "there is a new session")
        assert pending.result().outcome == Outcome.OK


def ask_until_done(app: TarsyApp, command: str) -> Any:
    """The answer for `witness` in the end: a worker answers after half a second, done or not."""

    def done() -> Any:
        answer = ask(app, command, server="witness")["ok"]
        return answer["done"] and answer

    return wait_until(done, f"{command} is done")


def test_mcp_disconnect_holds_until_mcp_reconnect(worker: Worker, app: TarsyApp) -> None:
    answer = ask_until_done(app, "mcp_disconnect")
    assert (answer["state"], answer["held"]) == ("disconnected", True)
    with ToolExecutor(timeout_s=30) as tools:
        result = tools.execute(ToolCall(id="1", name="witness.look", arguments={"key": "k"}))
        assert (result.outcome, result.error_code) == (Outcome.UNAVAILABLE, "SERVER_UNAVAILABLE")
        assert "An operator has disconnected" in result.content
        assert "error" in ask(app, "mcp_refresh", server="witness")
        ask(app, "mcp_reconnect", server="witness")
        wait_until(lambda: ask(app, "mcp_sessions")["witness"]["state"] == "connected", "it is connected")
        assert tools.execute(ToolCall(id="2", name="witness.look", arguments={"key": "k"})).content == "k"


def test_mcp_refresh_lists_the_tools_and_says_what_changed(worker: Worker, app: TarsyApp) -> None:
    answer = ask_until_done(app, "mcp_refresh")
    assert (answer["added"], answer["removed"], answer["changed"]) == ([], [], [])
    assert answer["tools"] == 6


@pytest.mark.parametrize("command", ["mcp_reconnect", "mcp_disconnect", "mcp_refresh"])
def test_a_command_without_a_known_server_lists_the_servers(worker: Worker, app: TarsyApp, command: str) -> None:
    assert "serves: desk, witness, shop" in ask(app, command, server="nowhere")["error"]
    assert "name an MCP server" in ask(app, command)["error"]
    assert "serves: desk, witness, shop" in ask(app, command, server=["desk"])["error"]
    assert "Traceback" not in worker.log


def test_celerys_own_commands_describe_a_worker(worker: Worker, app: TarsyApp) -> None:
    options = ask(app, "stats")["broker"]["transport_options"]
    assert options["queue_order_strategy"].endswith("bulkhead:QueueOrder")
    assert ask(app, "conf")["broker_transport_options"]
    assert "Traceback" not in worker.log


def test_celerys_command_line_knows_the_commands(worker: Worker) -> None:
    name = f"w0@{socket.gethostname()}"

    def celery(*words: str) -> subprocess.CompletedProcess[str]:
        return run_forked(["-m", "celery", "-A", "tarsy_tasks", *words], worker.environment, Path.cwd())

    done = celery("inspect", "mcp_sessions", "--json", "-t", "10", "-d", name)
    assert done.returncode == 0, done
    (found,) = json.loads(done.stdout.strip().splitlines()[0]).values()
    assert set(found) == {"desk", "witness", "shop"}

    def refreshed() -> bool:
        done = celery("control", "mcp_refresh", "desk", "--json", "-t", "10", "-d", name)
        assert done.returncode == 0, done
        return '"done": true' in done.stdout

    wait_until(refreshed, "the tools are listed")
    assert "mcp_reconnect SERVER" in " ".join(celery("control", "--list").stdout.split())


class Listener:
    """Celery's events, as anybody receives them."""

    def __init__(self, app: TarsyApp) -> None:
        self.events: list[dict[str, Any]] = []
        self._connection = app.connection_for_read()
        self._receiver = app.events.Receiver(self._connection, handlers={"*": self.events.append})
        self._receiver.should_stop = False
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _receive(self) -> None:
        self._receiver.capture(limit=None, timeout=None, wakeup=True)

    def of(self, kind: str, server: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind and event["server"] == server]

    def stop(self) -> None:
        self._receiver.should_stop = True
        self._thread.join()
        self._connection.release()


@pytest.fixture
def listener(app: TarsyApp) -> Iterator[Listener]:
    listener = Listener(app)
    yield listener
    listener.stop()


def test_sessions_and_failing_servers_become_events_and_alerts(
    worker: Worker, app: TarsyApp, client: Any, listener: Listener, hook: Receiver, shop_port: int, tmp_path: Path
) -> None:
    def check() -> None:
        app.send_task("tarsy.check_server", ["shop"])

    def has_been(status: str) -> bool:
        check()
        return client.hget(keys.alert_state_key("shop"), "said") == status.encode()

    wait_until(lambda: any(event["type"] == "worker-heartbeat" for event in listener.events), "events arrive")
    demo = [sys.executable, "-m", "tarsy_tasks.demo.server", "--http", str(shop_port)]
    with listening(demo, shop_port, tmp_path) as shop:
        client.delete(keys.alert_state_key("shop"), keys.ALERTS)
        wait_until(lambda: has_been("healthy"), "the first check that went well")
        wait_until(lambda: listener.of("worker-mcp-connected", "shop"), "the event")
        assert client.xlen(keys.ALERTS) == 0, "nothing has changed"
        # That it was not there when the worker started may have been an alert, too.
        wait_until(lambda: worker.log.count("alert: ") == len(hook.received), "earlier alerts are delivered")
        earlier, known = len(hook.received), len(listener.of("worker-mcp-unhealthy", "shop"))
        shop.process.kill()
    wait_until(lambda: has_been("unhealthy"), "the check of a server that is gone")
    wait_until(lambda: len(listener.of("worker-mcp-unhealthy", "shop")) > known, "the event of the alert")
    wait_until(lambda: listener.of("worker-mcp-disconnected", "shop"), "the event of the session")
    wait_until(lambda: listener.of("worker-mcp-error", "shop"), "the event of the error")
    told = wait_until(lambda: [json.loads(body) for _, body in hook.received[earlier:]], "the webhook")
    assert [(each["type"], each["server"]) for each in told] == [("server.unhealthy", "shop")]
    entries = [json.loads(fields[b"alert"]) for _, fields in client.xrange(keys.ALERTS)]
    assert [(entry["server"], entry["status"]) for entry in entries] == [("shop", "unhealthy")]
    assert worker.log.count("alert: MCP server shop is unhealthy") == earlier + 1
    assert len(listener.of("worker-mcp-unhealthy", "shop")) == known + 1


def test_a_port_that_is_taken_costs_the_numbers_and_no_calls(
    start_worker: StartWorker, metrics_port: int, worker: Worker
) -> None:
    environment = {"TARSY_METRICS_PORT": str(metrics_port), "TARSY_RUN_DIR": worker.environment["TARSY_RUN_DIR"]}
    other = start_worker({"desk2": DEMO_SERVER}, environment=environment)
    other.wait_for_log(f"metrics cannot be served at 127.0.0.1:{metrics_port}: Address already in use")
    assert other.stop() == 0
    assert "Traceback" not in other.log


def test_what_was_counted_last_is_written_when_a_worker_ends(
    start_worker: StartWorker, client: Any, worker: Worker
) -> None:
    last = start_worker({"last": DEMO_SERVER})
    app = build_app({"broker_url": last.environment["TARSY_REDIS_URL"]})
    for number in range(3):
        app.send_task("tarsy.call_tool", ["last", "echo", {"text": str(number)}], queue="mcp.last", ignore_result=True)
    wait_until(lambda: last.log.count("last.echo: ok") == 3, "they are answered")
    assert last.stop() == 0
    app.close()
    found = {each.tool: each.calls for each in read_metrics(client, ["last"])["last"] if each.tool != NO_TOOL}
    assert found == {"echo": {Outcome.OK: 3}}
