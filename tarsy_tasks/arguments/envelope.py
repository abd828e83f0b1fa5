"""A whole call in place of its arguments: `{"name": "pods_list", "arguments": {...}}`, as providers write calls.

Owns how such a layer is recognized. It is one only if nothing beside it is an argument.
"""

from collections.abc import Collection
from typing import Any, cast

from tarsy_tasks.arguments.almost_json import NotJsonError, read_json_as_written

__all__ = ["open_envelope"]

_ARGUMENTS = {"arguments", "args", "parameters", "params", "input", "kwargs", "tool_input", "action_input", "tool_args"}
_MOST_LAYERS = 2
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
    layer: Any = arguments
    for _ in range(_MOST_LAYERS):
        name = _name_of_inside(cast("dict[str, Any]", layer), properties)
        if name is None:
            return None
        layer: Any = cast("dict[str, Any]", layer)[name]
        if isinstance(layer, str) and layer.lstrip().startswith("{"):
            try:
                layer = read_json_as_written(layer)
            except NotJsonError:
                return None
        elif isinstance(layer, str):
            return layer if name in _FOR_TEXT else None
        if not isinstance(layer, dict):
            return None
        if name not in _CALLS or _name_of_inside(cast("dict[str, Any]", layer), properties) is None:
            break
    return cast("dict[str, Any]", layer)


def _name_of_inside(layer: dict[str, Any], properties: Collection[str]) -> str | None:
    """The one key of an envelope that is not beside the arguments."""
    if not layer.keys().isdisjoint(properties):
        return None
    names = [key for key in layer if key in _ARGUMENTS or (key in _CALLS and isinstance(layer[key], dict))]
    beside = [key for key in layer if key not in names]
    if len(names) != 1 or not all(key in _BESIDE and isinstance(layer[key], str | int) for key in beside):
        return None
    return names[0]
