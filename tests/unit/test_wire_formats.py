"""What processes exchange through Redis has the shape that deployed versions read and write.

Every expectation here is a literal, names of keys included: workers, agents and dashboards of different versions share
one Redis, with calls in flight. So a literal may gain a field that others ignore; it is never changed to make a test
pass.
"""

import asyncio
import base64
import json
import re
from typing import Any

import pytest

from tarsy_tasks import ToolCall, ToolDefinition, ToolExecutor, ToolResult
from tarsy_tasks.agent.results import read_listing
from tarsy_tasks.broker import dead_letters
from tarsy_tasks.broker.async_deliveries import AsyncDeliveries
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.errors import CallError, PoisonMessage
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.telemetry.audit import AuditEntry, Step, StepName, read_audit
from tarsy_tasks.telemetry.health_records import HealthRecord, HealthStatus, read_health
from tarsy_tasks.telemetry.history import build_count
from tarsy_tasks.worker.reporting.alerts import AlertFeed, build_observation
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics

pytestmark = pytest.mark.keeps_keys
ID = "c84b39f7-ea07-4566-b81c-6795b506cdcf"
MESSAGE = (
    '{"body": "W1siZGVzayIsICJvcmRlciIsICJ7XCJpdGVtXCI6IFwibGFtcFwiLCBcIm5cIjogMn0iLCB7InYiOiAxLCAiY2FsbF9pZCI6ICJjMS'
    "IsICJuYW1lIjogImRlc2sub3JkZXIiLCAiYWdlbnRfaWQiOiAic3JlIiwgInJ1bl9pZCI6ICJyNyIsICJkZWFkbGluZSI6IDE3OTUzNDg2NDEuOD"
    "A5MDQxLCAic2VudF9hdCI6IDE3OTUzNDg1ODMuMDE4MTIxfV0sIHt9LCB7ImNhbGxiYWNrcyI6IG51bGwsICJlcnJiYWNrcyI6IG51bGwsICJjaG"
    'FpbiI6IG51bGwsICJjaG9yZCI6IG51bGx9XQ==", "content-encoding": "utf-8", "content-type": "application/json", "heade'
    'rs": {"lang": "py", "task": "tarsy.call_tool", "id": "c84b39f7-ea07-4566-b81c-6795b506cdcf", "shadow": null, "et'
    'a": null, "expires": null, "group": null, "group_index": null, "retries": 0, "timelimit": [null, null], "root_id'
    '": "c84b39f7-ea07-4566-b81c-6795b506cdcf", "parent_id": null, "argsrepr": "desk.order", "kwargsrepr": "{}", "ori'
    'gin": "gen6286@vm", "ignore_result": false, "replaced_task_nesting": 0, "stamped_headers": null, "stamps": {}, "'
    'garbage_at": 1795349242.8090372}, "properties": {"correlation_id": "c84b39f7-ea07-4566-b81c-6795b506cdcf", "repl'
    'y_to": "", "delivery_mode": 2, "delivery_info": {"exchange": "", "routing_key": "mcp.desk"}, "priority": 0, "bod'
    'y_encoding": "base64", "delivery_tag": "c84b39f7-ea07-4566-b81c-6795b506cdcf"}}'
)
"""As an executor published it."""
BODY = [
    [
        "desk",
        "order",
        '{"item": "lamp", "n": 2}',
        {
            "v": 1,
            "call_id": "c1",
            "name": "desk.order",
            "agent_id": "sre",
            "run_id": "r7",
            "deadline": 1795348641.809041,
            "sent_at": 1795348583.018121,
        },
    ],
    {},
    {"callbacks": None, "errbacks": None, "chain": None, "chord": None},
]
RESULT = (
    '{"status": "SUCCESS", "result": {"v": 1, "call_id": "c1", "name": "desk.order", "content": "1 lamp", "structured'
    '": {"n": 1}, "attachments": [], "outcome": "ok", "error_code": null, "repairs": ["n: text to number"], "attempts'
    '": 1, "duration_s": 0.25, "server": "desk", "tool": "order", "content_types": ["text"]}, "traceback": null, '
    '"children": null, "date_done": "DATE", "task_id": "TASK"}'
)
OLD_RESULT = (
    '{"status": "SUCCESS", "result": {"v": 1, "call_id": "c1", "name": "desk.order", "content": "1 lamp", "structured'
    '": {"n": 1}, "attachments": [{"type": "image", "mime_type": "image/png", "uri": null, "size_bytes": 3, "data": '
    '"AAAA", "text": null}], "outcome": "ok", "error_code": null, "repairs": [], "attempts": 1, "duration_s": 0.25}, '
    '"traceback": null, "children": null, "date_done": "2026-11-22T11:00:00.5+00:00", "task_id": "TASK"}'
)
"""As the first versions store it."""
TOOL = (
    '{"name":"desk.order","server":"desk","tool":"order","description":"Orders.","input_schema":{"type":"object"},'
    '"annotations":{"readOnlyHint":true}}'
)
DECORATED_TOOL = (
    TOOL[:-1] + ',"title":"Order","output_schema":{"type":"object"},"icons":[{"src":"https://h/a.png"}],'
    '"meta":{"a":1},"execution":{"taskSupport":"optional"}}'
)
FAILURE = (
    '{"status": "FAILURE", "result": {"exc_type": "PoisonMessage", "exc_message": ["TASK"], "exc_module": '
    '"tarsy_tasks.errors"}, "traceback": null, "children": null, "date_done": "DATE", "task_id": "TASK"}'
)
AUDIT_ENTRY = (
    '{"v":1,"at":1795348584.5,"call_id":"c1","task_id":"t1","agent_id":"sre","run_id":"r7","server":"desk",'
    '"tool":"order","arguments":"{\\"item\\":\\"lamp\\"}","arguments_digest":"d1","repairs":["n: text to number"],'
    '"outcome":"tool_error","error_code":"TOOL_ERROR","error":"No lamp.","attempts":1,"duration_s":0.25,'
    '"worker":"w0@host","bytes":311,"steps":[{"name":"queued","at":1.0},{"name":"picked_up","at":2.0},'
    '{"name":"sent","at":3.0},{"name":"recovered","at":4.0},{"name":"answered","at":5.0}]}'
)
HEALTH = (
    '{"v":1,"server":"desk","healthy":false,"error":"It does not answer.","error_code":null,"target":null,'
    '"is_busy":false,"is_restarting":false,"is_idle":false,"longer_attempt_s":null,"latency_s":0.5,"queue_wait_s":null,"tool_count":3,"checked_at":1795348584.5,"since":1795348500.0,'
    '"recent_calls":4,"failed_calls":1,"worker":"w0@host","transport":"stdio","protocol":"2026-07-28","era":"2026",'
    '"server_info":"desk 1.0","sessions_opened":2,"is_held":false,"max_concurrency":8,'
    '"configuration":"0123456789ab","configuration_error":null,'
    '"state":null,"connected_since":null,"capabilities":[],"last_error":null,"in_flight":0,"sessions_replaced":0,'
    '"tools_digest":null,"lists_to_all":false}'
)


