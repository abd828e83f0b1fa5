"""`ready` and `alive`, as Kubernetes and Docker ask them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tarsy_tasks import ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.celery_app import build_app
from tarsy_tasks.telemetry.probes import BEAT_S, STALE_S, ProbeFiles
from tests.cli import blocking_command
from tests.cli.commands import run_command
from tests.conftest import StartWorker
from tests.processes import DEMO_SERVER, Worker, free_port, wait_until
from tests.redis_users import url_of
from tests.servers import misbehaving_stdio
from tests.valkey import Valkey


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def worker(start_worker: StartWorker, run_dir: Path) -> Worker:
    servers = {"desk": DEMO_SERVER, "spare": {**DEMO_SERVER, "required": False}}
    environment = {"TARSY_RUN_DIR": str(run_dir), "PYTHONPATH": str(Path(__file__).parents[2])}
    worker = start_worker(servers, environment=environment, arguments=["-I", blocking_command.__name__])
    wait_until(lambda: len(list(run_dir.iterdir())) == 3, "the files of the probes are there")
    return worker


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def probe(worker: Worker, *words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in worker.environment.items() if name != "PYTHONPATH"}  # that is the worker's
    return run_command(*words, environment={**own, **environment}, cwd=cwd)


def make_old(*files: Path) -> None:
    long_ago = time.time() - STALE_S - 60
    for file in files:
        os.utime(file, (long_ago, long_ago))


def test_a_worker_that_takes_calls_is_ready_and_alive(worker: Worker) -> None:
    for command in ("ready", "alive"):
        done = probe(worker, command)
        assert (done.returncode, done.stdout.endswith(": ok\n")) == (0, True), done
        assert json.loads(probe(worker, command, "--json").stdout)["ok"] is True
        assert probe(worker, command, "-n", "nobody@here").returncode == 1


def test_without_a_worker_nothing_is_ready_or_alive(worker: Worker, tmp_path: Path) -> None:
    for command in ("ready", "alive"):
        done = probe(worker, command, TARSY_RUN_DIR=str(tmp_path / "absent"))
        assert done.returncode == 1
        assert "no worker runs here" in done.stderr


def test_probe_files_of_a_killed_worker_do_not_count(worker: Worker, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TARSY_REDIS_URL", worker.environment["TARSY_REDIS_URL"])
        gone_files, odd_files = ProbeFiles(tmp_path, "w@gone"), ProbeFiles(tmp_path, "w@odd")
    for name in ("ready", "consumer", "sessions"):
        getattr(gone_files, name).write_text(str(gone.pid))
        getattr(odd_files, name).write_bytes(b"\xff no number")
    assert probe(worker, "alive", TARSY_RUN_DIR=str(tmp_path)).returncode == 1


def test_a_restarted_worker_is_not_ready_before_its_start_ends(redis_url: str, tmp_path: Path) -> None:
    """As in a restarted container: same name, same process id, same directory."""
    strict = {"TARSY_STARTUP": "strict", "TARSY_RUN_DIR": str(tmp_path / "run")}
    killed = Worker(tmp_path, {}, redis_url, environment=strict)
    try:
        wait_until(lambda: len(list((tmp_path / "run").glob("*.*"))) == 3, "the files of the probes are there")
    finally:
        killed.process.kill()
        killed.process.wait()
    for file in list((tmp_path / "run").iterdir()):
        file.write_text(str(os.getpid()))  # a process that runs
        file.with_name(file.name.replace("worker@", "other@")).write_text(str(killed.pid))
    make_old(*(tmp_path / "run").glob("other@*"))
    hanging = {"command": sys.executable, "args": [misbehaving_stdio.__file__, "hangs"]}
    worker = Worker(tmp_path, {"mute": hanging}, redis_url, environment=strict)
    try:
        worker.wait_for_log("waiting for MCP servers")
        assert not list((tmp_path / "run").iterdir()), "neither its own files nor those of another killed worker"
        assert probe(worker, "ready").returncode == 1
    finally:
        worker.stop()


def test_two_deployments_on_one_machine_have_separate_probes(worker: Worker, run_dir: Path, tmp_path: Path) -> None:
    with Valkey() as elsewhere:
        environment = {"TARSY_RUN_DIR": str(run_dir)}
        other = Worker(tmp_path, {}, url_of(elsewhere.port), environment=environment, name="w0")
        try:
            wait_until(lambda: len(list(run_dir.iterdir())) == 6, "both have their files")
            for each in (worker, other):
                done = probe(each, "ready")
                assert (done.returncode, done.stdout.count(": ok\n")) == (0, 1), done
        finally:
            other.stop()
    for command in ("ready", "alive"):
        assert probe(other, command).returncode == 1
        assert probe(worker, command).returncode == 0


def test_a_worker_with_a_hanging_thread_is_not_alive(worker: Worker, run_dir: Path, tmp_path: Path) -> None:
    (consumer,), (sessions,) = run_dir.glob("*.consumer"), run_dir.glob("*.sessions")
    worker.process.send_signal(signal.SIGSTOP)  # so that no file is touched while the probe runs
    try:
        make_old(consumer)
        done = probe(worker, "alive")
        assert (done.returncode, "has not taken messages" in done.stdout) == (1, True), done
        (tmp_path / "celeryconfig.py").write_text(f"result_backend = 'redis://127.0.0.1:{free_port()}/0'")
        done = probe(worker, "alive", cwd=tmp_path)
        assert done.returncode == 0, "without Redis the consumer is not checked"
        make_old(sessions)
        done = probe(worker, "alive")
        assert (done.returncode, "its session loop has not responded" in done.stdout) == (1, True), done
    finally:
        worker.process.send_signal(signal.SIGCONT)
    wait_until(lambda: time.time() - min(consumer.stat().st_mtime, sessions.stat().st_mtime) < 30, "both beat again")
    assert probe(worker, "alive").returncode == 0


def test_a_worker_with_a_blocked_session_loop_is_not_alive(worker: Worker, run_dir: Path, tmp_path: Path) -> None:
    (consumer,), (sessions,) = run_dir.glob("*.consumer"), run_dir.glob("*.sessions")
    (tmp_path / "blocked").touch()
    app = build_app({"broker_url": worker.environment["TARSY_REDIS_URL"]})
    app.control.broadcast("block_sessions", {"file": str(tmp_path / "blocked")})
    wait_until(lambda: consumer.stat().st_mtime - sessions.stat().st_mtime > 3 * BEAT_S, "only one of them beats")
    make_old(sessions)
    done = probe(worker, "alive", "--json")
    assert done.returncode == 1, done
    assert "its session loop has not responded" in done.stdout
    assert "has not taken messages" not in done.stdout
    # Not over a connection of Celery's pool, which may be older than this module, and closed.
    with app.connection_for_write() as connection:
        assert app.control.ping(timeout=5, limit=1, connection=connection)
    app.close()
    (tmp_path / "blocked").unlink()
    wait_until(lambda: probe(worker, "alive").returncode == 0, "it responds again")


def test_the_fleet_is_ready_when_required_servers_are_healthy(worker: Worker, client: Any) -> None:
    def fleet() -> tuple[int, str]:
        done = probe(worker, "ready", "--fleet", "--json")
        problems = json.loads(done.stdout)["problems"]
        assert set(problems) == {"desk"}, "the other one is not required"
        return done.returncode, problems["desk"] or ""

    app = build_app({"broker_url": worker.environment["TARSY_REDIS_URL"]})
    code, problem = fleet()
    assert (code, "unknown: no check has come" in problem) == (1, True)
    app.send_task("tarsy.check_server", ["desk"])
    wait_until(lambda: fleet() == (0, ""), "it is checked")
    app.control.broadcast("mcp_disconnect", {"server": "desk"}, reply=True, timeout=10, limit=1)
    app.send_task("tarsy.check_server", ["desk"])
    wait_until(lambda: fleet()[1].startswith("unhealthy: "), "the check of a server that was disconnected")
    app.control.broadcast("mcp_reconnect", {"server": "desk"}, reply=True, timeout=10, limit=1)
    app.close()

    def fleet_without_worker() -> tuple[int, str]:
        client.delete(keys.serving_key("desk"))  # until the worker says again that it serves it
        return fleet()

    wait_until(lambda: fleet_without_worker() == (1, "no worker serves it"), "it has no worker")


def test_without_redis_the_fleet_is_unknown(worker: Worker) -> None:
    done = probe(worker, "ready", "--fleet", TARSY_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0")
    assert done.returncode == 3
    assert "Redis could not be reached" in done.stderr


def test_a_stopping_worker_is_alive_but_not_ready(worker: Worker, run_dir: Path) -> None:
    with ToolExecutor(timeout_s=30) as tools:
        pending = tools.submit(ToolCall(id="1", name="desk.wait", arguments={"seconds": 15}))
        worker.wait_for_log("stdio")
        wait_until(lambda: "desk.wait" in _active(worker), "the call runs")
        worker.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not list(run_dir.glob("*.ready")), "it is not ready")
        done = probe(worker, "ready")
        assert (done.returncode, "takes no calls" in done.stdout) == (1, True), done
        assert probe(worker, "alive").returncode == 0
        assert pending.result().outcome == "ok"
    assert worker.process.wait(30) == 0
    assert not list(run_dir.iterdir())


def _active(worker: Worker) -> str:
    app = build_app({"broker_url": worker.environment["TARSY_REDIS_URL"]})
    with app:
        return json.dumps(app.control.inspect(limit=1, timeout=5).active() or {})


def test_without_a_writable_directory_only_the_probes_fail(start_worker: StartWorker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    other = start_worker({"other": DEMO_SERVER}, environment={"TARSY_RUN_DIR": str(tmp_path / "file" / "run")})
    other.wait_for_log("the files for the probes cannot be written")
    assert other.stop() == 0
    assert "Traceback" not in other.log
