"""The latest log lines of each MCP server, for the dashboard.

Owns what is not in Redis yet. The lines are those of the worker's log, so what its level leaves out is missing here
too. They are masked once more as records are, because a server's own masking may be switched off. A call costs this
nothing: `lifecycle` writes the lines with the metrics.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from tarsy_tasks.broker.clock import RedisClock
from tarsy_tasks.telemetry.server_log import KEPT_LINES, LONGEST_LINE, LogLine, write_server_log
from tarsy_tasks.worker.maskers import Masker

__all__ = ["ServerLines"]

_PARENT = "tarsy_tasks.server"


class ServerLines(logging.Handler):
    """Collects the lines of all servers of this process, from `open` to `close`.

    Args:
        maskers: Those of stored records, by server.
        clock: That of Redis; the owner keeps it right.
        worker: Node name.
    """

    def __init__(self, maskers: Mapping[str, Masker], clock: RedisClock, worker: str) -> None:
        super().__init__()
        self._maskers = maskers
        self._clock = clock
        self._worker = worker
        self._swapping = threading.Lock()
        self._lines: dict[str, deque[tuple[float, str, str]]] = {}

    def open(self) -> None:
        logging.getLogger(_PARENT).addHandler(self)

    def close(self) -> None:
        logging.getLogger(_PARENT).removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        server = record.name.removeprefix(f"{_PARENT}.")
        if server in self._maskers:
            line = time.monotonic(), record.levelname, record.getMessage()
            with self._swapping:
                self._lines.setdefault(server, deque(maxlen=KEPT_LINES)).append(line)

    def write(self, redis: Any) -> None:
        """Append to Redis what came since the last time. Raises `RedisError`; then the next time tries again."""
        with self._swapping:
            lines, self._lines = self._lines, {}
        if not lines:
            return
        try:
            with redis.pipeline(transaction=False) as pipeline:
                for server, found in lines.items():
                    write_server_log(pipeline, server, [self._build(server, *each) for each in found])
                pipeline.execute()
        except BaseException:
            with self._swapping:
                for server, found in lines.items():
                    self._lines[server] = deque([*found, *self._lines.get(server, ())], maxlen=KEPT_LINES)
            raise

    def _build(self, server: str, at: float, level: str, text: str) -> LogLine:
        masked = self._maskers[server].mask(text)[:LONGEST_LINE].encode("utf-8", "replace").decode()
        return LogLine(at=round(self._clock.at(at), 3), worker=self._worker, level=level, text=masked)
