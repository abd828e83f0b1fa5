"""Agents, patterns of tools, and capabilities, as a policy writes them.

Owns their syntax and how they are compared. What permits is compared exactly. What restricts also matches names that
differ only in case or in compatible characters (NFKC), so that `Delete_pod` does not escape from `delete_*`.

A capability is a tuple, because one text could mean two things: `mcp_github_admin` is the server `github_admin`, and
`mcp_github.admin` the tool `admin` of `github`. A server's id has no dot, so the first one separates.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable
from fnmatch import translate
from functools import lru_cache
from typing import Annotated, TypeAlias

from pydantic import AfterValidator

from tarsy_tasks.config.server_ids import SERVER_ID_PATTERN

__all__ = [
    "EVERYONE",
    "AgentName",
    "AgentPattern",
    "Capability",
    "CapabilityName",
    "GrantedCapability",
    "ToolPart",
    "ToolPattern",
    "covers",
    "fold",
    "has_wildcard",
    "matches",
    "parse_capability",
    "restricts",
    "split_pattern",
]

EVERYONE = "*"
"""The entry of agents without one of their own."""

Capability: TypeAlias = tuple[str, ...]
"""`("mcp",)`: all tools; `("mcp", server)`; `("mcp", server, tool)`, the tool perhaps a pattern; or `(name,)`."""

_MCP = "mcp"
_GLOBAL = "mcp_integration"
_AGENT = re.compile(r"(?! )[A-Za-z0-9_.@=,+ -]{1,256}(?<! )")
"""Users of Redis, and subjects of certificates (RFC 4514)."""
_PATTERN_OF_AGENTS = re.compile(r"(?! )[A-Za-z0-9_.@=,+ *?-]{1,256}(?<! )")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_PATTERN_OF_TOOLS = re.compile(r"[A-Za-z0-9_./*?-]{1,256}")
_PATTERN_OF_SERVERS = re.compile(r"[A-Za-z0-9_*?-]{1,128}")
_SERVER = re.compile(SERVER_ID_PATTERN)
_COMPILED_PATTERNS = 4096
_FOLDED_NAMES = 1024
"""A name is compared with many patterns, one after the other."""


def _validate_agent(name: str) -> str:
    if name != EVERYONE and not _AGENT.fullmatch(name):
        raise ValueError(
            "not a valid name of an agent; use the name of its Redis user or the subject of its certificate, in ASCII "
            "letters, digits and `_.@=,+-`; `*` is for all agents without an entry"
        )
    return name


def _validate_agents(pattern: str) -> str:
    if not _PATTERN_OF_AGENTS.fullmatch(pattern):
        raise ValueError("not a valid pattern; use names of agents, with `*` for any characters and `?` for one")
    return pattern


def _validate_tool_part(pattern: str) -> str:
    if not _PATTERN_OF_TOOLS.fullmatch(pattern):
        raise ValueError(
            "not a valid pattern; use ASCII letters, digits, `_`, `.`, `/`, `-`, with `*` for any characters and `?` "
            "for one"
        )
    return pattern


def _validate_tools(pattern: str) -> str:
    if pattern == EVERYONE:
        return pattern
    server, dot, tool = pattern.partition(".")
    if not dot:
        raise ValueError("this pattern names no server; write `SERVER.TOOL`, such as `k8s.get_*`, `*.delete_*` or `*`")
    if not _PATTERN_OF_SERVERS.fullmatch(server):
        raise ValueError(
            "the part before the first dot is not the id of a server; use ASCII letters, digits, `_` and `-`, with "
            "`*` for any characters and `?` for one"
        )
    _validate_tool_part(tool)
    return pattern


def _validate_capability(text: str) -> str:
    parse_capability(text)
    return text


def _validate_required(text: str) -> str:
    if any(map(has_wildcard, parse_capability(text))):
        raise ValueError("a required capability has no `*` and no `?`; name the capability itself")
    return text


AgentName = Annotated[str, AfterValidator(_validate_agent)]
AgentPattern = Annotated[str, AfterValidator(_validate_agents)]
ToolPattern = Annotated[str, AfterValidator(_validate_tools)]
"""`server.tool`, both perhaps with wildcards."""
ToolPart = Annotated[str, AfterValidator(_validate_tool_part)]
"""The same without the server."""
GrantedCapability = Annotated[str, AfterValidator(_validate_capability)]
CapabilityName = Annotated[str, AfterValidator(_validate_required)]


def parse_capability(text: str) -> Capability:
    """The tuple that a capability is.

    Raises:
        ValueError: It is not a capability; the text says what is.
    """
    if text == _GLOBAL:
        return (_MCP,)
    if text.startswith(f"{_MCP}_"):
        server, dot, tool = text.removeprefix(f"{_MCP}_").partition(".")
        if _SERVER.fullmatch(server) and (not dot or _PATTERN_OF_TOOLS.fullmatch(tool)):
            return (_MCP, server, tool) if dot else (_MCP, server)
    elif _NAME.fullmatch(text) and text.casefold() != _MCP and not text.casefold().startswith(f"{_MCP}_"):
        return (text,)
    raise ValueError(
        "not a capability; use `mcp_integration` (all tools), `mcp_SERVER`, `mcp_SERVER.TOOL`, or a name of your own "
        "of ASCII letters, digits, `_` and `-` that does not begin with `mcp_`"
    )


def covers(held: Collection[Capability], needed: Capability) -> bool:
    """Whether somebody who holds some capabilities has the needed one: itself, or a wider one."""
    if any(needed[:length] in held for length in range(1, len(needed) + 1)):
        return True
    if len(needed) < 3:
        return False
    *server, tool = needed
    return any(len(each) == 3 and [*each[:2]] == server and matches(each[2], tool) for each in held)


def split_pattern(pattern: str) -> tuple[str, str]:
    """The parts of a `ToolPattern` for server and tool."""
    server, _, tool = pattern.partition(".")
    return (server, tool) if tool else (EVERYONE, EVERYONE)


def has_wildcard(text: str) -> bool:
    return "*" in text or "?" in text


@lru_cache(_FOLDED_NAMES)
def fold(name: str) -> str:
    """The name without what distinguishes it from its look-alikes in case and in compatible characters."""
    # Twice, because folding the case may make characters that are not normal.
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def matches(pattern: str, name: str) -> bool:
    """Whether a pattern that permits matches a name: exactly."""
    return pattern in (EVERYONE, name) or (has_wildcard(pattern) and _compiled(pattern).match(name) is not None)


def restricts(patterns: Iterable[str], name: str) -> bool:
    """Whether one of the patterns that restrict matches a name, or what it looks like."""
    folded = fold(name)
    return any(matches(pattern, name) or matches(pattern.lower(), folded) for pattern in patterns)


@lru_cache(_COMPILED_PATTERNS)
def _compiled(pattern: str) -> re.Pattern[str]:
    # The wildcards become atomic groups, so that a search does not go back.
    return re.compile(translate(pattern))
