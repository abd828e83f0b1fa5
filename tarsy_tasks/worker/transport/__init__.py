"""The way of a message to an MCP server and back: the transports, what bounds them, and the processes behind stdio."""
