"""The body of an HTTP response: read up to a limit, and recognised by its content type."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
from mcp_types import JSONRPCError
from pydantic import ValidationError

from tarsy_tasks.worker.transport.message_limits import LARGE_BYTES

__all__ = ["chunks_of", "error_of", "is_event_stream", "is_json", "read_body"]


def chunks_of(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The body as it comes, decompressed."""
    # The other way costs time, and an iterator that is not read to its end has to be closed.
    if "content-encoding" not in response.headers and isinstance(response.stream, httpx2.AsyncByteStream):
        return aiter(response.stream)
    return response.aiter_bytes()


async def read_body(response: httpx2.Response, limit_bytes: int) -> bytes | None:
    """The whole body, or None if it is larger than the limit; the response is closed afterwards."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in chunks_of(response):
            size += len(piece)
            if size > limit_bytes:
                return None
            pieces.append(piece)
    finally:
        await response.aclose()
    return b"".join(pieces)


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
