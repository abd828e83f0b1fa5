"""A key of the wrong type: a mistake, or another application, put something else where a key of ours should be.

Owns telling that error from others, reading around such keys, and replacing them. Only keys whose contents are written
again are replaced.
"""

import logging
from collections.abc import Mapping
from typing import Any

from redis.exceptions import ResponseError

__all__ = ["delete_wrong_types", "execute_reading", "is_wrong_type"]

logger = logging.getLogger(__name__)


def is_wrong_type(error: BaseException) -> bool:
    """Whether Redis refused a command because its key holds another type."""
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")


def execute_reading(pipeline: Any) -> list[Any]:
    """The replies of a redis-py pipeline, with None in place of those from keys of the wrong type.

    Raises:
        RedisError: Redis could not be reached, or replied with any other error, such as that it still loads its data.
    """
    replies: list[Any] = pipeline.execute(raise_on_error=False)
    for position, reply in enumerate(replies):
        if isinstance(reply, Exception):
            if not is_wrong_type(reply):
                raise reply
            replies[position] = None
    return replies


def delete_wrong_types(redis: Any, types: Mapping[str, str]) -> None:
    """Delete those of the keys that hold another type, with a line in the log for each.

    Args:
        types: The type that each key should have, in Redis' words.

    Raises:
        RedisError: Redis could not be reached.
    """
    pipeline = redis.pipeline(transaction=False)
    for key in types:
        pipeline.type(key)
    found = [each.decode() for each in pipeline.execute()]
    for (key, wanted), kind in zip(types.items(), found, strict=True):
        if kind not in (wanted, "none"):
            logger.warning("the key %s in Redis was a %s, not a %s: it is deleted and written again", key, kind, wanted)
            redis.delete(key)
