"""A limit on the messages that a server sends unasked: all servers of a worker share one event loop.

Owns the estimate of what a message costs the loop, and the list of notifications that are read at all. It drops only
notifications that nobody reads, and progress once there is too much of it. The reader of a transport pauses, so that
the pipe or the socket fills and the server has to wait.
"""

import asyncio
import logging
import re
import time
from collections import defaultdict

from tarsy_tasks.worker.time_budget import Suspension

__all__ = ["LOG_LINE", "PROGRESS", "Flood", "method_of"]

logger = logging.getLogger(__name__)

_SHARE = 0.05
"""Of the loop's time, once the bucket is empty."""
_BUCKET_S = 0.2
"""Loop time at once: some 800 messages that are handled, or 40 000 that are dropped, pass without a pause."""
_CALL_S = 2e-3
"""What each request adds to the bucket, so that progress and logs of a busy server do not count as a flood."""
_CAPACITY_S = 1.0
_HANDLED_S = 250e-6
_HEARD_S = 15e-6
"""Progress and log lines of calls to which somebody listens: they pass no task."""
_DROPPED_S = 5e-6
_GARBAGE_S = 8e-6
_BYTE_S = 10e-9
_DISCARDED_BYTE_S = 20e-9
_LINE_S = 0.5e-6
_FREE_LINES = 100
"""Of a piece of a stream: they cost less than to count them as more than that."""
_CHUNK_S = 15e-6
"""A chunk of HTTP, however small."""
_TURN_S = 2e-3
"""After so much the other servers have a turn."""
_LONGEST_PAUSE_S = 1.0
_MAX_DEBT_S = 0.5
"""So that reading is at full speed ten seconds after a flood has ended, however large it was."""
_WARN_AFTER_S = 1.0
_WARN_EVERY_S = 60.0
_MAX_EXPECTED = 10_000
_FREE_DISCARDED_BYTES = 100_000_000
"""Of an event that is too large, while an answer is expected: it may be that answer."""
_SMALL_CHUNK_BYTES = 256
"""A network delivers some 1400 bytes at a time, which are no fault of the server."""
_SMALL_UNASKED_BYTES = 4096
"""The same while no answer is expected."""
_MESSAGES, _SMALL, _LINES, _DISCARDED = "messages", "tiny pieces", "lines without a message", "too large messages"
"""What the loop's time goes into."""

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
PROGRESS = b"notifications/progress"
LOG_LINE = b"notifications/message"
_METHOD = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"id"\s*:\s*(?:-?\d+|"[^"\\]{0,200}")\s*,\s*)?'
    rb'"method"\s*:\s*"([^"\\]{1,100})"'
)
"""With the keys in the order in which all known SDKs write them."""


def method_of(message: bytes) -> bytes | None:
    """The method of a request or a notification; None for anything else, or if its keys are in an unusual order."""
    found = _METHOD.match(message)
    return None if found is None else found[1]


