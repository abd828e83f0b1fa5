"""The signs of life of a worker: the files that probes look at.

Owns when they are written and touched. One is touched by a timer of the consumer's thread, one by the session loop, so
that neither can hang unnoticed; what the files mean, `tarsy_tasks.telemetry.probes` says.
"""

import asyncio
import logging
import os
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from tarsy_tasks.errors import ConfigError
from tarsy_tasks.telemetry.probes import BEAT_S, ProbeFiles, open_run_dir, run_dir
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["LivenessFiles"]

logger = logging.getLogger(__name__)


class LivenessFiles:
    """The files of this worker.

    Args:
        worker: Its node name.
        loop: The session loop, running.
    """

    def __init__(self, worker: str, loop: SessionLoop) -> None:
        self._files = ProbeFiles(run_dir(), worker)
        self._is_off = self._has_complained = False
        try:
            open_run_dir()
        except ConfigError as error:
            # Calls matter more than probes, and those will say that there is no worker.
            self._is_off = True
            logger.error("there will be nothing for the probes to look at: %s", error)  # noqa: TRY400
        self._timer: Any = None
        self._entry: Any = None
        self._beating: Future[None] = loop.submit(self._beat())

    def is_ready(self, consumer: Any) -> None:
        """The worker takes calls; said again after each reconnect, for which the timer is armed anew."""
        if self._entry is not None:
            self._timer.cancel(self._entry)
        self._timer = consumer.timer
        self._entry = self._timer.call_repeatedly(BEAT_S, self._touch, (self._files.consumer,))
        self._touch(self._files.consumer)
        self._touch(self._files.ready)

    def is_stopping(self) -> None:
        """The worker takes no more calls. Safe in a signal handler."""
        with suppress(OSError):
            self._files.ready.unlink()

    def close(self) -> None:
        """The worker has ended."""
        self._beating.cancel()
        if self._entry is not None:
            self._timer.cancel(self._entry)
        with suppress(OSError):
            self._files.remove()

    async def _beat(self) -> None:
        while True:
            self._touch(self._files.sessions)
            await asyncio.sleep(BEAT_S)

    def _touch(self, file: Path) -> None:
        if self._is_off:
            return
        try:
            # Written whole: somebody may have cleaned up the directory, and a few bytes cost what a touch does.
            file.write_text(str(os.getpid()))
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                logger.error("the files of the probes cannot be written: %s", error)  # noqa: TRY400
