"""The alerts of all servers, as the pages show them.

Owns joining an alert with the one that ended it. Workers write the stream (`worker.reporting.alerts`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tarsy_tasks.broker import keys
from tarsy_tasks.worker.reporting.alerts import Alert

__all__ = ["ShownAlert", "build_alerts", "read_alerts"]

_READ = 200


@dataclass(frozen=True)
class ShownAlert:
    """A server that was reported as failed.

    Attributes:
        ended_at: When it was reported as recovered, in seconds since the epoch; None while it fails.
    """

    alert: Alert
    ended_at: float | None


def read_alerts(redis: Any, problems: list[str]) -> list[ShownAlert]:
    """The latest, those that fire first; `problems` gets what could not be read. Raises `RedisError`."""
    alerts: list[Alert] = []
    damaged = 0
    entries: list[tuple[bytes, Mapping[bytes, bytes]]] = redis.xrevrange(keys.ALERTS, count=_READ)
    for _, fields in entries:
        try:
            alerts.append(Alert.model_validate_json(fields.get(b"alert", b"")))
        except ValidationError:
            damaged += 1
    if damaged:
        problems.append(f"{damaged} alerts cannot be read: they are damaged, or of another version")
    return build_alerts(alerts)


def build_alerts(newest_first: Iterable[Alert]) -> list[ShownAlert]:
    """The failures among alerts, each with its end: those without one first, then the newest."""
    ended: dict[str, float] = {}
    shown: list[ShownAlert] = []
    for alert in newest_first:
        if alert.status == "healthy":
            ended[alert.server] = alert.at
        else:
            shown.append(ShownAlert(alert, ended.get(alert.server)))
    return sorted(shown, key=lambda each: each.ended_at is not None)
