"""The two tools that a model can be given instead of all: `search_tools` finds tools, `call_tool` calls one of them.

Owns their names and definitions. What a call of them means is in `search_calls`.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.tool_names import without_prefix

__all__ = ["CALL", "CALL_SCHEMA", "DEFAULT_LIMIT", "SEARCH", "SEARCH_SCHEMA", "build_search_tools", "is_search_call"]

SEARCH = "search_tools"
CALL = "call_tool"
DEFAULT_LIMIT = 8
_SERVERS_SHOWN = 60
SEARCH_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "description": "What to do, in a few English words: restart a deployment"},
        "limit": {"type": "integer", "description": f"How many tools at most; {DEFAULT_LIMIT} if left out"},
    },
    "required": ["query"],
}
CALL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The name of the tool, as it was found: server.tool"},
        "arguments": {"type": "object", "description": "The arguments of that tool"},
    },
    "required": ["name"],
}


def is_search_call(name: str) -> bool:
    """Whether a name is that of one of the two tools, alone or after a provider's prefix."""
    return without_prefix(name) in (SEARCH, CALL)


def build_search_tools(listed: Sequence[ToolDefinition]) -> list[ToolDefinition]:
    """The definitions of the two tools, for a model that is to find those of a list."""
    counts = Counter(tool.server for tool in listed)
    servers = [f"{server} ({count})" for server, count in list(counts.items())[:_SERVERS_SHOWN]]
    more = f" and {len(counts) - len(servers)} more" if len(counts) > len(servers) else ""
    of_servers = f", of these servers: {', '.join(servers)}{more}" if servers else ""
    return [
        _define(
            SEARCH,
            f"Find tools by what they do. Tools: {len(listed)}{of_servers}. The best come first, each with its name, "
            "parameters and description.",
            SEARCH_SCHEMA,
        ),
        _define(
            CALL,
            f"Call a tool that `{SEARCH}` has found: by its name, with a JSON object of arguments.",
            CALL_SCHEMA,
        ),
    ]


def _define(name: str, description: str, schema: dict[str, Any]) -> ToolDefinition:
    return ToolDefinition(name=name, server="", tool=name, description=description, input_schema=schema)
