"""The policy of a deployment: finding it, reading it, and reporting its problems.

Owns where it is, a part of the configuration file or a file of its own, and the check of the names in it against the
servers that are configured. A policy with a problem is refused whole.
"""

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from pydantic import JsonValue, ValidationError

from tarsy_tasks.config import find_config_path
from tarsy_tasks.config.file import ConfigFile, FileKind, read_config_file
from tarsy_tasks.config.loading import load_file
from tarsy_tasks.config.problems import KeyPath, Problem, describe_kind, describe_validation, format_path, suggest
from tarsy_tasks.errors import ConfigError
from tarsy_tasks.policy.decisions import Policy
from tarsy_tasks.policy.limits import LimitRule
from tarsy_tasks.policy.model import AgentRules, ArgumentRule, PolicyRules, ServerRules, ToolRules
from tarsy_tasks.policy.names import EVERYONE, Capability, has_wildcard, parse_capability, restricts, split_pattern
from tarsy_tasks.settings import load_settings

__all__ = ["add_to_config_schema", "find_idle_patterns", "load_policy"]

_KEY = "policy"
_VARIABLE = "TARSY_POLICY"
_POLICY = FileKind(
    "policy",
    "the keys `agents`, `servers`, `arguments` or `limits`",
    '{"agents": {"*": {"allow": ["*"]}}}',
    "write it as JSON, which may be larger",
)


def load_policy(config_path: Path | None = None) -> Policy | None:
    """The policy that holds here, of the file that `TARSY_POLICY` names or of the configuration file; None without one.

    Args:
        config_path: The configuration file; None: see `find_config_path`. An agent's machine may have none: then only
            the names of servers are not checked.

    Raises:
        ConfigError: One line for each problem; or there are two policies.
    """
    named = load_settings().policy
    try:
        config_path = config_path or find_config_path()
    except ConfigError:
        return None if named is None else _load_file(named, None)
    config = load_file(config_path)
    inline = config.file.data.get(_KEY)
    servers = [*config.servers]
    if named is None:
        return None if inline is None else _build(config.file, inline, (_KEY,), servers)
    if inline is not None:
        raise ConfigError(
            f"{config.file.path}: {_KEY}: there are two policies, this one and {named}, which {_VARIABLE} names; "
            "remove one of them"
        )
    return _load_file(named, servers)


def add_to_config_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """JSON Schema of a configuration file, with the key for a policy."""
    policy = PolicyRules.model_json_schema()
    definitions = {**schema.get("$defs", {}), **policy.pop("$defs")}
    properties = {**schema["properties"], _KEY: {**policy, "description": "Which agent may call which tool, and how."}}
    return {**schema, "properties": properties, "$defs": definitions}


def find_idle_patterns(rules: PolicyRules, tools: Mapping[str, Collection[str]]) -> list[str]:
    """What names a tool that there is not, a line each.

    Args:
        tools: Those that were seen, by server; what is said of other servers may be right.
    """
    found: list[str] = []
    for place, server_pattern, tool_pattern in _tool_patterns(rules):
        servers = [server for server in tools if restricts([server_pattern], server)]
        # A pattern for all tools is right for any server; and a server whose tools were never seen may have one.
        is_judged = tool_pattern != EVERYONE and servers and all(tools[server] for server in servers)
        if is_judged and not any(restricts([tool_pattern], tool) for server in servers for tool in tools[server]):
            found.append(f"{format_path(place)}: no known tool of {', '.join(servers)} matches `{tool_pattern}`")
    return found


