"""`search_tools` and `call_tool`, without a worker: what they find, what they call, how adapters offer them."""

import asyncio
import json
from typing import Any

import pytest

from tarsy_tasks import ErrorCode, Outcome, ToolCall, ToolDefinition, ToolList
from tarsy_tasks.adapters.anthropic import anthropic_tools
from tarsy_tasks.adapters.openai import openai_response_tools, openai_tools
from tarsy_tasks.testing import AsyncStubToolExecutor, StubToolExecutor

PODS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "namespace": {"type": "string", "description": "Where\nthey are"},
        "limit": {"type": ["integer", "null"]},
        "sort": {"enum": ["name", "age"]},
        "filters": {"type": "array", "items": {"$ref": "#/$defs/filter"}},
        "any": {},
    },
    "required": ["namespace"],
    "$defs": {"filter": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}},
}


SIGNATURE = 'k8s.pods_list(namespace: str, limit?: int|null, sort?: "name"|"age", filters?: {key: str}[], any?: any)'


def tool(name: str, description: str, schema: dict[str, Any] | None = None) -> ToolDefinition:
    server, _, own = name.partition(".")
    return ToolDefinition(name=name, server=server, tool=own, description=description, input_schema=schema or {})


TOOLS = [
    tool("k8s.pods_list", "List the pods of a namespace.", PODS),
    tool("k8s.pods_delete", "Delete a pod."),
    tool("mail.send", "Send a message.", {"properties": {"call_tool": {}, "name": {}, "arguments": {}}}),
]


def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


ANSWERS: dict[str, Any] = {"k8s.pods_list": echo, "k8s.pods_delete": ErrorCode.TOOL_ERROR, "mail.send": echo}


def stub(**more: Any) -> StubToolExecutor:
    return StubToolExecutor(ANSWERS, tools=TOOLS, **more)


def test_a_search_shows_how_tools_are_called() -> None:
    with stub(instructions={"k8s": "Ask\nfirst.", "mail": "Never."}, failed_servers={"bank": "it is down"}) as tools:
        result = tools.execute(ToolCall(name="search_tools", arguments={"query": "list pods", "limit": 1}, id="c1"))
        assert tools.calls == []
    assert (result.outcome, result.call_id, result.tool, result.attempts) == (Outcome.OK, "c1", "search_tools", 0)
    assert result.content.splitlines() == [
        f"{SIGNATURE}: List the pods of a namespace.",
        "  namespace: Where they are",
        "How to use k8s: Ask first.",
        "Not searched, because they are unavailable: bank (it is down)",
    ]
    assert result.structured == {
        "tools": [
            {
                "name": "k8s.pods_list",
                "description": "List the pods of a namespace.",
                "parameters": {
                    "namespace": "str; Where they are",
                    "limit?": "int|null",
                    "sort?": '"name"|"age"',
                    "filters?": "{key: str}[]",
                    "any?": "any",
                },
            }
        ]
    }


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("search_tools", '{"query": "delete a pod"}'),
        ("functions.search_tools", "delete a pod"),
        ("default_api:search_tools", {"query": "delete a pod", "limit": 0}),
        ("search_tools", {"query": "delete a pod", "limit": 10**9}),
        ("search_tools", {"query": "delete a pod" + " zebra" * 20_000}),
        ("search_tools", json.dumps({"query": "delete a pod" + " zebra" * 20_000})),
    ],
)
def test_a_search_is_read_as_models_write_it(name: str, arguments: Any) -> None:
    with stub() as tools:
        assert tools.execute(name, arguments).content.startswith("k8s.pods_delete(): Delete a pod.")


def test_a_search_that_finds_nothing_says_so() -> None:
    with stub() as tools:
        result = tools.execute("search_tools", {"query": "zebra\ncrossing"})
    assert (result.outcome, result.structured) == (Outcome.OK, {"tools": []})
    assert result.content == "No tool was found for 'zebra crossing'. Use other words, in English."


