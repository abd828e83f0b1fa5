"""OpenAI's own client, with the tools of real MCP servers, at a provider that refuses what OpenAI refuses."""

import asyncio
import json
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from tarsy_tasks import AsyncToolExecutor, ToolExecutor
from tarsy_tasks.adapters.openai import openai_response_tools, openai_tools
from tests.adapters.provider import Provider
from tests.servers.unusual_tools import HTML, LONG_NAME, TOOLS


def chat(*calls: tuple[str, str], text: str | None = None) -> dict[str, Any]:
    tool_calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, "tool_calls": tool_calls or None}
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def response(*items: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "r",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "output": list(items),
        "status": "completed",
    }


def function_call(number: int, name: str, arguments: str) -> dict[str, Any]:
    item = {"type": "function_call", "id": f"fc_{number}", "status": "completed", "name": name}
    return item | {"call_id": f"call_{number}", "arguments": arguments}


def run_chat(provider: Provider, executor: ToolExecutor, *script: dict[str, Any]) -> list[Any]:
    """A conversation with this script; its messages."""
    provider.script = [*script]
    tools = openai_tools(executor)
    messages: list[Any] = [{"role": "user", "content": "Go."}]
    with OpenAI(base_url=provider.url, api_key="none", max_retries=0) as client:
        while True:
            message = client.chat.completions.create(model="m", messages=messages, tools=tools).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return messages
            messages += tools.run(message.tool_calls)


def test_a_model_calls_tools_in_chat_completions(provider: Provider, desk: ToolExecutor) -> None:
    asked = chat(("desk__echo", '{"text": "hello"}'), ("desk__order", '{"item": "unicorn", "count": 1}'))
    _, _, echoed, ordered, last = run_chat(provider, desk, asked, chat(text="Done."))
    assert echoed == {"role": "tool", "tool_call_id": "call_0", "content": "hello"}
    assert ordered["tool_call_id"] == "call_1"
    assert "unicorns are sold out" in ordered["content"]
    assert last.content == "Done."
    assert [message["role"] for message in provider.requests[1]["messages"]] == ["user", "assistant", "tool", "tool"]


def test_the_responses_api_gets_images_and_documents(provider: Provider, unusual: ToolExecutor) -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    provider.script = [response(reasoning, function_call(1, "unusual__media", "{}")), response()]
    tools = openai_response_tools(unusual)
    items: list[Any] = [{"role": "user", "content": "Go."}]
    with OpenAI(base_url=provider.url, api_key="none", max_retries=0) as client:
        first = client.responses.create(model="m", input=items, tools=tools)
        items += first.output
        items += tools.run(first.output)
        client.responses.create(model="m", input=items, tools=tools)
    output = provider.requests[1]["input"][-1]
    assert (output["type"], output["call_id"]) == ("function_call_output", "call_1")
    said, image, document = output["output"]
    assert said["text"].startswith("three media\n[image/png, 70 B]")
    assert said["text"].endswith("[left out, because this model cannot read it as the result of a tool: 1 × audio/wav]")
    assert image["image_url"].startswith("data:image/png;base64,iVBOR")
    assert (document["type"], document["filename"]) == ("input_file", "result-2.pdf")
    assert all(tool["strict"] is False for tool in provider.requests[0]["tools"])


def test_an_asyncio_agent_does_the_same(provider: Provider) -> None:
    async def converse() -> tuple[list[Any], list[Any]]:
        async with (
            AsyncToolExecutor(["desk"], timeout_s=20) as executor,
            AsyncOpenAI(base_url=provider.url, api_key="none", max_retries=0) as client,
        ):
            tools = await openai_tools(executor)
            asked = await client.chat.completions.create(model="m", messages=[], tools=tools)
            also = await openai_response_tools(executor)
            return await tools.run(asked.choices[0].message.tool_calls), await also.run(None)

    provider.script = [chat(("desk__echo", '{"text": "hello"}'))]
    answers, nothing = asyncio.run(converse())
    assert [answer["content"] for answer in answers] == ["hello"]
    assert nothing == []