@pytest.fixture
def deliveries(client: Any) -> Deliveries:
    exchange = RedisExchange(client.connection_pool)
    return Deliveries(lambda: exchange)


def blank(text: bytes, task_id: str) -> str:
    return re.sub(r'"date_done": "[^"]+"', '"date_done": "DATE"', text.decode()).replace(task_id, "TASK")


def test_a_call_is_published_in_this_shape(client: Any, app: Any) -> None:
    with ToolExecutor(servers=["desk"], agent_id="sre", run_id="r7", timeout_s=60, app=app) as tools:
        call = tools.submit(ToolCall(id="c1", name="desk.order", arguments={"item": "lamp", "n": 2}))
    [text] = client.lrange("mcp.desk", 0, -1)
    message = json.loads(text)
    body = json.loads(base64.b64decode(message.pop("body")))
    expected = json.loads(MESSAGE.replace(ID, call.id))
    assert json.loads(base64.b64decode(expected.pop("body"))) == BODY
    for name in ("deadline", "sent_at"):
        assert isinstance(body[0][3][name], float)
        body[0][3][name] = BODY[0][3][name]
    assert body[0][3].pop("reads_results") is True
    assert body == BODY
    garbage_at = message["headers"]["garbage_at"]
    assert isinstance(garbage_at, float)
    message["headers"] |= {"origin": "gen6286@vm", "garbage_at": expected["headers"]["garbage_at"]}
    assert message == expected
    assert list(message) == list(expected)
    assert client.hgetall("tarsy:unacked") == {call.id.encode(): f"mcp.desk\n{garbage_at:.3f}\n".encode() + text}
    assert client.zrange("tarsy:waiting:mcp.desk", 0, -1) == [call.id.encode()]
    assert client.zrange("tarsy:queues", 0, -1) == [b"mcp.desk"]


