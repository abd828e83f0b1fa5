"""kombu's Redis transport, with calls that are never lost or run twice by it, and without its largest costs.

Owns what the project changes in the broker's transport; selected by `broker_transport` in the defaults. Each override
names the behaviour of kombu 5.7 that it replaces, and a test fails when upstream has fixed it. `deliveries` keeps the
state of each message; the worker's `lease` renews leases and sweeps.
"""

import logging
import socket
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from queue import Empty
from typing import Any, ClassVar

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.transport import redis as kombu_redis
from kombu.utils.json import dumps
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.confinement import require_fanout, require_queue
from tarsy_tasks.broker.deliveries import Deliveries
from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.exchange import RedisExchange
from tarsy_tasks.broker.fetch import FetchedMessage, Fetcher
from tarsy_tasks.broker.kombu_message import Message, tag_by_call
from tarsy_tasks.broker.leases import hold_lease, leased, release_lease
from tarsy_tasks.broker.messages import DamagedMessage, read_broadcast, read_message
from tarsy_tasks.broker.priority_lists import list_of, lists_of, priority_of_number
from tarsy_tasks.broker.refusal_log import RefusalLog
from tarsy_tasks.broker.shares import forget_agents
from tarsy_tasks.broker.task_headers import LONGEST_NAME, call_id_of, is_usable_id
from tarsy_tasks.broker.task_names import CALLS

__all__ = ["ALIAS", "CONNECTION_LOST", "KEEPALIVE", "Channel", "QoS", "Transport", "broker_pool"]

logger = logging.getLogger(__name__)

ALIAS = "tarsy-redis"
"""The transport's name in Celery's settings and log lines."""

CONNECTION_LOST = (OSError, RedisConnectionError, RedisTimeoutError)
"""What must reach Celery's consumer, which then connects again."""
KEEPALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
"""A peer that vanished without closing the connection is noticed after 20 s."""

_kombu_channel: Any = kombu_redis.Channel
_refusals = RefusalLog(logger)
_NARROW_POLL_S = 0.1
"""How long a poll that leaves out a queue lasts, for kombu cannot end it."""


def broker_pool(app: Any) -> Any:
    """A redis-py pool with the settings of an application's broker. Raises `RedisError` if that cannot be reached."""
    with app.connection_for_write() as connection:
        return connection.channel().pool


def _requeue(deliveries: Deliveries, delivery: Delivery) -> None:
    try:
        deliveries.requeue(delivery)
        if delivery.requeued is not None:
            delivery.requeued()
    except ResponseError as error:
        # kombu takes this for an error of the consumer, which ends the worker. The lease lapses.
        logger.warning("Redis refuses to requeue a message, which comes back later: %s", error)


