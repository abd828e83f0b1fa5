"""The cost of checking a value: how often the parts of a schema are visited.

Owns the limit. The validator is fast, but a hostile schema can make it visit a value exponentially often (definitions
that refer twice to the next one), and it cannot be interrupted.
"""

from typing import Any, Final, cast

from tarsy_tasks.arguments.shape import Pointer, look_up, read_reference

__all__ = ["UncheckedError", "is_always_cheap", "size", "spend"]

_ANYTHING: Final = object()
_ALWAYS_CHEAP = 1000
_FREE_VISITS = 20_000
_VISITS_PER_VALUE = 50
_ON_THE_SAME_VALUE = {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
_ON_MEMBERS = {"patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"}
_ON_ITEMS = {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"}
_REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}


class UncheckedError(Exception):
    """The schema is broken, or checking this value would cost too much."""


def is_always_cheap(schema: Any) -> bool:
    """Whether a schema, with every reference expanded, is so small that any value may be checked."""
    try:
        _Visits(schema, _ALWAYS_CHEAP).spend(schema, _ANYTHING)
    except (UncheckedError, RecursionError):
        return False
    return True


def spend(document: Any, pointer: Pointer, value: Any) -> None:
    """Counts the most visits that checking `value` with the part of a schema at `pointer` can take.

    Raises:
        UncheckedError: There are too many, or a reference leaves the document.
    """
    visits = _Visits(document, _FREE_VISITS + _VISITS_PER_VALUE * size(value))
    try:
        visits.spend(look_up(document, pointer), value)
    except RecursionError:
        raise UncheckedError from None


def size(value: Any, most: float = float("inf")) -> int:
    """The number of values that a value consists of; counting stops beyond `most`."""
    count, waiting = 0, [value]
    while waiting and count <= most:
        each = waiting.pop()
        count += 1
        if isinstance(each, dict):
            waiting.extend(cast("dict[str, Any]", each).values())
        elif isinstance(each, list):
            waiting.extend(cast("list[Any]", each))
    return count


class _Visits:
    def __init__(self, document: Any, most: int) -> None:
        self._document = document
        self._left = most

    def spend(self, schema: Any, value: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise UncheckedError
        if not isinstance(schema, dict):
            return
        for keyword, part in cast("dict[str, Any]", schema).items():
            if keyword in _REFERENCES:
                place = read_reference(part)
                if place is None:
                    raise UncheckedError
                self.spend(look_up(self._document, place), value)
            elif keyword in _ON_THE_SAME_VALUE:
                for each in _subschemas(part, keyword.startswith("depend")):
                    self.spend(each, value)
            elif keyword == "properties" and isinstance(part, dict):
                self._spend_on_properties(cast("dict[str, Any]", part), value)
            elif keyword in _ON_MEMBERS or keyword in _ON_ITEMS:
                inner = _inner(value, dict if keyword in _ON_MEMBERS else list)
                for each in _subschemas(part, keyword == "patternProperties"):
                    for item in inner:
                        self.spend(each, item)

    def _spend_on_properties(self, properties: dict[str, Any], value: Any) -> None:
        if value is _ANYTHING:
            for part in properties.values():
                self.spend(part, value)
        elif isinstance(value, dict):
            for name, item in cast("dict[str, Any]", value).items():
                if name in properties:
                    self.spend(properties[name], item)


def _subschemas(part: Any, is_map: bool) -> list[Any]:
    if isinstance(part, list):
        return cast("list[Any]", part)
    return list(cast("dict[str, Any]", part).values()) if is_map and isinstance(part, dict) else [part]


def _inner(value: Any, kind: type) -> list[Any]:
    if value is _ANYTHING:
        return [_ANYTHING]
    if not isinstance(value, kind):
        return []
    return list(cast("dict[str, Any]", value).values()) if kind is dict else value
