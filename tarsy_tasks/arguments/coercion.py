"""Turns arguments that do not fit a schema into arguments that do, where only one reading makes sense.

Owns what may become what. It only ever touches a value that does not fit, and keeps a change only if the changed
value fits: arguments that validate come out as they went in. It adds no property, and drops only an optional one
that is null."""

import re
from typing import Any, cast

from tarsy_tasks.arguments.almost_json import NotJsonError, read_almost_json
from tarsy_tasks.arguments.schema import TYPES, Run, Schema, TooCostlyError, identity
from tarsy_tasks.arguments.values import MAX_DEPTH, Written, plain, read_scalar

__all__ = ["coerce"]

_LIST_ITEM = re.compile(r"[\w.@/+=:*%~-]+")
_DEEPEST = 3 * MAX_DEPTH  # a level of the value may be a reference, an alternative and an object
_SCALARS = {"string", "integer", "number", "boolean", "null"}
_Repairs = dict[str, None]


def coerce(schema: Schema, tree: Any) -> tuple[Any, tuple[str, ...]]:
    """The value of `tree` made to fit `schema` as far as that is possible, and a word for each kind of change.

    Args:
        tree: A value; leaves may be `Written`, and then their spelling counts when text is due.

    Raises:
        TooCostlyError: The schema is too large, too deep or too branched.
    """
    repairs: _Repairs = {}
    try:
        value = _Coercion(Run(1, plain(tree))).coerce(schema, tree, repairs, 0)
    except RecursionError:
        raise TooCostlyError from None
    return value, tuple(repairs)


