"""The text of a rejection: what a model needs to write the call again, rightly.

Owns the wording and its bounds. It decides nothing: problems come from the schema, reasons from the reader.
"""

import json
from collections.abc import Sequence
from typing import Any, cast

from tarsy_tasks.arguments.schema import MISSING, Problem, Schema, TooCostlyError
from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["MOST_PROBLEMS", "declared", "describe", "example_call", "rejection", "required_names"]

MOST_PROBLEMS = 8
_MOST_PROPERTIES = 20
_VALUE_CHARS = 60
_LINE_CHARS = 300
_EXAMPLE_CHARS = 600
_DEEPEST = 6
_PLURALS = {"string": "strings", "integer": "integers", "number": "numbers", "boolean": "booleans", "object": "objects"}
_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_FORMAT_EXAMPLES = {
    "date": "2024-05-31",
    "date-time": "2024-05-31T12:00:00Z",
    "time": "12:00:00Z",
    "email": "name@example.com",
    "uri": "https://example.com/",
    "url": "https://example.com/",
    "uuid": "123e4567-e89b-12d3-a456-426614174000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "host.example.com",
}


def rejection(schema: Schema, reason: str, problems: Sequence[Problem]) -> ArgumentsError:
    """The error for arguments that a tool's schema refuses, or that cannot be read for it."""
    properties = declared(schema)
    lines = ["The arguments do not fit this tool; nothing was sent."]
    if reason:
        lines.append(_clipped(reason, _LINE_CHARS))
    lines += [f"- {_clipped(_problem(schema, each, properties), _LINE_CHARS)}" for each in problems[:MOST_PROBLEMS]]
    if len(problems) >= MOST_PROBLEMS:
        lines.append("- There may be more.")
    if properties:
        required = required_names(schema)
        lines.append("Properties of the tool:")
        shown = sorted(properties, key=lambda name: name not in required)[:_MOST_PROPERTIES]
        for name in shown:
            need = "required" if name in required else "optional"
            lines.append(_clipped(f"- `{_name(name)}` ({need}): {describe(properties[name])}", _LINE_CHARS))
        if len(properties) > len(shown):
            lines.append(f"- and {len(properties) - len(shown)} more, all optional or listed above as missing")
    elif schema.closed:
        lines.append("The tool takes no arguments.")
    example = example_call(schema)
    if example is not None:
        lines.append(f"Write one JSON object and nothing else, for example: {example}")
    else:
        lines.append("Write one JSON object and nothing else.")
    return ArgumentsError(ErrorCode.INVALID_ARGUMENTS, "\n".join(lines))


def declared(schema: Schema, depth: int = 0) -> dict[str, Schema]:
    """The properties that a schema names, also through references and alternatives."""
    found: dict[str, Schema] = {}
    if depth < _DEEPEST:
        for part in [*schema.branches, *schema.parts]:
            found.update(declared(part, depth + 1))
    found.update(schema.properties)
    return found


def required_names(schema: Schema, depth: int = 0) -> set[str]:
    """The properties that are required whatever alternative is taken."""
    found = set(schema.required)
    if depth < _DEEPEST:
        for part in schema.parts:
            found |= required_names(part, depth + 1)
    return found


def describe(schema: Schema, depth: int = 0) -> str:
    """What a value has to be, in a few words."""
    if depth > _DEEPEST:
        return "a value"
    raw = schema.raw
    if schema.members is not None:
        shown = [_value(member) for member in schema.members[:12]]
        return (
            ("one of " if len(schema.members) > 1 else "")
            + ", ".join(shown)
            + (", …" if len(schema.members) > 12 else "")
        )
    if schema.branches:
        return " or ".join(dict.fromkeys(describe(branch, depth + 1) for branch in schema.branches[:6]))
    if not schema.types and schema.parts:
        return describe(schema.parts[0], depth + 1)
    names = " or ".join(
        _type_name(schema, kind, depth) for kind in sorted(schema.types, key=lambda kind: kind == "null")
    )
    words = [names or ("an object" if schema.properties else "any value")]
    if isinstance(form := raw.get("format"), str) and "string" in schema.types:
        words.append(f"in the format {form}")
    for keyword, word in (("minimum", "at least"), ("maximum", "at most"), ("pattern", "matching")):
        if isinstance(raw.get(keyword), int | float | str) and not isinstance(raw.get(keyword), bool):
            words.append(f"{word} {str(raw[keyword])[:_VALUE_CHARS]}")
    return " ".join(words)


def _type_name(schema: Schema, kind: str, depth: int) -> str:
    if kind == "array" and schema.items is not None:
        items = schema.items
        if items.members is None and len(items.types) == 1 and (plural := _PLURALS.get(next(iter(items.types)))):
            return f"a list of {plural}"
        return f"a list, each item {describe(items, depth + 1)}"
    if kind == "object" and schema.properties:
        return f"an object with {', '.join(f'`{_name(name)}`' for name in list(schema.properties)[:8])}"
    return _NAMES[kind]


def _problem(schema: Schema, problem: Problem, properties: dict[str, Schema]) -> str:
    place = _place(problem.path)
    node = _node_at(schema, problem.path)
    if problem.kind == "required":
        return f"{place} is missing: expected {describe(node) if node else 'a value'}."
    if problem.kind == "additionalProperties":
        near = _nearest(str(problem.path[-1]), properties) if len(problem.path) == 1 else None
        return f"{place} is no property of this tool" + (f"; did you mean `{near}`?" if near else ".")
    expected = problem.expected or (describe(node) if node else "another value")
    given = "nothing" if problem.given is MISSING else f"{_kind(problem.given)}{_value(problem.given)}"
    return f"{place}: expected {expected}, given {given}."


