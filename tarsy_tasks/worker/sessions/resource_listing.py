"""resources/list and resources/templates/list: all pages of them, masked. Owns what is kept of a resource."""

from typing import Any

from mcp import Client
from mcp_types import Resource
from mcp_types import ResourceTemplate as ListedTemplate

from tarsy_tasks.methods import LIST_RESOURCE_TEMPLATES, LIST_RESOURCES
from tarsy_tasks.resources import ResourceDefinition, ResourceTemplate
from tarsy_tasks.worker.long_work import LongWork
from tarsy_tasks.worker.maskers import Masker
from tarsy_tasks.worker.sessions.definition_fields import SHOWN_CHARS, dump_part, mask_listed, mask_object
from tarsy_tasks.worker.sessions.definition_list import DefinitionList, list_definitions

__all__ = ["list_resource_templates", "list_resources"]

_URI_CHARS = 8 * 1024


async def list_resources(
    client: Client, server: str, masker: Masker, long_work: LongWork
) -> DefinitionList[ResourceDefinition]:
    """The resources of a server; none if it does not announce any. Raises as `list_definitions`."""

    def build(found: Resource) -> ResourceDefinition:
        uri = masker.mask_start(found.uri, _URI_CHARS)
        return ResourceDefinition(uri=uri, size_bytes=found.size, **_fields_of(found, server, masker))

    if client.server_capabilities.resources is None:
        return DefinitionList()
    return await list_definitions(
        LIST_RESOURCES,
        lambda cursor: client.list_resources(cursor=cursor),
        lambda page: page.resources,
        build,
        long_work,
    )


async def list_resource_templates(
    client: Client, server: str, masker: Masker, long_work: LongWork
) -> DefinitionList[ResourceTemplate]:
    """The templates of a server's resources. Raises as `list_definitions`."""

    def build(found: ListedTemplate) -> ResourceTemplate:
        template = masker.mask_start(found.uri_template, _URI_CHARS)
        return ResourceTemplate(uri_template=template, **_fields_of(found, server, masker))

    if client.server_capabilities.resources is None:
        return DefinitionList()
    return await list_definitions(
        LIST_RESOURCE_TEMPLATES,
        lambda cursor: client.list_resource_templates(cursor=cursor),
        lambda page: page.resource_templates,
        build,
        long_work,
    )


def _fields_of(found: Resource | ListedTemplate, server: str, masker: Masker) -> dict[str, Any]:
    """The fields that resources and templates have in common."""
    return {
        "server": server,
        "name": masker.mask_start(found.name, SHOWN_CHARS),
        "mime_type": found.mime_type and masker.mask_start(found.mime_type, SHOWN_CHARS),
        "annotations": mask_object(dump_part(found.annotations), masker),
        **mask_listed(found, masker),
    }