class _Coercion:
    """One coercion; all its checks share one bounded run."""

    def __init__(self, run: Run) -> None:
        self._fits = run.fits

    def coerce(self, schema: Schema, tree: Any, repairs: _Repairs, depth: int) -> Any:
        value = plain(tree)
        kind = schema.only_type
        if kind is not None and TYPES[kind](value):
            return value
        if kind in _SCALARS:
            # Short cut for the items of long lists.
            made: _Repairs = {}
            result = self._to_type(kind, schema, tree, made, depth)
            if not TYPES[kind](result):
                return value
            repairs.update(made)
            return result
        if depth > _DEEPEST or self._fits(schema, value):
            return value
        changes: _Repairs = {}
        changed = self._changed(schema, tree, changes, depth)
        repairs.update(changes)
        return changed if changes else value

    def _changed(self, schema: Schema, tree: Any, repairs: _Repairs, depth: int) -> Any:
        if schema.branches:
            return self._by_branch(schema, tree, repairs, depth)
        for part in schema.parts:
            changes: _Repairs = {}
            changed = self.coerce(part, tree, changes, depth + 1)
            if changes:
                tree = changed
                repairs.update(changes)
        if schema.members is not None:
            return _member(schema.members, tree, repairs)
        content = tree.value if isinstance(tree, Written) else tree
        kinds = schema.types or _implied_types(schema)
        if isinstance(content, dict) and "object" in kinds:
            return self._object(schema, cast("dict[str, Any]", content), repairs, depth)
        if isinstance(content, list) and "array" in kinds:
            return self._list(schema, cast("list[Any]", content), repairs, depth)
        if any(TYPES[kind](plain(tree)) for kind in kinds):
            return plain(tree)
        found: list[tuple[Any, _Repairs]] = []
        for kind in kinds:
            changes: _Repairs = {}
            changed = self._to_type(kind, schema, tree, changes, depth)
            if changes and TYPES[kind](changed):
                found.append((changed, changes))
        return _only(found, plain(tree), repairs)

    def _by_branch(self, schema: Schema, tree: Any, repairs: _Repairs, depth: int) -> Any:
        found: list[tuple[Any, _Repairs]] = []
        for branch in schema.branches:
            changes: _Repairs = {}
            changed = self.coerce(branch, tree, changes, depth + 1)
            if self._fits(schema, changed):
                found.append((changed, changes))
        return _only(found, plain(tree), repairs)

    def _object(self, schema: Schema, tree: dict[str, Any], repairs: _Repairs, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, item in tree.items():
            part = schema.properties.get(name, schema.additional)
            if part is None:
                result[name] = plain(item)
                continue
            changed = self.coerce(part, item, repairs, depth + 1)
            if (
                changed is None
                and name in schema.properties
                and name not in schema.required
                and not self._fits(part, None)
            ):
                repairs["null_left_out"] = None
            else:
                result[name] = changed
        return result

    def _list(self, schema: Schema, tree: list[Any], repairs: _Repairs, depth: int) -> list[Any]:
        items = schema.items
        return (
            [plain(item) for item in tree]
            if items is None
            else [self.coerce(items, item, repairs, depth + 1) for item in tree]
        )

    def _to_type(self, kind: str, schema: Schema, tree: Any, repairs: _Repairs, depth: int) -> Any:
        value = plain(tree)
        if kind == "string":
            return _to_string(tree, repairs)
        if kind in _SCALARS and isinstance(value, str):
            scalar = read_scalar(value.strip())
            if TYPES[kind](scalar):
                repairs[f"to_{kind}"] = None
                return scalar
        if kind in ("object", "array") and isinstance(value, str):
            structure = _decoded(value, kind)
            if structure is not None:
                repairs["decoded"] = None
                return self.coerce(schema, structure, repairs, depth + 1)
        return self._to_list(schema, tree, repairs, depth) if kind == "array" else value

    def _to_list(self, schema: Schema, tree: Any, repairs: _Repairs, depth: int) -> Any:
        """One value as a list of one; `a, b` as a list, unless a comma, space or bracket could belong to an item."""
        value = plain(tree)
        items = schema.items
        if items is None or value is None or isinstance(value, list):
            return cast("Any", value)
        if isinstance(value, str):
            pieces = [piece.strip() for piece in value.split(",")]
            if not all(_LIST_ITEM.fullmatch(piece) for piece in pieces):
                return value
            if "://" in value and not all("://" in piece for piece in pieces):
                return value
            trees: list[Any] = list(pieces)
        else:
            trees = [tree]
        changes: _Repairs = {}
        result = [self.coerce(items, each, changes, depth + 1) for each in trees]
        if not all(self._fits(items, each) for each in result):
            return value
        repairs.update(changes)
        repairs["to_list"] = None
        return result


def _implied_types(schema: Schema) -> frozenset[str]:
    kinds = {"object"} if schema.properties or schema.additional else set[str]()
    return frozenset(kinds | ({"array"} if schema.items else set[str]()))


def _only(found: list[tuple[Any, _Repairs]], value: Any, repairs: _Repairs) -> Any:
    """The one result, or `value` when there is none or more than one: two readings are no reading."""
    if found and all(_same(found[0][0], other) for other, _ in found):
        repairs.update(found[0][1])
        return found[0][0]
    return value


def _member(members: list[Any], tree: Any, repairs: _Repairs) -> Any:
    value = plain(tree)
    text = _text_of(tree)
    if text is None:
        return value
    folded = text.strip().casefold()
    exact = [member for member in members if _text_of(member) == text]
    alike = exact or [member for member in members if (_text_of(member) or "").casefold() == folded]
    if len(alike) != 1:
        return value
    repairs["enum"] = None
    return alike[0]


def _text_of(tree: Any) -> str | None:
    """How a scalar is written, or None for what is no scalar."""
    if isinstance(tree, Written):
        return tree.text if not isinstance(tree.value, dict | list) else None
    if isinstance(tree, bool) or tree is None:
        return {True: "true", False: "false", None: "null"}[tree]
    return str(tree) if isinstance(tree, str | int | float) else None


def _to_string(tree: Any, repairs: _Repairs) -> Any:
    """Numbers and booleans as they were written. A list that was only guessed to be one is text again."""
    if isinstance(tree, Written) and tree.value is not None:
        repairs["to_string"] = None
        return tree.text
    text = _text_of(tree) if tree is not None else None
    if text is None:
        return plain(tree)
    repairs["to_string"] = None
    return text


def _decoded(text: str, kind: str) -> Any:
    text = text.strip()
    if not text.startswith("{" if kind == "object" else "["):
        return None
    try:
        tree, repairs = read_almost_json(text)
    except NotJsonError:
        return None
    # A second layer is read less freely: a bare word in it may be anything.
    return None if "bare_word" in repairs else tree


def _same(left: Any, right: Any) -> bool:
    if TYPES["object"](left) or TYPES["array"](left):
        return left is right or identity(left) == identity(right)
    return type(left) is type(right) and left == right
