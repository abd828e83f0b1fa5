"""The accepted forms of a configuration file, converted to one: a flat entry for each server.

Owns the roots and alternative keys. It checks no values (`servers.ServerConfig` does), and remembers where each key
came from, so that an error shows the spelling of the file.
"""

from collections.abc import Iterator

from pydantic import JsonValue

from tarsy_tasks.config.auth import without_auth_type
from tarsy_tasks.config.problems import KeyPath, Problem, describe_kind, format_path, unknown_key

__all__ = ["ALTERNATIVE_KEYS", "AUTH_FILE_KEYS", "FILE_KEYS", "ServerEntry", "read_entries", "read_interceptors"]

ALTERNATIVE_KEYS: dict[str, tuple[str, ...]] = {
    "type": ("transport",),
    "disabled": ("enabled",),
    "bearer_token": ("auth",),
}
"""Alternative keys of an entry, and the keys of `ServerConfig` that they set."""

FILE_KEYS: dict[str, str] = {f"{key}_file": key for key in ("env", "headers", "url", "bearer_token")}
AUTH_FILE_KEYS: dict[str, str] = {f"{key}_file": key for key in ("token", "key", "client_id", "client_secret")}
"""Keys with paths of files instead of values, and the keys that they set: `token_file: p` is `token: ${file:p}`, and
`env_file` maps names to files as `env` maps names to values.
"""

_NESTED_KEYS: dict[str, tuple[str, ...]] = {
    **{key: ALTERNATIVE_KEYS[key] for key in ("type", "bearer_token")},
    **{key: (key,) for key in ("command", "args", "env", "cwd", "url", "headers", "auth", "verify_ssl", "ca_file")},
    "timeout": ("timeouts", "call_s"),
}
"""Keys of a `transport: {…}` inside an entry, and the places in `ServerConfig` that they set."""

_ROOT_KEYS = ("mcpServers", "mcp", "interceptors", "$schema")


class ServerEntry:
    """One server of a file, in the keys of `ServerConfig`.

    Attributes:
        name: The name in the file, which need not be an id; None when the entry has no valid one.
        at: The place of the entry.
        values: Its values, without the name.
        problems: Problems with its keys.
    """

    def __init__(self, name: JsonValue, at: KeyPath, raw: dict[str, JsonValue]) -> None:
        self.name = name if isinstance(name, str) else None
        self.at = at
        self.values: dict[str, JsonValue] = {}
        self.problems: list[Problem] = []
        self._origins: dict[KeyPath, KeyPath] = {}
        if name is None:
            self.problems.append(Problem((*at, "name"), "this key is required, but missing"))
        elif not isinstance(name, str):
            self.problems.append(Problem((*at, "name"), f"found {describe_kind(name)}, expected a string"))
        nested = transport if isinstance(transport := raw.get("transport"), dict) else {}
        for key, value in raw.items():
            if key not in FILE_KEYS and (key != "transport" or not nested):
                self._take(ALTERNATIVE_KEYS.get(key, (key,)), value, (*at, key))
        for key, value in nested.items():
            where = (*at, "transport", key)
            if key in _NESTED_KEYS:
                self._take(_NESTED_KEYS[key], value, where)
            elif key not in FILE_KEYS:
                self.problems.append(unknown_key(where, [*_NESTED_KEYS, *FILE_KEYS]))
        # Last: they add to `env` and `headers`.
        for entry, where in ((raw, at), (nested, (*at, "transport"))):
            for key, value in entry.items():
                if key in FILE_KEYS:
                    self._take_file(FILE_KEYS[key], value, (*where, key))

    def locate(self, loc: KeyPath) -> KeyPath:
        """The place in the file of the value at a place of a `ServerConfig`."""
        loc = without_auth_type(loc)
        for length in range(len(loc), 0, -1):
            if loc[:length] in self._origins:
                return self._origins[loc[:length]] + loc[length:]
        return self.at + loc

    def _take(self, loc: tuple[str, ...], value: JsonValue, where: KeyPath) -> None:
        if where[-1] == "disabled" and isinstance(value, bool):
            value = not value
        elif loc == ("auth",) and where[-1] != "auth":
            value = {"type": "bearer", "token": value}
            self._origins[("auth", "token")] = where
        elif loc == ("auth",) and isinstance(value, dict):
            value = self._with_files(value, where)
        table = self.values
        for key in loc[:-1]:
            inner = table.setdefault(key, {})
            if not isinstance(inner, dict):
                return  # reported when the values are checked
            table = inner
        if loc[-1] not in table:
            # A copy, because keys may be added: with a YAML anchor, the same mapping is in several places.
            table[loc[-1]] = dict(value) if isinstance(value, dict) else value
            self._origins[loc] = where
        elif table[loc[-1]] != value:
            self.problems.append(
                Problem(where, f"conflicts with `{format_path(self.locate(loc))}`; keep only one of them")
            )

    def _take_file(self, key: str, paths: JsonValue, where: KeyPath) -> None:
        if key not in ("env", "headers"):
            self._take(ALTERNATIVE_KEYS.get(key, (key,)), _reference(paths), where)
        elif isinstance(paths, dict):
            for name, path in paths.items():
                self._take((key, name), _reference(path), (*where, name))
        else:
            self.problems.append(Problem(where, f"found {describe_kind(paths)}, expected a mapping of names to files"))

    def _with_files(self, auth: dict[str, JsonValue], where: KeyPath) -> dict[str, JsonValue]:
        values = {key: value for key, value in auth.items() if key not in AUTH_FILE_KEYS}
        for key, meant in AUTH_FILE_KEYS.items():
            if key not in auth:
                continue
            if meant in values:
                other = format_path((*where, meant))
                self.problems.append(Problem((*where, key), f"conflicts with `{other}`; keep only one of them"))
            values[meant] = _reference(auth[key])
            self._origins[("auth", meant)] = (*where, key)
        return values


