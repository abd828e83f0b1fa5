"""What an agent can do to the calls of another one with its own user of Redis, even if it knows their ids: an id
is a key to a result, and to nothing else."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import NoPermissionError

from tarsy_tasks import ErrorCode, Outcome, ToolExecutor
from tarsy_tasks.broker import keys, parked_calls
from tarsy_tasks.broker.acl import AgentUser
from tarsy_tasks.broker.parked_calls import Decided, ParkedCallView
from tarsy_tasks.broker.task_names import REQUEST
from tarsy_tasks.celery_app import TarsyApp
from tarsy_tasks.methods import CLOSE_SESSION, METHODS
from tests.faults.ledger import Ledger, witness
from tests.processes import Worker, environment_of, wait_until
from tests.redis_users import url_of
from tests.security.attacker import Attacker
from tests.security.fleet import agents_apps
from tests.valkey import Valkey

TIMEOUT_S = 60
SETTINGS = 'broker_transport_options = {"visibility_timeout": 2}\n'
POLICY: dict[str, Any] = {
    "agents": {
        "sre": {},
        "dev": {"allow": ["desk.*"], "deny": ["desk.renew", "desk.*/*", "vault.*"]},
        "*": {"allow": []},
    }
}
Connect = Callable[[str], Any]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("ledger") / "ledger")


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(agents=(AgentUser("sre", ("desk", "vault")), AgentUser("dev", ("desk",)))) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def worker(valkey: Valkey, ledger: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    path: Path = tmp_path_factory.mktemp("policy") / "policy.json"
    path.write_text(json.dumps(POLICY))
    servers = {
        "desk": witness(ledger, approval={"tools": {"add": "always"}}, cache={"tools": {"look": 600}}),
        "vault": witness(ledger),
    }
    directory, environment = tmp_path_factory.mktemp("worker"), {"TARSY_POLICY": str(path)}
    with Worker(directory, servers, url_of(valkey.port), environment=environment, settings=SETTINGS) as worker:
        worker.wait_until_ready()
        with environment_of(worker):
            yield worker


@pytest.fixture(scope="module")
def apps(worker: Worker, valkey: Valkey) -> Iterator[dict[str, TarsyApp]]:
    with agents_apps(valkey, ("sre", "dev")) as apps:
        yield apps


@pytest.fixture(scope="module")
def connect(valkey: Valkey) -> Iterator[Connect]:
    clients: list[Any] = []

    def connect(user: str) -> Any:
        clients.append(redis.Redis.from_url(url_of(valkey.port, user)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def tools_of(apps: dict[str, TarsyApp], agent: str, **options: Any) -> ToolExecutor:
    servers = ["desk", "vault"] if agent == "sre" else ["desk"]
    return ToolExecutor(servers, timeout_s=TIMEOUT_S, app=apps[agent], **options)


def wait_for_parked(admin: Any, task_id: str, agent: str) -> ParkedCallView:
    def find() -> ParkedCallView | None:
        found, _ = parked_calls.load_waiting(admin, 100)
        return next((each for each in found if each.id == task_id and each.about.get("principal") == agent), None)

    return wait_until(find, f"{task_id} of {agent} is parked", TIMEOUT_S)


def test_an_approval_counts_for_who_asked(
    worker: Worker, apps: dict[str, TarsyApp], connect: Connect, ledger: Ledger
) -> None:
    admin, dev = connect("admin"), Attacker(connect("dev"), "dev")
    arguments = ["desk", "add", {"key": "approved"}, {"park": True, "timeout_s": TIMEOUT_S}]
    with tools_of(apps, "sre", park=True) as tools:
        pending = tools.submit("desk.add", {"key": "approved"})
        seen = wait_for_parked(admin, pending.id, "sre")
        dev.send({}, args=arguments, id=pending.id)
        worker.wait_for_log(f"a message from {keys.agent_queue('desk', 'dev')} was refused: it has the id of a call")
        assert wait_for_parked(admin, pending.id, "sre") == seen
        assert parked_calls.decide(admin, seen, is_approved=True, by="ann") is Decided.APPROVED
        assert pending.result().outcome is Outcome.OK
    assert ledger.runs("add")["approved"] == 1


def test_an_agent_does_not_approve_its_own_call(apps: dict[str, TarsyApp], connect: Connect, ledger: Ledger) -> None:
    admin, dev = connect("admin"), connect("dev")
    with tools_of(apps, "dev", park=True) as tools:
        pending = tools.submit("desk.add", {"key": "own"})
        view = wait_for_parked(admin, pending.id, "dev")
        record, place = keys.parked_key(pending.id), f"{keys.agent_queue('desk', 'dev')}\n{pending.id}"
        for act in (
            lambda: dev.hset(record, "decision", "approved"),
            lambda: dev.zrem(keys.PARKED, place),
            lambda: dev.zadd(keys.PARKED, {place: 0}),
            lambda: dev.delete(record),
            lambda: parked_calls.decide(dev, view, is_approved=True, by="somebody"),
            lambda: dev.publish("/0.celery.pidbox", "{}"),
        ):
            with pytest.raises((NoPermissionError, redis.ResponseError), match=r"(?i)permission|ACL"):
                act()
        # Back into its queue by itself: it waits again, for the same people.
        dev.lpush(keys.agent_queue("desk", "dev"), (dev.hget(keys.UNACKED, pending.id) or b"").split(b"\n", 2)[2])
        dev.sadd(keys.agents_key("desk"), "dev")
        wait_until(lambda: not admin.llen(keys.agent_queue("desk", "dev")), "it is taken", TIMEOUT_S)
        wait_until(lambda: not admin.zcard(keys.LEASES), "and given back", TIMEOUT_S)
        for name in ("dev", " DEV"):
            assert parked_calls.decide(admin, view, is_approved=True, by=name) is Decided.OWN
        assert parked_calls.decide(admin, view, is_approved=False, by="ann") is Decided.DENIED
        assert pending.result().error_code is ErrorCode.APPROVAL_DENIED
    assert ledger.runs("add")["own"] == 0


def test_an_operator_learns_that_a_call_was_replaced(
    apps: dict[str, TarsyApp], connect: Connect, ledger: Ledger
) -> None:
    admin, dev = connect("admin"), connect("dev")
    with tools_of(apps, "dev", park=True) as tools:
        pending = tools.submit("desk.add", {"key": "shown"})
        view = wait_for_parked(admin, pending.id, "dev")
        forged = (dev.hget(keys.UNACKED, pending.id) or b"") + b" "
        dev.hdel(keys.UNACKED, pending.id)
        dev.hsetnx(keys.UNACKED, pending.id, forged)
        assert parked_calls.decide(admin, view, is_approved=True, by="ann") is Decided.GONE
        wait_until(lambda: not admin.exists(keys.parked_key(pending.id)), "nothing is kept of it", TIMEOUT_S)
        assert parked_calls.decide(admin, view, is_approved=True, by="ann") is Decided.UNKNOWN
        pending.cancel()
        assert pending.result().outcome is Outcome.CANCELLED
    assert ledger.runs("add")["shown"] == 0


def test_an_approval_is_used_once(apps: dict[str, TarsyApp], connect: Connect, ledger: Ledger) -> None:
    admin, dev = connect("admin"), connect("dev")
    with tools_of(apps, "dev", park=True) as tools:
        pending = tools.submit("desk.add", {"key": "once"})
        view = wait_for_parked(admin, pending.id, "dev")
        message = (dev.hget(keys.UNACKED, pending.id) or b"").split(b"\n", 2)[2]
        assert parked_calls.decide(admin, view, is_approved=True, by="ann") is Decided.APPROVED
        assert pending.result().outcome is Outcome.OK
        assert admin.ttl(keys.call_marker(pending.id)) > admin.ttl(keys.parked_key(pending.id))
        dev.lpush(keys.agent_queue("desk", "dev"), message)
        assert tools.execute("desk.look", {"key": "behind it"}).outcome is Outcome.OK
        for odd in (
            rb'"\\ud83d"',
            rb'"\\\\ud83d", "z": "\\ud83d"',
            rb'"\\\\\\ud83d\\\\ud83d\\udc00"',
            b"NaN",
            b"-1e999",
        ):
            dev.lpush(
                keys.agent_queue("desk", "dev"), message.replace(b'"headers": {', b'"headers": {"y": ' + odd + b", ", 1)
            )
            assert tools.execute("desk.look", {"key": odd.decode()}).outcome is Outcome.OK
        # Celery also takes an id from the body.
        sent = json.loads(message)
        [args, *_] = json.loads(base64.b64decode(sent["body"]))
        task = {"task": "tarsy.call_tool", "id": pending.id, "args": args, "kwargs": {}}
        plain = {**sent, "body": json.dumps(task), "properties": {**sent["properties"], "body_encoding": None}}
        for number, headers in enumerate(({}, {"task": "tarsy.call_tool"})):
            old = {**plain, "headers": headers, "properties": {**plain["properties"], "delivery_tag": f"old-{number}"}}
            dev.lpush(keys.agent_queue("desk", "dev"), json.dumps(old))
            assert tools.execute("desk.look", {"key": f"old {number}"}).outcome is Outcome.OK
        wait_until(lambda: not admin.zcard(keys.LEASES), "all were refused", TIMEOUT_S)
    assert ledger.runs("add")["once"] == 1


def test_scripts_of_an_agent_change_no_others(apps: dict[str, TarsyApp], connect: Connect, ledger: Ledger) -> None:
    changed = "cjson.decode_max_depth(1) cjson.decode_invalid_numbers(false) cjson.encode_number_precision(1)"
    connect("dev").eval(changed, 0)
    with tools_of(apps, "sre") as tools:
        assert tools.execute("vault.add", {"key": "whole"}).outcome is Outcome.OK
    assert ledger.runs("add")["whole"] == 1


def test_an_id_is_no_way_into_the_queue_of_another(apps: dict[str, TarsyApp], connect: Connect, ledger: Ledger) -> None:
    admin, dev = connect("admin"), connect("dev")
    sent = apps["sre"].send_task(
        "tarsy.call_tool", ["vault", "add", {"key": "mine"}, {}], queue=keys.agent_queue("vault", "sre"), countdown=60
    )
    delayed = f"{keys.agent_queue('vault', 'sre')}\n{sent.id}"
    wait_until(lambda: admin.zscore(keys.DELAYED, delayed), "it waits for its time", TIMEOUT_S)
    _, _, message = (dev.hget(keys.UNACKED, sent.id) or b"").split(b"\n", 2)
    forged = json.loads(message)
    forged["body"] = json.dumps([["vault", "add", {"key": "forged"}, {}], {}, {}])
    forged["headers"].pop("eta", None)
    forged["content-encoding"], forged["properties"]["body_encoding"] = "utf-8", None
    dev.hdel(keys.UNACKED, sent.id)
    dev.hsetnx(keys.UNACKED, sent.id, f"{keys.agent_queue('vault', 'sre')}\n\n{json.dumps(forged)}")
    admin.zadd(keys.DELAYED, {delayed: 0}, xx=True)
    wait_until(lambda: not admin.zscore(keys.DELAYED, delayed), "its time has come", TIMEOUT_S)
    with tools_of(apps, "sre") as tools:
        assert tools.execute("vault.look", {"key": "behind it"}).outcome is Outcome.OK
    assert ledger.runs("add")["forged"] == 0


def test_nobody_hears_the_answers_of_another_by_an_id(apps: dict[str, TarsyApp], connect: Connect) -> None:
    with tools_of(apps, "sre") as tools:
        handed_on = tools.submit("vault.look", {"key": "handed on"})
        assert handed_on.result().outcome is Outcome.OK
    for agent in ("sre", "", "*"):
        channel = keys.reply_channel(handed_on.id, agent)
        with pytest.raises(NoPermissionError):
            connect("dev").execute_command("SUBSCRIBE", channel)


def test_runs_of_one_name_are_apart(apps: dict[str, TarsyApp]) -> None:
    def run_of(agent: str) -> ToolExecutor:
        return tools_of(apps, agent, session="run", run_id="nightly")

    def count(tools: ToolExecutor) -> str:
        return tools.execute("desk.count", {}).content

    with run_of("dev") as squatter:
        assert count(squatter) == "1"
        with run_of("sre") as tools:
            assert [count(tools) for _ in range(3)] == ["1", "2", "3"]
            assert count(squatter) == "2"
            with run_of("dev") as closing_one:
                assert count(closing_one) == "3"
            squatter.close()
            assert count(tools) == "4"


@pytest.mark.parametrize("method", sorted({*METHODS, CLOSE_SESSION}))
@pytest.mark.parametrize("server", ["desk", "vault"])
@pytest.mark.parametrize("more", [{}, {"session": {"run": "nightly", "executor": "e"}}, {"park": True}])
def test_no_request_gets_around_the_policy(
    apps: dict[str, TarsyApp], server: str, method: str, more: dict[str, Any]
) -> None:
    arguments = {"uri": "x"} if method.endswith("read") else {}
    sent = (
        apps["dev"]
        .send_task(REQUEST, [server, method, arguments, more], queue=keys.agent_queue("desk", "dev"))
        .get(timeout=TIMEOUT_S)
    )
    if server == "vault":
        assert sent["error_code"] in (ErrorCode.WRONG_QUEUE, ErrorCode.INVALID_MESSAGE)
    elif method == CLOSE_SESSION:
        assert sent["error_code"] == (None if "session" in more else ErrorCode.INVALID_MESSAGE)
    else:
        assert sent["error_code"] == ErrorCode.NOT_PERMITTED


@pytest.mark.parametrize("more", [{}, {"session": {"run": "r", "executor": "e"}}, {"park": True}, {"no_cache": True}])
def test_no_form_of_a_call_gets_around_the_policy(
    apps: dict[str, TarsyApp], ledger: Ledger, more: dict[str, Any]
) -> None:
    for server, tool, code in (("desk", "renew", ErrorCode.NOT_PERMITTED), ("vault", "look", ErrorCode.WRONG_QUEUE)):
        sent = apps["dev"].send_task(
            "tarsy.call_tool", [server, tool, {"key": "denied"}, more], queue=keys.agent_queue("desk", "dev")
        )
        assert sent.get(timeout=TIMEOUT_S)["error_code"] == code
    assert ledger.runs()["denied"] == 0


def test_a_kept_answer_passes_the_policy_of_who_asks(apps: dict[str, TarsyApp], worker: Worker) -> None:
    for _ in range(2):
        with tools_of(apps, "sre") as tools:
            assert tools.execute("desk.look", {"key": "kept"}).content == "kept"
    sent = apps["agent"].send_task("tarsy.call_tool", ["desk", "look", {"key": "kept"}, {}], queue="mcp.desk")
    assert sent.get(timeout=TIMEOUT_S)["error_code"] == ErrorCode.NOT_PERMITTED


def test_names_that_look_like_those_of_queues_hold_up_nobody(
    apps: dict[str, TarsyApp], connect: Connect, worker: Worker
) -> None:
    dev, own = connect("dev"), keys.agent_queue("desk", "dev")
    names = [f"{keys.agent_queue('desk', 'sre')}{keys.WORKER_MARK}gone{n}" for n in range(2000)]
    names += [f"{keys.WORKER_MARK}{n}{keys.WORKER_MARK * 300}" for n in range(100)]
    names += [f"{own}{keys.WORKER_MARK}{'x' * 100_000}{n}" for n in range(20)]
    names += ["", "\n", f"{keys.WORKER_MARK}\n{keys.WORKER_MARK}", f"{own}\n{keys.WORKER_MARK}x"]
    dev.zadd(keys.QUEUES, dict.fromkeys(names, 1))
    dev.sadd(keys.agents_key("desk"), *(f"sre{keys.WORKER_MARK}{n}" for n in range(1000)), "sre:w:", ":w:", "\n")
    with tools_of(apps, "sre", session="run") as tools:
        assert [tools.execute("desk.count", {}).content for _ in range(2)] == ["1", "2"]
    wait_until(lambda: connect("admin").zcard(keys.QUEUES) < 100, "the names are removed", TIMEOUT_S)


def test_an_agent_ends_no_worker_by_garbage_in_its_queues(
    apps: dict[str, TarsyApp], connect: Connect, worker: Worker
) -> None:
    """In what calls say of sessions, approvals, events and large results."""
    dev = Attacker(connect("dev"), "dev")
    odd: list[Any] = [None, 1, -1, "", "x" * 300, "\ud800", [], {}, {"run": "r"}, {"run": "", "executor": ""}, True]
    for value in odd:
        for name in ("session", "park", "events", "no_cache", "reads_results", "timeout_s", "deadline", "sent_at"):
            for tool in ("add", "count"):
                dev.send({}, args=["desk", tool, {"key": "odd"}, {name: value, "deadline": 1} | {name: value}])
        dev.send({}, task=REQUEST, args=["desk", CLOSE_SESSION, value, {"session": value}])
        dev.send({}, task=REQUEST, args=["desk", "session/close", {}, {"session": {"run": value, "executor": value}}])
    wait_until(lambda: not connect("admin").llen(keys.agent_queue("desk", "dev")), "all are taken", TIMEOUT_S)
    with tools_of(apps, "sre") as tools:
        assert tools.execute("desk.look", {"key": "after it"}).content == "after it"
    assert worker.process.poll() is None
