"""The text of a rejection: everything that a model needs to correct the call.

Owns the wording and its length limits. It decides nothing: problems come from the schema, reasons from the readers.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from tarsy_tasks.arguments.coercion import coerce_partly
from tarsy_tasks.arguments.cost import size
from tarsy_tasks.arguments.example import example_call
from tarsy_tasks.arguments.schema import Schema, UncheckedError
from tarsy_tasks.arguments.shape import Shape, find_near, look_up
from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.names import Strength, rate_name
from tarsy_tasks.masking.values import is_secret
from tarsy_tasks.outcomes import ErrorCode

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

__all__ = ["find_problems", "rejection"]

_MAX_PROBLEMS = 8
_MAX_VALUES = 64
"""For larger arguments only the first problem is reported: each costs some microseconds."""
_MAX_PROPERTIES = 20
_VALUE_CHARS = 60
_LINE_CHARS = 300
_DEEPEST = 3
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
_LIMITS = {
    "format": "format",
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "matching",
}
_DESCRIBED = {"type", "enum", "const", "anyOf", "oneOf", *_LIMITS}


def rejection(
    schema: Schema, repairs: tuple[str, ...], reason: str = "", arguments: dict[str, Any] | None = None
) -> ArgumentsError:
    """The error for arguments that do not fit a tool's schema, or that cannot be read.

    Args:
        repairs: How the text was read, which repairs were made, and last a word for why it is rejected.
        reason: What is wrong with the text.
        arguments: The reading that does not fit, if there is one.
    """
    shape = schema.shape
    problems = [] if arguments is None else find_problems(schema, arguments)
    failure = "do not match the tool's schema" if problems else "cannot be used"
    lines = [f"The arguments {failure}. Nothing was sent.", *([_clipped(reason, _LINE_CHARS)] if reason else [])]
    lines += [f"- {_clipped(problem, _LINE_CHARS)}" for problem in problems[:_MAX_PROBLEMS]]
    if problems and (len(problems) > _MAX_PROBLEMS or size(arguments, _MAX_VALUES) > _MAX_VALUES):
        lines.append("- There may be more problems.")
    if shape.properties:
        lines.append("Properties of the tool:")
        shown = sorted(shape.properties, key=lambda name: name not in shape.required)[:_MAX_PROPERTIES]
        for name in shown:
            need = "required" if name in shape.required else "optional"
            lines.append(_clipped(f"- `{_name(name)}` ({need}): {_describe(shape.properties[name])}", _LINE_CHARS))
        if len(shape.properties) > len(shown):
            lines.append(f"- and {len(shape.properties) - len(shown)} more, all optional or listed above as missing")
    elif shape.closed:
        lines.append("The tool takes no arguments.")
    example = example_call(schema)
    no_example = ". No example could be generated from the schema."
    lines.append(f"Write one JSON object and nothing else{f', for example: {example}' if example else no_example}")
    return ArgumentsError(ErrorCode.INVALID_ARGUMENTS, "\n".join(lines), repairs)


def find_problems(schema: Schema, arguments: dict[str, Any]) -> list[str]:
    """What is wrong with arguments, a line each; none if that cannot be said."""
    try:
        if size(arguments, _MAX_VALUES) <= _MAX_VALUES:
            # A value that coercion would correct is not a problem.
            problems = schema.all_problems(coerce_partly(schema, arguments))
        else:
            problems = [problem for problem in [schema.first_problem(arguments)] if problem]
    except UncheckedError:
        return []
    lines = [line for problem in problems for line in _explain(schema.shape, problem, arguments)]
    # Missing properties first: a misspelled name then follows the right one.
    return sorted(dict.fromkeys(lines), key=lambda line: " is missing: " not in line)


def _explain(shape: Shape, problem: "ValidationError", arguments: Any) -> Iterator[str]:
    path, keyword = problem.instance_path, problem.kind.name
    details = problem.kind.as_dict()
    if keyword == "required":
        missing = [*path, details["property"]]
        instead = _given_instead(shape.at(path), missing, arguments)
        yield f"{_place(missing)} is missing: expected {_describe(shape.at(missing))}{instead}."
    elif keyword in ("additionalProperties", "unevaluatedProperties") and "unexpected" in details:
        for name in details["unexpected"][: _MAX_PROBLEMS + 1]:
            known = shape.at(path)
            near = find_near(name, known.properties) if known else None
            hint = f"; did you mean `{near}`?" if near else "."
            yield f"{_place([*path, name])} is not a property of {'this tool' if not path else _place(path)}{hint}"
    elif closest := _closest_branch(problem, details):
        for inner in closest:
            yield from _explain(shape, inner, arguments)
    else:
        value = look_up(arguments, path)
        value = problem.instance if value is None else value
        shown = MASK if _is_secret(path, value) else _value(value)
        expected = f"expected {_describe(shape.at(path))}" if keyword in _DESCRIBED else problem.message
        yield f"{_place(path)}: {expected}, got {_kind(value)}{shown}."


def _is_secret(path: Sequence[str | int], value: Any) -> bool:
    """Whether a value must not be quoted. Masking would not find it in a sentence, apart from its name."""
    rating = rate_name(next((step for step in reversed(path) if isinstance(step, str)), ""))
    if rating is None or value is None or isinstance(value, bool):
        return False
    if isinstance(value, str):
        return is_secret(value, rating, is_quoted=True)
    return rating is Strength.STRONG or (isinstance(value, dict | list) and rating is not Strength.FAINT)


def _given_instead(known: Shape | None, missing: list[Any], arguments: Any) -> str:
    """The name that was probably meant to be the missing one, else all given names."""
    if known is not None and known.closed:
        return ""  # each unknown name is reported as a problem itself
    inside = look_up(arguments, missing[:-1])
    names = list(cast("dict[str, Any]", inside)) if isinstance(inside, dict) else []
    others = [name for name in names if known is None or name not in known.properties]
    near = next((name for name in others if find_near(name, [missing[-1]])), None)
    if near is not None:
        return f"; you wrote `{_name(near)}`, the correct name is `{_name(missing[-1])}`"
    return f", got: {', '.join(f'`{_name(name)}`' for name in names[:_MAX_PROBLEMS])}" if names else ""


def _closest_branch(problem: "ValidationError", details: dict[str, Any]) -> "list[ValidationError] | None":
    """The problems with the one alternative that has the type of the value."""
    same_type = [
        branch
        for branch in cast("list[list[ValidationError]]", details.get("context") or [])
        if all(inner.instance_path != problem.instance_path or inner.kind.name != "type" for inner in branch)
    ]
    return same_type[0] if len(same_type) == 1 else None


def _describe(shape: Shape | None, depth: int = 0) -> str:
    """What a value must be, in a few words."""
    if shape is None or depth > _DEEPEST:
        return "a value"
    if shape.members is not None:
        shown = ", ".join(_value(member) for member in shape.members[:12])
        return f"{'one of ' if len(shape.members) > 1 else ''}{shown}{', …' if len(shape.members) > 12 else ''}"
    if shape.branches:
        return " or ".join(dict.fromkeys(_describe(branch, depth + 1) for branch in shape.branches[:6]))
    if not shape.types and shape.parts:
        return _describe(shape.parts[0], depth + 1)
    kinds = sorted(shape.types, key=lambda kind: kind == "null")
    words = [" or ".join(_type_name(shape, kind, depth) for kind in kinds) or "any value"]
    for keyword, word in _LIMITS.items():
        limit = shape.raw.get(keyword)
        if isinstance(limit, int | float | str) and not isinstance(limit, bool):
            shown = str(limit)[:_VALUE_CHARS]
            words.append(word.format(shown) if "{}" in word else f"{word} {shown}")
    return ", ".join(words)


def _type_name(shape: Shape, kind: str, depth: int) -> str:
    if kind == "array" and (items := shape.items):
        if items.members is None and len(items.types) == 1 and (plural := _PLURALS.get(items.types[0])):
            return f"a list of {plural}"
        return f"a list, each item {_describe(items, depth + 1)}"
    if kind == "object" and shape.properties:
        return f"an object with {', '.join(f'`{_name(name)}`' for name in list(shape.properties)[:8])}"
    return _NAMES[kind]


def _place(path: Sequence[str | int]) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{_name(step)}" if text else _name(step)
    return f"`{text}`" if text else "The arguments"


def _name(name: str) -> str:
    return _clipped(name, _VALUE_CHARS)


def _kind(value: Any) -> str:
    kinds = (("the string ", str), ("the object ", dict), ("the list ", list))
    return next((word for word, kind in kinds if isinstance(value, kind)), "")


def _value(value: Any) -> str:
    if isinstance(value, str):
        value = value[: _VALUE_CHARS + 1]
    elif isinstance(value, int) and value.bit_length() > 4 * _VALUE_CHARS:
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
