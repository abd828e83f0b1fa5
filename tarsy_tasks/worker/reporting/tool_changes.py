"""What a server lists, compared with what it listed before and with what was approved.

Owns writing both to Redis, the log line about a change, and the rejection of a changed tool where the server has
`pin: block`. If several workers see the same change, the first to write it logs it. The shapes are in `catalogue`.
"""

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from redis.exceptions import RedisError, ResponseError, WatchError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.async_exchange import AsyncRedisExchange
from tarsy_tasks.broker.key_types import delete_wrong_types, is_wrong_type
from tarsy_tasks.catalogue import CATALOGUE_TTL_S, ApprovedTool, ToolDiff, build_diff, parse_approved, parse_listing
from tarsy_tasks.errors import CallError
from tarsy_tasks.models import ToolDefinition, ToolListing
from tarsy_tasks.outcomes import ErrorCode
from tarsy_tasks.telemetry.health_records import CHECK_INTERVAL_S
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["Approvals", "record_listing"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_LIMIT_BYTES = 16 * 1024 * 1024
_AUTO_APPROVED_LIMIT = 5000
"""A server with this many approved definitions gets no more approved automatically: a server that renames its tools all
the time must not fill Redis, and no approval is dropped to make room."""
_NAMES_SHOWN = 20


def record_listing(redis: Any, listing: ToolListing, *, worker: str) -> None:
    """Write what a server lists, approve tools seen for the first time, and log what changed.

    Raises:
        RedisError: Redis could not be reached, or other workers wrote at the same time, five times in a row.
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
                approved_now, refused = _first_seen(listing, approved)
                pipeline.multi()
                is_new = before is None or bool(changes) or before[0].instructions != listing.instructions
                if is_new:
                    _write_listing(pipeline, listing, changes, now, worker)
                for tool in approved_now:
                    entry = _approved(tool, now, new=bool(approved))
                    pipeline.hset(approved_key, tool.tool, entry.model_dump_json())
                if is_new or approved_now:
                    pipeline.hset(keys.TOOL_REVISIONS, listing.server, f"{seconds}.{microseconds:06}")
                    pipeline.expire(keys.TOOL_REVISIONS, CATALOGUE_TTL_S)
                pipeline.expire(tools_key, CATALOGUE_TTL_S)
                pipeline.expire(approved_key, CATALOGUE_TTL_S)
                pipeline.execute()
            except WatchError:
                continue  # another worker wrote; compare again
            except ResponseError as error:
                if not is_wrong_type(error):
                    raise
                delete_wrong_types(redis, dict.fromkeys((tools_key, approved_key, keys.TOOL_REVISIONS), "hash"))
                continue
        if changes:
            level = logging.WARNING if changes.changed else logging.INFO
            logger.log(level, "MCP server %s changed its tools: %s", listing.server, _shorten(changes))
        if refused:
            logger.warning(
                "MCP server %s has so many tools, or has renamed them so often, that %d new ones are not approved "
                "automatically; `tarsy-tasks tools approve %s` approves what it lists now, and nothing else",
                listing.server,
                len(refused),
                listing.server,
            )
        return
    raise WatchError(f"the tools of {listing.server} were changed by others {_ATTEMPTS} times while they were written")


def _first_seen(
    listing: ToolListing, approved: Mapping[str, ApprovedTool | None]
) -> tuple[list[ToolDefinition], list[ToolDefinition]]:
    """The unknown tools: those to be approved automatically, and the others. A first listing is approved as a whole."""
    unknown = [tool for tool in listing.tools if tool.tool not in approved]
    room = max(0, _AUTO_APPROVED_LIMIT - len(approved)) if approved else len(unknown)
    return unknown[:room], unknown[room:]


def _compare(before: ToolListing, now: ToolListing) -> ToolDiff:
    """How two listings differ, as if all of the first was approved."""
    return build_diff(now, {tool.tool: _approved(tool, 0, new=False) for tool in before.tools})


def _approved(tool: ToolDefinition, at: float, *, new: bool) -> ApprovedTool:
    return ApprovedTool(fingerprint=tool.fingerprint, definition=tool, approved_at=at, new=new)


def _by_kind(changes: ToolDiff) -> dict[str, list[str]]:
    """The names of the tools that changed, by how they did."""
    kinds = {"added": changes.added, "removed": changes.removed, "changed": changes.changed}
    return {kind: list(tools) for kind, tools in kinds.items() if tools}


def _write_listing(pipeline: Any, listing: ToolListing, changes: ToolDiff, now: float, worker: str) -> None:
    value = listing.model_dump(mode="json")
    for entry, tool in zip(value["tools"], listing.tools, strict=True):
        entry["fingerprint"] = tool.fingerprint
    text = json.dumps({**value, "listed_at": now, "worker": worker})
    key = keys.tools_key(listing.server)
    if len(text) > _LIMIT_BYTES:
        logger.warning("MCP server %s lists %d bytes of tools, too many to be stored", listing.server, len(text))
        pipeline.hdel(key, "listing")
        # Keeps the key, which shows that this listing was processed.
        pipeline.hset(key, "left_out_bytes", len(text))
        return
    pipeline.hset(key, "listing", text)
    pipeline.hdel(key, "left_out_bytes")
    for what, tools in _by_kind(changes).items():
        pipeline.hincrby(key, what, len(tools))


def _shorten(changes: ToolDiff) -> str:
    parts: list[str] = []
    for what, tools in _by_kind(changes).items():
        more = f" and {len(tools) - _NAMES_SHOWN} more" if len(tools) > _NAMES_SHOWN else ""
        parts.append(f"{what} {', '.join(map(make_visible, tools[:_NAMES_SHOWN]))}{more}")
    return "; ".join(parts)


class Approvals:
    """Rejects tools whose definition is not the approved one.

    A tool that was not approved is looked up at each call, so an approval has effect on the next call.

    Args:
        known_s: How long an approved definition is not looked up again, even if another one has been approved.
    """

    def __init__(self, known_s: float = CHECK_INTERVAL_S) -> None:
        self._known_s = known_s
        self._known: dict[str, tuple[str, float]] = {}

    async def require(self, tool: ToolDefinition, redis: AsyncRedisExchange) -> None:
        """Return if the tool is approved, or will be because it is seen for the first time.

        Raises:
            CallError: It is not, or Redis could not be read.
        """
        fingerprint, known_until = self._known.get(tool.name, ("", 0.0))
        if fingerprint == tool.fingerprint and time.monotonic() < known_until:
            return
        try:
            approved, count = await _look_up(tool, redis)
        except (RedisError, OSError) as error:
            raise CallError(
                ErrorCode.SERVER_UNAVAILABLE,
                f"Redis could not be asked whether `{tool.name}` is approved ({error}). The tool did not run. "
                "Try again later.",
            ) from error
        if approved == tool.fingerprint:
            self._known[tool.name] = tool.fingerprint, time.monotonic() + self._known_s
        elif approved is not None or count >= _AUTO_APPROVED_LIMIT:
            what = (
                f"The definition of `{tool.name}` changed since it was approved."
                if approved is not None
                else f"`{tool.name}` is new, and its server has too many tools for automatic approval."
            )
            raise CallError(
                ErrorCode.TOOL_CHANGED,
                f"{what} The tool did not run. An operator has to review it (tarsy-tasks tools diff {tool.server}) and "
                f"approve it (tarsy-tasks tools approve {tool.name}). Do without it until then.",
            )


async def _look_up(tool: ToolDefinition, redis: AsyncRedisExchange) -> tuple[str | None, int]:
    """The approved fingerprint, empty if it cannot be parsed; and how many tools of the server are approved."""
    key = keys.approved_tools_key(tool.server)
    text, count = await redis.execute(("HGET", key, tool.tool), ("HLEN", key))
    if text is None:
        return None, count
    entry = parse_approved({tool.tool.encode(): text})[tool.tool]
    return (entry.fingerprint if entry else ""), count
