"""A server that writes down in files when a call begins, finishes or is cancelled."""

import asyncio
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

directory = Path(sys.argv[1])
server = MCPServer("recording")


@server.tool()
async def hold(name: str, seconds: float) -> str:
    """Take so long."""
    (directory / f"{name}.begun").touch()
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        (directory / f"{name}.cancelled").touch()
        raise
    (directory / f"{name}.finished").touch()
    return "held"


server.run("stdio")
