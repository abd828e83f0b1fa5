import enum
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tarsy_tasks.arguments import Reading, parse_arguments, read_arguments
from tarsy_tasks.errors import ArgumentsError
from tarsy_tasks.outcomes import ErrorCode, Outcome
from tests.unit.arguments_corpus import ROWS, SCHEMAS, Row


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
pieces = st.sampled_from(
    [
        *"{}[]\"':=,\\|#“é;()`a1-\n ",
        "```",
        "json",
        "namespace",
        "query",
        "limit",
        "name",
        "true",
        "None",
        "007",
        "1.10",
        "//",
        "/*",
        "<arguments>",
        "&a",
        "*a",
        "\\u",
        "\\ud800",
        "\ud800",
        "\\d",
        "...",
        "https://x/a",
        "{}",
        '""',
        "NaN",
        "1e999",
        "x y",
        "  - ",
        "Action Input: ",
    ]
)
texts = st.text(max_size=40) | st.lists(pieces, max_size=25).map("".join) | st.sampled_from([row.text for row in ROWS])


def outcome(text: Any, schema: Mapping[str, Any] | None) -> Any:
    try:
        return parse_arguments(text, schema)
    except ArgumentsError:
        return "reject"


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


def as_json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, sort_keys=True)


@pytest.mark.parametrize("row", ROWS, ids=[f"{row.schema_name}:{row.text[:40]!r}" for row in ROWS])
def test_the_corpus(row: Row) -> None:
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
def test_what_comes_out_goes_in_unchanged(text: str, schema: dict[str, Any] | None) -> None:
    arguments = outcome(text, schema)
    assume(arguments != "reject")
    assert as_json(outcome(json.dumps(arguments), schema)) == as_json(arguments)
    assert as_json(read_arguments(arguments, schema).arguments) == as_json(arguments)


@given(arguments=json_objects)
def test_an_object_survives_the_way_through_text(arguments: dict[str, Any]) -> None:
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
def test_arguments_that_come_out_fit(text: str, schema: dict[str, Any]) -> None:
    arguments = outcome(text, schema)
    assume(arguments != "reject")
    assert jsonschema.Draft202012Validator(schema).is_valid(arguments)


@given(text=texts | json_objects.map(json.dumps) | json_objects.map(lambda value: json.dumps(list(value.values()))))
@example('{"a": 1e400}')
@example("[1, 2")
@example("-0")
def test_where_json_reads_a_text_so_do_we(text: str) -> None:
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


class Color(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({1: "a"}, "keys must be text"),
        ({"a": {None: 1}}, "keys must be text"),
        ({"a": float("nan")}, "finite"),
        ({"a": [float("inf")]}, "finite"),
        ({"a": b"x"}, "bytes"),
        ({"a": {1, 2}}, "set"),
        ({"a": (1, 2)}, "tuple"),
        ({"a": "\ud800"}, "half of a character"),
        ({"\ud800": 1}, "half of a character"),
        ({"a": 10**5000}, "digits"),
        ({"a": object()}, "object"),
        ([1], "type list"),
        (5, "type int"),
    ],
)
def test_what_json_does_not_have_is_refused(arguments: Any, reason: str) -> None:
    with pytest.raises(ArgumentsError, match=reason):
        read_arguments(arguments)


def test_subclasses_of_json_types_become_json_types() -> None:
    arguments = read_arguments({"a": Color.RED, "b": enum.IntEnum("N", "one").one}).arguments  # type: ignore[attr-defined]
    assert [type(value) for value in arguments.values()] == [str, int]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def test_depth_is_bounded() -> None:
    assert parse_arguments(json.dumps(nested(90))) == nested(90)
    assert read_arguments(nested(90)).arguments == nested(90)
    circle: dict[str, Any] = {}
    circle["a"] = circle
    for value in (nested(500), circle):
        with pytest.raises(ArgumentsError, match="deep"):
            read_arguments(value)
    for opening in ("[", '{"a":', "{'a': [", "[[{'a':"):
        for count in (99, 101, 1000, 50_000):
            for closing in ("", "]" * count, "}" * count):
                for schema in (None, SCHEMAS["search"]):
                    outcome(opening * count + closing, schema)
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    assert parse_arguments(deep) == {"input": deep}
    assert outcome(deep, SCHEMAS["search"]) == "reject"


def test_integers_are_exact_up_to_what_json_can_carry() -> None:
    long, longer = "9" * 4000, "9" * 5000
    assert parse_arguments(f'{{"n": {long}}}') == {"n": int(long)}
    assert parse_arguments(f"n: {long}") == {"n": int(long)}
    assert parse_arguments(f"n: {longer}") == {"n": longer}
    assert parse_arguments(f'{{"n": {longer}}}') == {"input": f'{{"n": {longer}}}'}
    assert outcome(f'{{"n": {longer}}}', SCHEMAS["search"]) == "reject"


