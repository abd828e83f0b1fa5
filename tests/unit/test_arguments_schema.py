import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks.arguments import parse_arguments, read_arguments
from tarsy_tasks.arguments.compiler import compile_schema
from tarsy_tasks.arguments.patterns import compile_pattern
from tarsy_tasks.arguments.schema import TooCostlyError
from tarsy_tasks.errors import ArgumentsError

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.0]) | st.sampled_from("ab1")
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
types = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
sizes = st.integers(0, 3)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    several = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": types | st.lists(types, min_size=1, max_size=3, unique=True),
            "enum": st.lists(values, min_size=1, max_size=3),
            "const": values,
            "properties": named,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$", "."]), inner, max_size=1),
            "additionalProperties": inner | st.booleans(),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "propertyNames": inner,
            "dependentRequired": st.dictionaries(st.sampled_from("ab"), st.lists(st.sampled_from("bc"), max_size=2)),
            "dependentSchemas": named,
            "minProperties": sizes,
            "maxProperties": sizes,
            "items": inner,
            "prefixItems": several,
            "contains": inner,
            "minItems": sizes,
            "maxItems": sizes,
            "uniqueItems": st.booleans(),
            "minimum": sizes,
            "maximum": sizes,
            "exclusiveMinimum": sizes,
            "exclusiveMaximum": sizes,
            "multipleOf": st.integers(1, 3),
            "minLength": sizes,
            "maxLength": sizes,
            "pattern": st.sampled_from(["a", "^b?$", "[0-9]"]),
            "allOf": several,
            "anyOf": several,
            "oneOf": several,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y"]),
        },
    )


subschemas = st.booleans() | keywords(st.booleans() | st.builds(lambda name: {"type": name}, types))
schemas = st.builds(
    lambda schema, name: {**schema, "$defs": {"x": {"type": name}, "y": {"minimum": 1}}}, keywords(subschemas), types
)


@given(schema=schemas, value=values)
def test_the_verdict_is_that_of_jsonschema(schema: dict[str, Any], value: Any) -> None:
    assert compile_schema(schema).fits(value) is jsonschema.Draft202012Validator(schema).is_valid(value)


@given(schema=schemas, value=st.dictionaries(st.sampled_from("abc"), values, max_size=3))
def test_coercion_only_turns_invalid_into_valid(schema: dict[str, Any], value: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    try:
        parsed = read_arguments(value, schema)
    except ArgumentsError as error:
        text = str(error)
        assert not validator.is_valid(value)
        assert len(text) < 12_000
        return
    assert validator.is_valid(parsed.arguments)
    if validator.is_valid(value):
        assert json.dumps(parsed.arguments) == json.dumps(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strng"},
        {"type": 5, "properties": {"a": {"type": "string"}}},
        {"type": ["object", 7]},
        {"properties": ["a"]},
        {"properties": {"a": 5, "b": None}},
        {"required": True},
        {"required": ["a", 5, None]} | {"required": "a"},
        {"items": 5},
        {"enum": "a"},
        {"anyOf": {}, "oneOf": 5, "allOf": None},
        {"anyOf": []},
        {"$ref": 5},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/%zz~2"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"properties": {"a": {"$ref": "other.json#/a"}}},
        {"minimum": "5", "maxLength": -1, "multipleOf": 0, "minItems": None},
        {"minimum": 10**400, "multipleOf": 1e-400},
        {"pattern": "("},
        {"pattern": "(?<name>a)", "patternProperties": {"[": {}}},
        {"properties": {"a": {"pattern": "\\p{L}"}}},
        {"if": 5, "then": {"a": 1}, "not": 5},
        {"dependencies": {"a": 5, "b": ["c", 5]}},
        {"$schema": "http://json-schema.org/draft-03/schema#", "properties": {"a": {"required": True}}},
        {"additionalProperties": "no"},
        {"title": {"a": [1]}, "x-order": [3]},
    ],
)
def test_what_is_broken_in_a_schema_is_passed_over(schema: dict[str, Any]) -> None:
    assert parse_arguments('{"a": "x", "c": 1}', schema) == {"a": "x", "c": 1}
    for text in ("a: x", "hello", '{"a": ', "[1]", "5"):
        try:
            parse_arguments(text, schema)
        except ArgumentsError as error:
            assert "nothing was sent" in str(error)  # noqa: PT017


def doubling(levels: int) -> dict[str, Any]:
    """A schema of `levels` definitions in which every value is checked 2**levels times."""
    definitions: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(1, levels):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {"anyOf": [below, below.copy()]}
    return {"$defs": definitions, "properties": {"a": {"$ref": f"#/$defs/d{levels - 1}"}}, "required": ["a"]}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