def _node_at(schema: Schema, path: Sequence[str | int]) -> Schema | None:
    here: Schema | None = schema
    for step in path[: 4 * _DEEPEST]:
        here = here and _child(here, step, 0)
    return here


def _child(schema: Schema, step: str | int, depth: int) -> Schema | None:
    if isinstance(step, str) and step in schema.properties:
        return schema.properties[step]
    own = schema.items if isinstance(step, int) else schema.additional
    if own is not None or depth > _DEEPEST:
        return own
    found = (_child(part, step, depth + 1) for part in [*schema.parts, *schema.branches])
    return next((each for each in found if each is not None), None)


def _nearest(name: str, properties: dict[str, Schema]) -> str | None:
    folded = fold(name)
    return next((each for each in properties if fold(each) == folded), None) or next(
        (each for each in properties if folded and (fold(each).startswith(folded) or folded.startswith(fold(each)))),
        None,
    )


def fold(name: str) -> str:
    """A name without what models get wrong in names: case, underscores, hyphens."""
    return name.casefold().replace("_", "").replace("-", "")


def _place(path: Sequence[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{_name(step)}" if text else _name(step)
    return f"`{text}`" if text else "The arguments"


def _name(name: str) -> str:
    return _clipped(name, _VALUE_CHARS)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "the string "
    if isinstance(value, dict):
        return "the object "
    return "the list " if isinstance(value, list) else ""


def _value(value: Any) -> str:
    if isinstance(value, str):
        value = value[: _VALUE_CHARS + 1]
    elif isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4 * _VALUE_CHARS:
        return f"an integer of about {value.bit_length() * 3 // 10} digits"
    elif isinstance(value, dict):
        items = list(cast("dict[str, Any]", value).items())[:8]
        return _clipped("{" + ", ".join(f"{json.dumps(_name(k))}: {_leaf(v)}" for k, v in items) + "}", _VALUE_CHARS)
    elif isinstance(value, list):
        return _clipped("[" + ", ".join(_leaf(item) for item in cast("list[Any]", value)[:8]) + "]", _VALUE_CHARS)
    return _clipped(json.dumps(value, ensure_ascii=False), _VALUE_CHARS)


def _leaf(value: Any) -> str:
    return "…" if isinstance(value, dict | list) else _value(value)


def _clipped(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def example_call(schema: Schema) -> str | None:
    """A JSON object that the tool would take, with what is required; None where none can be made up."""
    example = _example(schema, "", 0)
    try:
        if not isinstance(example, dict) or not schema.fits(example):
            return None
        text = json.dumps(example, ensure_ascii=False, allow_nan=False)
    except (TooCostlyError, RecursionError, ValueError, TypeError):
        return None
    return text if len(text) <= _EXAMPLE_CHARS else None


def _example(schema: Schema, name: str, depth: int) -> Any:
    raw = schema.raw
    if depth > _DEEPEST:
        return None
    given = cast("list[Any]", raw["examples"]) if isinstance(raw.get("examples"), list) else []
    for candidate in (*given[:1], *([raw["default"]] if raw.get("default") is not None else ())):
        if _fits(schema, candidate):
            return candidate
    if schema.members:
        return schema.members[0]
    for branch in schema.branches:
        if _fits(schema, example := _example(branch, name, depth + 1)) and example is not None:
            return _merged(example, schema, name, depth)
    if schema.parts and not schema.types - {"object"}:
        merged: Any = {}
        for part in schema.parts:
            example = _example(part, name, depth + 1)
            if not isinstance(example, dict):
                return example
            merged |= example
        return _merged(merged, schema, name, depth)
    if "object" in schema.types or schema.properties or (depth == 0 and not schema.types):
        return _merged({}, schema, name, depth)
    return _scalar_example(schema, name, depth)


def _merged(example: Any, schema: Schema, _name: str, depth: int) -> Any:
    if not isinstance(example, dict):
        return example
    merged = dict(cast("dict[str, Any]", example))
    for each in schema.required:
        if each not in merged:
            node = _child(schema, each, 0)
            merged[each] = _example(node, each, depth + 1) if node else "…"
    return merged


def _scalar_example(schema: Schema, name: str, depth: int) -> Any:
    raw = schema.raw
    kind = next(
        (each for each in ("string", "integer", "number", "boolean", "array", "null") if each in schema.types), "string"
    )
    if kind == "array":
        item = _example(schema.items, name, depth + 1) if schema.items else "…"
        least = raw.get("minItems")
        return [item] * (least if isinstance(least, int) and 0 < least < 4 else 1)
    if kind in ("integer", "number"):
        for candidate in (1, raw.get("minimum"), raw.get("maximum"), 0, 10, 100):
            if candidate is not None and _fits(schema, candidate):
                return candidate
        return 1
    if kind == "string":
        form = raw.get("format")
        made_up = [_FORMAT_EXAMPLES[form]] if isinstance(form, str) and form in _FORMAT_EXAMPLES else []
        made_up += [f"<{name or 'text'}>", name, "a", "1", "A", "a-1"]
        return next((each for each in made_up if _fits(schema, each)), made_up[0])
    return True if kind == "boolean" else None


def _fits(schema: Schema, value: Any) -> bool:
    try:
        return schema.fits(value)
    except TooCostlyError:
        return False
