"""The pages about frameworks: every block of Python runs, as it stands, against real workers."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adapters import test_anthropic, test_gemini, test_langchain, test_openai
from tests.adapters.provider import Body, Provider

PAGES = Path(__file__).parents[2] / "docs" / "frameworks"
_BLOCK = re.compile(r"(?P<note><!-- not run: .+ -->\n)?^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
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
    "gemini": lambda: [
        test_gemini.content(test_gemini.function_call("desk__quote", item="lamp", count=3)),
        test_gemini.content({"text": "That is all."}),
    ],
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
    "llamaindex": [],
    "openai": ["That is all."] * 3 + ["[{'role': 'tool', 'tool_call_id': 'call_1'"],
    "README": [],
}


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
@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, provider: Provider, capsys: pytest.CaptureFixture[str]) -> None:
    provider.script = SCRIPTS[page.stem]()
    names: dict[str, Any] = {"model": test_langchain.asking(("desk__quote", {"item": "lamp", "count": 3}))}
    text = page.read_text()
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start("code"))
        code = compile("\n" * line + block["code"], str(page), "exec")
        if block["note"] is None:
            exec(code, names)
    printed = capsys.readouterr().out
    for expected in PRINTED.get(page.stem, ["Done." if page.stem == "langchain" else "That is all."]):
        assert expected in printed
        printed = printed.partition(expected)[2]
    if provider.requests:
        assert "13.5" in json.dumps(provider.requests[1]), "the model read the result"
    if page.stem == "celery":
        assert names["price_list"](["lamp", "desk"]) == {"lamp": 4.5, "desk": 4.5}