@pytest.mark.parametrize("called", ["k8s.pods_list", "k8s__pods_list", "k8s:pods_list", "mcp_k8s_pods_list"])
@pytest.mark.parametrize(
    "written",
    [
        '{{"name": "{0}", "arguments": {{"namespace": "x"}}}}',
        '{{"name": "{0}", "arguments": "namespace: x"}}',
        '{{"name": "{0}", "namespace": "x"}}',
        '```json\n{{"name": "{0}", "arguments": {{"namespace": "x",}}}}\n```',
    ],
)
def test_a_tool_that_was_found_is_called(called: str, written: str) -> None:
    with stub() as tools:
        result = tools.execute(ToolCall(name="functions.call_tool", arguments=written.format(called), id="c2"))
        assert (result.structured, result.call_id, result.name) == ({"namespace": "x"}, "c2", called)
        assert (result.server, result.tool) == ("k8s", "pods_list")
        assert [call.name for call in tools.calls] == ["k8s.pods_list"]


def test_arguments_with_the_same_names_stay_where_they_are() -> None:
    arguments = {"name": "Bob", "arguments": {"a": 1}, "call_tool": True}
    with stub() as tools:
        assert tools.execute("call_tool", {"name": "mail.send", "arguments": arguments}).structured == arguments


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ({"name": "k8s.pods"}, ErrorCode.UNKNOWN_TOOL, "closest first: k8s.pods_list"),
        ({"name": "pods_list"}, ErrorCode.INVALID_NAME, "write server.tool"),
        ({"name": "k8s.pods_list"}, ErrorCode.INVALID_ARGUMENTS, "`namespace` is missing"),
        ({"name": "k8s.pods_delete"}, ErrorCode.TOOL_ERROR, "The tool ran"),
        ({"arguments": {}}, ErrorCode.INVALID_ARGUMENTS, "`name` is missing"),
        (None, ErrorCode.INVALID_ARGUMENTS, "`name` is missing"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(arguments: Any, code: ErrorCode, text: str) -> None:
    with stub() as tools:
        result = tools.execute("call_tool", arguments)
    assert result.error_code is code
    assert text in result.content


def test_both_tools_run_in_every_method() -> None:
    async def run() -> list[Any]:
        async with AsyncStubToolExecutor(ANSWERS, tools=TOOLS) as tools:
            pending = await tools.submit("call_tool", {"name": "k8s.pods_list", "arguments": {"namespace": "y"}})
            found, called = await tools.execute_many(
                [("search_tools", "send a message"), ("call_tool", {"name": "mail.send"})]
            )
            return [(await pending.result()).structured, found.content.splitlines()[0], called.outcome]

    assert asyncio.run(run()) == [
        {"namespace": "y"},
        "mail.send(call_tool?: any, name?: any, arguments?: any): Send a message.",
        Outcome.OK,
    ]


def test_the_two_tools_stand_for_a_list() -> None:
    listed = ToolList(TOOLS, {"bank": "it is down"}, {"k8s": "Ask first."})
    two = listed.behind_search()
    assert [(each.name, each.function_name()) for each in two] == [
        ("search_tools", "search_tools"),
        ("call_tool", "call_tool"),
    ]
    assert "Tools: 3, of these servers: k8s (2), mail (1)." in two[0].description
    assert two.failed_servers == listed.failed_servers
    assert "## " not in two.prompt_section().partition("## Currently unavailable")[0]
    assert "- `search_tools(query, limit?)`" in two.prompt_section()
    assert len(ToolList([], {}, {}).behind_search()) == 2


def test_adapters_offer_the_two_tools() -> None:
    with stub() as tools:
        chat = openai_tools(tools, search=True)
        assert [each["function"]["name"] for each in chat] == ["search_tools", "call_tool"]
        assert [each["name"] for each in openai_response_tools(tools, search=True)] == ["search_tools", "call_tool"]
        anthropic = anthropic_tools(tools, search=True)
        assert [each["name"] for each in anthropic] == ["search_tools", "call_tool"]
        asked: list[dict[str, Any]] = [
            {"type": "tool_use", "id": "1", "name": "search_tools", "input": {"query": "list pods"}},
            {"type": "tool_use", "id": "2", "name": "call_tool", "input": {"name": "k8s.pod", "arguments": {}}},
            {"type": "tool_use", "id": "3", "name": "k8s__pods_delete", "input": {}},
        ]
        messages: list[Any] = anthropic.run(asked)
    found, unknown, failed = (block["content"][0]["text"] for block in messages[0]["content"])
    assert found.startswith("k8s.pods_list(namespace: str")
    assert "closest first: k8s.pods_list" in unknown
    assert "k8s.pods_delete" in failed
