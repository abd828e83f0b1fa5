"""What an error of Redis means to the one whose command failed: wait, ask an operator, or change the command.

Owns the classification, for workers and agents. What they do, and the texts, are where the errors are raised.
"""

from enum import Enum, auto

from redis.exceptions import AuthenticationError, AuthorizationError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = ["ErrorKind", "classify_error"]


class ErrorKind(Enum):
    """How an error can end."""

    PASSING = auto()
    """Redis is unavailable, full, cannot save, or fails over: the same command may succeed later."""
    REFUSED = auto()
    """Redis refuses this user or its password: an operator has to act."""
    WRONG = auto()
    """The command will never succeed."""


_PASSING_CODES = frozenset({
    "BUSY",  # a script runs too long
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",  # its snapshot or its append-only file cannot be written: mostly the disk is full
    "NOREPLICAS",  # fewer than min-replicas-to-write
    "OOM",  # above maxmemory
    "READONLY",  # it has become a replica
    "TRYAGAIN",
    "UNBLOCKED",  # CLIENT UNBLOCK
    "UNKILLABLE",
})  # fmt: skip
_REFUSED_CODES = frozenset({"NOAUTH", "NOPERM", "WRONGPASS"})


def classify_error(error: BaseException) -> ErrorKind:
    """The kind of an error of redis-py or of the operating system."""
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return ErrorKind.REFUSED
    if isinstance(error, (RedisConnectionError, RedisTimeoutError, OSError)):
        return ErrorKind.PASSING
    if isinstance(error, ResponseError):
        # redis-py takes the code off the text where it has a class for it.
        code = error.status_code or str(error).partition(" ")[0]
        if code in _REFUSED_CODES:
            return ErrorKind.REFUSED
        return ErrorKind.PASSING if code in _PASSING_CODES else ErrorKind.WRONG
    return ErrorKind.WRONG
