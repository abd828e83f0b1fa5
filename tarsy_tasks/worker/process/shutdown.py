"""The end of a worker that was told to stop, even if its main thread cannot look up.

Owns the last resort: Celery stops in its main thread, which may wait for a Redis that stands still. Then the calls are
ended from here, and the process with them, before whoever sent the signal kills it. What was not answered has its lease
lapse, and is dealt with by another worker.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from celery.worker import state

__all__ = ["ShutdownWatch"]

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_SLACK_S = 5.0
_END_S = 3.0
_EXIT_CODE = 1


class ShutdownWatch:
    """Waits for a shutdown to be asked for, and sees to it that it comes to its end.

    Args:
        grace_s: How long calls may go on running after the signal.
        end_calls: Ends those that still run.
    """

    def __init__(self, grace_s: float, end_calls: Callable[[], None]) -> None:
        self._grace_s = grace_s
        self._end_calls = end_calls
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tarsy-shutdown", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def done(self) -> None:
        """The pool stops as it should."""
        self._over.set()

    def _run(self) -> None:
        asked_at: float | None = None
        while not self._over.wait(_LOOK_S):
            if asked_at is None and (state.should_stop is not None or state.should_terminate is not None):
                asked_at = time.monotonic()
            if asked_at is not None and time.monotonic() - asked_at > self._grace_s + _SLACK_S:
                logger.critical("the worker does not stop, perhaps because Redis stands still: ending its calls")
                self._end_calls()
                if not self._over.wait(_END_S):
                    logger.critical("ending the process")
                    os._exit(_EXIT_CODE)
