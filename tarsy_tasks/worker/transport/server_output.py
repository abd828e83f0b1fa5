"""What an MCP server says outside of the protocol: stderr lines, and garbage on stdout.

Owns the tagged log lines, the last words that an error text quotes, and the bound on both: a server may flood, and
neither the log nor the event loop may drown in it. It does not read pipes.
"""

import logging
import string
import time
from collections import deque

from tarsy_tasks.masking import MASK, Masker

__all__ = ["ServerOutput"]

_LINE_LIMIT = 2_000
_WORD_LIMIT = 512
_WORD = string.ascii_letters.encode() + string.digits.encode() + b"+/=._~%-"
_LAST_WORDS_LINES = 5
_LAST_WORDS_LIMIT = 600
_LINES_PER_S = 50
_BYTES_PER_S = 8 * 1024 * 1024
_LINE_COST_BYTES = 400
"""What a line costs beside its bytes: a flood of empty lines would take the event loop as surely as one of long lines.
"""
_PAUSE_S = 0.05
_KEY_BEGINS, _KEY_ENDS = b"PRIVATE KEY", b"-----END "
_KEY_LINES = 200
"""No private key is longer."""
_MASKED_LINE = MASK.encode()


class ServerOutput:
    """Logs one server's lines as `tarsy_tasks.server.<id>`, masked, and remembers the last few.

    Args:
        server: Id of the server; the logger's name ends with it.
        masker: Applied to every line before it is logged or quoted.
    """

    def __init__(self, server: str, masker: Masker) -> None:
        self._logger = logging.getLogger(f"tarsy_tasks.server.{server}")
        self._masker = masker
        self._last: deque[bytes] = deque(maxlen=_LAST_WORDS_LINES)
        self._key_lines = 0
        self._second = 0
        self._lines = 0
        self._bytes = 0

    def record_line(self, line: bytes, *, level: int = logging.INFO, what: str = "stderr") -> float:
        """Log a line; returns how many seconds the reader should pause before it reads on (0.0 as a rule)."""
        second = int(time.monotonic())
        if second != self._second:
            if self._lines > _LINES_PER_S:
                self._logger.warning("%d more lines were left out of this log", self._lines - _LINES_PER_S)
            self._second, self._lines, self._bytes = second, 0, 0
        self._lines += 1
        self._bytes += len(line) + _LINE_COST_BYTES
        if line:
            shown = self._without_key(_cut(line))
            self._last.append(shown)
            if self._lines <= _LINES_PER_S:
                self._logger.log(level, "%s: %s", what, self._readable(shown))
        return _PAUSE_S if self._bytes > _BYTES_PER_S else 0.0

    def forget(self) -> None:
        """A new process begins: what the one before it said explains nothing any more."""
        self._last.clear()

    def last_words(self) -> str:
        """The last lines, for an error text; empty if there were none."""
        return self._readable(b"\n".join(filter(None, self._last.copy())))[-_LAST_WORDS_LIMIT:]

    def _without_key(self, line: bytes) -> bytes:
        """The line, or a mask if it is one of a private key: by itself it does not show it."""
        if _KEY_ENDS in line:
            self._key_lines = 0
        elif _KEY_BEGINS in line and b"-----BEGIN " in line:
            self._key_lines = _KEY_LINES
        elif self._key_lines:
            self._key_lines -= 1
            return _MASKED_LINE
        return line

    def _readable(self, line: bytes) -> str:
        return self._masker.mask(line.decode("utf-8", "replace").rstrip())


def _cut(line: bytes) -> bytes:
    """The line, as far as it is logged. Half a token would not be known for one, so no word is cut in two."""
    if len(line) <= _LINE_LIMIT:
        return line
    return line[: _LINE_LIMIT - _WORD_LIMIT] + line[_LINE_LIMIT - _WORD_LIMIT : _LINE_LIMIT].rstrip(_WORD)
