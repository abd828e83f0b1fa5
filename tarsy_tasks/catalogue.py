"""The catalogue in Redis: the tools of all MCP servers, what changed since they were approved, and approving it.

Owns the shapes in Redis, reading them, and `ToolCatalogue` to look tools up. Workers write what servers list
(`worker.reporting.tool_changes`). A definition is approved when it is first seen; a change is approved by an operator.
"""

import difflib
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from tarsy_tasks.broker import keys
from tarsy_tasks.errors import BrokerUnavailable, ToolNameError
from tarsy_tasks.models import FrozenModel, ToolDefinition, ToolListing
from tarsy_tasks.telemetry.health_records import CHECK_INTERVAL_S
from tarsy_tasks.tool_names import build_name_list, resolve_tool_name

if TYPE_CHECKING:
    from celery import Celery

__all__ = [
    "CATALOGUE_TTL_S",
    "COUNTERS",
    "ApprovedTool",
    "ListedServer",
    "StoredListing",
    "ToolCatalogue",
    "ToolDiff",
    "approve_tools",
    "diff_lines",
    "digest_listing",
    "parse_approved",
    "parse_listing",
    "read_catalogue",
]

logger = logging.getLogger(__name__)

CATALOGUE_TTL_S = 30 * 24 * 3600
"""Renewed by every check. A server that no worker served for a month is forgotten, with its approvals."""
COUNTERS = ("added", "removed", "changed")


class ApprovedTool(FrozenModel):
    """A definition that is approved.

    Attributes:
        approved_at: In seconds since the epoch, by the clock of Redis.
        new: It was added after the server's first listing, and was approved because it was new, not by an operator.
    """

    v: Literal[1] = 1
    fingerprint: str
    definition: ToolDefinition
    approved_at: float = Field(allow_inf_nan=False)
    new: bool = False


class ToolDiff(FrozenModel):
    """How a server's listing differs from what was approved; tools by name, sorted.

    Attributes:
        added: Listed, and approved only because they were new.
        removed: Approved, and not listed any more; as approved.
        changed: Listed with another definition: as approved (None if that cannot be read), and as listed now.
    """

    added: dict[str, ToolDefinition] = Field(default_factory=dict)
    removed: dict[str, ToolDefinition] = Field(default_factory=dict)
    changed: dict[str, tuple[ToolDefinition | None, ToolDefinition]] = Field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def __str__(self) -> str:
        return "; ".join(f"{what} {', '.join(tools)}" for what, tools in self if tools) or "nothing"


class StoredListing(ToolListing):
    """A listing as it is in Redis.

    Attributes:
        digest: Its `digest_listing`; empty if an earlier version wrote it.
    """

    digest: str = ""


class ListedServer(FrozenModel):
    """What one server offers, as it was last listed.

    Attributes:
        listed_at: When the listing last changed, in seconds since the epoch by the clock of Redis.
        worker: Name of the worker that found the change.
        diff: How it differs from what was approved.
        counts: How many tools were ever added, removed and changed after the first listing.
        approvals: As stored in Redis, by tool. They are parsed only for `diff`, because most lookups do not need them.
    """

    listing: ToolListing
    listed_at: float
    worker: str
    counts: dict[str, int]
    approvals: dict[bytes, bytes] = Field(exclude=True, repr=False)

    @cached_property
    def digest(self) -> str:
        """12 hexadecimal digits that identify exactly these definitions."""
        listed = sorted((tool.tool, tool.fingerprint) for tool in self.listing.tools)
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:12]

    @cached_property
    def diff(self) -> ToolDiff:
        """How the listing differs from what was approved."""
        return build_diff(self.listing, parse_approved(self.approvals))


