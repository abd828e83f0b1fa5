"""Example arguments that fit a tool's schema, for the last line of a rejection.

Owns how a value is generated. The result is checked like any other value.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from tarsy_tasks.arguments.formats import EXAMPLES
from tarsy_tasks.arguments.schema import Schema, UncheckedError
from tarsy_tasks.arguments.shape import Shape

__all__ = ["example_call"]

_LONGEST = 600
_DEEPEST = 5
_MAX_BRANCHES = 4
_SPECIMENS = ("ABC-123", "v1.0.0", "1.0.0", "#1", "#a", "@a", "/a", "a/b", "a@b.co", "a.b", "https://example.com/")


def example_call(schema: Schema) -> str | None:
    """A JSON object with the required properties that fits the schema; None when none could be generated."""
    with suppress(UncheckedError, ValueError, TypeError):
        example = _Examples(schema).of(schema.shape, "", 0)
        text = json.dumps(example, ensure_ascii=False, allow_nan=False)
        if isinstance(example, dict) and len(text) <= _LONGEST and schema.fits(example):
            return text
    return None


class _Examples:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def of(self, shape: Shape, name: str, depth: int) -> Any:
        """The first candidate that fits, else the first."""
        first: Any = None
        if depth <= _DEEPEST:
            for number, candidate in enumerate(self._candidates(shape, name, depth)):
                if self._schema.fits(candidate, shape.pointer):
                    return candidate
                first = candidate if number == 0 else first
        return first

    def _candidates(self, shape: Shape, name: str, depth: int) -> Iterator[Any]:
        raw = shape.raw
        examples = raw.get("examples")
        yield from cast("list[Any]", examples)[:1] if isinstance(examples, list) else ()
        if raw.get("default") is not None:
            yield raw["default"]
        yield from (shape.members or ())[:_MAX_BRANCHES]
        types = {kind for layer in shape.applied for kind in layer.types}
        for part in (*shape.branches, *shape.parts)[:_MAX_BRANCHES]:
            example = self.of(part, name, depth + 1)
            yield self._object(shape, cast("dict[str, Any]", example), depth) if isinstance(example, dict) else example
        if "object" in types or (not types and (shape.properties or depth == 0)):
            yield self._object(shape, {}, depth)
        elif "array" in types:
            item = self.of(shape.items, name, depth + 1) if shape.items else "…"
            least = raw.get("minItems")
            yield [item] * (least if isinstance(least, int) and 0 < least < 4 else 1)
        yield from _scalars(shape, types, name)

    def _object(self, shape: Shape, example: dict[str, Any], depth: int) -> dict[str, Any]:
        missing = [name for name in shape.required if name not in example]
        parts = {name: shape.at((name,)) for name in missing}
        return example | {name: self.of(part, name, depth + 1) if part else "…" for name, part in parts.items()}


def _scalars(shape: Shape, types: set[str], name: str) -> Iterator[Any]:
    if "string" in types or not types:
        for layer in shape.applied:
            if (form := layer.raw.get("format")) in EXAMPLES:
                yield EXAMPLES[form]
        least = next((each for layer in shape.applied if isinstance(each := layer.raw.get("minLength"), int)), 0)
        filled = [letter * min(least, _LONGEST) for letter in "aA1"]
        yield from (f"<{name or 'text'}>", name, "a", "1", "A", "a-1", *filled, *_SPECIMENS)
    if not types.isdisjoint({"integer", "number"}):
        limits = [layer.raw.get(limit) for layer in shape.applied for limit in ("minimum", "maximum")]
        yield from (1, *(limit for limit in limits if limit is not None), 0, 10, 100)
    if "boolean" in types:
        yield True
    if "null" in types:
        yield None