def _reference(path: JsonValue) -> JsonValue:
    """A reference to a file; an invalid path stays, and is reported as an invalid value."""
    return f"${{file:{path}}}" if isinstance(path, str) and path else path


def read_entries(data: dict[str, JsonValue]) -> Iterator[ServerEntry | Problem]:
    """The servers of a file, and the problems with the mappings and lists around them."""
    unknown = [unknown_key((key,), _ROOT_KEYS) for key in data if key not in _ROOT_KEYS]
    yield from unknown
    if not isinstance(schema := data.get("$schema", ""), str):
        yield Problem(("$schema",), f"found {describe_kind(schema)}, expected a string")
    if "mcpServers" in data:
        yield from _read_mapping(data["mcpServers"], ("mcpServers",))
    elif "mcp" not in data and not unknown:
        yield Problem((), "there are no servers; expected the key `mcpServers` with a mapping of names to servers")
    if "mcp" in data:
        yield from _read_mcp(data["mcp"])


def read_interceptors(data: dict[str, JsonValue]) -> Iterator[str | Problem]:
    """The names of the interceptors of a file, in order, and the problems with them."""
    found = data.get("interceptors", [])
    if not isinstance(found, list):
        yield Problem(("interceptors",), f"found {describe_kind(found)}, expected a list of names")
        return
    for index, name in enumerate(found):
        if not isinstance(name, str):
            yield Problem(("interceptors", index), f"found {describe_kind(name)}, expected a name")
        elif name in found[:index]:
            yield Problem(("interceptors", index), "this name is repeated; an interceptor is used once")
        else:
            yield name


def _read_mcp(mcp: JsonValue) -> Iterator[ServerEntry | Problem]:
    if not isinstance(mcp, dict):
        yield Problem(("mcp",), f"found {describe_kind(mcp)}, expected a mapping with the key `servers`")
        return
    unknown = [unknown_key(("mcp", key), ["servers"]) for key in mcp if key != "servers"]
    yield from unknown
    if "servers" not in mcp:
        if not unknown:
            yield Problem(("mcp", "servers"), "this key is required, but missing")
        return
    at: KeyPath = ("mcp", "servers")
    servers = mcp["servers"]
    if not isinstance(servers, list):
        yield from _read_mapping(servers, at)
        return
    for index, raw in enumerate(servers):
        if isinstance(raw, dict):
            yield ServerEntry(
                raw.get("name"), (*at, index), {key: value for key, value in raw.items() if key != "name"}
            )
        else:
            yield Problem((*at, index), f"found {describe_kind(raw)}, expected a mapping with a `name`")


def _read_mapping(servers: JsonValue, at: KeyPath) -> Iterator[ServerEntry | Problem]:
    if not isinstance(servers, dict):
        yield Problem(at, f"found {describe_kind(servers)}, expected a mapping of names to servers")
        return
    for name, raw in servers.items():
        if not isinstance(raw, dict):
            yield Problem((*at, name), f"found {describe_kind(raw)}, expected a mapping with a `command` or a `url`")
            continue
        if "name" in raw:
            yield Problem(
                (*at, name, "name"), "unknown key; the key of the entry is the server's name, so remove this one"
            )
        yield ServerEntry(name, (*at, name), {key: value for key, value in raw.items() if key != "name"})
