"""A whole call in place of its arguments: `{"name": "pods_list", "arguments": {...}}`, as providers write calls.

Owns how such a layer is recognized. It is one only if nothing beside it is an argument.
"""

from collections.abc import Collection
from typing import Any, cast

from tarsy_tasks.arguments.almost_json import NotJsonError, read_json_as_written

__all__ = ["open_envelope"]

_ARGUMENTS = {"arguments", "args", "parameters", "params", "input", "kwargs", "tool_input", "action_input", "tool_args"}
_FOR_TEXT = {"tool_input", "action_input"}
_CALLS = {"function", "function_call", "params"}
_BESIDE = {
    "name",
    "tool",
    "tool_name",
    "function",
    "function_name",
    "action",
    "id",
    "type",
    "call_id",
    "recipient_name",
    "jsonrpc",
    "method",
}


def open_envelope(arguments: dict[str, Any], properties: Collection[str]) -> dict[str, Any] | str | None:
    """What lies inside, with `Written` leaves where it was text; None when this is no envelope.

    Args:
        properties: The names that the tool knows: an object with one of them is no envelope.
    """
    inside: Any = arguments
    for _ in range(2):
        if not inside.keys().isdisjoint(properties):
            return None
        layers = [key for key in inside if key in _ARGUMENTS or (key in _CALLS and isinstance(inside[key], dict))]
        beside = {key: value for key, value in inside.items() if key not in layers}
        if len(layers) != 1 or not beside.keys() <= _BESIDE or not all(isinstance(each, str | int) for each in beside.values()):
            return None
        inside = inside[layers[0]]
        if isinstance(inside, str) and inside.lstrip().startswith("{"):
            try:
                inside = read_json_as_written(inside)
            except NotJsonError:
                return None
        elif isinstance(inside, str):
            return inside if layers[0] in _FOR_TEXT else None
        if not isinstance(inside, dict):
            return None
        if layers[0] not in _CALLS or not _is_call(cast("dict[str, Any]", inside)):
            break
    return cast("dict[str, Any]", inside)


def _is_call(layer: dict[str, Any]) -> bool:
    return layer.keys() <= {"name", *_ARGUMENTS} and not layer.keys().isdisjoint(_ARGUMENTS)
