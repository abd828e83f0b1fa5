"""Asking Redis what became of a call that nobody waits for any more; a call that has not begun is withdrawn.

Owns that question, which is asked when a deadline passes or a call is cancelled.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tarsy_tasks.agent.connection import AgentConnection
from tarsy_tasks.broker import keys
from tarsy_tasks.broker.deliveries import CallState

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Withdrawal", "cancel_running", "withdraw"]

_POOL_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What was found out about a call.

    Attributes:
        state: Where it stood. `CallState.NONE`: it had not begun, and never will.
        is_served: Whether a live worker serves its server; known only for a call that had not begun.
        is_shared: Others wait for it, so it was not withdrawn.
        has_worker: A worker has or had it, and records in the audit how it ended.
    """

    state: CallState
    is_served: bool = True
    is_shared: bool = False
    has_worker: bool = True


async def withdraw(connection: AgentConnection, task_id: str, server: str, *, is_shared: bool = False) -> Withdrawal:
    """Withdraw a call, unless it has begun. Raises one of `connection_errors` when Redis cannot be reached.

    Args:
        is_shared: Others wait for it too (the same idempotency key), so only find out where it stands.
    """
    in_flight = connection.in_flight
    if is_shared and not await in_flight.is_forgotten(task_id):
        return Withdrawal(await in_flight.state_of(task_id), is_shared=True)
    state, has_worker = await in_flight.withdraw(task_id, keys.queue(server))
    if state is not CallState.NONE:
        return Withdrawal(state)
    is_served = await in_flight.is_served(server, connection.replies.clock.now())
    return Withdrawal(state, is_served, has_worker=has_worker)


async def cancel_running(app: "Celery", task_id: str) -> None:
    """Have the worker that runs a call cancel it. Raises as `withdraw` does."""
    await asyncio.to_thread(_publish_cancellation, app, task_id)


def _publish_cancellation(app: "Celery", task_id: str) -> None:
    from kombu import Exchange

    exchange = Exchange(keys.CANCELLATIONS, type="fanout", durable=False)
    pool: Any = app.producer_pool
    with pool.acquire(block=True, timeout=_POOL_WAIT_S) as producer:
        producer.publish({"id": task_id}, exchange=exchange, declare=[exchange], serializer="json", retry=False)
