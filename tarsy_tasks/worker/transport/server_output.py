"""What an MCP server writes outside of the protocol: lines on stderr, and garbage on stdout.

Owns the log lines of the server, the last lines that an error text quotes, and the limits that protect log and event
loop from a server that writes too much. It does not read pipes.
"""

import logging
import re
import time
from collections import deque
from collections.abc import Iterable

from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.masker import Masker
from tarsy_tasks.worker.time_budget import TimeBudget
from tarsy_tasks.worker.transport.lines import LongLine

__all__ = ["ServerOutput"]

_LINE_LIMIT = 2_000
_SEARCHED_BYTES = 8_000
"""Of a line; the end of it is not shown, because it may be half of a secret."""
_VIEW_LINES, _VIEW_BYTES = 200, 4_000
"""The earlier lines that are masked together with a line, if one of them matches `_REACHES_FAR`."""
_NEAR_BYTES = 1_000
"""The same in all other cases."""
_REACHES_FAR = re.compile(rb"Secret|[dD]ata[\"']?:")
_LAST_LINES = 5
_NOISE = re.compile(r"npm (?:warn|notice)\b", re.IGNORECASE)
"""What npx writes before it starts a server, and what explains no failure."""
_LAST_LINES_CHARS = 600
_LINES_PER_S = 50
_SHARE = 0.05
"""Of the event loop's time, for the reading of stderr, and for logging: what masking a line costs depends on it."""
_BUDGET_S, _MOST_DEBT_S = 0.25, 0.25
_CHUNK_S = 30e-6
"""What a chunk of stderr costs beside its lines."""
_KEY_BEGINS, _KEY_ENDS = b"PRIVATE KEY", b"-----END "
_KEY_LINES = 200
"""More than the longest private key."""
_MASKED_LINE = MASK.encode()


class ServerOutput:
    """Logs one server's lines as `tarsy_tasks.server.<id>`, masked, and remembers the last few."""

    def __init__(self, server: str, masker: Masker) -> None:
        self._server = server
        self._logger = logging.getLogger(f"tarsy_tasks.server.{server}")
        self._masker = masker
        self._view: deque[bytes] = deque(maxlen=_VIEW_LINES)
        self._view_bytes = 0
        self._key_lines = 0
        self._second = self._logged = self._left_out = 0
        self._reading = TimeBudget(share=_SHARE, capacity_s=_BUDGET_S, most_debt_s=_MOST_DEBT_S)
        self._logging = TimeBudget(share=_SHARE, capacity_s=_BUDGET_S, most_debt_s=_MOST_DEBT_S)

    def record_line(self, line: bytes, *, level: int = logging.INFO, what: str = "stderr") -> None:
        """Log a line, unless there were too many already."""
        began = time.thread_time()
        second = int(time.monotonic())
        if second != self._second:
            if self._left_out:
                self._logger.warning("MCP server %s: %d more lines were not logged", self._server, self._left_out)
            self._second, self._logged, self._left_out = second, 0, 0
        self._remember(self._without_key(line[:_SEARCHED_BYTES]))
        read = time.thread_time()
        self._reading.charge(read - began)
        if not line:
            return
        if self._logged >= _LINES_PER_S or (self._logging.left_s < 0 and self._logging.pause_s()):
            self._left_out += 1
            return
        self._logged += 1
        self._logger.log(level, "MCP server %s, %s: %s", self._server, what, self._last_line())
        self._logging.charge(time.thread_time() - read)

    def pause_s(self) -> float:
        """How long to wait before more of stderr is read, usually 0."""
        self._reading.charge(_CHUNK_S)
        return self._reading.pause_s() if self._reading.left_s < 0 else 0.0

    def record_garbage(self, text: bytes | LongLine, where: str) -> None:
        """As `record_line`, for a message that is not JSON-RPC."""
        if isinstance(text, LongLine):
            what = f"{text.size_bytes} bytes {where}, above max_message_bytes and without a request id"
            self.record_line(text.head, level=logging.WARNING, what=what)
        else:
            self.record_line(text, level=logging.WARNING, what=f"not JSON-RPC, {where}")

    def clear(self) -> None:
        """A new process starts, whose end the earlier lines do not explain."""
        self._view.clear()
        self._view_bytes = 0

    def last_lines(self) -> str:
        """The last lines, for an error text; empty if there were none."""
        lines = (line for line in self._mask_lines(self._view.copy()).split("\n") if line and not _NOISE.match(line))
        return self._masker.mask("\n".join(deque(lines, _LAST_LINES)))[-_LAST_LINES_CHARS:]

    def _remember(self, line: bytes) -> None:
        if len(self._view) == _VIEW_LINES:
            self._view_bytes -= len(self._view.popleft())
        self._view.append(line)
        self._view_bytes += len(line)
        while self._view_bytes > _VIEW_BYTES and len(self._view) > 1:
            self._view_bytes -= len(self._view.popleft())

    def _mask_lines(self, lines: Iterable[bytes]) -> str:
        """Lines masked together: whether one contains a secret may depend on the lines above it, where it may even
        begin. What ends like the beginning of a known secret is masked at once, for the next line may have the rest."""
        texts = self._masker.mask_known_pieces([*map(self._text_of, lines)])
        if texts:
            texts[-1] = self._masker.mask_known_beginning(texts[-1])
        return self._masker.mask("\n".join(texts))

    def _last_line(self) -> str:
        reaches_far = _REACHES_FAR.search(b"\n".join(self._view))
        seen = self._mask_lines(self._view.copy() if reaches_far else self._near())
        return self._masker.mask(seen.rpartition("\n")[2])[:_LINE_LIMIT]

    def _near(self) -> list[bytes]:
        """The last line and those right above it."""
        size = 0
        lines: list[bytes] = []
        for line in reversed(self._view):
            size += len(line)
            if lines and size > _NEAR_BYTES:
                break
            lines.append(line)
        return lines[::-1]

    def _text_of(self, line: bytes) -> str:
        """A line as text. If it was cut, its end is removed, because it may be half of a secret."""
        text = line.decode("utf-8", "replace").rstrip()
        return text if len(line) < _SEARCHED_BYTES else self._masker.mask_start(text, _LINE_LIMIT)

    def _without_key(self, line: bytes) -> bytes:
        """The line, or a mask inside a private key, whose lines cannot be recognised alone."""
        if _KEY_ENDS in line:
            self._key_lines = 0
        elif _KEY_BEGINS in line and b"-----BEGIN " in line:
            self._key_lines = _KEY_LINES
        elif self._key_lines:
            self._key_lines -= 1
            return _MASKED_LINE
        return line
