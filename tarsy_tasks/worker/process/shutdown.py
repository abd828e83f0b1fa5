"""Ends a worker that was told to stop, even if its main thread is blocked.

Owns the last resort: Celery stops in its main thread, which may wait for a Redis that does not respond. Then the calls
are ended from here, and after them the process, before the supervisor kills it. The leases of calls that were not
answered lapse, and another worker deals with them.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from celery.apps.worker import Worker
from celery.utils.text import str_to_list
from celery.worker import state

__all__ = ["ShutdownWatch", "SoftlyStoppingWorker"]

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_SLACK_S = 5.0
_END_S = 3.0
_EXIT_CODE = 1


class SoftlyStoppingWorker(Worker):
    """Celery's, which takes no more messages during a soft shutdown. Stock sleeps in the thread that would take them;
    here the session loop does that.

    Attributes:
        only_queues: Those of `-Q`; None for all.
        excluded_queues: Those of `-X`.
    """

    only_queues: list[str] | None = None
    excluded_queues: Sequence[str] = ()

    def setup_queues(self, include: Any, exclude: Any = None) -> None:
        self.only_queues, self.excluded_queues = str_to_list(include) or None, str_to_list(exclude) or ()
        stock: Any = super()
        stock.setup_queues(include, exclude)

    def takes(self, queue: str) -> bool:
        """Whether it may take messages of a queue, also of one that it does not know yet."""
        return (self.only_queues is None or queue in self.only_queues) and queue not in self.excluded_queues

    def wait_for_soft_shutdown(self) -> None:
        worker: Any = self
        if worker.pool is not None:
            worker.pool.take_no_more()
        stock: Any = super()
        stock.wait_for_soft_shutdown()


class ShutdownWatch:
    """Waits for a shutdown request and makes sure that the worker ends.

    Args:
        grace_s: How long calls may go on running after the signal.
        end_calls: Ends those that are still running.
    """

    def __init__(self, grace_s: float, end_calls: Callable[[], None]) -> None:
        self._grace_s = grace_s
        self._end_calls = end_calls
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tarsy-shutdown", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def done(self) -> None:
        """The pool is stopping normally."""
        self._over.set()

    def _run(self) -> None:
        asked_at: float | None = None
        while not self._over.wait(_LOOK_S):
            if asked_at is None and (state.should_stop is not None or state.should_terminate is not None):
                asked_at = time.monotonic()
            if asked_at is not None and time.monotonic() - asked_at > self._grace_s + _SLACK_S:
                logger.critical("the worker does not stop, perhaps because Redis does not respond: ending its calls")
                self._end_calls()
                if not self._over.wait(_END_S):
                    logger.critical("ending the process")
                    os._exit(_EXIT_CODE)
