"""The tools as they are offered to a model, and the calls that come back.

Owns the names on both sides: a model reads and writes names that every provider takes, an executor gets `server.tool`.
"""

import difflib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tarsy_tasks import ErrorCode, ToolCall, ToolDefinition, ToolList, ToolResult
from tarsy_tasks.adapters.providers import Provider, UnfitTool, fit_description, fit_schema

__all__ = ["AS_WRITTEN", "Offer", "OfferedTool", "build_offer"]

logger = logging.getLogger(__name__)

AS_WRITTEN = "arguments, as the model wrote them"
"""The key of arguments that are not a JSON object, where a framework takes nothing else."""
_SEARCH = "search_tools"
_NAMES_SHOWN = 10
_NAME_CHARS_SHOWN = 80
_UNKNOWN = (ErrorCode.INVALID_NAME, ErrorCode.UNKNOWN_SERVER, ErrorCode.UNKNOWN_TOOL, ErrorCode.TOOL_NOT_SELECTED)


@dataclass(frozen=True)
class OfferedTool:
    """A tool as its provider takes it.

    Attributes:
        name: The name that the model calls.
        definition: The tool itself.
    """

    name: str
    description: str
    schema: dict[str, Any]
    definition: ToolDefinition


@dataclass(frozen=True)
class Offer:
    """All tools of one request.

    Attributes:
        tools: By the name that the model calls.
        left_out: By `server.tool`, why a tool cannot be offered to this provider.
        listed: The list that they were taken from.
    """

    provider: Provider
    listed: ToolList
    tools: dict[str, OfferedTool] = field(default_factory=dict[str, OfferedTool])
    left_out: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, tool: ToolDefinition) -> OfferedTool | None:
        """Offer a tool; None if it cannot be offered to this provider."""
        try:
            schema, hint = fit_schema(tool.input_schema, self.provider)
        except UnfitTool as error:
            self.left_out[tool.name] = str(error)
            logger.warning("%s is not offered to %s: %s", tool.name, self.provider.name, error)
            return None
        name = tool.function_name()
        description = fit_description(tool.description or _title(tool.annotations), hint, self.provider)
        offered = self.tools[name] = OfferedTool(name, description, schema, tool)
        return offered

    def add_later(self, tools: Iterable[ToolDefinition]) -> list[OfferedTool]:
        """Offer tools that were not in the list, as far as the provider takes more.

        Returns:
            Those that are new and can be offered.
        """
        most, added = self.provider.most_tools, list[OfferedTool]()
        for tool in tools:
            has_room = most is None or len(self.tools) < most
            if has_room and tool.function_name() not in self.tools and (offered := self.add(tool)) is not None:
                added.append(offered)
        return added

    def build_call(self, name: object, arguments: object, call_id: object = "") -> ToolCall:
        """The call that a model asked for. A name that was not offered is kept, and the executor rejects it.

        Args:
            arguments: The text that the model wrote, or an object that was read from it.
        """
        if isinstance(arguments, dict) and AS_WRITTEN in arguments:
            arguments = cast("object", arguments[AS_WRITTEN])
        written = _text(name)
        offered = self.tools.get(written)
        return ToolCall(
            name=written if offered is None else offered.definition.name,
            arguments=_text(arguments if isinstance(arguments, str | None) else json.dumps(arguments)),
            id=_text(call_id),
        )

    def read_result(self, result: ToolResult, name: object) -> ToolResult:
        """The result as a model may read it: of an unknown tool, with the names that were offered."""
        if result.error_code not in _UNKNOWN or _text(name) in self.tools:
            return result
        return result.model_copy(update={"content": self.reject(_text(name))})

    def prompt_section(self) -> str:
        """For a system prompt: the servers' instructions for what is offered, and which servers failed."""
        offered = [tool.definition for tool in self.tools.values()]
        return ToolList(offered, self.listed.failed_servers, self.listed.instructions).prompt_section(tools=False)

    def reject(self, name: str) -> str:
        """The text for a model that called a tool that was not offered."""
        shown = name[:_NAME_CHARS_SHOWN]
        if _SEARCH in self.tools:
            return f"The tool {shown!r} does not exist. Nothing was sent. Find the right one with {_SEARCH}."
        near = difflib.get_close_matches(shown, self.tools, n=_NAMES_SHOWN, cutoff=0.3)
        names = near or list(self.tools)[:_NAMES_SHOWN]
        more = f" and {len(self.tools) - len(names)} more" if len(self.tools) > len(names) else ""
        known = f"Tools{', closest first' if near else ''}: {', '.join(names)}{more}."
        return f"The tool {shown!r} does not exist. Nothing was sent. {known if names else 'No tools are offered.'}"


def build_offer(listed: ToolList, provider: Provider) -> Offer:
    """The tools of a list as a provider takes them.

    Raises:
        ValueError: There are more than the provider takes.
    """
    offer = Offer(provider, listed)
    for tool in listed:
        offer.add(tool)
    if provider.most_tools is not None and len(offer.tools) > provider.most_tools:
        counts: dict[str, int] = {}
        for tool in offer.tools.values():
            counts[tool.definition.server] = counts.get(tool.definition.server, 0) + 1
        sizes = ", ".join(f"{server} {count}" for server, count in counts.items())
        raise ValueError(
            f"{provider.name} takes {provider.most_tools} tools in a request, and there are {len(offer.tools)} "
            f"({sizes:.500}): select some with `servers` and `tool_filter` of the executor"
        )
    return offer


def _text(written: object) -> str:
    """What a model wrote; halves of surrogate pairs as in JSON, because nothing takes them as they are."""
    return "" if written is None else str(written).encode("utf-8", "backslashreplace").decode()


def _title(annotations: Mapping[str, Any]) -> str:
    title = annotations.get("title")
    return title if isinstance(title, str) else ""
