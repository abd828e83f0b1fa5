"""The Celery application: defaults, what a celeryconfig.py changes, and routes."""

import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery.backends.redis import RedisBackend
from celery.worker import consumer
from kombu.transport import redis as kombu_redis

from tarsy_tasks.broker import kombu_transport
from tarsy_tasks.broker.result_backend import ResultBackend
from tarsy_tasks.broker.task_names import route_task
from tarsy_tasks.celery_app import DEFAULTS, agent_app, build_app
from tarsy_tasks.entry_point import load_celeryconfig
from tarsy_tasks.errors import ConfigError, ToolNameError

PRINT_CONCURRENCY = (
    "import tarsy_tasks; print(tarsy_tasks.app.conf.worker_concurrency, tarsy_tasks.app.conf.task_serializer)"
)


def app_in(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PRINT_CONCURRENCY], cwd=directory, capture_output=True, text=True)


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    assert app_in(tmp_path).stdout.split() == [str(DEFAULTS["worker_concurrency"]), "json"]


def test_a_celeryconfig_in_the_working_directory_wins(tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text("import os\nworker_concurrency = 7\n")
    assert app_in(tmp_path).stdout.split() == ["7", "json"]


def test_a_broken_celeryconfig_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text("import no_such_module\n")
    done = app_in(tmp_path)
    assert done.returncode != 0
    assert "celeryconfig.py: cannot be executed: ModuleNotFoundError" in done.stderr
    with pytest.raises(ConfigError):
        load_celeryconfig(tmp_path)


def test_the_settings_show_no_password_where_they_are_printed() -> None:
    url = "redis://worker:hunter2@redis.internal:6379/0"
    app = build_app({"broker_url": url, "result_backend": f"{url};{url}"})
    assert "hunter2" not in repr(app.conf)
    assert "redis://redis.internal:6379/0" in repr(app.conf)
    assert app.conf.broker_url == url


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("rediss://h/0", "rediss://h/0?ssl_cert_reqs=required"),
        ("rediss://h/0?db=1;rediss://i", "rediss://h/0?db=1&ssl_cert_reqs=required;rediss://i?ssl_cert_reqs=required"),
        ("rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none"),
        ("redis://h/0", "redis://h/0"),
    ],
)
def test_with_tls_a_certificate_is_asked_for(written: str, meant: str) -> None:
    assert build_app({"broker_url": written}).conf.broker_url == meant


@pytest.mark.parametrize("setting", ["broker_use_ssl", "redis_backend_use_ssl"])
def test_settings_for_tls_say_themselves_what_is_asked_for(setting: str) -> None:
    app = build_app({"broker_url": "rediss://h/0", setting: {"ssl_cert_reqs": ssl.CERT_OPTIONAL}})
    assert app.conf.broker_url == "rediss://h/0"


def test_an_agent_reads_no_celeryconfig(tmp_path: Path) -> None:
    (tmp_path / "celeryconfig.py").write_text("worker_concurrency = 7\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert agent_app().conf.worker_concurrency == DEFAULTS["worker_concurrency"]


def test_only_json_is_accepted() -> None:
    conf = build_app().conf
    assert (conf.accept_content, conf.result_accept_content) == (["json"], ["json"])
    assert (conf.task_serializer, conf.result_serializer) == ("json", "json")


def test_tasks_go_to_the_queue_of_their_server() -> None:
    assert route_task("tarsy.call_tool", ("k8s", "pods", {})) == {"queue": "mcp.k8s"}
    assert route_task("tarsy.list_tools", (), {"server": "k8s"}) == {"queue": "mcp.k8s"}
    assert route_task("tarsy.check_server", ("k8s",)) == {"queue": "mcp.k8s.check"}
    assert route_task("tarsy.call_tool", ()) is None
    assert route_task("another.task", ("k8s",)) is None


def test_any_redis_url_gets_our_backend_and_transport() -> None:
    app = build_app({"broker_url": "redis://127.0.0.1:1/5", "result_backend": "redis://127.0.0.1:1/6"})
    assert isinstance(app.backend, ResultBackend)
    assert app.connection_for_write().get_transport_cls() is kombu_transport.Transport
    assert app.backend.connparams["db"] == 6


def test_upstream_still_needs_what_we_override() -> None:
    """When one of these fails, upstream has fixed it, and the override can be removed."""
    import inspect

    assert "self.Client(**client_kwargs)" in inspect.getsource(kombu_redis.Channel._create_client)
    appended = inspect.getsource(kombu_redis.QoS.append)
    assert "time()" in appended, "leases by the clock of this machine"
    assert "ceil = time() - self.visibility_timeout" in inspect.getsource(kombu_redis.QoS.restore_visible)
    assert "with self.channel.conn_or_acquire(client)" in inspect.getsource(kombu_redis.QoS.restore_unacked)
    assert "client.lpush(key, dumps(message))" in inspect.getsource(kombu_redis.Channel._put), "popped is lost"
    assert "pool.disconnect()" in inspect.getsource(kombu_redis.Channel._disconnect_pools)
    assert "_get_task_meta_for" in inspect.getsource(RedisBackend._store_result)
    assert "setex" in inspect.getsource(RedisBackend._set)
    for method in (consumer.Consumer.on_unknown_task, consumer.Consumer.on_invalid_task):
        assert "dump_body" in inspect.getsource(method), "arguments in the log"


def test_transport_options_are_merged_into_the_defaults() -> None:
    app = build_app({"broker_transport_options": {"visibility_timeout": 60}})
    assert app.conf.broker_transport_options["visibility_timeout"] == 60
    assert app.conf.broker_transport_options["priority_steps"] == [0]


def test_a_key_prefix_of_kombu_is_refused(redis_url: str) -> None:
    app = build_app({"broker_url": redis_url, "broker_transport_options": {"global_keyprefix": "mine:"}})
    with app.connection_for_write() as connection, pytest.raises(ValueError, match="a separate database"):
        connection.channel()


@pytest.mark.keeps_keys
def test_a_call_of_a_server_that_is_not_configured_is_refused(
    redis_url: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARSY_MCP_CONFIG", str(tmp_path / "mcp.json"))
    (tmp_path / "mcp.json").write_text('{"mcpServers": {"desk": {"command": "desk"}}}')
    with build_app({"broker_url": redis_url, "result_backend": redis_url}) as app:
        for task in ("tarsy.call_tool", "tarsy.list_tools"):
            with pytest.raises(ToolNameError, match=r'no server "dsk".*desk'):
                app.send_task(task, ["dsk", "echo", {}])
        # Another queue is named, it is another task, or the server was added meanwhile.
        app.send_task("tarsy.call_tool", ["far", "echo"], queue="mcp.far", ignore_result=True)
        app.send_task("reports.build", ["dsk"], queue="reports", ignore_result=True)
        (tmp_path / "mcp.json").write_text('{"mcpServers": {"dsk": {"command": "desk"}}}')
        app.send_task("tarsy.call_tool", ["dsk", "echo"], ignore_result=True)
    assert [client.llen(queue) for queue in ("mcp.far", "reports", "mcp.dsk", "mcp.desk")] == [1, 1, 1, 0]
