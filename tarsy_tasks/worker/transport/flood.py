"""What an MCP server may say unasked, so that it cannot take the event loop that all servers of a worker share.

Owns the estimate of what a message costs the loop, the bucket that it is paid from, and the list of notifications that
are read at all. It drops only notifications that nobody reads, and progress once there is too much of it; whoever reads
from the server does the pausing, so that the pipe or the socket fills and the server itself has to wait.
"""

import asyncio
import logging
import re
import time

__all__ = ["Flood"]

logger = logging.getLogger(__name__)

_SHARE = 0.05
"""Of the loop's time, once the bucket is empty."""
_BUCKET_S = 0.2
"""Loop time at once: some 800 messages that are handled, or 40 000 that are dropped, pass without a pause."""
_CALL_S = 2e-3
"""What each request adds: the progress and the logs of a busy server are no flood. A call costs as much itself."""
_FULLEST_S = 1.0
_HANDLED_S = 250e-6
_DROPPED_S = 5e-6
_GARBAGE_S = 8e-6
_BYTE_S = 10e-9
_SHORTEST_PAUSE_S = 0.01
"""A debt smaller than this is carried on: a timer costs the loop something, too."""
_LONGEST_PAUSE_S = 1.0
_MOST_OWED_S = 0.5
"""A flood is over ten seconds after it has ended, however much it was."""
_WARN_AFTER_S = 1.0
_WARN_EVERY_S = 60.0
_MOST_EXPECTED = 10_000
_SMALL_CHUNK_BYTES = 4096

_READ_NOTIFICATIONS = frozenset(
    f"notifications/{name}".encode()
    for name in (
        "cancelled",
        "elicitation/complete",
        "prompts/list_changed",
        "resources/list_changed",
        "resources/updated",
        "subscriptions/acknowledged",
        "tasks/status",
        "tools/list_changed",
    )
)
_PROGRESS = b"notifications/progress"
_METHOD = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"id"\s*:\s*(?:-?\d+|"[^"\\]{0,200}")\s*,\s*)?'
    rb'"method"\s*:\s*"([^"\\]{1,100})"'
)
"""In the order in which everybody writes it."""


class Flood:
    """The account of one server's messages over one session.

    Args:
        server: Its id, for the warning.
        carrier_s: What the transport costs the loop for each message, beside the message itself.
        reply_s: What it costs to answer a request of the server.
    """

    def __init__(self, server: str, *, carrier_s: float, reply_s: float) -> None:
        self._server = server
        self._carrier_s = carrier_s
        self._reply_s = reply_s
        self._expected = 0
        self._left_s = _BUCKET_S
        self._filled_at = time.monotonic()
        self._slow_since: float | None = None
        self._warned_at: float | None = None
        self._count = 0

    def expect_answer(self) -> None:
        """A request was sent: its answer costs nothing, however large, and what is said beside it costs less."""
        self._expected = min(self._expected + 1, _MOST_EXPECTED)
        self._left_s = min(self._left_s + _CALL_S, _FULLEST_S)

    def admit(self, message: bytes) -> bool:
        """Charge a message of the server; False if it is to be dropped.

        That is a notification that nobody reads, and progress in a flood.
        """
        self._count += 1
        found = _METHOD.match(message)
        if found is None:
            if b'"jsonrpc"' not in message:  # garbage, which is logged at its own pace
                self._charge(self._carrier_s + _GARBAGE_S)
                return True
            # An answer, or a message in an unusual order, which may pass for one as long as one is due.
            if self._expected:
                self._expected -= 1
                return True
        elif not found[1].startswith(b"notifications/"):
            self._charge(self._reply_s)
        elif self._is_dropped(found[1]):
            self._charge(self._carrier_s + _DROPPED_S + len(message) * _BYTE_S)
            return False
        self._charge(self._carrier_s + _HANDLED_S + len(message) * _BYTE_S)
        return True

    def _is_dropped(self, method: bytes) -> bool:
        if method == _PROGRESS:
            # The next one says the same and more; and the answers behind it come sooner.
            return self._left_s < 0
        return method not in _READ_NOTIFICATIONS

    def charge_chunk(self, size_bytes: int) -> None:
        """Charge a piece of a stream that completed no message: a comment, or one byte of a thousand."""
        if size_bytes < _SMALL_CHUNK_BYTES:
            self._charge(self._carrier_s)

    def _charge(self, cost_s: float) -> None:
        self._left_s = max(self._left_s - cost_s, -_MOST_OWED_S)

    async def pause(self) -> None:
        """Stop reading from the server for as long as it owes: not at all, as a rule."""
        if self._left_s < 0 and (pause_s := self._owed_pause_s()):
            await asyncio.sleep(pause_s)

    def _owed_pause_s(self) -> float:
        now = time.monotonic()
        self._left_s = min(self._left_s + (now - self._filled_at) * _SHARE, _BUCKET_S)
        self._filled_at = now
        if self._left_s > _BUCKET_S / 2:
            self._slow_since = None
        pause_s = -self._left_s / _SHARE
        if pause_s < _SHORTEST_PAUSE_S:
            return 0.0
        self._warn(now)
        return min(pause_s, _LONGEST_PAUSE_S)

    def _warn(self, now: float) -> None:
        if self._slow_since is None:
            self._slow_since, self._count = now, 0
        slow_s = now - self._slow_since
        if slow_s < _WARN_AFTER_S or (self._warned_at is not None and now - self._warned_at < _WARN_EVERY_S):
            return
        self._warned_at = now
        logger.warning(
            "MCP server %s floods notifications: %d/s, reading is slowed", self._server, self._count / slow_s
        )
