"""What an MCP server says that it offers, as words for people and programs."""

from collections.abc import Iterator

from mcp_types import ServerCapabilities

__all__ = ["describe_capabilities"]

_NAMES = ("completions", "logging", "prompts", "resources", "tools")
_DETAILS = {"list_changed": "listChanged", "subscribe": "subscribe"}


def describe_capabilities(offered: ServerCapabilities) -> Iterator[str]:
    """In MCP's words, such as `tools` and `tools.listChanged`; what is experimental or an extension is left out."""
    for name in _NAMES:
        found = getattr(offered, name)
        if found is not None:
            yield name
            yield from (f"{name}.{word}" for field, word in _DETAILS.items() if getattr(found, field, None))
