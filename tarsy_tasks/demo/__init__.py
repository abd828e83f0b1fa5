"""What `tarsy-tasks demo` runs: an MCP server over stdio or Streamable HTTP, and an agent that calls it."""
