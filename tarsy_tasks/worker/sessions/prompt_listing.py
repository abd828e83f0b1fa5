"""prompts/list: all pages of it, masked. Owns what is kept of a prompt."""

from mcp import Client
from mcp_types import Prompt
from mcp_types import PromptArgument as ListedArgument

from tarsy_tasks.methods import LIST_PROMPTS
from tarsy_tasks.prompts import PromptArgument, PromptDefinition
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.definition_fields import DESCRIPTION_CHARS, SHOWN_CHARS, describe, mask_listed
from tarsy_tasks.worker.sessions.definition_list import DefinitionList, list_definitions

__all__ = ["list_prompts"]


async def list_prompts(
    client: Client, server: str, masker: Masker, long_work: LongWork
) -> DefinitionList[PromptDefinition]:
    """The prompts of a server; none if it does not announce any. Raises as `list_definitions`."""
    if client.server_capabilities.prompts is None:
        return DefinitionList()
    return await list_definitions(
        LIST_PROMPTS,
        lambda cursor: client.list_prompts(cursor=cursor),
        lambda page: page.prompts,
        lambda found: _build(found, server, masker),
        long_work,
    )


def _build(found: Prompt, server: str, masker: Masker) -> PromptDefinition:
    return PromptDefinition(
        server=server,
        name=masker.mask_start(found.name, DESCRIPTION_CHARS),
        arguments=tuple(_build_argument(each, masker) for each in found.arguments or ()),
        **mask_listed(found, masker),
    )


def _build_argument(found: ListedArgument, masker: Masker) -> PromptArgument:
    return PromptArgument(
        name=masker.mask_start(found.name, DESCRIPTION_CHARS),
        title=masker.mask_start(found.title or "", SHOWN_CHARS),
        description=describe(found.description, masker),
        required=bool(found.required),
    )
