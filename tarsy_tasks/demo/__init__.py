"""What `tarsy-tasks demo` runs: an MCP server that can be bundled over stdio and Streamable HTTP, and an agent that
calls it.
"""
