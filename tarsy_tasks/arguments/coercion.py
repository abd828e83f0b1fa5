"""Converts arguments that do not fit a schema into arguments that do, where only one reading makes sense.

Owns the conversions. They follow the problems that the validator reports: only a value that does not fit is changed,
and the result fits as a whole. A required property that is missing is added only with the default of its schema; a null
is dropped only where the property is optional, or has a default.
"""

import re
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from tarsy_tasks.arguments.almost_json import NotJsonError, read_almost_json
from tarsy_tasks.arguments.cost import size
from tarsy_tasks.arguments.formats import may_have_format
from tarsy_tasks.arguments.schema import Schema, UncheckedError
from tarsy_tasks.arguments.shape import Pointer, Shape, find_near, look_up
from tarsy_tasks.arguments.values import LEAVES, TYPES, Written, plain, read_scalar

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

__all__ = ["coerce"]

_LIST_ITEM = re.compile(r"[\w.@/+=:*%~-]+")
_SINGLE_ROUNDS = 8
_ROUNDS = 16
_MAX_CHECKS = 200
_MAX_VALUES = 5000
"""For larger values the problems are not listed all at once: each costs some microseconds and a kilobyte."""
_DEEPEST = 8

_Reading = tuple[Any, tuple[str, ...]]
"""A value, perhaps with `Written` leaves, and the words for its conversions."""


def coerce(schema: Schema, tree: Any) -> tuple[Any, tuple[str, ...]] | None:
    """The value of `tree` converted to fit `schema`, and a word for each kind of change; None when there is not exactly
    one way. Leaves may be `Written`, whose spelling is used where the schema wants text.

    Raises:
        UncheckedError: The schema is broken, or it would cost too much to check.
    """
    coercion = _Coercion(schema, (), tree, [_MAX_CHECKS])
    return (coercion.value, tuple(coercion.repairs)) if coercion.succeeds(0) else None


def coerce_partly(schema: Schema, tree: Any) -> Any:
    """The value of `tree` with every part converted that can be; the remaining problems are those to report. Raises as
    `coerce`."""
    coercion = _Coercion(schema, (), tree, [_MAX_CHECKS])
    coercion.fix_what_can_be()
    return coercion.value


