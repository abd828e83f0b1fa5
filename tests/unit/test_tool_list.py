"""The list of tools that an agent gets: a sequence, and a text for a system prompt."""

import pytest

from tarsy_tasks import ToolDefinition, ToolList

LONG = "list_" + "very_" * 20 + "long"


def tool(server: str, name: str) -> ToolDefinition:
    schema = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}
    return ToolDefinition(name=f"{server}.{name}", server=server, tool=name, description="Acts.", input_schema=schema)


@pytest.fixture
def listed() -> ToolList:
    return ToolList(
        [tool("desk", "echo"), tool("desk", LONG), tool("shop", "find")], {"bank": "it is down"}, {"desk": "Be brief."}
    )


def test_a_list_of_tools_is_a_sequence(listed: ToolList) -> None:
    names = [each.tool for each in listed]
    assert names == ["echo", LONG, "find"]
    assert (len(listed), listed[0].tool, listed[-1].tool) == (3, "echo", "find")
    assert [each.tool for each in listed[1:]] == [LONG, "find"]
    assert tool("shop", "find") in listed
    assert "desk.echo" in repr(listed)


def test_lists_of_the_same_tools_are_equal(listed: ToolList) -> None:
    tools = list(listed)
    assert listed == tools == listed
    assert listed == tuple(tools)
    assert listed == ToolList(tools, listed.failed_servers, listed.instructions)
    assert listed != ToolList(tools, {}, listed.instructions)
    assert listed != tools[1:]
    assert listed != "desk.echo"
    assert not ToolList([], {}, {})


def test_the_prompt_describes_tools_and_failed_servers(listed: ToolList) -> None:
    section = listed.prompt_section()
    assert "## desk\n> Be brief.\n\n- `desk.echo(a, b?)`: Acts." in section
    assert "`shop.find(a, b?)`" in section
    assert section.endswith("## Not available now\n- bank: it is down")


def test_without_tools_the_prompt_has_only_the_rest(listed: ToolList) -> None:
    assert listed.prompt_section(tools=False) == (
        "# Tools\n\n"
        f"## desk\nInstructions for `desk__echo`, `{listed[1].function_name()}`:\n\n> Be brief.\n\n"
        "## Not available now\n- bank: it is down"
    )


def test_the_prompt_names_tools_as_they_are_offered(listed: ToolList) -> None:
    short = listed.prompt_section(name_of=lambda each: each.function_name(limit=30))
    assert f"`{listed[1].function_name(30)}(a, b?)`" in short
    assert LONG not in short
    assert "`desk.echo`" in listed.prompt_section(tools=False, name_of=lambda each: each.name)


def test_without_tools_there_may_be_nothing_to_say() -> None:
    assert ToolList([tool("desk", "echo")], {}, {}).prompt_section(tools=False) == ""
