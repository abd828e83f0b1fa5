"""The end of waiting: a call that has not begun is taken back, and what became of the others is found out.

Owns the question that an agent puts to the books of the broker when a deadline passes or a call is cancelled. It may
take long when Redis hangs, so it is put by threads of its own, and nobody has to wait for them.
"""

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tarsy_tasks.broker import fleet, keys
from tarsy_tasks.broker.deliveries import CallState, Deliveries
from tarsy_tasks.broker.exchange import RedisExchange

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Withdrawal", "cancel_running", "withdraw", "withdraw_later"]

_THREADS = 2
_POOL_WAIT_S = 1.0
_PATIENCE_S = 60.0
_PATIENCE_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What was found out about a call that nobody waits for any more.

    Attributes:
        mark: What had become of it. `CallState.NONE`: it had not begun, and never will.
        is_served: Whether a live worker serves its server; known only for a call that had not begun.
        is_shared: It goes on for others.
        is_taken: A worker has or had it, and tells the audit what became of it.
    """

    state: CallState
    is_served: bool = True
    is_shared: bool = False
    is_taken: bool = True


def withdraw(app: "Celery", task_id: str, server: str, *, is_shared: bool = False) -> Withdrawal:
    """Take a call back, unless it has begun.

    Args:
        is_shared: Others wait for it too (the same idempotency key): it is only asked what has become of it.

    Raises:
        Exception: As Celery and redis-py do when Redis cannot be reached.
    """
    pool: Any = app.producer_pool
    with pool.acquire(block=True, timeout=_POOL_WAIT_S) as producer:
        channel = producer.channel
        if not hasattr(channel, "deliveries"):
            # An application of the agent's own has the stock channel.
            exchange = RedisExchange(channel.pool)
            channel.deliveries = Deliveries(lambda: exchange)
        if is_shared and not channel.deliveries.is_forgotten(task_id):
            return Withdrawal(channel.deliveries.state_of(task_id), is_shared=True)
        mark, is_taken = channel.deliveries.withdraw(task_id, keys.queue(server))
        if mark is not CallState.NONE:
            return Withdrawal(mark)
        with channel.conn_or_acquire() as client:
            is_served = bool(fleet.serving_workers(client, [server])[server])
        return Withdrawal(mark, is_served, is_taken=is_taken)


def cancel_running(app: "Celery", task_id: str) -> None:
    """Have a call cancelled that has begun, by whichever worker runs it. Raises as `withdraw` does."""
    from kombu import Exchange

    exchange = Exchange(keys.CANCELLATIONS, type="fanout", durable=False)
    pool: Any = app.producer_pool
    with pool.acquire(block=True, timeout=_POOL_WAIT_S) as producer:
        producer.publish({"id": task_id}, exchange=exchange, declare=[exchange], serializer="json", retry=False)


def withdraw_later(
    app: "Celery", task_id: str, server: str, *, is_shared: bool = False, is_patient: bool = False
) -> "Future[Withdrawal]":
    """The same in a thread.

    Args:
        is_patient: Try for a minute, if Redis is away.
    """
    ask = _patiently if is_patient else withdraw
    return _threads().submit(ask, app, task_id, server, is_shared=is_shared)


def _patiently(app: "Celery", task_id: str, server: str, *, is_shared: bool) -> Withdrawal:
    from tenacity import Retrying, stop_after_delay, wait_fixed

    retrying = Retrying(stop=stop_after_delay(_PATIENCE_S), wait=wait_fixed(_PATIENCE_WAIT_S), reraise=True)
    return retrying(withdraw, app, task_id, server, is_shared=is_shared)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="tarsy-withdraw")


os.register_at_fork(after_in_child=_threads.cache_clear)
