"""The keywords of JSON Schema: what each one checks, in the order of the checks.

Owns the table, and the keywords about single values and alternatives; those about objects and lists are in
`containers`. A keyword whose value is broken is passed over.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

from tarsy_tasks.arguments import containers
from tarsy_tasks.arguments.patterns import compile_pattern
from tarsy_tasks.arguments.raw_schema import Document, is_bound, is_count, is_number, schemas_in, strings
from tarsy_tasks.arguments.schema import TYPES, Check, Path, Run, Schema, identity, size

__all__ = ["KEYWORDS"]


def _ref(reference: Any, node: Schema, compiler: Document) -> Check | None:
    target = compiler.resolve(reference) if isinstance(reference, str) else None
    if not isinstance(target, dict | bool):
        return None
    part = compiler.node(target)
    node.parts.append(part)
    return part.check


def _type(names: Any, node: Schema, _compiler: Document) -> Check | None:
    names = [names] if isinstance(names, str) else strings(names)
    if not names or not all(name in TYPES for name in names):
        return None
    if node.raw.get("nullable") is True:
        names = [*names, "null"]
    node.types = frozenset(names)
    tests = [TYPES[name] for name in names]
    only = tests[0]

    def check_one(value: Any, path: Path, run: Run) -> None:
        if not only(value):
            run.found(path, "type", "", value)

    def check_any(value: Any, path: Path, run: Run) -> None:
        if not any(test(value) for test in tests):
            run.found(path, "type", "", value)

    return check_one if len(tests) == 1 else check_any


def _members(values: Any, node: Schema, _compiler: Document) -> Check | None:
    if not isinstance(values, list):
        return None
    return _one_of(cast("list[Any]", values), node)


def _constant(value: Any, node: Schema, _compiler: Document) -> Check:
    return _one_of([value], node)


def _one_of(values: list[Any], node: Schema) -> Check:
    if node.raw.get("nullable") is True and None not in values:
        values = [*values, None]
    node.members = values
    allowed = {identity(value) for value in values}

    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, dict | list):
            run.spend(size(value))
        if identity(value) not in allowed:
            run.found(path, "enum", "", value)

    return check


def _all_of(schemas: Any, node: Schema, compiler: Document) -> Check | None:
    parts = [compiler.node(raw) for raw in schemas_in(schemas)]
    node.parts.extend(parts)

    def check(value: Any, path: Path, run: Run) -> None:
        for part in parts:
            part.check(value, path, run)

    return check if parts else None


def _any_of(schemas: Any, node: Schema, compiler: Document) -> Check | None:
    branches = [compiler.node(raw) for raw in schemas_in(schemas)]
    node.branches.extend(branches)

    def check(value: Any, path: Path, run: Run) -> None:
        if not any(run.fits(branch, value) for branch in branches):
            _blame(branches, value, path, run)

    return check if branches else None


def _exactly_one_of(schemas: Any, node: Schema, compiler: Document) -> Check | None:
    branches = [compiler.node(raw) for raw in schemas_in(schemas)]
    node.branches.extend(branches)

    def check(value: Any, path: Path, run: Run) -> None:
        fitting = sum(run.fits(branch, value) for branch in branches)
        if not fitting:
            _blame(branches, value, path, run)
        elif fitting > 1:
            run.found(path, "oneOf", "a value that fits exactly one of the tool's alternatives", value)

    return check if branches else None


def _blame(branches: list[Schema], value: Any, path: Path, run: Run) -> None:
    """The problems of the one branch that was meant, if it can be told; else that no branch fits."""
    if isinstance(value, dict | list) and not run.full:
        kind = "object" if isinstance(value, dict) else "array"
        meant = [branch for branch in branches if kind in branch.types or (branch.properties and kind == "object")]
        if len(meant) == 1 and meant[0].types <= {kind}:
            meant[0].check(value, path, run)
            return
    run.found(path, "anyOf", "", value)


def _not(schema: Any, _node: Schema, compiler: Document) -> Check | None:
    if not isinstance(schema, dict | bool):
        return None
    refused = compiler.node(schema)

    def check(value: Any, path: Path, run: Run) -> None:
        if run.fits(refused, value):
            run.found(path, "not", "another value: the tool excludes this one", value)

    return check


def _if(schema: Any, node: Schema, compiler: Document) -> Check | None:
    if not isinstance(schema, dict | bool):
        return None
    condition = compiler.node(schema)
    then, otherwise = (
        compiler.node(raw) if isinstance(raw := node.raw.get(word), dict | bool) else None for word in ("then", "else")
    )

    def check(value: Any, path: Path, run: Run) -> None:
        branch = then if run.fits(condition, value) else otherwise
        if branch is not None:
            branch.check(value, path, run)

    return check


def _bound(holds: Callable[[Any, Any], bool], words: str) -> Callable[[Any, Schema, Document], Check | None]:
    def build(bound: Any, node: Schema, _compiler: Document) -> Check | None:
        if not is_bound(bound):
            return None
        exclusive = {"at least": "exclusiveMinimum", "at most": "exclusiveMaximum"}.get(words, "")
        strict = node.raw.get(exclusive) is True  # draft 4

        def check(value: Any, path: Path, run: Run) -> None:
            if is_number(value) and (not holds(value, bound) or (strict and value == bound)):
                run.found(path, "bounds", f"a number {words} {bound}", value)

        return check

    return build


def _multiple_of(divisor: Any, _node: Schema, _compiler: Document) -> Check | None:
    if not is_bound(divisor) or divisor <= 0:
        return None
    # Decimal, as it is written: in binary 0.3 is no multiple of 0.1.
    exact = Fraction(str(divisor))

    def check(value: Any, path: Path, run: Run) -> None:
        if is_number(value) and (value if isinstance(value, int) else Fraction(str(value))) % exact != 0:
            run.found(path, "multipleOf", f"a multiple of {divisor}", value)

    return check


def _size_bound(
    kind: type, holds: Callable[[Any, Any], bool], words: str
) -> Callable[[Any, Schema, Document], Check | None]:
    def build(bound: Any, _node: Schema, _compiler: Document) -> Check | None:
        if not is_count(bound):
            return None

        def check(value: Any, path: Path, run: Run) -> None:
            if isinstance(value, kind) and not holds(len(value), bound):
                run.found(path, "size", words.format(int(bound)), value)

        return check

    return build


def _pattern(pattern: Any, _node: Schema, _compiler: Document) -> Check | None:
    cheap = compile_pattern(pattern) if isinstance(pattern, str) else None
    if cheap is None:
        return None

    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, str) and not cheap.matches(value):
            run.found(path, "pattern", f"a string that matches {pattern}", value)

    return check


def _at_least(value: Any, bound: Any) -> bool:
    return value >= bound


def _at_most(value: Any, bound: Any) -> bool:
    return value <= bound


# In the order of the checks: what says most about a value comes first.
KEYWORDS: dict[str, Callable[[Any, Schema, Document], Check | None]] = {
    "type": _type,
    "enum": _members,
    "const": _constant,
    "$ref": _ref,
    "required": containers.build_required,
    "properties": containers.build_properties,
    "additionalProperties": containers.build_additional,
    "patternProperties": containers.build_pattern_properties,
    "propertyNames": containers.build_property_names,
    "dependentRequired": containers.build_dependent_required,
    "dependentSchemas": containers.build_dependent_schemas,
    "dependencies": containers.build_dependencies,
    "minProperties": _size_bound(dict, _at_least, "an object with at least {} properties"),
    "maxProperties": _size_bound(dict, _at_most, "an object with at most {} properties"),
    "prefixItems": containers.build_prefix_items,
    "items": containers.build_items,
    "additionalItems": containers.build_additional_items,
    "contains": containers.build_contains,
    "minItems": _size_bound(list, _at_least, "a list of at least {} items"),
    "maxItems": _size_bound(list, _at_most, "a list of at most {} items"),
    "uniqueItems": containers.build_unique_items,
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
