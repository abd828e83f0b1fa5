"""The demo's MCP server: a small shop desk, over stdio or, with `--http PORT`, over Streamable HTTP.

Owns tools of each kind: fast, slow with progress, failing, with structured content, with an image; and resources: a
text, an image, a template. Tests use it too.
"""

import argparse
import asyncio
import base64
import os
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

__all__ = ["build_server"]

_READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True)
_DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


class Quote(BaseModel):
    """A price for a number of items."""

    item: str
    count: int
    total: float


def _price(item: str) -> float:
    return 3.5 + len(item) / 4


def build_server() -> MCPServer:
    """The server with its tools and resources."""
    server = MCPServer("tarsy-tasks demo", version="1.0")

    @server.tool(annotations=_READ_ONLY)
    def echo(text: str) -> str:
        """Give a text back."""
        return text

    @server.tool(annotations=_READ_ONLY)
    def quote(item: str, count: int = 1) -> Quote:
        """What a number of items costs."""
        return Quote(item=item, count=count, total=round(count * _price(item), 2))

    @server.tool(annotations=_READ_ONLY)
    async def wait(seconds: float, context: Context, steps: int = 4) -> str:
        """Work slowly, with progress."""
        for step in range(steps):
            await asyncio.sleep(seconds / steps)
            await context.report_progress(step + 1, steps, f"step {step + 1} of {steps}")
        return f"done after {seconds:g} s"

    @server.tool()
    def order(item: str, count: int) -> str:
        """Order items; fails for what is sold out."""
        if item == "unicorn":
            raise ToolError("unicorns are sold out")
        return f"ordered {count} × {item}"

    @server.tool(annotations=_READ_ONLY)
    def label(item: str) -> list[str | Image]:
        """Print a label: a text and an image."""
        return [f"label of {item}", Image(data=_DOT, format="png")]

    @server.resource("desk://opening-hours", description="When the desk is open.")
    def opening_hours() -> str:
        return "Monday to Friday, 9 am to 5 pm"

    @server.resource("desk://stamp", mime_type="image/png", description="The stamp of the desk.")
    def stamp() -> bytes:
        return _DOT

    @server.resource("desk://items/{item}", mime_type="application/json", description="An item and its price.")
    def item(item: str) -> str:
        return Quote(item=item, count=1, total=_price(item)).model_dump_json()

    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, metavar="PORT", help="serve Streamable HTTP on this port of 127.0.0.1")
    parser.add_argument("--pid-file", type=Path, help="write the process id there")
    options = parser.parse_args()
    if options.pid_file is not None:
        options.pid_file.write_text(str(os.getpid()))
    if options.http is None:
        build_server().run("stdio")
    else:
        build_server().run("streamable-http", host="127.0.0.1", port=options.http)


if __name__ == "__main__":
    main()
