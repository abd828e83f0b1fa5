"""The health checks as a step of Celery's worker: they run while its pool does."""

import logging
from typing import Any

from celery import bootsteps

from tarsy_tasks.broker.task_names import CHECK_SERVER
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.reporting.health_checks import HealthChecks

__all__ = ["HealthStep"]


class HealthStep(bootsteps.StartStopStep):
    """Starts and stops `HealthChecks`."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._context: WorkerContext | None = None

    def start(self, parent: Any) -> None:
        context = self._context = parent.pool.context
        assert context is not None
        logging.getLogger("celery.app.trace").addFilter(_is_no_check)
        context.checks = HealthChecks(
            context.connections,
            context.loop,
            parent.app.backend.client,
            context.alerts,
            parent.pool.limit_of,
            lambda: context.taken,
            worker=parent.hostname,
        )
        context.checks.start()
        context.connections.inform(context.checks)

    def stop(self, parent: Any) -> None:  # noqa: ARG002
        if self._context is not None and self._context.checks is not None:
            checks, self._context.checks = self._context.checks, None
            checks.stop()

    terminate = stop


def _is_no_check(record: logging.LogRecord) -> bool:
    """Checks are many, and a change of health has its own log line."""
    return not (
        record.levelno <= logging.INFO and isinstance(record.args, dict) and record.args.get("name") == CHECK_SERVER
    )
