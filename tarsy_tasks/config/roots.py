"""Where a configuration file has its servers, and in which dialect.

Owns the search for mappings and lists of servers, and the keys around them. `dialects` says what clients do
differently, `entries` reads a single server.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pydantic import JsonValue

from tarsy_tasks.config.client_keys import opencode_timeout, split_witsy_arguments, without_older_url
from tarsy_tasks.config.dialects import COMMON, DIALECTS, FOREIGN_SCHEMES, WITHOUT_SERVER, Dialect
from tarsy_tasks.config.entries import ServerEntry, is_comment
from tarsy_tasks.config.key_rules import Rule, Taken, Unused, never
from tarsy_tasks.config.own_keys import OWN_KEYS
from tarsy_tasks.config.placeholders import Surroundings, replace_placeholders
from tarsy_tasks.config.problems import KeyPath, Problem, describe_kind, is_close, unknown_key
from tarsy_tasks.config.tarsy_keys import read_settings

__all__ = ["FoundServers", "find_servers", "read_interceptors"]

_OWN_KEYS = ("$schema", "interceptors", "mcp", "mcpServers", "policy")
_CLOSE_TO = ("mcpServers", "interceptors", "policy")
"""What looks like one of these is a mistake in any file."""
_PLAIN_ROOTS = (
    *("mcpServers", "mcp_servers", "context_servers", "servers", "mcp.servers", "amp.mcpServers"),
    "zencoder.mcpServers",
)
"""Keys at the top level; a dot is part of the key, as editors write their settings."""
_SETTINGS = (("settings",), ("customizations", "vscode"))
"""Where VS Code has settings in other files: those of a workspace, and of a dev container."""
_MCP_KEYS = ("inputs", "servers", "settings")
_FOREIGN_MCP_KEYS = frozenset(
    {"allowed", "excluded", "serverCommand", "timeout", "enabled", "discovery", "disabledMcpServers", "smitheryApiKey"}
)
"""Keys beside the servers under `mcp` that clients have, and no names of servers."""
_ADDRESSES = frozenset({"command", "cmd", "url", "uri", "httpUrl", "serverUrl"})


@dataclass
class FoundServers:
    """What a file says of servers.

    Attributes:
        entries: The servers.
        problems: Problems with the mappings and lists around them.
        left_out: Names of entries that are no server for a worker, by the reason.
        unused: Keys around the servers without a meaning here.
        dialects: Names of the clients that write such a file.
    """

    entries: list[ServerEntry] = field(default_factory=list[ServerEntry])
    problems: list[Problem] = field(default_factory=list[Problem])
    left_out: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    unused: list[Unused] = field(default_factory=list[Unused])
    dialects: list[str] = field(default_factory=list[str])


class _Root(NamedTuple):
    """A mapping or list of servers: its place as `Dialect.roots` has it, where it is, and the mapping around it, if
    that may have lists of servers that are switched off."""

    pattern: str
    at: KeyPath
    servers: JsonValue
    around: Mapping[str, JsonValue] = MappingProxyType({})


def find_servers(data: Mapping[str, JsonValue], path: Path) -> FoundServers:
    """The servers of a file, by its data and its path."""
    found = FoundServers()
    roots = [*_find_roots(data, found)]
    if not roots and not found.problems:
        found.problems += _describe_no_root(data)
        return found
    _check_other_keys(data, roots, path, found)
    surroundings = Surroundings(path, _find_inputs(data))
    named: dict[str, JsonValue] = {}
    for root in roots:
        entries = [*_entries_of(root, found)]
        dialect, rules = _choose_dialect(root.pattern, [raw for _, _, raw in entries], data, path)
        if entries and dialect.name and dialect.name not in found.dialects:
            found.dialects.append(dialect.name)

        def convert(text: str, dialect: Dialect = dialect) -> str:
            return replace_placeholders(text, dialect.placeholders, surroundings)

        for name, at, raw in entries:
            is_off = _is_switched_off(name, root.around)
            if root.pattern == _PROJECTS:
                if named.get(str(name)) == raw:
                    continue  # the same server in several projects
                name = f"{name}-{Path(str(at[1])).name}" if name in named else name
            named[str(name)] = raw
            found.entries.append(ServerEntry(name, at, raw, rules, convert))
            if is_off:
                found.entries[-1].values["enabled"] = False
    _apply_settings(data, found)
    return found


def read_interceptors(data: Mapping[str, JsonValue]) -> Iterator[str | Problem]:
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


_PROJECTS = "projects.*.mcpServers"
_CONTINUE_JSON = "experimental.modelContextProtocolServers"


def _find_roots(data: Mapping[str, JsonValue], found: FoundServers) -> Iterator[_Root]:
    """All roots of the file; then, if there is none, what could be one in another file."""
    roots = [_Root(key, (key,), data[key], data) for key in _PLAIN_ROOTS if data.get(key) is not None]
    projects = data.get("projects")
    if isinstance(projects, dict):
        roots += [
            _Root(_PROJECTS, ("projects", folder, "mcpServers"), project["mcpServers"], project)
            for folder, project in projects.items()
            if isinstance(project, dict) and project.get("mcpServers")
        ]
    experimental = data.get("experimental")
    if isinstance(experimental, dict) and isinstance(listed := experimental.get("modelContextProtocolServers"), list):
        roots.append(_Root(_CONTINUE_JSON, ("experimental", "modelContextProtocolServers"), listed))
    for at in _SETTINGS:
        mcp = _reach(data, (*at, "mcp"))
        if isinstance(mcp, dict) and mcp.get("servers") is not None:
            roots.append(_Root("*.mcp.servers", (*at, "mcp", "servers"), mcp["servers"]))
    if data.get("mcp") is not None:
        roots += _roots_under_mcp(data["mcp"], found, is_only=not roots)
    if not roots and not found.problems:
        extensions = data.get("extensions")
        listed = [*extensions.values()] if isinstance(extensions, dict) else extensions
        if isinstance(listed, list) and any(_is_mapping_with(each, {"type", "cmd", "config"}) for each in listed):
            roots.append(_Root("extensions", ("extensions",), extensions))
        elif data and all(_is_mapping_with(each, _ADDRESSES) for key, each in data.items() if key != "$schema"):
            roots.append(_Root(".", (), {key: each for key, each in data.items() if key != "$schema"}))
    return iter(roots)


def _reach(data: JsonValue | Mapping[str, JsonValue], at: tuple[str, ...]) -> JsonValue:
    for key in at:
        data = data.get(key) if isinstance(data, Mapping) else None
    assert not isinstance(data, Mapping) or isinstance(data, dict)
    return data


def _roots_under_mcp(mcp: JsonValue, found: FoundServers, *, is_only: bool) -> list[_Root]:
    if not isinstance(mcp, dict):
        found.problems.append(
            Problem(("mcp",), f"found {describe_kind(mcp)}, expected a mapping with the key `servers`")
        )
        return []
    if "servers" in mcp:
        unknown = [key for key in mcp if key not in (*_MCP_KEYS, *_FOREIGN_MCP_KEYS) and not is_comment(key)]
        found.problems += [unknown_key(("mcp", key), _MCP_KEYS) for key in unknown]
        return [_Root("mcp.servers", ("mcp", "servers"), mcp["servers"])]
    if any(_is_mapping_with(each, {"type", "command", "url", "enabled"}) for each in mcp.values()):
        servers: JsonValue = {key: each for key, each in mcp.items() if key not in _FOREIGN_MCP_KEYS}
        return [_Root("mcp", ("mcp",), servers)]
    unknown = [key for key in mcp if key not in _FOREIGN_MCP_KEYS]
    found.problems += [unknown_key(("mcp", key), _MCP_KEYS) for key in unknown]
    if is_only and not unknown:
        found.problems.append(Problem(("mcp", "servers"), "this key is required, but missing"))
    return []


def _is_mapping_with(value: JsonValue, keys: "set[str] | frozenset[str]") -> bool:
    return isinstance(value, dict) and not keys.isdisjoint(value)


def _describe_no_root(data: Mapping[str, JsonValue]) -> list[Problem]:
    close = [key for key in data if is_close(key, (*_CLOSE_TO, "context_servers", "mcp_servers"))]
    if close:
        return [unknown_key((key,), _OWN_KEYS, also=("context_servers", "mcp_servers", "servers")) for key in close]
    return [Problem((), "there are no servers; expected the key `mcpServers` with a mapping of names to servers")]


def _check_other_keys(data: Mapping[str, JsonValue], roots: list[_Root], path: Path, found: FoundServers) -> None:
    if not isinstance(schema := data.get("$schema", ""), str):
        found.problems.append(Problem(("$schema",), f"found {describe_kind(schema)}, expected a string"))
    taken = {"$schema", "inputs", "interceptors", "mcp", "policy", *(str(root.at[0]) for root in roots if root.at)}
    others = [key for key in data if key not in taken and not is_comment(key) and any(root.at for root in roots)]
    dialects = [each for root in roots for each in DIALECTS if root.pattern in each.roots]
    known = {key for each in dialects for key in (each.file_keys or "").split()}
    is_of_client = any(each.file_keys is None or path.name == each.file_name for each in dialects)
    if is_of_client or not known.isdisjoint(others):
        # The file is all that its client has to remember: only what looks like a key of ours is a mistake.
        others = [key for key in others if key not in known and is_close(key, _CLOSE_TO)]
    found.problems += [unknown_key((key,), _OWN_KEYS) for key in others]


def _find_inputs(data: Mapping[str, JsonValue]) -> dict[str, str | None]:
    lists = [data.get("inputs"), data.get("mcp.inputs")]
    lists += [_reach(data, (*at, "mcp", "inputs")) for at in ((), *_SETTINGS)]
    inputs: dict[str, str | None] = {}
    for each in (each for listed in lists if isinstance(listed, list) for each in listed):
        if isinstance(each, dict) and isinstance(name := each.get("id"), str):
            default = each.get("default")
            inputs[name] = default if isinstance(default, str) else None
    return inputs


def _entries_of(root: _Root, found: FoundServers) -> Iterator[tuple[JsonValue, KeyPath, dict[str, JsonValue]]]:
    """Name, place and keys of each server, without its name."""
    if isinstance(root.servers, list):
        items = [(None, (*root.at, index), raw) for index, raw in enumerate(root.servers)]
        needed = "a `name`"
    elif isinstance(root.servers, dict):
        entries = root.servers.items()
        items = [
            (name, (*root.at, name), raw) for name, raw in entries if isinstance(raw, dict) or not is_comment(name)
        ]
        needed = "a `command` or a `url`"
    else:
        kind = describe_kind(root.servers)
        found.problems.append(Problem(root.at, f"found {kind}, expected a mapping of names to servers"))
        return
    for name, at, raw in items:
        if not isinstance(raw, dict):
            found.problems.append(Problem(at, f"found {describe_kind(raw)}, expected a mapping with {needed}"))
        elif reason := _why_left_out(root.pattern, raw):
            found.left_out.setdefault(reason, []).append(str(name or raw.get("name") or raw.get("uses")))
        elif name is None:
            raw = split_witsy_arguments(raw)
            # 5ire has a key, Witsy a label that may be missing.
            name = next((raw[key] for key in ("name", "key", "label", "uuid") if raw.get(key) is not None), None)
            if name is None and root.pattern == _CONTINUE_JSON:
                name = f"continue-mcp-server-{int(at[-1]) + 1}"  # as Continue itself names those without a name
            yield name, at, {key: each for key, each in raw.items() if key != "name"}
        else:
            yield name, at, without_older_url(raw)


def _why_left_out(pattern: str, raw: Mapping[str, JsonValue]) -> str:
    """Why a worker cannot use an entry as a server; empty if it can."""
    inner = raw["config"] if isinstance(raw.get("config"), dict) else raw
    assert isinstance(inner, Mapping)
    if reason := next((why for scheme, why in FOREIGN_SCHEMES.items() if _has_scheme(inner, scheme)), ""):
        return reason
    if "tcp" in inner and _ADDRESSES.isdisjoint(inner):  # as Gemini CLI names a WebSocket, with or without a scheme
        return FOREIGN_SCHEMES["ws"]
    parts = [key for key, values in WITHOUT_SERVER.items() if inner.get(key) in values]
    if not _ADDRESSES.isdisjoint(inner) and "type" not in parts:
        return ""
    is_part = "uses" in raw or parts
    # An editor's extension brings the server, or another file of the client.
    is_setting = pattern in ("context_servers", "mcp") and raw.keys() <= {"enabled", "settings", "timeout", "remote"}
    return "they are parts of the client" if is_part or (raw and is_setting) else ""


def _has_scheme(entry: Mapping[str, JsonValue], scheme: str) -> bool:
    transport = entry.get("transport")
    inner = transport if isinstance(transport, dict) else {}
    return any(
        isinstance(url := table.get(key), str) and url.lower().startswith(f"{scheme}://")
        for table in (entry, inner)
        for key in _ADDRESSES
    )


def _is_switched_off(name: JsonValue, around: Mapping[str, JsonValue]) -> bool:
    """Whether a list beside the servers, as Gemini CLI and Claude Code have them, leaves a server out."""
    mcp = around.get("mcp")
    inner = mcp if isinstance(mcp, dict) else {}
    allowed = _listed(inner, "allowed") + _listed(around, "allowMCPServers")
    excluded = _listed(inner, "excluded") + _listed(around, "excludeMCPServers") + _listed(around, "disabledMcpServers")
    return name in excluded or (bool(allowed) and name not in allowed)


def _listed(table: Mapping[str, JsonValue], key: str) -> list[JsonValue]:
    listed = table.get(key)
    return listed if isinstance(listed, list) else []


def _choose_dialect(
    pattern: str, entries: list[dict[str, JsonValue]], data: Mapping[str, JsonValue], path: Path
) -> tuple[Dialect, dict[str, Rule]]:
    """The dialect with the most keys that few others have, or whose name the file bears; and the rules of all, for
    people copy entries from one client to another."""
    candidates = [each for each in DIALECTS if pattern in each.roots]
    everyday = _keys_of(COMMON) | OWN_KEYS.keys()
    keys = [_keys_of(each) - everyday for each in candidates]
    file_keys = [{*(each.file_keys or "").split()} for each in candidates]
    used = {key for entry in entries for key in entry}
    folder = path.absolute().parent.name
    named_by = f"{folder if folder.startswith('.') else ''} {path.name} {data.get('$schema')}"
    words = re.findall(r"[a-z]+", named_by.lower())

    def rate(index: int) -> float:
        # The name counts where it decides how texts are read: that may be all that such a file has of its client.
        is_named = candidates[index].placeholders and candidates[index].name.split()[0].lower() in words
        return bool(is_named) + sum(
            1 / sum(key in others for others in every)
            for every, found in ((keys, used), (file_keys, data.keys()))
            for key in every[index] & found
        )

    rates = [*map(rate, range(len(candidates)))]
    highest = max(rates, default=0)
    # Without a sign of another one it is the common form, where a place for servers may have that.
    best = candidates[rates.index(highest)] if highest or pattern not in COMMON.roots else COMMON
    rules: dict[str, Rule] = {}
    for each in (*DIALECTS, *reversed(candidates), COMMON, best):
        rules |= {**dict.fromkeys(each.ignored.split(), never()), **each.keys}
    foreign = OWN_KEYS.keys() - {key for each in candidates for key in each.keys}
    return best, {key: rule for key, rule in rules.items() if key not in foreign}


def _keys_of(dialect: Dialect) -> set[str]:
    return {*dialect.keys, *dialect.ignored.split()}


def _apply_settings(data: Mapping[str, JsonValue], found: FoundServers) -> None:
    mcp = data.get("mcp")
    if not isinstance(mcp, dict) or "servers" not in mcp:
        return
    defaults: list[Taken] = []
    for key, read in (("settings", read_settings), ("timeout", opencode_timeout)):
        for each in read(mcp[key], ("mcp", key)) if mcp.get(key) is not None else ():
            match each:
                case Taken():
                    defaults.append(each)
                case Unused():
                    found.unused.append(each)
                case Problem():
                    found.problems.append(each)
    for entry in found.entries:
        if entry.at[:2] == ("mcp", "servers"):
            entry.take_defaults(defaults)
