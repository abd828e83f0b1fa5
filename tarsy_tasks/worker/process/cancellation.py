"""Polls for calls that are cancelled while they run: an agent sets a key, and the call's worker looks for it.

Celery's remote control would do, but its users can also stop all workers and read the calls of
others, so it is for operators; and whatever is published to all workers costs all of them. A look is one command, for
all calls that run longer than half a second; other calls cost nothing.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from celery import bootsteps
from celery.utils.collections import AttributeDict
from celery.worker import control, state
from kombu.exceptions import KombuError
from redis.exceptions import RedisError, ResponseError

from tarsy_tasks.broker.async_deliveries import AsyncDeliveries
from tarsy_tasks.broker.kombu_transport import CONNECTION_LOST
from tarsy_tasks.broker.leases import leased
from tarsy_tasks.event_loop import next_beat
from tarsy_tasks.telemetry.outage_log import OutageLog

__all__ = ["CancellationStep", "cancel_call", "cancel_in_thread", "look_for_cancelled"]

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_BLOCKED_S = 0.5
"""Celery's main thread sleeps through a soft shutdown; what it has not done by then, another one does."""


class CancellationStep(bootsteps.StartStopStep):
    """Looks for as long as the worker is connected; while it stops, the pool does."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._looking: Future[None] | None = None

    def start(self, parent: Any) -> None:
        def cancel(task_id: str) -> None:
            once = _once(partial(cancel_call, parent.app, parent.pool, task_id))
            parent.hub.call_soon(once)
            asyncio.get_running_loop().call_later(_BLOCKED_S, cancel_in_thread, once)

        self._looking = parent.pool.loop.submit(look_for_cancelled(parent.pool.context.in_flight, cancel))

    def stop(self, parent: Any) -> None:  # noqa: ARG002
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()

    shutdown = stop


async def look_for_cancelled(in_flight: AsyncDeliveries, cancel: Callable[[str], None]) -> None:
    """Look twice a second; `cancel` is called once for each running call that an agent has cancelled."""
    refusals = OutageLog(logger, "running calls cannot be cancelled, because Redis refuses to say which")
    earlier: set[str] = set()
    ended: set[str] = set()
    while True:
        await next_beat(_LOOK_S)
        running = {delivery.tag for delivery in leased.copy().values() if delivery.runs}
        ended &= running
        if asked := list(running & earlier - ended):
            try:
                found = await in_flight.find_cancelled(asked)
                refusals.succeeded()
            except ResponseError as error:
                refusals.failed(error)
                found = []
            except (RedisError, KombuError, OSError):
                found = []  # the next look finds them
            for task_id in found:
                cancel(task_id)
            ended.update(found)
        earlier = running


def _once(cancel: Callable[[], None]) -> Callable[[], None]:
    """The same for several threads, of which the first one does it."""
    is_free = threading.Lock()

    def run() -> None:
        if is_free.acquire(blocking=False):
            cancel()

    return run


def cancel_in_thread(cancel: Callable[[], None]) -> None:
    """Cancel a call while the thread of Celery's consumer waits. Called on the session loop."""
    cancelling = asyncio.get_running_loop().run_in_executor(None, cancel)
    cancelling.add_done_callback(_log_failure)


def _log_failure(cancelling: "asyncio.Future[None]") -> None:
    if not cancelling.cancelled() and (error := cancelling.exception()) is not None:
        logger.warning("a call was not cancelled while the worker stops: %s", error)


def cancel_call(app: Any, pool: Any, task_id: str) -> None:
    """Revoke a running call. Called in the thread of Celery's consumer, or while that waits.

    Raises:
        RedisError: And whatever else says that the connection to Redis is lost.
    """
    if task_id not in state.requests:
        return
    try:
        control.revoke(AttributeDict(app=app, consumer=AttributeDict(pool=pool)), task_id, terminate=True)
    except CONNECTION_LOST:
        raise
    except Exception:
        # Nothing else may leave the consumer's thread: it would end the worker.
        logger.exception("a call could not be cancelled")
