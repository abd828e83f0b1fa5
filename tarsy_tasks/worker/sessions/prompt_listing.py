"""prompts/list: all pages of it, masked. Owns what is kept of a prompt."""

from mcp import Client
from mcp_types import ListPromptsResult, Prompt
from mcp_types import PromptArgument as ListedArgument

from tarsy_tasks.methods import LIST_PROMPTS
from tarsy_tasks.prompts import PromptArgument, PromptDefinition
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.definition_fields import (
    DESCRIPTION_CHARS,
    SHOWN_CHARS,
    cut_text,
    dump_part,
    is_short,
    mask_object,
)
from tarsy_tasks.worker.sessions.definition_list import DefinitionList
from tarsy_tasks.worker.sessions.paging import read_pages

__all__ = ["list_prompts"]


async def list_prompts(
    client: Client, server: str, masker: Masker, long_work: LongWork
) -> DefinitionList[PromptDefinition]:
    """The prompts of a server; none if it does not announce any.

    Raises:
        ListingError: The list does not end, or is too long.
        MCPError: The request failed.
    """
    kept = DefinitionList[PromptDefinition](LIST_PROMPTS)
    if client.server_capabilities.prompts is not None:

        async def fetch(cursor: str | None) -> ListPromptsResult:
            return await client.list_prompts(cursor=cursor)

        def build(found: Prompt) -> PromptDefinition:
            return _build(found, server, masker)

        async for page in read_pages(LIST_PROMPTS, fetch, lambda page: len(page.prompts)):
            kept.note_hint(page)
            await kept.add(page.prompts, build, long_work)
    return kept


def _build(found: Prompt, server: str, masker: Masker) -> PromptDefinition:
    icons, meta = [*map(dump_part, found.icons or ())], dict(found.meta or {})
    return PromptDefinition(
        server=server,
        name=masker.mask_start(found.name, DESCRIPTION_CHARS),
        title=masker.mask_start(found.title or "", SHOWN_CHARS),
        description=_describe(found.description, masker),
        arguments=tuple(_build_argument(each, masker) for each in found.arguments or ()),
        icons=tuple(mask_object(icon, masker) for icon in icons) if is_short(icons) else (),
        meta=mask_object(meta, masker) if is_short(meta) else {},
    )


def _build_argument(found: ListedArgument, masker: Masker) -> PromptArgument:
    return PromptArgument(
        name=masker.mask_start(found.name, DESCRIPTION_CHARS),
        title=masker.mask_start(found.title or "", SHOWN_CHARS),
        description=_describe(found.description, masker),
        required=bool(found.required),
    )


def _describe(text: str | None, masker: Masker) -> str:
    return cut_text(masker.mask_start(text or "", DESCRIPTION_CHARS + 1), DESCRIPTION_CHARS)
