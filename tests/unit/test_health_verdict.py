"""What records of a server mean together, without Redis."""

import pytest

from tarsy_tasks.telemetry.health_records import RECORD_TTL_S, HealthRecord, HealthStatus, ServerHealth, judge_health

NOW = 1_000_000.0
HEALTHY, DEGRADED, UNHEALTHY, UNKNOWN = HealthStatus


def record(worker: str, *, healthy: bool = True, age_s: float = 1.0, **more: object) -> HealthRecord:
    error = None if healthy else f"MCP server `desk` is not available: {worker} says so."
    checked_at = NOW - age_s
    return HealthRecord.model_validate(
        {"server": "desk", "healthy": healthy, "error": error, "checked_at": checked_at, "worker": worker, **more}
    )


def judge(check: HealthRecord | None, *reports: HealthRecord) -> ServerHealth:
    return judge_health("desk", check, reports, NOW)


WELL, ILL, OLD = record("w1"), record("w1", healthy=False), record("w1", age_s=RECORD_TTL_S + 0.1)


@pytest.mark.parametrize(
    ("check", "reports", "status", "said"),
    [
        (WELL, [WELL], HEALTHY, ""),
        (WELL, [WELL, record("w2")], HEALTHY, ""),
        (ILL, [ILL], UNHEALTHY, "w1 says so"),
        (WELL, [WELL, record("w2", healthy=False)], DEGRADED, "1 of 2 workers cannot use it"),
        (None, [], UNKNOWN, "no worker"),
        (None, [WELL], UNKNOWN, "beat"),
        (OLD, [WELL], UNKNOWN, "beat"),
        (None, [ILL], UNHEALTHY, "w1 says so"),
        (WELL, [], UNKNOWN, "no worker"),
        (WELL, [OLD], UNKNOWN, "no worker"),
        (OLD, [OLD], UNKNOWN, "no worker"),
        (WELL, [record("w2"), record("w1", age_s=50, healthy=False)], HEALTHY, ""),
        (record("w1", healthy=False, age_s=9), [WELL], HEALTHY, ""),
        (WELL, [record("w1", healthy=False, age_s=9)], HEALTHY, ""),
        (record("w1", age_s=-RECORD_TTL_S - 1), [WELL], UNKNOWN, "beat"),
        (WELL, [record("w1", recent_calls=5, failed_calls=5)], DEGRADED, "5 of its last 5 calls failed"),
        (WELL, [record("w1", recent_calls=20, failed_calls=17)], HEALTHY, ""),
        (WELL, [record("w1", recent_calls=4, failed_calls=4)], HEALTHY, ""),
        (WELL, [WELL, record("w2", is_busy=True)], DEGRADED, "it is busy with calls"),
    ],
)
def test_fresh_records_give_one_verdict(
    check: HealthRecord | None, reports: list[HealthRecord], status: HealthStatus, said: str
) -> None:
    found = judge(check, *reports)
    assert found.status is status
    assert said in found.reason
    assert bool(found.reason) is not found.healthy


def test_the_newest_record_of_a_worker_counts() -> None:
    found = judge(record("w1", queue_wait_s=0.5, latency_s=0.2), record("w1", age_s=9, healthy=False))
    assert (found.healthy, found.age_s, found.queue_wait_s, found.latency_s) == (True, 1.0, 0.5, 0.2)
    assert [*found.workers] == ["w1"]


def test_a_warning_is_a_sentence_that_names_the_server_once() -> None:
    assert judge(ILL, ILL).warning == "MCP server `desk` is not available: w1 says so."
    assert judge(None, WELL).warning.startswith("MCP server `desk` is unknown: no check has come")
    assert judge(WELL, WELL).warning == ""
    assert "wait 7 s in their queue" in judge(record("w1", queue_wait_s=7), WELL).warning
