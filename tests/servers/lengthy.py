"""An MCP server with long answers: `python lengthy.py [--http PORT]`."""

import argparse
from contextlib import suppress
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent, ToolAnnotations

__all__ = ["SECRET"]

SECRET = "hunter-of-long-answers-42"
server = MCPServer("lengthy")


@server.tool(structured_output=False, annotations=ToolAnnotations(read_only_hint=True))
def report(lines: int, wait_for: str = "", began: str = "") -> str:
    """So many lines, with a password in the middle one.

    Args:
        began: A file that is made first.
        wait_for: A gate (`tests.gates`) that has to be open before it answers.
    """
    if began:
        Path(began).touch()
    if wait_for:
        with suppress(FileNotFoundError):
            Path(wait_for).read_bytes()
    written = [f"{number:07} the quick brown fox jumps over the lazy dog" for number in range(lines)]
    if lines:
        written[lines // 2] = f"needle password: {SECRET}"
    return "\n".join(written)


@server.tool()
def table(rows: int) -> list[dict[str, Any]]:
    """So many rows, as a structured value, too."""
    return [{"number": number, "name": f"row {number}"} for number in range(rows)]


@server.tool(structured_output=False)
def fail(words: int) -> CallToolResult:
    """An error with so many words."""
    return CallToolResult(content=[TextContent(type="text", text="wrong " * words)], is_error=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int)
    port = parser.parse_args().http
    if port is None:
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main()
