"""What adapters do without a worker: schemas for each provider, what is imported, what a missing framework says."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tarsy_tasks
from tarsy_tasks import ToolDefinition, ToolList, ToolResult
from tarsy_tasks.adapters.offer import build_offer
from tarsy_tasks.adapters.providers import ANTHROPIC, ANY, GEMINI, OPENAI, Provider, UnfitTool, fit_schema
from tests.source import parse

ADAPTERS = Path(tarsy_tasks.__file__).parent / "adapters"
A, B = {"a": {"type": "string"}}, {"b": {"type": "integer"}}
FRAMEWORKS = {
    "openai": ("openai", "openai", "openai"),
    "anthropic": ("anthropic", "anthropic", "anthropic"),
    "openai_agents": ("agents", "openai-agents", "openai-agents"),
    "gemini": ("google.genai", "gemini", "google-genai"),
    "langchain": ("langchain_core", "langchain", "langchain-core"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai", "pydantic-ai-slim"),
}
"""Of each adapter: the module that it imports, the extra, and the name for pip."""


@pytest.mark.parametrize("provider", [OPENAI, ANTHROPIC, GEMINI, ANY], ids=lambda provider: provider.name)
@pytest.mark.parametrize(
    ("schema", "properties", "required", "hint"),
    [
        ({}, {}, None, ""),
        ({"type": ["object", "null"], "properties": A}, A, None, ""),
        ({"allOf": [{"properties": A, "required": ["a"]}, {"properties": B}]}, {**A, **B}, ["a"], ""),
        (
            {"properties": {**A, **B}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {**A, **B},
            None,
            "`a`, or `b`",
        ),
        (
            {
                "properties": A,
                "required": ["a"],
                "oneOf": [
                    {"properties": {**B, "c": {}}, "required": ["a", "b", "c"]},
                    {"properties": {**B, "d": {}}, "required": ["b", "d"]},
                ],
            },
            {**A, **B, "c": {}, "d": {}},
            ["a", "b"],
            "`c`, or `d`",
        ),
        ({"oneOf": [{"properties": A}, {"properties": {"a": {"type": "number"}}}]}, None, None, ""),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"allOf": [{"$ref": "#/$defs/y"}]}, "y": {"properties": A}}},
            A,
            None,
            "",
        ),
        ({"properties": A, "not": {"required": ["b"]}, "enum": [{"a": "x"}], "oneOf": [True, "?"]}, A, None, ""),
        ({"anyOf": [{"properties": A, "required": ["a"]}]}, A, ["a"], ""),
    ],
)
def test_combinations_at_the_root_become_one_object(
    provider: Provider, schema: dict[str, Any], properties: Any, required: Any, hint: str
) -> None:
    found, said = fit_schema(schema, provider)
    assert found["type"] == "object"
    assert found["properties"] == properties or properties is None
    assert found.get("required") == required
    assert hint in said
    assert {"$ref", "allOf", "anyOf", "enum", "not", "oneOf"}.isdisjoint(found)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "string"}, "not an object but 'string'"),
        ({"$ref": "other.json"}, "refers to 'other.json'"),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}, "refers to itself"),
        ({"properties": {"a": {"items": {"items": {}}}}}, None),
    ],
)
def test_what_cannot_be_put_right_is_named(schema: dict[str, Any], why: str | None) -> None:
    if why is None:
        for _ in range(5000):
            schema = {"properties": {"a": schema}}
        why = "nested more than 64 levels"
    with pytest.raises(UnfitTool, match=why):
        fit_schema(schema, OPENAI)


def test_gemini_gets_only_keywords_that_it_knows() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "T",
        "properties": {
            "kind": {"const": "pod", "title": "Kind"},
            "flag": {"const": True},
            "mail": {"type": ["string", "null"], "format": "email", "minLength": 3, "description": "whose"},
            "place": {"$ref": "#/$defs/Place", "description": "where"},
            "both": {"allOf": [{"type": "object", "properties": A}, {"properties": B}]},
            "any": True,
            "count": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9},
            "again": {"$ref": "#/properties/kind"},
            "tree": {"$ref": "#/definitions/Tree"},
        },
        "required": ["kind", "gone"],
        "definitions": {"Tree": {"type": "array", "items": {"$ref": "#/definitions/Tree"}}},
        "$defs": {"Place": {"type": "string", "format": "uri"}},
    }
    found, _ = fit_schema(schema, GEMINI)
    assert found == {
        "type": "object",
        "properties": {
            "kind": {"enum": ["pod"]},
            "flag": {},
            "mail": {"type": ["string", "null"], "format": "email", "description": "whose"},
            "place": {"$ref": "#/$defs/Place"},
            "both": {"type": "object", "properties": {**A, **B}},
            "any": {},
            "count": {"type": "integer", "maximum": 9},
            "again": {"enum": ["pod"]},
            "tree": {"type": "array", "items": {}},
        },
        "required": ["kind"],
        "$defs": {"Place": {"type": "string"}},
    }


NAMES = st.sampled_from("abc")
PLAIN = st.fixed_dictionaries(
    {},
    optional={
        "type": st.just("object"),
        "properties": st.dictionaries(NAMES, st.just({})),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "additionalProperties": st.booleans(),
        "not": st.builds(lambda name: {"required": [name]}, NAMES),
    },
)
SCHEMAS = st.recursive(
    PLAIN,
    lambda inner: st.builds(
        lambda base, keyword, branches: {**base, keyword: branches},
        PLAIN,
        st.sampled_from(["allOf", "anyOf", "oneOf"]),
        st.lists(st.one_of(inner, st.booleans()), min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@given(SCHEMAS, st.dictionaries(NAMES, st.one_of(st.integers(0, 9), st.just("x"))))
def test_a_changed_schema_requires_nothing_more(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    is_taken = jsonschema.Draft202012Validator(schema).is_valid(arguments)
    for provider in (OPENAI, ANTHROPIC, GEMINI):
        found, _ = fit_schema(schema, provider)
        assert not is_taken or jsonschema.Draft202012Validator(found).is_valid(arguments)


def test_a_description_is_cut_before_what_belongs_together() -> None:
    schema = {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    long = ToolDefinition(name="s.t", server="s", tool="t", description="x" * 5000, input_schema=schema)
    untold = ToolDefinition(name="s.u", server="s", tool="u", annotations={"title": "Title"})
    offer = build_offer(ToolList([long, untold], {}, {}), OPENAI)
    description = offer.tools["s__t"].description
    assert (len(description), description[-18:]) == (1024, "… Give `a`, or `b`."[-18:])
    assert offer.tools["s__u"].description == "Title"
    assert len(build_offer(ToolList([long], {}, {}), ANTHROPIC).tools["s__t"].description) > 5000


def test_references_that_multiply_are_refused() -> None:
    pairs = {f"d{number}": {"items": {"$ref": f"#/definitions/d{number + 1}"}} for number in range(40)}
    for number, each in enumerate(pairs.values()):
        each["anyOf"] = [{"$ref": f"#/definitions/d{number + 1}"}] * 2
    schema = {"properties": {"a": {"$ref": "#/definitions/d0"}}, "definitions": {**pairs, "d40": {}}}
    for unfit in (schema, {"$ref": "#/definitions/d0", "definitions": schema["definitions"]}):
        with pytest.raises(UnfitTool, match="more than 10000 parts"):
            fit_schema(unfit, GEMINI)


def test_only_what_is_offered_is_explained() -> None:
    lost = ToolDefinition(name="s.t", server="s", tool="t", input_schema={"$ref": "#/x"})
    kept = ToolDefinition(name="s.u", server="s", tool="u")
    offer = build_offer(ToolList([lost, kept], {"bank": "it is down"}, {"s": "Be brief."}), OPENAI)
    assert offer.left_out == {"s.t": "its schema refers to '#/x', which is not in it"}
    assert "Instructions for `s__u`:" in offer.prompt_section()
    assert offer.prompt_section().endswith("- bank: it is down")


def test_a_tool_that_is_gone_is_not_suggested_again() -> None:
    offer = build_offer(ToolList([ToolDefinition(name="s.t", server="s", tool="t")], {}, {}), OPENAI)
    gone = ToolResult(call_id="", name="s.t", content="gone", outcome="rejected", error_code="UNKNOWN_TOOL")
    assert offer.read_result(gone, "s__t").content == "gone"
    assert "closest first: s__t" in offer.read_result(gone, "s__u").content


def test_without_tools_nothing_is_offered() -> None:
    offer = build_offer(ToolList([], {"bank": "it is down"}, {}), OPENAI)
    assert offer.tools == {}
    assert offer.reject("x" * 1000) == f"The tool {'x' * 80!r} does not exist. Nothing was sent. No tools are offered."


def test_a_missing_framework_is_one_sentence_with_the_command() -> None:
    code = f"""
import importlib, sys
sys.modules |= dict.fromkeys({[module for module, _, _ in FRAMEWORKS.values()]!r})
for name in {[*FRAMEWORKS]!r}:
    try:
        importlib.import_module(f"tarsy_tasks.adapters.{{name}}")
    except ImportError as error:
        print(error)
    else:
        print("imported")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for (module, extra, distribution), said in zip(FRAMEWORKS.values(), done.stdout.splitlines(), strict=True):
        if module in ("openai", "anthropic"):
            assert said == "imported", "it needs the framework for its types only"
        else:
            assert said.startswith(f"{distribution} ")
            assert said.endswith(f": run `pip install 'tarsy-tasks[{extra}]'`")


def test_adapters_use_public_names_only() -> None:
    for path in ADAPTERS.glob("*.py"):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tarsy_tasks"):
                if node.module == "tarsy_tasks":
                    assert {name.name for name in node.names} <= set(tarsy_tasks.__all__), path.name
                else:
                    assert node.module.startswith("tarsy_tasks.adapters."), f"{path.name}: {node.module}"
