"""What a server says that it offers, in words of MCP's own: `resources`, `resources.subscribe` and so on."""

from mcp_types import ServerCapabilities

__all__ = ["name_capabilities"]

_KNOWN = ("tools", "resources", "prompts", "completions", "logging")
_MORE = ("listChanged", "subscribe")
"""Of these. What else a server writes there is text of its own."""


def name_capabilities(found: ServerCapabilities) -> tuple[str, ...]:
    """The names of what MCP defines, sorted; with a dot, what a server does besides, such as `tools.listChanged`."""
    offered = found.model_dump(by_alias=True, exclude_none=True, include=set(_KNOWN))
    more = (f"{name}.{key}" for name, inner in offered.items() for key in _MORE if inner.get(key) is True)
    return tuple(sorted({*offered, *more}))