class _Coercion:
    """One value on its way to fit the part of a schema at `pointer`."""

    def __init__(self, schema: Schema, pointer: Pointer, tree: Any, checks_left: list[int]) -> None:
        self._schema = schema
        self._pointer = pointer
        self._checks_left = checks_left  # shared by all coercions of the same arguments
        # The same value twice: with its spelling, and as the validator sees it.
        self._tree = [_copied(tree)]
        self._values = [plain(tree)]
        self.repairs: dict[str, None] = {}

    @property
    def value(self) -> Any:
        return self._values[0]

    @property
    def _shape(self) -> Shape:
        return Shape(self._schema.raw, self._pointer) if self._pointer else self._schema.shape

    def succeeds(self, depth: int) -> bool:
        for number in range(_ROUNDS):
            self._checks_left[0] -= 1
            if self._checks_left[0] < 0 or depth > _DEEPEST:
                return False
            problems = self._problems(number)
            if problems is None:
                return False
            if not problems:
                return True
            fixed: set[Pointer] = set()
            for problem in problems:
                path = _path_of(problem)
                if path not in fixed and not self._fixes(problem, path, depth):
                    return False
                fixed.add(path)
        return False

    def fix_what_can_be(self) -> None:
        for problem in self._schema.all_problems(self.value, self._pointer):
            # An earlier fix may have removed the value that this problem is about.
            with suppress(LookupError, TypeError):
                self._fixes(problem, _path_of(problem), 0)

    def _problems(self, number: int) -> "list[ValidationError] | None":
        """The problems: one by one at first, then all at once; None when that would cost too much."""
        if number < _SINGLE_ROUNDS:
            first = self._schema.first_problem(self.value, self._pointer)
            return [first] if first else []
        if size(self.value, _MAX_VALUES) > _MAX_VALUES:
            return None
        return self._schema.all_problems(self.value, self._pointer)

    def _fixes(self, problem: "ValidationError", path: Pointer, depth: int) -> bool:
        keyword = problem.kind.name
        if keyword == "required":
            return self._fills_in(path)
        tree = self._leaf(path)
        if keyword == "type":
            types = cast("list[str]", problem.kind.value)
            reading = _to_types(types, tree)
            if reading and isinstance(reading[0], str):
                form = Shape(self._schema.raw, self._place(problem)[:-1]).raw.get("format")
                reading = reading if may_have_format(form, reading[0]) else None
            if reading:
                self._fix_siblings(problem, path, types)
        elif keyword in ("enum", "const"):
            reading = _to_member(problem.kind.value if keyword == "enum" else [problem.kind.value], tree)
        elif keyword in ("anyOf", "oneOf"):
            reading = _only(self._to_branches(problem, tree, depth))
        else:
            reading = None
        if reading:
            self._replace(path, reading)
        elif look_up(self._values, path) is None and ("properties", path[-1]) in pairwise(problem.evaluation_path):
            return self._leaves_out(path)
        else:
            return False
        return True

    def _leaves_out(self, path: Pointer) -> bool:
        """Drop a property that is null; a required one gets its default."""
        parent = self._shape.at(path[1:-1])
        if parent is not None and path[-1] in parent.required:
            filled = self._default_at(path)
            if filled is None:
                return False
            self._replace(path, filled)
        else:
            del look_up(self._values, path[:-1])[path[-1]]
        self.repairs["null_left_out"] = None
        return True

    def _fills_in(self, path: Pointer) -> bool:
        """Add a required property that is missing, with its default; not in place of a name that was misspelled."""
        filled = self._default_at(path)
        parent = self._shape.at(path[1:-1])
        given = look_up(self._values, path[:-1])
        if filled is None or parent is None or not isinstance(given, dict):
            return False
        unknown = [name for name in cast("dict[str, Any]", given) if name not in parent.properties]
        if any(find_near(name, (str(path[-1]),)) for name in unknown):
            return False
        self._replace(path, filled)
        return True

    def _default_at(self, path: Pointer) -> _Reading | None:
        """The default of the property at a path; None if it has none, or one that is null or does not fit."""
        found = self._shape.at(path[1:])
        if found is None or found.default is None:
            return None
        with suppress(UncheckedError):
            if self._schema.fits(found.default, found.pointer):
                return _copied(found.default), ("default_filled",)
        return None

    def _leaf(self, path: Pointer) -> Any:
        tree = look_up(self._tree, path)
        return look_up(self._values, path) if tree is None else tree

    def _replace(self, path: Pointer, reading: _Reading) -> None:
        tree, words = reading
        container = look_up(self._tree, path[:-1])
        if isinstance(container, dict | list):  # else it is inside a `Written`
            cast("Any", container)[path[-1]] = tree
        look_up(self._values, path[:-1])[path[-1]] = plain(tree)
        self.repairs.update(dict.fromkeys(words))

    def _fix_siblings(self, problem: "ValidationError", path: Pointer, types: list[str]) -> None:
        """All items of a list or map have the same schema, so a thousand wrong items are fixed in one round."""
        keyword = problem.evaluation_path[-2] if len(problem.evaluation_path) > 1 else None
        if keyword not in ("items", "additionalProperties"):
            return
        parent = Shape(self._schema.raw, self._place(problem)[:-2]).raw
        if not {"prefixItems", "patternProperties"}.isdisjoint(parent):
            return
        values: Any = look_up(self._values, path[:-1])
        tree: Any = look_up(self._tree, path[:-1])
        tree = cast("Any", tree) if isinstance(tree, dict | list) else values
        named: Any = parent.get("properties", ()) if keyword == "additionalProperties" else ()
        siblings: list[Any] = list(cast("Any", values)) if isinstance(values, dict) else list(range(len(values)))
        right = {kind for name in types for kind in TYPES[name]}
        words: set[tuple[str, ...]] = set()
        for key in siblings:
            if key == path[-1] or key in named or cast("Any", values)[key].__class__ in right:
                continue
            if reading := _to_types(types, tree[key]):
                tree[key], values[key] = reading[0], plain(reading[0])
                words |= {reading[1]}
        self.repairs.update((word, None) for each in words for word in each)

    def _to_branches(self, problem: "ValidationError", tree: Any, depth: int) -> list[_Reading]:
        place = self._place(problem)
        found: list[_Reading] = []
        for number in range(len(look_up(self._schema.raw, place) or ())):
            branch = _Coercion(self._schema, (*place, number), tree, self._checks_left)
            if branch.succeeds(depth + 1):
                found.append((branch.value, tuple(branch.repairs)))
        return found

    def _place(self, problem: "ValidationError") -> Pointer:
        """The position in the document of the keyword that failed."""
        # After a reference the path starts at the top of the document, else where this check began.
        referred = "$ref" in problem.evaluation_path
        return tuple(problem.schema_path) if referred else (*self._pointer, *problem.schema_path)


