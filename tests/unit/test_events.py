"""Server-sent events: the format, in whatever pieces it arrives, and the bound."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks.worker.transport.events import Event, EventReader
from tarsy_tasks.worker.transport.lines import LongLine

LIMIT_BYTES = 5000
SOME = b"".join(
    [
        b"\xef\xbb\xbf: welcome\n\n",
        b"event: endpoint\ndata: /messages?session=1\n\n",
        b'data: {"a":\ndata:  1}\nid: 7\nretry: 50\nunknown: x\nnonsense\n\n',
        b"id: 8\n\n",
        b"event: nothing\n\n",
        b"data\n\n",
        b"data: " + b"x" * LIMIT_BYTES + b"\n\n",
        b"data: begin" + b"x" * LIMIT_BYTES + b"end\n\n",
        b"data: " + b"begin" * 500 + b"\ndata: " + b"x" * LIMIT_BYTES + b"end\n\n",
        b"data: cut off",
    ]
)


def _read(*chunks: bytes) -> list[Event]:
    reader = EventReader(LIMIT_BYTES)
    return [event for chunk in chunks for event in reader.feed(chunk)]


def test_events_are_read_as_the_format_says() -> None:
    endpoint, message, mark, empty, longest, *too_long = _read(SOME)
    assert endpoint == Event(b"endpoint", b"/messages?session=1")
    assert message == Event(b"message", b'{"a":\n 1}', (b"id: 7", b"retry: 50"))
    assert (mark, empty) == (Event(b"message", b"", (b"id: 8",)), Event(b"message", b""))
    assert longest == Event(b"message", b"x" * LIMIT_BYTES)
    for event, size in zip(too_long, (LIMIT_BYTES + 8, LIMIT_BYTES + 2504), strict=True):
        assert isinstance(event.data, LongLine)
        assert event.data.head.startswith(b"begin")
        assert event.data.tail.endswith(b"xend")
        assert event.data.size_bytes in (size, size + 6)  # with the field's name, where the line itself was too long


@given(cuts=st.lists(st.integers(0, len(SOME)), max_size=20), end=st.sampled_from([b"\n", b"\r", b"\r\n"]))
def test_events_do_not_depend_on_how_they_arrive(cuts: list[int], end: bytes) -> None:
    text = SOME.replace(b"\n", end)
    places = [0, *sorted(cuts), len(text)]
    chunks = [text[start:stop] for start, stop in pairwise(places)]
    assert _read(*chunks) == _read(SOME)


@given(data=st.binary(max_size=100).filter(lambda data: b"\r" not in data))
def test_an_event_is_read_as_it_was_written(data: bytes) -> None:
    assert _read(Event(b"message", b"", (b"id: 7",)).encode(data)) == [Event(b"message", data, (b"id: 7",))]


def test_very_many_empty_lines_and_comments_are_none() -> None:
    padding = [b"\n" * 300, b":\n" * 300, b": x\r\n\r\n" * 300, b"\n:\n\n" * 300]
    whole = b"".join(b"data: %d\n\n" % number + each + b": end\n" for number, each in enumerate(padding))
    for size in (1, 7, 1000, len(whole)):
        events = _read(*(whole[start : start + size] for start in range(0, len(whole), size)))
        assert [event.data for event in events] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(("end", "most_mb"), [(b"x" * 100_000, 5), (b"\n\n", 13)], ids=["too large", "large"])
def test_a_large_event_is_copied_no_more_than_it_must_be(end: bytes, most_mb: int) -> None:
    reader = EventReader(4_000_000)
    chunks = [b"data: ", *(b"x" * 16_000 for _ in range(249)), end]
    tracemalloc.start()
    try:
        for chunk in chunks:
            list(reader.feed(chunk))
        assert tracemalloc.get_traced_memory()[1] < most_mb * 1_000_000
    finally:
        tracemalloc.stop()
