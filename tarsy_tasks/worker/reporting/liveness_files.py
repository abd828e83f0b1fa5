"""The files that probes read to see that a worker is alive.

Owns when they are written: one by a timer of the consumer's thread, one by the session loop, so that neither can hang
unnoticed. What they mean is in `telemetry.probes`.
"""

import logging
import os
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.event_loop import next_beat
from tarsy_tasks.own_files import write_own_file
from tarsy_tasks.run_dir import open_run_dir, run_dir
from tarsy_tasks.telemetry.outage_log import OutageLog
from tarsy_tasks.telemetry.probes import BEAT_S, ProbeFiles
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["LivenessFiles"]

logger = logging.getLogger(__name__)


class LivenessFiles:
    """The files of this worker, whose session loop already runs."""

    def __init__(self, worker: str, loop: SessionLoop) -> None:
        self._files = ProbeFiles(run_dir(), worker)
        self._is_off = False
        self._outage = OutageLog(logger, "the files for the probes cannot be written", logging.ERROR)
        try:
            open_run_dir()
        except ConfigError as error:
            # The worker runs without them, and the probes will report that there is none.
            self._is_off = True
            self._outage.failed(error)
        self._timer: Any = None
        self._entry: Any = None
        self._beating: Future[None] = loop.submit(self._beat())

    def worker_ready(self, consumer: Any) -> None:
        """The worker takes calls. Called again after each reconnect, which needs a new timer."""
        if self._entry is not None:
            self._timer.cancel(self._entry)
        self._timer = consumer.timer
        self._entry = self._timer.call_repeatedly(BEAT_S, self._touch, (self._files.consumer,))
        self._touch(self._files.consumer)
        self._touch(self._files.ready)

    def worker_stopping(self) -> None:
        """The worker takes no more calls. Safe in a signal handler."""
        with suppress(OSError):
            self._files.ready.unlink()

    def close(self) -> None:
        self._beating.cancel()
        if self._entry is not None:
            self._timer.cancel(self._entry)
        with suppress(OSError):
            self._files.remove()

    async def _beat(self) -> None:
        while True:
            self._touch(self._files.sessions)
            await next_beat(BEAT_S)

    def _touch(self, file: Path) -> None:
        if self._is_off:
            return
        try:
            # Not only touched, because the directory may have been cleaned up.
            write_own_file(file, str(os.getpid()))
        except OSError as error:
            self._outage.failed(error)
        else:
            self._outage.succeeded()
