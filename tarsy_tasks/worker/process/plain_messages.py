"""Which messages need nothing of Celery's tracer, so that they run as plain calls; and why others, or all, do not."""

from typing import Any

from celery.worker import state

from tarsy_tasks.broker.delivery import CallState, Delivery
from tarsy_tasks.worker.process.task_signals import find_receivers

__all__ = ["why_none_is_plain", "why_not_plain"]

_NO_TIME_LIMIT = (None, [None, None])
_NOT_PLAIN = (
    *("compression", "eta", "expires", "group", "parent_id", "shadow", "ignore_result", "stamped_headers", "retries"),
)


def why_none_is_plain(task: Any, consumer: Any) -> str:
    """Why no message of a task is plain in this worker; empty if some are."""
    app = consumer.app
    options = consumer.pool.options
    if receivers := find_receivers():
        connected = (f"{name} ({', '.join(found)})" for name, found in receivers.items())
        return f"functions are connected to {', '.join(connected)}"
    reasons = {
        "the result backend is not the broker's Redis database": app.conf.broker_url != app.conf.result_backend,
        "messages are accepted only when they are signed": "json" not in app.conf.accept_content,
        "results are not stored as JSON": app.conf.result_serializer != "json",
        "result_extended is set": bool(app.conf.result_extended),
        "task_track_started is set": bool(task.track_started),
        "results are ignored": bool(task.ignore_result),
        "calls are acknowledged early": not task.acks_late,
        "there is a time limit": any((options.get("timeout"), options.get("soft_timeout"), *_limits_of(task))),
        "other tasks are subscribed to its messages": bool(consumer.on_task_message),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def why_not_plain(message: Any) -> str:
    """Why a message needs Celery's tracer, by what its envelope says; empty if it does not."""
    delivery: Delivery | None = getattr(message, "delivery", None)
    if delivery is None or delivery.count != 1 or delivery.state is not CallState.NONE:
        return "it was delivered before"
    if message.content_type != "application/json" or message.content_encoding != "utf-8":
        return "it is not plain JSON"
    headers: dict[str, Any] = message.headers
    if headers.get("id") != delivery.tag:
        return "it was leased under another id"
    for name in _NOT_PLAIN:
        if headers.get(name):
            return f"it has {name}"
    if headers.get("timelimit") not in _NO_TIME_LIMIT:
        return "it has a time limit"
    if headers["id"] in state.revoked or state.revoked_stamps:
        return "it is revoked"
    return ""


def _limits_of(task: Any) -> tuple[Any, Any]:
    return task.time_limit, task.soft_time_limit
