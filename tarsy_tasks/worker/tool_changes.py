"""What a server lists, compared with what it listed before and with what was approved.

Owns writing both to Redis, the line in the log about a change, and the rejection of a changed tool where the server has
`pin: block`. Several workers may see the same change: the first to write it tells of it. The shapes are those of
`tarsy_tasks.catalogue`.
"""

import json
import logging
from typing import Any

from redis.exceptions import RedisError, WatchError

from tarsy_tasks import keys
from tarsy_tasks.catalogue import (
    CATALOGUE_TTL_S,
    REVISION,
    ApprovedTool,
    ToolDiff,
    build_diff,
    parse_approved,
    parse_listing,
)
from tarsy_tasks.errors import CallError
from tarsy_tasks.models import ToolDefinition, ToolListing
from tarsy_tasks.outcomes import ErrorCode

__all__ = ["Approvals", "record_listing"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_LIMIT_BYTES = 16 * 1024 * 1024
_FORGOTTEN = 1000
"""So many approvals of tools that a server lists no more are kept: one that renames its tools fills no Redis."""
_NAMES_SHOWN = 20


def record_listing(redis: Any, listing: ToolListing, *, worker: str) -> None:
    """Write down what a server lists, trust what is seen for the first time, and tell of what changed.

    Args:
        redis: A redis-py client.

    Raises:
        RedisError: Redis could not be reached.
    """
    tools_key, approved_key = keys.tools_key(listing.server), keys.approved_tools_key(listing.server)
    for _ in range(_ATTEMPTS):
        with redis.pipeline() as pipeline:
            try:
                pipeline.watch(tools_key, approved_key)
                seconds, microseconds = pipeline.time()
                now = seconds + microseconds / 1e6
                before = parse_listing(pipeline.hget(tools_key, "listing"), listing.server)
                approved = parse_approved(pipeline.hgetall(approved_key))
                changes = _compare(before[0], listing) if before is not None else ToolDiff()
                pipeline.multi()
                is_new = before is None or bool(changes) or before[0].instructions != listing.instructions
                if is_new:
                    _write_listing(pipeline, listing, changes, now, worker)
                if _write_approvals(pipeline, listing, approved, now) or is_new:
                    pipeline.hset(tools_key, REVISION, f"{seconds}.{microseconds:06}")
                pipeline.expire(tools_key, CATALOGUE_TTL_S)
                pipeline.expire(approved_key, CATALOGUE_TTL_S)
                pipeline.execute()
            except WatchError:
                continue  # another worker wrote; perhaps there is nothing left to tell
        if changes:
            level = logging.WARNING if changes.changed else logging.INFO
            logger.log(level, "MCP server %s changed its tools: %s", listing.server, _shorten(changes))
        return


def _compare(before: ToolListing, now: ToolListing) -> ToolDiff:
    """How two listings differ, as if all of the first was approved."""
    known: dict[str, ApprovedTool | None] = {
        tool.tool: ApprovedTool(fingerprint=tool.fingerprint, definition=tool, approved_at=0) for tool in before.tools
    }
    return build_diff(now, known)


def _write_listing(pipeline: Any, listing: ToolListing, changes: ToolDiff, now: float, worker: str) -> None:
    value = listing.model_dump(mode="json")
    for entry, tool in zip(value["tools"], listing.tools, strict=True):
        entry["fingerprint"] = tool.fingerprint
    text = json.dumps({**value, "listed_at": now, "worker": worker})
    key = keys.tools_key(listing.server)
    if len(text) > _LIMIT_BYTES:
        logger.warning("MCP server %s lists %d bytes of tools, too much to be kept", listing.server, len(text))
        pipeline.delete(key)
        return
    pipeline.hset(key, "listing", text)
    for what, tools in (("added", changes.added), ("removed", changes.removed), ("changed", changes.changed)):
        if tools:
            pipeline.hincrby(key, what, len(tools))


def _write_approvals(pipeline: Any, listing: ToolListing, approved: dict[str, ApprovedTool | None], now: float) -> bool:
    """Trust what is seen for the first time; whether there was any of it."""
    key = keys.approved_tools_key(listing.server)
    unknown = [tool for tool in listing.tools if tool.tool not in approved]
    for tool in unknown:
        entry = ApprovedTool(fingerprint=tool.fingerprint, definition=tool, approved_at=now, new=bool(approved))
        pipeline.hset(key, tool.tool, entry.model_dump_json())
    listed = {tool.tool for tool in listing.tools}
    gone = [(entry.approved_at if entry else 0.0, name) for name, entry in approved.items() if name not in listed]
    for _, name in sorted(gone)[: max(0, len(gone) - _FORGOTTEN)]:
        pipeline.hdel(key, name)
    return bool(unknown)


def _shorten(changes: ToolDiff) -> str:
    parts: list[str] = []
    for what, tools in (("added", changes.added), ("removed", changes.removed), ("changed", changes.changed)):
        if tools:
            more = f" and {len(tools) - _NAMES_SHOWN} more" if len(tools) > _NAMES_SHOWN else ""
            parts.append(f"{what} {', '.join(list(tools)[:_NAMES_SHOWN])}{more}")
    return "; ".join(parts)


class Approvals:
    """Lets only tools through that are as they were approved. Safe to share between threads.

    What was found approved once needs no Redis any more; what was not is looked up at each call, so an approval counts
    from the next call on.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def require(self, tool: ToolDefinition, redis: Any) -> None:
        """Return if the tool is approved, or seen for the first time.

        Args:
            redis: A redis-py client.

        Raises:
            CallError: It is not, or Redis did not tell.
        """
        if self._known.get(tool.name) == tool.fingerprint:
            return
        try:
            approved = self._approved(tool, redis)
        except RedisError as error:
            raise CallError(
                ErrorCode.SERVER_UNAVAILABLE,
                f"Whether `{tool.name}` is approved could not be looked up in Redis ({error}). The tool did not run. "
                "Try again later.",
            ) from error
        if approved not in (tool.fingerprint, None):
            raise CallError(
                ErrorCode.TOOL_CHANGED,
                f"The definition of `{tool.name}` changed since it was approved. Nothing was sent. An operator has to "
                f"look at it (tarsy-tasks tools diff {tool.server}) and approve it (tarsy-tasks tools approve "
                f"{tool.name}). Do without it until then.",
            )
        if approved is not None:
            self._known[tool.name] = tool.fingerprint

    def _approved(self, tool: ToolDefinition, redis: Any) -> str | None:
        text = redis.hget(keys.approved_tools_key(tool.server), tool.tool)
        if text is None:
            return None
        entry = parse_approved({tool.tool.encode(): text})[tool.tool]
        return entry.fingerprint if entry else ""
