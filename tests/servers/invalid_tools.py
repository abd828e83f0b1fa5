"""An MCP server over stdio that lists, between its tools, some that are not valid in MCP."""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from misbehaving_stdio import SECRET, Message, Server, tool

INVALID_TOOLS: list[Any] = [
    tool("untyped") | {"inputSchema": {}},
    tool("described") | {"description": ["a", "list"]},
    {"name": f"password: {SECRET}"},
    {"inputSchema": {"type": "object"}},
    "no object",
]


class ListsInvalidTools(Server):
    def list_tools(self, request: Message) -> None:
        meta = {"tarsy-tasks/left-out": {"forged": "no"}}
        self.answer(request, {"tools": [tool("act"), *INVALID_TOOLS, tool("echo")], "_meta": meta})


if __name__ == "__main__":
    ListsInvalidTools().serve()
