"""What an agent knows about the tools: their definitions, the servers that did not answer, and a text about both.

Owns the snapshot that `list_tools` returns. The definitions come from the workers, which ask their live sessions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, cast, overload

from tarsy_tasks.agent.prompt import write_prompt
from tarsy_tasks.agent.prompt_budget import estimate_tokens, fit_budget, take_turns
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

    def prompt_section(
        self,
        *,
        tools: bool = True,
        name_of: Callable[[ToolDefinition], str] | None = None,
        budget_tokens: int | None = None,
        query: str | None = None,
        count_tokens: Callable[[str], int] | None = None,
    ) -> str:
        """Text for a system prompt: each server with its instructions and tools, then the servers that failed.

        At most 200,000 characters describe tools; then it says how many more there are. Whatever a server writes is one
        line of visible characters, or quoted.

        Args:
            tools: Whether to describe the tools. False for native function calling, where the model gets their
                definitions another way: then only the servers' instructions, with the names of the tools that they are
                about, and the servers that failed. Empty if there is neither.
            name_of: The name by which the model calls a tool. None: `server.tool`, or with `tools=False` the name for
                function declarations, `ToolDefinition.function_name()`.
            budget_tokens: How many tokens it may have. Then it has the tools that fit, each whole, and says how to find
                the others by `search_tools`. The first tool of each server comes first, then the second. Then it has
                the instructions of their servers that fit, each whole. None: no such limit.
            query: With a budget, what the model is to do: the tools that fit it come first, as `search` finds them.
            count_tokens: Your tokenizer, as a function that counts the tokens of a text. None: estimated, one for 3.5
                bytes.

        Raises:
            ValueError: `budget_tokens` is not a positive integer; or there is a budget without `tools`, or a `query` or
                `count_tokens` without a budget.

        Example:
            >>> functions = [{"name": tool.function_name(), "parameters": tool.input_schema} for tool in listed]
            >>> system_prompt += listed.prompt_section(tools=False)
        """
        name_of = name_of or (attrgetter("name") if tools else ToolDefinition.function_name)
        if budget_tokens is None:
            if query is not None or count_tokens is not None:
                raise ValueError("query and count_tokens choose what fits a budget: set budget_tokens, too")
            return self._write(self._tools, self.instructions, name_of, describes=tools)
        if isinstance(budget_tokens, bool) or not isinstance(budget_tokens, int) or budget_tokens < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"budget_tokens must be a positive number of tokens, not {budget_tokens!r:.80}")
        if not tools:
            raise ValueError(
                "budget_tokens chooses among the tools that are described: it cannot be used with tools=False"
            )
        ranked = take_turns(self._tools)
        if query is not None:
            found = self.search(query, limit=max(len(ranked), 1))
            names = {tool.name for tool in found}
            ranked = [*found, *(tool for tool in ranked if tool.name not in names)]
        write = partial(self._write, name_of=name_of, describes=True)
        return fit_budget(ranked, self.instructions, write, budget_tokens, count_tokens or estimate_tokens)

    def _write(
        self,
        tools: Iterable[ToolDefinition],
        instructions: Mapping[str, str],
        name_of: Callable[[ToolDefinition], str],
        *,
        describes: bool,
    ) -> str:
        by_server: dict[str, list[ToolDefinition]] = {}
        for tool in tools:
            by_server.setdefault(tool.server, []).append(tool)
        return write_prompt(by_server, instructions, self.failed_servers, name_of, describes=describes)
