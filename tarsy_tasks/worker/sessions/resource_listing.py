"""resources/list and resources/templates/list: all pages of them, masked.

Owns what is kept of a resource, and how much of a list. Definitions are masked in slices, away from the event loop.
"""

from typing import Any

from mcp import Client
from mcp_types import ListResourcesResult, ListResourceTemplatesResult, Resource
from mcp_types import ResourceTemplate as ListedTemplate

from tarsy_tasks.methods import LIST_RESOURCE_TEMPLATES, LIST_RESOURCES
from tarsy_tasks.resources import ResourceDefinition, ResourceTemplate
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

__all__ = ["list_resource_templates", "list_resources"]

_URI_CHARS = 8 * 1024


async def list_resources(
    client: Client, server: str, masker: Masker, long_work: LongWork
) -> DefinitionList[ResourceDefinition]:
    """The resources of a server; none if it does not announce any.

    Raises:
        ListingError: The list does not end, or is too long.
        MCPError: The request failed.
    """
    kept = DefinitionList[ResourceDefinition](LIST_RESOURCES)
    if client.server_capabilities.resources is not None:

        async def fetch(cursor: str | None) -> ListResourcesResult:
            return await client.list_resources(cursor=cursor)

        def build(found: Resource) -> ResourceDefinition:
            return ResourceDefinition(
                uri=masker.mask_start(found.uri, _URI_CHARS), size_bytes=found.size, **_fields_of(found, server, masker)
            )

        async for page in read_pages(LIST_RESOURCES, fetch, lambda page: len(page.resources)):
            kept.note_hint(page)
            await kept.add(page.resources, build, long_work)
    return kept


async def list_resource_templates(
    client: Client, server: str, masker: Masker, long_work: LongWork
) -> DefinitionList[ResourceTemplate]:
    """The templates of a server's resources. Raises as `list_resources`."""
    kept = DefinitionList[ResourceTemplate](LIST_RESOURCE_TEMPLATES)
    if client.server_capabilities.resources is not None:

        async def fetch(cursor: str | None) -> ListResourceTemplatesResult:
            return await client.list_resource_templates(cursor=cursor)

        def build(found: ListedTemplate) -> ResourceTemplate:
            template = masker.mask_start(found.uri_template, _URI_CHARS)
            return ResourceTemplate(uri_template=template, **_fields_of(found, server, masker))

        async for page in read_pages(LIST_RESOURCE_TEMPLATES, fetch, lambda page: len(page.resource_templates)):
            kept.note_hint(page)
            await kept.add(page.resource_templates, build, long_work)
    return kept


def _fields_of(found: Resource | ListedTemplate, server: str, masker: Masker) -> dict[str, Any]:
    """The fields that resources and templates have in common."""
    icons, meta = [*map(dump_part, found.icons or ())], dict(found.meta or {})
    description = masker.mask_start(found.description or "", DESCRIPTION_CHARS + 1)
    return {
        "server": server,
        "name": masker.mask_start(found.name, SHOWN_CHARS),
        "title": masker.mask_start(found.title or "", SHOWN_CHARS),
        "description": cut_text(description, DESCRIPTION_CHARS),
        "mime_type": found.mime_type and masker.mask_start(found.mime_type, SHOWN_CHARS),
        "annotations": mask_object(dump_part(found.annotations), masker),
        "icons": tuple(mask_object(icon, masker) for icon in icons) if is_short(icons) else (),
        "meta": mask_object(meta, masker) if is_short(meta) else {},
    }
