"""What may follow a task: the chains, chords and callbacks that its message asks the worker to send when it is done.

Owns the rule for deployments whose agents may not write into every queue (`TARSY_CANVAS=same_queue`). The worker may,
and it sends what follows; without the rule an agent could have it sent where the agent itself may not write.
"""

from collections.abc import Mapping
from typing import Any, cast

from celery.exceptions import InvalidTaskError

from tarsy_tasks.broker.task_names import CALL_TOOL, LIST_TOOLS

__all__ = ["forget_own_tasks_of_celery", "require_own_queue"]

_HARMLESS_OPTIONS = frozenset(
    {
        *("queue", "task_id", "root_id", "parent_id", "group_id", "group_index", "chord", "reply_to"),
        *("argsrepr", "kwargsrepr", "link", "link_error", "expires", "priority", "ignore_result", "immutable"),
    }
)


def require_own_queue(embed: Any, queue: str) -> None:
    """Check that everything that follows a message goes into the queue that the message came from.

    Args:
        embed: The third part of its body, as Celery writes it.
        queue: Where it was taken from.

    Raises:
        InvalidTaskError: Something goes elsewhere, or it cannot be determined where it goes.
    """
    if not isinstance(embed, Mapping):
        if embed:
            raise InvalidTaskError("its chain, chord or callbacks cannot be read")
        return
    for following in cast("Mapping[str, Any]", embed).values():
        for signature in cast("list[Any]", following) if isinstance(following, list) else [following]:
            if signature and not _stays(signature, queue):
                raise InvalidTaskError(f"its chain, chord or callbacks must not leave the queue {queue}")


def _stays(signature: Any, queue: str) -> bool:
    if not isinstance(signature, Mapping):
        return False
    found = cast("Mapping[str, Any]", signature)
    options: Any = found.get("options")
    return (
        found.get("task") in (CALL_TOOL, LIST_TOOLS)
        and isinstance(options, Mapping)
        and cast("Mapping[str, Any]", options).get("queue") == queue
        and _HARMLESS_OPTIONS.issuperset(cast("Mapping[str, Any]", options))
    )


def forget_own_tasks_of_celery(app: Any) -> None:
    """Unregister Celery's own tasks: `celery.group`, `celery.map` and others send or run what their arguments say."""
    for name in [name for name in app.tasks if name.startswith("celery.")]:
        app.tasks.unregister(name)
