"""An MCP server that says HTML wherever it can say something: name, tools, descriptions, schemas, answers, errors."""

import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

__all__ = ["ATTACK", "SECRET", "TOOL"]

ATTACK = "</title></script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
SECRET = "hunter2-hunter2"
TOOL = '"><img src=x onerror="window.hacked=1">'


def main() -> None:
    print(f"{ATTACK} password: {SECRET}", file=sys.stderr, flush=True)
    server = MCPServer(ATTACK, version=ATTACK, instructions=ATTACK)

    @server.tool(name=TOOL, description=ATTACK)
    def attack(text: str = ATTACK) -> str:
        return ATTACK + text

    @server.tool(name="fail", description=f"{ATTACK} password: {SECRET}")
    def fail() -> str:
        raise ToolError(ATTACK)

    server.run("stdio")


if __name__ == "__main__":
    main()
