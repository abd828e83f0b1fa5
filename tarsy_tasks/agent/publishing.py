"""Putting a task into the queue of its server.

Owns the application of an executor, the message, and the attempts to publish it until the deadline.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal, may_have_been_sent, retry_until
from tarsy_tasks.agent.reply_listener import Meta, ReplyListener, listener_of
from tarsy_tasks.agent.waiting import seconds_until
from tarsy_tasks.broker import keys
from tarsy_tasks.errors import BrokerUnavailable

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Publisher"]

T = TypeVar("T")

_SHORTEST_WAIT_S = 0.001
_GARBAGE_S = 600.0
"""How long after its deadline a message may stay in Redis, for a worker that was away to record the call's end."""


class Publisher:
    """Publishes through one Celery application; None is the package's own, which is built on first use."""

    def __init__(self, app: "Celery | None") -> None:
        self._given_app = app

    @cached_property
    def app(self) -> "Celery":
        if self._given_app is not None:
            return self._given_app
        from tarsy_tasks.celery_app import agent_app

        return agent_app()

    @property
    def listener(self) -> ReplyListener:
        """Receives the answers to what is published."""
        return listener_of(self.app)

    def subscribe(self, deadline: float) -> ReplyListener:
        """The listener, once answers can arrive and its clock is set. Raises as `publish` does."""
        listener = self.listener
        listener.wait_until_subscribed(seconds_until(deadline))
        return listener

    def publish(
        self,
        listener: ReplyListener,
        task_id: str,
        task: str,
        arguments: tuple[Any, ...],
        read: Callable[[Meta], T],
        deadline: float,
    ) -> "Future[T]":
        """Publish a task to the queue of the server that its arguments begin with.

        Args:
            listener: From `subscribe`.
            read: Turns what Celery stores for the task into the value of the future.
            deadline: Monotonic time until when to try, and to wait for the answer.

        Raises:
            BrokerUnavailable: Redis could not be reached in time, or refuses this user.
        """
        # Not `send_task`: it subscribes to each task a second time, synchronously.
        amqp: Any = self.app.amqp
        server, shown = arguments[0], ".".join(arguments[:2])
        message = amqp.as_task_v2(task_id, task, args=arguments, argsrepr=shown, kwargsrepr="{}")
        message.headers["garbage_at"] = listener.clock.now() + seconds_until(deadline) + _GARBAGE_S
        pool: Any = self.app.producer_pool
        errors = connection_errors()
        may_have_run = False

        def attempt() -> None:
            nonlocal may_have_run
            try:
                with pool.acquire(block=True, timeout=max(_SHORTEST_WAIT_S, seconds_until(deadline))) as producer:
                    amqp.send_task_message(producer, task, message, queue=keys.queue(server), retry=False)
            except errors as error:
                may_have_run = may_have_run or may_have_been_sent(error)
                raise

        future = listener.expect(task_id, read, deadline)
        started = time.monotonic()
        try:
            retry_until(deadline)(attempt)
        except BaseException as error:
            listener.forget(task_id, future)
            if not isinstance(error, errors):
                raise
            if is_refusal(error):
                raise BrokerUnavailable(
                    f"Redis does not let this user send calls to the MCP server `{server}` ({error}). The call was not "
                    "enqueued and the tool did not run. An operator has to allow it (docs/security.md)."
                ) from error
            end = (
                "Redis may have taken the call just as the connection broke; then it is withdrawn, unless it has begun."
                if may_have_run
                else "The call was not enqueued and the tool did not run."
            )
            raise BrokerUnavailable(
                f"Redis could not be reached within {time.monotonic() - started:.3g} s ({error}). {end}", may_have_run
            ) from error
        return future
