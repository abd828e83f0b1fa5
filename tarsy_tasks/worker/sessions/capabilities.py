"""What a server says that it offers, in words of MCP's own: `resources`, `resources.subscribe` and so on."""

from mcp_types import ServerCapabilities

__all__ = ["name_capabilities"]

_KNOWN = ("tools", "resources", "prompts", "completions", "logging")


def name_capabilities(found: ServerCapabilities) -> tuple[str, ...]:
    """The names of what MCP defines, sorted; with a dot, what a server does beyond that, such as `tools.listChanged`."""
    offered = found.model_dump(by_alias=True, exclude_none=True, include=set(_KNOWN))
    more = (f"{name}.{key}" for name, inner in offered.items() for key, value in inner.items() if value is True)
    return tuple(sorted({*offered, *more}))
