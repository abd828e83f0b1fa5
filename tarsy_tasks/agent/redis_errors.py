"""What an agent makes of an error of Redis: try again until the deadline, give up, or doubt.

Owns the classification; the texts for agents are where the errors are raised.
"""

from functools import cache
from socket import gaierror

from tarsy_tasks.broker.async_exchange import NotSentError

__all__ = ["connection_errors", "is_refusal", "may_have_been_sent"]


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
    """Whether Redis may have executed the command that failed: all but attempts that found no server to connect to, or
    lost it before."""
    from redis.exceptions import RedisError

    while True:
        cause = error.__cause__ or error.__context__
        if cause is None:
            # kombu raises LimitExceeded alone, when no connection becomes free in time.
            return isinstance(error, (RedisError, OSError)) and not isinstance(error, _NOT_SENT)
        if isinstance(error, RedisError) and not isinstance(cause, _NOT_SENT):
            return True
        error = cause


_NOT_SENT = (ConnectionRefusedError, gaierror, NotSentError)
