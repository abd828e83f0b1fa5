"""Numbers of calls: counted in memory, added up in Redis over all workers, whatever lies there."""

from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tarsy_tasks.broker import keys
from tarsy_tasks.models import ToolResult
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.telemetry.metrics import (
    BUCKETS_S,
    NO_TOOL,
    Distribution,
    ToolMetrics,
    bucket_of,
    known_servers,
    read_metrics,
)
from tarsy_tasks.worker.reporting.call_metrics import CallMetrics
from tests.processes import free_port


def answer(code: ErrorCode | None = None, duration_s: float = 0.02, attempts: int = 1) -> ToolResult:
    outcome = code.outcome if code else Outcome.OK
    return ToolResult(
        call_id="", name="", content="words", outcome=outcome, error_code=code, attempts=attempts, duration_s=duration_s
    )


def of(client: Any, server: str, tool: str) -> ToolMetrics:
    return {each.tool: each for each in read_metrics(client, [server])[server]}[tool]


def test_the_numbers_of_two_workers_are_added_up(client: Any) -> None:
    first, second = CallMetrics(), CallMetrics()
    first.note_result("k8s", "get", answer(), 0.5)
    first.note_result("k8s", "get", answer(ErrorCode.CALL_TIMEOUT, 3.0, attempts=2), None)
    second.note_result("k8s", "get", answer(duration_s=0.04), 1.5)
    for name, metrics in (("a", first), ("b", second), ("a", first)):
        metrics.flush(client, name, {})
    found = of(client, "k8s", "get")
    assert found.calls == {Outcome.OK: 2, Outcome.TIMEOUT: 1}
    assert found.retries == 1
    assert (found.duration.count, found.duration.sum_s) == (3, pytest.approx(3.06))
    assert (found.queue_wait.count, found.queue_wait.sum_s) == (2, pytest.approx(2.0))
    assert found.moving_average_s == pytest.approx(1.02)
    assert found.failure_rate == pytest.approx(1 / 3)
    assert (found.codes, found.duration.slowest_s) == ({"CALL_TIMEOUT": 1}, pytest.approx(3.0))
    assert found.last_error is not None
    assert (found.last_error.code, found.last_error.text) == ("CALL_TIMEOUT", "words")
    assert known_servers(client) == ["k8s"]


def test_a_time_falls_into_the_first_bucket_that_holds_it() -> None:
    assert [bucket_of(seconds) for seconds in (0, 0.005, 0.0051, 300, 301)] == ["0.005", "0.005", "0.01", "300", "inf"]


def test_mistakes_of_callers_are_not_failures_of_the_server(client: Any) -> None:
    metrics = CallMetrics()
    metrics.note_result("k8s", "get", answer(ErrorCode.INVALID_ARGUMENTS, attempts=0), None)
    metrics.note_result("k8s", "get", answer(ErrorCode.CANCELLED), None)
    metrics.flush(client, "a", {})
    assert of(client, "k8s", "get").failure_rate is None
    metrics.note_result("k8s", "get", answer(ErrorCode.SESSION_LOST), None)
    metrics.flush(client, "a", {})
    assert of(client, "k8s", "get").failure_rate == 1.0
    metrics.note_result("k8s", "get", answer(ErrorCode.TOOL_ERROR), None)
    metrics.flush(client, "a", {})
    found = of(client, "k8s", "get")
    assert (found.failure_rate, found.tool_error_rate) == (0.5, 0.5), "the server answered"


@pytest.mark.parametrize("took", [(0.0051,), (0.03, 0.031), (0.006, 0.2, 290.0), (0.1,) * 30, (400.0, 900.0)])
def test_no_quantile_is_above_the_slowest_call(took: tuple[float, ...]) -> None:
    metrics = CallMetrics()
    for seconds in took:
        metrics.note_result("k8s", "get", answer(duration_s=seconds), None)
    duration = metrics.snapshot()[0].duration
    assert duration.slowest_s == pytest.approx(max(took))
    quantiles = [duration.quantile_s(share) or 0.0 for share in (0.5, 0.95, 1.0)]
    assert quantiles == sorted(quantiles)
    assert quantiles[-1] <= max(took) * 1.000001


def test_the_slowest_call_of_older_workers_is_not_known() -> None:
    counts = tuple(int(bound in (0.05, 1.0)) for bound in BUCKETS_S)
    assert Distribution(counts, longest_s=0.04).slowest_s is None, "there was one above 0.5 s"
    assert Distribution(counts, longest_s=0.04).quantile_s(1.0) == 1.0


