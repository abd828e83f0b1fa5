"""What an agent knows about the tools: their definitions, the servers that did not answer, and a text about both.

Owns the snapshot that `list_tools` returns. The definitions come from the workers, which ask their live sessions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import cast, overload

from tarsy_tasks.agent.prompt import write_prompt
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

        At most 200,000 characters describe tools; then it says how many more there are. Whatever a server writes is one
        line of visible characters, or quoted.

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
        return write_prompt(by_server, self.instructions, self.failed_servers, name_of, describes=tools)
