"""A check lists the tools of a server every few seconds: what it said before is not masked again."""

import asyncio
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
from mcp_types import ListToolsResult

from tarsy_tasks.masking.edits import MASK
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.maskers import build_masker, known_secrets
from tarsy_tasks.worker.sessions.listing import ListedTools, list_all_tools
from tarsy_tasks.worker.transport.tool_check import leave_out_invalid

VERSION = "2025-11-25"
SECRET = "seven-quiet-otters-swim"
MASKER = build_masker()


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def list_tools(*pages: list[dict[str, Any]], before: ListedTools | None = None) -> ListedTools:
    async def fetch(params: Any = None) -> ListToolsResult:
        number = int(params.cursor) if params else 0
        result: dict[str, Any] = {"tools": deepcopy(pages[number])}
        if number + 1 < len(pages):
            result["nextCursor"] = str(number + 1)
        leave_out_invalid(result, VERSION)
        return ListToolsResult.model_validate(result, by_name=False)

    async def run() -> ListedTools:
        client: Any = SimpleNamespace(
            server_capabilities=SimpleNamespace(tools=True), session=SimpleNamespace(list_tools=fetch)
        )
        return await list_all_tools(client, "desk", MASKER, LongWork(), before)

    return asyncio.run(run())


@pytest.mark.parametrize("pages", [[[tool("a"), tool("b")]], [[tool("a")], [tool("b")]], [[tool("a"), {"name": 1}]]])
def test_the_same_tools_are_taken_from_before(pages: list[list[dict[str, Any]]]) -> None:
    before = list_tools(*pages)
    assert list_tools(*pages, before=before) is before


@pytest.mark.parametrize("now", [[tool("a"), tool("c")], [tool("b"), tool("a")], [tool("a")], [tool("a"), {"name": 1}]])
def test_other_tools_replace_those_from_before(now: list[dict[str, Any]]) -> None:
    found = list_tools(now, before=list_tools([tool("a"), tool("b")]))
    assert [*found.tools] == [each["name"] for each in now if "inputSchema" in each]
    assert bool(found.left_out) == (len(found.tools) < len(now))


def test_a_secret_that_became_known_is_masked() -> None:
    tools = [tool("a", description=f"Ask {SECRET}.")]
    before = list_tools(tools)
    assert SECRET in before.tools["a"].description
    known_secrets.add([SECRET])
    assert list_tools(tools, before=before).tools["a"].description == f"Ask {MASK}."


def test_a_server_cannot_say_that_nothing_has_changed() -> None:
    result: dict[str, Any] = {"tools": [tool("a")], "_meta": {"tarsy-tasks/digest": "mine", "theirs": 1}}
    leave_out_invalid(result, VERSION)
    assert result["_meta"]["tarsy-tasks/digest"] != "mine"
    assert result["_meta"]["theirs"] == 1
