"""Alerts: one for each change, however many workers saw it, and few from a flapping server."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from tarsy_tasks.broker import keys
from tarsy_tasks.telemetry.health_records import HealthRecord
from tarsy_tasks.worker.reporting.alerts import Alert, AlertFeed, build_observation

FEED = AlertFeed()


def seen(client: Any, healthy: bool, worker: str = "w1", server: str = "k8s") -> str | None:
    """The status of the alert that a check gives."""
    error = None if healthy else "it broke"
    record = HealthRecord(server=server, healthy=healthy, error=error, latency_s=0.1, checked_at=0, worker=worker)
    alert = FEED.publish(client.execute_command(*build_observation(record)))
    return alert.status if alert else None


def let_pass(client: Any, seconds: float, server: str = "k8s") -> None:
    """As if everything that is remembered had happened so much earlier."""
    key = keys.alert_state_key(server)
    for name, value in client.hgetall(key).items():
        if name.startswith(b"seen:"):
            verdict, at = value.split()
            client.hset(key, name, b"%s %.3f" % (verdict, float(at) - seconds))
        elif name in (b"since", b"well", b"ill", b"relapsed"):
            with suppress(ValueError):  # damaged on purpose
                client.hset(key, name, float(value) - seconds)


def fail_twice(client: Any, worker: str = "w1", server: str = "k8s") -> str | None:
    """The status of the alert that the second failed check in a row gives."""
    assert seen(client, False, worker, server) is None
    let_pass(client, 5, server)
    return seen(client, False, worker, server)


def test_a_failure_and_a_recovery_are_each_reported_once(client: Any) -> None:
    assert seen(client, True) is None
    assert fail_twice(client) == "unhealthy"
    let_pass(client, 15)
    assert seen(client, False) is None
    assert seen(client, True) is None, "it may fail again in a moment"
    let_pass(client, 30)
    assert seen(client, True) == "healthy"
    assert seen(client, True) is None
    entries = [json.loads(fields[b"alert"]) for _, fields in client.xrange(keys.ALERTS)]
    assert [entry["status"] for entry in entries] == ["unhealthy", "healthy"]
    assert (entries[0]["error"], entries[0]["worker"], "error" in entries[1]) == ("it broke", "w1", False)
    assert entries[1]["lasted_s"] == pytest.approx(45, abs=5)


def test_a_single_failed_check_is_no_alert(client: Any) -> None:
    for _ in range(5):
        assert seen(client, True) is None
        assert seen(client, False) is None
        assert seen(client, False) is None, "the same failure, reported twice"
        let_pass(client, 60)


def test_a_server_that_was_never_healthy_is_reported(client: Any) -> None:
    assert fail_twice(client) == "unhealthy"


def test_a_server_is_healthy_while_one_worker_reaches_it(client: Any) -> None:
    assert seen(client, True, "w1") is None
    assert seen(client, False, "w2") is None
    let_pass(client, 10)
    assert seen(client, False, "w2") is None
    assert fail_twice(client, "w1") == "unhealthy"


def test_an_old_check_of_a_lost_worker_does_not_count(client: Any) -> None:
    assert seen(client, True, "w1") is None
    let_pass(client, 50)
    assert fail_twice(client, "w2") == "unhealthy"
    assert client.hkeys(keys.alert_state_key("k8s")).count(b"seen:w1") == 0


def test_a_flapping_server_is_reported_once_as_unhealthy(client: Any) -> None:
    published = []
    for number in range(240):
        published.append(seen(client, number % 2 == 0))
        let_pass(client, 15)
    assert [each for each in published if each] == ["unhealthy"]


def test_repeated_failures_delay_the_report_of_a_recovery(client: Any) -> None:
    published = []
    for number in range(240):  # an hour of checks, two minutes healthy and two unhealthy
        published.append(seen(client, number // 8 % 2 == 0))
        let_pass(client, 15)
    assert 2 <= published.count("unhealthy") <= 6
    let_pass(client, 2 * 3600)
    assert seen(client, True) is None
    let_pass(client, 1000)
    assert seen(client, True) == "healthy"


def test_many_workers_that_see_a_failure_report_it_once(client: Any) -> None:
    assert seen(client, True, "w0") is None
    let_pass(client, 50)
    assert seen(client, False, "w0") is None
    let_pass(client, 5)
    with ThreadPoolExecutor(16) as pool:
        published = list(pool.map(lambda number: seen(client, False, f"w{number}"), range(64)))
    assert [each for each in published if each] == ["unhealthy"]


@pytest.mark.parametrize(
    "value", ["a text", {"said": "perhaps", "since": "x", "well": "y", "ill": "z"}, {"seen:w9": "broken"}]
)
def test_a_damaged_state_is_replaced(client: Any, value: Any) -> None:
    key = keys.alert_state_key("k8s")
    if isinstance(value, dict):
        client.hset(key, mapping=value)
    else:
        client.set(key, value)
    client.set(keys.ALERTS, "no stream")
    assert fail_twice(client) == "unhealthy"
    assert client.xlen(keys.ALERTS) == 1


def test_subscribers_get_alerts_until_they_unsubscribe(client: Any, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Alert] = []
    unsubscribe = FEED.subscribe(heard.append)
    with caplog.at_level(logging.WARNING):
        fail_twice(client)
    later: list[Alert] = []
    FEED.subscribe(later.append)()
    assert later[-1:] == heard[-1:], "what was before, is told at once"
    unsubscribe()
    fail_twice(client, server="other")
    assert (heard[-1].server, heard[-1].status) == ("k8s", "unhealthy")
    assert str(heard[-1]) == "MCP server k8s is unhealthy: it broke"
    assert "alert: MCP server k8s is unhealthy: it broke" in caplog.text


def test_an_alert_lost_with_its_reply_is_returned_on_a_retry(client: Any) -> None:
    record = HealthRecord(server="k8s", healthy=False, error="it broke", latency_s=0.1, checked_at=0, worker="w1")
    seen(client, False)
    let_pass(client, 5)
    command = build_observation(record)
    first, second = client.execute_command(*command), client.execute_command(*command)
    assert first
    assert second == first
    assert client.xlen(keys.ALERTS) == 1
    assert client.execute_command(*build_observation(record)) is None, "the next check is another one"
