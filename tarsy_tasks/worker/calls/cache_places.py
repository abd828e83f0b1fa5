"""Where answers are kept in the cache: calls with the same place and field are the same question.

Owns what counts as the same. No key and no field shows a URI, an argument or a credential.
"""

import hashlib
from typing import Literal
from urllib.parse import urlsplit

from tarsy_tasks.methods import READ_RESOURCE
from tarsy_tasks.worker.sessions.connection import ServerConnection

__all__ = ["RESOURCES", "TOOLS", "Kind", "field_of", "fields_of_change", "place_of", "wholes_of"]

Kind = Literal["tools", "resources"]
TOOLS: Kind = "tools"
RESOURCES: Kind = "resources"

_PARENTS = 32


def place_of(connection: ServerConnection, kind: Kind) -> str:
    """For the answers of a server to a credential, as they are masked; empty if it was never connected."""
    identity = connection.identity
    if not identity:
        return ""
    masking = connection.server.masking.model_dump_json()
    return f"{connection.server.name}:{_digest(kind, identity, masking)}"


def field_of(*question: str) -> str:
    """For one question in its place; only its last part may have line breaks."""
    return _digest(*question)


def fields_of_change(uri: str) -> list[str]:
    """The fields of a resource that changed, and of those that it may be a part of."""
    return [field_of(READ_RESOURCE, each) for each in wholes_of(uri)]


def wholes_of(uri: str) -> list[str]:
    """A resource, and those that it may be a part of."""
    found = [uri]
    try:
        path = urlsplit(uri).path if "/" in uri else ""
    except ValueError:  # what seems to be an address is none
        path = ""
    for _ in range(min(path.count("/"), _PARENTS)):
        uri = uri.rstrip("/").rpartition("/")[0]
        found += [uri, f"{uri}/"]
    return [each for each in found if each]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
