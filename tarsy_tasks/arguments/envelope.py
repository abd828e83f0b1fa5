"""A whole call instead of its arguments: `{"name": "pods_list", "arguments": {...}}`, as providers write calls.

Owns how such an envelope is recognized; `target` decides what to do with it.
"""

from collections.abc import Collection
from typing import Any, cast

from tarsy_tasks.arguments.almost_json import NotJsonError, read_json_as_written

__all__ = ["is_named_call", "may_be_envelope", "objects_inside", "open_envelope"]

_ARGUMENTS = {"arguments", "args", "parameters", "params", "input", "kwargs", "tool_input", "action_input", "tool_args"}
_MAX_LAYERS = 2
_FOR_TEXT = {"tool_input", "action_input"}
_CALLS = {"function", "function_call", "params"}
_INSIDE = _ARGUMENTS | _CALLS
_TOOL_KEYS = {"name", "tool", "tool_name", "function", "function_name", "action", "recipient_name", "method"}
_CALL_KEYS = _TOOL_KEYS | {"id", "type", "call_id", "jsonrpc"}


def may_be_envelope(arguments: dict[str, Any]) -> bool:
    """Whether any key is one of an envelope. Cheap, because it is asked for every call."""
    return not _INSIDE.isdisjoint(arguments)


def is_named_call(arguments: dict[str, Any], properties: Collection[str]) -> bool:
    """Whether another key confirms the envelope, as in `{"name": ..., "arguments": ...}`."""
    return len(arguments) > 1 and _name_of_inside(arguments, properties) is not None


def open_envelope(arguments: dict[str, Any], properties: Collection[str]) -> dict[str, Any] | str | None:
    """The content, with `Written` leaves where it was text; None when this is not an envelope. The key of the content
    is not a property of the tool; other keys may be."""
    layer: Any = arguments
    for _ in range(_MAX_LAYERS):
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
    """The objects under keys of an envelope, whatever the other keys are."""
    found = [value for key, value in arguments.items() if key in _INSIDE and key not in properties]
    return [cast("dict[str, Any]", value) for value in found if isinstance(value, dict) and value]


def _name_of_inside(layer: dict[str, Any], properties: Collection[str]) -> str | None:
    """The one key of an envelope that holds the arguments."""
    names = [
        key
        for key in layer
        if key not in properties and (key in _ARGUMENTS or (key in _CALLS and isinstance(layer[key], dict)))
    ]
    others = [key for key in layer if key not in names]
    if len(names) != 1 or not all(key in _CALL_KEYS and isinstance(layer[key], str | int) for key in others):
        return None
    return names[0]
