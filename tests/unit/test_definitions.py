"""What a server says of its tools, without secrets."""

from typing import Any

import pytest
from mcp_types import Tool, ToolAnnotations

from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.masking.masker import build_masker
from tarsy_tasks.tool_names import function_name, listed_name, resolve_server, resolve_tool_name
from tarsy_tasks.worker.sessions.listing import ListedTools, ListingError, build_definition, choose_name

SECRET = "ghp_0123456789abcdefghij0123456789abcdef"
MASKER = build_masker()


def tool(name: str = "act", **more: Any) -> Tool:
    return Tool.model_validate({"name": name, "inputSchema": {"type": "object"}, **more})


def test_a_masked_definition_remains_a_valid_schema() -> None:
    schema = {
        "type": "object",
        "description": "password: hunter2-hunter2",
        "properties": {
            "password": {"type": "string", "description": "of the user", "default": "hunter2-hunter2"},
            "token": {"enum": ["none", "a1b2c3d4e5f6g7h8i9j0"], "examples": ["a1b2c3d4e5f6g7h8i9j0"]},
            "count": {"type": "integer", "minimum": 1},
        },
        "required": ["count"],
    }
    found = build_definition(
        "desk",
        "act",
        tool(
            description="token=a1b2c3d4e5f6g7h8i9j0",
            inputSchema=schema,
            annotations=ToolAnnotations(title="password=hunter2-hunter2", read_only_hint=True),
        ),
        MASKER,
    )
    assert found.input_schema == {
        "type": "object",
        "description": f"password: {MASK}",
        "properties": {
            "password": {"type": "string", "description": "of the user", "default": MASK},
            "token": {"enum": ["none", MASK], "examples": [MASK]},
            "count": {"type": "integer", "minimum": 1},
        },
        "required": ["count"],
    }
    assert (found.description, found.annotations["title"]) == (f"token={MASK}", f"password={MASK}")
    assert found.annotations["readOnlyHint"] is True


def test_a_definition_has_all_that_its_server_says() -> None:
    output = {"type": "object", "properties": {"password": {"const": "hunter2-hunter2"}}}
    found = build_definition(
        "desk",
        "act",
        tool(
            title="token=a1b2c3d4e5f6g7h8i9j0",
            outputSchema=output,
            icons=[{"src": "https://h/a.png", "mimeType": "image/png"}, {"src": "https://h/?api_key=hunter2x"}],
            _meta={"ui": {"resourceUri": "ui://a"}, "password": "hunter2-hunter2"},
            execution={"taskSupport": "optional"},
        ),
        MASKER,
    )
    assert found.title == f"token={MASK}"
    assert found.output_schema["properties"] == {"password": {"const": MASK}}
    assert found.icons == (
        {"src": "https://h/a.png", "mimeType": "image/png"},
        {"src": f"https://h/?api_key={MASK}"},
    )
    assert found.meta == {"ui": {"resourceUri": "ui://a"}, "password": MASK}
    assert found.execution == {"taskSupport": "optional"}


def test_long_icons_and_meta_are_left_out_and_the_tools_stay() -> None:
    long = {"_meta": {"a": "x" * 20_000}, "icons": [{"src": f"data:{'x' * 20_000}"}]}
    some = {"_meta": {"a": "x" * 15_000}}
    listed = ListedTools("desk", MASKER)
    listed.add([tool("long", **long), *(tool(f"t{number}", **some) for number in range(600))])
    assert (listed.tools["long"].meta, listed.tools["long"].icons) == ({}, ())
    kept = [bool(each.meta) for each in listed.tools.values()]
    assert (len(kept), kept[1], kept[-1], 60 < sum(kept) < 80) == (601, True, False, True)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ({"const": "hunter2-hunter2"}, {"const": MASK}),
        ({"example": "hunter2-hunter2"}, {"example": MASK}),
        ({"anyOf": [{"const": "hunter2-hunter2"}, {"type": "null"}]}, {"anyOf": [{"const": MASK}, {"type": "null"}]}),
        ({"items": {"oneOf": [{"enum": ["hunter2-hunter2"]}]}}, {"items": {"oneOf": [{"enum": [MASK]}]}}),
    ],
)
def test_a_password_is_masked_in_every_schema_value(written: dict[str, Any], shown: dict[str, Any]) -> None:
    found = build_definition("desk", "act", tool(inputSchema={"properties": {"password": written}}), MASKER)
    assert found.input_schema["properties"] == {"password": shown}