def _path_of(problem: "ValidationError") -> Pointer:
    """The place of the value that a problem is about, even if it is missing."""
    missing = (problem.kind.as_dict()["property"],) if problem.kind.name == "required" else ()
    return (0, *problem.instance_path, *missing)


def _copied(tree: Any) -> Any:
    if tree.__class__ in LEAVES:
        return tree
    if isinstance(tree, dict):
        members = cast("dict[str, Any]", tree).items()
        return {key: value if value.__class__ in LEAVES else _copied(value) for key, value in members}
    if isinstance(tree, list):
        return [item if item.__class__ in LEAVES else _copied(item) for item in cast("list[Any]", tree)]
    return tree


def _only(readings: list[_Reading]) -> _Reading | None:
    """The one reading; None when there is none, or more than one."""
    if len(readings) > 1 and any(not _same(plain(readings[0][0]), plain(other[0])) for other in readings[1:]):
        return None
    return readings[0] if readings else None


def _same(left: Any, right: Any) -> bool:
    return left == right and repr(left) == repr(right)  # 1, 1.0 and True are equal


def _to_types(types: list[str], tree: Any) -> _Reading | None:
    return _only([reading for kind in types if (reading := _to_type(kind, tree)) is not None])


def _to_type(kind: str, tree: Any) -> _Reading | None:
    value = plain(tree)
    if kind == "string":
        text = None if value is None else _text_of(tree)
        return None if text is None else (text, ("to_string",))
    if isinstance(value, str) and kind not in _CONTAINERS:
        scalar = read_scalar(value.strip())
        if kind == "integer" and isinstance(scalar, float) and scalar.is_integer() and abs(scalar) < _EXACT:
            scalar = int(scalar)
        if kind == "boolean" and isinstance(scalar, str):
            scalar = _SWITCHES.get(scalar.lower())
        return (scalar, (f"to_{kind}",)) if scalar.__class__ in TYPES[kind] else None
    if isinstance(value, str) and (structure := _decoded(value, kind)) is not None:
        return structure, ("decoded",)
    if kind == "array" and value is not None and (items := _listed(tree)):
        return items, ("to_list",)
    return None


_EXACT = 2**53
_SWITCHES = {"yes": True, "on": True, "no": False, "off": False}
_CONTAINERS = ("object", "array")


def _listed(tree: Any) -> list[Any] | None:
    """One value as a list of one; `a, b` as a list, unless a comma, space or bracket could be part of an item."""
    value = plain(tree)
    if not isinstance(value, str):
        return [tree]
    pieces = [piece.strip() for piece in value.split(",")]
    if read_scalar(value.strip()) is None or not all(_LIST_ITEM.fullmatch(piece) for piece in pieces):
        return None
    return None if "://" in value and not all("://" in piece for piece in pieces) else list(pieces)


def _to_member(members: list[Any], tree: Any) -> _Reading | None:
    text = _text_of(tree)
    if text is None:
        return None
    folded = text.strip().casefold()
    exact = [member for member in members if _text_of(member) == text]
    matches = exact or [member for member in members if (_text_of(member) or "").casefold() == folded]
    return (matches[0], ("enum",)) if len(matches) == 1 else None


def _text_of(tree: Any) -> str | None:
    """The spelling of a scalar, or of a list that was a guess; None for anything else."""
    if isinstance(tree, Written):
        return tree.text
    if isinstance(tree, bool) or tree is None:
        return {True: "true", False: "false", None: "null"}[tree]
    return str(tree) if isinstance(tree, (str, int, float)) else None


def _decoded(text: str, kind: str) -> Any:
    text = text.strip()
    if not text.startswith("{" if kind == "object" else "["):
        return None
    try:
        tree, repairs = read_almost_json(text)
    except NotJsonError:
        return None
    # A second layer is read more strictly: a bare word in it may be anything.
    return None if "bare_word" in repairs else tree