def test_calls_in_flight_are_those_of_workers_that_live(client: Any) -> None:
    metrics = CallMetrics()
    with metrics.running("k8s", "get"), metrics.running("k8s", "get"):
        metrics.flush(client, "a", {})
        assert of(client, "k8s", "get").in_flight == 2
        client.zadd(keys.MEASURING_WORKERS, {"a": 1})
        assert read_metrics(client, ["k8s"]) == {"k8s": []}, "the last word of a worker that is long gone"
    metrics.flush(client, "a", {})
    assert read_metrics(client, ["k8s"]) == {"k8s": []}


def test_numbers_of_other_versions_and_damaged_ones_are_left_out(client: Any) -> None:
    client.hset(
        keys.metrics_key("k8s"),
        mapping={
            "calls:ok get": "7",
            "calls:newer get": "1",
            "calls:timeout get": "x",
            "last_error get": "{",
            b"\xff": "1",
        },
    )
    client.set(keys.metrics_key("other"), "a text")
    client.set(keys.in_flight_key("a"), "[1]")
    client.zadd(keys.MEASURING_WORKERS, {"a": client.time()[0]})
    found = read_metrics(client, ["k8s", "other", "absent"])
    assert {each.tool: each.calls for each in found["k8s"]} == {"get": {Outcome.OK: 7}, NO_TOOL: {}}
    assert (found["other"], found["absent"]) == ([], [])
    client.flushall()


def test_what_is_no_number_gives_way_to_one(client: Any) -> None:
    client.hset(keys.metrics_key("k8s"), mapping={"calls:ok get": "many", "calls:timeout get": "4"})
    client.set(keys.metrics_key("github"), "a text")
    metrics = CallMetrics()
    for server in ("k8s", "github"):
        metrics.note_result(server, "get", answer(), None)
    metrics.flush(client, "a", {})
    assert of(client, "k8s", "get").calls == {Outcome.OK: 1, Outcome.TIMEOUT: 4}
    assert of(client, "github", "get").calls == {Outcome.OK: 1}


def test_without_redis_nothing_is_lost_and_nothing_counted_twice(client: Any) -> None:
    metrics = CallMetrics()
    metrics.flush(client, "a", {})
    metrics.note_result("k8s", "get", answer(ErrorCode.TOOL_ERROR), None)
    with redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0)) as nobody:
        for _ in range(2):
            with pytest.raises(RedisError):
                metrics.flush(nobody, "a", {})
    metrics.note_result("k8s", "get", answer(), None)
    metrics.flush(client, "a", {})
    metrics.flush(client, "a", {})
    found = of(client, "k8s", "get")
    assert found.calls == {Outcome.OK: 1, Outcome.TOOL_ERROR: 1}
    assert found.last_error is not None


def test_a_redis_that_takes_no_writes_is_asked_again(client: Any) -> None:
    metrics = CallMetrics()
    metrics.note_result("k8s", "get", answer(), None)
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory", used // 2)
    try:
        with pytest.raises(RedisError, match="maxmemory"):
            metrics.flush(client, "a", {})
    finally:
        client.config_set("maxmemory", 0)
    metrics.flush(client, "a", {})
    assert of(client, "k8s", "get").calls == {Outcome.OK: 1}


def test_the_number_of_tools_counted_per_server_is_bounded(client: Any) -> None:
    metrics = CallMetrics()
    for number in range(1200):
        metrics.add("k8s", f"tool-{number}", {"calls:ok": 1})
    found = metrics.snapshot()
    assert len(found) <= 1002
    assert sum(each.calls[Outcome.OK] for each in found) == 1200
    client.hset(keys.metrics_key("k8s"), mapping={f"calls:ok old-{number}": 1 for number in range(100_001)})
    metrics.flush(client, "a", {})
    assert client.hlen(keys.metrics_key("k8s")) < 1100


def test_a_name_with_half_a_character_can_be_counted(client: Any) -> None:
    metrics = CallMetrics()
    metrics.note_result("k8s", "half\ud800", answer(), None)
    metrics.flush(client, "a", {})
    assert of(client, "k8s", "half?").calls == {Outcome.OK: 1}


def test_a_worker_knows_its_own_numbers_without_redis() -> None:
    metrics = CallMetrics()
    metrics.note_result("k8s", "get", answer(duration_s=0.3), None)
    (found,) = metrics.snapshot()
    assert (found.calls, found.moving_average_s) == ({Outcome.OK: 1}, pytest.approx(0.3))
