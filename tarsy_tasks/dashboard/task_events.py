"""What Flower takes in of the events of tasks.

Owns what never comes in: the arguments of our tasks in the words of whoever sends them. Workers put the name of the
tool in their place; a producer that sends events of its own puts the arguments themselves. Flower shows and searches
what came in at many places, so it is taken out before any of them.
"""

from collections.abc import Mapping
from typing import Any

from flower.events import Events

from tarsy_tasks.broker.task_names import CALL_TOOL, CHECK_SERVER, LIST_TOOLS

__all__ = ["CallEvents", "without_arguments"]

_OURS = frozenset({CALL_TOOL, LIST_TOOLS, CHECK_SERVER})


class CallEvents(Events):
    """Flower's own, for tasks of ours without what their producers say of arguments."""

    def on_event(self, event: Mapping[str, Any]) -> None:
        super().on_event(without_arguments(event))


def without_arguments(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event as Flower may have it."""
    is_theirs = event.get("type") != "task-sent" or event.get("name") not in _OURS
    return {key: value for key, value in event.items() if is_theirs or key not in ("args", "kwargs")}