def test_a_result_is_stored_in_this_shape(client: Any, app: Any) -> None:
    result = ToolResult(
        call_id="c1",
        name="desk.order",
        content="1 lamp",
        structured={"n": 1},
        repairs=("n: text to number",),
        attempts=1,
        duration_s=0.25,
        server="desk",
        tool="order",
        content_types=("text",),
    )
    app.backend.mark_as_done(ID, result)
    assert blank(client.get(f"celery-task-meta-{ID}"), ID) == RESULT
    assert ToolResult.model_validate(json.loads(RESULT)["result"]) == result


def test_a_result_of_an_earlier_version_is_read_in_full(client: Any, app: Any) -> None:
    with ToolExecutor(servers=["desk"], timeout_s=60, app=app) as tools:
        call = tools.submit(ToolCall(id="c2", name="desk__order"))
        answer = OLD_RESULT.replace("TASK", call.id)
        client.set(f"celery-task-meta-{call.id}", answer)
        client.publish(f"tarsy:replies:{call.id[:19]}", answer)
        result = call.result(timeout_s=20)
    assert (result.call_id, result.name, result.task_id) == ("c2", "desk.order", call.id)
    assert (result.server, result.tool, result.answered_at) == ("desk", "order", 1795345200.5)
    assert (result.content_types, result.notes, result.attachments[0].title) == ((), (), None)
    dumped = {**json.loads(OLD_RESULT)["result"], "call_id": "c2", "server": "desk", "tool": "order"}
    assert json.loads(result.model_dump_json()) == {**dumped, "task_id": call.id, "answered_at": 1795345200.5}


@pytest.mark.parametrize(("text", "title"), [(TOOL, ""), (DECORATED_TOOL, "Order")])
def test_a_definition_has_this_shape_and_one_fingerprint(text: str, title: str) -> None:
    tool = ToolDefinition.model_validate_json(text)
    assert (tool.model_dump_json(), tool.title) == (text, title)
    assert tool.fingerprint == "0b8da0749a1bdcb9479351ed8ad0ea0e4574d53aff004d6c8f878b11a22ac26a"


def test_an_answer_with_a_later_error_code_is_read(client: Any, app: Any) -> None:
    code = '"outcome": "rejected", "error_code": "CODE_OF_A_LATER_VERSION", "field_of_a_later_version": 1'
    with ToolExecutor(servers=["desk"], timeout_s=60, app=app) as tools:
        call = tools.submit(ToolCall(id="c1", name="desk.order"))
        answer = RESULT.replace('"outcome": "ok", "error_code": null', code).replace("TASK", call.id)
        client.set(f"celery-task-meta-{call.id}", answer)
        client.publish(f"tarsy:replies:{call.id[:19]}", answer)
        result = call.result(timeout_s=20)
    expected = (Outcome.REJECTED, "CODE_OF_A_LATER_VERSION", "1 lamp")
    assert (result.outcome, result.error_code, result.content) == expected


def test_a_list_with_a_later_error_code_is_read() -> None:
    error = {"code": "CODE_OF_A_LATER_VERSION", "text": "asked in vain"}
    with pytest.raises(CallError, match="asked in vain"):
        read_listing({"status": "SUCCESS", "result": {"v": 1, "server": "desk", "tools": [], "error": error}})


