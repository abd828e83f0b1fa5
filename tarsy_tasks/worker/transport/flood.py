"""A limit on the messages that a server sends unasked: all servers of a worker share one event loop.

Owns the estimate of what a message costs the loop, the token bucket, and the list of notifications that are read at
all. It drops only notifications that nobody reads, and progress once there is too much of it. The reader of a transport
pauses, so that the pipe or the socket fills and the server has to wait.
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
"""What each request adds to the bucket, so that progress and logs of a busy server do not count as a flood."""
_CAPACITY_S = 1.0
_HANDLED_S = 250e-6
_DROPPED_S = 5e-6
_GARBAGE_S = 8e-6
_BYTE_S = 10e-9
_SHORTEST_PAUSE_S = 0.01
"""A shorter pause is left for later: a timer costs the loop time too."""
_LONGEST_PAUSE_S = 1.0
_MAX_DEBT_S = 0.5
"""So that reading is at full speed ten seconds after a flood has ended, however large it was."""
_WARN_AFTER_S = 1.0
_WARN_EVERY_S = 60.0
_MAX_EXPECTED = 10_000
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
"""With the keys in the order in which all known SDKs write them."""


class Flood:
    """The token bucket of one server over one session; its tokens are seconds of the event loop.

    Args:
        carrier_s: What the transport costs the loop per message, beside the message itself.
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
        """A request was sent: its answer is free, however large, and the bucket gets 2 ms for messages beside it."""
        self._expected = min(self._expected + 1, _MAX_EXPECTED)
        self._left_s = min(self._left_s + _CALL_S, _CAPACITY_S)

    def admit(self, message: bytes) -> bool:
        """Charge a message of the server; False if it is to be dropped: a notification that nobody reads, or progress
        in a flood.
        """
        self._count += 1
        found = _METHOD.match(message)
        if found is None:
            if b'"jsonrpc"' not in message:  # garbage, whose log has its own limit
                self._charge(self._carrier_s + _GARBAGE_S)
                return True
            # An answer. A message with its keys in another order counts as one too, while one is expected.
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
            # A later one replaces it, and the answers behind it arrive sooner.
            return self._left_s < 0
        return method not in _READ_NOTIFICATIONS

    def charge_chunk(self, size_bytes: int) -> None:
        """Charge a chunk that completed no message: a comment, or a single byte."""
        if size_bytes < _SMALL_CHUNK_BYTES:
            self._charge(self._carrier_s)

    def _charge(self, cost_s: float) -> None:
        self._left_s = max(self._left_s - cost_s, -_MAX_DEBT_S)

    async def pause(self) -> None:
        """Wait until the bucket is not in debt; usually not at all."""
        if self._left_s < 0 and (pause_s := self._pause_s()):
            await asyncio.sleep(pause_s)

    def _pause_s(self) -> float:
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
            "MCP server %s sends too many notifications: %d/s; it is read more slowly",
            self._server,
            self._count / slow_s,
        )
