"""Celery's signals that its tracer sends for each task: what is connected to them has every call take a thread.

Owns which signals these are, and the names of what is connected to them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, cast
from weakref import ReferenceType

from celery import signals

__all__ = ["find_receivers"]

_SIGNALS: dict[str, Any] = {
    "task_received": signals.task_received,
    "task_prerun": signals.task_prerun,
    "task_postrun": signals.task_postrun,
    "task_success": signals.task_success,
}


def find_receivers() -> dict[str, list[str]]:
    """The names of what is connected now, such as `shop.tasks.count`, by the names of the signals."""
    found = {name: [_name(each) for each in _alive(signal)] for name, signal in _SIGNALS.items()}
    return {name: receivers for name, receivers in found.items() if receivers}


def _alive(signal: Any) -> Iterator[Any]:
    connected: list[tuple[object, Any]] = signal.receivers
    for _, receiver in connected:
        found = cast("Any", receiver() if isinstance(receiver, ReferenceType) else receiver)
        if found is not None:
            yield found


def _name(receiver: Any) -> str:
    named: Any = receiver.func if isinstance(receiver, partial) else receiver
    if not hasattr(named, "__qualname__"):
        named = named.__class__
    return f"{named.__module__}.{named.__qualname__}"