class ToolCatalogue:
    """Looks up tools of MCP servers in Redis, without asking the servers. Workers keep the catalogue up to date.

    It reads Redis on first use, and again when what it read is older than `max_age_s`. While Redis is down it uses what
    it read before, and logs a warning.

    Args:
        servers: Ids of the servers; None for all that are configured and enabled for the application.
        app: A Celery application on the workers' Redis. None: the package's own, with Redis from `TARSY_REDIS_URL`.
        max_age_s: Seconds after which to read again; by default the interval between two checks of a server.

    Raises:
        ValueError: `servers` is a plain string.
        ConfigError: `servers` is None, and the configuration is missing or wrong.
    """

    def __init__(
        self,
        servers: Iterable[str] | None = None,
        *,
        app: "Celery | None" = None,
        max_age_s: float = CHECK_INTERVAL_S,
    ) -> None:
        from tarsy_tasks.celery_app import agent_app, mcp_config_of

        self._app = app or agent_app()
        configured = mcp_config_of(self._app).enabled_servers if servers is None else ()
        self._servers = list(configured) if servers is None else build_name_list(servers, "servers")
        self._listed: Mapping[str, ListedServer] = {}
        self._max_age_s = max_age_s
        self._read_at: float | None = None

    def refresh(self) -> None:
        """Read Redis now.

        Raises:
            BrokerUnavailable: Redis could not be reached.
        """
        from redis.exceptions import RedisError

        try:
            self._listed = read_catalogue(self._app.backend.client, self._servers)
        except (RedisError, OSError) as error:
            raise BrokerUnavailable(f"Redis could not be reached ({error}), so no tools are known.") from error
        self._read_at = time.monotonic()

    def servers(self) -> dict[str, ListedServer]:
        """The servers that were ever listed, by id.

        Raises:
            BrokerUnavailable: Redis could not be reached, and never was. The other methods raise it too.
        """
        if self._read_at is None:
            self.refresh()
        elif time.monotonic() - self._read_at > self._max_age_s:
            try:
                self.refresh()
            except BrokerUnavailable as error:
                logger.warning("the catalogue cannot be read, so tools read earlier are used: %s", error)
                self._read_at = time.monotonic()
        return dict(self._listed)

    def tools(self, server: str | None = None) -> list[ToolDefinition]:
        """The tools of one server, or of all; empty for a server that was never listed."""
        listed = self.servers()
        chosen = list(listed) if server is None else [server] if server in listed else []
        return [tool for name in chosen for tool in listed[name].listing.tools]

    def find(self, name: str) -> ToolDefinition:
        """The tool that a name means, in any form that a call may use.

        Raises:
            ToolNameError: There is no such tool; the text lists what there is, closest first.
        """
        by_server = {
            server: {tool.tool: tool for tool in listed.listing.tools} for server, listed in self.servers().items()
        }
        server, tool = resolve_tool_name(name, by_server)
        return by_server[server][tool]

    def is_mcp_tool(self, name: str) -> bool:
        """Whether a name means one of the tools, for agents that have other tools as well."""
        try:
            self.find(name)
        except ToolNameError:
            return False
        return True


def read_catalogue(redis: Any, servers: Iterable[str]) -> dict[str, ListedServer]:
    """The listings of servers, by id. A server is left out if it was never listed, or if its listing cannot be read.

    Args:
        redis: A redis-py client.
    """
    from tarsy_tasks.broker.key_types import execute_reading

    names = list(servers)
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.hmget(keys.tools_key(name), ("listing", *COUNTERS))
        pipeline.hgetall(keys.approved_tools_key(name))
    replies = execute_reading(pipeline) if names else []
    found: dict[str, ListedServer] = {}
    for name, fields, approved in zip(names, replies[::2], replies[1::2], strict=True):
        if fields is None or approved is None:
            continue
        text, *counts = fields
        parsed = parse_listing(text, name)
        if parsed is not None:
            listing, listed_at, worker = parsed
            found[name] = ListedServer(
                listing=listing,
                listed_at=listed_at,
                worker=worker,
                counts={what: _parse_count(count) for what, count in zip(COUNTERS, counts, strict=True)},
                approvals=approved,
            )
    return found


