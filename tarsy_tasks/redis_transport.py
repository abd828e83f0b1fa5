"""kombu's Redis transport without its largest cost: a new client object for every message.

Owns what the project changes in the broker's transport; selected by `broker_transport` in the defaults. Each override
names the behaviour that it replaces, and a test tells when upstream has mended it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as kombu_redis

__all__ = ["ALIAS", "Channel", "QoS", "Transport"]

ALIAS = "tarsy-redis"
"""The transport's name in Celery's settings and log lines."""


class QoS(kombu_redis.QoS):
    """Bookkeeping of unacknowledged messages without MULTI.

    Its two commands go out together and concern one message; a transaction around them costs two more, and guards
    against nothing: a connection that breaks in between has lost the reply either way.
    """

    @contextmanager
    def pipe_or_acquire(self, pipe: Any = None, client: Any = None) -> Generator[Any]:
        if pipe:
            yield pipe
        else:
            with self.channel.conn_or_acquire(client) as found:
                yield found.pipeline(transaction=False)


class Channel(kombu_redis.Channel):
    """A channel that keeps one client for its own commands.

    kombu 5.7 builds a `redis.Redis`, with its table of some 300 callbacks, for every acknowledgement and every message
    that is kept unacknowledged: a tenth of a worker's CPU. Clients are safe to share, their connections come from the
    pool.
    """

    QoS = QoS
    _own_client: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._own_client is None:
            self._own_client = super()._create_client()
        return self._own_client

    def _disconnect_pools(self) -> None:
        # The client belongs to the pool that is given up here.
        self._own_client = None
        super()._disconnect_pools()


class Transport(kombu_redis.Transport):
    """The transport with that channel."""

    Channel = Channel


TRANSPORT_ALIASES[ALIAS] = f"{__name__}:Transport"
