"""What an MCP server may say unasked, so that it cannot take the event loop that all servers of a worker share.

Owns the estimate of what a message costs the loop, the bucket that it is paid from, and the list of notifications that
are read at all. It drops only notifications that nobody reads; whoever reads from the server does the pausing, so that
the pipe or the socket fills and the server itself has to wait.
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
_BYTE_S = 10e-9
_SHORTEST_PAUSE_S = 0.01
"""A debt smaller than this is carried on: a timer costs the loop something, too."""
_LONGEST_PAUSE_S = 1.0
_WARN_AFTER_S = 1.0
_WARN_EVERY_S = 60.0
_MOST_EXPECTED = 10_000

_READ_NOTIFICATIONS = frozenset(
    f"notifications/{name}".encode()
    for name in (
        "cancelled",
        "elicitation/complete",
        "progress",
        "prompts/list_changed",
        "resources/list_changed",
        "resources/updated",
        "subscriptions/acknowledged",
        "tasks/status",
        "tools/list_changed",
    )
)
_METHOD_FIRST = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"method"\s*:\s*"([^"\\]{1,100})"')


class Flood:
    """The account of one server's messages over one session.

    Args:
        server: Its id, for the warning.
        carrier_s: What the transport costs the loop for each message, beside the message itself.
    """

    def __init__(self, server: str, carrier_s: float = 0.0) -> None:
        self._server = server
        self._carrier_s = carrier_s
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
        """Charge a message of the server; False if it is one that nobody reads, which is to be dropped."""
        self._count += 1
        found = _METHOD_FIRST.match(message)
        if found is None:
            # An answer, or a message in an unusual order, which may pass for one as long as one is due.
            if self._expected:
                self._expected -= 1
                return True
        elif found[1].startswith(b"notifications/") and found[1] not in _READ_NOTIFICATIONS:
            self.charge(self._carrier_s + _DROPPED_S + len(message) * _BYTE_S)
            return False
        self.charge(self._carrier_s + _HANDLED_S + len(message) * _BYTE_S)
        return True

    def charge(self, cost_s: float) -> None:
        """Take from the bucket what something costs the loop, in seconds."""
        self._left_s -= cost_s

    @property
    def pause_s(self) -> float:
        """How long to stop reading from the server now; 0.0 as a rule."""
        if self._left_s >= 0:
            return 0.0
        now = time.monotonic()
        self._left_s = min(self._left_s + (now - self._filled_at) * _SHARE, _BUCKET_S)
        self._filled_at = now
        if self._left_s >= 0:
            if self._left_s > _BUCKET_S / 2:
                self._slow_since, self._count = None, 0
            return 0.0
        pause_s = -self._left_s / _SHARE
        if pause_s < _SHORTEST_PAUSE_S:
            return 0.0
        self._warn(now)
        return min(pause_s, _LONGEST_PAUSE_S)

    async def pause(self) -> None:
        """Stop reading from the server for as long as it owes."""
        if pause_s := self.pause_s:
            await asyncio.sleep(pause_s)

    def _warn(self, now: float) -> None:
        if self._slow_since is None:
            self._slow_since, self._count = now, 0
        slow_s = now - self._slow_since
        if slow_s < _WARN_AFTER_S or (self._warned_at is not None and now - self._warned_at < _WARN_EVERY_S):
            return
        self._warned_at = now
        logger.warning(
            "MCP server %s floods notifications: reading is slowed, to %d/s", self._server, self._count / slow_s
        )
