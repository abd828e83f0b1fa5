"""Arguments by the schema of a tool: coercion, and schemas that are broken, costly or hostile."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks.arguments import parse_arguments, read_arguments
from tarsy_tasks.arguments.schema import compile_schema
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
            "dependentRequired": st.dictionaries(
                st.sampled_from("ab"), st.lists(st.sampled_from("bc"), max_size=2, unique=True)
            ),
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


@given(schema=schemas, value=st.dictionaries(st.sampled_from("abc"), values, max_size=3))
def test_coercion_only_turns_invalid_into_valid(schema: dict[str, Any], value: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    try:
        parsed = read_arguments(value, schema)
    except ArgumentsError:
        assert not validator.is_valid(value)
        return
    assert "unchecked" not in parsed.repairs
    assert validator.is_valid(parsed.arguments)
    if validator.is_valid(value):
        assert json.dumps(parsed.arguments) == json.dumps(value)


def made(value: Any, schema: dict[str, Any]) -> Any:
    """The property `a` after coercion to this schema."""
    parsed = read_arguments({"a": value}, {"properties": {"a": schema}, "required": ["a"]})
    return parsed.arguments["a"]


TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
ROWS: dict[str, Any] = {
    "type": "array",
    "items": {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False},
}


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        (list(range(500)), TEXTS, [str(number) for number in range(500)]),
        (["a", 1, True], TEXTS, ["a", "1", "true"]),
        ([{"n": str(number)} for number in range(100)], ROWS, [{"n": number} for number in range(100)]),
        (
            {f"k{n}": n for n in range(50)},
            {"additionalProperties": {"type": "string"}},
            {f"k{n}": str(n) for n in range(50)},
        ),
        (
            {"x": 1, "y": 2},
            {"properties": {"x": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
            {"x": 1, "y": "2"},
        ),
        ([1, 2], {"prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, [1, "2"]),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5),
        ("null", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None),
        ("null", {"type": ["null", "array"]}, None),
        ("5", {"allOf": [{"type": "integer"}, {"minimum": 1}]}, 5),
        ('{"n": "5"}', {"oneOf": [ROWS["items"], {"type": "null"}]}, {"n": 5}),
        ('["1", 2]', {"type": ["array", "null"], "items": {"type": "integer"}}, [1, 2]),
        ("7", {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}}, [7]),
        ("true", {"const": True}, True),
        ("B", {"type": "string", "enum": ["a", "b"]}, "b"),
        ({"x": None, "n": 1}, {"properties": {"x": {"type": "string"}}}, {"n": 1}),
    ],
)
def test_what_does_not_fit_is_made_to_fit(value: Any, schema: dict[str, Any], expected: Any) -> None:
    assert json.dumps(made(value, schema)) == json.dumps(expected)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("5", {"type": ["integer", "array"]}),
        ("5", {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]}),
        ("ab", {"type": "string", "enum": ["Ab", "aB"]}),
        ("ten", {"type": "integer"}),
        (5, {"type": "string", "format": "date"}),
        ({"x": None}, {"properties": {"x": {"type": "string"}}, "required": ["x"]}),
        (None, {"type": "string"}),
        ("", {"type": "integer"}),
        ([1], {"type": "integer"}),
        ({"x": 1}, {"type": "string"}),
        ("a", {"not": {}}),
        ("a", False),
    ],
)
def test_two_readings_or_none_are_rejected(value: Any, schema: Any) -> None:
    with pytest.raises(ArgumentsError, match="`a"):
        made(value, schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "strng"},
        {"type": 5, "properties": {"a": {"type": "string"}}},
        {"properties": ["a"]},
        {"type": [{}], "format": [], "enum": 5, "required": [[]], "properties": {"a": {"type": [[]], "format": {}}}},
        {"properties": {"a": 5, "b": None}},
        {"required": True},
        {"items": 5},
        {"anyOf": {}, "oneOf": 5, "allOf": None},
        {"$ref": 5},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/%zz~2"},
        {"$dynamicRef": "#x"},
        {"minimum": "5", "maxLength": -1, "multipleOf": 0, "minItems": None},
        {"if": 5, "then": {"a": 1}, "not": 5},
        {"additionalProperties": "no"},
        {"properties": {"\ud800": {}}},
        {"properties": {1: {}}},
        {"enum": [object()]},
    ],
)
def test_a_broken_schema_checks_nothing_and_takes_no_guesses(schema: dict[Any, Any]) -> None:
    parsed = read_arguments('{"a": "x", "c": 1}', schema)
    assert (parsed.arguments, parsed.repairs) == ({"a": "x", "c": 1}, ("unchecked",))
    for text in ("a: x", "hello", '{"a": ', "[1]", "5"):
        with pytest.raises(ArgumentsError, match="Nothing was sent"):
            parse_arguments(text, schema)


@pytest.fixture
def web() -> Iterator[ThreadingHTTPServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.requests.append(self.path)  # type: ignore[attr-defined]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"type": "integer"}')

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_nothing_that_a_schema_names_is_ever_fetched(web: ThreadingHTTPServer, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"type": "integer"}')
    address = f"http://127.0.0.1:{web.server_port}"
    for reference in (f"{address}/a.json", f"file://{tmp_path}/other.json", "other.json", "https://json-schema.org/x"):
        for schema in (
            {"properties": {"a": {"$ref": reference}}},
            {"$id": f"{address}/root.json", "properties": {"a": {"$ref": reference}}},
            {"$schema": reference, "properties": {"a": {"type": "string"}}},
            {"properties": {"a": {"$dynamicRef": reference}}},
        ):
            assert parse_arguments('{"a": "x"}', schema) == {"a": "x"}
    assert web.requests == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("draft", "limits"),
    [
        ("https://json-schema.org/draft/2020-12/schema", {"exclusiveMinimum": 5}),
        ("http://json-schema.org/draft-07/schema#", {"exclusiveMinimum": 5}),
        ("http://json-schema.org/draft-04/schema#", {"minimum": 5, "exclusiveMinimum": True}),
        ("https://example.com/own-dialect", {"exclusiveMinimum": 5}),
    ],
)
def test_a_schema_is_read_in_the_draft_that_it_names(draft: str, limits: dict[str, Any]) -> None:
    schema = {"$schema": draft, "properties": {"a": {"type": "integer", **limits}}}
    assert read_arguments('{"a": "6"}', schema).repairs == ("to_integer",)
    with pytest.raises(ArgumentsError, match="`a`"):
        parse_arguments('{"a": "5"}', schema)


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
    "too deep": deep(5000),
}


@pytest.mark.parametrize("name", TOO_COSTLY)
def test_an_object_is_sent_unchecked_if_checking_costs_too_much(name: str) -> None:
    schema = TOO_COSTLY[name]
    parsed = read_arguments('{"a": 1}', schema)
    assert parsed.arguments == {"a": 1}
    assert parsed.repairs == ("unchecked",)
    for guess in ("a: 1", "hello", "[1]", "a:\n  - 1"):
        with pytest.raises(ArgumentsError, match="Nothing was sent"):
            parse_arguments(guess, schema)


def test_a_large_schema_costs_what_the_value_needs() -> None:
    schema = {"properties": {f"p{n}": {"type": "integer"} for n in range(5000)}}
    assert read_arguments('{"p7": "1", "p8": 2}', schema).repairs == ("to_integer",)


def test_a_schema_may_be_recursive() -> None:
    node = {
        "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
        "required": ["name"],
    }
    schema = {"$defs": {"Node": node}, "properties": {"root": {"$ref": "#/$defs/Node"}}, "required": ["root"]}
    value: dict[str, Any] = {"name": "a", "next": None}
    for level in range(30):
        value = {"name": f"n{level}", "next": value}
    assert read_arguments({"root": value}, schema).repairs == ()
    assert read_arguments({"root": {"name": "a", "next": {"name": 1}}}, schema).repairs == ("to_string",)
    with pytest.raises(ArgumentsError, match=r"`root\.next\.name` is missing"):
        parse_arguments('{"root": {"name": "a", "next": {}}}', schema)


def test_values_that_branch_at_every_level_are_unchecked() -> None:
    both = {"properties": {"a": {"$ref": "#"}}, "additionalProperties": {"type": "integer"}}
    schema = {"anyOf": [both, {**both, "minProperties": 2}]}
    value: dict[str, Any] = {"b": "x"}
    for _ in range(60):
        value = {"a": value}
    assert read_arguments(value, schema).repairs == ("unchecked",)


def test_a_schema_is_compiled_once_and_known_by_its_identity() -> None:
    schema: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
    assert compile_schema(schema) is compile_schema(schema)
    assert compile_schema(schema) is not compile_schema(dict(schema))
    first = compile_schema(schema)
    for number in range(3000):
        compile_schema({"title": str(number)})
    assert compile_schema(schema) is not first


def test_boolean_schemas() -> None:
    assert read_arguments('{"a": 1}', True).arguments == {"a": 1}
    with pytest.raises(ArgumentsError, match="Nothing was sent"):
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
def test_a_pattern_cannot_make_a_worker_hang(pattern: str) -> None:
    text = "a" * 100_000 + "!"
    for schema in (
        {"properties": {"a": {"type": "string", "pattern": pattern}}},
        {"patternProperties": {pattern: {}}, "additionalProperties": False},
    ):
        for arguments in ({"a": text}, {text: 1}):
            try:
                assert parse_arguments(json.dumps(arguments), schema) == arguments
            except ArgumentsError as refused:
                assert len(str(refused)) < 2000  # noqa: PT017


def test_a_pattern_is_checked_unless_it_looks_around() -> None:
    digits = {"properties": {"a": {"type": "string", "pattern": "^[0-9]+$"}, "n": {"type": "integer"}}}
    with pytest.raises(ArgumentsError, match=r"matching \^\[0-9\]"):
        parse_arguments('{"a": "x"}', digits)
    around = {"properties": {"a": {"type": "string", "pattern": "^(?!x)"}, "n": {"type": "integer"}}}
    assert read_arguments('{"a": "x", "n": "1"}', around).repairs == ("to_integer",)


def test_repeated_items_are_found_in_linear_time() -> None:
    items = [{"a": n, "b": [n]} for n in range(20_000)]
    schema = {"properties": {"items": {"type": "array", "uniqueItems": True}}}
    assert read_arguments({"items": items}, schema).repairs == ()
    with pytest.raises(ArgumentsError, match="non-unique"):
        read_arguments({"items": [1, 2, 1.0]}, schema)
    assert read_arguments({"items": [1, True, "1"]}, schema).repairs == ()
