"""What may follow a message of a bound agent: the chains, chords and callbacks that it asks the worker to send.

Owns the rule: only calls for the queue that the message came from, and of its server. The worker may write into every
queue, and it sends what follows; without the rule an agent could have it sent where the agent itself may not write.

Celery believes a signature whatever it says of itself: it merges any option and key into the call, the request or the
message, and runs some signatures in the worker. So nothing is searched for what is bad. What is known to be good is
copied into a new signature, all the way down; anything else refuses the message.
"""

from collections.abc import Mapping
from typing import Any, cast

from celery.app.task import Context
from celery.exceptions import InvalidTaskError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.task_headers import is_usable_name
from tarsy_tasks.broker.task_names import CALL_TOOL, LIST_TOOLS, REQUEST

__all__ = ["CanvasRefused", "forget_own_tasks_of_celery", "keep_headers", "rebuild_body"]

_DEEPEST = 50
"""How deep signatures may be nested: Celery copies each with several calls of its own per level."""
_FOLLOWING = {"callbacks": True, "errbacks": True, "chain": True, "chord": False}
"""What follows a message, by Celery's name; whether it is a list."""
_FOLLOWING_TASKS = (CALL_TOOL, REQUEST, LIST_TOOLS)
_LINKS = ("link", "link_error", "chain", "chord")
_OPTIONS: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("task_id", "root_id", "parent_id", "group_id", "reply_to", "argsrepr", "kwargsrepr"), str),
    **dict.fromkeys(("group_index", "priority"), int),
    **dict.fromkeys(("ignore_result", "immutable", "add_to_parent"), bool),
    "expires": (int, float, str),
}
"""The other options that tool calls in a canvas have, besides their queue."""
_SIGNATURE = frozenset({"task", "args", "kwargs", "options", "subtask_type", "immutable", "chord_size"})
_COMPOSITES = {"group": ("tasks",), "chain": ("tasks",), "chord": ("header", "body")}
"""The signatures that a signature consists of."""
_HEADERS = frozenset(
    {
        *("lang", "task", "id", "origin", "argsrepr", "kwargsrepr", "root_id", "parent_id", "group"),
        *("group_index", "eta", "expires", "timelimit", "retries", "replaced_task_nesting", "ignore_result", "meth"),
        *("stamped_headers", "stamps", "garbage_at"),
    }
)
"""The headers that Celery itself writes, but for `shadow`, a name that the log and Flower would show instead of the
task's: each one makes series of Flower's metrics."""


class CanvasRefused(InvalidTaskError):
    """What follows a message must not; the text says what, and quotes no argument."""


def rebuild_body(body: Any, queue: str) -> tuple[Any, Any, dict[str, Any]]:
    """The arguments in the body of a message, and what follows it, rebuilt from what is known.

    Args:
        body: As Celery decoded it.
        queue: Where the message was taken from, one of a server.

    Raises:
        CanvasRefused: Something that follows would leave the queue or the server, or is not known.
    """
    try:
        args, kwargs, embed = body
    except (TypeError, ValueError):
        raise CanvasRefused("its body does not consist of arguments and what follows") from None
    found = _mapping(embed or {}, "what follows it")
    if unknown := [name for name, value in found.items() if name not in _FOLLOWING and value is not None]:
        raise CanvasRefused(f"it is followed by something other than {', '.join(_FOLLOWING)}: {_shown(unknown[0])}")
    rebuilder = _Rebuilder(queue)
    rebuilt = {
        name: rebuilder.following(found.get(name), name, 0, is_list=is_list) for name, is_list in _FOLLOWING.items()
    }
    return args, kwargs, rebuilt


