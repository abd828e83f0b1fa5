"""Input that is meant to break the readers: values that are not JSON, depth, size, repetition."""

import enum
import json
import time
from typing import Any

import pytest

from tarsy_tasks.arguments import parse_arguments, read_arguments
from tarsy_tasks.errors import ArgumentsError
from tests.unit.arguments_corpus import SCHEMAS, outcome


class Color(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({1: "a"}, "keys must be strings"),
        ({"a": {None: 1}}, "keys must be strings"),
        ({"a": float("nan")}, "finite"),
        ({"a": [float("inf")]}, "finite"),
        ({"a": b"x"}, "bytes"),
        ({"a": {1, 2}}, "set"),
        ({"a": (1, 2)}, "tuple"),
        ({"a": "\ud800"}, "lone surrogate"),
        ({"\ud800": 1}, "lone surrogate"),
        ({"a": 10**5000}, "digits"),
        ({"a": object()}, "object"),
        ([1], "type list"),
        (5, "type int"),
    ],
)
def test_values_that_json_does_not_have_are_rejected(arguments: Any, reason: str) -> None:
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


def test_text_that_is_decoded_twice_has_the_same_depth_limit() -> None:
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


def test_integers_are_exact_up_to_4300_digits() -> None:
    long, longer = "9" * 4000, "9" * 5000
    assert parse_arguments(f'{{"n": {long}}}') == {"n": int(long)}
    assert parse_arguments(f"n: {long}") == {"n": int(long)}
    assert parse_arguments(f"n: {longer}") == {"n": longer}
    assert parse_arguments(f'{{"n": {longer}}}') == {"input": f'{{"n": {longer}}}'}
    assert outcome(f'{{"n": {longer}}}', SCHEMAS["search"]) == "reject"


def test_lone_surrogates_are_rejected() -> None:
    for text in ('{"a": "\\ud800"}', '{"\\udfff": 1}', "\ud800", "a: \udfff", "{'a': '\ud800'}", '"\\ud800"'):
        assert outcome(text, None) == "reject"
    assert parse_arguments("{'a': '\\ud83d\\ude00'}") == {"a": "😀"}


@pytest.mark.parametrize(
    "part", [{}, {"type": "string"}, {"pattern": "a"}, {"minLength": 3}, {"enum": ["a"]}, {"type": "integer"}]
)
@pytest.mark.parametrize("keyword", ["properties", "additionalProperties", "propertyNames", "patternProperties"])
def test_lone_surrogates_never_reach_the_validator(part: dict[str, Any], keyword: str) -> None:
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


SIGNS = [
    *"[{]}\"',:=\\#`“( \n\u00a0é\x00",
    "[]",
    "{}",
    "[[],",
    '\\"',
    "\\\\",
    "//",
    "/*",
    "*/",
    "```",
    "~~~",
    "{{",
    "...",
]
PAIRS = [
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
]
YAML = ["# ", "a:\n", "- a\n", "a: |\n ", " a: b\n"]
JSON = ["a(b=", "1,", "true,", '{"a":1,', "['a',", '["a",', "\\u", "\\ud800"]
MARKUP = ["```json\n", "<a>", "Action Input: ", "<arguments>", "<think>", "</s>", "// a\n"]
HOSTILE = [*SIGNS, *PAIRS, *YAML, *JSON, *MARKUP]


BEGINNINGS = ["", '{"query": "x", "names": [', "query: ", '"', "```json\n", '{"query": "', "a:\n  - b\nquery: "]


def cpu_s(text: str, schema: dict[str, Any] | None) -> float:
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        outcome(text, schema)
        best = min(best, time.process_time() - begin)
    return best


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_time_is_linear_in_the_text(beginning: str) -> None:
    schema = SCHEMAS["search"]
    for seed in HOSTILE:
        small, large = (beginning + seed * (size // len(seed)) for size in (8_000, 64_000))
        few, many = cpu_s(small, schema), cpu_s(large, schema)
        # Eight times the text: linear is 8, quadratic is 64. What is too quick to measure is quick enough.
        assert many < max(24 * few, 0.05), (beginning, seed, few, many)


@pytest.mark.parametrize("seed", ["[", '"', ",", ":", "\\", "{'a':", "```\n", "a: b, "])
def test_a_megabyte_of_one_sign_is_survived(seed: str) -> None:
    for schema in (None, SCHEMAS["search"]):
        outcome(seed * (1_000_000 // len(seed)), schema)


def test_the_limits_of_yaml_and_pairs() -> None:
    pairs = [f"k{n}: {n}" for n in range(301)]
    assert len(parse_arguments("\n".join(pairs[:300]))) == 300
    assert list(parse_arguments("\n".join(pairs))) == ["input"]
    yaml = "\n".join(["a:", *["- b"] * 16_383])
    assert list(parse_arguments(yaml)) == ["a"]
    assert list(parse_arguments(yaml + "\n- b")) == ["input"]
    broken = [f"k{n}: [a {n}" for n in range(9)]
    assert len(parse_arguments("\n".join(broken[:8]))) == 8
    assert list(parse_arguments("\n".join(broken))) == ["input"]


def test_a_rejection_is_bounded() -> None:
    wide = {"type": "object", "properties": {f"p{n}_{'x' * 300}": {"enum": ["y" * 500] * 50} for n in range(500)}}
    wide["required"] = list(wide["properties"])
    wide["additionalProperties"] = False
    for text in (json.dumps({"a" * 1000: "b" * 10_000}), "x" * 100_000, json.dumps({f"k{n}": n for n in range(1000)})):
        with pytest.raises(ArgumentsError) as refused:
            parse_arguments(text, wide)
        assert len(str(refused.value)) < 12_000
