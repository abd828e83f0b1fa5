"""Required properties with defaults, nulls, and the keywords of other dialects of JSON Schema."""

import json
from typing import Any

import pytest

from tarsy_tasks.arguments import read_arguments
from tarsy_tasks.errors import ArgumentsError

SHOT: dict[str, Any] = {
    "properties": {"type": {"enum": ["png", "jpeg"], "default": "png"}, "file": {"type": "string"}},
    "required": ["type"],
}
LOGS: dict[str, Any] = {
    "properties": {"pod": {"type": "string"}, "tail": {"type": "integer", "default": 100}},
    "required": ["pod", "tail"],
}
NESTED: dict[str, Any] = {
    "$defs": {"Page": {"properties": {"n": {"type": "integer", "default": 1}}, "required": ["n"]}},
    "properties": {"page": {"$ref": "#/$defs/Page"}, "more": {"items": {"$ref": "#/$defs/Page"}}},
    "required": ["page"],
}
WIDE: dict[str, Any] = {
    "properties": {f"p{n}": {"type": "integer", "default": n} for n in range(40)},
    "required": [f"p{n}" for n in range(40)],
}
FILLED, LEFT_OUT = ("default_filled",), ("default_filled", "null_left_out")
OPEN_API: dict[str, Any] = {
    "properties": {
        "a": {"type": "string", "nullable": True},
        "b": {"type": "string", "enum": ["x"], "nullable": True},
        "c": {"items": {"type": ["integer"], "nullable": True}},
        "nullable": {"type": "boolean"},
    },
    "required": ["a"],
}
DRAFT_4: dict[str, Any] = {
    "properties": {
        "a": {"type": "integer", "minimum": 5, "exclusiveMinimum": True},
        "b": {"anyOf": [{"type": "number", "maximum": 5, "exclusiveMaximum": False}]},
        "exclusiveMinimum": {"type": "boolean", "default": True},
    },
}


@pytest.mark.parametrize(
    ("given", "schema", "sent", "repairs"),
    [
        (None, SHOT, {"type": "png"}, FILLED),
        ("{}", SHOT, {"type": "png"}, FILLED),
        ('{"type": "jpeg"}', SHOT, {"type": "jpeg"}, ()),
        ('{"file": "a"}', SHOT, {"file": "a", "type": "png"}, FILLED),
        ('{"other": "a"}', SHOT, {"other": "a", "type": "png"}, FILLED),
        ('{"type": null}', SHOT, {"type": "png"}, LEFT_OUT),
        ('{"name": "shot", "arguments": {}}', SHOT, {"type": "png"}, ("whole_call", *FILLED)),
        ('{"pod": "web", "tail": null}', LOGS, {"pod": "web", "tail": 100}, LEFT_OUT),
        ("web", LOGS, {"pod": "web", "tail": 100}, ("one_property", *FILLED)),
        ('{"page": {}, "more": [{}, {"n": 2}]}', NESTED, {"page": {"n": 1}, "more": [{"n": 1}, {"n": 2}]}, FILLED),
        ("{}", WIDE, {f"p{n}": n for n in range(40)}, FILLED),
        ('{"a": null, "b": null, "c": [1, null]}', OPEN_API, {"a": None, "b": None, "c": [1, None]}, ()),
        ('{"a": 1}', OPEN_API, {"a": "1"}, ("to_string",)),
        ('{"a": "6", "b": 5}', DRAFT_4, {"a": 6, "b": 5}, ("to_integer",)),
        ("{}", {"allOf": [LOGS], "properties": {"pod": {"default": "web"}}}, {"pod": "web", "tail": 100}, FILLED),
    ],
)
def test_arguments_fit_as_the_server_means_its_schema(
    given: Any, schema: dict[str, Any], sent: Any, repairs: tuple[str, ...]
) -> None:
    before = json.dumps(schema)
    parsed = read_arguments(given, schema)
    assert parsed.arguments == sent
    assert tuple(word for word in parsed.repairs if word != "text") == repairs
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    ("given", "schema", "says"),
    [
        ({}, LOGS, "- `pod` is missing: expected a string."),
        ({"pod": None}, LOGS, "- `pod`: expected a string, got null."),
        ({"pod": None, "tail": None}, LOGS, "- `pod`: expected a string, got null."),
        ({"typ": "jpeg"}, SHOT, "you wrote `typ`, the correct name is `type`"),
        ({"typ": "jpeg"}, SHOT | {"additionalProperties": False}, "`typ` is not a property of this tool; did you mean"),
        ({}, {"properties": {"n": {"type": "integer", "default": "x"}}, "required": ["n"]}, "- `n` is missing"),
        ({"a": 5}, DRAFT_4, "- `a`: expected an integer, more than 5, got 5."),
        ({"b": 5.5}, DRAFT_4, "- `b`: expected a number, at most 5, got 5.5."),
        ({"a": None, "nullable": None, "c": ["x"]}, OPEN_API, "- `c[0]`: expected an integer or null, got the string"),
    ],
)
def test_what_is_wrong_is_said_by_the_same_meaning(given: Any, schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentsError) as refused:
        read_arguments(given, schema)
    assert says in str(refused.value)
    assert "got null" not in says or " is missing" not in str(refused.value)
