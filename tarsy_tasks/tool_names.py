"""Tool names: from what a model wrote to `(server, tool)`, and to names that every model provider accepts.

Owns the spelling of names. It knows neither configuration nor MCP: callers pass the servers, and the tools if they know
them. It does not guess: two readings that both exist are an error, because a wrong tool is worse than none.
"""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from tarsy_tasks.errors import ToolNameError
from tarsy_tasks.outcomes import ErrorCode

__all__ = [
    "LONGEST_NAME",
    "build_name_list",
    "function_name",
    "is_shortened",
    "listed_name",
    "resolve_server",
    "resolve_tool_name",
    "without_prefix",
]

LONGEST_NAME = 512
"""No longer text is read as the name of a tool, in characters."""
_TOOL_NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}", re.ASCII)
"""What MCP 2025-11-25 recommends for the name of a tool."""
_ALIAS_CHARS = 64
_ALIAS_DIGEST_CHARS = 8
_PROVIDER_PREFIXES = ("default_api", "functions", "function", "tools", "tool")
_DIGEST_CHARS = 12
_SHORTEST_LIMIT = 24
_DIGEST_AT_END = re.compile(rf"_([0-9a-f]{{{_DIGEST_CHARS}}})\Z")
_SPACE = re.compile(r"\s")
_LISTED_NAMES = 10
_NAME_CHARS_SHOWN = 80


def build_name_list(names: Iterable[str], parameter: str) -> list[str]:
    """Names as a list.

    Args:
        parameter: What the caller calls them, for the error.

    Raises:
        ValueError: They are one plain string, which would be read as a list of letters.
    """
    if isinstance(names, str):
        raise ValueError(f'{parameter} is the plain string "{names}"; write {parameter}=["{names}"]')
    return list(names)


