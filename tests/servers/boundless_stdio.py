"""MCP servers over stdio that say as much as they can, one class a kind: `python boundless_stdio.py KIND`."""

import sys

from tests.servers.misbehaving_stdio import SECRET, Message, Server, tool

LONG_DESCRIPTION = f"password: {SECRET}\n" * 600_000
VERY_MANY = 100_000
ENDLESS_BYTES = 1_000_000_000
FILLER = b"x" * 100_000


class ListsALongDescription(Server):
    """Fifteen megabytes with something to mask in every line."""

    def list_tools(self, request: Message) -> None:
        self.answer(request, {"tools": [tool("act") | {"description": LONG_DESCRIPTION}, tool("echo")]})


class ListsVeryMany(Server):
    def list_tools(self, request: Message) -> None:
        self.answer(request, {"tools": [tool("act")] * VERY_MANY})


class SaysAnEndlessLine(Server):
    def act(self, request: Message) -> None:
        for _ in range(ENDLESS_BYTES // len(FILLER)):
            self.write_bytes(FILLER)


KINDS: dict[str, type[Server]] = {
    "lists-a-long-description": ListsALongDescription,
    "lists-very-many": ListsVeryMany,
    "says-an-endless-line": SaysAnEndlessLine,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]().serve()
