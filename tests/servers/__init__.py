"""MCP servers and web servers written for the tests."""
