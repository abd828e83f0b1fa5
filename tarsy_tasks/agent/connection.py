"""The connection of an agent's process to the Redis of one application.

Owns putting tasks into the queues of their servers, and the one connection that does so and hears the answers. Only
where broker and result backend are two databases are there two.
"""

import asyncio
import time
import weakref
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tarsy_tasks.agent.per_app import PerApp
from tarsy_tasks.agent.redis_errors import connection_errors, is_refusal, may_have_been_sent
from tarsy_tasks.agent.reply_listener import ReplyListener
from tarsy_tasks.agent.waiting import retry_until, seconds_until
from tarsy_tasks.broker import keys, steps
from tarsy_tasks.broker.async_deliveries import AsyncDeliveries
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange, Receiver
from tarsy_tasks.broker.principals import find_senders
from tarsy_tasks.broker.priority_lists import list_of, number_of
from tarsy_tasks.broker.session_handover import SESSION_HEADER, publish_to_session
from tarsy_tasks.broker.signing import signer_of
from tarsy_tasks.errors import BrokerUnavailable
from tarsy_tasks.priorities import NORMAL, Priority

if TYPE_CHECKING:
    from celery import Celery

    from tarsy_tasks.broker.message_template import MessageTemplate

__all__ = ["AgentConnection", "connection_of"]

_SHORTEST_WAIT_S = 0.001
_receivers = attrgetter("receivers")
_GARBAGE_S = 600.0
"""How long after its deadline a message may stay in Redis, for a disconnected worker to record the call's end."""


