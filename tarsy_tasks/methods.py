"""What a call can ask of an MCP server besides calling a tool, by MCP's own names of the requests.

Such a call carries the name of its method where another one has the name of its tool: in policies, limits, the audit
and metrics, too. All of them only read, so any of them may be sent again.
"""

import re
from typing import Literal, get_args

__all__ = [
    "ANSWER_INPUT",
    "CLOSE_SESSION",
    "COMPLETE",
    "GET_PROMPT",
    "LIST_PROMPTS",
    "LIST_RESOURCES",
    "LIST_RESOURCE_TEMPLATES",
    "METHODS",
    "READ_RESOURCE",
    "TOOL_CALL",
    "WATCH_RESOURCE",
    "Method",
    "say_nothing_of_tools",
]

TOOL_CALL = "tool_call"
"""The operation of a call of a tool."""
LIST_RESOURCES = "resources/list"
LIST_RESOURCE_TEMPLATES = "resources/templates/list"
READ_RESOURCE = "resources/read"
WATCH_RESOURCE = "resources/subscribe"
"""Of both eras, although a server of the 2026 era is asked by another request."""
LIST_PROMPTS = "prompts/list"
GET_PROMPT = "prompts/get"
COMPLETE = "completion/complete"
CLOSE_SESSION = "session/close"
"""Of this package, not of MCP: an executor needs its isolated session no longer."""

ANSWER_INPUT = "input/answer"
"""Of this package, too: what an agent answers to the questions of a server (docs/input.md)."""

McpMethod = Literal[
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
]
Method = McpMethod | Literal["session/close", "input/answer"]

METHODS: frozenset[str] = frozenset(get_args(McpMethod))

_HARMLESS = "Asking again is harmless."
_SENTENCES = {
    "The tool may still be running, or may have had its effect. Check its effects before you call it again.": _HARMLESS,
    "The tool may have run. Check its effects before you call it again.": _HARMLESS,
    "It may have run. Check its effects before you call it again.": _HARMLESS,
    "Do not repeat it unless running it twice is harmless.": "It will most likely be the same again.",
    "The tool did not run": "Nothing was read",
    "the tool did not run": "nothing was read",
    "The tool may have run.": _HARMLESS,
}
_ANY_SENTENCE = re.compile("|".join(map(re.escape, _SENTENCES)))


def say_nothing_of_tools(operation: str, text: str) -> str:
    """The text of an error for the operation that it is about: what is said of tools, for example that one may have
    had effects, is not true of what only reads.
    """
    return text if operation == TOOL_CALL else _ANY_SENTENCE.sub(lambda found: _SENTENCES[found[0]], text)
