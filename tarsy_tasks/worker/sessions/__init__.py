"""The MCP sessions: one connection per server, its recovery and its tool list."""
