"""Arguments are read and checked before anything is sent."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarsy_tasks.arguments import parse_arguments
from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.outcomes import ErrorCode, Outcome

SCHEMA = {
    "type": "object",
    "properties": {"item": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["item"],
    "additionalProperties": False,
}


def refusal(given: object, schema: object = SCHEMA) -> str:
    with pytest.raises(ArgumentsError) as caught:
        parse_arguments(given, schema)
    assert (caught.value.code, caught.value.outcome) == (ErrorCode.INVALID_ARGUMENTS, Outcome.REJECTED)
    assert "Nothing was sent" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ('{"item": "lamp", "count": 3}', {"item": "lamp", "count": 3}),
        ({"item": "lamp"}, {"item": "lamp"}),
        ('  {"item": "a\\u00e9"}\n', {"item": "aé"}),
    ],
)
def test_what_fits_comes_back_as_it_was(given: object, arguments: dict[str, object]) -> None:
    assert parse_arguments(given, SCHEMA) == arguments


@pytest.mark.parametrize("given", [None, "", "  "])
def test_nothing_is_no_arguments(given: object) -> None:
    assert parse_arguments(given) == {}


@pytest.mark.parametrize("given", ["[1]", "7", "null", '{"a": NaN}', '{"a": 1', "item: lamp", "[" * 100_000, 7, ["x"]])
def test_what_is_no_json_object_is_refused(given: object) -> None:
    refusal(given)


def test_a_refusal_names_every_property_and_what_the_tool_takes() -> None:
    text = refusal({"count": "many", "colour": "red"})
    assert "`count`: 'many' is not of type 'integer'" in text
    assert "'item' is a required property" in text
    assert "colour" in text
    assert '"item": {"type": "string"}' in text
    assert "Required: item" in text


def test_a_refusal_is_bounded() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert len(refusal({f"key{number}": "x" * 10_000 for number in range(1000)}, schema)) < 3000


@pytest.mark.parametrize("schema", [{"type": 7}, {"properties": {"a": {"type": "nonsense"}}}])
def test_a_broken_schema_checks_nothing(schema: dict[str, object]) -> None:
    assert parse_arguments({"a": 1}, schema) == {"a": 1}


@pytest.mark.parametrize("reference", ["http://127.0.0.1:1/nowhere", "#/$defs/nowhere", "#/properties/a"])
def test_a_reference_that_leads_nowhere_is_not_followed(reference: str) -> None:
    assert parse_arguments({"a": 1}, {"properties": {"a": {"$ref": reference}}}) == {"a": 1}


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        arguments = parse_arguments(text)
    except ArgumentsError:
        return
    assert json.loads(json.dumps(arguments, allow_nan=False)) == arguments