TOO_COSTLY = {
    "doubling": doubling(40),
    "reference to itself": {"$ref": "#"},
    "reference in a circle": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
        "$ref": "#/$defs/a",
    },
    "too large": {"properties": {f"p{n}": {"type": "string"} for n in range(30_000)}},
    "too deep": deep(5000),
}


@pytest.mark.parametrize("name", TOO_COSTLY)
def test_an_object_for_a_schema_that_costs_too_much_is_sent_unchecked(name: str) -> None:
    schema = TOO_COSTLY[name]
    parsed = read_arguments('{"a": 1}', schema)
    assert parsed.arguments == {"a": 1}
    assert parsed.repairs == ("unchecked",)
    for guess in ("a: 1", "hello", "[1]", "a:\n  - 1"):
        with pytest.raises(ArgumentsError, match="nothing was sent"):
            parse_arguments(guess, schema)


def test_a_schema_may_be_recursive() -> None:
    schema = {
        "$defs": {
            "Node": {"properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/Node"}}, "required": ["name"]}
        },
        "properties": {"root": {"$ref": "#/$defs/Node"}},
        "required": ["root"],
    }
    value: dict[str, Any] = {"name": 1}
    for level in range(50):
        value = {"name": level, "next": value}
    arguments = parse_arguments(json.dumps({"root": value}), schema)
    assert arguments["root"]["next"]["name"] == "48"
    with pytest.raises(ArgumentsError, match=r"`root\.next\.name`"):
        parse_arguments('{"root": {"name": "a", "next": {}}}', schema)


def test_a_schema_may_be_changed_between_calls() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
    assert parse_arguments('{"a": "1"}', schema) == {"a": 1}
    schema["properties"]["a"]["type"] = "string"
    assert parse_arguments('{"a": 1}', schema) == {"a": "1"}


def test_boolean_schemas() -> None:
    assert read_arguments('{"a": 1}', True).arguments == {"a": 1}
    with pytest.raises(ArgumentsError, match="nothing was sent"):
        read_arguments('{"a": 1}', False)


EVIL = [
    "(a+)+$",
    "(a|a)*$",
    "(a|aa)+$",
    "(.*a){20}",
    "([a-zA-Z]+)*$",
    "(a?){30}a{30}",
    "a?" * 30 + "a" * 30,
    "(a|a)" * 40 + "b",
    "a*a*a*a*a*a*a*a*b",
    ".*.*.*=.*",
    r"(\w+)\1+$",
    "(?:(?:a{0,100}){0,100}){0,100}$",
    "((){1000000}){1000000}",
    "(?=(a+))*b",
]


@pytest.mark.parametrize("pattern", EVIL)
def test_a_pattern_that_could_hang_does_not_run(pattern: str) -> None:
    text = "a" * 5000 + "!"
    cheap = compile_pattern(pattern)
    assert cheap is None or cheap.matches(text)
    schema = {"properties": {"a": {"type": "string", "pattern": pattern}}, "patternProperties": {pattern: {}}}
    assert parse_arguments(json.dumps({"a": text}), schema) == {"a": text}
    assert parse_arguments(json.dumps({text: 1}), schema | {"additionalProperties": False, "properties": {}}) == {
        text: 1
    }


@pytest.mark.parametrize(
    "pattern",
    [
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
        r"^\d{4}-\d{2}-\d{2}$",
        r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$",
        "^(https?|ftp)://",
        r"^v?(\d+)\.(\d+)\.(\d+)$",
        "^(open|closed)$",
        "^[^/]+/[^/]+$",
    ],
)
@given(text=st.text("a0-.@/v:1s", max_size=20))
def test_a_usual_pattern_runs(pattern: str, text: str) -> None:
    cheap = compile_pattern(pattern)
    assert cheap
    assert cheap.matches(text) is bool(re.search(pattern, text))


def test_repeated_items_are_found_without_comparing_each_with_each() -> None:
    items = [{"a": n, "b": [n]} for n in range(20_000)]
    schema = {"properties": {"items": {"type": "array", "uniqueItems": True}}}
    assert read_arguments({"items": items}, schema).repairs == ()
    with pytest.raises(ArgumentsError, match="without repeated items"):
        read_arguments({"items": [1, 2, 1.0]}, schema)
    assert read_arguments({"items": [1, True, "1"]}, schema).repairs == ()


def test_what_costs_too_much_says_so() -> None:
    with pytest.raises(TooCostlyError):
        compile_schema(TOO_COSTLY["too large"])
