"""Anthropic's own client, with the tools of real MCP servers, at a provider that refuses what Anthropic refuses."""

import asyncio
from typing import Any

import pytest
from anthropic import Anthropic

from tarsy_tasks import AsyncToolExecutor, ToolExecutor
from tarsy_tasks.adapters.anthropic import anthropic_tools
from tests.adapters.provider import Provider


def message(*blocks: dict[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    return {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": list(blocks), "usage": usage}


def tool_use(number: int, name: str, **arguments: object) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}


def converse(provider: Provider, executor: ToolExecutor, *script: dict[str, Any]) -> list[Any]:
    """A conversation with this script; its messages."""
    provider.script = [*script]
    tools = anthropic_tools(executor)
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    with Anthropic(base_url=provider.url, api_key="none", max_retries=0) as client:
        while True:
            answer = client.messages.create(model="m", max_tokens=100, messages=messages, tools=tools)
            messages.append({"role": "assistant", "content": answer.content})
            results = tools.run(answer.content)
            if not results:
                return messages
            messages += results


def test_results_come_back_in_one_message_with_their_errors(provider: Provider, desk: ToolExecutor) -> None:
    asked = message(
        {"type": "text", "text": "I order."},
        tool_use(1, "desk__order", item="lamp", count="2"),
        tool_use(2, "desk__order", item="unicorn", count=1),
        tool_use(3, "desk__odrer", item="lamp"),
    )
    _, _, results, _ = converse(provider, desk, asked, message({"type": "text", "text": "Done."}))
    assert results["role"] == "user"
    assert [block["tool_use_id"] for block in results["content"]] == ["toolu_1", "toolu_2", "toolu_3"]
    assert [block["is_error"] for block in results["content"]] == [False, True, True]
    ordered, sold_out, unknown = (block["content"][0]["text"] for block in results["content"])
    assert ordered == "ordered 2 × lamp"
    assert "sold out" in sold_out
    assert "closest first: desk__order" in unknown


def test_images_and_documents_are_blocks_of_the_result(provider: Provider, unusual: ToolExecutor) -> None:
    _, _, results, _ = converse(provider, unusual, message(tool_use(1, "unusual__media")), message())
    text, image, document = results["content"][0]["content"]
    assert "1 × audio/wav" in text["text"]
    assert (image["type"], image["source"]["media_type"]) == ("image", "image/png")
    assert (document["type"], document["source"]["media_type"]) == ("document", "application/pdf")


def test_a_parameter_that_anthropic_refuses_is_named(unusual: ToolExecutor) -> None:
    tools = anthropic_tools(unusual)
    assert tools.left_out["unusual.spaced"] == "Anthropic refuses the name of its parameter 'a path'"
    names = [tool["name"] for tool in tools]
    assert "unusual__spaced" not in names
    html = next(tool for tool in tools if tool["name"].startswith("unusual__img"))
    assert html["input_schema"]["properties"] == {}, "it is optional, and its name is HTML"


@pytest.mark.parametrize("arguments", ["{'item': 'lamp'}", {"item": "lamp", "count": float("nan")}, None, [1]])
def test_odd_arguments_are_read_or_rejected(desk: ToolExecutor, arguments: object) -> None:
    block = {"type": "tool_use", "id": "1", "name": "desk__quote", "input": arguments}
    [results] = anthropic_tools(desk).run([block])
    [result] = results["content"]
    assert result["is_error"] is (arguments != "{'item': 'lamp'}")


def test_an_asyncio_agent_may_offer_500_tools() -> None:
    async def run() -> tuple[int, str]:
        async with AsyncToolExecutor(["many"], timeout_s=20) as executor:
            tools = await anthropic_tools(executor)
            [results] = await tools.run([tool_use(1, "many__t499", text="hello")])
            [block] = results["content"]
            return len(tools), block["content"][0]["text"]

    assert asyncio.run(run()) == (500, '{"text": "hello"}')
