"""What operators do with the queues of bound agents, and workers that fetch as kombu does."""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
import redis

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.celery_app import TarsyApp, build_app
from tests.processes import DEMO_SERVER, Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.valkey import Valkey

SERVERS: dict[str, Any] = {"desk": {**DEMO_SERVER, "max_concurrency": 2}, "shop": DEMO_SERVER}
OWN = keys.agent_queue("desk", "sre")


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(agents=(AgentUser("sre", ("desk", "shop")), AgentUser("dev", ("desk",)))) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def worker(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    arguments = ["-Q", "mcp.desk,mcp.desk.check"]
    with Worker(tmp_path_factory.mktemp("worker"), SERVERS, url_of(valkey.port), arguments=arguments) as worker:
        worker.wait_until_ready()
        with environment_of(worker):
            yield worker


@pytest.fixture(scope="module")
def apps(worker: Worker, valkey: Valkey) -> Iterator[dict[str, TarsyApp]]:
    urls = {name: url_of(valkey.port, name) for name in ("sre", "dev", "operator")}
    apps = {name: build_app({"broker_url": url, "result_backend": url}) for name, url in urls.items()}
    yield apps
    for app in apps.values():
        app.close()


@pytest.fixture
def admin(valkey: Valkey) -> Iterator[Any]:
    with closing(redis.Redis.from_url(url_of(valkey.port))) as client:
        yield client
        assert not client.acl_log()


def command(app: TarsyApp, name: str, **arguments: Any) -> Any:
    """The answer of the only worker, once it has acted on the command. One that has just started may not hear it."""
    ask = partial(app.control.broadcast, name, arguments=arguments, reply=True, timeout=5, limit=1)
    (answer,) = wait_until(ask, f"the worker answers to {name}")
    return next(iter(answer.values()))


def queues_of(app: TarsyApp) -> dict[str, Any]:
    return {queue["name"]: queue.get("agents", "none") for queue in command(app, "active_queues")}


def call(app: TarsyApp, timeout_s: float = 30) -> str:
    with ToolExecutor(["desk"], timeout_s=timeout_s, app=app) as tools:
        result = tools.execute(ToolCall(name="desk.echo", arguments={"text": "x"}))
        return str(result.error_code or result.outcome)


def most_at_once(admin: Any, app: TarsyApp) -> int:
    """How many calls of an agent run at most, of several that are sent together."""
    with ToolExecutor(["desk"], timeout_s=60, app=app) as tools:
        calls = [tools.submit("desk.wait", {"seconds": 1, "steps": 1}) for _ in range(8)]
        found = 0

        def is_over() -> bool:
            nonlocal found
            found = max(found, admin.zcard(keys.LEASES))
            return not admin.llen(OWN)

        wait_until(is_over, "none of them waits")
        assert {each.result().outcome for each in calls} == {Outcome.OK}
    return found


def test_the_queues_of_agents_come_with_that_of_their_server(apps: dict[str, TarsyApp], admin: Any) -> None:
    operator = apps["operator"]
    assert queues_of(operator) == {"mcp.desk": "mcp.desk:a:*", "mcp.desk.check": "none"}
    assert "add consumer" in command(operator, "add_consumer", queue=OWN)["ok"]
    wait_until(lambda: OWN in queues_of(operator), "it is consumed")
    assert [call(apps[name]) for name in ("sre", "dev")] == ["ok", "ok"]
    assert most_at_once(admin, apps["sre"]) == 2
    command(operator, "cancel_consumer", queue=OWN)
    wait_until(lambda: OWN not in queues_of(operator), "it is not consumed any more")
    assert [call(apps[name]) for name in ("sre", "dev")] == ["ok", "ok"]


def test_an_operator_has_the_calls_of_one_agent_served_only(apps: dict[str, TarsyApp], admin: Any) -> None:
    operator = apps["operator"]
    command(operator, "add_consumer", queue=OWN)
    command(operator, "cancel_consumer", queue="mcp.desk")
    wait_until(lambda: queues_of(operator).keys() == {"mcp.desk.check", OWN}, "the queue of the server is cancelled")
    assert call(apps["sre"]) == "ok"
    assert most_at_once(admin, apps["sre"]) == 2
    with ToolExecutor(["desk"], timeout_s=30, app=apps["dev"]) as tools:
        waiting = tools.submit("desk.echo", {"text": "x"})
        assert call(apps["sre"]) == "ok"
        assert admin.llen(keys.agent_queue("desk", "dev")) == 1
        command(operator, "add_consumer", queue="mcp.desk")
        assert waiting.result().outcome is Outcome.OK
    command(operator, "cancel_consumer", queue=OWN)
    wait_until(lambda: OWN not in queues_of(operator), "it is as before")
    assert call(apps["sre"]) == "ok"


@pytest.fixture
def second(valkey: Valkey, apps: dict[str, TarsyApp], tmp_path: Path) -> Iterator[Worker]:
    """A worker of another server, which fetches as kombu does."""
    assert apps
    settings = 'broker_transport_options = {"queue_order_strategy": "round_robin"}\n'
    options: dict[str, Any] = {"settings": settings, "arguments": ["-Q", "mcp.shop,mcp.shop.check"], "name": "second"}
    with Worker(tmp_path, SERVERS, url_of(valkey.port), **options) as worker:
        worker.wait_until_ready()
        yield worker


def test_a_worker_that_leaves_agents_unserved_says_so(apps: dict[str, TarsyApp], second: Worker) -> None:
    [line] = [line for line in second.log.splitlines() if "kombu fetches the messages" in line]
    assert "ERROR" in line
    assert "leaves those in the queues of bound agents, because queue_order_strategy is set" in line
    operator = apps["operator"]
    name = f"second@{gethostname()}"
    # It listens to operators a moment after it is ready.
    inspect = operator.control.inspect([name], timeout=2, limit=1)
    [queues] = wait_until(inspect.active_queues, "the queues of the worker", 30).values()
    assert {queue["name"]: queue.get("agents", "none") for queue in queues} == {
        "mcp.shop": None,
        "mcp.shop.check": "none",
    }
    with ToolExecutor(["shop"], timeout_s=3, app=apps["sre"]) as tools:
        assert tools.execute("shop.echo", {"text": "x"}).error_code is ErrorCode.NOT_STARTED
    with ToolExecutor(["shop"], timeout_s=40, app=apps["sre"]) as tools:
        waiting = tools.submit("shop.echo", {"text": "x"})
        operator.control.add_consumer(keys.agent_queue("shop", "sre"), destination=[name])
        assert waiting.result().outcome is Outcome.OK
