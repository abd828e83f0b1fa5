"""What each part of a deployment may not do in Redis. What it may do the whole suite shows, run by these users."""

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import redis
from celery import Celery, chain, chord
from celery.exceptions import OperationalError
from redis.exceptions import AuthenticationError, NoPermissionError

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor, tool_signature
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.broker.kombu_transport import ALIAS
from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.errors import BrokerUnavailable
from tests.processes import DEMO_SERVER, Worker, environment_of, wait_until
from tests.redis_users import password_of, url_of
from tests.valkey import Valkey

EVERYWHERE = AgentUser("everywhere")
SOON_S = 5.0
"""Far less than the minute that an executor has by default."""


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(agents=(AgentUser("sre", ("desk",)), AgentUser("dev", ("desk", "vault")), EVERYWHERE)) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def worker(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(
        tmp_path_factory.mktemp("worker"),
        {"desk": DEMO_SERVER, "vault": DEMO_SERVER},
        url_of(valkey.port),
    )
    try:
        worker.wait_until_ready()
        with environment_of(worker):
            yield worker
    finally:
        worker.stop()


def app_of(valkey: Valkey, user: str) -> TarsyApp:
    url = url_of(valkey.port, user)
    return build_app({"broker_url": url, "result_backend": url})


@pytest.fixture(scope="module")
def sre(worker: Worker, valkey: Valkey) -> Iterator[TarsyApp]:
    """The application of an agent that may call `desk` only."""
    with closing(app_of(valkey, "sre")) as app:
        yield app


@pytest.fixture
def as_user(valkey: Valkey, request: pytest.FixtureRequest) -> Any:
    def connect(user: str) -> redis.Redis:
        client = redis.Redis.from_url(url_of(valkey.port, user))
        request.addfinalizer(client.close)
        return client

    return connect


def echo(name: str = "desk.echo", **more: Any) -> ToolCall:
    return ToolCall(id="1", name=name, arguments={"text": "hello"}, **more)


EVERYONE = ("agent", "sre", "worker", "beat", "flower", "operator")
FOR_ADMINISTRATORS = ("FLUSHALL", "KEYS *", "CONFIG GET *", "ACL LIST", "SHUTDOWN", "MONITOR", "SAVE", "SELECT 1")
AGENTS_ARE_DENIED = (
    # the results and calls of others
    "SCAN 0",
    "RANDOMKEY",
    "PSUBSCRIBE celery-task-meta-*",
    "PSUBSCRIBE tarsy:replies:*",
    "PUBSUB CHANNELS",
    "CLIENT LIST",
    "HGETALL tarsy:unacked",
    "HKEYS tarsy:unacked",
    "HSCAN tarsy:unacked 0",
    "ZRANGE tarsy:waiting:mcp.desk 0 -1",
    "ZRANGE tarsy:leases 0 -1",
    "LRANGE mcp.desk 0 -1",
    "RPOP mcp.desk",
    "BRPOP mcp.desk 1",
    "GET tarsy:in-flight:w",
    "SUBSCRIBE /0.celery.pidbox",
    "SUBSCRIBE /0.celeryev/task.multi",
    "XRANGE tarsy:audit - +",
    "XRANGE tarsy:audit:agents - +",
    "GET tarsy:poison:x",
    # forging what became of a call, health, numbers, the audit
    "SET celery-task-meta-x 1",
    "DEL celery-task-meta-x",
    "PUBLISH celery-task-meta-x 1",
    "PUBLISH tarsy:replies:x 1",
    "SET tarsy:health:desk 1",
    "HSET tarsy:worker-health:w desk 1",
    "ZADD tarsy:health-workers 1 w",
    "ZADD tarsy:serving:desk 1 w",
    "ZADD tarsy:serving:desk.suspended 1 w",
    "HSET tarsy:call:x mark answered",
    "EXPIRE tarsy:call:x 0",
    "DEL tarsy:call:x",
    "ZADD tarsy:workers 1 w",
    "SET tarsy:check-sent:desk 1",
    "HSET tarsy:metrics:desk calls 1",
    "HSET tarsy:minute:1 calls 1",
    "HSET tarsy:tools:desk listing 1",
    "HSET tarsy:approved-tools:desk echo 1",
    "XADD tarsy:alerts * alert 1",
    "HSET tarsy:alert:desk said healthy",
    "XADD tarsy:audit * entry 1",
    "XDEL tarsy:audit:agents 1-1",
    "XTRIM tarsy:audit:agents MAXLEN 0",
    "DEL tarsy:audit:agents",
    # what belongs to everybody
    "DEL tarsy:unacked",
    "EXPIRE tarsy:unacked 0",
    "ZADD tarsy:leases 1 x",
    "DEL mcp.desk",
    "PUBLISH /0.celery.pidbox 1",
    "PUBLISH /0.celeryev/worker.heartbeat 1",
    "SADD _kombu.binding.celery.pidbox x",
    "PUBLISH /0.tarsy.cancel 1",
    "PUBLISH x 1",
    "GET tarsy:cancelled:x",
    "DEL tarsy:cancelled:x",
    "SCRIPT FLUSH",
    "FUNCTION LOAD x",
)
DENIED = {
    "agent": AGENTS_ARE_DENIED,
    "sre": (
        *AGENTS_ARE_DENIED,
        # the names of others
        "LPUSH mcp.desk x",
        "LPUSH mcp.desk:a:dev x",
        "LPUSH mcp.desk:a:SRE x",
        "LPUSH mcp.desk:a:sre:a:dev x",
        "LPUSH mcp.vault:a:sre x",
        "LREM mcp.desk:a:dev 0 x",
        "LLEN mcp.desk:a:dev",
        "ZADD tarsy:waiting:mcp.desk:a:dev 1 x",
        "SADD tarsy:agents:vault sre",
        "SREM tarsy:agents:desk dev",
        "SPOP tarsy:agents:desk",
        "SMEMBERS tarsy:agents:desk",
        "DEL tarsy:agents:desk",
        "EXPIRE tarsy:agents:desk 0",
        "SET tarsy:agents:desk x",
        "ZADD tarsy:shares:desk -1 sre",
        "ZREM tarsy:shares:desk dev",
        "ZRANGE tarsy:shares:desk 0 -1",
        "LPUSH mcp.vault x",
        "LPUSH mcp.desk.check x",
        "ZADD tarsy:waiting:mcp.vault 1 x",
        "SET tarsy:idempotency:dev:x 1",
        "GET tarsy:idempotency:dev:x",
        "GET tarsy:idempotency::x",
    ),
    "everywhere": ("LPUSH mcp.desk x", "LPUSH mcp.desk:a:sre x", "LPUSH mcp.desk.check x"),
    "worker": (
        "SCAN 0",
        "XRANGE tarsy:audit - +",
        "DEL tarsy:audit",
        "XTRIM tarsy:audit MAXLEN 0",
        "GET tarsy:idempotency:sre:x",
        "SET other:application 1",
        "GET other:application",
    ),
    "beat": (
        "LPUSH mcp.desk x",
        "ZADD tarsy:waiting:mcp.desk 1 x",
        "HGETALL tarsy:unacked",
        "GET celery-task-meta-x",
        "SET tarsy:health:desk 1",
        "XADD tarsy:audit * entry 1",
        "PUBLISH /0.celery.pidbox 1",
        "SUBSCRIBE celery-task-meta-x",
    ),
    "flower": (
        "LPUSH mcp.desk x",
        "LRANGE mcp.desk 0 -1",
        "HGETALL tarsy:unacked",
        "SET celery-task-meta-x 1",
        "PSUBSCRIBE celery-task-meta-*",
        "SUBSCRIBE celery-task-meta-x",
        "SET tarsy:health:desk 1",
        "HSET tarsy:metrics:desk calls 1",
        "XADD tarsy:audit * entry 1",
        "DEL tarsy:audit",
        "SADD _kombu.binding.mcp.desk x",
    ),
    "operator": (
        "XADD tarsy:audit * entry 1",
        "DEL tarsy:audit",
        "XTRIM tarsy:audit MAXLEN 0",
        "SET other:application 1",
    ),
}


@pytest.mark.parametrize("user", EVERYONE)
def test_each_part_is_denied_what_it_does_not_need(as_user: Any, user: str) -> None:
    client = as_user(user)
    allowed: list[str] = []
    for command in (*FOR_ADMINISTRATORS, *DENIED[user]):
        try:
            client.execute_command(*command.split(" "))
        except NoPermissionError:
            continue
        allowed.append(command)
    assert not allowed


@pytest.mark.parametrize("user", ["agent", "sre"])
@pytest.mark.parametrize(
    "script",
    [
        "return redis.call('SET', 'tarsy:health:desk', '1')",
        "return redis.call('SET', 'celery-task-meta-x', '1')",
        "return redis.call('XADD', 'tarsy:audit', '*', 'entry', '1')",
        "return redis.call('HGETALL', 'tarsy:unacked')",
        "return redis.call('KEYS', '*')",
        "return redis.call('DEL', KEYS[1])",
    ],
)
def test_a_script_gives_an_agent_no_right_that_it_has_not(as_user: Any, user: str, script: str) -> None:
    with pytest.raises((NoPermissionError, redis.ResponseError), match=r"(?i)permission|ACL"):
        as_user(user).eval(script, 1, keys.UNACKED)


def test_a_result_can_be_read_by_who_has_its_id(as_user: Any, valkey: Valkey, worker: Worker) -> None:
    with closing(app_of(valkey, "dev")) as app:
        pending = ToolExecutor(timeout_s=20, app=app).submit(echo())
        assert pending.result().outcome is Outcome.OK
    assert as_user("sre").get(keys.result_key(pending.id)) is not None
    assert as_user("sre").get(keys.result_key(pending.id[:-1])) is None


def test_an_agent_calls_the_servers_of_its_user(sre: TarsyApp) -> None:
    with ToolExecutor(["desk"], timeout_s=20, app=sre) as tools:
        assert {tool.server for tool in tools.list_tools()} == {"desk"}
        assert tools.execute(echo()).content == "hello"


def test_a_server_that_an_agent_may_not_use_is_a_failed_server(sre: TarsyApp) -> None:
    with ToolExecutor(["vault", "desk"], timeout_s=20, app=sre) as tools:
        listed = tools.list_tools()
    assert {tool.server for tool in listed} == {"desk"}
    assert listed.failed_servers.keys() == {"vault"}
    assert "does not allow this user" in listed.failed_servers["vault"]


def test_an_agent_hears_at_once_that_it_may_not_call_a_server(sre: TarsyApp, as_user: Any) -> None:
    started = time.monotonic()
    with ToolExecutor(["vault"], app=sre) as tools, pytest.raises(BrokerUnavailable, match=r"not allow .*`vault`"):
        tools.execute(echo("vault.echo"))
    assert time.monotonic() - started < SOON_S
    assert not as_user("admin").exists("mcp.vault", "mcp.vault:a:sre")


def test_a_call_in_the_queue_of_another_server_is_rejected(sre: TarsyApp) -> None:
    for task, arguments in (("tarsy.call_tool", ["vault", "echo", {"text": "x"}]), ("tarsy.list_tools", ["vault"])):
        result = sre.send_task(task, arguments, queue="mcp.desk:a:sre").get(timeout=20)
        code = result["error_code"] if task == "tarsy.call_tool" else result["error"]["code"]
        assert code == ErrorCode.WRONG_QUEUE


VAULT = {
    "task": "tarsy.call_tool",
    "args": ["vault", "echo", {"text": "x"}],
    "kwargs": {},
    "subtask_type": None,
    "immutable": True,
    "options": {"queue": "mcp.vault"},
}
BY_ROUTE = {**VAULT, "options": {"queue": "mcp.desk", "exchange": "", "routing_key": "mcp.vault"}}
BY_ROUTER = {**VAULT, "options": {}}
GROUP = {**VAULT, "task": "celery.group", "kwargs": {"tasks": [VAULT]}, "options": {"queue": "mcp.desk"}}
DESK = ["desk", "echo", {"text": "x"}]


@pytest.mark.parametrize(
    ("task", "arguments", "following"),
    [
        ("tarsy.call_tool", DESK, {"chain": [VAULT]}),
        ("tarsy.call_tool", DESK, {"chain": [BY_ROUTE]}),
        ("tarsy.call_tool", DESK, {"chain": [BY_ROUTER]}),
        ("tarsy.call_tool", DESK, {"chain": [GROUP]}),
        ("tarsy.call_tool", DESK, {"chain": ["tarsy.call_tool"]}),
        ("tarsy.call_tool", DESK, {"link": [VAULT]}),
        ("tarsy.call_tool", DESK, {"link_error": [VAULT]}),
        ("tarsy.call_tool", DESK, {"chord": VAULT}),
        ("tarsy.list_tools", ["desk"], {"chain": [VAULT]}),
        ("celery.group", [[VAULT], None, "g"], {}),
        ("celery.starmap", [VAULT, [["vault", "echo", {}]]], {}),
        ("celery.chain", [[VAULT]], {}),
    ],
)
def test_a_worker_sends_no_call_where_its_agent_may_not(
    worker: Worker, valkey: Valkey, as_user: Any, task: str, arguments: list[Any], following: dict[str, Any]
) -> None:
    admin, task_id = as_user("admin"), str(uuid.uuid4())
    ran = worker.log.count("vault.echo")
    with closing(Celery("sre", broker=url_of(valkey.port, "sre"), set_as_current=False)) as app:
        app.conf.broker_transport = ALIAS
        app.conf.broker_transport_options = {"priority_steps": [0]}
        app.send_task(task, arguments, queue="mcp.desk:a:sre", task_id=task_id, **following)
    answer = wait_until(lambda: admin.get(keys.result_key(task_id)), "it is answered")
    assert json.loads(answer)["result"]["exc_type"] in ("InvalidTaskError", "NotRegistered")
    with closing(app_of(valkey, "dev")) as dev:
        assert ToolExecutor(["vault"], timeout_s=20, app=dev).execute(echo("vault.echo")).content == "hello"
    wait_until(lambda: worker.log.count("vault.echo") > ran, "the last one, by the agent that may")
    assert worker.log.count("vault.echo") == ran + 1


def test_a_chain_of_calls_of_one_server_goes_on(sre: TarsyApp) -> None:
    desk = tool_signature("desk.echo", {"text": "x"}, app=sre)
    assert chain(desk, desk.clone()).delay().get(timeout=20)["content"] == "x"
    both = chord([desk.clone(), desk.clone()], desk.clone()).delay()
    assert both.get(timeout=20)["content"] == "x"


def test_an_agent_cannot_have_a_server_checked(sre: TarsyApp, as_user: Any, worker: Worker) -> None:
    with pytest.raises((NoPermissionError, OperationalError)):
        sre.send_task(CHECK_SERVER, ("desk", 0.0))
    sre.send_task(CHECK_SERVER, ("desk", 0.0), queue="mcp.desk:a:sre")
    worker.wait_for_log("belongs in the queue `mcp.desk.check`")
    assert as_user("admin").get(keys.health_key("desk")) is None


def test_idempotency_keys_are_those_of_the_user(sre: TarsyApp) -> None:
    with ToolExecutor(["desk"], timeout_s=20, agent_id="sre", app=sre) as tools:
        first = tools.submit(echo(idempotency_key="k"))
        assert first.result().outcome is Outcome.OK
        assert tools.submit(echo(idempotency_key="k")).id == first.id
    tools = ToolExecutor(["desk"], timeout_s=20, agent_id="dev", app=sre)
    with pytest.raises(BrokerUnavailable, match="not allow this user to use idempotency keys of the agent `dev`"):
        tools.execute(echo(idempotency_key="k"))


def test_an_agent_cancels_its_call_without_remote_control(sre: TarsyApp, worker: Worker, as_user: Any) -> None:
    with ToolExecutor(["desk"], timeout_s=30, app=sre) as tools:
        pending = tools.submit(ToolCall(id="1", name="desk.wait", arguments={"seconds": 25}))
        marker = keys.call_marker(pending.id)
        wait_until(lambda: as_user("admin").hget(marker, "mark") == b"begun", "the call has begun")
        pending.cancel()
        assert pending.result(timeout_s=SOON_S).outcome is Outcome.CANCELLED


def test_an_agent_with_a_wrong_password_hears_so_at_once(valkey: Valkey, worker: Worker) -> None:
    secret = "a-password-that-is-wrong"
    url = url_of(valkey.port, "sre").replace(password_of("sre"), secret)
    started = time.monotonic()
    with closing(build_app({"broker_url": url, "result_backend": url})) as app:
        tools = ToolExecutor(["desk"], app=app)
        with pytest.raises(BrokerUnavailable, match="refuses this user") as refused:
            tools.execute(echo())
    assert time.monotonic() - started < SOON_S
    assert secret not in str(refused.value)


def test_without_a_user_nobody_gets_in(valkey: Valkey) -> None:
    with redis.Redis(port=valkey.port) as client, pytest.raises((NoPermissionError, AuthenticationError)):
        client.get("tarsy:health:desk")


def test_no_agent_hears_what_the_calls_of_another_do(worker: Worker, sre: TarsyApp, as_user: Any) -> None:
    with ToolExecutor(["desk"], timeout_s=30, agent_id="sre", app=sre) as tools:
        pending = tools.submit("desk.wait", {"seconds": 0.1}, events=True)
        channel, state = keys.events_channel(pending.id, "sre"), keys.call_state_key(pending.id, "sre")
        other, own = as_user("dev"), as_user("sre")
        for command in (("SUBSCRIBE", channel), ("PSUBSCRIBE", f"{keys.EVENTS}*"), ("GET", state), ("MGET", state)):
            with pytest.raises(NoPermissionError):
                other.execute_command(*command)
        for command in (("SET", state, "x"), ("PUBLISH", channel, "x")):
            with pytest.raises(NoPermissionError):
                own.execute_command(*command)
        own.get(state)  # its own it may read
        assert pending.result().outcome is Outcome.OK
