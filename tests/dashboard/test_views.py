"""What the pages make of records: waterfalls, alerts with their ends, dead letters, remedies."""

from typing import Any

import pytest

from tarsy_tasks.broker import keys
from tarsy_tasks.dashboard.alerts import read_alerts
from tarsy_tasks.dashboard.dead_letters import read_dead_letters
from tarsy_tasks.dashboard.recent_calls import RecentCalls
from tarsy_tasks.dashboard.remedies import find_remedy
from tarsy_tasks.dashboard.waterfall import build_waterfall
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tarsy_tasks.telemetry.audit import AuditEntry, Step, StepName
from tarsy_tasks.telemetry.running_calls import read_running
from tarsy_tasks.telemetry.server_log import KEPT_LINES, read_server_log
from tests.dashboard.incidents import write_alerts, write_dead_letter, write_lines, write_running

QUEUED, PICKED_UP, SENT, RECOVERED, ANSWERED = StepName


def test_a_waterfall_has_a_bar_for_each_attempt_and_worker() -> None:
    names = (QUEUED, PICKED_UP, SENT, RECOVERED, SENT, ANSWERED)
    steps = [Step(name=name, at=at) for name, at in zip(names, (10, 11, 11.5, 14, 14.5, 15), strict=True)]
    waterfall = build_waterfall(steps, "worker@alpha")
    assert waterfall.lasts_s == 5
    assert [(bar.label, bar.attempt, bar.begins_s, bar.lasts_s) for bar in waterfall.bars] == [
        ("queued", 0, 0, 1), ("prepared", 0, 1, 0.5), ("sent", 1, 1.5, 2.5), ("recovered", 0, 4, 0.5),
        ("sent", 2, 4.5, 0.5), ("answered", 0, 5, 0),
    ]  # fmt: skip
    assert [bar.worker for bar in waterfall.bars] == ["", *["worker@alpha"] * 5]


@pytest.mark.parametrize("names", [(), (ANSWERED,)])
def test_a_call_of_few_steps_has_a_waterfall(names: tuple[StepName, ...]) -> None:
    waterfall = build_waterfall([Step(name=name, at=7) for name in names], "")
    assert (len(waterfall.bars), waterfall.lasts_s) == (len(names), 0)


def test_an_alert_fires_until_its_server_recovers(client: Any) -> None:
    client.flushall()  # alerts of other modules' workers fire, too
    write_alerts(client, "k8s", ["unhealthy", "healthy", "unhealthy"])
    write_alerts(client, "desk", ["unhealthy", "unhealthy", "healthy"])
    client.xadd(keys.ALERTS, {"alert": "{"})
    client.xadd(keys.ALERTS, {"other": "field"})
    problems: list[str] = []
    found = read_alerts(client, problems)
    assert [(each.alert.id, each.ended_at is None) for each in found] == [
        ("k8s-2", True), ("desk-1", False), ("desk-0", False), ("k8s-0", False),
    ], "what fires is seen first"  # fmt: skip
    assert [(each.ended_at or 0) - each.alert.at for each in found[1:]] == [60, 120, 60]
    assert problems == ["2 alerts cannot be read: they are damaged, or of another version"]


def test_dead_letters_are_shown_without_their_messages(client: Any) -> None:
    entry = AuditEntry(at=1, server="desk", tool="order", arguments='{"item": "rope"}', outcome=Outcome.UNKNOWN)
    write_dead_letter(client, "known", entry)
    write_dead_letter(client, "unknown", None)
    client.zadd(keys.DEAD_LETTERS, {"long ago": client.time()[0] - 8 * 24 * 3600})
    found = read_dead_letters(client, RecentCalls(client))
    shown = {each.id: each.entry and each.entry.name for each in found.letters}
    assert (shown, found.total) == ({"known": "desk.order", "unknown": None}, 2)


def test_running_calls_that_cannot_be_read_are_named(client: Any) -> None:
    write_running(client, [("1", "desk", "wait")])
    write_running(client, [("2", "desk", "wait")], worker="worker@beta")
    client.set(keys.running_calls_key("worker@beta#1"), '[{"v": 2}]', ex=60)
    problems: list[str] = []
    assert [call.task_id for call in read_running(client, problems)] == ["1"]
    assert "worker@beta#1 cannot be read" in problems[0]


def test_redis_keeps_the_latest_lines_of_a_server(client: Any) -> None:
    write_lines(client, "k8s", [f"line {number}" for number in range(KEPT_LINES + 7)])
    client.xadd(keys.server_log_key("k8s"), {"line": "{"})
    lines = read_server_log(client, "k8s")
    assert (lines[0].text, lines[-1].text) == ("line 8", f"line {KEPT_LINES + 6}")
    assert 0 < client.ttl(keys.server_log_key("k8s")) <= 24 * 3600
    assert read_server_log(client, "another") == []


def test_every_error_that_is_not_a_callers_has_a_remedy() -> None:
    callers = (Outcome.REJECTED, Outcome.CANCELLED)
    assert [code for code in ErrorCode if code.outcome not in callers and not find_remedy(code)] == []
    assert (find_remedy(None), find_remedy("OF_A_LATER_VERSION")) == ("", "")
    for code in ErrorCode:
        assert "continue without it" not in find_remedy(code), "that is for models"
