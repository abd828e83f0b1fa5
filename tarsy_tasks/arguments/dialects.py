"""Schemas as servers write them: keywords of other dialects, in the words of the draft that the validator reads.

Owns these spellings: an unknown `$schema`, limits of draft 4, and OpenAPI's `nullable`. It checks no value, follows no
reference, and changes only schemas, not the values that stand in them.
"""

from typing import Any, cast

__all__ = ["read_dialect", "without_patterns"]

_DEEPEST = 200
_OF_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
"""Keywords with a schema for each name."""
_SCHEMA = {
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    *("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
}
"""Keywords with a schema, or a list of them."""
_STRICTER = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_DRAFT_4 = ("draft-03", "draft-04")


def read_dialect(schema: Any) -> Any:
    """The schema in the draft that it names, else in draft 2020-12; itself, if there is nothing to change."""
    if not isinstance(schema, dict):
        return schema
    named = str(cast("dict[str, Any]", schema).get("$schema", ""))
    if "$schema" in schema and "json-schema.org/" not in named:
        schema = {key: part for key, part in cast("dict[str, Any]", schema).items() if key != "$schema"}
    return _rewritten(schema, 0, has_flags=not any(draft in named for draft in _DRAFT_4))


def _rewritten(schema: Any, depth: int, *, has_flags: bool) -> Any:
    if depth > _DEEPEST:
        return schema
    if isinstance(schema, list):
        before = cast("list[Any]", schema)
        parts = [_rewritten(each, depth + 1, has_flags=has_flags) for each in before]
        return parts if _has_changed(parts, before) else before
    if not isinstance(schema, dict):
        return schema
    found = cast("dict[str, Any]", schema)
    changed: dict[str, Any] = {}
    for keyword, part in found.items():
        if keyword in _SCHEMA:
            inner = _rewritten(part, depth + 1, has_flags=has_flags)
        elif keyword in _OF_SCHEMAS and isinstance(part, dict):
            inner = _each_rewritten(cast("dict[str, Any]", part), depth, has_flags=has_flags)
        else:
            continue
        if inner is not part:
            changed[keyword] = inner
    if has_flags:
        changed |= _limits(found)
    if found.get("nullable") is True:
        changed |= _with_null(found)
    if not changed:
        return found
    dropped = {keyword for keyword, part in changed.items() if part is None}
    return {keyword: part for keyword, part in (found | changed).items() if keyword not in dropped}


def _each_rewritten(named: dict[str, Any], depth: int, *, has_flags: bool) -> dict[str, Any]:
    parts = {name: _rewritten(part, depth + 2, has_flags=has_flags) for name, part in named.items()}
    return parts if _has_changed([*parts.values()], [*named.values()]) else named


def _has_changed(parts: list[Any], before: list[Any]) -> bool:
    return any(part is not each for part, each in zip(parts, before, strict=True))


def _limits(schema: dict[str, Any]) -> dict[str, Any]:
    """Draft 4's `"minimum": 5, "exclusiveMinimum": true` as `"exclusiveMinimum": 5`; what goes is None."""
    changed: dict[str, Any] = {}
    for flag, limit in _STRICTER.items():
        if isinstance(is_exclusive := schema.get(flag), bool):
            changed[flag] = schema.get(limit) if is_exclusive else None
            if is_exclusive:
                changed[limit] = None
    return changed


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """OpenAPI's `"type": "string", "nullable": true` as `"type": ["string", "null"]`; it needs a type."""
    named, members = schema.get("type"), schema.get("enum")
    types: list[Any] = cast("list[Any]", named) if isinstance(named, list) else [named]
    if named is None or "null" in types:
        return {}
    changed: dict[str, Any] = {"type": [*types, "null"]}
    if isinstance(members, list) and None not in members:
        changed["enum"] = [*cast("list[Any]", members), None]
    return changed


def without_patterns(schema: Any, depth: int = 0) -> Any:
    """The schema without `pattern`: the linear engine supports no look-around and no back references."""
    if depth > _DEEPEST:
        return schema
    if isinstance(schema, dict):
        return {
            key: without_patterns(part, depth + 1)
            for key, part in cast("dict[str, Any]", schema).items()
            if key != "pattern" or not isinstance(part, str)
        }
    if isinstance(schema, list):
        return [without_patterns(part, depth + 1) for part in cast("list[Any]", schema)]
    return schema
