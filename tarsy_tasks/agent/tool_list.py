"""What an agent knows of the tools: the definitions to offer, the servers that did not answer, and the text about both.

Owns the selection that an executor shows to its model. The definitions come from the workers, which ask the live
sessions.
"""

from collections.abc import Iterable
from typing import Any, cast

from tarsy_tasks.agent.dispatcher import CallDispatcher
from tarsy_tasks.models import ToolDefinition, ToolListing

__all__ = ["Catalogue"]


class Catalogue:
    """The tools of one executor's servers, as of the last listing.

    Attributes:
        tools: Selected tools, by server in the executor's order, then as the server lists them.
        instructions: How to use a server's tools, by server; of those that have any.
        failed: Why a server's tools are missing, by server.
    """

    def __init__(self) -> None:
        self.tools: list[ToolDefinition] = []
        self.instructions: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.listed = False

    def update(self, calls: CallDispatcher, answers: Iterable[tuple[str, ToolListing | Exception]]) -> None:
        """Take over what each server answered."""
        tools: list[ToolDefinition] = []
        instructions: dict[str, str] = {}
        failed: dict[str, str] = {}
        for server, answer in answers:
            if isinstance(answer, Exception):
                failed[server] = str(answer) or "no worker answered in time; is one running that serves this server?"
            else:
                tools += [tool for tool in answer.tools if calls.is_selected(server, tool.tool)]
                instructions |= {server: answer.instructions} if answer.instructions else {}
                missing = calls.tool_filter.get(server, frozenset()) - {tool.tool for tool in answer.tools}
                if missing:
                    failed[server] = f"it has no tool {', '.join(sorted(missing))}"
        self.tools, self.instructions, self.failed = tools, instructions, dict(sorted(failed.items()))
        self.listed = True

    def prompt_section(self) -> str:
        """Text for a system prompt: each server with its instructions and tools, and by name the servers that cannot be
        used now.
        """
        by_server: dict[str, list[ToolDefinition]] = {}
        for tool in self.tools:
            by_server.setdefault(tool.server, []).append(tool)
        lines = ["# Tools", "", "Call a tool by its full name, `server.tool`, with a JSON object of arguments."]
        for server, tools in by_server.items():
            # Quoted: whatever a server writes, it cannot pass for a section of this text.
            quoted = [f"> {line}".rstrip() for line in self.instructions.get(server, "").splitlines()]
            lines += ["", f"## {server}", *quoted, *([""] if quoted else []), *(_tool_line(tool) for tool in tools)]
        if self.failed:
            lines += ["", "## Not available now", *(f"- {server}: {why}" for server, why in self.failed.items())]
        return "\n".join(lines)


def _tool_line(tool: ToolDefinition) -> str:
    description = " ".join(tool.description.split())
    return f"- `{tool.name}({_parameters(tool.input_schema)})`" + (f": {description}" if description else "")


def _parameters(schema: dict[str, Any]) -> str:
    properties: Any = schema.get("properties")
    required: Any = schema.get("required")
    if not isinstance(properties, dict):
        return ""
    names = [str(name) for name in cast("dict[str, Any]", properties)]
    return ", ".join(name if isinstance(required, list) and name in required else f"{name}?" for name in names)
