"""The isolated session of a bound agent: only the worker that holds it is woken for its calls. If that worker is lost
before it looks, another one says so."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import TarsyApp, build_app
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.security.fleet import stopped
from tests.valkey import Valkey

SHORT_LEASE = 'broker_transport_options = {"visibility_timeout": 4}\n'


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(agents=(AgentUser("sre", ("desk",)),)) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def store(valkey: Valkey) -> Iterator[Any]:
    with redis.Redis.from_url(url_of(valkey.port), decode_responses=True) as client:
        yield client


@pytest.fixture(scope="module")
def workers(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    servers = {"desk": witness(Ledger(tmp_path_factory.mktemp("ledger") / "desk"))}
    with ExitStack() as stack:
        started = {
            name: stack.enter_context(
                Worker(tmp_path_factory.mktemp("worker"), servers, url_of(valkey.port), settings=SHORT_LEASE, name=name)
            )
            for name in ("w1", "w2")
        }
        for worker in started.values():
            worker.wait_until_ready()
        stack.enter_context(environment_of(started["w1"]))
        yield started


@pytest.fixture(scope="module")
def app(valkey: Valkey, workers: dict[str, Worker]) -> Iterator[TarsyApp]:
    url = url_of(valkey.port, "sre")
    with closing(build_app({"broker_url": url, "result_backend": url})) as app:
        yield app


def test_a_call_of_which_only_a_lost_worker_knew_is_answered(
    app: TarsyApp, workers: dict[str, Worker], store: Any
) -> None:
    with ToolExecutor(["desk"], session="run", timeout_s=90, app=app) as tools:
        assert tools.execute("desk.count").content == "1"
        (session,) = store.keys(keys.session_key("desk:sre:*"))
        holder = store.hget(session, "holder")
        worker = workers[holder.partition("@")[0]]
        with stopped(worker):
            call = tools.submit("desk.count")
            wait_until(lambda: store.exists(keys.wake_key("desk", holder)), "its holder is woken")
            assert not store.exists(keys.agents_key("desk")), "and no other worker"
            worker.process.kill()
        lost = call.result()
        assert lost.error_code is ErrorCode.SESSION_LOST, lost.content
        assert "was not sent" in lost.content
        assert tools.execute("desk.count").content == "1"
