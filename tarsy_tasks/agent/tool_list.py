"""What an agent knows about the tools: their definitions, the servers that did not answer, and a text about both.

Owns the snapshot that `list_tools` returns. The definitions come from the workers, which ask their live sessions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, cast, overload

from tarsy_tasks.models import ToolDefinition

__all__ = ["ToolList"]


class ToolList(Sequence[ToolDefinition]):
    """The selected tools, by server in the executor's order, then as each server lists them. It does not change.

    It equals any list or tuple of the same definitions.

    Attributes:
        failed_servers: Why tools of a server are missing, by server.
        instructions: How to use a server's tools, by server; only of the servers that have instructions.
    """

    def __init__(
        self, tools: Iterable[ToolDefinition], failed_servers: Mapping[str, str], instructions: Mapping[str, str]
    ) -> None:
        self._tools = tuple(tools)
        self.failed_servers = dict(failed_servers)
        self.instructions = dict(instructions)

    def __len__(self) -> int:
        return len(self._tools)

    @overload
    def __getitem__(self, index: int) -> ToolDefinition: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[ToolDefinition, ...]: ...

    def __getitem__(self, index: int | slice) -> ToolDefinition | tuple[ToolDefinition, ...]:
        return self._tools[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ToolList):
            return vars(self) == vars(other)
        return list(self._tools) == list(cast("Sequence[object]", other)) if isinstance(other, (list, tuple)) else False

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        names = ", ".join(tool.name for tool in self._tools)
        return f"<ToolList: {names or 'no tools'}; failed servers: {', '.join(self.failed_servers) or 'none'}>"

    def prompt_section(self, *, tools: bool = True, name_of: Callable[[ToolDefinition], str] | None = None) -> str:
        """Text for a system prompt: each server with its instructions and tools, then the servers that failed.

        Args:
            tools: Whether to describe the tools. False for native function calling, where the model gets their
                definitions another way: then only the servers' instructions, with the names of the tools that they are
                about, and the servers that failed. Empty if there is neither.
            name_of: The name by which the model calls a tool. None: `server.tool`, or with `tools=False` the name for
                function declarations, `ToolDefinition.function_name()`.

        Example:
            >>> functions = [{"name": tool.function_name(), "parameters": tool.input_schema} for tool in listed]
            >>> system_prompt += listed.prompt_section(tools=False)
        """
        name_of = name_of or (attrgetter("name") if tools else ToolDefinition.function_name)
        by_server: dict[str, list[ToolDefinition]] = {}
        for tool in self._tools:
            by_server.setdefault(tool.server, []).append(tool)
        lines = ["# Tools"]
        if tools:
            lines += ["", "Call a tool by its full name, exactly as written here, with a JSON object of arguments."]
        for server, listed in by_server.items():
            # Quoted, so that nothing that a server writes looks like a section of this text.
            quoted = [f"> {line}".rstrip() for line in self.instructions.get(server, "").splitlines()]
            if tools:
                described = [_describe(tool, name_of(tool)) for tool in listed]
                lines += ["", f"## {server}", *quoted, *([""] if quoted else []), *described]
            elif quoted:
                names = ", ".join(f"`{name_of(tool)}`" for tool in listed)
                lines += ["", f"## {server}", f"Instructions for {names}:", "", *quoted]
        if self.failed_servers:
            failed = [f"- {server}: {why}" for server, why in self.failed_servers.items()]
            lines += ["", "## Not available now", *failed]
        return "\n".join(lines) if tools or len(lines) > 1 else ""


def _describe(tool: ToolDefinition, name: str) -> str:
    description = " ".join(tool.description.split())
    return f"- `{name}({_parameters(tool.input_schema)})`" + (f": {description}" if description else "")


def _parameters(schema: dict[str, Any]) -> str:
    """The names of the parameters; `?` marks those that may be left out."""
    properties: Any = schema.get("properties")
    required: Any = schema.get("required")
    if not isinstance(properties, dict):
        return ""
    names = [str(name) for name in cast("dict[str, Any]", properties)]
    return ", ".join(name if isinstance(required, list) and name in required else f"{name}?" for name in names)