def test_a_schema_without_secrets_stays_as_it_is() -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string", "pattern": "^[a-z]{8,}$"}}}
    assert build_definition("desk", "act", tool(inputSchema=schema), MASKER).input_schema == schema


@pytest.mark.parametrize(
    ("taken", "expected"),
    [([], f"as-{MASK}"), ([f"as-{MASK}"], f"as-{MASK}-2"), ([f"as-{MASK}", f"as-{MASK}-2"], f"as-{MASK}-3")],
)
def test_tools_with_secrets_in_their_names_stay_distinct(taken: list[str], expected: str) -> None:
    assert choose_name(tool(f"as-{SECRET}"), MASKER, taken) == expected


def test_any_other_tool_keeps_its_name() -> None:
    assert choose_name(tool("get_password"), MASKER, ["get_password"]) == "get_password"


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("find the way", "find_the_way-e"),
        ("x\n\n## bank\n- `bank.pay", "x_bank_-_bank.pay-"),
        ("größe", "gr_e-"),
        ("\ud83d", "tool-"),
        ("", "tool-"),
        ("a" * 129, "a" * 64 + "-"),
    ],
)
def test_a_tool_without_a_valid_name_is_listed_under_an_alias(name: str, alias: str) -> None:
    found = choose_name(tool(name), MASKER, [])
    assert found.startswith(alias)
    assert found == choose_name(tool(name), MASKER, [])
    assert listed_name(found) == found
    assert resolve_server(f"desk.{found}", ["desk"]) == ("desk", found)
    assert resolve_tool_name(function_name("desk", found), {"desk": [found]}) == ("desk", found)
    assert choose_name(tool(name), MASKER, [found]) == f"{found}-2"


def test_a_long_description_is_masked_and_then_cut() -> None:
    found = build_definition("desk", "act", tool(description="x" * 16_370 + f" {SECRET} " + "y" * 5_000_000), MASKER)
    assert found.description.endswith("…")
    assert (len(found.description), SECRET[:10] in found.description) == (16 * 1024, False)


@pytest.mark.parametrize(
    "more",
    [
        {"outputSchema": {"type": "object", "description": "x" * 100_000}},
        {"inputSchema": {"type": "object", "description": "x" * 100_000}},
        {"inputSchema": {"type": "object", "default": {"password": "hunter2-" * 12_000}}},
        {"description": "x" * 16_000, "inputSchema": {"enum": [["x"] * 10] * 1000}},
    ],
)
def test_all_that_is_kept_of_a_list_of_tools_is_bounded(more: Any) -> None:
    listed = ListedTools("desk", MASKER)
    with pytest.raises(ListingError, match="definitions of more than 4194304 characters"):
        listed.add([tool(f"t{number}", **more) for number in range(300)])
    assert len(listed.tools) >= 20


def test_of_a_tool_with_secrets_only_what_a_call_needs_is_kept() -> None:
    listed = ListedTools("desk", MASKER)
    schema = {"type": "object", "default": {"password": "hunter2-hunter2"}}
    listed.add([tool(description="x" * 1_000_000, inputSchema=schema), tool("plain", description="y" * 1_000_000)])
    assert vars(listed.unmasked["act"]) == {"name": "act", "input_schema": schema}
    assert [*listed.unmasked] == ["act"]


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({}, True),
        ({"ui": {}}, True),
        ({"ui": "app"}, True),
        ({"ui": {"visibility": "app"}}, True),
        ({"ui": {"visibility": ["model", "app"]}}, True),
        ({"ui": {"visibility": ["app"]}}, False),
        ({"ui": {"visibility": []}}, False),
        ({"ui": {"visibility": ["app"]}, "page": "x" * 20_000}, False),
    ],
)
def test_tools_for_an_app_only_are_not_for_models(meta: dict[str, Any], expected: bool) -> None:
    assert build_definition("desk", "act", tool(_meta=meta), MASKER).is_for_models is expected


def test_tools_stay_for_an_app_only_among_many() -> None:
    listed = ListedTools("desk", MASKER)
    meta = {"ui": {"visibility": ["app"], "page": "x" * 15_000}}
    listed.add([tool(f"t{number}", _meta=meta) for number in range(100)])
    assert not any(each.is_for_models for each in listed.tools.values())
