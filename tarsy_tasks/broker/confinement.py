"""Working for a message of a bound agent: what this thread or coroutine may not do in Redis meanwhile.

Owns for whose message the current code works, and the refusals. A worker may write into every queue, and an agent may
not; so while a worker works for an agent's message, it may do no more than the agent: publish into the queue of the
message, and store its own answer. It refuses what Celery would do at the request of a message, whichever way it came
in. `kombu_transport` and `result_backend` ask here.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from tarsy_tasks.broker.delivery import Delivery

__all__ = ["Confined", "confine", "confined_to", "current_confinement", "require_fanout", "require_queue"]

_REMOTE_CONTROL = ".pidbox"
"""How the names of kombu's exchanges for remote control end."""

_delivery: ContextVar[Delivery | None] = ContextVar("tarsy_tasks_confinement", default=None)


class Confined(Exception):
    """A message of a bound agent asked for something that its agent may not do; the text is what."""


def current_confinement() -> Delivery | None:
    """The message for which this code works, if its agent is bound."""
    return _delivery.get()


def confine(delivery: Delivery) -> None:
    """Confine the current context from now on; for one that ends with the work for this message."""
    _delivery.set(delivery)


@contextmanager
def confined_to(delivery: Delivery | None) -> Generator[None]:
    """Confine what is done within; None: nothing is."""
    token = _delivery.set(delivery)
    try:
        yield
    finally:
        _delivery.reset(token)


def require_queue(queue: str) -> None:
    """Check the queue of a message that is to be published. Raises `Confined`."""
    delivery = _delivery.get()
    if delivery is not None and queue != delivery.queue:
        raise Confined(f"a message from {delivery.queue} must not cause messages in another queue")


def require_fanout(exchange: str, headers: object) -> None:
    """Check what is to be sent to everybody: events may, remote control and tasks may not. Raises `Confined`."""
    delivery = _delivery.get()
    if delivery is None:
        return
    is_task = isinstance(headers, dict) and "task" in headers
    if is_task or exchange.endswith(_REMOTE_CONTROL):
        raise Confined(f"a message from {delivery.queue} must not cause commands to workers")