def test_halves_of_characters_never_come_out() -> None:
    for text in ('{"a": "\\ud800"}', '{"\\udfff": 1}', "\ud800", "a: \udfff", "{'a': '\ud800'}", '"\\ud800"'):
        assert outcome(text, None) == "reject"
    assert parse_arguments("{'a': '\\ud83d\\ude00'}") == {"a": "😀"}


@pytest.mark.parametrize(
    "part", [{}, {"type": "string"}, {"pattern": "a"}, {"minLength": 3}, {"enum": ["a"]}, {"type": "integer"}]
)
@pytest.mark.parametrize("keyword", ["properties", "additionalProperties", "propertyNames", "patternProperties"])
def test_halves_of_characters_never_reach_the_validator(part: dict[str, Any], keyword: str) -> None:
    schema = {keyword: {"a": part} if keyword in ("properties", "patternProperties") else part, "required": ["a"]}
    texts = (
        '{"a": "\\ud800"}',
        '{"\\ud800": "a", "a": "aaa"}',
        "{'a': '\ud800'}",
        'a: "\\ud800"',
        "a: \ud800",
        '"\\ud800"',
    )
    for given_ in (*texts, {"a": "\ud800"}, '{"a": ["\\ud800"]}'):
        with pytest.raises(ArgumentsError, match="Nothing was sent"):
            read_arguments(given_, schema)


HOSTILE = [
    *["[", "{", "]", "}", "[]", "{}", "[[],", '"', "'", ",", ":", "=", "\\", '\\"', "\\\\", "```", "```json\n", "~~~"],
    *[
        "a:",
        "a=",
        "a,",
        "a: b, ",
        "a=b ",
        "a: [",
        "a: {a:1, ",
        "a: '",
        'a: "',
        "query: a, ",
        "limit: 1, ",
        "names: a=b,",
    ],
    *[
        "# ",
        "//",
        "/*",
        "*/",
        "a:\n",
        "- a\n",
        "a: |\n ",
        " a: b\n",
        "\n",
        " ",
        "\u00a0",
        "“",
        "(",
        "a(b=",
        "1,",
        "true,",
    ],
    *[
        '{"a":1,',
        "['a',",
        '["a",',
        "\\u",
        "\\ud800",
        "<a>",
        "`",
        "{{",
        "...",
        "Action Input: ",
        "<arguments>",
        "<think>",
        "</s>",
        "// a\n",
        "é",
        "\x00",
    ],
]
BEGINNINGS = ["", '{"query": "x", "names": [', "query: ", '"', "```json\n", '{"query": "', "a:\n  - b\nquery: "]