class Flood:
    """What one server costs the event loop, over all its sessions.

    Args:
        carrier_s: What the transport costs the loop per message, beside the message itself.
        reply_s: What it costs to answer a request of the server.
        suspension: Begins when slowing the server has not helped.

    Attributes:
        server: Its id.
        ignored: How many progress notifications and log lines were read that belonged to no call, or did not count.
    """

    def __init__(self, server: str, *, carrier_s: float, reply_s: float, suspension: Suspension | None = None) -> None:
        self.server = server
        self.ignored = 0
        self._carrier_s = carrier_s
        self._reply_s = reply_s
        self._suspension = suspension or Suspension()
        self._expected = 0
        self._budget = self._suspension.new_budget(share=_SHARE, capacity_s=_BUCKET_S, most_debt_s=_MAX_DEBT_S)
        self._in_turn_s = 0.0
        self._slow_since: float | None = None
        self._warned_at: float | None = None
        self._count = 0
        self._costs_s: defaultdict[str, float] = defaultdict(float)

    def expect_answer(self) -> None:
        """A request was sent: its answer is free, however large, and the bucket gets 2 ms for messages beside it."""
        self._expected = min(self._expected + 1, _MAX_EXPECTED)
        self._budget.left_s = min(self._budget.left_s + _CALL_S, _CAPACITY_S)

    def admit(self, message: bytes) -> bool:
        """Charge a message of the server; False if it is to be dropped: a notification that nobody reads, or progress
        in a flood. While the server is suspended, only answers are read.
        """
        found = _METHOD.match(message)
        cost_s = _HANDLED_S + len(message) * _BYTE_S
        if found is None:
            if b'"jsonrpc"' not in message:  # garbage, whose log has its own limit
                self._charge_message(_GARBAGE_S + len(message) * _BYTE_S)
                return True
            # An answer. A message with its keys in another order counts as one too, while one is expected.
            if self._expected:
                self._expected -= 1
                return True
        elif self._suspension.left_s or self._is_dropped(found[1]):
            self._charge_message(_DROPPED_S + len(message) * _BYTE_S)
            return False
        elif not found[1].startswith(b"notifications/"):
            cost_s += self._reply_s
        self._charge_message(cost_s)
        return True

    def charge_heard(self, message: bytes) -> None:
        """Charge progress or a log line that a call's listener took."""
        self._charge_message(_HEARD_S + len(message) * _BYTE_S)

    def _charge_message(self, cost_s: float) -> None:
        self._count += 1
        self.charge(self._carrier_s + cost_s, _MESSAGES)

    def _is_dropped(self, method: bytes) -> bool:
        if not method.startswith(b"notifications/"):
            return False
        if method == PROGRESS:
            # A later one replaces it, and the answers behind it arrive sooner.
            return self._budget.left_s < 0
        return method not in _READ_NOTIFICATIONS

    def charge_piece(self, piece: bytes, *, has_event: bool, discarded_bytes: int = 0) -> None:
        """Charge a piece of an event stream for what is not in its messages: its lines, and that it had to be read.

        Args:
            discarded_bytes: Size so far of the event of which it is a part, if that is too large.
        """
        is_discarded = discarded_bytes > (_FREE_DISCARDED_BYTES if self._expected else 0)
        if is_discarded:
            self.charge(len(piece) * _DISCARDED_BYTE_S, _DISCARDED)
        lines = piece.count(b"\n") + piece.count(b"\r")
        if lines > _FREE_LINES:
            self.charge(lines * _LINE_S, _LINES)
        if not has_event and len(piece) < self._small_bytes(is_discarded=is_discarded):  # a comment, or a single byte
            self.charge(self._carrier_s, _SMALL)

    def _small_bytes(self, *, is_discarded: bool = False) -> int:
        return _SMALL_CHUNK_BYTES if self._expected and not is_discarded else _SMALL_UNASKED_BYTES

    def charge_chunk(self, size_bytes: int) -> None:
        """Charge a chunk of a body that is small."""
        if size_bytes < self._small_bytes():
            self.charge(_CHUNK_S, _SMALL)

    def charge(self, cost_s: float, kind: str) -> None:
        """Charge seconds of the event loop."""
        self._budget.charge(cost_s)
        self._costs_s[kind] += cost_s
        self._in_turn_s += cost_s

    async def pause(self) -> None:
        """Wait until the server is not in debt, usually not at all; let others run if it took long."""
        if self._budget.left_s < 0 and (pause_s := self._budget.pause_s()):
            self._warn()
            self._in_turn_s = 0.0
            await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S))
        elif self._in_turn_s > _TURN_S:
            self._in_turn_s = 0.0
            await asyncio.sleep(0)

    def _warn(self) -> None:
        now, since = time.monotonic(), self._budget.slow_since
        if since is None:  # it is suspended
            return
        if self._slow_since != since:
            self._slow_since, self._count = since, 0
            self._costs_s.clear()
        if (slow_s := now - since) < _WARN_AFTER_S or not self._costs_s:
            return
        what = max(self._costs_s, key=self._costs_s.__getitem__)
        if what == _MESSAGES:
            what = f"{self._count / slow_s:.0f} messages/s"
        self._suspension.note_excess(self._budget, f"it sends more than a worker can read alongside its work: {what}")
        if self._warned_at is None or now - self._warned_at >= _WARN_EVERY_S:
            self._warned_at = now
            logger.warning(
                "MCP server %s sends too much beside its answers: %s; it is read more slowly", self.server, what
            )
