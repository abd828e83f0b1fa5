"""What a server lists, compared with what it listed before and with what was approved.

Owns writing both to Redis, and the log line about a change. If several workers see the same change, the first to write
it logs it. The shapes are in `catalogue`; a changed tool is rejected by `calls.approved_definitions`.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

from redis.exceptions import ResponseError, WatchError

from tarsy_tasks.broker import keys
from tarsy_tasks.broker.key_types import delete_wrong_types, is_wrong_type
from tarsy_tasks.catalogue import (
    CATALOGUE_TTL_S,
    ApprovedTool,
    ToolDiff,
    build_diff,
    digest_listing,
    parse_approved,
    parse_listing,
)
from tarsy_tasks.models import ToolDefinition, ToolListing
from tarsy_tasks.telemetry.printable import make_visible

__all__ = ["AUTO_APPROVED_LIMIT", "record_listing"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 5
_LIMIT_BYTES = 16 * 1024 * 1024
AUTO_APPROVED_LIMIT = 5000
"""A server with this many approved definitions gets no more approved automatically: a server that renames its tools all
the time must not fill Redis, and no approval is dropped to make room."""
_NAMES_SHOWN = 20


def record_listing(redis: Any, listing: ToolListing, *, worker: str) -> None:
    """Write what a server lists, approve tools seen for the first time, and log what changed.

    Raises:
        RedisError: Redis could not be reached, or other workers wrote at the same time, five times in a row.
    """
    tools_key, approved_key = keys.tools_key(listing.server), keys.approved_tools_key(listing.server)
    digest = digest_listing(listing)
    for _ in range(_ATTEMPTS):
        with redis.pipeline() as pipeline:
            try:
                pipeline.watch(tools_key, approved_key)
                seconds, microseconds = pipeline.time()
                now = seconds + microseconds / 1e6
                text = pipeline.hget(tools_key, "listing")
                before = parse_listing(text, listing.server)
                approved = parse_approved(pipeline.hgetall(approved_key))
                changes = _compare(before[0], listing) if before is not None else ToolDiff()
                approved_now, refused = _first_seen(listing, approved)
                pipeline.multi()
                # What no approval is about may have changed, too; and earlier versions wrote no digest.
                is_new = before is None or bool(changes) or json.loads(text).get("digest") != digest
                if is_new:
                    _write_listing(pipeline, listing, digest, changes, now, worker)
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
    raise WatchError(f"other workers wrote the tools of {listing.server} at the same time, {_ATTEMPTS} times in a row")


def _first_seen(
    listing: ToolListing, approved: Mapping[str, ApprovedTool | None]
) -> tuple[list[ToolDefinition], list[ToolDefinition]]:
    """The unknown tools: those to be approved automatically, and the others. A first listing is approved as a whole."""
    unknown = [tool for tool in listing.tools if tool.tool not in approved]
    room = max(0, AUTO_APPROVED_LIMIT - len(approved)) if approved else len(unknown)
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


def _write_listing(
    pipeline: Any, listing: ToolListing, digest: str, changes: ToolDiff, now: float, worker: str
) -> None:
    value = listing.model_dump(mode="json")
    for entry, tool in zip(value["tools"], listing.tools, strict=True):
        entry["fingerprint"] = tool.fingerprint
    text = json.dumps({**value, "listed_at": now, "worker": worker, "digest": digest})
    key = keys.tools_key(listing.server)
    if len(text) > _LIMIT_BYTES:
        logger.warning("MCP server %s lists %d bytes of tools, too much to be stored", listing.server, len(text))
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
