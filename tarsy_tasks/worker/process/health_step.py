"""The health checks as a step of Celery's worker: they run while its pool does."""

import logging
from typing import Any

from celery import bootsteps

from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.worker.process.bulkhead import bulkhead
from tarsy_tasks.worker.reporting.alerts import alert_feed
from tarsy_tasks.worker.reporting.health_checks import HealthChecks

__all__ = ["HealthStep"]


class HealthStep(bootsteps.StartStopStep):
    """Starts and stops `HealthChecks`."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._checks: HealthChecks | None = None

    def start(self, parent: Any) -> None:
        pool = parent.pool
        logging.getLogger("celery.app.trace").addFilter(_is_no_check)
        self._checks = HealthChecks(
            pool.connections,
            pool.loop,
            parent.app.backend.client,
            alert_feed,
            bulkhead.limit,
            worker=parent.hostname,
        )
        self._checks.start()

    def stop(self, parent: Any) -> None:  # noqa: ARG002
        if self._checks is not None:
            self._checks.stop()
            self._checks = None

    terminate = stop


def _is_no_check(record: logging.LogRecord) -> bool:
    """Checks are many, and a change of health has its own log line."""
    return not (
        record.levelno <= logging.INFO and isinstance(record.args, dict) and record.args.get("name") == CHECK_SERVER
    )
