"""The pages about frameworks, and those that use the same stack: every block of Python runs, as it stands, against real
workers.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adapters import test_anthropic, test_gemini, test_langchain, test_openai
from tests.adapters.provider import Body, Provider
from tests.docs.blocks import DOCS, read_blocks

PAGES = [DOCS / "README.md", *sorted((DOCS / "frameworks").glob("*.md")), *sorted((DOCS / "how-to").glob("*.md"))]
QUOTE = '{"item": "lamp", "count": 3}'


def answered(text: str) -> Body:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def responses(name: str, arguments: str) -> list[Body]:
    usage = {
        "input_tokens": 1,
        "output_tokens": 1,
        "total_tokens": 2,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    more = {"usage": usage, "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    asked = test_openai.response(test_openai.function_call(1, name, arguments))
    return [asked | more, test_openai.response(answered("That is all.")) | more]


def chat() -> list[Body]:
    return [test_openai.chat(("desk__quote", QUOTE)), test_openai.chat(text="That is all.")]


SCRIPTS: dict[str, Callable[[], list[Body]]] = {
    "anthropic": lambda: [
        test_anthropic.message(test_anthropic.tool_use(1, "desk__quote", item="lamp", count=3)),
        test_anthropic.message({"type": "text", "text": "That is all."}),
    ],
    "celery": list,
    "from-an-in-process-client": list,
    "from-celery-tasks": list,
    "from-langchain-mcp-adapters": list,
    "function-calling": list,
    "gemini": lambda: [
        test_gemini.content(test_gemini.function_call("desk__quote", item="lamp", count=3)),
        test_gemini.content({"text": "That is all."}),
    ],
    "kubernetes": list,
    "langchain": list,
    "llamaindex": list,
    "openai": lambda: [*chat(), *responses("desk__label", '{"item": "lamp"}'), *chat()],
    "openai-agents": lambda: responses("desk__quote", QUOTE),
    "pydantic-ai": lambda: responses("desk__quote", QUOTE),
    "README": list,
}
"""What the provider answers to the requests of a page."""

PRINTED = {
    "celery": ["ok {", "hello"],
    "from-an-in-process-client": ['"total": 13.5'],
    "from-celery-tasks": ["[4.5, 4.5]", "4.5"],
    "from-langchain-mcp-adapters": ["'desk__quote'"],
    "function-calling": ["That is all.", "{}"],
    "kubernetes": [],
    "langchain": ["Done."],
    "llamaindex": [],
    "openai": ["That is all."] * 3 + ["[{'role': 'tool', 'tool_call_id': 'call_1'"],
    "README": [],
}


def complete(messages: list[Body], functions: list[Body]) -> Body:
    """Stands for the client of a provider on the page about function calling: asks for one call, then ends."""
    [quote] = [each for each in functions if each["name"] == "desk__quote"]
    assert quote["parameters"]["properties"].keys() == {"item", "count"}
    if len(messages) == 2:
        return {"role": "assistant", "content": "", "calls": [{"id": "c1", "name": "desk__quote", "arguments": QUOTE}]}
    assert (messages[-1]["call_id"], json.loads(messages[-1]["content"])["total"]) == ("c1", 13.5)
    return {"role": "assistant", "content": "That is all.", "calls": []}


@pytest.fixture
def keys(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a user, whose providers are all on this machine."""
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider.url)
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", provider.url)
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.setenv(f"{name}_API_KEY", "none")


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, provider: Provider, capsys: pytest.CaptureFixture[str]) -> None:
    provider.script = SCRIPTS[page.stem]()
    names: dict[str, Any] = {
        "model": test_langchain.asking(("desk__quote", {"item": "lamp", "count": 3})),
        "complete": complete,
    }
    for block in read_blocks(page):
        if block.language == "python" and block.is_run:
            exec(compile(block.on_its_lines, str(page), "exec"), names)
    printed = capsys.readouterr().out
    for expected in PRINTED.get(page.stem, ["That is all."]):
        assert expected in printed
        printed = printed.partition(expected)[2]
    if provider.requests:
        assert "13.5" in json.dumps(provider.requests[1]), "the model read the result"
    if page.stem == "celery":
        assert names["price_list"](["lamp", "desk"]) == {"lamp": 4.5, "desk": 4.5}
