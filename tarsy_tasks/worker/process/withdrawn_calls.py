"""Parked calls that were withdrawn: their state, if results are in another Redis than calls.

Owns deleting it there, which no script of the broker can do. It is done on the loop of the sessions: the thread that
finds these calls renews leases, and must not wait for another Redis.
"""

import logging
from collections.abc import Callable

from redis.exceptions import RedisError
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.results_elsewhere import forget_state
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.sessions.session_loop import SessionLoop

__all__ = ["build_forgetting"]

logger = logging.getLogger(__name__)

_LIMIT_S = 300.0


def build_forgetting(context: WorkerContext, loop: SessionLoop) -> Callable[[list[str]], None]:
    """A function that has the states of these calls deleted, and does not wait for that."""

    def forget(tags: list[str]) -> None:
        if context.has_results_elsewhere:
            loop.submit(_forget(context.results, tags))

    return forget


async def _forget(results: AsyncRedisExchange, tags: list[str]) -> None:
    try:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type((RedisError, OSError)),
            wait=wait_fixed(1),
            stop=stop_after_delay(_LIMIT_S),
            reraise=True,
        ):
            with attempt:
                for tag in tags:
                    await forget_state.run_async(results, tag=tag, digest="")
    except (RedisError, OSError) as error:
        logger.warning(
            "%d withdrawn call(s) have the state PARKED until their deadlines: the Redis of results is away (%s)",
            len(tags),
            error,
        )