def keep_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Of a message's headers those that Celery writes, and those that mean nothing to it, such as `traceparent`.

    Celery takes each header for an attribute of the request: `errbacks`, `_children` and `delivery_info` too.
    """
    return {
        name: value
        for name, value in headers.items()
        if name in _HEADERS or not (name.startswith("_") or hasattr(Context, name))
    }


class _Rebuilder:
    """Makes new signatures for one queue."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._server = keys.server_of_queue(queue)
        self._names = (queue, keys.shared_queue(queue))
        """Of the queue: what follows the call of an agent stays in that of the agent."""

    def following(self, found: Any, place: str, depth: int, *, is_list: bool) -> Any:
        """Signatures as Celery writes them there: one, several or none."""
        if found is None:
            return None
        if not is_list:
            return self._signature(found, place, depth)
        several = cast("list[Any]", found) if isinstance(found, list | tuple) else [found]
        return [self._signature(each, place, depth) for each in several]

    def _signature(self, found: Any, place: str, depth: int) -> dict[str, Any]:
        if depth >= _DEEPEST:
            raise CanvasRefused(f"signatures are nested more than {_DEEPEST} levels deep")
        parts = _mapping(found, place)
        if unknown := parts.keys() - _SIGNATURE:
            raise CanvasRefused(f"{place}: a signature has no {_shown(min(unknown, key=str))}")
        kind = parts.get("subtask_type")
        options = self._options(_mapping(parts.get("options") or {}, place), place, depth)
        if kind is None:
            return self._call(parts, options, place)
        if not isinstance(kind, str) or kind not in _COMPOSITES:
            raise CanvasRefused(f"{place}: only calls, groups, chains and chords may follow")
        held = _mapping(parts.get("kwargs"), place)
        kwargs: dict[str, Any] = {"kwargs": {}} if kind == "chord" else {}
        for name in _COMPOSITES[kind]:
            value = held.get(name)
            if value is None:
                raise CanvasRefused(f"{place}: a {kind} without {name}")
            # The header of a chord is a group, or a list of tasks.
            is_list = name == "tasks" or isinstance(value, list | tuple)
            kwargs[name] = self.following(value, place, depth + 1, is_list=is_list and name != "body")
        return _build(f"celery.{kind}", [], kwargs, options, kind)

    def _call(self, parts: Mapping[str, Any], options: dict[str, Any], place: str) -> dict[str, Any]:
        args, kwargs = parts.get("args") or (), _mapping(parts.get("kwargs") or {}, place)
        if not isinstance(args, list | tuple) or parts.get("task") not in _FOLLOWING_TASKS:
            raise CanvasRefused(f"{place}: only {', '.join(_FOLLOWING_TASKS)} may follow")
        if parts.get("immutable") is not True:
            raise CanvasRefused(f"{place}: not immutable, so its first argument would be another task's result")
        arguments = cast("list[Any]", args)
        server: Any = arguments[0] if arguments else kwargs.get("server")
        if options.get("queue") not in self._names or server != self._server:
            raise CanvasRefused(f"{place}: must stay in the queue {self._queue}, and call its server")
        return _build(str(parts["task"]), list(arguments), dict(kwargs), options, None)

    def _options(self, found: Mapping[str, Any], place: str, depth: int) -> dict[str, Any]:
        options: dict[str, Any] = {}
        for name, value in found.items():
            if value is None:
                continue
            if name in _LINKS:
                options[name] = self.following(value, f"{place}.{name}", depth + 1, is_list=name != "chord")
            elif name == "queue" and value in self._names:
                options[name] = self._queue
            elif name in _OPTIONS and isinstance(value, _OPTIONS[name]) and _is_usable(value):
                options[name] = value
            else:
                raise CanvasRefused(f"{place}: the option {_shown(name)} must not be set, or not to this")
        return options


def _build(
    task: str, args: list[Any], kwargs: dict[str, Any], options: dict[str, Any], kind: str | None
) -> dict[str, Any]:
    return {
        "task": task,
        "args": args,
        "kwargs": kwargs,
        "options": options,
        "subtask_type": kind,
        "immutable": True,
    }


def _mapping(found: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise CanvasRefused(f"{place}: cannot be read")
    return cast("Mapping[str, Any]", found)


def _is_usable(value: Any) -> bool:
    return not isinstance(value, str) or is_usable_name(value)


def _shown(name: Any) -> str:
    return repr(name)[:40]


def forget_own_tasks_of_celery(app: Any) -> None:
    """Unregister Celery's own tasks: `celery.group`, `celery.map` and others send or run what their arguments say."""
    for name in [name for name in app.tasks if name.startswith("celery.")]:
        app.tasks.unregister(name)