def test_a_call_leaves_these_marks_on_its_way(client: Any, deliveries: Deliveries) -> None:
    client.lpush("mcp.desk", MESSAGE)
    client.hset("tarsy:unacked", ID, f"mcp.desk\n1795349242.809\n{MESSAGE}")
    client.zadd("tarsy:waiting:mcp.desk", {ID: 1795348583.1})
    delivery = deliveries.take("mcp.desk", ID, str, is_quarantined=True)
    assert client.hgetall(f"tarsy:call:{ID}") == {b"taken": b"1", b"deliveries": b"1", b"suspect": b"1"}
    assert client.zrange("tarsy:leases", 0, -1) == [f"mcp.desk\n{ID}".encode()]
    assert not client.exists("tarsy:waiting:mcp.desk")

    async def begin() -> None:
        exchange = AsyncRedisExchange(lambda: client.connection_pool)
        await AsyncDeliveries(exchange).clear_quarantined(ID)
        await AsyncDeliveries(exchange).begin(delivery, "w0@host 1", 1.0)
        assert await AsyncDeliveries(exchange).withdraw("other", "mcp.desk", 60) == (CallState.NONE, False)
        exchange.close()

    asyncio.run(begin())
    begun = {b"taken": b"1", b"deliveries": b"1", b"mark": b"begun", b"owner": b"w0@host 1"}
    begun[b"begun"] = b"w0@host 1 1.000\n"
    assert client.hgetall(f"tarsy:call:{ID}") == begun
    deliveries.answer(delivery, f"celery-task-meta-{ID}", RESULT, 3600)
    assert client.hgetall(f"tarsy:call:{ID}") == {**begun, b"mark": b"answered"}
    assert client.get(f"celery-task-meta-{ID}") == RESULT.encode()
    assert not client.exists("tarsy:unacked", "tarsy:leases")
    assert client.get("tarsy:withdrawn:other") == b"1"


def test_a_dead_letter_is_kept_in_this_shape(client: Any, deliveries: Deliveries, app: Any) -> None:
    client.hset("tarsy:unacked", ID, f"mcp.desk\n1795349242.809\n{MESSAGE}")
    client.hset(f"tarsy:call:{ID}", mapping={"taken": 1, "deliveries": 3, "suspect": 1})
    client.zadd("tarsy:leases", {f"mcp.desk\n{ID}": 1.0})
    client.hset("tarsy:sweeps", "last", client.time()[0])
    deliveries.sweep(20.0, 60.0)
    assert client.get(f"tarsy:poison:{ID}") == f"mcp.desk\n1795349242.809\n{MESSAGE}".encode()
    assert client.zrange("tarsy:poisoned", 0, -1) == [ID.encode()]
    app.backend.refuse(ID, PoisonMessage(ID))
    assert blank(client.get(f"celery-task-meta-{ID}"), ID) == FAILURE
    assert dead_letters.retry(client, ID)
    [text] = client.lrange("mcp.desk", 0, -1)
    assert client.hgetall("tarsy:unacked") == {ID.encode(): b"mcp.desk\n\n" + text}
    expected = json.loads(MESSAGE)
    assert json.loads(base64.b64decode(json.loads(text)["body"]))[0][3] == {
        name: value for name, value in BODY[0][3].items() if name != "deadline"
    }
    del expected["headers"]["garbage_at"]
    assert json.loads(text)["headers"] == expected["headers"]


def test_an_audit_entry_has_this_shape(client: Any) -> None:
    entry = AuditEntry(
        at=1795348584.5,
        call_id="c1",
        task_id="t1",
        agent_id="sre",
        run_id="r7",
        server="desk",
        tool="order",
        arguments='{"item":"lamp"}',
        arguments_digest="d1",
        repairs=("n: text to number",),
        outcome=Outcome.TOOL_ERROR,
        error_code=ErrorCode.TOOL_ERROR,
        error="No lamp.",
        attempts=1,
        duration_s=0.25,
        worker="w0@host",
        bytes=311,
        steps=tuple(Step(name=name, at=at) for at, name in enumerate(StepName, start=1)),
    )
    assert entry.encode() == AUDIT_ENTRY
    entry_id = client.xadd("tarsy:audit", {"entry": AUDIT_ENTRY})
    assert read_audit(client).entries == [entry.model_copy(update={"id": entry_id.decode()})]
    client.xadd("tarsy:audit:agents", {"entry": AUDIT_ENTRY})
    assert {entry.source for entry in read_audit(client).entries} == {"worker", "agent"}


