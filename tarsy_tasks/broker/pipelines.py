"""Reading many keys at once, of which some may hold something else than they should.

Owns one rule: a key of the wrong type spoils its own reply only. Any other error, such as a Redis that still loads its
data, concerns the whole exchange.
"""

from typing import Any

from redis.exceptions import ResponseError

__all__ = ["execute_reading"]


def execute_reading(pipeline: Any) -> list[Any]:
    """The replies of a redis-py pipeline, with None in place of those from keys of the wrong type.

    Raises:
        RedisError: Redis could not be reached, or answered with any other error.
    """
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    for position, reply in enumerate(replies):
        if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
            replies[position] = None
        elif isinstance(reply, Exception):
            raise reply
    return replies