def approve_tools(redis: Any, listed: ListedServer, tools: Iterable[str] | None = None) -> ToolDiff:
    """Approve what a server lists.

    Args:
        redis: A redis-py client.
        listed: What the operator has seen; exactly these definitions are approved.
        tools: Names of tools; None for all. A tool that was removed is forgotten.

    Returns:
        What was approved, and what was forgotten.
    """
    diff, server = listed.diff, listed.listing.server
    chosen = None if tools is None else set(tools)
    approved = ToolDiff.model_validate(
        {what: {name: tools[name] for name in tools if chosen is None or name in chosen} for what, tools in diff}
    )
    seconds, microseconds = redis.time()
    key = keys.approved_tools_key(server)
    pipeline = redis.pipeline()
    for tool in listed.listing.tools:
        if tool.tool in approved.added or tool.tool in approved.changed:
            entry = ApprovedTool(fingerprint=tool.fingerprint, definition=tool, approved_at=seconds)
            pipeline.hset(key, tool.tool, entry.model_dump_json())
    for name in approved.removed:
        pipeline.hdel(key, name)
    pipeline.expire(key, CATALOGUE_TTL_S)
    pipeline.hset(keys.TOOL_REVISIONS, server, f"{seconds}.{microseconds:06}")
    pipeline.expire(keys.TOOL_REVISIONS, CATALOGUE_TTL_S)
    pipeline.execute()
    return approved


def build_diff(listing: ToolListing, approved: Mapping[str, ApprovedTool | None]) -> ToolDiff:
    """How a listing differs from what was approved. An approval that cannot be read does not count."""
    listed = {tool.tool: tool for tool in listing.tools}
    added: dict[str, ToolDefinition] = {}
    changed: dict[str, tuple[ToolDefinition | None, ToolDefinition]] = {}
    for name, tool in sorted(listed.items()):
        entry = approved.get(name)
        if name not in approved:
            added[name] = tool
        elif entry is None or entry.fingerprint != tool.fingerprint:
            changed[name] = (entry.definition if entry else None, tool)
        elif entry.new:
            added[name] = tool
    removed = {name: entry.definition for name, entry in sorted(approved.items()) if entry and name not in listed}
    return ToolDiff(added=added, removed=removed, changed=changed)


def diff_lines(before: ToolDefinition, now: ToolDefinition) -> list[str]:
    """How a definition changed: lines of JSON that begin with `+`, `-` or a space, as in a unified diff."""
    lines = difflib.unified_diff(_lines_of(before), _lines_of(now), lineterm="", n=2)
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def _lines_of(tool: ToolDefinition) -> list[str]:
    shown = tool.model_dump(mode="json", include={"description", "input_schema", "annotations"})
    return json.dumps(shown, indent=2, sort_keys=True, ensure_ascii=False).splitlines()


def digest_listing(listing: ToolListing) -> str:
    """32 hexadecimal digits that identify all of a listing but the order of its tools, which some servers list in
    another order each time."""
    digest = hashlib.sha256(json.dumps([listing.instructions, listing.left_out], sort_keys=True).encode())
    for tool in sorted(listing.tools, key=attrgetter("tool")):
        digest.update(json.dumps(tool.model_dump(mode="json"), sort_keys=True).encode())
    return digest.hexdigest()[:32]


def parse_listing(text: bytes | None, server: str) -> tuple[ToolListing, float, str] | None:
    """A listing as stored in Redis, its time and its worker; None if there is none that this version can read."""
    try:
        value: Any = json.loads(text or b"null")
        listing = ToolListing.model_validate(value)
        if listing.server != server:
            return None
        return listing, float(value["listed_at"]), str(value["worker"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def parse_approved(found: Mapping[bytes, bytes]) -> dict[str, ApprovedTool | None]:
    """Approvals as stored in Redis, by tool; None for one that this version cannot read, which does not count."""
    approved: dict[str, ApprovedTool | None] = {}
    for field, text in found.items():
        try:
            entry = ApprovedTool.model_validate_json(text)
        except ValidationError:
            entry = None
        approved[field.decode("utf-8", "replace")] = entry
    return approved


def _parse_count(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
