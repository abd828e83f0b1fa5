"""The keywords of JSON Schema that are about objects and lists.

Each `build_` function takes the keyword's value, the node and the document, and makes a check, or None when there is
nothing to check.
"""

from typing import Any, cast

from tarsy_tasks.arguments.patterns import compile_pattern
from tarsy_tasks.arguments.raw_schema import Document, is_count, schemas_by_name, schemas_in, strings
from tarsy_tasks.arguments.schema import MISSING, Check, Path, Run, Schema, identity, size

__all__ = [
    "build_additional",
    "build_additional_items",
    "build_contains",
    "build_dependencies",
    "build_dependent_required",
    "build_dependent_schemas",
    "build_items",
    "build_pattern_properties",
    "build_prefix_items",
    "build_properties",
    "build_property_names",
    "build_required",
    "build_unique_items",
]


def build_properties(schemas: Any, node: Schema, compiler: Document) -> Check | None:
    node.properties = {name: compiler.node(raw) for name, raw in schemas_by_name(schemas).items()}
    properties = node.properties

    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, dict):
            for name, item in cast("dict[str, Any]", value).items():
                if name in properties:
                    properties[name].check_part(item, path, name, run)
                    if run.full:
                        return

    return check if properties else None


def build_required(names: Any, node: Schema, _compiler: Document) -> Check | None:
    required = node.required = tuple(dict.fromkeys(strings(names)))

    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, dict):
            run.spend(len(required) // 8)
            for name in required:
                if name not in value:
                    run.found((*path, name), "required", "", MISSING)

    return check if required else None


def build_additional(schema: Any, node: Schema, compiler: Document) -> Check | None:
    if not isinstance(schema, dict | bool) or schema is True:
        return None
    named = schemas_by_name(node.raw.get("properties")).keys()
    patterns = [compile_pattern(each) for each in schemas_by_name(node.raw.get("patternProperties"))]
    if None in patterns:
        return None
    node.closed = schema is False
    additional = None if node.closed else compiler.node(cast("Any", schema))
    node.additional = additional

    def check(value: Any, path: Path, run: Run) -> None:
        if not isinstance(value, dict):
            return
        for name, item in cast("dict[str, Any]", value).items():
            if name in named or any(pattern and pattern.matches(name) for pattern in patterns):
                continue
            if additional is None:
                run.found((*path, name), "additionalProperties", "", item)
            else:
                additional.check_part(item, path, name, run)
            if run.full:
                return

    return check


def build_pattern_properties(schemas: Any, _node: Schema, compiler: Document) -> Check | None:
    found = [(compile_pattern(each), compiler.node(raw)) for each, raw in schemas_by_name(schemas).items()]
    rules = [(pattern, node) for pattern, node in found if pattern is not None]

    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, dict):
            for name, item in cast("dict[str, Any]", value).items():
                for pattern, node in rules:
                    run.spend(1)
                    if pattern.matches(name):
                        node.check(item, (*path, name), run)

    return check if rules else None


def build_property_names(schema: Any, _node: Schema, compiler: Document) -> Check | None:
    if not isinstance(schema, dict | bool):
        return None
    names = compiler.node(schema)

    def check(value: Any, path: Path, run: Run) -> None:
        for name in cast("dict[str, Any]", value) if isinstance(value, dict) else ():
            if not run.fits(names, name):
                run.found((*path, name), "propertyNames", "a name that the tool allows", name)

    return check


def build_dependent_required(rules: Any, _node: Schema, _compiler: Document) -> Check | None:
    rules = cast("dict[str, Any]", rules) if isinstance(rules, dict) else {}
    needs = {name: strings(each) for name, each in rules.items()}

    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, dict):
            for name, needed in needs.items():
                run.spend(1)
                if name in value:
                    for each in needed:
                        if each not in value:
                            run.found((*path, each), "required", "", MISSING)

    return check if any(needs.values()) else None


def build_dependent_schemas(rules: Any, _node: Schema, compiler: Document) -> Check | None:
    schemas = {name: compiler.node(raw) for name, raw in schemas_by_name(rules).items()}

    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, dict):
            for name, schema in schemas.items():
                if name in value:
                    schema.check(value, path, run)

    return check if schemas else None


def build_dependencies(rules: Any, node: Schema, compiler: Document) -> Check | None:
    """The two keywords in one, as older drafts had it."""
    checks = [build_dependent_required(rules, node, compiler), build_dependent_schemas(rules, node, compiler)]

    def check(value: Any, path: Path, run: Run) -> None:
        for each in checks:
            if each:
                each(value, path, run)

    return check


def build_prefix_items(schemas: Any, _node: Schema, compiler: Document) -> Check | None:
    nodes = [compiler.node(raw) for raw in schemas_in(schemas)]

    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, list):
            for at, (node, item) in enumerate(zip(nodes, cast("list[Any]", value), strict=False)):
                node.check_part(item, path, at, run)

    return check if nodes else None


def build_items(schema: Any, node: Schema, compiler: Document) -> Check | None:
    if isinstance(schema, list):
        return build_prefix_items(schema, node, compiler)
    return _items_from(len(schemas_in(node.raw.get("prefixItems"))), schema, node, compiler)


def build_additional_items(schema: Any, node: Schema, compiler: Document) -> Check | None:
    first = node.raw.get("items")
    return _items_from(len(schemas_in(first)), schema, node, compiler) if isinstance(first, list) else None


def _items_from(start: int, schema: Any, node: Schema, compiler: Document) -> Check | None:
    if not isinstance(schema, dict | bool):
        return None
    items = compiler.node(schema)
    node.items = items if start == 0 else None

    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, list):
            for at, item in enumerate(cast("list[Any]", value)):
                if at >= start:
                    items.check_part(item, path, at, run)
                    if run.full:
                        return

    return check


def build_contains(schema: Any, node: Schema, compiler: Document) -> Check | None:
    if not isinstance(schema, dict | bool):
        return None
    item_node = compiler.node(schema)
    least, most = node.raw.get("minContains", 1), node.raw.get("maxContains")

    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, list):
            count = sum(run.fits(item_node, item) for item in cast("list[Any]", value))
            if (is_count(least) and count < least) or (is_count(most) and count > cast("float", most)):
                run.found(path, "contains", "a list with the items that the tool asks for", value)

    return check


def build_unique_items(unique: Any, _node: Schema, _compiler: Document) -> Check | None:
    def check(value: Any, path: Path, run: Run) -> None:
        if isinstance(value, list):
            items = cast("list[Any]", value)
            run.spend(size(items))
            if len({identity(item) for item in items}) < len(items):
                run.found(path, "uniqueItems", "a list without repeated items", items)

    return check if unique is True else None
