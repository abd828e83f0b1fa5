"""What `preflight` makes of what is in Redis about a server: fine, try again later, or somebody has to act."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError

from tarsy_tasks.broker import keys
from tarsy_tasks.config import ServerConfig
from tarsy_tasks.doctor.preflight import Need, Verdict, check_needs, check_servers, judge_redis_error
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.health_records import HealthRecord

DESK = {"desk": ServerConfig(name="desk", command="none")}


@pytest.fixture
def client(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as client:
        yield client


def report(client: Any, *records: dict[str, Any], serves: bool = True, checked: bool = True) -> Need:
    """The verdict on a server of which workers have reported this."""
    now = client.time()[0]
    try:
        for number, fields in enumerate(records):
            record = HealthRecord(server="desk", checked_at=now, worker=f"w{number}", **fields)
            client.hset(keys.worker_health_key(record.worker), "desk", record.model_dump_json())
            client.zadd(keys.HEALTH_WORKERS, {record.worker: now})
            if number == 0 and checked:
                client.set(keys.health_key("desk"), record.model_dump_json())
        if serves:
            client.zadd(keys.serving_key("desk"), {"w0": now})
        [need] = check_servers(client, DESK)
        return need
    finally:
        client.delete(keys.HEALTH_WORKERS, keys.health_key("desk"), keys.serving_key("desk"))
        client.delete(*(keys.worker_health_key(f"w{number}") for number in range(len(records) + 1)))


WORKS: dict[str, Any] = {"healthy": True, "tool_count": 3}


def fails(code: ErrorCode | None = None, **more: Any) -> dict[str, Any]:
    return {"healthy": False, "error": "it is down", "error_code": code, **more}


@pytest.mark.parametrize(
    ("records", "verdict", "text"),
    [
        ([WORKS], Verdict.FINE, "works; 3 tools"),
        ([WORKS, fails()], Verdict.FINE, "can be called, but is degraded"),
        ([fails(ErrorCode.SERVER_UNAVAILABLE)], Verdict.RETRY, "it is down"),
        ([fails()], Verdict.RETRY, "it is down"),
        ([fails(ErrorCode.SERVER_MISCONFIGURED)], Verdict.ACT, "it is down"),
        ([fails(ErrorCode.SERVER_REFUSED)], Verdict.ACT, "it is down"),
        ([fails(ErrorCode.SERVER_REFUSED), fails(ErrorCode.SERVER_UNAVAILABLE)], Verdict.RETRY, "it is down"),
        ([fails(ErrorCode.SERVER_MISCONFIGURED, is_restarting=True)], Verdict.RETRY, "it is down"),
        ([fails(ErrorCode.SERVER_UNAVAILABLE, is_held=True)], Verdict.ACT, "an operator has disconnected it"),
        ([], Verdict.RETRY, "has not reported"),
    ],
)
def test_a_server_is_judged_by_what_its_workers_report(
    client: Any, records: list[dict[str, Any]], verdict: Verdict, text: str
) -> None:
    need = report(client, *records)
    assert (need.name, need.verdict) == ("desk", verdict)
    assert text in need.text
    assert (need.remedy is not None) is (verdict is Verdict.ACT)


def test_calls_do_not_need_the_checks_of_beat(client: Any) -> None:
    need = report(client, WORKS, checked=False)
    assert need.verdict is Verdict.FINE
    assert "is beat running?" in need.text


def test_a_server_without_a_worker_needs_somebody_after_a_while(client: Any) -> None:
    assert report(client, serves=False).verdict is Verdict.ACT
    assert report(client, WORKS, serves=False).verdict is Verdict.RETRY


def test_tools_that_were_never_listed_may_come(client: Any) -> None:
    [never, wrong] = check_needs(client, DESK, ["desk.echo", "bank.pay"], None, "anonymous")
    assert never.verdict is Verdict.RETRY
    assert wrong.verdict is Verdict.ACT


def test_redis_that_refuses_its_user_does_not_come_back() -> None:
    assert judge_redis_error(AuthenticationError("wrong password")).verdict is Verdict.ACT
    assert judge_redis_error(NoPermissionError("no")).verdict is Verdict.ACT
    assert judge_redis_error(redis.ConnectionError("refused")).verdict is Verdict.RETRY
    assert judge_redis_error(TimeoutError("slow")).verdict is Verdict.RETRY