def _tool_patterns(rules: PolicyRules) -> Iterator[tuple[KeyPath, str, str]]:
    """Every pattern of tools, with its place and the pattern of its servers."""
    for name, agent in rules.agents.items():
        for key in ("allow", "deny"):
            for index, pattern in enumerate(getattr(agent, key)):
                yield ("agents", name, key, index), *split_pattern(pattern)
    for name, server in rules.servers.items():
        for key in ("allow", "deny"):
            for index, pattern in enumerate(getattr(server, key)):
                yield ("servers", name, key, index), name, pattern
        for pattern in server.tools:
            yield ("servers", name, "tools", pattern), name, pattern
    for number, rule in enumerate(rules.arguments):
        for index, pattern in enumerate(rule.tools):
            yield ("arguments", number, "tools", index), *split_pattern(pattern)
    for number, limit in enumerate(rules.limits):
        for index, pattern in enumerate(limit.tools):
            yield ("limits", number, "tools", index), *split_pattern(pattern)


def _load_file(path: Path, servers: Collection[str] | None) -> Policy:
    try:
        file = read_config_file(path, _POLICY)
    except ConfigError as error:
        raise ConfigError(f"{error}; {_VARIABLE} names it") from None
    data = {key: value for key, value in file.data.items() if key != "$schema"}
    return _build(file, data, (), servers)


def _build(file: ConfigFile, data: JsonValue, at: KeyPath, servers: Collection[str] | None) -> Policy:
    """The policy of a file.

    Args:
        at: Where the file has it.
        servers: All that are configured; None if that is not known.
    """
    if not isinstance(data, dict):
        raise file.build_error([Problem(at, f"found {describe_kind(data)}, expected a mapping")])
    problems = [each for each in file.problems if each.at[: len(at)] == at]
    try:
        rules = PolicyRules.model_validate(data)
    except ValidationError as error:
        problems += describe_validation(error, lambda loc: (*at, *loc), _known_keys)
    else:
        if servers is not None:
            problems += [Problem((*at, *place), text) for place, text in _find_unknown(rules, servers)]
        if not problems:
            return Policy(rules, str(file.path))
    raise file.build_error(problems)


def _known_keys(loc: KeyPath) -> Collection[str]:
    """The valid keys of the mapping at a place of a policy."""
    match loc:
        case ():
            model: Any = PolicyRules
        case ("agents", _):
            model = AgentRules
        case ("servers", _, "tools", _):
            model = ToolRules
        case ("servers", _):
            model = ServerRules
        case ("limits", *_):
            model = LimitRule
        case _:
            model = ArgumentRule
    return [*model.model_fields]


def _find_unknown(rules: PolicyRules, servers: Collection[str]) -> Iterator[tuple[KeyPath, str]]:
    """What names a server that there is not."""
    for name in rules.servers:
        if name not in servers:
            yield ("servers", name), f"no such server is configured; {suggest(name, servers)}"
    known: dict[str, str | None] = {}
    for place, pattern in _server_patterns(rules):
        if pattern not in known:
            known[pattern] = _unknown_server(pattern, servers)
        if (text := known[pattern]) is not None:
            yield place, text


def _server_patterns(rules: PolicyRules) -> Iterator[tuple[KeyPath, str]]:
    """Every pattern of servers, with its place."""
    for place, pattern, _ in _tool_patterns(rules):
        if place[0] != "servers":
            yield place, pattern
    for name, agent in rules.agents.items():
        for index, text in enumerate(agent.capabilities):
            yield from _servers_of(("agents", name, "capabilities", index), parse_capability(text))
    for name, server in rules.servers.items():
        for pattern, tool in server.tools.items():
            for index, text in enumerate(tool.required_capabilities):
                place = ("servers", name, "tools", pattern, "required_capabilities", index)
                yield from _servers_of(place, parse_capability(text))


def _servers_of(place: KeyPath, capability: Capability) -> Iterator[tuple[KeyPath, str]]:
    if len(capability) > 1:
        yield place, capability[1]


def _unknown_server(pattern: str, servers: Collection[str]) -> str | None:
    if pattern == EVERYONE or pattern in servers:
        return None
    if not has_wildcard(pattern):
        return f"no server `{pattern}` is configured; {suggest(pattern, servers)}"
    if any(fnmatchcase(server, pattern) for server in servers):
        return None
    return f"no configured server matches `{pattern}`. Known: {', '.join(sorted(servers))}"
