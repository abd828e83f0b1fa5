"""A key that holds another type than ours: what was put there by mistake or by another application gives way.

Owns telling that error from others, and the remedy. Only for keys whose contents are written again.
"""

import logging
from collections.abc import Mapping
from typing import Any

from redis.exceptions import ResponseError

__all__ = ["delete_wrong_types", "is_wrong_type"]

logger = logging.getLogger(__name__)


def is_wrong_type(error: BaseException) -> bool:
    """Whether Redis refused a command because its key holds another type."""
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")


def delete_wrong_types(redis: Any, types: Mapping[str, str]) -> None:
    """Delete those of the keys that hold another type, with a line in the log for each.

    Args:
        redis: A redis-py client.
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
            logger.warning("the key %s in Redis was a %s and no %s: it is deleted and written anew", key, kind, wanted)
            redis.delete(key)
