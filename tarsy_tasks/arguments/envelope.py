"""A whole call in place of its arguments: `{"name": "pods_list", "arguments": {...}}`, as providers write calls.

Owns how such a layer is recognized. What it means for a tool is decided in target.
"""

from collections.abc import Collection
from typing import Any, cast

from tarsy_tasks.arguments.almost_json import NotJsonError, read_json_as_written

__all__ = ["is_named_call", "may_be_envelope", "objects_inside", "open_envelope"]

_ARGUMENTS = {"arguments", "args", "parameters", "params", "input", "kwargs", "tool_input", "action_input", "tool_args"}
_MOST_LAYERS = 2
_FOR_TEXT = {"tool_input", "action_input"}
_CALLS = {"function", "function_call", "params"}
_INSIDE = _ARGUMENTS | _CALLS
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


def may_be_envelope(arguments: dict[str, Any]) -> bool:
    """Whether some key is one that calls are written with: cheap, for every call comes by here."""
    return not _INSIDE.isdisjoint(arguments)


def is_named_call(arguments: dict[str, Any], properties: Collection[str]) -> bool:
    """Whether more than the layer itself shows a call, as in `{"name": ..., "arguments": ...}`."""
    return len(arguments) > 1 and _name_of_inside(arguments, properties) is not None


def open_envelope(arguments: dict[str, Any], properties: Collection[str]) -> dict[str, Any] | str | None:
    """What lies inside, with `Written` leaves where it was text; None when this is no envelope.

    Args:
        properties: The names that the tool knows. The layer is none of them; what stands beside it may be.
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


def objects_inside(arguments: dict[str, Any], properties: Collection[str]) -> list[dict[str, Any]]:
    """The objects under keys that calls are written with, whatever stands beside them."""
    found = [value for key, value in arguments.items() if key in _INSIDE and key not in properties]
    return [cast("dict[str, Any]", value) for value in found if isinstance(value, dict) and value]


def _name_of_inside(layer: dict[str, Any], properties: Collection[str]) -> str | None:
    """The one key of an envelope that is not beside the arguments."""
    names = [
        key
        for key in layer
        if key not in properties and (key in _ARGUMENTS or (key in _CALLS and isinstance(layer[key], dict)))
    ]
    beside = [key for key in layer if key not in names]
    if len(names) != 1 or not all(key in _BESIDE and isinstance(layer[key], str | int) for key in beside):
        return None
    return names[0]
