"""The limits of a server for its page: what is used of each, and how often calls were over it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tarsy_tasks.telemetry.limit_report import CounterUse, LimitReport, read_reports, read_use
from tarsy_tasks.telemetry.metrics import ToolMetrics

__all__ = ["LimitView", "read_limits"]


@dataclass(frozen=True)
class LimitView:
    """One limit.

    Attributes:
        used: The counters that are used most.
        rejected: Calls of the server that were over it, since counting began.
    """

    report: LimitReport
    used: tuple[CounterUse, ...]
    rejected: int


def read_limits(redis: Any, server: str, numbers: Iterable[ToolMetrics], lease_s: float) -> tuple[LimitView, ...]:
    """The limits of a server, in the order of the policy.

    Args:
        redis: A redis-py client of the broker.
        lease_s: How long a lease lasts.

    Raises:
        ValueError: They cannot be read; the text says so in a phrase.
        RedisError: Redis cannot be reached, or refuses it.
    """
    found = read_reports(redis)
    reports = [each for each in (found.limits if found is not None else ()) if server in each.servers]
    used = read_use(redis, reports, lease_s)
    rejected: dict[str, int] = {}
    for each in numbers:
        for place, count in each.limited.items():
            rejected[place] = rejected.get(place, 0) + count
    return tuple(LimitView(each, tuple(used[each.id]), rejected.get(each.place, 0)) for each in reports)
