"""Server-sent events out of a stream of bytes, in linear time and bounded memory.

Owns the format (https://html.spec.whatwg.org/multipage/server-sent-events.html) and the limit for one event. The parser
of httpx2 ends the stream at an event above its limit. This one does no I/O.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tarsy_tasks.worker.transport.lines import KEPT_BYTES, BoundedLines, LongLine, beginning_of

__all__ = ["Event", "EventReader"]

_BOM = b"\xef\xbb\xbf"
_FIELD_SLACK = 16
"""For the name of the field, which is not part of the data."""
_MAX_LINES = 100_000
"""Of one event: an empty line costs memory too."""
_MANY_LINES = 100
"""Of a chunk."""
_COMMENTS = re.compile(rb"(?:\n:[^\n]*+)+(?=\n)")
_EMPTY_LINES = re.compile(rb"\n{3,}")


@dataclass(frozen=True)
class Event:
    """One event. `data` is a `LongLine` if it was above the limit; `marks` are its `id` and `retry` lines."""

    name: bytes
    data: bytes | LongLine
    marks: tuple[bytes, ...] = ()

    def encode(self, data: bytes) -> bytes:
        """The event as a server writes it, with other data."""
        lines = [b"event: " + self.name, *self.marks, *(b"data: " + line for line in data.split(b"\n"))]
        return b"\n".join(lines) + b"\n\n"


class EventReader:
    """Assembles events from chunks; `limit_bytes` is the largest data of one event that is returned whole."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lines = BoundedLines(limit_bytes + _FIELD_SLACK)
        self._after_cr = False
        self._at_start = True
        self._begin()

    def _begin(self) -> None:
        self._name = b""
        self._marks: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._head = self._tail = b""

    @property
    def is_discarding(self) -> bool:
        """Whether the current event is too large, so that the rest of it is discarded."""
        return bool(self._head) or self._lines.discarding

    @property
    def discarded_bytes(self) -> int:
        """Size so far of the event whose rest is discarded; 0 if none is."""
        return self._size + self._lines.size_bytes if self.is_discarding else 0

    @property
    def head(self) -> bytes:
        """How the data of that event begin."""
        return self._head or self._lines.head.removeprefix(b"data:")

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that this chunk completes. One that has only marks has empty data."""
        for line in self._lines.feed(self._with_line_feeds(chunk)):
            if isinstance(line, LongLine):
                if line.head.startswith(b"data:"):
                    self._add_data(line.head[5:].lstrip(b" "), line.tail, line.size_bytes)
            elif not line:
                if self._data or self._head or self._marks:
                    yield Event(self._name or b"message", self._whole_data(), tuple(self._marks))
                    self._begin()
                self._name = b""
            else:
                self._read_field(line)

    def _with_line_feeds(self, chunk: bytes) -> bytes:
        """A line ends with LF, CR, or CRLF; a chunk may end between CR and LF."""
        if not chunk:
            return chunk
        if self._at_start:
            self._at_start = False
            chunk = chunk.removeprefix(_BOM)
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if chunk.count(b"\n") > _MANY_LINES:
            # Here they cost a fiftieth of what they cost as lines.
            chunk = _EMPTY_LINES.sub(b"\n\n", _COMMENTS.sub(b"", chunk))
        return chunk

    def _read_field(self, line: bytes) -> None:
        if line.startswith(b"data:"):  # it may be large: it is copied once
            value = line[6:] if line[5:6] == b" " else line[5:]
            self._add_data(value, value, len(value))
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._add_data(value, value, len(value))
            case b"event":
                self._name = value[:KEPT_BYTES]
            case b"id" | b"retry" if len(self._marks) < 4:
                self._marks.append(line[:KEPT_BYTES])
            case _:
                pass  # comments, which keep the connection alive, and fields that the format tells to ignore

    def _add_data(self, value: bytes, end: bytes, size: int) -> None:
        self._size += size + 1
        self._tail = (self._tail + end[-KEPT_BYTES:])[-KEPT_BYTES:]
        if self._size - 1 <= self._limit_bytes and len(self._data) < _MAX_LINES:
            self._data.append(value)
        elif not self._head:
            self._head = beginning_of([*self._data, value], b"\n")
            self._data = []

    def _whole_data(self) -> bytes | LongLine:
        if self._head:
            return LongLine(self._head, self._tail, self._size - 1)
        return b"\n".join(self._data)
