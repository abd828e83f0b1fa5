"""Deadlines of an agent: how long there is left, and trying again until then."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal

__all__ = ["retry_until", "seconds_until"]

T = TypeVar("T")

_RETRY_WAIT_S = 0.2


def seconds_until(deadline: float) -> float:
    """Seconds until a monotonic time; 0 when it has passed."""
    left_s = deadline - time.monotonic()
    return left_s if left_s > 0 else 0.0


async def retry_until(deadline: float, attempt: Callable[[], Awaitable[T]]) -> T:
    """Try again on connection errors until a monotonic time; the last error is raised as it is."""
    while True:
        try:
            return await attempt()
        except connection_errors() as error:
            if is_refusal(error) or seconds_until(deadline) <= _RETRY_WAIT_S:
                raise
        await asyncio.sleep(_RETRY_WAIT_S)
