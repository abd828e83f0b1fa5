"""Fetching as a step of Celery's consumer: it goes on while the consumer is connected.

Owns what becomes of a message that was fetched: a plain call runs at once, on the session loop; all others go through
one line to Celery's consumer, which takes them in their order, as if kombu had popped them. It owns also the choice
between this and kombu's own fetch, which needs fewer rights in Redis.
"""

import asyncio
import logging
from collections import deque
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any

from celery import bootsteps
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.fetch import FetchedMessage
from tarsy_tasks.broker.kombu_transport import Channel
from tarsy_tasks.broker.leases import hold_lease, release_lease
from tarsy_tasks.broker.redis_errors import ErrorKind, classify_error
from tarsy_tasks.worker.process.bulkhead import QueueOrderStrategy
from tarsy_tasks.worker.process.fetcher import QueueFetcher
from tarsy_tasks.worker.process.hub import wake
from tarsy_tasks.worker.process.plain_calls import PlainCallFactory

__all__ = ["FetchStep"]

logger = logging.getLogger(__name__)

_START_S = 15.0
_GIVE_BACK_S = 5.0
_KOMBU_FETCHES = "kombu fetches the messages, which costs more CPU and leaves those in the queues of bound agents"


class FetchStep(bootsteps.StartStopStep):
    """Starts and stops the pool's `QueueFetcher` with the consumer."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._handover: _Handover | None = None
        self._reason = ""

    def start(self, parent: Any) -> None:
        pool, channel = parent.pool, parent.task_consumer.channel
        pool.bulkhead.watch(partial(wake, parent.hub))
        if reason := _why_kombu_fetches(parent):
            _report_kombu(parent, f"because {reason}")
            return
        factory = PlainCallFactory(parent)
        self._say_why_none_is_plain(factory.reason)
        handover = _Handover(parent, pool.fetcher, factory)
        channel.fetcher = handover
        try:
            pool.loop.submit(pool.fetcher.start(handover, within_s=_START_S)).result()
        except ResponseError as error:
            channel.fetcher = None
            if classify_error(error) is ErrorKind.PASSING:
                raise RedisConnectionError(f"messages cannot be fetched yet: {error}") from error
            remedy = "`tarsy-tasks acl` prints the rules of `worker`"
            _report_kombu(parent, f"because Redis refuses the package's own way: {error} ({remedy})")
            return
        self._handover = handover
        pool.loop.call_soon(pool.isolated.consume_again)

    def _say_why_none_is_plain(self, reason: str) -> None:
        # Once, though there is another connection after each outage.
        if reason and reason != self._reason:
            logger.warning("each call takes a thread and Celery's tracer, because %s", reason)
        self._reason = reason

    def stop(self, parent: Any) -> None:
        handover, self._handover = self._handover, None
        # After SIGQUIT the pool, and with it the loop, has already stopped.
        if handover is not None and not parent.pool.loop.is_closed:
            with suppress(TimeoutError, CancelledError):
                parent.pool.loop.submit(handover.stop()).result(2 * _GIVE_BACK_S)

    shutdown = stop


def _report_kombu(consumer: Any, why: str) -> None:
    # With users of Redis there are agents whose calls then wait for other workers, or until their deadlines.
    severity = logging.ERROR if consumer.app.worker_context.binding.is_bound else logging.WARNING
    logger.log(severity, "%s, %s", _KOMBU_FETCHES, why)


def _why_kombu_fetches(consumer: Any) -> str:
    if not isinstance(consumer.task_consumer.channel, Channel):
        return "broker_transport is not that of the package"
    if not isinstance(consumer.app.conf.broker_transport_options.get("queue_order_strategy"), QueueOrderStrategy):
        return "queue_order_strategy is set"
    return ""


class _Handover:
    """From the fetcher to the calls and to Celery's consumer; a `Fetcher` for the channel, a `MessageSink` for the
    fetcher."""

    def __init__(self, consumer: Any, fetcher: QueueFetcher, factory: PlainCallFactory) -> None:
        self._consumer = consumer
        self._pool = consumer.pool
        self._channel: Channel = consumer.task_consumer.channel
        self._fetcher = fetcher
        self._factory = factory
        self._consumed: dict[str, list[str]] = {}
        self._line: deque[FetchedMessage] = deque()
        self._is_called = False
        self._giving_back: set[asyncio.Task[None]] = set()

    # In the thread of Celery's consumer.

    # An operator may have the queue of one agent consumed. With that of its server it is served anyway, in turn with
    # the others, which taking from it twice would upset.

    def consume(self, queue: str, lists: list[str]) -> None:
        self._consumed[queue] = lists
        if queue != (home := keys.shared_queue(queue)) and home in self._consumed:
            return
        for each in self._find_agents(queue):
            self._pool.loop.call_soon(partial(self._fetcher.cancel, each))
        self._pool.loop.call_soon(partial(self._fetcher.consume, queue, lists))

    def cancel(self, queue: str) -> None:
        self._consumed.pop(queue, None)
        self._pool.loop.call_soon(partial(self._fetcher.cancel, queue))
        for each in self._find_agents(queue):
            self._pool.loop.call_soon(partial(self._fetcher.consume, each, self._consumed[each]))

    def _find_agents(self, queue: str) -> list[str]:
        """The consumed queues of single agents of a server."""
        return [name for name in self._consumed if name != queue and keys.shared_queue(name) == queue]

    def wake(self) -> None:
        self._fetcher.wake()

    def _deliver(self) -> None:
        self._is_called = False
        while self._line:
            message = self._line.popleft()
            try:
                self._channel.deliver(message)
            finally:
                self._pool.bulkhead.leave(message.delivery.queue, message.delivery.size_bytes)

    # On the session loop.

    def spare(self) -> int:
        """Celery's limit of what is not acknowledged: it counts what has an ETA, or waits for a rate limit."""
        estimate = self._channel.qos.can_consume_max_estimate()
        return self._pool.limit if estimate is None else estimate - len(self._line)

    def receive(self, message: FetchedMessage) -> None:
        hold_lease(message.delivery)
        call = self._factory.build(message)
        if call is not None:
            self._pool.run_plain(call)
            return
        self._pool.bulkhead.enter(message.delivery.queue, message.delivery.size_bytes)
        self._line.append(message)
        if not self._is_called:
            self._is_called = True
            self._consumer.hub.call_soon(self._deliver)

    def give_back(self, message: FetchedMessage) -> None:
        task = asyncio.get_running_loop().create_task(self._requeue(message))
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def stop(self) -> None:
        """Fetch nothing more, and give back what has not been handed on. Celery's consumer waits for this."""
        await self._fetcher.stop()
        while self._line:
            message = self._line.popleft()
            self._pool.bulkhead.leave(message.delivery.queue, message.delivery.size_bytes)
            self.give_back(message)
        if self._giving_back:
            await asyncio.wait(self._giving_back, timeout=_GIVE_BACK_S)

    async def _requeue(self, message: FetchedMessage) -> None:
        release_lease(message.delivery)
        # Otherwise its lease lapses.
        with suppress(RedisError, OSError):
            await self._pool.context.in_flight.requeue(message.delivery)
