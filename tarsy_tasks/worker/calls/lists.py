"""The operations that list something of a server, all pages of it: its resources and their templates, and its prompts.

Owns sending them, and their result: the definitions as a structured value, and a line about each for a model. What is
kept of a definition is in `worker.sessions`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mcp import Client

from tarsy_tasks.errors import CallError
from tarsy_tasks.methods import LIST_PROMPTS, LIST_RESOURCE_TEMPLATES, LIST_RESOURCES
from tarsy_tasks.models import FrozenModel, ToolResult
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.prompts import PromptDefinition
from tarsy_tasks.resources import ResourceDefinition, ResourceTemplate
from tarsy_tasks.worker.calls.context import WorkerContext
from tarsy_tasks.worker.calls.failures import facts_of
from tarsy_tasks.worker.calls.request_arguments import RequestArguments, read_request
from tarsy_tasks.worker.calls.running_call import RunningCall
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.definition_list import DefinitionList
from tarsy_tasks.worker.sessions.paging import ListingError
from tarsy_tasks.worker.sessions.prompt_listing import list_prompts
from tarsy_tasks.worker.sessions.resource_listing import list_resource_templates, list_resources
from tarsy_tasks.worker.sessions.session import Session

__all__ = ["ListOperation", "build_list_operations"]

_SHOWN = 200
"""Entries of a list that a model reads; the structured value has all."""
_LINE_CHARS = 300

ListAll = Callable[[Client, str, Masker, LongWork], Awaitable[DefinitionList[Any]]]


@dataclass(frozen=True)
class Listed:
    """What a server has listed; or why that cannot be used."""

    definitions: Sequence[FrozenModel] = ()
    problem: str = ""

    @property
    def is_error(self) -> bool:
        return bool(self.problem)


class ListOperation:
    """One kind of list.

    Args:
        name: MCP's name of the request.
        key: Of the definitions in the structured value.
        list_all: Reads the list.
        describe: One definition in a line.
    """

    def __init__(
        self, context: WorkerContext, name: str, key: str, list_all: ListAll, describe: Callable[[Any], str]
    ) -> None:
        self.name = name
        self._context = context
        self._key = key
        self._list_all = list_all
        self._describe = describe

    async def prepare(self, call: RunningCall) -> None:
        """Raises `CallError` if there are arguments."""
        read_request(call, RequestArguments)

    async def send(self, call: RunningCall, session: Session, timeout_s: float) -> Listed:
        """One attempt; raises what the SDK raises."""
        masker, long_work = call.connection.masker, call.connection.long_work
        try:
            found = await session.request(
                lambda client: self._list_all(client, call.server, masker, long_work), timeout_s
            )
        except ListingError as error:
            return Listed(problem=str(error))
        call.fresh_s = found.fresh_s
        return Listed(found.definitions)

    async def build_result(self, call: RunningCall, found: Listed) -> ToolResult:
        """The answer.

        Raises:
            CallError: The list cannot be used.
        """
        if found.problem:
            raise CallError(
                ErrorCode.INVALID_RESULT,
                f"MCP server `{call.server}` {found.problem}, so its list cannot be used. Asking again will not help. "
                "Tell the user that an operator must fix this server.",
            )
        facts = facts_of(self._context, call.info, call.record, ())
        lines = [self._describe(each)[:_LINE_CHARS] for each in found.definitions[:_SHOWN]]
        if (more := len(found.definitions) - len(lines)) > 0:
            lines.append(f"[truncated: {more} more]")
        structured: dict[str, Any] = {self._key: [each.model_dump(mode="json") for each in found.definitions]}
        return ToolResult(content="\n".join(lines) or "(none)", structured=structured, **facts)


def build_list_operations(context: WorkerContext) -> list[ListOperation]:
    """All that can be listed."""
    return [
        ListOperation(context, LIST_PROMPTS, "prompts", list_prompts, _describe_prompt),
        ListOperation(context, LIST_RESOURCES, "resources", list_resources, _describe_resource),
        ListOperation(
            context, LIST_RESOURCE_TEMPLATES, "resource_templates", list_resource_templates, _describe_template
        ),
    ]


def _describe_prompt(prompt: PromptDefinition) -> str:
    names = ", ".join(each.name if each.required else f"[{each.name}]" for each in prompt.arguments)
    return f"{prompt.name}({names}): {' '.join((prompt.description or prompt.title).split())}"


def _describe_resource(resource: ResourceDefinition) -> str:
    return _describe(resource.uri, resource)


def _describe_template(template: ResourceTemplate) -> str:
    return _describe(template.uri_template, template)


def _describe(uri: str, found: ResourceDefinition | ResourceTemplate) -> str:
    words = " ".join((found.description or found.title or found.name).split())
    return f"{uri} ({found.mime_type}): {words}" if found.mime_type else f"{uri}: {words}"
