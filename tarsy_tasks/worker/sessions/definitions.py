"""A tool as its MCP server defines it, without the secrets that stand there.

Owns what of a definition is masked, which is all of it, names included. It is masked when it is listed, and everybody
goes by the same definition, approvals too. Only arguments are checked by the server's own schema: what is masked in it
may be the one value that fits.
"""

from collections.abc import Container
from typing import Any

from mcp_types import Tool

from tarsy_tasks.models import ToolDefinition
from tarsy_tasks.worker.maskers import Masker

__all__ = ["build_definition", "choose_name"]


def choose_name(tool: Tool, masker: Masker, taken: Container[str]) -> str:
    """The name by which the tool is known here: its own, unless that holds a secret."""
    masked = name = masker.mask(tool.name)
    number = 1
    while masked != tool.name and name in taken:
        number += 1
        name = f"{masked}-{number}"
    return name


def build_definition(server: str, name: str, tool: Tool, masker: Masker) -> ToolDefinition:
    """What agents, operators and Redis get to see of a tool.

    Args:
        server: Id of its server.
        name: As `choose_name` has it.
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
    return masked if isinstance(masked, dict) else {}  # it could not be searched
