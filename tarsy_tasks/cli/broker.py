"""The broker's Redis, for commands that read it.

Owns the connection, and the errors for operators when it fails.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from kombu.exceptions import OperationalError
from redis.exceptions import RedisError, ResponseError

import tarsy_tasks
from tarsy_tasks.errors import BrokerUnavailable, TarsyTasksError

__all__ = ["broker"]


@contextmanager
def broker() -> Generator[Any]:
    """A redis-py client of the broker's database.

    Raises:
        BrokerUnavailable: Redis could not be reached.
        TarsyTasksError: It refused a command.
    """
    try:
        with (
            tarsy_tasks.app.connection_for_write() as connection,
            connection.channel() as channel,
            channel.conn_or_acquire() as client,
        ):
            yield client
    except ResponseError as error:
        raise TarsyTasksError(f"Redis refused a command: {error}") from None
    except (RedisError, OperationalError, OSError) as error:
        reason = str(error).rstrip(".")
        text = f"Redis could not be reached: {reason}. Start it, or correct TARSY_REDIS_URL."
        raise BrokerUnavailable(text) from None
