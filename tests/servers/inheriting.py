"""A server that tells what it inherited from the worker."""

import os

from mcp.server.mcpserver import MCPServer

server = MCPServer("inheriting")


@server.tool()
def names() -> list[str]:
    """The names of all environment variables."""
    return sorted(os.environ)


@server.tool()
def holds(text: str) -> list[str]:
    """The names of the environment variables whose value holds a text."""
    return sorted(name for name, value in os.environ.items() if text in value)


if __name__ == "__main__":
    server.run("stdio")