def resolve_tool_name(name: str, catalogue: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """The server and the tool that `name` means.

    Accepted: `server.tool`, `server:tool`, `server__tool`, `mcp_<server>_<tool>`, `mcp__<server>__<tool>`, each also
    after a provider's prefix (`default_api:`, `functions.`), and every name that `function_name` builds. For `tool`,
    the server's own name is accepted, too, where that is listed under an alias (`listed_name`).

    Args:
        name: As the model wrote it.
        catalogue: The tools of each server.

    Raises:
        ToolNameError: `INVALID_NAME`, `UNKNOWN_SERVER` or `UNKNOWN_TOOL`; the text lists the names that exist, closest
            first.
    """
    readings = list(dict.fromkeys(_readings(name, catalogue)))
    found = [(server, tool) for server, tool in readings if tool in catalogue[server]]
    if not found:
        readings_by_alias = [(server, listed_name(tool)) for server, tool in readings]
        found = [(server, tool) for server, tool in readings_by_alias if tool in catalogue[server]]
    if not found and (digest := _DIGEST_AT_END.search(name)):
        servers = {server for server, _ in readings} if re.search(r"[.:]", name) else catalogue
        found = [
            (server, tool) for server in servers for tool in catalogue[server] if _digest(server, tool) == digest[1]
        ]
    if len(found) > 1:
        # A name that `function_name` built means that tool, whatever else it could mean.
        found = [pair for pair in found if _plain_function_name(*pair) == name] or found
    if len(found) == 1:
        return found[0]
    if found:
        raise _ambiguous(name, found)
    if readings and not _SPACE.search(name):
        server, tool = readings[0]
        known = [f"{server}.{each}" for each in catalogue[server]]
        raise ToolNameError(
            ErrorCode.UNKNOWN_TOOL,
            f"The server {_shown(server)} has no tool {_shown(tool)}. Nothing was sent. "
            + _listing("Its tools", f"{server}.{tool}", known),
        )
    raise _not_resolved(name, catalogue, [f"{s}.{t}" for s, tools in catalogue.items() for t in tools])


def resolve_server(name: str, servers: Collection[str]) -> tuple[str, str]:
    """The server that `name` means, and the rest of the name, for callers that do not know the tools.

    The rest is the tool, or a shortened form of it; `resolve_tool_name(f"{server}.{rest}", catalogue)` finds the tool.

    Raises:
        ToolNameError: `INVALID_NAME` or `UNKNOWN_SERVER`; the text lists the servers, closest first.
    """
    readings = list(dict.fromkeys(_readings(name, servers)))
    if not readings and _DIGEST_AT_END.search(name):
        # The limit was so short that the server's name was cut too.
        head = _DIGEST_AT_END.sub("", name)
        readings = [(server, name) for server in servers if _plain_function_name(server, "").startswith(head)]
    if len({server for server, _ in readings}) > 1:
        readings = [pair for pair in readings if _plain_function_name(*pair) == name] or readings
    if len({server for server, _ in readings}) > 1:
        raise _ambiguous(name, readings)
    if readings:
        return readings[0]
    raise _not_resolved(name, servers, [])


def without_prefix(name: str) -> str:
    """A name without the prefix that a provider has put before it, such as `functions.`"""
    prefix, separator, rest = name.partition("." if "." in name else ":")
    return rest if separator and prefix in _PROVIDER_PREFIXES else name


def is_shortened(name: str) -> bool:
    """Whether a name may be one that `function_name` cut or escaped, of a tool with another name."""
    return _DIGEST_AT_END.search(name) is not None


def listed_name(tool: str) -> str:
    """The name by which a tool is listed and called: its own, if that is valid by MCP's rules, or an alias.

    A valid name has 1 to 128 of the characters A-Z, a-z, 0-9, `_`, `-`, `.` and `/`. An alias consists of those of the
    tool's name and a digest of it.
    """
    if _TOOL_NAME.fullmatch(tool):
        return tool
    readable = re.sub(r"[^A-Za-z0-9_./-]+", "_", tool[:_ALIAS_CHARS]).strip("_") or "tool"
    digest = hashlib.sha256(tool.encode("utf-8", "replace")).hexdigest()[:_ALIAS_DIGEST_CHARS]
    return f"{readable}-{digest}"


def function_name(server: str, tool: str, limit: int = 64) -> str:
    """A name for a provider's function declaration: `server__tool` in `[A-Za-z0-9_-]`, at most `limit` characters.

    A name that does not fit is escaped or cut, and then ends in a digest of the canonical name, by which
    `resolve_tool_name` finds the tool.

    Raises:
        ValueError: The limit leaves no room for a recognizable name.
    """
    if limit < _SHORTEST_LIMIT:
        raise ValueError(f"limit must be at least {_SHORTEST_LIMIT}, not {limit}")
    plain = _plain_function_name(server, tool)
    escaped = re.sub(r"[^A-Za-z0-9_-]", "_", plain)
    if escaped == plain and len(plain) <= limit and not _DIGEST_AT_END.search(plain):
        return plain
    return f"{escaped[: limit - _DIGEST_CHARS - 1]}_{_digest(server, tool)}"


def _plain_function_name(server: str, tool: str) -> str:
    # Gemini requires a letter or an underscore first; after a server's own `mcp_`, another server would be searched.
    prefix = "mcp_" if server[:1].isdigit() or server.startswith("mcp_") else ""
    return f"{prefix}{server}__{tool}"


def _digest(server: str, tool: str) -> str:
    # Replaced, not refused: a server may name a tool with half of a surrogate pair.
    return hashlib.sha256(f"{server}.{tool}".encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]


def _readings(name: str, servers: Collection[str]) -> Iterator[tuple[str, str]]:
    """All ways to read `name` as a known server and a rest that is not empty; the most explicit form first."""
    if len(name) > LONGEST_NAME:
        return
    if _SPACE.search(name):
        # A server may list a tool under such a name, which is then called as listed; other forms have no spaces.
        yield from ((server, tool) for server, tool in _separated(name, servers) if tool == tool.strip())
        return
    yield from _separated(name, servers)
    for prefix in _PROVIDER_PREFIXES:
        if name.startswith((f"{prefix}.", f"{prefix}:")) and prefix not in servers:
            yield from _readings(name[len(prefix) + 1 :], servers)
            return
    if re.search(r"[.:]", name):
        return
    if name.startswith("mcp__") and "mcp" not in servers:
        yield from _separated(name.removeprefix("mcp__"), servers)
    elif name.startswith("mcp_"):
        rest = name.removeprefix("mcp_")
        double = list(_separated(rest, servers))
        yield from double
        if not double:
            yield from ((s, rest[len(s) + 1 :]) for s in servers if rest.startswith(f"{s}_") and len(rest) > len(s) + 1)


def _separated(name: str, servers: Collection[str]) -> Iterator[tuple[str, str]]:
    separator = found[0] if (found := re.search(r"[.:]", name)) else "__"
    server, _, tool = name.partition(separator)
    if tool and server in servers:
        yield server, tool


def _not_resolved(name: str, servers: Collection[str], tools: list[str]) -> ToolNameError:
    parts = re.split(r"[.:]|__", name, maxsplit=1)
    if _SPACE.search(name) or len(parts) < 2 or not all(parts) or len(name) > LONGEST_NAME:
        return ToolNameError(
            ErrorCode.INVALID_NAME,
            f"{_shown(name)} is not the name of a tool: write server.tool, without spaces. Nothing was sent. "
            + (_listing("Tools", name, tools) if tools else _listing("Servers", name, servers)),
        )
    if parts[0] in servers:
        return ToolNameError(
            ErrorCode.INVALID_NAME,
            f"{_shown(name)} mixes two ways to write a name: write {_clipped(f'{parts[0]}.{parts[1]}')}. "
            f"Nothing was sent. {_listing('Tools', name, [each for each in tools if each.startswith(f'{parts[0]}.')])}",
        )
    # A model that knows the tool but not its server needs to know which servers have it.
    same_tool = [each for each in tools if each.partition(".")[2] == parts[1]]
    hint = f"{_listing('Tools with that name', name, same_tool)} " if same_tool else ""
    return ToolNameError(
        ErrorCode.UNKNOWN_SERVER,
        f"There is no server {_shown(parts[0])}. Nothing was sent. {hint}{_listing('Servers', parts[0], servers)}",
    )


def _ambiguous(name: str, readings: list[tuple[str, str]]) -> ToolNameError:
    return ToolNameError(
        ErrorCode.INVALID_NAME,
        f"{_shown(name)} can mean more than one tool. Nothing was sent. "
        + _listing("Write one of", name, [f"{server}.{tool}" for server, tool in readings]),
    )


def _shown(name: str) -> str:
    return f'"{_clipped(name)}"'


def _clipped(name: str) -> str:
    name = name.encode("utf-8", "backslashreplace").decode()  # half of a surrogate pair cannot be sent
    return name if len(name) <= _NAME_CHARS_SHOWN else f"{name[: _NAME_CHARS_SHOWN - 1]}…"


def _listing(title: str, wanted: str, names: Collection[str]) -> str:
    if not names:
        return f"{title}: none."
    wanted_pairs = _letter_pairs(wanted[:LONGEST_NAME])
    ranked = sorted(names, key=lambda name: (-_likeness(wanted_pairs, name), name))
    more = f" and {len(ranked) - _LISTED_NAMES} more" if len(ranked) > _LISTED_NAMES else ""
    order = ", closest first" if len(ranked) > 1 else ""
    return f"{title}{order}: {', '.join(map(_clipped, ranked[:_LISTED_NAMES]))}{more}."


def _letter_pairs(name: str) -> set[str]:
    folded = f" {name.casefold()} "
    return {folded[i : i + 2] for i in range(len(folded) - 1)}


def _likeness(wanted_pairs: set[str], name: str) -> float:
    pairs = _letter_pairs(name[:LONGEST_NAME])
    return 2 * len(wanted_pairs & pairs) / (len(wanted_pairs) + len(pairs))