def test_a_health_record_has_this_shape(client: Any) -> None:
    record = HealthRecord(
        server="desk",
        healthy=False,
        error="It does not answer.",
        latency_s=0.5,
        tool_count=3,
        checked_at=1795348584.5,
        since=1795348500.0,
        recent_calls=4,
        failed_calls=1,
        worker="w0@host",
        transport="stdio",
        protocol="2026-07-28",
        era="2026",
        server_info="desk 1.0",
        sessions_opened=2,
        max_concurrency=8,
        configuration="0123456789ab",
    )
    assert record.model_dump_json() == HEALTH
    now = client.time()[0]
    fresh = HEALTH.replace("1795348584.5", str(now))
    client.zadd("tarsy:health-workers", {"w0@host": now})
    client.hset("tarsy:worker-health:w0@host", "desk", fresh)
    client.set("tarsy:health:desk", fresh)
    found = read_health(client, ["desk"])["desk"]
    assert (found.status, found.skipped) == (HealthStatus.UNHEALTHY, ())
    assert found.check == found.workers["w0@host"] == record.model_copy(update={"checked_at": float(now)})


def test_an_alert_has_this_shape(client: Any) -> None:
    record = HealthRecord(server="desk", healthy=False, error="gone", checked_at=1.0, worker="w0@host")
    client.hset("tarsy:alert:desk", mapping={"said": "healthy", "since": 1, "ill": client.time()[0] - 10})
    alert = AlertFeed().publish(client.execute_command(*build_observation(record)))
    assert alert is not None
    [(_, fields)] = client.xrange("tarsy:alerts")
    given = json.loads(fields[b"alert"])
    assert (given.pop("id"), given.pop("at"), given.pop("lasted_s")) == (alert.id, alert.at, alert.lasted_s)
    assert given == {
        "v": 1,
        "server": "desk",
        "worker": "w0@host",
        "error": "gone",
        "status": "unhealthy",
        "relapses": 0,
    }
    state = client.hgetall("tarsy:alert:desk")
    assert state.pop(b"seen:w0@host").startswith(b"0 ")
    assert set(state) == {b"said", b"since", b"relapses", b"relapsed", b"given_id", b"given"}
    assert state[b"said"] == b"unhealthy"


def test_metrics_are_kept_in_this_shape(client: Any) -> None:
    metrics = CallMetrics()
    failed = ToolResult(
        call_id="",
        name="",
        content="late",
        outcome=Outcome.TIMEOUT,
        error_code=ErrorCode.CALL_TIMEOUT,
        attempts=2,
        duration_s=0.02,
    )
    for _ in range(2):
        metrics.note_result("desk", "order", failed, 0.5)
    for worker in (1, 2):  # the second flush has nothing to add
        metrics.flush(client, f"w{worker}@host", {})
    total = client.hgetall("tarsy:metrics:desk")
    error = json.loads(total.pop(b"last_error order"))
    assert {**error, "at": 0} == {"at": 0, "code": "CALL_TIMEOUT", "text": "late", "tool": "", "task_id": ""}
    numbers = {
        b"calls:timeout order": b"2",
        b"code:CALL_TIMEOUT order": b"2",
        b"took:0.025 order": b"2",
        b"took:longest order": b"20000",
        b"took:us order": b"40000",
        b"retries order": b"2",
        b"waited:0.5 order": b"2",
        b"waited:us order": b"1000000",
    }
    assert total == numbers
    [recent] = client.keys("tarsy:metrics:desk:*")
    assert client.hgetall(recent) == numbers
    [minute] = client.keys("tarsy:minute:*")
    minutely = {b"calls:timeout": b"2", b"code:CALL_TIMEOUT": b"2", b"took:0.025": b"2", b"took:longest": b"20000"}
    assert client.hgetall(minute) == {name + b" desk": number for name, number in minutely.items()}
    assert 0 < client.ttl(recent) <= 360 < client.ttl(minute) <= 3900 < client.ttl("tarsy:metrics:desk")
    assert client.get("tarsy:in-flight:w1@host") == b"{}"
    assert client.zrange("tarsy:metrics", 0, -1) == [b"desk"]
    client.execute_command(*build_count(60 * 7, {"desk": {"up": 1, "checked": 1}}))
    assert client.hgetall("tarsy:minute:7") == {b"up desk": b"1", b"checked desk": b"1"}
