"""JSON Schema as far as tool arguments need it: does a value fit, and if not, why.

Owns the reading of an `input_schema` that an MCP server sent. Such a schema is a stranger's: compiling and checking
are bounded, nothing is fetched, and what is broken or unknown in it is passed over, since the server checks its
arguments itself. It knows nothing of text and changes no value.

Why not `jsonschema`: it spends 52 µs on five properties, compares `uniqueItems` pairwise (1.6 s for 1000 objects),
and runs every `pattern`. Its verdict is the reference in the tests. Not checked: `format` (an annotation),
`unevaluatedProperties`, `unevaluatedItems`, `$dynamicRef`, and references that leave the document."""

import hashlib
import marshal
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final, cast
from urllib.parse import unquote

from tarsy_tasks.arguments.patterns import compile_pattern

__all__ = ["MISSING", "TYPES", "Problem", "Run", "Schema", "TooCostlyError", "compile_schema", "identity"]

TYPES: Final[dict[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
}
MISSING: Final = object()

_MOST_NODES = 20_000
_DEEPEST_CHECK = 450
_CACHED_SCHEMAS = 512
_FREE_STEPS = 20_000
_STEPS_PER_VALUE = 50


class TooCostlyError(Exception):
    """The schema is too large, too deep or too branched to be checked within bounds."""


class Problem:
    """One way in which a value does not fit.

    Attributes:
        path: Property names and list positions from the top.
        kind: The keyword that refused.
        expected: In words.
        given: The value that was refused, or MISSING.
    """

    __slots__ = ("expected", "given", "kind", "path")

    def __init__(self, path: tuple[str | int, ...], kind: str, expected: str, given: Any) -> None:
        self.path = path
        self.kind = kind
        self.expected = expected
        self.given = given


class Run:
    """One check of `value`: what it found, and how much work is left to it."""

    __slots__ = ("depth", "most_problems", "problems", "steps_left")

    def __init__(self, most_problems: int, value: Any) -> None:
        self.problems: list[Problem] = []
        self.most_problems = most_problems
        self.steps_left = _FREE_STEPS + _STEPS_PER_VALUE * _size(value)
        self.depth = 0

    def spend(self, steps: int) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise TooCostlyError

    def found(self, path: tuple[str | int, ...], kind: str, expected: str, given: Any) -> None:
        self.problems.append(Problem(path, kind, expected, given))

    @property
    def full(self) -> bool:
        return len(self.problems) >= self.most_problems

    def fits(self, node: "Schema", value: Any) -> bool:
        """Whether the value fits a subschema, at the expense of the same run."""
        problems, most = self.problems, self.most_problems
        self.problems, self.most_problems = [], 1
        try:
            node.check(value, (), self)
            return not self.problems
        finally:
            self.problems, self.most_problems = problems, most


_Path = tuple[str | int, ...]
_Check = Callable[[Any, _Path, Run], None]


class Schema:
    """A compiled schema, or a part of one.

    Attributes:
        raw: The schema as the server wrote it; an empty one when it was unusable.
        types: The types that it names, empty when it names none.
        properties: Subschemas by property name.
        required: The properties that must be there.
        items: Subschema of list items, if there is one for all.
        additional: Subschema of properties that have no name of their own; None: nothing is said.
        closed: No other properties are allowed.
        members: The values of `enum` or `const`, None without.
        parts: Subschemas that apply to the same value: `allOf` and `$ref`.
        branches: Subschemas of which one applies: `anyOf` and `oneOf`.
    """

    __slots__ = (
        "additional",
        "branches",
        "checks",
        "closed",
        "items",
        "members",
        "parts",
        "properties",
        "raw",
        "required",
        "types",
    )

    def __init__(self) -> None:
        self.raw: dict[str, Any] = {}
        self.types: frozenset[str] = frozenset()
        self.properties: dict[str, Schema] = {}
        self.required: tuple[str, ...] = ()
        self.items: Schema | None = None
        self.additional: Schema | None = None
        self.closed = False
        self.members: list[Any] | None = None
        self.parts: list[Schema] = []
        self.branches: list[Schema] = []
        self.checks: list[_Check] = []

    def check(self, value: Any, path: _Path, run: Run) -> None:
        run.steps_left -= 1
        run.depth += 1
        if run.steps_left < 0 or run.depth > _DEEPEST_CHECK:
            raise TooCostlyError
        for check in self.checks:
            check(value, path, run)
            if len(run.problems) >= run.most_problems:
                break
        run.depth -= 1

    def fits(self, value: Any) -> bool:
        """Whether `value` fits.

        Raises:
            TooCostlyError: Finding out would take too long.
        """
        return not self.problems(value, 1)

    def problems(self, value: Any, most: int) -> list[Problem]:
        """What is wrong with `value`, at most `most` things.

        Raises:
            TooCostlyError: Finding out would take too long.
        """
        run = Run(most, value)
        try:
            self.check(value, (), run)
        except RecursionError:
            raise TooCostlyError from None
        return run.problems


def _size(value: Any) -> int:
    """How many values there are in `value`, up to what matters."""
    if isinstance(value, dict):
        return 1 + sum(
            _size(item) if isinstance(item, dict | list) else 1 for item in cast("dict[str, Any]", value).values()
        )
    if isinstance(value, list):
        return 1 + sum(_size(item) if isinstance(item, dict | list) else 1 for item in cast("list[Any]", value))
    return 1


def identity(value: Any) -> Any:
    """Something hashable that is equal for values that JSON Schema calls equal: 1 and 1.0, but not 1 and true."""
    if isinstance(value, bool):
        return (bool, value)
    if isinstance(value, dict):
        return (dict, frozenset((key, identity(item)) for key, item in cast("dict[str, Any]", value).items()))
    if isinstance(value, list):
        return (list, *map(identity, cast("list[Any]", value)))
    return value


_cache: OrderedDict[bytes, Schema] = OrderedDict()
_cache_lock = threading.Lock()


def compile_schema(schema: Any) -> Schema:
    """The compiled schema, from a bounded cache where possible.

    Raises:
        TooCostlyError: It is too large or too deep to work with.
    """
    try:
        # Version 0 has no references, so that equal schemas are equal bytes; hashing them costs 2 µs for a usual tool.
        key = hashlib.blake2b(marshal.dumps(schema, 0), digest_size=16).digest()
    except ValueError:
        raise TooCostlyError from None
    with _cache_lock:
        if key in _cache:
            _cache.move_to_end(key)
            return _cache[key]
    compiled = _Compiler(schema).compile()
    with _cache_lock:
        _cache[key] = compiled
        if len(_cache) > _CACHED_SCHEMAS:
            _cache.popitem(last=False)
    return compiled


class _Compiler:
    """Turns one document into nodes; every subschema becomes one node, so that recursive schemas are finite."""

    def __init__(self, document: Any) -> None:
        self._document: Any = document
        self._nodes: dict[int, Schema] = {}
        self._waiting: list[tuple[Any, Schema]] = []
        self._anchors: dict[str, Any] | None = None

    def compile(self) -> Schema:
        root = self.node(self._document)
        while self._waiting:
            raw, node = self._waiting.pop()
            self._fill(raw, node)
        return root

    def node(self, raw: Any) -> Schema:
        if id(raw) not in self._nodes:
            if len(self._nodes) >= _MOST_NODES:
                raise TooCostlyError
            self._nodes[id(raw)] = Schema()
            self._waiting.append((raw, self._nodes[id(raw)]))
        return self._nodes[id(raw)]

    def _fill(self, raw: Any, node: Schema) -> None:
        if raw is False:
            node.checks.append(lambda value, path, run: run.found(path, "false", "nothing: it must be left out", value))
        if not isinstance(raw, dict):
            return
        node.raw = cast("dict[str, Any]", raw)
        for keyword, build in _KEYWORDS.items():
            if keyword in node.raw and (check := build(node.raw[keyword], node, self)):
                node.checks.append(check)

    def resolve(self, reference: str) -> Any:
        """The subschema that a local reference names, or None."""
        base, _, fragment = reference.partition("#")
        if base and not (isinstance(self._document, dict) and base == self._document.get("$id")):
            return None
        if not fragment or fragment.startswith("/"):
            return self._at(unquote(fragment))
        if self._anchors is None:
            self._anchors = {}
            waiting: list[Any] = [self._document]
            for _ in range(_MOST_NODES):
                if not waiting:
                    break
                here = waiting.pop()
                if isinstance(here, dict):
                    here = cast("dict[str, Any]", here)
                    if isinstance(anchor := here.get("$anchor"), str):
                        self._anchors.setdefault(anchor, here)
                    waiting.extend(here.values())
                elif isinstance(here, list):
                    waiting.extend(cast("list[Any]", here))
        return self._anchors.get(fragment)

    def _at(self, pointer: str) -> Any:
        here = self._document
        for step in pointer.split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(here, dict) and step in here:
                here = cast("dict[str, Any]", here)[step]
            elif (
                isinstance(here, list) and re.fullmatch("[0-9]{1,6}", step) and int(step) < len(cast("list[Any]", here))
            ):
                here = cast("list[Any]", here)[int(step)]
            else:
                return None
        return here


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_bound(value: Any) -> bool:
    """A number of a schema that is worth comparing with."""
    return _is_number(value) and abs(value) < 1e300


def _is_count(value: Any) -> bool:
    return _is_bound(value) and value >= 0


def _strings(value: Any) -> list[str]:
    return [each for each in cast("list[Any]", value) if isinstance(each, str)] if isinstance(value, list) else []


def _schemas(value: Any) -> list[Any]:
    return (
        [each for each in cast("list[Any]", value) if isinstance(each, dict | bool)] if isinstance(value, list) else []
    )


def _schema_map(value: Any) -> dict[str, Any]:
    items = cast("dict[Any, Any]", value).items() if isinstance(value, dict) else ()
    return {key: each for key, each in items if isinstance(key, str) and isinstance(each, dict | bool)}


def _ref(reference: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    target = compiler.resolve(reference) if isinstance(reference, str) else None
    if not isinstance(target, dict | bool):
        return None
    part = compiler.node(target)
    node.parts.append(part)
    return part.check


def _type(names: Any, node: Schema, _compiler: _Compiler) -> _Check | None:
    names = [names] if isinstance(names, str) else _strings(names)
    if not names or not all(name in TYPES for name in names):
        return None
    if node.raw.get("nullable") is True:
        names = [*names, "null"]
    node.types = frozenset(names)
    tests = [TYPES[name] for name in names]
    only = tests[0]

    def check_one(value: Any, path: _Path, run: Run) -> None:
        if not only(value):
            run.found(path, "type", "", value)

    def check_any(value: Any, path: _Path, run: Run) -> None:
        if not any(test(value) for test in tests):
            run.found(path, "type", "", value)

    return check_one if len(tests) == 1 else check_any


def _members(values: Any, node: Schema, _compiler: _Compiler) -> _Check | None:
    if not isinstance(values, list):
        return None
    return _one_of(cast("list[Any]", values), node)


def _constant(value: Any, node: Schema, _compiler: _Compiler) -> _Check:
    return _one_of([value], node)


def _one_of(values: list[Any], node: Schema) -> _Check:
    if node.raw.get("nullable") is True and None not in values:
        values = [*values, None]
    node.members = values
    allowed = {identity(value) for value in values}

    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, dict | list):
            run.spend(_size(value))
        if identity(value) not in allowed:
            run.found(path, "enum", "", value)

    return check


def _properties(schemas: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    node.properties = {name: compiler.node(raw) for name, raw in _schema_map(schemas).items()}
    properties = node.properties

    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, dict):
            for name, item in cast("dict[str, Any]", value).items():
                if name in properties:
                    properties[name].check(item, (*path, name), run)
                    if run.full:
                        return

    return check if properties else None


def _required(names: Any, node: Schema, _compiler: _Compiler) -> _Check | None:
    required = node.required = tuple(dict.fromkeys(_strings(names)))

    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, dict):
            run.spend(len(required) // 8)
            for name in required:
                if name not in value:
                    run.found((*path, name), "required", "", MISSING)

    return check if required else None


def _additional(schema: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    if not isinstance(schema, dict | bool) or schema is True:
        return None
    named = _schema_map(node.raw.get("properties")).keys()
    patterns = [compile_pattern(each) for each in _schema_map(node.raw.get("patternProperties"))]
    if None in patterns:
        return None
    node.closed = schema is False
    additional = None if node.closed else compiler.node(cast("Any", schema))
    node.additional = additional

    def check(value: Any, path: _Path, run: Run) -> None:
        if not isinstance(value, dict):
            return
        for name, item in cast("dict[str, Any]", value).items():
            if name in named or any(pattern and pattern.matches(name) for pattern in patterns):
                continue
            if additional is None:
                run.found((*path, name), "additionalProperties", "", item)
            else:
                additional.check(item, (*path, name), run)
            if run.full:
                return

    return check


def _pattern_properties(schemas: Any, _node: Schema, compiler: _Compiler) -> _Check | None:
    found = [(compile_pattern(each), compiler.node(raw)) for each, raw in _schema_map(schemas).items()]
    rules = [(pattern, node) for pattern, node in found if pattern is not None]

    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, dict):
            for name, item in cast("dict[str, Any]", value).items():
                for pattern, node in rules:
                    run.spend(1)
                    if pattern.matches(name):
                        node.check(item, (*path, name), run)

    return check if rules else None


def _property_names(schema: Any, _node: Schema, compiler: _Compiler) -> _Check | None:
    if not isinstance(schema, dict | bool):
        return None
    names = compiler.node(schema)

    def check(value: Any, path: _Path, run: Run) -> None:
        for name in cast("dict[str, Any]", value) if isinstance(value, dict) else ():
            if not run.fits(names, name):
                run.found((*path, name), "propertyNames", "a name that the tool allows", name)

    return check


def _dependent_required(rules: Any, _node: Schema, _compiler: _Compiler) -> _Check | None:
    rules = cast("dict[str, Any]", rules) if isinstance(rules, dict) else {}
    needs = {name: _strings(each) for name, each in rules.items()}

    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, dict):
            for name, needed in needs.items():
                run.spend(1)
                if name in value:
                    for each in needed:
                        if each not in value:
                            run.found((*path, each), "required", "", MISSING)

    return check if any(needs.values()) else None


