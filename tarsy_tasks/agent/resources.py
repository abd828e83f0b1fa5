"""Which resource an agent means.

Owns finding the server and the URI of what an agent wants to read. The request itself is `dispatcher`'s.
"""

from collections.abc import Sequence
from typing import Any

from tarsy_tasks.models import Attachment
from tarsy_tasks.resources import ResourceDefinition, ResourceTemplate, Values

__all__ = ["Readable", "build_read"]

Readable = ResourceDefinition | ResourceTemplate | Attachment | str
"""What names a resource: what a server has listed, a link in a result, or a URI."""


def build_read(
    resource: Readable, server: str | None, values: Values | None, servers: Sequence[str]
) -> tuple[str, dict[str, Any]]:
    """The server, and the arguments of the request.

    Args:
        servers: Those that are selected.

    Raises:
        ValueError: It is not known whose resource it is, or a template has no values.
    """
    match resource:
        case str():
            uri, owner = resource, None
        case Attachment():
            uri, owner = resource.uri, None
        case ResourceTemplate():
            uri, owner = resource.uri_template, resource.server
            if values is None:
                raise ValueError(f"{uri} is a template: give `values` for its variables")
        case ResourceDefinition():
            uri, owner = resource.uri, resource.server
    if not uri:
        raise ValueError(f"this {type(resource).__name__} has no URI")
    owner = server or owner or (servers[0] if len(servers) == 1 else None)
    if owner is None:
        raise ValueError(f"{uri}: give the `server` whose resource it is; selected: {', '.join(servers)}")
    if values is None:
        return owner, {"uri": uri}
    given = {name: value if isinstance(value, str) else list(value) for name, value in values.items()}
    return owner, {"uri": uri, "values": given}
