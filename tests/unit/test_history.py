"""The last hour of every server: counted in Redis by the minute, read back at little cost."""

from collections.abc import Mapping
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tarsy_tasks.broker import keys
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.telemetry.health_records import HealthRecord, HealthStatus
from tarsy_tasks.telemetry.history import MINUTES, History, build_count, health_numbers
from tarsy_tasks.telemetry.metrics import BUCKETS_S, Distribution
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tests.processes import free_port

HEALTHY, DEGRADED, UNHEALTHY, UNKNOWN = HealthStatus


def count(client: Any, minutes_ago: int, numbers: Mapping[str, int], server: str = "k8s") -> None:
    client.execute_command(*build_count(client.time()[0] - 60 * minutes_ago, {server: numbers}))


def read(client: Any) -> History:
    history = History()
    history.refresh(client)
    return history


def test_what_workers_count_of_calls_makes_the_current_minute(client: Any) -> None:
    metrics = CallMetrics()
    for tool, code, took_s in (("get", None, 0.02), ("list", None, 0.03), ("get", ErrorCode.CALL_TIMEOUT, 3.0)):
        outcome = code.outcome if code else Outcome.OK
        answer = ToolResult(
            call_id="", name="", content="", outcome=outcome, error_code=code, attempts=1, duration_s=took_s
        )
        metrics.note_result("k8s", tool, answer, 0.5)
    metrics.flush(client, "a", {})
    metrics.flush(client, "a", {})
    hour = read(client).minutes("k8s")
    minutes = [minute for minute in hour if minute.call_count]
    assert sum(minute.call_count for minute in minutes) == 3
    assert sum(minute.failure_count for minute in minutes) == 1
    assert minutes[-1].calls == {Outcome.OK: 2, Outcome.TIMEOUT: 1}
    assert 0.01 < (minutes[-1].p50_s or 0) < 0.05 < 2.5 < (minutes[-1].p95_s or 0) <= 5
    assert len(hour) == MINUTES
    assert [minute.at % 60 for minute in hour] == [0] * MINUTES


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ({"up": 4, "checked": 4}, HEALTHY),
        ({"up": 4}, UNKNOWN),
        ({"up": 3, "down": 1, "checked": 2}, DEGRADED),
        ({"up": 1, "failing": 3, "checked": 2}, DEGRADED),
        ({"up": 3, "failing": 1, "checked": 2}, HEALTHY),
        ({"down": 4}, UNHEALTHY),
        ({"calls:ok": 4}, UNKNOWN),
    ],
)
def test_a_minute_is_judged_by_what_its_records_said(
    client: Any, numbers: dict[str, int], status: HealthStatus
) -> None:
    count(client, 5, numbers)
    hour = read(client).minutes("k8s")
    assert [minute.status for minute in hour].count(status) == (60 if status is UNKNOWN else 1)


@pytest.mark.parametrize(
    ("record", "is_answer", "numbers"),
    [
        ({"healthy": True}, False, {"up": 1}),
        ({"healthy": True}, True, {"up": 1, "checked": 1}),
        ({"healthy": True, "recent_calls": 10, "failed_calls": 9}, True, {"failing": 1, "checked": 1}),
        ({"healthy": True, "is_busy": True}, False, {"failing": 1}),
        ({"healthy": False, "recent_calls": 10}, True, {"down": 1, "checked": 1}),
    ],
)
def test_a_record_of_health_counts_once(record: dict[str, Any], is_answer: bool, numbers: dict[str, int]) -> None:
    found = HealthRecord(server="k8s", checked_at=1, worker="w", **record)
    assert health_numbers(found, came_through_queue=is_answer) == numbers


def test_a_past_minute_is_read_once_and_the_current_one_again(client: Any) -> None:
    for minutes_ago in (0, 30):
        count(client, minutes_ago, {"calls:ok": 1})
    history = read(client)
    for minutes_ago in (0, 30):
        count(client, minutes_ago, {"calls:ok": 1})
    history.refresh(client)
    assert sum(minute.call_count for minute in history.minutes("k8s")) == 3
    client.flushall()
    history.refresh(client)
    assert sum(minute.call_count for minute in history.minutes("k8s")) == 1, "what was read is kept"


def test_nobody_counts_for_longer_than_the_hour(client: Any) -> None:
    count(client, 0, {"up": 1})
    (key,) = client.keys("tarsy:minute:*")
    assert 3600 < client.ttl(key) <= 2 * 3600


def test_damaged_and_unknown_numbers_are_skipped_and_counted(client: Any) -> None:
    minute = client.time()[0] // 60 - 1
    client.hset(
        keys.minute_key(minute),
        mapping={"calls:ok k8s": "2", "calls:newer k8s": "1", "up k8s": "many", b"\xff": "1", "took:0.1 github": "-1"},
    )
    client.set(keys.minute_key(minute - 1), "a text")
    history = read(client)
    assert sum(each.call_count for each in history.minutes("k8s")) == 2
    assert history.skipped == {"k8s": 2, "github": 1, "": 1}
    client.flushall()


def test_what_is_not_a_number_is_replaced_by_one(client: Any) -> None:
    minute = client.time()[0] // 60
    client.hset(keys.minute_key(minute - 1), "up k8s", "many")
    client.set(keys.minute_key(minute - 2), "a text")
    for minutes_ago in (1, 2):
        count(client, minutes_ago, {"up": 1, "checked": 1})
    statuses = [each.status for each in read(client).minutes("k8s")]
    assert statuses.count(HEALTHY) == 2


def test_without_redis_what_was_read_is_kept(client: Any) -> None:
    count(client, 3, {"calls:ok": 1})
    history = read(client)
    with redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0)) as nobody, pytest.raises(RedisError):
        history.refresh(nobody)
    assert sum(minute.call_count for minute in history.minutes("k8s")) == 1


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ({}, 0.5, None),
        ({0.1: 10}, 0.5, 0.075),
        ({0.1: 10}, 1.0, 0.1),
        ({0.005: 1}, 0.5, 0.0025),
        ({0.1: 90, 1.0: 10}, 0.95, 0.75),
        ({0.1: 1, float("inf"): 9}, 0.95, 300.0),
    ],
)
def test_a_quantile_is_within_its_bucket(counts: dict[float, int], share: float, expected: float | None) -> None:
    found = Distribution(tuple(counts.get(bound, 0) for bound in BUCKETS_S)).quantile_s(share)
    assert found == (expected if expected is None else pytest.approx(expected))