class QoS(kombu_redis.QoS):
    """Bookkeeping of unacknowledged messages.

    kombu keeps a time of this machine's clock for each message and puts back what is older than the visibility timeout,
    also the calls of a worker that lives; when a connection breaks it puts back at once what is still running; and a
    Redis that restarts meanwhile ends the worker (`AttributeError` in `restore_unacked`). Here leases are renewed for
    as long as the worker lives, and only a lease that lapsed brings a message back.
    """

    restore_at_shutdown = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # What kombu registers for the exit of the process keeps every channel that was never closed, with its
        # connections: Celery leaves one behind whenever it cannot reconnect at once.
        self._on_collect.cancel()

    def append(self, message: Any, delivery_tag: str) -> None:
        delivery = self.channel.fetched
        if delivery is None:
            tag = call_id_of(message.headers) or str(delivery_tag).encode(errors="replace").decode()[:LONGEST_NAME]
            alone = message.headers.get("task") not in CALLS  # of a call, the worker's `redelivery` decides when
            queue, popped = self.channel.connection.delivers_from, self.channel.popped
            name = popped if keys.without_priority(popped) == queue else queue
            try:
                delivery = self.channel.deliveries.take(name, tag, lambda: dumps(message._raw), is_quarantined=alone)
            except ResponseError as error:
                # kombu takes this for an error of the consumer, which ends the worker. The message has its entry.
                raise RedisConnectionError(f"Redis refuses the lease of a message: {error}") from error
            if delivery.state is CallState.PARKED:
                raise DamagedMessage("it has the id of a parked call")
            hold_lease(delivery)
        self.channel.taking = delivery.name
        self.hold(message, delivery)

    def hold(self, message: Any, delivery: Delivery) -> None:
        """Take over a message that is leased."""
        if not is_usable_id(message.headers.get("id", delivery.tag)):
            # Celery takes anything for the id of a task, and fails when it stores the result. With half of a character
            # in it, commands fail that are about this call and others.
            message.headers["id"] = delivery.tag
        # One process may take a call twice: kombu's tag is that of the delivery, the in-flight table has the call's.
        message.delivery_tag = delivery.name
        message.delivery = delivery
        delivery.forget = lambda: self.drop(delivery.name)
        virtual.QoS.append(self, message, message.delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        delivery = self._release_lease(delivery_tag)
        if not (delivery.answered or delivery.kept):
            self._acknowledge(delivery)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        delivery = self._release_lease(delivery_tag)
        if requeue:
            _requeue(self.channel.deliveries, delivery)
        else:
            self._acknowledge(delivery)

    def delay(self, delivery_tag: str, due_at: float) -> bool:
        """Give back a message until its time has come, as `Deliveries.delay`, whose errors it raises."""
        delivery: Delivery = self._delivered[delivery_tag].delivery
        if not self.channel.deliveries.delay(delivery, due_at=due_at):
            return False
        self._release_lease(delivery_tag)
        return True

    def _acknowledge(self, delivery: Delivery) -> None:
        entry = delivery.record.write() if delivery.record is not None else None
        self.channel.deliveries.acknowledge(delivery, entry)

    def _release_lease(self, delivery_tag: str) -> Delivery:
        delivery: Delivery = self._delivered[delivery_tag].delivery
        release_lease(delivery)
        virtual.QoS.ack(self, delivery_tag)
        if self.channel.fetcher is not None:
            self.channel.fetcher.wake()
        return delivery

    def drop(self, delivery_tag: str) -> None:
        """Forget a message that could not be handled; it counts as waiting for its acknowledgement no longer."""
        if delivery_tag in self._delivered and delivery_tag not in self._dirty:
            virtual.QoS.ack(self, delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:  # noqa: ARG002
        """Called when a channel closes: running calls go on, and the leases of all other messages lapse."""
        self._flush()
        for message in list(self._delivered.values()):
            if not message.delivery.runs:
                release_lease(message.delivery)

    def restore_visible(self, *args: Any, **kwargs: Any) -> None:
        """Left to the worker's `lease`, which does not depend on a consumer that is connected."""


class Channel(kombu_redis.Channel):
    """A channel that publishes into the in-flight table, and keeps one client and a few connections for its commands.

    kombu 5.7 builds a `redis.Redis`, with its table of some 300 callbacks, for every acknowledgement and every message
    that is kept unacknowledged: a tenth of a worker's CPU. Clients are safe to share, their connections come from the
    pool.
    """

    QoS = QoS
    Message = Message
    from_transport_options = (*_kombu_channel.from_transport_options, "compressions")
    compressions: Sequence[str] = ()
    """Kombu's names of the compressions that are accepted."""
    fetched: Delivery | None = None
    """How the message that is being delivered was fetched; None if kombu popped it."""
    fetcher: Fetcher | None = None
    """What fetches the messages; None: kombu does."""
    taking = ""
    popped = ""
    """The list that kombu popped last."""
    _own_client: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.global_keyprefix:
            raise ValueError("broker_transport_options: global_keyprefix is not supported; use a separate database")
        # It outlives the channel: calls that run while the connection is replaced are acknowledged through it. It has
        # a pool of its own, for kombu disconnects the channel's while other threads read from it.
        pool = type(self.pool)(connection_class=self.pool.connection_class, **self.pool.connection_kwargs)
        exchange = RedisExchange(pool)
        self.deliveries = Deliveries(lambda: exchange)

    def _inplace_augment_message(self, message: dict[str, Any], exchange: str, routing_key: str) -> None:
        super()._inplace_augment_message(message, exchange, routing_key)
        tag_by_call(message)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        require_queue(queue)
        headers: dict[str, Any] = message.get("headers") or {}
        if "task" not in headers or kwargs.get("_publish_batch") is not None:
            # Replies to `inspect` are consumed without acknowledgement.
            super()._put(queue, message, **kwargs)
            return
        name = self._q_for_pri(queue, self._get_message_priority(message, reverse=False))
        if keys.is_call_queue(queue):
            name = list_of(queue, priority_of_number(message["properties"].get("priority")))
        self.deliveries.publish(name, message["properties"]["delivery_tag"], dumps(message), headers.get("garbage_at"))

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        require_fanout(exchange, message.get("headers"))
        stock: Any = super()
        stock._put_fanout(exchange, message, routing_key, **kwargs)

    def _purge(self, queue: str) -> int:
        purged = self.deliveries.purge(queue, self._lists(queue))
        server = keys.server_of_queue(queue)
        if server is None or queue != keys.queue(server):
            return purged
        agents = forget_agents(self.deliveries.exchange, server)
        return purged + sum(self.deliveries.purge(each, self._lists(each)) for each in agents)

    @property
    def active_queues(self) -> list[str]:
        """The queues that kombu polls."""
        stock: Any = super()
        return [] if self.fetcher is not None else stock.active_queues

    def basic_consume(self, queue: str, *args: Any, **kwargs: Any) -> None:
        super().basic_consume(queue, *args, **kwargs)
        if self.fetcher is not None:
            self.fetcher.consume(queue, self._lists(queue))

    def _lists(self, queue: str) -> list[str]:
        """The keys of a queue, the most urgent first."""
        if keys.is_call_queue(queue):
            return lists_of(queue)
        return [self._q_for_pri(queue, step) for step in self.priority_steps]

    def basic_qos(self, *args: Any, **kwargs: Any) -> None:
        stock: Any = super()
        stock.basic_qos(*args, **kwargs)
        if self.fetcher is not None:
            self.fetcher.wake()

    def _basic_cancel(self, consumer_tag: str) -> None:
        stock: Any = super()
        queue = self._tag_to_queue.get(consumer_tag)
        stock._basic_cancel(consumer_tag)
        if self.fetcher is not None and queue is not None:
            self.fetcher.cancel(queue)

    def deliver(self, message: FetchedMessage) -> None:
        """Hand a message that was fetched to its consumer; it goes back to its queue if there is none any more."""
        delivery = message.delivery
        queue = delivery.queue
        if queue not in self._active_queues:
            queue = keys.shared_queue(queue)
        if queue not in self._active_queues:
            release_lease(delivery)
            _requeue(self.deliveries, delivery)
            return
        self.fetched, self.taking = delivery, delivery.name
        with self._containing_errors(delivery.queue):
            try:
                self.connection._deliver(message.payload or read_message(message.text), queue)
            finally:
                self.fetched = None

    def _brpop_read(self, **options: Any) -> Any:
        """As kombu's, with a reader of JSON that has bounds."""
        self.taking = ""
        try:
            try:
                found: Any = self.client.parse_response(self.client.connection, "BRPOP", **options)
            except self.connection_errors:
                self.client.connection.disconnect()
                raise
            if found:
                self.popped = found[0].decode(errors="replace")
                name = self.popped.rsplit(self.sep, 1)[0]
                self._queue_cycle.rotate(name)
                with self._containing_errors(name):
                    self.connection._deliver(read_message(found[1]), name)
                    return True
        finally:
            self._in_poll = None
            self._flush_brpop_reauth()
        raise Empty

    def _receive_one(self, c: Any) -> Any:
        """As kombu's, with a reader of JSON that has bounds."""
        try:
            response: Any = c.parse_response()
        except self.connection_errors:
            self._in_listen = None
            raise
        if not isinstance(response, list | tuple):
            return None
        payload = self._handle_message(c, response)
        if not payload["type"].endswith(b"message"):
            return None
        self.taking = ""
        # Of the exchange `celeryev`, it is `/0.celeryev/worker.heartbeat`.
        exchange = payload["channel"].decode(errors="replace").removeprefix(self.keyprefix_fanout).split("/", 1)[0]
        with self._containing_errors(exchange):
            self.connection._deliver(read_broadcast(payload["data"]), self._fanout_to_queue[exchange])
            return True

    @contextmanager
    def _containing_errors(self, place: str) -> Generator[None]:
        """In kombu, anything but a message that Celery can handle ends the worker, or has it connect again: kombu takes
        a `KeyError` for the loss of the connection.
        """
        try:
            yield
        except CONNECTION_LOST:
            raise
        except Exception as error:
            # Its text may hold arguments: it is not logged.
            _refusals.note(place, str(error) if isinstance(error, DamagedMessage) else type(error).__name__)
            # If it has an entry, its lease lapses, and it becomes a dead letter.
            if delivery := leased.pop(self.taking, None):
                self.qos.drop(delivery.name)
                with suppress(RedisError, OSError):
                    self.deliveries.give_up(delivery.tag)

    def _brpop_start(self, timeout: float | None = None) -> None:
        """kombu polls for a second, even if it leaves out a queue, and knows no lists but those of its own steps."""
        queues = self._queue_cycle.consume(len(self._queue_cycle.items))
        if not queues:
            return
        if len(queues) < len(self._queue_cycle.items):
            timeout = _NARROW_POLL_S
        by_priority = zip_longest(*map(self._lists, queues))
        lists = [name for names in by_priority for name in names if name is not None]
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()
        self.client.connection.send_command("BRPOP", *lists, self.brpop_timeout if timeout is None else timeout)

    def _create_client(self, asynchronous: bool = False) -> Any:
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._own_client is None:
            self._own_client = super()._create_client()
        return self._own_client

    def _disconnect_pools(self) -> None:
        self._own_client = None
        super()._disconnect_pools()
        if hasattr(self, "deliveries"):
            self.deliveries.exchange.close_idle()


class Transport(kombu_redis.Transport):
    """The transport with that channel.

    Attributes:
        delivers_from: The queue of the last message that it delivered. When a worker stops, that may be a queue without
            a consumer.
    """

    Channel = Channel
    delivers_from = ""
    _ticks: ClassVar[frozenset[Any]] = frozenset()

    def _deliver(self, message: Any, queue: str) -> None:
        stock: Any = super()
        self.delivers_from = queue
        stock._deliver(message, queue)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """kombu leaves the poll of a lost connection in the loop, with its channels, and calls it at every turn. A
        process has one consumer, and so one connection in its loop.
        """
        loop.on_tick -= Transport._ticks
        before = frozenset(loop.on_tick)
        stock: Any = super()
        stock.register_with_event_loop(connection, loop)
        Transport._ticks = frozenset(loop.on_tick - before)


TRANSPORT_ALIASES[ALIAS] = f"{__name__}:Transport"
