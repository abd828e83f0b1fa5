"""What an agent knows about the tools: their definitions, the servers that did not answer, and a text about both.

Owns the snapshot that `list_tools` returns. The definitions come from the workers, which ask their live sessions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, cast, overload

from tarsy_tasks.agent.prompt import write_prompt
from tarsy_tasks.agent.search_tools import build_search_tools
from tarsy_tasks.models import ToolDefinition

if TYPE_CHECKING:
    from tarsy_tasks.agent.tool_index import ToolIndex

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
            return (self._tools, self.failed_servers, self.instructions) == (
                other._tools,
                other.failed_servers,
                other.instructions,
            )
        return list(self._tools) == list(cast("Sequence[object]", other)) if isinstance(other, (list, tuple)) else False

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        names = ", ".join(tool.name for tool in self._tools)
        return f"<ToolList: {names or 'no tools'}; failed servers: {', '.join(self.failed_servers) or 'none'}>"

    def search(
        self, text: str, *, limit: int = 8, permits: Callable[[ToolDefinition], bool] | None = None
    ) -> list[ToolDefinition]:
        """The tools that fit a text best, best first: what to do, in words, such as `restart a deployment`.

        Names, descriptions and parameters are searched, in English; only words count, and at most the first 24 of them
        in the first 4,000 characters. The index is built by the first search.

        Args:
            limit: How many tools at most.
            permits: Tools for which it is false are left out. None: all count.

        Raises:
            ValueError: `text` is not a string, or `limit` not a positive integer.
            RuntimeError: The SQLite of this Python was built without FTS5.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"text must be a string that says what to do, not {type(text).__name__}")
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"limit must be a positive number of tools, not {limit!r:.80}")
        return self._index.search(text, limit, permits)

    def behind_search(self) -> "ToolList":
        """The two tools that a model can be given instead of all these: `search_tools` and `call_tool`, which every
        executor runs. See docs/tool-search.md."""
        return ToolList(build_search_tools(self._tools), self.failed_servers, {})

    def take_index(self, earlier: "ToolList") -> None:
        """Use the index of an earlier list, if it has one of the same tools."""
        if "_index" in vars(earlier) and earlier._tools == self._tools:
            vars(self)["_index"] = earlier._index

    @cached_property
    def _index(self) -> "ToolIndex":
        from tarsy_tasks.agent.tool_index import ToolIndex  # most agents never search

        return ToolIndex(self._tools)

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
