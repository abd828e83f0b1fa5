"""The text of a rejection: what a model reads when its call was not sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from tarsy_tasks.arguments import parse_arguments
from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tests.unit.arguments_corpus import SCHEMAS

EDITS = {
    "type": "object",
    "properties": {
        "edits": {
            "type": "array",
            "items": {"type": "object", "properties": {"oldText": {"type": "string"}}, "required": ["oldText"]},
        },
        "limit": {"type": "integer"},
    },
    "required": ["edits"],
}


CODED = {
    "type": "object",
    "properties": {"k": {"type": "string", "pattern": "^[a-z]+$", "minLength": 5}},
    "required": ["k"],
}


UNKNOWABLE = {"type": "object", "properties": {"k": {"type": "string", "pattern": "^q7[x-z]{9}$"}}, "required": ["k"]}


STATE = SCHEMAS["sql"] | {"properties": {"sql": {"type": "string"}, "state": {}}}
MANY = {"properties": {f"p{n}": {} for n in range(25)}, "required": ["p1"]}
SEARCH, PODS = SCHEMAS["search"], SCHEMAS["pods"]


def test_a_rejection_lists_each_problem_and_the_right_call() -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments('{"limit": "ten", "lim": 1, "all": [1], "Namespace": "x", "contaners": 1}', SCHEMAS["pods"])
    assert str(refused.value).splitlines() == [
        "The arguments do not match the tool's schema. Nothing was sent.",
        "- `namespace` is missing: expected a string.",
        '- `limit`: expected an integer, at least 1, at most 500, got the string "ten".',
        "- `all`: expected true or false, got the list [1].",
        "- `lim` is not a property of this tool; did you mean `limit`?",
        "- `Namespace` is not a property of this tool; did you mean `namespace`?",
        "- `contaners` is not a property of this tool; did you mean `containers`?",
        "Properties of the tool:",
        "- `namespace` (required): a string",
        "- `labelSelector` (optional): a string",
        "- `limit` (optional): an integer, at least 1, at most 500",
        "- `all` (optional): true or false",
        "- `containers` (optional): a list of strings",
        'Write one JSON object and nothing else, for example: {"namespace": "<namespace>"}',
    ]


def test_a_rejection_of_a_text_says_why() -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments("", SCHEMAS["search"])
    assert (refused.value.code, refused.value.outcome) == (ErrorCode.INVALID_ARGUMENTS, Outcome.REJECTED)
    with pytest.raises(
        ArgumentsError,
        match=r"cannot be used\. Nothing was sent\.\nIncomplete JSON: the text ends before the object is closed\.",
    ):
        parse_arguments('{"query": "a', SCHEMAS["search"])
    with pytest.raises(ArgumentsError, match="`state` is a property"):
        parse_arguments("call(state='open')", STATE)
    with pytest.raises(ArgumentsError, match="takes no arguments"):
        parse_arguments("hello", SCHEMAS["nothing"])
    with pytest.raises(ArgumentsError, match="`foo` is not a property"):
        parse_arguments("query: a, foo: b", SCHEMAS["search"])


@pytest.mark.parametrize(
    ("text", "schema", "says"),
    [
        ('{"QUERY": "a"}', SEARCH, "you wrote `QUERY`, the correct name is `query`"),
        (
            '{"edits": [{"old_text": "a"}]}',
            EDITS,
            "`edits[0].oldText` is missing: expected a string; you wrote",
        ),
        ('{"sql": "a"}', SEARCH, "`query` is missing: expected a string, got: `sql`."),
        ('{"query": "a"} and more', SEARCH, "Invalid JSON: there is more text after its end."),
        ('{"query": "a", ', SEARCH, "Incomplete JSON: the text ends before the object is closed."),
        ("{command: ls -la}", SCHEMAS["shell"], "a comma or a quote is missing."),
        ("```\nSELECT 1\n```", SCHEMAS["sql"], "it is not JSON, YAML or `key: value` pairs"),
        ("search(query='pods')", SEARCH, "The text is a function call"),
        ("42", SCHEMAS["get_issue"], "The arguments are the value 42"),
        ("namespace: default # prod", PODS, "does `namespace` end before the `#`"),
        ("namespace: default, all", PODS, "does `namespace` end before `all`"),
        ("owner: a;\nrepo: b;", SCHEMAS["issue"], "does the semicolon end each value"),
        ('{"k": 1}', CODED, "at least 5 characters, matching ^[a-z]+$"),
        ('{"k": 1}', CODED, 'for example: {"k": "aaaaa"}'),
        ('{"k": 1}', UNKNOWABLE, "No example could be generated"),
        ('{"a": 1}', MANY, "- and 5 more, all"),
    ],
)
def test_a_rejection_says_what_is_wrong(text: str, schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments(text, schema)
    assert says in str(refused.value)


def test_values_that_coercion_corrects_are_not_problems() -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments(
            '{"edits": [], "limit": "five", "x": 1}',
            EDITS | {"properties": EDITS["properties"] | {"x": {"type": "string"}}},
        )
    assert '- `limit`: expected an integer, got the string "five".' in str(refused.value)
    assert "- `x`:" not in str(refused.value)


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_example_of_a_rejection_fits_the_tool(name: str) -> None:
    with pytest.raises(ArgumentsError, match="for example: ") as refused:
        parse_arguments('{"query": {}}{', SCHEMAS[name])
    example_call = str(refused.value).rpartition("for example: ")[2]
    assert parse_arguments(example_call, SCHEMAS[name]) == json.loads(example_call)


@pytest.mark.parametrize(
    ("text", "schema", "repairs"),
    [
        ('{"query": "a', "search", ("text", "cut_off")),
        ("```json\n{'limit': 'x'}\n```", "search", ("almost_json", "code_fence", "single_quotes", "unfit")),
        ('{"name": "delete_user", "parameters": {"name": "bob"}}', "user", ("ambiguous",)),
        ("namespace: default # prod", "pods", ("pairs", "ambiguous")),
        ("limit: 5", "search", ("pairs", "unfit")),
        ("Action Input: 42", "get_issue", ("label", "value", "no_object")),
        ("hello", "write", ("text", "no_object")),
        ("--limit 5", "search", ("text", "broken")),
        ("\ud800", "search", ("unusable",)),
    ],
)
def test_a_rejection_reports_reading_repairs_and_reason(text: str, schema: str, repairs: tuple[str, ...]) -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments(text, SCHEMAS[schema])
    assert refused.value.repairs == repairs
    # Celery rebuilds an exception from its arguments.
    assert ArgumentsError(*refused.value.args).repairs == repairs
    page = (Path(__file__).parents[2] / "docs" / "arguments.md").read_text(encoding="utf-8")
    assert all(f"`{word}`" in page for word in repairs)


def test_what_may_be_a_whole_call_is_asked_for_as_one_object() -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments('{"name": "delete_user", "parameters": {"name": "bob"}}', SCHEMAS["user"])
    text = str(refused.value)
    assert "Write one JSON object" in text
    assert "without an object" not in text
    assert "do not wrap it in a call" in text


@pytest.mark.parametrize("value", ["a1b2c3d4", ["a1b2c3d4"], {"a": {"b": "a1b2c3d4"}}, 12345678])
def test_a_rejection_does_not_quote_the_value_of_a_secret_name(value: Any) -> None:
    schema = {"type": "object", "properties": {"password": {"type": "null"}, "key": {"type": "null"}}}
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments(json.dumps({"password": value, "key": "F major"}), schema)
    assert "- `password`: expected null, got" in str(refused.value)
    assert "__MASKED__" in str(refused.value)
    assert "a1b2c3d4" not in str(refused.value)
    assert "12345678" not in str(refused.value)
    assert '"F major"' in str(refused.value)
