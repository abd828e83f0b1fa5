"""Tool definitions, masked.

Everything in a definition is masked when it is listed, names included, so agents, operators and approvals all see the
same definition. Only arguments are validated against the unmasked schema: a masked value may be the only valid one.
"""

from collections.abc import Container
from typing import Any

from mcp_types import Tool

from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.worker.maskers import Masker

__all__ = ["build_definition", "choose_name"]


def choose_name(tool: Tool, masker: Masker, taken: Container[str]) -> str:
    """The name that agents use for the tool: its own, unless that contains a secret."""
    masked = name = masker.mask(tool.name)
    number = 1
    while masked != tool.name and name in taken:
        number += 1
        name = f"{masked}-{number}"
    return name


def build_definition(server: str, name: str, tool: Tool, masker: Masker) -> ToolDefinition:
    """The definition that agents, operators and Redis see.

    Args:
        name: From `choose_name`.
    """
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    return ToolDefinition(
        name=f"{server}.{name}",
        server=server,
        tool=name,
        description=masker.mask(tool.description or tool.title or ""),
        input_schema=_mask_object(tool.input_schema, masker),
        annotations=_mask_object(annotations, masker),
    )


def _mask_object(value: dict[str, Any], masker: Masker) -> dict[str, Any]:
    masked = masker.mask_json(value)
    return masked if isinstance(masked, dict) else {}  # too deep to be searched
