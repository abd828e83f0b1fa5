"""What an agent makes of an error of Redis: try again until the deadline, give up, or doubt.

Owns the classification; the texts for agents are where the errors are raised.
"""

import time
from functools import cache
from socket import gaierror
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenacity import Retrying

__all__ = ["RETRY_WAIT_S", "connection_errors", "is_refusal", "may_have_been_sent", "retry_until"]

RETRY_WAIT_S = 0.2


@cache
def connection_errors() -> tuple[type[Exception], ...]:
    """What Celery, kombu and redis-py raise when Redis cannot be reached, or refuses a command."""
    from kombu.exceptions import LimitExceeded, OperationalError
    from redis.exceptions import RedisError

    return (OperationalError, LimitExceeded, RedisError, OSError)


def is_refusal(error: BaseException) -> bool:
    """Whether Redis refuses this user or its password: to try again does not help."""
    from redis.exceptions import AuthenticationError, NoPermissionError

    return isinstance(error, (AuthenticationError, NoPermissionError))


def may_have_been_sent(error: BaseException) -> bool:
    """Whether Redis may have executed the command that failed: all but attempts that found no server to connect to."""
    from redis.exceptions import RedisError

    while True:
        cause = error.__cause__ or error.__context__
        if cause is None:
            # kombu raises LimitExceeded alone, when no connection becomes free in time.
            return isinstance(error, (RedisError, OSError)) and not isinstance(error, _NOT_CONNECTED)
        if isinstance(error, RedisError) and not isinstance(cause, _NOT_CONNECTED):
            return True
        error = cause


_NOT_CONNECTED = (ConnectionRefusedError, gaierror)


def retry_until(deadline: float) -> "Retrying":
    """Retries on connection errors until a monotonic time; the last error is raised as it is."""
    from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

    errors = connection_errors()
    return Retrying(
        retry=retry_if_exception(lambda error: isinstance(error, errors) and not is_refusal(error)),
        stop=stop_after_delay(max(0.0, deadline - time.monotonic() - RETRY_WAIT_S)),
        wait=wait_fixed(RETRY_WAIT_S),
        reraise=True,
    )