def cpu_s(text: str, schema: dict[str, Any] | None) -> float:
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        outcome(text, schema)
        best = min(best, time.process_time() - begin)
    return best


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_the_work_grows_with_the_text_and_no_faster(beginning: str) -> None:
    schema = SCHEMAS["search"]
    for seed in HOSTILE:
        small, large = (beginning + seed * (size // len(seed)) for size in (8_000, 64_000))
        few, many = cpu_s(small, schema), cpu_s(large, schema)
        # Eight times the text: linear is 8, quadratic is 64. What is too quick to measure is quick enough.
        assert many < max(24 * few, 0.05), (beginning, seed, few, many)


@pytest.mark.parametrize("seed", ["[", '"', ",", ":", "\\", "{'a':", "```\n", "a: b, "])
def test_a_megabyte_of_anything_is_survived(seed: str) -> None:
    for schema in (None, SCHEMAS["search"]):
        outcome(seed * (1_000_000 // len(seed)), schema)


def test_a_rejection_names_each_property_what_was_expected_what_was_given_and_the_fix() -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments('{"limit": "ten", "lim": 1, "all": [1], "Namespace": "x", "contaners": 1}', SCHEMAS["pods"])
    assert str(refused.value).splitlines() == [
        "The arguments do not fit this tool. Nothing was sent.",
        "- `namespace` is missing: expected a string.",
        '- `limit`: expected an integer at least 1 at most 500, given the string "ten".',
        "- `all`: expected true or false, given the list [1].",
        "- `lim` is no property of this tool; did you mean `limit`?",
        "- `Namespace` is no property of this tool; did you mean `namespace`?",
        "- `contaners` is no property of this tool; did you mean `containers`?",
        "Properties of the tool:",
        "- `namespace` (required): a string",
        "- `labelSelector` (optional): a string",
        "- `limit` (optional): an integer at least 1 at most 500",
        "- `all` (optional): true or false",
        "- `containers` (optional): a list of strings",
        'Write one JSON object and nothing else, for example: {"namespace": "<namespace>"}',
    ]


def test_a_rejection_of_a_text_says_why_it_was_not_sent() -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments("", SCHEMAS["search"])
    assert (refused.value.code, refused.value.outcome) == (ErrorCode.INVALID_ARGUMENTS, Outcome.REJECTED)
    with pytest.raises(ArgumentsError, match="cut off"):
        parse_arguments('{"query": "a', SCHEMAS["search"])
    with pytest.raises(ArgumentsError, match="`state` names a property"):
        parse_arguments("call(state='open')", SCHEMAS["sql"] | {"properties": {"sql": {"type": "string"}, "state": {}}})
    with pytest.raises(ArgumentsError, match="takes no arguments"):
        parse_arguments("hello", SCHEMAS["nothing"])
    with pytest.raises(ArgumentsError, match="`foo` is no property"):
        parse_arguments("query: a, foo: b", SCHEMAS["search"])


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_example_of_a_rejection_is_a_call_that_the_tool_takes(name: str) -> None:
    with pytest.raises(ArgumentsError, match="for example: ") as refused:
        parse_arguments('{"query": {}}{', SCHEMAS[name])
    example_call = str(refused.value).rpartition("for example: ")[2]
    assert parse_arguments(example_call, SCHEMAS[name]) == json.loads(example_call)


@pytest.mark.parametrize(
    ("text", "schema", "repairs"),
    [
        ('{"query": "a', "search", ("text", "cut_off")),
        (
            "```json\n{'limit': 'x',}\n```",
            "search",
            ("almost_json", "code_fence", "single_quotes", "trailing_comma", "unfit"),
        ),
        ('{"name": "delete_user", "parameters": {"name": "bob"}}', "user", ("ambiguous",)),
        ("namespace: default # prod", "pods", ("pairs", "ambiguous")),
        ("limit: 5", "search", ("pairs", "unfit")),
        ("Action Input: 42", "get_issue", ("label", "value", "no_object")),
        ("hello", "write", ("text", "no_object")),
        ("--limit 5", "search", ("text", "broken")),
        ("\ud800", "search", ("unusable",)),
    ],
)
def test_a_rejection_says_as_what_it_was_read_what_was_mended_and_why_not(
    text: str, schema: str, repairs: tuple[str, ...]
) -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments(text, SCHEMAS[schema])
    assert refused.value.repairs == repairs
    # Celery rebuilds an exception from its arguments.
    assert ArgumentsError(*refused.value.args).repairs == repairs
    page = (Path(__file__).parents[2] / "docs" / "arguments.md").read_text(encoding="utf-8")
    assert all(f"`{word}`" in page for word in repairs)


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


@pytest.mark.parametrize(
    ("text", "schema", "says"),
    [
        ('{"QUERY": "a"}', SCHEMAS["search"], "you wrote `QUERY`, the right name is `query`"),
        (
            '{"edits": [{"old_text": "a"}]}',
            EDITS,
            "`edits[0].oldText` is missing: expected a string; you wrote `old_text`",
        ),
        ('{"sql": "a"}', SCHEMAS["search"], "`query` is missing: expected a string, given: `sql`."),
        ('{"query": "a"} and more', SCHEMAS["search"], "something follows its end"),
        ('{"query": "a", ', SCHEMAS["search"], "cut off"),
        ("{command: ls -la}", SCHEMAS["shell"], "a comma or a quote is missing."),
        ("```\nSELECT 1\n```", SCHEMAS["sql"], "it is no JSON, no YAML and no pairs"),
        ("search(query='pods')", SCHEMAS["search"], "the call of a function"),
        ("42", SCHEMAS["get_issue"], "They are the value 42"),
        ("namespace: default # prod", SCHEMAS["pods"], "does `namespace` end before the `#`"),
        ("namespace: default, all", SCHEMAS["pods"], "does `namespace` end before `all`"),
        ("owner: a;\nrepo: b;", SCHEMAS["issue"], "does the semicolon end each value"),
        ('{"k": 1}', CODED, "at least 5 characters matching ^[a-z]+$"),
        ('{"k": 1}', CODED, 'for example: {"k": "aaaaa"}'),
        ('{"k": 1}', UNKNOWABLE, "No example could be made up"),
        (
            json.dumps({"a": 1}),
            {"properties": {f"p{n}": {} for n in range(25)}, "required": ["p1"]},
            "- and 5 more, all",
        ),
    ],
)
def test_a_rejection_says_what_is_wrong_in_the_words_of_the_call(text: str, schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments(text, schema)
    assert says in str(refused.value)


def test_what_would_have_been_coerced_is_not_called_wrong() -> None:
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments(
            '{"edits": [], "limit": "five", "x": 1}',
            EDITS | {"properties": EDITS["properties"] | {"x": {"type": "string"}}},
        )
    assert '- `limit`: expected an integer, given the string "five".' in str(refused.value)
    assert "- `x`:" not in str(refused.value)


@pytest.mark.parametrize("value", ["a1b2c3d4", ["a1b2c3d4"], {"a": {"b": "a1b2c3d4"}}, 12345678])
def test_a_rejection_does_not_quote_what_its_name_says_is_a_secret(value: Any) -> None:
    schema = {"type": "object", "properties": {"password": {"type": "null"}, "key": {"type": "null"}}}
    with pytest.raises(ArgumentsError) as refused:
        parse_arguments(json.dumps({"password": value, "key": "F major"}), schema)
    assert "- `password`: expected null, given" in str(refused.value)
    assert "__MASKED__" in str(refused.value)
    assert "a1b2c3d4" not in str(refused.value)
    assert "12345678" not in str(refused.value)
    assert '"F major"' in str(refused.value)


def test_the_bounds_of_the_guesses() -> None:
    pairs = [f"k{n}: {n}" for n in range(301)]
    assert len(parse_arguments("\n".join(pairs[:300]))) == 300
    assert list(parse_arguments("\n".join(pairs))) == ["input"]
    yaml = "\n".join(["a:", *["- b"] * 16_383])
    assert list(parse_arguments(yaml)) == ["a"]
    assert list(parse_arguments(yaml + "\n- b")) == ["input"]
    broken = [f"k{n}: [a {n}" for n in range(9)]
    assert len(parse_arguments("\n".join(broken[:8]))) == 8
    assert list(parse_arguments("\n".join(broken))) == ["input"]


def test_what_is_decoded_twice_is_no_deeper_than_allowed() -> None:
    inner = json.dumps({"a": json.dumps(nested(60))})
    schema = {"type": "object", "properties": {"a": {"type": "object"}}}
    assert parse_arguments(inner, schema) == {"a": nested(60)}
    deep = '{"b": ' * 60 + json.dumps({"a": "[" * 60 + "]" * 60}) + "}" * 60
    chain: dict[str, Any] = {"type": "array"}
    schema = {"type": "object", "properties": {"a": chain}}
    for _ in range(60):
        schema = {"type": "object", "properties": {"b": schema}}
    for text in (deep, deep.replace('"' + "[" * 60, '"' + r"\u005b" * 60)):
        with pytest.raises(ArgumentsError, match="deep"):
            parse_arguments(text, schema)
    assert deep.count("[") + deep.count("{") > 100 > deep.replace("[", "").count("{")


def test_a_rejection_is_bounded() -> None:
    wide = {"type": "object", "properties": {f"p{n}_{'x' * 300}": {"enum": ["y" * 500] * 50} for n in range(500)}}
    wide["required"] = list(wide["properties"])
    wide["additionalProperties"] = False
    for text in (json.dumps({"a" * 1000: "b" * 10_000}), "x" * 100_000, json.dumps({f"k{n}": n for n in range(1000)})):
        with pytest.raises(ArgumentsError) as refused:
            parse_arguments(text, wide)
        assert len(str(refused.value)) < 12_000


def test_importing_loads_neither_yaml_nor_validators_nor_the_stack() -> None:
    code = (
        "import sys, tarsy_tasks.arguments as a, tarsy_tasks.tool_names;"
        "a.parse_arguments('{\"a\": 1}');"
        "print([m for m in ('yaml', 'jsonschema', 'jsonschema_rs', 'mcp', 'celery', 'redis') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_examples_of_the_docs_page_are_rows_of_the_corpus() -> None:
    page = (Path(__file__).parents[2] / "docs" / "arguments.md").read_text(encoding="utf-8")
    tables = page.split("| text | schema |")[1:]
    shown = [line for table in tables for line in table.split("\n\n")[0].splitlines()[2:]]
    assert len(shown) >= 50
    assert set(shown) <= {row.table_line for row in ROWS}


def test_every_repair_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "arguments.md").read_text(encoding="utf-8")
    words = {word for row in ROWS if row.want != "reject" for word in read_arguments(row.text, row.schema).reported}
    assert len(words) > 25
    assert {word for word in words if f"`{word}`" not in page} == set()
