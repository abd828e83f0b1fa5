"""The keys of an entry in our own form, and the other spellings of them that every file may use."""

from collections.abc import Iterable

from pydantic import JsonValue

from tarsy_tasks.config.key_rules import (
    Found,
    Rule,
    at,
    auth,
    bearer,
    command,
    duration,
    file_of,
    files_of,
    inside,
    negated,
    never,
    texts,
)
from tarsy_tasks.config.problems import KeyPath
from tarsy_tasks.config.servers import ServerConfig

__all__ = ["ALTERNATIVE_KEYS", "FILE_KEYS", "OWN_KEYS", "transport"]

ALTERNATIVE_KEYS: dict[str, Rule] = {
    "type": at("transport"),
    "disabled": negated("enabled"),
    "bearer_token": bearer,
}
"""Alternative keys of an entry."""

FILE_KEYS: dict[str, Rule] = {
    "env_file": files_of("env"),
    "headers_file": files_of("headers"),
    "url_file": file_of(at("url")),
    "bearer_token_file": file_of(bearer),
}
"""Keys with paths of files instead of values: `env_file` maps names to files as `env` maps names to values."""

_NESTED_KEYS: dict[str, Rule] = {
    **{key: ALTERNATIVE_KEYS[key] for key in ("type", "bearer_token")},
    **{key: at(key) for key in ("args", "env", "cwd", "url", "headers", "verify_ssl", "ca_file")},
    **FILE_KEYS,
    "auth": auth,
    "command": command,
    "timeout": duration("timeouts", "call_s"),
}
"""Keys of a `transport: {…}` inside an entry."""
_TARSY_NESTED_KEYS: dict[str, Rule] = {
    "args": texts("args"),
    "env": texts("env"),
    "environment": texts("env"),
    "custom_headers": at("headers"),
    "session_cleanup_url": never(),
}
"""The same, as TARSy reads them."""


def transport(value: JsonValue, where: KeyPath) -> Iterable[Found]:
    """The name of a transport, or a mapping of what belongs to it."""
    rule = inside(_NESTED_KEYS | _TARSY_NESTED_KEYS) if isinstance(value, dict) else at("transport")
    return rule(value, where)


OWN_KEYS: dict[str, Rule] = {
    **{key: at(key) for key in ServerConfig.model_fields if key != "name"},
    **ALTERNATIVE_KEYS,
    **FILE_KEYS,
    "auth": auth,
    "command": command,
    "transport": transport,
}
"""The keys that docs/configuration.md lists."""