def test_images_become_a_sentence_in_chat_completions(provider: Provider, unusual: ToolExecutor) -> None:
    *_, answer, _ = run_chat(provider, unusual, chat(("unusual__media", "{}")), chat(text="Seen."))
    left_out = "1 × image/png, 1 × application/pdf, 1 × audio/wav"
    assert answer["content"].endswith(
        f"[left out, because this model cannot read it as the result of a tool: {left_out}]"
    )


def test_a_schema_that_openai_refuses_is_fixed(unusual: ToolExecutor) -> None:
    tools = openai_tools(unusual)
    found = {tool["function"]["name"]: tool["function"] for tool in tools}
    assert found["unusual__bare"]["parameters"] == {"type": "object", "properties": {}}
    assert len(found["unusual__bare"]["description"]) == 1024
    either = found["unusual__either"]
    assert either["parameters"]["properties"] == {"path": {"type": "string"}, "url": {"type": "string"}}
    assert either["description"].endswith(" Give `path`, or `url`.")
    assert found["unusual__referring"]["parameters"]["properties"] == {"path": {"type": "string"}}
    assert found["unusual__listing"]["parameters"]["properties"]["names"] == {"type": "array", "items": {}}
    assert tools.left_out == {"unusual.lost": "its schema refers to '#/$defs/Nowhere', which is not in it"}


def test_names_are_mapped_there_and_back(provider: Provider, unusual: ToolExecutor) -> None:
    long, html = [
        tool.function_name() for tool in unusual.list_tools() if tool.tool == LONG_NAME or tool.tool not in TOOLS
    ]
    asked = chat((long, '{"path": "/"}'), (html, json.dumps({HTML: HTML})))
    *_, listed, said, _ = run_chat(provider, unusual, asked, chat(text="Done."))
    assert json.loads(listed["content"]) == {"path": "/"}
    assert json.loads(said["content"]) == {HTML: HTML}


def test_too_many_tools_are_named_before_the_request() -> None:
    with ToolExecutor(["desk", "many"], timeout_s=20) as tools:
        with pytest.raises(
            ValueError, match=r"takes 128 tools .* there are 505 \(desk 5, many 500\): select"
        ) as caught:
            openai_tools(tools)
        assert "tool_filter" in str(caught.value)
    chosen = {"many": [f"t{number}" for number in range(128)]}
    with ToolExecutor(["many"], tool_filter=chosen, timeout_s=20) as tools:
        assert len(openai_tools(tools)) == 128


@pytest.mark.parametrize(
    ("name", "near"),
    [("desk__ecko", "desk__echo"), ("echo", "desk__echo"), ("", "desk__"), ("\ud83d" + HTML, "desk__")],
)
def test_an_unknown_tool_is_answered_with_the_offered_names(desk: ToolExecutor, name: str, near: str) -> None:
    [answer] = openai_tools(desk).run([{"id": "1", "function": {"name": name, "arguments": "{}"}}])
    assert "Nothing was sent. Tools" in answer["content"]
    assert near in answer["content"]
    assert "desk." not in answer["content"]


def test_broken_json_reaches_the_repair_of_the_worker(desk: ToolExecutor) -> None:
    texts = ["{'item': 'lamp', 'count': '3',}", '{"item": "lamp", "count": NaN}', '{"item": "\ud83d"}', None]
    calls = [{"id": "1", "function": {"name": "desk__quote", "arguments": text}} for text in texts]
    repaired, *rejected = [answer["content"] for answer in openai_tools(desk).run(calls)]
    assert json.loads(repaired) == {"item": "lamp", "count": 3, "total": 13.5}
    assert all("Nothing was sent" in text for text in rejected)


def test_what_is_no_call_of_a_function_is_skipped(desk: ToolExecutor) -> None:
    custom = {"id": "1", "type": "custom", "custom": {"name": "x", "input": "y"}}
    assert openai_tools(desk).run([custom]) == openai_tools(desk).run(None) == []
    assert openai_response_tools(desk).run([{"type": "message"}]) == []


def test_the_prompt_names_tools_as_they_are_offered(desk: ToolExecutor) -> None:
    tools = openai_tools(desk)
    assert "Instructions for `desk__echo`" in tools.prompt_section()
    assert tools.failed_servers == {}
