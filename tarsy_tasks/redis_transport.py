"""kombu's Redis transport without its largest costs: a new client object and a redis-py pipeline for every message.

Owns what the project changes in the broker's transport; selected by `broker_transport` in the defaults. Each override
names the behaviour that it replaces, and a test tells when upstream has mended it.
"""

import time
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport import redis as kombu_redis
from kombu.utils.json import dumps

from tarsy_tasks.redis_exchange import RedisExchange

__all__ = ["ALIAS", "Channel", "QoS", "Transport"]

ALIAS = "tarsy-redis"
"""The transport's name in Celery's settings and log lines."""


class QoS(kombu_redis.QoS):
    """Bookkeeping of unacknowledged messages: the same two keys and the same commands as kombu 5.7, sent plainly.

    kombu wraps each pair of commands in MULTI, which guards against nothing here: the two go out together and concern
    one message, and a connection that breaks in between has lost the reply either way.
    """

    def append(self, message: Any, delivery_tag: str) -> None:
        delivery = message.delivery_info
        kept = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])
        self.channel.exchange.execute(
            ("ZADD", self.unacked_index_key, time.time(), delivery_tag),
            ("HSET", self.unacked_key, delivery_tag, kept),
        )
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        self.channel.exchange.execute(
            ("ZREM", self.unacked_index_key, delivery_tag), ("HDEL", self.unacked_key, delivery_tag)
        )
        virtual.QoS.ack(self, delivery_tag)


class Channel(kombu_redis.Channel):
    """A channel that keeps one client and a few connections for its own commands.

    kombu 5.7 builds a `redis.Redis`, with its table of some 300 callbacks, for every acknowledgement and every message
    that is kept unacknowledged: a tenth of a worker's CPU. Clients are safe to share, their connections come from the
    pool.
    """

    QoS = QoS
    _own_client: Any = None
    _exchange: RedisExchange | None = None

    @property
    def exchange(self) -> RedisExchange:
        """For commands that go out together, on connections of the channel's pool."""
        if self._exchange is None:
            self._exchange = RedisExchange(self.pool)
        return self._exchange

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._own_client is None:
            self._own_client = super()._create_client()
        return self._own_client

    def _disconnect_pools(self) -> None:
        # Both belong to the pool that is given up here, which closes the connections.
        self._own_client = self._exchange = None
        super()._disconnect_pools()


class Transport(kombu_redis.Transport):
    """The transport with that channel."""

    Channel = Channel


TRANSPORT_ALIASES[ALIAS] = f"{__name__}:Transport"
