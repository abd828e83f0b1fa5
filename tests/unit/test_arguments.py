"""What a text of a model becomes: the corpus, and properties of all readings."""

import json
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tarsy_tasks.arguments import Reading, read_arguments
from tarsy_tasks.errors import ArgumentsError
from tests.unit.arguments_corpus import ROWS, SCHEMAS, Row, as_json, outcome

DOCS = (Path(__file__).parents[2] / "docs" / "arguments.md").read_text(encoding="utf-8")


def json_objects_of(text: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
    values = st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4), max_leaves=12
    )
    return st.dictionaries(text, values, max_size=5)


json_objects = json_objects_of(st.text(max_size=12))


# Without what Python prints as \\x, which JSON does not have.
printable_objects = json_objects_of(st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12))


some_schema = st.sampled_from([None, *SCHEMAS.values()])


# Texts out of the pieces that the readers look for reach further than random characters.
words = [
    "namespace",
    "query",
    "limit",
    "name",
    "json",
    "true",
    "None",
    "NaN",
    "1e999",
    "007",
    "1.10",
    "x y",
    "https://x/a",
]
marks = ["```", "//", "/*", "{}", '""', "...", "<arguments>", "Action Input: ", "&a", "*a", "  - "]
escapes = ["\\u", "\\ud800", "\ud800", "\\d"]
pieces = st.sampled_from([*"{}[]\"':=,\\|#“é;()`a1-\n ", *words, *marks, *escapes])


texts = st.text(max_size=40) | st.lists(pieces, max_size=25).map("".join) | st.sampled_from([row.text for row in ROWS])


