"""What a call can ask of an MCP server besides calling a tool, by MCP's own names of the requests.

Such a call carries the name of its method where another one has the name of its tool: in policies, limits, the audit
and metrics, too. All of them only read, so any of them may be sent again.
"""

from typing import Literal

__all__ = [
    "LIST_RESOURCES",
    "LIST_RESOURCE_TEMPLATES",
    "METHODS",
    "READ_RESOURCE",
    "TOOL_CALL",
    "Method",
]

TOOL_CALL = "tool_call"
"""The operation of a call of a tool."""
LIST_RESOURCES = "resources/list"
LIST_RESOURCE_TEMPLATES = "resources/templates/list"
READ_RESOURCE = "resources/read"

Method = Literal["resources/list", "resources/templates/list", "resources/read"]

METHODS: frozenset[str] = frozenset({LIST_RESOURCES, LIST_RESOURCE_TEMPLATES, READ_RESOURCE})
