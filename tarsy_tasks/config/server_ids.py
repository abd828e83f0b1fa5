"""The id of a server, as used in tool names, queue names and Redis keys.

Owns the syntax of ids, and the alias of a name that is not an id. An id has no dot and no `__`, because both separate a
server from its tool.
"""

import re

__all__ = ["SERVER_ID_PATTERN", "build_server_id"]

SERVER_ID_PATTERN = r"^[A-Za-z0-9](?:_?(?:-_?)*[A-Za-z0-9])*$"
"""Letters and digits at both ends, `-` and `_` between, no `__`; without look-ahead, which pydantic's engine lacks."""


def build_server_id(name: str) -> str:
    """The id of a server that a configuration calls `name`: the name itself when it is an id, else its alias.

    Deterministic, so that agents and workers that read the same file agree.

    Raises:
        ValueError: The name has no ASCII letter or digit.
    """
    alias = re.sub(r"__+", "_", re.sub(r"[^A-Za-z0-9_-]+", "-", name)).strip("_-")
    if not alias:
        raise ValueError("the name of a server needs at least one ASCII letter or digit")
    return alias
