"""Writes into Redis which limits the workers keep to, for operators; nothing of it is part of a call."""

import time

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.telemetry.limit_report import REPORT_TTL_S

__all__ = ["LimitReporter"]


class LimitReporter:
    """The limit reporter of one worker process.

    Args:
        report: What `telemetry.limit_report.build_report` gave; empty: there are no limits.
    """

    def __init__(self, report: str) -> None:
        self._report = report
        self._write_at = 0.0

    def replace(self, report: str) -> None:
        """The limits have changed. May be called from any thread."""
        self._report, self._write_at = report, 0.0

    def tend(self, exchange: RedisExchange) -> None:
        """Called every second, in a thread. Raises `RedisError`."""
        if self._report and time.monotonic() >= self._write_at:
            exchange.execute(("SET", keys.LIMIT_REPORT, self._report, "EX", REPORT_TTL_S))
            self._write_at = time.monotonic() + REPORT_TTL_S / 4
