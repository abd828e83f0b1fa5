"""Tools for LangChain and LangGraph, and a client in place of `MultiServerMCPClient` of langchain-mcp-adapters."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack
from uuid import uuid4

from tarsy_tasks import AsyncToolExecutor, Summarizer, ToolExecutor, ToolList, ToolResult
from tarsy_tasks.adapters.framework import missing_framework
from tarsy_tasks.adapters.offer import AS_WRITTEN, Offer, OfferedTool, build_offer
from tarsy_tasks.adapters.parts import ResultParts, split_result
from tarsy_tasks.adapters.providers import ANY

try:
    from langchain_core.messages import AIMessage, InvalidToolCall, ToolCall
    from langchain_core.messages.content import create_file_block, create_image_block, create_text_block
    from langchain_core.messages.tool import tool_call
    from langchain_core.tools import StructuredTool, ToolException
except ImportError as error:
    raise missing_framework(error, "langchain", "langchain-core") from None

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["MCPClient", "MCPTool", "MCPToolError"]


class ExecutorOptions(TypedDict, total=False):
    """Those of `ToolExecutor`."""

    tool_filter: Mapping[str, Collection[str]] | None
    timeout_s: float
    agent_id: str | None
    run_id: str | None
    priority: Literal["interactive", "normal", "batch"]
    session: Literal["shared", "run"]
    offer_read_result: bool | None
    park: bool
    label_servers: bool
    summarizer: Summarizer | Callable[..., Any] | None
    app: "Celery | None"


class MCPToolError(ToolException):
    """A call whose outcome is not `ok`; the text is for the model.

    Args:
        text: What happened, whether the tool ran, what to do next.
        result: The result itself.
    """

    def __init__(self, text: str, result: ToolResult) -> None:
        super().__init__(text, result)
        self.result = result

    def __str__(self) -> str:
        return str(self.args[0])


class MCPTool(StructuredTool):
    """A tool of an MCP server, for synchronous and asynchronous agents."""

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # As keywords, a parameter of the name `config` or `run_manager` would be replaced by LangChain's own.
        return (tool_input, tool_call_id), {}


class MCPClient:
    """Gives the tools of MCP servers to LangChain; the workers hold the connections.

    Args:
        servers: Ids of the servers; None for all that are configured.
        handle_tool_errors: Give the model the text of a call that failed, in a `ToolMessage` with the status `error`.
            Otherwise such a call raises `MCPToolError`.
        images: Whether the model's provider takes images and documents in the result of a tool. Otherwise a sentence
            says that they were left out.
        search: Give the model `search_tools` and `call_tool` instead of all tools (docs/tool-search.md).
        options: Those of `ToolExecutor`. With `session="run"`, `close` the client at the end of the run.

    Raises:
        ValueError: `servers` are connections, or as `ToolExecutor`.
        ConfigError: The configuration is missing or wrong.

    Example:
        >>> client = MCPClient(["k8s", "github"], timeout_s=60)
        >>> agent = create_agent("openai:gpt-5", await client.get_tools())
    """

    def __init__(
        self,
        servers: Collection[str] | None = None,
        *,
        handle_tool_errors: bool = True,
        images: bool = True,
        search: bool = False,
        **options: Unpack[ExecutorOptions],
    ) -> None:
        names = list(servers or ())
        if isinstance(servers, dict):
            raise ValueError(
                "servers are connections, as for MultiServerMCPClient: here the workers hold them. Put them into "
                f"mcp.json, and pass their names: {names!r:.200}"
            )
        if options.get("session") == "run" and not options.get("run_id"):
            options["run_id"] = uuid4().hex  # both executors have the sessions of one run
        self._servers = names
        self._executor = ToolExecutor(servers, **options)
        self._async_executor = AsyncToolExecutor(servers, **options)
        self._searches = search
        self._handles_errors = handle_tool_errors
        self._media = ANY.media if images else frozenset[str]()
        self._offer = Offer(ANY, ToolList([], {}, {}))

    async def get_tools(self, *, server_name: str | None = None) -> list[MCPTool]:
        """The tools as the servers list them now.

        A server that cannot be reached is in `failed_servers`; the tools of the others are returned.

        Args:
            server_name: Only those of this server, each of them even with `search`.

        Raises:
            BrokerUnavailable: Redis could not be reached.
            ValueError: The client has no such server.
        """
        listed = await self._async_executor.list_tools()
        known = dict.fromkeys([*self._servers, *(tool.server for tool in listed), *listed.failed_servers])
        if server_name is not None and server_name not in known:
            raise ValueError(f"unknown server {server_name}; known: {', '.join(known)}")
        searches = self._searches and server_name is None
        self._offer = build_offer(listed.behind_search() if searches else listed, ANY)
        tools = (tool for tool in self._offer.tools.values() if server_name in (None, tool.definition.server))
        return [self._build_tool(tool) for tool in tools]

    async def close(self) -> None:
        """As `AsyncToolExecutor.close`; the tools can still be called."""
        await asyncio.gather(self._async_executor.close(), asyncio.to_thread(self._executor.close))

    @property
    def failed_servers(self) -> dict[str, str]:
        """Why tools of a server are missing from the last `get_tools`, by server."""
        return self._offer.listed.failed_servers

    @property
    def left_out(self) -> dict[str, str]:
        """Why a tool could not be offered in the last `get_tools`, by `server.tool`."""
        return self._offer.left_out

    def prompt_section(self) -> str:
        """For the system prompt: instructions of servers, and which servers failed; empty if there is neither."""
        return self._offer.prompt_section()

    def accept_invalid_calls(self, message: AIMessage) -> AIMessage:
        """A message of a model in which calls whose arguments are not valid JSON can be made.

        LangChain keeps such calls apart, as `invalid_tool_calls`. Those of the tools that this client gave become
        `tool_calls`: the worker repairs their arguments, or rejects them with the correction.
        """
        made: list[ToolCall] = list(message.tool_calls)
        invalid: list[InvalidToolCall] = []
        for call in message.invalid_tool_calls:
            if (name := call["name"] or "") in self._offer.tools:
                made.append(tool_call(name=name, args={AS_WRITTEN: call["args"] or ""}, id=call["id"]))
            else:
                invalid.append(call)
        return message.model_copy(update={"tool_calls": made, "invalid_tool_calls": invalid})

    def _build_tool(self, tool: OfferedTool) -> MCPTool:
        offer = self._offer

        def call(arguments: str | dict[str, Any], call_id: str | None) -> tuple[Any, dict[str, Any]]:
            return self._write(self._executor.execute(offer.build_call(tool.name, arguments, call_id)))

        async def call_async(arguments: str | dict[str, Any], call_id: str | None) -> tuple[Any, dict[str, Any]]:
            return self._write(await self._async_executor.execute(offer.build_call(tool.name, arguments, call_id)))

        return MCPTool(
            name=tool.name,
            description=tool.description,
            args_schema=tool.schema,
            func=call,
            coroutine=call_async,
            response_format="content_and_artifact",
            metadata={**tool.definition.annotations, "server": tool.definition.server, "tool": tool.definition.tool},
            handle_tool_error=self._handles_errors,
        )

    def _write(self, result: ToolResult) -> tuple[Any, dict[str, Any]]:
        parts = split_result(result, self._media)
        if result.is_error:
            raise MCPToolError(parts.text, result)
        # Of plain types, because checkpoints of LangGraph store it.
        artifact = result.model_dump(mode="json", exclude={"content", "structured"})
        return _write_content(parts), {"structured_content": result.structured, **artifact}


def _write_content(parts: ResultParts) -> Any:
    if not parts.media:
        return parts.text
    blocks: list[Any] = [create_text_block(parts.text)]
    for media in parts.media:
        create = create_image_block if media.is_image else create_file_block
        blocks.append(create(base64=media.data, mime_type=media.mime_type))
    return blocks