def values_for(schema: dict[str, Any], root: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a schema of the corpus."""
    if "$ref" in schema:
        return values_for(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    for branches in ("anyOf", "oneOf"):
        if branches in schema:
            return st.one_of([values_for(each, root) for each in schema[branches]])
    if "allOf" in schema:
        return values_for({key: value for part in schema["allOf"] for key, value in part.items()}, root)
    if isinstance(schema.get("type"), list):
        return st.one_of([values_for({**schema, "type": each}, root) for each in schema["type"]])
    if schema.get("type") == "object":
        named = {name: values_for(each, root) for name, each in schema.get("properties", {}).items()}
        required = {name: named.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=named)
    if schema["type"] == "array":
        return st.lists(values_for(schema.get("items", {"type": "string"}), root), max_size=3)
    return {
        "string": st.from_regex(schema.get("pattern", ""), fullmatch="pattern" in schema),
        "integer": st.integers(schema.get("minimum"), schema.get("maximum")),
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "boolean": st.booleans(),
        "null": st.none(),
    }[schema["type"]]


fitting = st.sampled_from(list(SCHEMAS.values())).flatmap(
    lambda schema: st.tuples(st.just(schema), values_for(schema, schema))
)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.schema_name}:{row.text[:40]!r}" for row in ROWS])
def test_a_row_of_the_corpus(row: Row) -> None:
    got = outcome(row.text, row.schema)
    # As JSON, so that 1, 1.0 and true are told apart.
    assert as_json(got) == as_json(row.want), row.why


def test_the_corpus_is_large_and_says_why() -> None:
    assert len(ROWS) >= 200
    assert len({(row.text, row.schema_name) for row in ROWS}) == len(ROWS)
    assert all(row.why for row in ROWS)
    assert sum(row.want == "reject" for row in ROWS) >= 50


@given(text=texts, schema=some_schema)
def test_any_text_is_an_object_or_a_rejection(text: str, schema: dict[str, Any] | None) -> None:
    arguments = outcome(text, schema)
    assert json.loads(as_json(arguments)) == arguments
    as_json(arguments).encode()


@given(text=texts, schema=some_schema)
def test_parsed_arguments_parse_to_themselves(text: str, schema: dict[str, Any] | None) -> None:
    arguments = outcome(text, schema)
    assume(arguments != "reject")
    assert as_json(outcome(json.dumps(arguments), schema)) == as_json(arguments)
    assert as_json(read_arguments(arguments, schema).arguments) == as_json(arguments)


@given(arguments=json_objects)
def test_an_object_written_as_json_is_the_same_object(arguments: dict[str, Any]) -> None:
    for text in (json.dumps(arguments), json.dumps(arguments, ensure_ascii=False, indent=2)):
        parsed = read_arguments(text)
        assert as_json(parsed.arguments) == as_json(arguments)
        assert parsed.reading is Reading.JSON
        assert parsed.repairs == ()


@given(arguments=printable_objects)
def test_an_object_as_python_prints_it_is_the_same_object(arguments: dict[str, Any]) -> None:
    text = repr(arguments)
    got = outcome(text, None)
    # Where a backslash makes two readings possible it is left as a text.
    assert got == arguments or ("\\" in text and got == {"input": text})


@given(fitting)
def test_arguments_that_fit_are_not_changed(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    schema, arguments = case
    assert jsonschema.Draft202012Validator(schema).is_valid(arguments)
    for given_ in (json.dumps(arguments), arguments):
        parsed = read_arguments(given_, schema)
        assert as_json(parsed.arguments) == as_json(arguments)
        assert parsed.repairs == ()


@given(text=texts, schema=st.sampled_from(list(SCHEMAS.values())))
def test_parsed_arguments_fit_the_schema(text: str, schema: dict[str, Any]) -> None:
    arguments = outcome(text, schema)
    assume(arguments != "reject")
    assert jsonschema.Draft202012Validator(schema).is_valid(arguments)


@given(text=texts | json_objects.map(json.dumps) | json_objects.map(lambda value: json.dumps(list(value.values()))))
@example('{"a": 1e400}')
@example("[1, 2")
@example("-0")
def test_valid_json_is_read_as_the_standard_library_does(text: str) -> None:
    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        value = json.loads(text, parse_constant=refuse)
        json.dumps(value, allow_nan=False).encode()
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return
    got = outcome(text, None)
    if isinstance(value, dict):
        assert as_json(got) == as_json(value)
    elif not isinstance(value, str) or not value.strip().startswith(("{", '"', "`")):
        assert as_json(got) == as_json({"input": value})


@pytest.mark.parametrize(
    ("text", "reading", "repairs"),
    [
        ('{"query": "a"}', Reading.JSON, ()),
        ("```json\n{'query': 'a',}\n```", Reading.ALMOST_JSON, ("code_fence", "single_quotes", "trailing_comma")),
        ('{"query": 1.10, "limit": "5"}', Reading.JSON, ("to_string", "to_integer")),
        ("query: a, limit: 5", Reading.PAIRS, ()),
        ("query: |\n  a\nlimit: 5", Reading.YAML, ()),
        ("pods", Reading.TEXT, ("one_property",)),
        ("42", Reading.VALUE, ("one_property",)),
        ('{"arguments": {"query": "a"}}', Reading.JSON, ("whole_call",)),
    ],
)
def test_reading_and_repairs_are_reported(text: str, reading: Reading, repairs: tuple[str, ...]) -> None:
    parsed = read_arguments(text, SCHEMAS["search"])
    assert (parsed.reading, parsed.repairs) == (reading, repairs)
    shown = () if reading is Reading.JSON else (reading.value,)
    assert parsed.reported == (*shown, *repairs)


def test_a_mapping_is_checked_and_coerced_and_copied() -> None:
    given_ = MappingProxyType({"namespace": "x", "containers": ["a"], "limit": "5"})
    parsed = read_arguments(given_, SCHEMAS["pods"])
    assert parsed.arguments == {"namespace": "x", "containers": ["a"], "limit": 5}
    assert parsed.reading is Reading.MAPPING
    assert parsed.arguments["containers"] is not given_["containers"]
    assert read_arguments(None, SCHEMAS["nothing"]).arguments == {}
    with pytest.raises(ArgumentsError, match="`limit`"):
        read_arguments({"namespace": "x", "limit": []}, SCHEMAS["pods"])


def test_importing_loads_no_yaml_validator_or_server_library() -> None:
    code = (
        "import sys, tarsy_tasks.arguments as a, tarsy_tasks.tool_names;"
        "a.parse_arguments('{\"a\": 1}');"
        "print([m for m in ('yaml', 'jsonschema', 'jsonschema_rs', 'mcp', 'celery', 'redis') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_examples_of_the_docs_are_rows_of_the_corpus() -> None:
    shown = DOCS.partition("| the model wrote |")[2].split("\n\n")[0].splitlines()[2:]
    assert len(shown) == 10
    assert set(shown) <= {row.table_line for row in ROWS}


def test_every_repair_is_documented() -> None:
    words = {word for row in ROWS if row.want != "reject" for word in read_arguments(row.text, row.schema).reported}
    assert len(words) > 25
    assert {word for word in words if f"`{word}`" not in DOCS} == set()
