"""What an agent's process has once per Celery application: the connection and the audit.

A forked child begins without them: it has none of its parent's threads, and must not use its parent's task ids.
"""

import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["PerApp"]

T = TypeVar("T")


class PerApp(Generic[T]):
    """Call it with an application to get that application's object, which `build` builds on first use.

    The object is kept as long as the application, so it must not refer to the application.
    """

    def __init__(self, build: "Callable[[Celery], T]") -> None:
        self._build = build
        self._clear()
        os.register_at_fork(after_in_child=self._clear)

    def _clear(self) -> None:
        self._lock = threading.Lock()
        self._objects = weakref.WeakKeyDictionary["Celery", T]()

    def __call__(self, app: "Celery") -> T:
        with self._lock:
            found = self._objects.get(app)
            if found is None:
                found = self._objects[app] = self._build(app)
            return found
