"""The JSON Schemas of rules on arguments.

Owns what such a schema may contain: only what is enforced. A keyword that the validator would ignore, such as a
misspelled one, would permit what its author forbids. Patterns run in an engine of linear time, nothing is fetched, and
the work for one value is bounded. jsonschema-rs is imported with the first schema: agents import this package without
one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from tarsy_tasks.arguments.cost import is_always_cheap
from tarsy_tasks.config.problems import quote, suggest

if TYPE_CHECKING:
    from jsonschema_rs import Validator

__all__ = ["compile_rule", "require_enforceable"]

_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "dependentSchemas"})
"""Keywords with a schema for each name."""
_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA = frozenset(
    {
        *("additionalProperties", "unevaluatedProperties", "propertyNames"),
        *("items", "contains", "unevaluatedItems"),
        *("not", "if", "then", "else"),
    }
)
_PLAIN = frozenset(
    {
        *("type", "enum", "const", "$ref"),
        *("required", "minProperties", "maxProperties", "dependentRequired"),
        *("minItems", "maxItems", "uniqueItems", "minContains", "maxContains"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern"),
        *("title", "description", "$comment"),
    }
)
_KEYWORDS = _OF_SCHEMAS | _LISTS | _SCHEMA | _PLAIN
_PATTERN_BYTES = 1_000_000
_DEEPEST = 60
_SHOWN_CHARS = 200


def require_enforceable(schema: dict[str, Any]) -> None:
    """Check the schema of a rule.

    Raises:
        ValueError: It is not valid, or says something that would not be enforced; the text says what, and the remedy.
    """
    for each in _subschemas(schema, 0):
        for keyword, value in each.items():
            if keyword == "format":
                raise ValueError("`format` is not enforced; use `pattern`, `enum` or `const`")
            if keyword not in _KEYWORDS:
                raise ValueError(f"unknown keyword {quote(keyword)}; {suggest(keyword, _KEYWORDS)}")
            if keyword == "$ref" and not (isinstance(value, str) and value.startswith("#")):
                raise ValueError('a `$ref` may only point into the same schema, such as `"#/$defs/name"`')
    if not is_always_cheap(schema):
        raise ValueError("to check this schema would cost too much; make it smaller, with fewer references")
    compile_rule(schema)


def compile_rule(schema: dict[str, Any]) -> "Validator":
    """The validator of a schema.

    Raises:
        ValueError: It is not a valid schema of draft 2020-12, or a pattern is not supported.
    """
    import jsonschema_rs

    try:
        return jsonschema_rs.Draft202012Validator(
            schema,
            offline=True,
            validate_formats=False,
            mask="it",
            pattern_options=jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES),
        )
    except jsonschema_rs.ValidationError as error:
        place = "".join(f"/{step}" for step in error.instance_path)
        if error.instance_path[-1:] == ["pattern"]:
            text = "not a supported pattern; use RE2 syntax, without look-around and back references"
            raise ValueError(f"{text} (at `{place}`)") from None
        raise ValueError(f"not a valid JSON Schema at `{place or '/'}`: {error.message[:_SHOWN_CHARS]}") from None
    except (ValueError, RecursionError, jsonschema_rs.ReferencingError) as error:
        raise ValueError(f"not a valid JSON Schema: {str(error)[:_SHOWN_CHARS]}") from None


def _subschemas(schema: Any, depth: int) -> Iterator[dict[str, Any]]:
    """All schemas within a schema, as far as they are mappings; another value where a schema belongs is left to the
    validator. Raises `ValueError` if they are nested too deeply."""
    if depth > _DEEPEST:
        raise ValueError("the schema is nested too deeply")
    if not isinstance(schema, dict):
        return
    found = cast("dict[str, Any]", schema)
    yield found
    for keyword, value in found.items():
        inner: list[Any] = []
        if keyword in _SCHEMA:
            inner = [value]
        elif keyword in _LISTS and isinstance(value, list):
            inner = cast("list[Any]", value)
        elif keyword in _OF_SCHEMAS and isinstance(value, dict):
            inner = [*cast("dict[str, Any]", value).values()]
        for each in inner:
            yield from _subschemas(each, depth + 1)
