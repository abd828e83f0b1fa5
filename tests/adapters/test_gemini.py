"""google-genai's own client, with the tools of real MCP servers, at a provider that refuses what Gemini refuses."""

import asyncio
from typing import Any

from google import genai
from google.genai import types

from tarsy_tasks import AsyncToolExecutor, ToolExecutor
from tarsy_tasks.adapters.gemini import gemini_tools
from tests.adapters.provider import Provider


def content(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP"}]}


def function_call(name: str, **arguments: object) -> dict[str, Any]:
    return {"functionCall": {"id": f"id of {name}", "name": name, "args": arguments}}


def converse(provider: Provider, executor: ToolExecutor, *script: dict[str, Any]) -> list[types.Content]:
    """A conversation with this script; its contents."""
    provider.script = [*script]
    tools = gemini_tools(executor)
    contents = [types.Content(role="user", parts=[types.Part(text="Go.")])]
    options = types.HttpOptions(base_url=provider.url)
    with genai.Client(api_key="none", vertexai=False, http_options=options) as client:
        while True:
            response = client.models.generate_content(
                model="m", contents=contents, config=types.GenerateContentConfig(tools=tools)
            )
            contents.append(response.candidates[0].content)
            results = tools.run(response.function_calls)
            if not results:
                return contents
            contents += results


def test_function_calls_get_their_responses(provider: Provider, desk: ToolExecutor) -> None:
    asked = content(
        function_call("desk__echo", text="hello"),
        function_call("desk__order", item="unicorn", count=1),
        function_call("desk__ecko", text="hello"),
    )
    _, _, answered, last = converse(provider, desk, asked, content({"text": "Done."}))
    found = [part.function_response for part in answered.parts]
    assert [(each.id, each.name) for each in found] == [
        (f"id of {name}", name) for name in ("desk__echo", "desk__order", "desk__ecko")
    ]
    assert found[0].response == {"output": "hello"}
    assert "sold out" in found[1].response["error"]
    assert "closest first: desk__echo" in found[2].response["error"]
    assert last.parts[0].text == "Done."


def test_media_follow_the_responses(provider: Provider, unusual: ToolExecutor) -> None:
    asked = content(function_call("unusual__media"), function_call("unusual__bare"))
    _, _, answered, _ = converse(provider, unusual, asked, content({"text": "Seen."}))
    kinds = [
        "response" if part.function_response else part.inline_data.mime_type if part.inline_data else part.text
        for part in answered.parts
    ]
    label = "From the result of unusual__media:"
    assert kinds == ["response", "response", label, "image/png", label, "application/pdf"]
    assert "1 × audio/wav" in answered.parts[0].function_response.response["output"]


def test_a_schema_is_written_in_the_words_that_gemini_knows(unusual: ToolExecutor) -> None:
    [tool] = gemini_tools(unusual)
    found = {each.name: each.parameters_json_schema for each in tool.function_declarations}
    assert found["unusual__bare"] is None, "a schema without parameters is left out"
    assert found["unusual__listing"]["properties"] == {
        "names": {"type": "array", "items": {}},
        "kind": {"enum": ["pod"]},
    }


def test_an_asyncio_agent_does_the_same() -> None:
    async def run() -> list[types.Content]:
        async with AsyncToolExecutor(["desk"], timeout_s=20) as executor:
            tools = await gemini_tools(executor)
            return await tools.run([types.FunctionCall(name="desk__echo", args={"text": "hello"})])

    [answered] = asyncio.run(run())
    assert answered.parts[0].function_response.response == {"output": "hello"}