def _dependent_schemas(rules: Any, _node: Schema, compiler: _Compiler) -> _Check | None:
    schemas = {name: compiler.node(raw) for name, raw in _schema_map(rules).items()}

    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, dict):
            for name, schema in schemas.items():
                if name in value:
                    schema.check(value, path, run)

    return check if schemas else None


def _dependencies(rules: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    """The two keywords in one, as older drafts had it."""
    checks = [_dependent_required(rules, node, compiler), _dependent_schemas(rules, node, compiler)]

    def check(value: Any, path: _Path, run: Run) -> None:
        for each in checks:
            if each:
                each(value, path, run)

    return check


def _prefix_items(schemas: Any, _node: Schema, compiler: _Compiler) -> _Check | None:
    nodes = [compiler.node(raw) for raw in _schemas(schemas)]

    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, list):
            for at, (node, item) in enumerate(zip(nodes, cast("list[Any]", value), strict=False)):
                node.check(item, (*path, at), run)

    return check if nodes else None


def _items(schema: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    if isinstance(schema, list):
        return _prefix_items(schema, node, compiler)
    return _items_from(len(_schemas(node.raw.get("prefixItems"))), schema, node, compiler)


def _additional_items(schema: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    first = node.raw.get("items")
    return _items_from(len(_schemas(first)), schema, node, compiler) if isinstance(first, list) else None


def _items_from(start: int, schema: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    if not isinstance(schema, dict | bool):
        return None
    items = compiler.node(schema)
    node.items = items if start == 0 else None

    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, list):
            for at, item in enumerate(cast("list[Any]", value)):
                if at >= start:
                    items.check(item, (*path, at), run)
                    if run.full:
                        return

    return check


def _contains(schema: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    if not isinstance(schema, dict | bool):
        return None
    item_node = compiler.node(schema)
    least, most = node.raw.get("minContains", 1), node.raw.get("maxContains")

    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, list):
            count = sum(run.fits(item_node, item) for item in cast("list[Any]", value))
            if (_is_count(least) and count < least) or (_is_count(most) and count > cast("float", most)):
                run.found(path, "contains", "a list with the items that the tool asks for", value)

    return check


def _unique_items(unique: Any, _node: Schema, _compiler: _Compiler) -> _Check | None:
    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, list):
            items = cast("list[Any]", value)
            run.spend(_size(items))
            if len({identity(item) for item in items}) < len(items):
                run.found(path, "uniqueItems", "a list without repeated items", items)

    return check if unique is True else None


def _all_of(schemas: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    parts = [compiler.node(raw) for raw in _schemas(schemas)]
    node.parts.extend(parts)

    def check(value: Any, path: _Path, run: Run) -> None:
        for part in parts:
            part.check(value, path, run)

    return check if parts else None


def _any_of(schemas: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    branches = [compiler.node(raw) for raw in _schemas(schemas)]
    node.branches.extend(branches)

    def check(value: Any, path: _Path, run: Run) -> None:
        if not any(run.fits(branch, value) for branch in branches):
            _blame(branches, value, path, run)

    return check if branches else None


def _exactly_one_of(schemas: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    branches = [compiler.node(raw) for raw in _schemas(schemas)]
    node.branches.extend(branches)

    def check(value: Any, path: _Path, run: Run) -> None:
        fitting = sum(run.fits(branch, value) for branch in branches)
        if not fitting:
            _blame(branches, value, path, run)
        elif fitting > 1:
            run.found(path, "oneOf", "a value that fits exactly one of the tool's alternatives", value)

    return check if branches else None


def _blame(branches: list[Schema], value: Any, path: _Path, run: Run) -> None:
    """The problems of the one branch that was meant, if it can be told; else that no branch fits."""
    if isinstance(value, dict | list) and not run.full:
        kind = "object" if isinstance(value, dict) else "array"
        meant = [branch for branch in branches if kind in branch.types or (branch.properties and kind == "object")]
        if len(meant) == 1 and meant[0].types <= {kind}:
            meant[0].check(value, path, run)
            return
    run.found(path, "anyOf", "", value)


def _not(schema: Any, _node: Schema, compiler: _Compiler) -> _Check | None:
    if not isinstance(schema, dict | bool):
        return None
    refused = compiler.node(schema)

    def check(value: Any, path: _Path, run: Run) -> None:
        if run.fits(refused, value):
            run.found(path, "not", "another value: the tool excludes this one", value)

    return check


def _if(schema: Any, node: Schema, compiler: _Compiler) -> _Check | None:
    if not isinstance(schema, dict | bool):
        return None
    condition = compiler.node(schema)
    then, otherwise = (
        compiler.node(raw) if isinstance(raw := node.raw.get(word), dict | bool) else None for word in ("then", "else")
    )

    def check(value: Any, path: _Path, run: Run) -> None:
        branch = then if run.fits(condition, value) else otherwise
        if branch is not None:
            branch.check(value, path, run)

    return check


def _bound(holds: Callable[[Any, Any], bool], words: str) -> Callable[[Any, Schema, _Compiler], _Check | None]:
    def build(bound: Any, node: Schema, _compiler: _Compiler) -> _Check | None:
        if not _is_bound(bound):
            return None
        exclusive = {"at least": "exclusiveMinimum", "at most": "exclusiveMaximum"}.get(words, "")
        strict = node.raw.get(exclusive) is True  # draft 4

        def check(value: Any, path: _Path, run: Run) -> None:
            if _is_number(value) and (not holds(value, bound) or (strict and value == bound)):
                run.found(path, "bounds", f"a number {words} {bound}", value)

        return check

    return build


def _multiple_of(divisor: Any, _node: Schema, _compiler: _Compiler) -> _Check | None:
    if not _is_bound(divisor) or divisor <= 0:
        return None
    # Decimal, as it is written: in binary 0.3 is no multiple of 0.1.
    exact = Fraction(str(divisor))

    def check(value: Any, path: _Path, run: Run) -> None:
        if _is_number(value) and (value if isinstance(value, int) else Fraction(str(value))) % exact != 0:
            run.found(path, "multipleOf", f"a multiple of {divisor}", value)

    return check


def _size_bound(
    kind: type, holds: Callable[[Any, Any], bool], words: str
) -> Callable[[Any, Schema, _Compiler], _Check | None]:
    def build(bound: Any, _node: Schema, _compiler: _Compiler) -> _Check | None:
        if not _is_count(bound):
            return None

        def check(value: Any, path: _Path, run: Run) -> None:
            if isinstance(value, kind) and not holds(len(value), bound):
                run.found(path, "size", words.format(int(bound)), value)

        return check

    return build


def _pattern(pattern: Any, _node: Schema, _compiler: _Compiler) -> _Check | None:
    cheap = compile_pattern(pattern) if isinstance(pattern, str) else None
    if cheap is None:
        return None

    def check(value: Any, path: _Path, run: Run) -> None:
        if isinstance(value, str) and not cheap.matches(value):
            run.found(path, "pattern", f"a string that matches {pattern}", value)

    return check


def _at_least(value: Any, bound: Any) -> bool:
    return value >= bound


def _at_most(value: Any, bound: Any) -> bool:
    return value <= bound


# In the order of the checks: what says most about a value comes first.
_KEYWORDS: dict[str, Callable[[Any, Schema, _Compiler], _Check | None]] = {
    "type": _type,
    "enum": _members,
    "const": _constant,
    "$ref": _ref,
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "patternProperties": _pattern_properties,
    "propertyNames": _property_names,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
    "minProperties": _size_bound(dict, _at_least, "an object with at least {} properties"),
    "maxProperties": _size_bound(dict, _at_most, "an object with at most {} properties"),
    "prefixItems": _prefix_items,
    "items": _items,
    "additionalItems": _additional_items,
    "contains": _contains,
    "minItems": _size_bound(list, _at_least, "a list of at least {} items"),
    "maxItems": _size_bound(list, _at_most, "a list of at most {} items"),
    "uniqueItems": _unique_items,
    "minimum": _bound(_at_least, "at least"),
    "maximum": _bound(_at_most, "at most"),
    "exclusiveMinimum": _bound(lambda value, bound: value > bound, "above"),
    "exclusiveMaximum": _bound(lambda value, bound: value < bound, "below"),
    "multipleOf": _multiple_of,
    "minLength": _size_bound(str, _at_least, "a string of at least {} characters"),
    "maxLength": _size_bound(str, _at_most, "a string of at most {} characters"),
    "pattern": _pattern,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _exactly_one_of,
    "not": _not,
    "if": _if,
}
