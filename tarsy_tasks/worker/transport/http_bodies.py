"""The body of an HTTP response: read up to a limit, and recognised by its content type."""

from typing import Any

import httpx2
from mcp_types import JSONRPCError
from pydantic import ValidationError

__all__ = ["error_of", "is_event_stream", "is_json", "read_body"]


async def read_body(response: httpx2.Response, limit_bytes: int) -> bytes | None:
    """The whole body, or None if it is larger than the limit; the response is closed afterwards."""
    pieces: list[bytes] = []
    size = 0
    try:
        async for piece in response.aiter_bytes():
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
    """The error of a JSON-RPC answer; None for any other body, such as a gateway's own error."""
    if b'"error"' not in body:
        return None  # do not parse results here: they may be large, and are parsed later
    try:
        error = JSONRPCError.model_validate_json(body).error
    except ValidationError:
        return None
    return error.model_dump(exclude_none=True)
