"""The OpenAI Agents SDK on its own scripted model, with the tools of real MCP servers."""

import asyncio
import json
from typing import Any

import pytest
from agents import Agent, Runner, RunResult
from agents.testing import ScriptedModel, assistant_message, function_call

from tarsy_tasks import AsyncToolExecutor
from tarsy_tasks.adapters.openai_agents import AgentTools, agent_tools


def run(servers: list[str], *asked: tuple[str, str]) -> tuple[AgentTools, list[Any]]:
    """An agent whose model asks for these calls at once; its tools, and what the model read."""

    async def converse() -> tuple[AgentTools, RunResult]:
        async with AsyncToolExecutor(servers, timeout_s=20) as executor:
            tools = await agent_tools(executor)
            calls = [
                function_call(name, arguments, call_id=str(number)) for number, (name, arguments) in enumerate(asked)
            ]
            model = ScriptedModel([calls, [assistant_message("Done.")]])
            agent = Agent(name="tester", model=model, tools=[*tools], instructions=tools.prompt_section())
            tools.run_config.tracing_disabled = True
            return tools, await Runner.run(agent, "Go.", run_config=tools.run_config)

    tools, result = asyncio.run(converse())
    assert result.final_output == "Done."
    items = [item for item in result.to_input_list() if item.get("type") == "function_call_output"]
    return tools, [item["output"] for item in sorted(items, key=lambda item: item["call_id"])]


def test_an_agent_calls_tools() -> None:
    _, outputs = run(
        ["desk"],
        ("desk__echo", '{"text": "hello"}'),
        ("desk__order", '{"item": "unicorn", "count": 1}'),
        ("desk__quote", "{'item': 'lamp', 'count': '3',}"),
        ("desk__ecko", "{}"),
    )
    echoed, ordered, repaired, unknown = outputs
    assert echoed == "hello"
    assert "sold out" in ordered
    assert json.loads(repaired)["total"] == 13.5, "broken JSON is repaired"
    assert "closest first: desk__echo" in unknown


def test_images_and_documents_are_part_of_the_output() -> None:
    tools, [output] = run(["unusual"], ("unusual__media", ""))
    assert [part["type"] for part in output] == ["input_text", "input_image", "input_file"]
    assert tools.left_out.keys() == {"unusual.lost"}
    assert all(tool.strict_json_schema is False for tool in tools)


def test_too_many_tools_are_named() -> None:
    with pytest.raises(ValueError, match="there are 500"):
        run(["many"])
