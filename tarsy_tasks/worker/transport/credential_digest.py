"""What a worker connects to a server with, as a digest: it keeps apart what different credentials may read.

Owns what counts: whatever may decide what the server shows, and how it is masked. The digest stands in the names of
keys, so it is one that is slow to guess from.
"""

import hashlib
import json
from collections.abc import Mapping

from tarsy_tasks.config import ServerConfig
from tarsy_tasks.config.resolved import ResolvedServer
from tarsy_tasks.config.secret_places import is_secret_name

__all__ = ["digest_credential"]


def digest_credential(server: ServerConfig, resolved: ResolvedServer, inherited: Mapping[str, str]) -> str:
    """32 hexadecimal characters; it takes a few milliseconds.

    Args:
        inherited: The variables that a stdio server gets of the worker's. Those with names of secrets count: others
            differ between workers, and say nothing about what may be read.
    """
    found = {
        "command": resolved.command,
        "args": [each.get_secret_value() for each in resolved.args],
        "env": {name: value.get_secret_value() for name, value in resolved.env.items()},
        "inherited": {name: value for name, value in inherited.items() if is_secret_name(name)},
        "cwd": resolved.cwd,
        "url": None if resolved.url is None else resolved.url.get_secret_value(),
        "headers": {name: value.get_secret_value() for name, value in resolved.headers.items()},
        "auth": None if resolved.auth is None else resolved.auth.model_dump(mode="json"),
        "masking": server.masking.model_dump(mode="json"),
    }
    text = json.dumps(found, sort_keys=True).encode()
    return hashlib.scrypt(text, salt=server.name.encode(), n=1024, r=8, p=1, dklen=16).hex()
