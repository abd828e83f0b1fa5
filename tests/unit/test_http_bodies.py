"""Bodies of HTTP responses are read in small pieces, also when a little data becomes much."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import httpx2
import pytest

from tarsy_tasks.worker.transport.http_bodies import pieces_of, read_body

TEXT = b"\n" * 3_000_000


class Body(httpx2.AsyncByteStream):
    """One that comes in these chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk


def response(is_compressed: bool) -> httpx2.Response:
    headers = {"content-encoding": "gzip"} if is_compressed else {}
    return httpx2.Response(200, headers=headers, stream=Body(gzip.compress(TEXT) if is_compressed else TEXT))


@pytest.mark.parametrize("is_compressed", [True, False])
def test_no_piece_is_large(is_compressed: bool) -> None:
    async def main() -> list[bytes]:
        return [piece async for piece in pieces_of(response(is_compressed))]

    pieces = asyncio.run(main())
    assert b"".join(pieces) == TEXT
    assert max(map(len, pieces)) <= 16 * 1024


@pytest.mark.parametrize("is_compressed", [True, False])
def test_no_more_is_read_than_may_be(is_compressed: bool) -> None:
    assert asyncio.run(read_body(response(is_compressed), len(TEXT))) == TEXT
    assert asyncio.run(read_body(response(is_compressed), len(TEXT) - 1)) is None
