"""Lines out of a stream of bytes, in linear time and bounded memory.

Owns the splitting, and what is kept of a line that is too long. It does no I/O and knows no protocol.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["KEPT_BYTES", "BoundedLines", "LongLine", "beginning_of"]

KEPT_BYTES = 1024
"""Of a line that is too long, this much of either end is kept: one of them contains the request id."""


@dataclass(frozen=True)
class LongLine:
    """A line above the limit, of which only the ends were kept."""

    head: bytes
    tail: bytes
    size_bytes: int


class BoundedLines:
    """Splits at line feeds, holding at most `limit_bytes` and a chunk; longer lines are not returned whole.

    Attributes:
        size_bytes: Of the current line, so far.
        head: How it begins, if it is too long.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._begin()

    def _begin(self) -> None:
        self._parts: list[bytes] = []
        self.size_bytes = 0
        self.head = self._tail = b""

    @property
    def discarding(self) -> bool:
        """Whether the current line is too long, so that the rest of it is discarded."""
        return bool(self.head)

    def feed(self, chunk: bytes) -> Iterator[bytes | LongLine]:
        """The lines that this chunk completes."""
        if b"\n" not in chunk:  # of a long line: not worth a copy
            ends, rest = (), chunk
        else:
            *ends, rest = chunk.split(b"\n")
        for end in ends:
            if not self.size_bytes:
                yield end if len(end) <= self._limit_bytes else LongLine(end[:KEPT_BYTES], end[-KEPT_BYTES:], len(end))
                continue
            self._keep(end)
            yield from self.finish()
        if rest:
            self._keep(rest)

    def _keep(self, part: bytes) -> None:
        self.size_bytes += len(part)
        self._tail = (self._tail + part[-KEPT_BYTES:])[-KEPT_BYTES:]
        if self.size_bytes <= self._limit_bytes:
            self._parts.append(part)
        elif not self.head:
            self.head = beginning_of([*self._parts, part])
            self._parts = []

    def finish(self) -> Iterator[bytes | LongLine]:
        """The last line, if no line feed has ended it."""
        if self.head:
            yield LongLine(self.head, self._tail, self.size_bytes)
        elif self.size_bytes:
            yield b"".join(self._parts)
        self._begin()


def beginning_of(parts: Iterable[bytes], between: bytes = b"") -> bytes:
    """What is kept of the beginning of a text in parts, which together are too large to be copied for that."""
    head = b""
    for part in parts:
        head += part[:KEPT_BYTES] + between
        if len(head) >= KEPT_BYTES:
            break
    return head.removesuffix(between)[:KEPT_BYTES]