class AgentConnection:
    """Publishes tasks and receives their answers, on the background loop.

    Attributes:
        agent: The bound agent that it belongs to; empty for others.
        principals: As which workers may see the sender of its calls.
        replies: Receives the answers.
        is_one_redis: Broker and result backend are one database.
        in_flight: The in-flight table, for calls that nobody waits for any more.
    """

    def __init__(self, app: "Celery") -> None:
        from celery import signals

        from tarsy_tasks.broker.kombu_transport import broker_pool
        from tarsy_tasks.celery_app import bound_agent

        found = weakref.ref(app)  # it lives as long as the application, and must not keep it
        self.agent = bound_agent(app) or ""
        self.principals = find_senders(self.agent, signer_of(app))
        self.replies = ReplyListener(lambda: _alive(found).backend.client.connection_pool, self.agent)
        self.is_one_redis = app.conf.broker_url == app.conf.result_backend
        self._broker = self.replies.redis
        if not self.is_one_redis:
            self._broker = AsyncRedisExchange(lambda: broker_pool(_alive(found)))
        self.in_flight = AsyncDeliveries(self._broker)
        self._signals: Any = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
        """The signals that Celery sends with each message."""
        self._templates: dict[tuple[str, str, Priority, bool], MessageTemplate | None] = {}

    def queue_of(self, server: str) -> str:
        """Where the calls of a server are published: an agent with a Redis user of its own has a queue of its own."""
        return keys.call_queue(server, self.agent or None)

    def publish_soon(
        self,
        app: "Celery",
        receiver: Receiver,
        task_id: str,
        task: str,
        arguments: tuple[Any, ...],
        deadline: float,
        priority: Priority,
        session: str,
    ) -> bool:
        """`publish` without waiting, once, together with all others of this iteration of the event loop, at its end.

        Args:
            receiver: Gets the reply, or one of `connection_errors`, maybe at once; then `publish` may try again.

        Returns:
            Whether it was done: kombu has to write some messages.
        """
        queue = self.queue_of(arguments[0])
        template = self._template(app, task, queue, priority, session != "")
        if template is None:
            return False
        garbage_at = self._garbage_at(deadline)
        message = template.write(task_id, arguments, _shown(arguments), garbage_at, session)
        slots = _slots(queue, priority, task_id, message, garbage_at)
        if session:
            publish_to_session.send(self._broker, receiver, **slots, sessions=session)
        else:
            steps.publish.send(self._broker, receiver, **slots)
        return True

    async def publish(
        self,
        app: "Celery",
        task_id: str,
        task: str,
        arguments: tuple[Any, ...],
        deadline: float,
        consequence: str,
        *,
        priority: Priority = NORMAL,
        session: str = "",
        may_have_run: bool = False,
    ) -> None:
        """Publish a task to the queue of the server that its arguments begin with, once `replies` are connected.

        Args:
            app: The application of this connection.
            deadline: Monotonic time until when to try, and until when somebody waits for the answer.
            consequence: What it means that nothing was published, for the error.
            session: The isolated session of the call, if it has one.
            may_have_run: An earlier attempt may have succeeded.

        Raises:
            BrokerUnavailable: Redis could not be reached in time, or refuses this user.
        """
        queue, garbage_at = self.queue_of(arguments[0]), self._garbage_at(deadline)
        message = (task_id, arguments, _shown(arguments), garbage_at, session)
        template = self._template(app, task, queue, priority, session != "")

        async def attempt() -> None:
            nonlocal may_have_run
            try:
                if template is None:
                    await asyncio.to_thread(_publish_with_kombu, app, task, queue, priority, *message, deadline)
                    return
                slots = _slots(queue, priority, task_id, template.write(*message), garbage_at)
                if session:
                    await publish_to_session.run_async(self._broker, **slots, sessions=session)
                else:
                    await steps.publish.run_async(self._broker, **slots)
            except connection_errors() as error:
                may_have_run = may_have_run or may_have_been_sent(error)
                raise

        started = time.monotonic()
        try:
            await retry_until(deadline, attempt)
        except connection_errors() as error:
            if is_refusal(error):
                raise BrokerUnavailable(
                    f"Redis does not allow this user to send calls to MCP server `{arguments[0]}` ({error}). "
                    f"{consequence} An operator has to change its ACL rules."
                ) from error
            end = (
                "Redis may have accepted the message just before the connection broke; if so, the message is withdrawn "
                "unless a worker has begun it."
                if may_have_run
                else consequence
            )
            raise BrokerUnavailable(
                f"Redis could not be reached within {time.monotonic() - started:.3g} s ({error}). {end}", may_have_run
            ) from error

    def _garbage_at(self, deadline: float) -> float:
        return self.replies.clock.at(deadline) + _GARBAGE_S

    def _template(
        self, app: "Celery", task: str, queue: str, priority: Priority, is_isolated: bool
    ) -> "MessageTemplate | None":
        """None: kombu has to write the message."""
        if any(map(_receivers, self._signals)):
            return None
        if (key := (task, queue, priority, is_isolated)) not in self._templates:
            from tarsy_tasks.broker.message_template import build_template

            self._templates[key] = build_template(app, task, queue, priority, is_isolated=is_isolated)
        return self._templates[key]


def _shown(arguments: tuple[Any, ...]) -> str:
    """What Flower shows: the server, and the tool if there is one."""
    return ".".join(arguments[:2])


def _slots(queue: str, priority: Priority, task_id: str, message: str, garbage_at: float) -> dict[str, Any]:
    name = queue if priority == NORMAL else list_of(queue, priority)
    return {"queue": name, "home": queue, "tag": task_id, "message": message, "garbage_at": f"{garbage_at:.3f}"}


def _alive(found: "weakref.ref[Celery]") -> Any:
    app = found()
    if app is None:
        raise ConnectionError("its application is gone")
    return app


def _publish_with_kombu(
    app: Any,
    task: str,
    queue: str,
    priority: Priority,
    task_id: str,
    arguments: tuple[Any, ...],
    shown: str,
    garbage_at: float,
    session: str,
    deadline: float,
) -> None:
    # Not `send_task`: it subscribes to each task a second time, synchronously.
    message = app.amqp.as_task_v2(task_id, task, args=arguments, argsrepr=shown, kwargsrepr="{}")
    message.headers["garbage_at"] = garbage_at
    if session:
        message.headers[SESSION_HEADER] = session
    with app.producer_pool.acquire(block=True, timeout=max(_SHORTEST_WAIT_S, seconds_until(deadline))) as producer:
        app.amqp.send_task_message(producer, task, message, queue=queue, priority=number_of(priority), retry=False)


connection_of = PerApp(AgentConnection)
"""The one connection of this process for an application."""
