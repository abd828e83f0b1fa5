"""Asking Redis what became of a call that nobody waits for any more; a call that has not begun is withdrawn, and one
that runs is cancelled by its worker.

Owns that question, which is asked when a deadline passes or a call is cancelled.
"""

import math
import time
from dataclasses import dataclass

from tarsy_tasks.agent.connection import AgentConnection
from tarsy_tasks.broker.delivery import CallState

__all__ = ["Withdrawal", "withdraw"]

_SHORTEST_CANCEL_S = 10
"""A worker that is cut off from Redis for a moment finds out afterwards."""


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


async def withdraw(
    connection: AgentConnection, task_id: str, server: str, deadline: float, *, is_shared: bool = False
) -> Withdrawal:
    """Withdraw a call, or have it cancelled if it has begun. Raises one of `connection_errors` when Redis cannot be
    reached.

    Args:
        deadline: When its worker ends it anyway; monotonic time.
        is_shared: Others wait for it too (the same idempotency key), so only find out where it stands.
    """
    in_flight = connection.in_flight
    if is_shared and not await in_flight.is_forgotten(task_id):
        return Withdrawal(await in_flight.state_of(task_id), is_shared=True)
    cancel_ttl_s = max(_SHORTEST_CANCEL_S, math.ceil(deadline - time.monotonic()))
    state, has_worker = await in_flight.withdraw(task_id, connection.queue_of(server), cancel_ttl_s)
    if state is not CallState.NONE:
        return Withdrawal(state)
    is_served = await in_flight.is_served(server, connection.replies.clock.now())
    return Withdrawal(state, is_served, has_worker=has_worker)
