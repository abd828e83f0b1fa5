"""Messages with an ETA: a worker that takes one too early gives it back at once.

Owns reading the ETA, in each version of Celery's message protocol, and what becomes of such a message. Stock keeps it
in the memory of the worker, with its lease, and takes any number of them. Whether it is due, Redis says.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC
from typing import Any, cast

from celery.utils.time import maybe_iso8601
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.broker.redis_errors import ErrorKind, classify_error

__all__ = ["InvalidETA", "handle_when_due"]

logger = logging.getLogger(__name__)

_LONGEST_S = 366 * 24 * 3600
_LONGEST_TEXT = 100
_NO_DATE = "its ETA is not a date in ISO 8601"


class InvalidETA(ValueError):
    """An ETA that cannot be kept; the text is the reason."""


def handle_when_due(strategy: Callable[..., None], message: Any, body: Any, *more: Any) -> None:
    """Hand a message on to a strategy of Celery, or delay it.

    Args:
        body: Of a message in version 1 of the protocol, decoded; else None.
        more: What the strategy takes besides.

    Raises:
        InvalidETA: Its ETA is not a date, or too far away.
        RedisConnectionError: Redis cannot delay it now.
    """
    delivery: Delivery | None = getattr(message, "delivery", None)
    place = _find_place(message, body)
    eta = place.get("eta")
    if eta is not None and delivery is not None:
        try:
            # What is withdrawn, or was begun before, is not put off.
            may_wait = eta and delivery.state is CallState.NONE
            if may_wait and message.channel.qos.delay(message.delivery_tag, _read_eta(eta)):
                return
            place["eta"] = None  # by this machine's clock it may be early
        except ResponseError as error:
            if classify_error(error) is ErrorKind.PASSING:
                # kombu takes a ResponseError for one of the consumer, which ends the worker.
                raise RedisConnectionError(f"Redis does not delay a message: {error}") from error
            logger.warning("this worker keeps a message until its ETA, because Redis refuses to delay it: %s", error)
    strategy(message, body, *more)


def _find_place(message: Any, body: Any) -> dict[str, Any]:
    """The part of a message that has its ETA, if it has one. There are messages of version 2 with a body of version 1:
    then the headers count first."""
    if body is None and "eta" in message.headers:
        return message.headers
    found: Any = message.payload if body is None else body
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _read_eta(eta: Any) -> float:
    """When a message is due, in seconds since the epoch. A date without a time zone is UTC, as in Celery."""
    if not isinstance(eta, str) or len(eta) > _LONGEST_TEXT:
        raise InvalidETA(_NO_DATE)
    try:
        found: Any = maybe_iso8601(eta)
        due_at: float = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise InvalidETA(_NO_DATE) from None
    if due_at - time.time() > _LONGEST_S:
        raise InvalidETA("its ETA is more than a year away")
    return due_at
