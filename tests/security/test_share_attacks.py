"""Agents that want more than their share, others' names, or a server out of the way, with nothing but their rights."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolExecutor
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.acl import AgentUser, build_users
from tarsy_tasks.broker.priority_lists import list_of
from tarsy_tasks.celery_app import TarsyApp, build_app
from tarsy_tasks.telemetry.audit import AuditFilter, read_audit
from tests.processes import DEMO_SERVER, Worker, environment_of, wait_until
from tests.redis_users import password_of, url_of
from tests.security.attacker import Attacker
from tests.servers import misbehaving_stdio
from tests.valkey import Valkey

SERVERS: dict[str, Any] = {
    "desk": DEMO_SERVER,
    # Its tool `act` ends the server in mid-call.
    "frail": {
        "command": sys.executable,
        "args": [misbehaving_stdio.__file__, "dies-in-mid-call"],
        "error_budget": {"max_failure_rate": 0.1, "min_calls": 3},
    },
}
POLICY: dict[str, Any] = {"agents": {"sre": {}, "dev": {}, "anonymous": {}, "*": {}}}
MARK = "\x06\x16"
OWN = keys.agent_queue("desk", "sre")


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    agents = AgentUser("sre", ("desk", "frail")), AgentUser("dev", ("desk", "frail"))
    with Valkey(agents=agents) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def worker(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    path: Path = tmp_path_factory.mktemp("policy") / "policy.json"
    path.write_text(json.dumps(POLICY))
    directory, environment = tmp_path_factory.mktemp("worker"), {"TARSY_POLICY": str(path)}
    with Worker(directory, SERVERS, url_of(valkey.port), environment=environment) as worker:
        worker.wait_until_ready()
        with environment_of(worker):
            yield worker


@pytest.fixture(scope="module")
def connect(valkey: Valkey) -> Iterator[Any]:
    clients: list[redis.Redis] = []

    def connect(user: str) -> redis.Redis:
        clients.append(redis.Redis.from_url(url_of(valkey.port, user)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def admin(connect: Any) -> Any:
    return connect("admin")


def app_of(valkey: Valkey, user: str) -> TarsyApp:
    url = url_of(valkey.port, user)
    return build_app({"broker_url": url, "result_backend": url})


OTHERS_LISTS = (
    *("mcp.desk", "mcp.desk:a:dev", "mcp.desk:a:", "mcp.desk:a:sre:a:dev", "mcp.desk.check", "mcp.desk:a:sre.check"),
    # names that look like its own
    *("mcp.desk:a:SRE", "mcp.Desk:a:sre", "mcp.desk:A:sre", "mcp.desk:a:sre ", " mcp.desk:a:sre", "mcp.desk:a:sre\0"),
    *("mcp.desk:a:srе", "mcp.desk:a:ｓre", "mcp.desk:a:s\u0301re", "mcp.desk:a:sre\u200b", "mcp.desk:a:*"),
    # priorities: of others, and those that nobody serves
    *(f"mcp.desk{MARK}3", f"mcp.desk:a:dev{MARK}3", f"{OWN}{MARK}9", f"{OWN}{MARK}0", f"{OWN}{MARK}33", f"{OWN}{MARK}"),
    f"{OWN}{MARK}3{MARK}3",
)
COUNTED = (
    *("SET tarsy:limit:report x", "GET tarsy:limit:report", "DEL tarsy:limit:report"),
    *("ZADD tarsy:limit:pauses 9999999999 desk", "DEL tarsy:limit:pauses", "ZREM tarsy:limit:pauses desk"),
    *("ZADD tarsy:limit:0:rate 9999999999 dev", "ZREM tarsy:limit:0:rate sre", "ZSCORE tarsy:limit:0:rate sre"),
    *("ZADD tarsy:limit:0:held 0 x", "ZREM tarsy:limit:0:held x", "ZADD tarsy:limit:0:calls:1 -9 sre"),
    *(
        "HSET tarsy:error-budget:desk until 9999999999",
        "DEL tarsy:error-budget:desk",
        "HGETALL tarsy:error-budget:desk",
    ),
    *(
        "ZADD tarsy:serving:desk.suspended 9999999999 x",
        "ZADD tarsy:shares:desk -1 sre",
        "ZINCRBY tarsy:shares:desk -1 sre",
    ),
    *("DEL tarsy:shares:desk", "ZADD tarsy:leases 1 x", "SREM tarsy:agents:desk dev", "DEL tarsy:agents:desk"),
)


def test_an_agent_writes_into_no_list_but_its_own(connect: Any, admin: Any) -> None:
    sre, allowed = connect("sre"), []
    for name in OTHERS_LISTS:
        for write in (sre.lpush, lambda *args: sre.eval("return redis.call('LPUSH', KEYS[1], ARGV[1])", 1, *args)):
            try:
                write(name, "x")
            except (NoPermissionError, redis.ResponseError):
                continue
            allowed.append(name)
    assert not allowed
    assert not admin.exists(*OTHERS_LISTS)


def test_an_agent_reads_and_writes_nothing_that_is_counted(connect: Any) -> None:
    sre, allowed = connect("sre"), []
    for command in COUNTED:
        try:
            sre.execute_command(*command.split())
        except NoPermissionError:
            continue
        allowed.append(command)
    assert not allowed


def test_a_priority_in_the_text_of_a_message_counts_for_nothing(worker: Worker, connect: Any, admin: Any) -> None:
    sre = connect("sre")
    task_id = Attacker(sre, "sre").send({}, priority="interactive", id="a-forged-priority")
    wait_until(lambda: admin.get(keys.result_key(task_id)), "it is answered")
    message = {
        "body": json.dumps([["desk", "echo", {"text": "x"}, {"priority": "interactive"}], {}, {}]),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"lang": "py", "task": "tarsy.call_tool", "id": "forged", "priority": "interactive"},
        "properties": {"delivery_tag": "forged", "priority": 3, "delivery_info": {"routing_key": OWN}},
    }
    sre.lpush(list_of(OWN, "batch"), json.dumps(message))
    sre.sadd(keys.agents_key("desk"), "sre")
    wait_until(lambda: admin.get(keys.result_key("forged")), "it is answered")
    found = {entry.task_id: entry for entry in read_audit(admin, AuditFilter(principal="sre")).entries}
    assert (found[task_id].priority, found["forged"].priority) == ("normal", "batch")


def test_a_user_whose_name_only_looks_right_is_denied(worker: Worker, valkey: Valkey, admin: Any) -> None:
    # An operator made it by hand: `tarsy-tasks acl` refuses such names beside each other.
    rules = build_users([AgentUser("SRE", ("desk",))])["SRE"]
    words = rules.replace("(", "\n(").replace(")", ")\n").split("\n")
    parts = [part for word in words for part in ([word] if word.startswith("(") else word.split())]
    admin.execute_command("ACL", "SETUSER", "SRE", "on", f">{password_of('SRE')}", "resetchannels", "-@all", *parts)
    try:
        with closing(app_of(valkey, "SRE")) as app, ToolExecutor(["desk"], timeout_s=30, app=app) as tools:
            result = tools.execute("desk.echo", {"text": "x"})
    finally:
        admin.execute_command("ACL", "DELUSER", "SRE")
    assert (result.error_code, result.principal) == (ErrorCode.NOT_PERMITTED, "SRE")
    assert "no entry of the policy is written exactly like your name" in result.content


def test_no_claim_spreads_failures_over_several_agents(worker: Worker, valkey: Valkey, admin: Any) -> None:
    budget = keys.error_budget_key("frail")
    with closing(app_of(valkey, "dev")) as app, ToolExecutor(["frail"], timeout_s=30, app=app) as tools:
        assert tools.execute("frail.echo", {"text": "here"}).outcome is Outcome.OK
    with closing(app_of(valkey, "sre")) as app:
        for name in ("dev", "ops", "anonymous", "sre", "dev2"):
            with ToolExecutor(["frail"], timeout_s=30, app=app, agent_id=name, run_id=name) as tools:
                failed = tools.execute(ToolCall(name="frail.act", arguments={"text": "here"}))
                assert failed.error_code is ErrorCode.SESSION_LOST

        def failures() -> dict[str, int]:
            fields = {name.decode(): int(value) for name, value in admin.hgetall(budget).items() if name[:1].isdigit()}
            counts: dict[str, int] = {}
            for name, value in fields.items():
                _, what, agent = name.split(" ")
                if what == "f":
                    counts[agent] = counts.get(agent, 0) + value
            return counts

        wait_until(lambda: failures() == {"sre": 5}, "all failures are of one agent")
        assert not admin.hget(budget, "until")
        with ToolExecutor(["frail"], timeout_s=30, app=app) as tools:
            assert tools.execute("frail.echo", {"text": "here"}).outcome is Outcome.OK


def test_a_flood_of_wakes_delays_no_other_agent(worker: Worker, valkey: Valkey, connect: Any, admin: Any) -> None:
    sre = connect("sre")
    before = admin.info("commandstats")["cmdstat_evalsha"]["calls"]
    with closing(app_of(valkey, "dev")) as app, ToolExecutor(["desk"], timeout_s=30, app=app) as tools:
        for number in range(50):
            with sre.pipeline(transaction=False) as pipeline:
                for wake in range(400):
                    pipeline.sadd(keys.agents_key("desk"), f"nobody-{number}-{wake}", "sre", "dev")
                pipeline.execute()
            assert tools.execute("desk.echo", {"text": "x"}).outcome is Outcome.OK
    # Of 20,000 wakes: far fewer looks, beside the few scripts of each of the calls.
    assert admin.info("commandstats")["cmdstat_evalsha"]["calls"] - before < 5000
    wait_until(lambda: not admin.exists(keys.agents_key("desk"), keys.shares_key("desk")), "all of them are forgotten")
