"""The priorities of calls, and the lists that hold the calls of a queue by priority.

Owns how a priority is written: in a message, as Celery's number, and in Redis, as the name of a list. The names are
those that kombu gives to its default steps, so that every producer with Celery can choose one. The list that a message
is in is its priority; what else it says of that is ignored. `fetch` says in what order lists are served.
"""

from bisect import bisect
from typing import Any

from tarsy_tasks.broker import keys
from tarsy_tasks.priorities import NORMAL, Priority

__all__ = ["IN_LUA", "list_of", "lists_of", "number_of", "priority_of_list", "priority_of_number"]

_NUMBERS: dict[Priority, int] = {"interactive": 3, "normal": 0, "batch": 6}
_STEPS: dict[int, Priority] = {3: "interactive", 0: "normal", 6: "batch", 9: "batch"}
"""What each of kombu's default steps means: the least numbers of four lists, the most urgent first. A message without a
priority has the number 0; of the others, as in Celery, a lower one is more urgent."""
_LEAST = sorted(_STEPS)
_LAST = 9
"""Nobody but producers with kombu's own transport use this list, so agents have none in their own queues."""

IN_LUA = r"""
    -- 1: interactive, 2: normal, 3: batch.
    local function rank_of(name)
        local number = string.match(name, '\6\22(%d+)$')
        return number == '3' and 1 or number and 3 or 2
    end
    local function agent_lists(queue) return {queue .. '\6\0223', queue, queue .. '\6\0226'} end
    """
"""Lua functions: the rank of a list among those of its queue, and the lists of an agent's queue by rank."""


def number_of(priority: Priority) -> int:
    """Celery's number of a priority."""
    return _NUMBERS[priority]


def priority_of_number(number: Any) -> Priority:
    """The priority that Celery's number means, whatever the producer of a message has written."""
    is_number = isinstance(number, int) and not isinstance(number, bool)
    return _STEPS[_LEAST[bisect(_LEAST, max(number, 0)) - 1]] if is_number else NORMAL


def list_of(queue: str, priority: Priority) -> str:
    """The list that holds the calls of a queue that have a priority."""
    return keys.with_priority(queue, _NUMBERS[priority])


def lists_of(queue: str) -> list[str]:
    """The lists of a queue of calls, the most urgent first."""
    has_own_agent = bool(keys.agent_of_queue(queue))
    return [keys.with_priority(queue, step) for step in _STEPS if not (has_own_agent and step == _LAST)]


def priority_of_list(name: str) -> Priority:
    """The priority of what a list holds."""
    return _STEPS.get(keys.priority_in(name), "batch")
