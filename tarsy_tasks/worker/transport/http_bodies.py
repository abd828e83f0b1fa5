"""The body of an HTTP response: read up to a limit, in small pieces, and recognised by its content type."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp_types import JSONRPCError
from pydantic import ValidationError

from tarsy_tasks.worker.transport.flood import Flood
from tarsy_tasks.worker.transport.message_bounds import LARGE_BYTES

__all__ = ["error_of", "is_event_stream", "is_json", "pieces_of", "read_body"]

_PIECE_BYTES = 16 * 1024
_FEW_CHUNKS = 64
"""As many small chunks as any answer may come in."""


class _Pieces:
    """A body in pieces of at most 16 kB, so that its reader can pause between them. Not a generator: one that is not
    read to its end has to be closed.
    """

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk = b""
        self._read = 0

    def __aiter__(self) -> "_Pieces":
        return self

    async def __anext__(self) -> bytes:
        if self._read >= len(self._chunk):
            self._chunk, self._read = await anext(self._chunks), 0
        start, self._read = self._read, self._read + _PIECE_BYTES
        return self._chunk[start : self._read]


def pieces_of(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The body as it comes, decompressed, for a reader that takes time for each byte."""
    return _Pieces(_chunks_of(response))


def _chunks_of(response: httpx2.Response) -> AsyncIterator[bytes]:
    # The other way costs time, and an iterator that is not read to its end has to be closed.
    if "content-encoding" not in response.headers and isinstance(response.stream, httpx2.AsyncByteStream):
        return aiter(response.stream)
    return response.aiter_bytes()


async def read_body(response: httpx2.Response, limit_bytes: int, flood: Flood | None = None) -> bytes | None:
    """The whole body, or None if it is larger than the limit; the response is closed afterwards.

    Args:
        flood: Slows the reading of a body that comes in very many chunks. Without it the limit has to be small.
    """
    body = bytearray()
    count = 0
    try:
        async for chunk in _chunks_of(response):
            body += chunk
            count += 1
            if len(body) > limit_bytes:
                return None
            if flood is not None and count > _FEW_CHUNKS:
                flood.charge_chunk(len(chunk))
                await flood.pause()
    finally:
        await response.aclose()
    return bytes(body)


def is_json(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("application/json")


def is_event_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


def error_of(body: bytes) -> dict[str, Any] | None:
    """The error of a JSON-RPC answer; None for any other body, such as a gateway's own error, or a large one."""
    if len(body) > LARGE_BYTES:
        return None
    try:
        error = JSONRPCError.model_validate_json(body).error
    except ValidationError:
        return None
    return error.model_dump(exclude_none=True)
